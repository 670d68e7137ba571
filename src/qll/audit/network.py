"""ONNX bytes to steps with the stored weights, and to folded layers with rigorous radii.

Taken are chains: a *step* is ``(bias + A v) / divisor`` of the value before it, with exact stored
numbers, or a ReLU. The *folded* layers are ``z_k = bias_k + W_k a_{k-1}`` with ``a_0`` the raw
input and ``a_k = relu(z_k)``. An entry of W or bias is known as a float64 middle M and a radius R
that contain the exact fold: ``|fl(A M) - A W| <= |A| R + gamma_n |A| |M|`` with ``u = 2^-53`` and
``gamma_n = n u / (1 - n u)``, for a sum of n products in any order, fused or not (Higham 2002,
section 3.1). Radii are inflated for the rounding of their own computation. Stored numbers lie
between 2^-150 and 2^100 in size and at most 5 affine steps are folded: no over- or underflow here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qll.audit.container import NotConfirmed, require

Array: TypeAlias = NDArray[np.float64]
Scales: TypeAlias = tuple[float, ...] | None
MOST_ENTRIES = 1 << 26
MOST_FOLDED = 5


def gamma(products: int) -> float:
    """Above gamma_n for sums of ``products`` terms, with room for a dozen further roundings."""
    return 1.01 * (products + 16) * 2.0**-53


@dataclass(frozen=True, eq=False)
class Step:
    """``(bias + A v) / divisor``; A by rising rows, columns, values."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: Array
    bias: Array
    divisor: Array

    @cached_property
    def whole(self) -> list[tuple[Any, int]]:
        """Weights, bias and 1 / divisor as integers over a denominator each."""
        inverse = [1 / Fraction(v) for v in self.divisor.tolist()]
        return [_common(v) for v in (self.values.tolist(), self.bias.tolist(), inverse)]


@dataclass(frozen=True, eq=False)
class Layer:
    """``z = bias + W a``; one-dimensional middle and radius stand for diagonal matrices."""

    bias: Array
    bias_radius: Array
    middle: Array
    radius: Array


@dataclass(frozen=True, eq=False)
class Network:
    """``steps`` unfolded (None is a ReLU) and ``layers`` folded, the last one the output."""

    input_shape: tuple[int, ...]
    steps: tuple[Step | None, ...]
    layers: tuple[Layer, ...]

    @cached_property
    def widths(self) -> list[int]:
        return [math.prod(self.input_shape), *(layer.bias.size for layer in self.layers)]

    def exact(self, point: list[Any]) -> list[Fraction]:
        """The outputs in rational arithmetic on the stored weights: integers over a denominator."""
        numbers, below = _common(point)
        for step in self.steps:
            if step is None:
                numbers = np.maximum(numbers, 0)
                continue
            (weights, scale), (bias, bias_scale), (inverse, extra) = step.whole
            total = bias * (scale * below)
            starts = np.flatnonzero(np.diff(step.rows, prepend=-1))
            if starts.size:
                sums = np.add.reduceat(weights * numbers[step.columns], starts)
                total[step.rows[starts]] += sums * bias_scale
            numbers, below = total * inverse, scale * below * bias_scale * extra
        return [Fraction(int(n), below) for n in numbers]


def _common(values: list[Any]) -> tuple[Any, int]:
    exact = [Fraction(v) for v in values]
    below = math.lcm(*(v.denominator for v in exact))
    return np.array([v.numerator * (below // v.denominator) for v in exact], dtype=object), below


@lru_cache(maxsize=2)  # certificates of one folder mostly share it
def read_network(data: bytes, mean: Scales, std: Scales) -> Network:
    """The network of raw input: ``(x - mean) / std`` (one number, one a channel or one an input)
    comes before the file's own steps."""
    import onnx

    try:
        return _Reader(onnx.load_model_from_string(data).graph, mean, std).network()
    except NotConfirmed:
        raise
    except Exception as error:  # whatever the reader stumbles over is not understood
        raise NotConfirmed(f"no readable network: {type(error).__name__}: {error}") from error


class _Reader:
    """Follows the one value from the input to the output; ``constants`` are all other names."""

    def __init__(self, graph: Any, mean: Scales, std: Scales) -> None:
        from onnx import numpy_helper

        self.steps: list[Step | None] = []
        self.constants = {t.name: _stored(numpy_helper.to_array(t)) for t in graph.initializer}
        inputs = [i for i in graph.input if i.name not in self.constants]
        require(len(inputs) == 1 and len(graph.output) == 1, "not one input and one output")
        dims = [d.dim_value for d in inputs[0].type.tensor_type.shape.dim]
        fine = len(dims) > 1 and dims[0] in (0, 1) and all(d > 0 for d in dims[1:])
        require(fine, "the input is not a batch of one shape")
        self.name, self.shape, self.input_shape = inputs[0].name, (1, *dims[1:]), tuple(dims[1:])
        if mean is not None or std is not None:
            centre, width = (self._spread(v or ()) for v in (mean, std))
            require((width > 0).all(), "a deviation that is not positive")
            self._diagonal(np.ones(centre.size), -centre, width)
        for node in graph.node:
            require(node.domain in ("", "ai.onnx"), f"operator {node.domain}.{node.op_type}")
            options = {a.name: a for a in node.attribute}
            if node.op_type == "Constant":
                value = numpy_helper.to_array(options["value"].t)
                self.constants[node.output[0]] = _stored(value)
            else:
                single = list(node.input).count(self.name) == 1 == len(node.output)
                require(single, "the network is not a chain")
                self._apply(node.op_type, list(node.input), options)
                self.name = node.output[0]
        require(graph.output[0].name == self.name, "the output is not the last value")

    def _apply(self, kind: str, inputs: list[str], options: dict[str, Any]) -> None:
        size, left = math.prod(self.shape), inputs[0] == self.name
        if kind == "Relu":
            self.steps.append(None)
        elif kind == "Flatten":
            require(_integers(options, "axis", [1]) == [1], "Flatten of another axis than 1")
            self.shape = (1, size)
        elif kind == "Reshape":
            wanted = enumerate(self._constant(inputs, 1).astype(int).ravel().tolist())
            self.shape = np.empty(size, "u1").reshape([v or self.shape[i] for i, v in wanted]).shape
            require(self.shape[0] == 1, "a reshape of the batch")
        elif kind in ("Add", "Sub", "Mul", "Div"):
            given = self._constant(inputs, 1 if left else 0)
            require(np.broadcast_shapes(self.shape, given.shape) == self.shape, "no fit")
            given = np.broadcast_to(given, self.shape).ravel()
            one, sign = np.ones(size), -1.0 if kind == "Sub" else 1.0
            if kind in ("Add", "Sub"):
                self._diagonal(one if left else sign * one, sign * given if left else given, one)
            else:
                require(kind == "Mul" or (left and (given != 0).all()), "a division by a value")
                scale, divisor = (given, one) if kind == "Mul" else (one, given)
                self._diagonal(scale, np.zeros(size), divisor)
        elif kind in ("MatMul", "Gemm"):
            weight = self._constant(inputs, 1)
            scales = [options[n].f for n in ("alpha", "beta") if n in options]
            plain = _integers(options, "transA", [0]) == [0] and all(s == 1.0 for s in scales)
            require(plain and left and weight.ndim == 2 and size == self.shape[-1], "such a matrix")
            weight = weight if _integers(options, "transB", [0])[0] else weight.T
            self._matrix(weight, self._bias(inputs, weight.shape[0]))
        elif kind == "Conv":
            self._convolve(self._constant(inputs, 1), inputs, options)
        elif kind == "BatchNormalization":
            self._normalise([self._constant(inputs, k) for k in (1, 2, 3, 4)], options)
        else:
            require(kind == "Identity", f"operator {kind} is not understood")

    def _normalise(self, given: list[Array], options: dict[str, Any]) -> None:
        """``(x - mean) / sqrt(variance + epsilon) * gain + shift`` by channel, where the root is
        exactly 1: how a normalisation layer is stored. Another root is not a stored number."""
        require(all(v.shape == (self.shape[1],) for v in given), "a normalisation does not fit")
        gain, shift, mean, variance = (np.repeat(v, math.prod(self.shape[2:])) for v in given)
        plain = "epsilon" in options and options["epsilon"].f == 0.0 and (variance == 1.0).all()
        plain = plain and _integers(options, "training_mode", [0]) == [0]
        require(plain, "a batch normalisation with a variance")
        self._diagonal(np.ones(mean.size), -mean, np.ones(mean.size))
        self._diagonal(gain, shift, np.ones(mean.size))

    def _spread(self, values: tuple[float, ...]) -> Array:
        given = _stored(np.array(values, dtype=np.float64)).ravel()
        size = math.prod(self.input_shape)
        require(given.size in (1, self.input_shape[0], size), "the normalisation does not fit")
        return np.repeat(given, size // given.size)

    def _constant(self, inputs: list[str], position: int) -> Array:
        require(inputs[position] in self.constants, f"{inputs[position]} is not a constant")
        return self.constants[inputs[position]]

    def _bias(self, inputs: list[str], width: int) -> Array:
        bias = self._constant(inputs, 2) if len(inputs) > 2 else np.zeros(1)
        require(bias.size in (1, width), "a bias does not fit")
        return np.broadcast_to(bias.ravel(), (width,)).copy()

    def _diagonal(self, scale: Array, bias: Array, divisor: Array) -> None:
        n = np.arange(scale.size)
        self.steps.append(Step(n, n, scale, bias, divisor))

    def _matrix(self, weight: Array, bias: Array) -> None:
        """``weight`` is (outputs, inputs)."""
        require(weight.shape[1] == math.prod(self.shape), "a matrix does not fit")
        rows, columns = np.nonzero(weight)
        self.steps.append(Step(rows, columns, weight[rows, columns], bias, np.ones(bias.size)))
        self.shape = (*self.shape[:-1], weight.shape[0])

    def _convolve(self, weight: Array, inputs: list[str], options: dict[str, Any]) -> None:
        fixed = "auto_pad" not in options or options["auto_pad"].s == b"NOTSET"
        require(fixed and weight.ndim == len(self.shape) == 4, "a convolution of this form")
        single = _integers(options, "group", [1]) == [1] and self.shape[1] == weight.shape[1]
        require(single and _integers(options, "dilations", [1, 1]) == [1, 1], "groups, dilations")
        sh, sw = _integers(options, "strides", [1, 1])
        top, left, bottom, right = _integers(options, "pads", [0, 0, 0, 0])
        require(min(sh, sw, top + 1, left + 1, bottom + 1, right + 1) > 0, "a bad stride")
        # Which input each place of each window reads; -1 is padding.
        image = np.arange(math.prod(self.shape)).reshape(self.shape[1:])
        image = np.pad(image, ((0, 0), (top, bottom), (left, right)), constant_values=-1)
        windows = np.lib.stride_tricks.sliding_window_view(image, weight.shape[1:])[0, ::sh, ::sw]
        shape = (weight.shape[0], *windows.shape)
        require(math.prod(shape) <= MOST_ENTRIES, "a convolution that is too large")
        columns = np.broadcast_to(windows, shape).reshape(math.prod(shape[:3]), -1)
        values = np.broadcast_to(weight[:, None, None], shape).reshape(columns.shape)
        rows, slots = np.nonzero((columns >= 0) & (values != 0))
        bias = np.repeat(self._bias(inputs, shape[0]), shape[1] * shape[2])
        columns, values = columns[rows, slots], values[rows, slots]
        self.steps.append(Step(rows, columns, values, bias, np.ones(bias.size)))
        self.shape = (1, *shape[:3])

    def network(self) -> Network:
        layers = []
        form, folded = _identity(math.prod(self.input_shape)), 0
        for step in [*self.steps, None]:
            if step is None:
                eye = np.eye(form.bias.size) if form.middle.ndim == 1 else np.ones((1, 1))
                full = form.middle * eye, form.radius * eye
                layers.append(Layer(form.bias, form.bias_radius, *full))
                form, folded = _identity(form.bias.size), 0
            else:
                form, folded = _composed(step, form), folded + 1
                require(folded <= MOST_FOLDED, "too many affine steps in a row")
        return Network(self.input_shape, tuple(self.steps), tuple(layers))


def _identity(width: int) -> Layer:
    return Layer(np.zeros(width), np.zeros(width), np.ones(width), np.zeros(width))


def _composed(step: Step, form: Layer) -> Layer:
    out, inner = step.bias.size, form.bias.size
    is_diagonal = step.rows.size == out == inner and (step.rows == step.columns).all()
    g = gamma(1 if is_diagonal else int(np.bincount(step.rows, minlength=1).max()) + 1)
    m, r = form.middle, form.radius + g * np.abs(form.middle)
    offset = form.bias_radius + g * np.abs(form.bias)
    if is_diagonal:
        scale = step.values if m.ndim == 1 else step.values[:, None]
        middle, radius = scale * m, np.abs(scale) * r
        bias, offset = step.values * form.bias, np.abs(step.values) * offset
    else:
        require(out * inner <= MOST_ENTRIES, "a matrix that is too large")
        matrix = np.zeros((out, inner))
        matrix[step.rows, step.columns] = step.values
        middle = matrix * m if m.ndim == 1 else matrix @ m
        radius = np.abs(matrix) * r if m.ndim == 1 else np.abs(matrix) @ r
        bias, offset = matrix @ form.bias, np.abs(matrix) @ offset
    bias = bias + step.bias
    offset = offset + g * (np.abs(step.bias) + np.abs(bias))
    d = step.divisor if middle.ndim == 1 else step.divisor[:, None]
    middle, bias = middle / d, bias / step.divisor
    radius = (radius / np.abs(d) + g * np.abs(middle)) * (1 + 4 * g)
    offset = (offset / np.abs(step.divisor) + g * np.abs(bias)) * (1 + 4 * g)
    return Layer(bias, offset, middle, radius)


def _stored(array: Any) -> Array:
    require(array.dtype.kind in "fiu" and array.dtype.itemsize <= 8, f"type {array.dtype}")
    result = array.astype(np.float64)
    require((result.astype(array.dtype) == array).all(), "a number that is not a float64")
    size = np.abs(result[result != 0])
    require((size < 2.0**100).all() and (size >= 2.0**-150).all(), "a number out of range")
    return np.asarray(result)


def _integers(options: dict[str, Any], name: str, default: list[int]) -> list[int]:
    if name not in options:
        return default
    values = [int(v) for v in options[name].ints] if len(default) > 1 else [int(options[name].i)]
    require(len(values) == len(default), f"{name} of another length than {len(default)}")
    return values
