"""ONNX bytes to folded layers: exact, and as floats with rigorous radii.

Taken are chains of affine operators and ReLUs. The operators between two ReLUs, and a normalisation
before the first, are folded to ``z_k = bias_k + W_k a_{k-1}``, where ``a_0`` is the raw input and
``a_k = relu(z_k)``, *exactly*: as integers over one denominator. For bounds, every entry is then
rounded once, correctly, to a float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import chain, repeat
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qll.audit.onnx_file import INT64, TYPES, Dims, NotConfirmed, parse, require

__all__ = ["Affine", "Array", "Network", "NotConfirmed", "affine", "read_network", "require"]

Array: TypeAlias = NDArray[np.float64]
Scales: TypeAlias = tuple[float, ...] | None
TYPE_OF = {kind: code for code, (_, kind) in TYPES.items()}
MOST_ENTRIES, MOST_WIDTH = 1 << 22, 1 << 20


@dataclass(frozen=True, eq=False)
class Affine:
    """A matrix of entries ``rows[i][k] / below``; those that are missing are 0. It acts on vectors
    that end in a 1, which is how a bias gets in: its last row is 0, ..., 0, 1."""

    rows: list[dict[int, int]]
    below: int

    def after(self, first: Affine) -> Affine:
        """The product of two matrices."""
        terms = sum(len(first.rows[k]) for row in self.rows for k in row)
        require(terms <= MOST_ENTRIES, "a layer that is too large")
        rows = []
        for row in self.rows:
            total: dict[int, int] = {}
            for k, number in row.items():
                for column, other in first.rows[k].items():
                    total[column] = total.get(column, 0) + number * other
            rows.append(total)
        return Affine(rows, self.below * first.below)

    @cached_property
    def floats(self) -> tuple[Array, Array, Array]:
        """W, |W| and the bias, each entry rounded once: off by at most 2^-53 of itself."""
        shape = len(self.rows), max(self.rows[-1]) + 1
        require(math.prod(shape) <= 16 * MOST_ENTRIES, "a layer that is too large")
        whole = np.zeros(shape)
        for i, row in enumerate(self.rows):
            whole[i, list(row)] = [n / self.below for n in row.values()]  # correctly rounded
            fine = all(abs(whole[i, k]) > 2.0**-500 for k, n in row.items() if n)
            require(fine, "a weight that is too small")
        return whole[:-1, :-1].copy(), np.abs(whole[:-1, :-1]), whole[:-1, -1]


@dataclass(frozen=True, eq=False)
class Network:
    input_shape: Dims
    maps: tuple[Affine, ...]  # with a ReLU between each and the next

    @cached_property
    def widths(self) -> list[int]:
        return [math.prod(self.input_shape), *(len(exact.rows) - 1 for exact in self.maps)]

    def exact(self, point: list[Any]) -> list[Fraction]:
        """The outputs in rational arithmetic on the stored weights."""
        numbers, below = _common([*point, 1])
        for k, exact in enumerate(self.maps):
            here = [max(n, 0) for n in numbers] if k else numbers
            numbers = [sum(n * here[i] for i, n in row.items()) for row in exact.rows]
            below *= exact.below
        return [Fraction(n, below) for n in numbers[:-1]]


def _common(values: list[Any]) -> tuple[list[int], int]:
    """Numbers as integers over a common denominator."""
    ratios = [v.as_integer_ratio() for v in values]
    below = math.lcm(*{d for _, d in ratios})
    return [n * (below // d) for n, d in ratios], below


def affine(places: Any, values: list[Any], bias: list[Any], width: int) -> Affine:
    """From entries at different places and a bias for each row."""
    numbers, below = _common([*values, *bias, 1])
    rows: list[dict[int, int]] = [{} for _ in range(len(bias) + 1)]
    last = zip(range(len(rows)), repeat(width))
    for (row, column), number in zip(chain(places, last), numbers, strict=True):
        rows[row][column] = number
    return Affine(rows, below)


def _diagonal(scale: Any, bias: Any, divisor: Any) -> Affine:
    """``(scale * x + bias) / divisor`` for each entry of x."""
    given = [[Fraction(float(v)) for v in t] for t in (scale, bias, divisor)]
    values, shift = ([v / d for v, d in zip(t, given[2], strict=True)] for t in given[:2])
    return affine(zip(range(len(values)), range(len(values))), values, shift, len(values))


@lru_cache(maxsize=2)  # certificates of one folder mostly share it
def read_network(data: bytes, mean: Scales, std: Scales) -> Network:
    """The network of raw input, with ``(x - mean) / std`` (one number, one a channel or one an
    input) before the file's own operators. All names but that of the value are constants."""
    file = parse(data)
    name, dims, width = file.name, file.dims, math.prod(file.dims)
    require(width <= MOST_WIDTH, "an input that is too large")
    scales = [np.array([v] if s is None else s) for v, s in ((0.0, mean), (1.0, std))]
    fits = all(s.size in (1, dims[0], width) for s in scales)
    require(fits and (scales[1] > 0).all(), "a normalisation that does not fit")
    centre, deviation = (np.repeat(s, width // s.size) for s in scales)
    form, maps = _diagonal(np.ones(width), -centre, deviation), list[Affine]()
    shape: Dims = (1, *dims)
    found = {n: (TYPE_OF[c.dtype.str], c.shape) for n, c in file.constants.items()}
    found[name] = file.type, shape
    for node in file.nodes:
        require(node.inputs.count(name) == 1, "the network is not a chain")
        at, name = node.inputs.index(name), node.output
        others = [*node.inputs[:at], *node.inputs[at + 1 :]]
        wanted = INT64 if node.kind == "Reshape" else file.type
        fine = all(other in file.constants and found[other][0] == wanted for other in others)
        require(fine, f"inputs of a {node.kind} that are not constants of its type")
        if node.kind == "Relu":
            maps.append(form)
            form = _diagonal(*np.ones((3, math.prod(shape))) * [[1], [0], [1]])
        else:
            given = [file.constants[other] for other in others]
            step, shape = _operator(node.kind, shape, given, at, node.options)
            require(math.prod(shape) <= MOST_WIDTH, "a layer that is too large")
            form = form if step is None else step.after(form)
        found[name] = file.type, shape
    require(file.output == name, "the output is not the last value")
    for other, kind, sizes in file.stated:
        real = found.get(other, (None, ()))
        same = sizes is None or len(sizes) == len(real[1])
        same = same and all(s in (0, r) for s, r in zip(sizes or (), real[1]))
        require(same and kind == real[0], f"'{other}' is not what the file says")
    return Network(dims, (*maps, form))


def _operator(kind: str, shape: Dims, given: Any, at: int, options: Any) -> tuple[Any, Dims]:
    """An operator on a value of this shape, its input number ``at``: Affine, or None."""
    require(at == 0 or kind in ("Add", "Sub", "Mul"), f"a constant that goes through {kind}")
    size = math.prod(shape)
    one, zero = np.ones(size), np.zeros(size)
    if kind == "Identity":
        return None, shape
    if kind == "Flatten":
        require(options.get("axis", 1) == 1, "a flatten of the batch")
        return None, (1, size)
    if kind == "Reshape":
        return None, _reshape(shape, given[0], options)
    if kind in ("Add", "Sub", "Mul", "Div"):
        require(_spreads(given[0].shape, shape), "a constant that does not fit")
        require(kind != "Div" or given[0].all(), "a division by zero")
        other = np.broadcast_to(given[0], shape).ravel()
        difference = (one, -other, one) if at == 0 else (-one, other, one)
        forms = {"Add": (one, other, one), "Sub": difference, "Mul": (other, zero, one)}
        return _diagonal(*forms.get(kind, (one, zero, other))), shape
    if kind in ("MatMul", "Gemm"):
        plain = options.get("alpha", 1.0) == options.get("beta", 1.0) == 1.0
        plain = plain and options.get("transA", 0) == 0 and size == shape[-1]
        plain = plain and options.get("transB", 0) in (0, 1)
        require(plain and (kind == "MatMul" or len(shape) == 2), f"a {kind} of this form")
        weight = given[0] if options.get("transB", 0) else given[0].T
        require(weight.ndim == 2 and weight.shape[1] == size, "a matrix that does not fit")
        after = *shape[:-1], len(weight)
        require(all(_spreads(b.shape, after) for b in given[1:]), "a bias that does not fit")
        bias = [np.broadcast_to(b, after).ravel() for b in given[1:]]
        window = weight[:, :, None, None]  # a convolution of one place
        return _convolution((1, size, 1, 1), window, bias, {})[0], after
    if kind == "Conv":
        return _convolution(shape, given[0], given[1:], options)
    require(kind == "BatchNormalization", f"operator {kind} is not understood")
    fits = len(shape) > 1 and all(v.shape == (shape[1],) for v in given)
    require(fits, "a normalisation that does not fit")
    gain, shift, mean, variance = (np.repeat(v, size // v.size) for v in given)
    plain = options.get("epsilon") == 0.0 and options.get("training_mode", 0) == 0
    plain = plain and options.get("spatial", 1) == 1 and (variance == 1.0).all()
    require(plain, "a batch normalisation with a variance")
    return _diagonal(gain, shift, one).after(_diagonal(one, -mean, one)), shape


def _spreads(small: Dims, large: Dims) -> bool:
    """Does a constant of the first shape, repeated, have the second?"""
    last = large[len(large) - len(small) :]
    return len(small) <= len(large) and all(s in (1, n) for s, n in zip(small, last, strict=True))


def _reshape(shape: Dims, given: Any, options: Any) -> Dims:
    wanted = given.ravel().tolist()
    fine = given.ndim == 1 and min(wanted) >= -1 and wanted.count(-1) <= 1
    fine = fine and options.get("allowzero", 0) in ((0,) if 0 in wanted else (0, 1))
    require(fine and all(v or i < len(shape) for i, v in enumerate(wanted)), "such a reshape")
    sizes = [v or shape[i] for i, v in enumerate(wanted)]
    rest, odd = divmod(math.prod(shape), abs(math.prod(sizes)))
    require(not odd and (rest == 1 or -1 in sizes), "a reshape that does not fit")
    sizes = [rest if v == -1 else v for v in sizes]
    require(sizes[0] == 1, "a reshape of the batch")
    return tuple(sizes)


def _convolution(shape: Dims, weight: Array, bias: list[Array], options: Any) -> tuple[Any, Dims]:
    fits = weight.ndim == len(shape) == 4 and shape[1] == weight.shape[1]
    fits = fits and options.get("auto_pad", b"NOTSET") == b"NOTSET" and options.get("group", 1) == 1
    fits = fits and options.get("dilations", [1, 1]) == [1, 1]
    fits = fits and options.get("kernel_shape", [*weight.shape[2:]]) == [*weight.shape[2:]]
    strides, pads = options.get("strides", [1, 1]), options.get("pads", [0, 0, 0, 0])
    fits = (
        fits and len(strides) == 2 and len(pads) == 4 and min(*strides, *(p + 1 for p in pads)) > 0
    )
    require(fits, "a convolution of this form")
    (sh, sw), (top, left, bottom, right) = strides, pads
    height, width = shape[2] + top + bottom, shape[3] + left + right
    require(shape[1] * height * width <= MOST_ENTRIES, "a convolution with such pads")
    fits = height >= weight.shape[2] and width >= weight.shape[3]
    require(fits, "a window that is larger than the image")
    image = np.arange(math.prod(shape)).reshape(shape[1:])  # what is read; -1 will be padding
    image = np.pad(image, ((0, 0), (top, bottom), (left, right)), constant_values=-1)
    windows = np.lib.stride_tricks.sliding_window_view(image, weight.shape[1:])[0, ::sh, ::sw]
    full = (weight.shape[0], *windows.shape)
    require(math.prod(full) <= MOST_ENTRIES, "a convolution that is too large")
    columns = np.broadcast_to(windows, full).reshape(math.prod(full[:3]), -1)
    values = np.broadcast_to(weight[:, None, None], full).reshape(columns.shape)
    rows, slots = np.nonzero((columns >= 0) & (values != 0))
    require(not bias or bias[0].shape == full[:1], "a bias that does not fit")
    shift = bias[0] if bias else np.zeros(full[0])
    shifts = np.repeat(shift, full[1] * full[2]).tolist()
    places = zip(rows.tolist(), columns[rows, slots].tolist())
    step = affine(places, values[rows, slots].tolist(), shifts, math.prod(shape))
    return step, (1, *full[:3])
