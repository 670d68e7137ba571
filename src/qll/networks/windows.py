"""The geometry shared by convolution and pooling: which input entries a sliding window sees."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from qll.errors import NetworkError
from qll.networks.matrices import check_entries


@dataclass(frozen=True)
class Window:
    """Per spatial axis: extent, stride, dilation, padding before and after."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil: bool = False

    def __post_init__(self) -> None:
        lengths = {len(part) for part in self._parts}
        positive = all(v >= 1 for part in (self.kernel, self.stride, self.dilation) for v in part)
        padding = all(v >= 0 for part in (self.before, self.after) for v in part)
        if lengths != {len(self.kernel)} or not self.kernel or not positive or not padding:
            raise NetworkError(
                "the window of a convolution or pooling layer is malformed",
                expected="kernel, stride, dilation >= 1 and padding >= 0, one of each per axis",
                found=str(self),
                fix="export the network again",
            )

    @property
    def _parts(self) -> tuple[tuple[int, ...], ...]:
        return (self.kernel, self.stride, self.before, self.after, self.dilation)

    @property
    def size(self) -> int:
        return math.prod(self.kernel)

    def output(self, spatial: tuple[int, ...]) -> tuple[int, ...]:
        if len(spatial) != len(self.kernel):
            raise NetworkError(
                "a window does not fit the tensor it slides over",
                expected=f"{len(self.kernel)} spatial axes",
                found=f"{len(spatial)}: {spatial}",
                fix="check the layer's input shape",
            )
        return tuple(
            self._extent(size, *axis) for size, *axis in zip(spatial, *self._parts, strict=True)
        )

    def _extent(
        self, size: int, kernel: int, stride: int, before: int, after: int, dilation: int
    ) -> int:
        room = size + before + after - dilation * (kernel - 1) - 1
        if room < 0:
            raise NetworkError(
                "a window is larger than the padded tensor it slides over",
                expected=f"an extent of at most {size + before + after}",
                found=f"{dilation * (kernel - 1) + 1}",
                fix="check the network's input shape",
            )
        extent = room // stride + 1
        if self.ceil and room % stride and extent * stride < size + before:
            extent += 1  # a last window that runs over the end, if it starts inside the input
        return extent

    def drops(self, spatial: tuple[int, ...]) -> bool:
        """Whether ``ceil`` would add a window, on some axis, that starts beyond the input and its
        padding before it.

        Readers of ONNX disagree on it: torch and ONNX Runtime drop it, older shape inference, by
        which ONNX Runtime answers what the shape is, does not.
        """
        parts = zip(self.output(spatial), spatial, *self._parts, strict=True)
        return self.ceil and any(
            (size + before + after - dilation * (kernel - 1) - 1) / stride > extent - 1
            for extent, size, kernel, stride, before, after, dilation in parts
        )

    def settle_ceil(self, spatial: tuple[int, ...]) -> Window:
        """The same windows with ``ceil`` only where it adds one, for writing."""
        plain = replace(self, ceil=False)
        if self.output(spatial) == plain.output(spatial):
            return plain
        if self.drops(spatial):
            raise NetworkError(
                "a pooling layer rounds its extent up on one axis and down on the other",
                expected="ceil_mode to mean the same on every axis",
                found=f"windows {self.output(spatial)} over {spatial}",
                fix="use ceil_mode=False, or another stride or padding",
            )
        return self

    def taps(self, spatial: tuple[int, ...]) -> NDArray[np.int64]:
        """(output positions, kernel entries): flat spatial index of each tap, -1 in the padding."""
        return self._positions(spatial)[0]

    def padded_taps(self, spatial: tuple[int, ...]) -> NDArray[np.int64]:
        """How many taps of each window lie on the input or its declared padding (a window that runs
        over the end under ``ceil`` does not count what lies beyond)."""
        declared = self._positions(spatial)[1]
        counts: NDArray[np.int64] = np.sum(declared, axis=1, dtype=np.int64)
        return counts

    def _positions(self, spatial: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        out = self.output(spatial)
        check_entries(math.prod(out) * self.size, "a sliding window")
        flat = np.zeros((1, 1), dtype=np.int64)
        inside = np.ones((1, 1), dtype=np.bool_)
        declared = np.ones((1, 1), dtype=np.bool_)
        for axis, size in enumerate(spatial):
            starts = np.arange(out[axis]) * self.stride[axis] - self.before[axis]
            coords = starts[:, None] + np.arange(self.kernel[axis]) * self.dilation[axis]
            within = (coords >= 0) & (coords < size)
            legal = coords < size + self.after[axis]
            flat = _outer(flat * size, coords, np.add)
            inside = _outer(inside, within, np.logical_and)
            declared = _outer(declared, legal, np.logical_and)
        return np.where(inside, flat, -1), declared


def _outer(left: NDArray[np.generic], right: NDArray[np.generic], combine: np.ufunc) -> np.ndarray:
    """Combine (positions, taps) of the axes so far with those of the next, row-major in both."""
    table: np.ndarray = combine(left[:, None, :, None], right[None, :, None, :])
    return table.reshape(left.shape[0] * right.shape[0], left.shape[1] * right.shape[1])


def same_padding(
    spatial: tuple[int, ...], window: Window, *, upper: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """ONNX ``auto_pad`` SAME: output extent ``ceil(size / stride)``, the odd one at one end."""
    before, after = [], []
    for size, kernel, stride, dilation in zip(
        spatial, window.kernel, window.stride, window.dilation, strict=True
    ):
        extent = math.ceil(size / stride)
        total = max((extent - 1) * stride + dilation * (kernel - 1) + 1 - size, 0)
        small, large = total // 2, total - total // 2
        before.append(small if upper else large)
        after.append(large if upper else small)
    return tuple(before), tuple(after)
