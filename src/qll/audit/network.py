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

Array: TypeAlias = NDArray[np.float64]
Scales: TypeAlias = tuple[float, ...] | None
Dims: TypeAlias = tuple[int, ...]
MOST_ENTRIES, MOST_WIDTH = 1 << 22, 1 << 20


class NotConfirmed(Exception):
    """The certificate does not prove its claim; the message says why."""


def require(truth: object, reason: str) -> None:
    if not truth:
        raise NotConfirmed(reason)


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
    import onnx

    graph = onnx.load_model_from_string(data).graph
    constants = {t.name: _stored(t) for t in graph.initializer}
    inputs = [i for i in graph.input if i.name not in constants]
    require(len(inputs) == 1 and len(graph.output) == 1, "not one input and one output")
    batch, *dims = [d.dim_value for d in inputs[0].type.tensor_type.shape.dim]
    fine = batch in (0, 1) and dims and min(dims) > 0 and math.prod(dims) <= MOST_WIDTH
    require(fine, "the input is not a batch of one shape")
    name, shape, width = inputs[0].name, (1, *dims), math.prod(dims)
    scales = [np.array([v] if s is None else s) for v, s in ((0.0, mean), (1.0, std))]
    fits = all(s.size in (1, dims[0], width) for s in scales)
    require(fits and (scales[1] > 0).all(), "a normalisation that does not fit")
    centre, deviation = (np.repeat(s, width // s.size) for s in scales)
    form, maps = _diagonal(np.ones(width), -centre, deviation), list[Affine]()
    for node in graph.node:
        require(node.domain in ("", "ai.onnx"), f"operator {node.domain}.{node.op_type}")
        options = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "Constant":
            constants[node.output[0]] = _stored(options["value"])
            continue
        inputs = list(node.input)
        require(inputs.count(name) == 1 == len(node.output), "the network is not a chain")
        at, name = inputs.index(name), node.output[0]
        if node.op_type == "Relu":
            maps.append(form)
            form = _diagonal(*np.ones((3, math.prod(shape))) * [[1], [0], [1]])
            continue
        others = inputs[:at] + inputs[at + 1 :]
        require(all(other in constants for other in others), "the network is not a chain")
        step, shape = _operator(node.op_type, shape, [constants[o] for o in others], at, options)
        require(math.prod(shape) <= MOST_WIDTH, "a layer that is too large")
        form = form if step is None else step.after(form)
    require(graph.output[0].name == name, "the output is not the last value")
    return Network(tuple(dims), (*maps, form))


def _operator(kind: str, shape: Dims, given: Any, at: int, options: Any) -> tuple[Any, Dims]:
    """An operator on a value of this shape, its input number ``at``: Affine, or None."""
    require(at == 0 or kind in ("Add", "Sub", "Mul"), f"a constant that goes through {kind}")
    size = math.prod(shape)
    one, zero = np.ones(size), np.zeros(size)
    if kind == "Flatten" and options.get("axis", 1) == 1:
        return None, (1, size)
    if kind == "Reshape":
        wanted = enumerate(given[0].astype(int).ravel().tolist())
        shape = np.empty(size, "u1").reshape([v or shape[i] for i, v in wanted]).shape
        require(shape[0] == 1, "a reshape of the batch")
        return None, shape
    if kind in ("Add", "Sub", "Mul", "Div"):
        require(np.broadcast_shapes(shape, given[0].shape) == shape, "a constant of no fit")
        other = np.broadcast_to(given[0], shape).ravel()
        difference = (one, -other, one) if at == 0 else (-one, other, one)
        forms = {"Add": (one, other, one), "Sub": difference, "Mul": (other, zero, one)}
        return _diagonal(*forms.get(kind, (one, zero, other))), shape
    if kind in ("MatMul", "Gemm"):
        plain = options.get("alpha", 1.0) == options.get("beta", 1.0) == 1.0
        plain = plain and not options.get("transA", 0) and size == shape[-1]
        weight = given[0] if options.get("transB", 0) else given[0].T
        require(plain and weight.ndim == 2 and weight.shape[1] == size, "such a matrix")
        window = weight[:, :, None, None]  # a convolution of one place
        step, _ = _convolution((1, size, 1, 1), window, given[1:], {})
        return step, (*shape[:-1], len(weight))
    if kind == "Conv":
        return _convolution(shape, given[0], given[1:], options)
    if kind == "BatchNormalization":
        require(all(v.shape == (shape[1],) for v in given), "a normalisation of no fit")
        gain, shift, mean, variance = (np.repeat(v, size // v.size) for v in given)
        plain = options.get("epsilon") == 0.0 and not options.get("training_mode", 0)
        require(plain and (variance == 1.0).all(), "a batch normalisation with a variance")
        return _diagonal(gain, shift, one).after(_diagonal(one, -mean, one)), shape
    require(kind == "Identity", f"operator {kind} is not understood")
    return None, shape


def _convolution(shape: Dims, weight: Array, bias: list[Array], options: Any) -> tuple[Any, Dims]:
    fixed = options.get("auto_pad", b"NOTSET") == b"NOTSET" and options.get("group", 1) == 1
    fixed = fixed and list(options.get("dilations", [1, 1])) == [1, 1]
    fits = weight.ndim == len(shape) == 4 and shape[1] == weight.shape[1]
    require(fixed and fits, "a convolution of this form")
    sh, sw = options.get("strides", [1, 1])
    top, left, bottom, right = options.get("pads", [0, 0, 0, 0])
    padded = shape[1] * (shape[2] + top + bottom) * (shape[3] + left + right)
    fine = min(sh, sw, top + 1, left + 1, bottom + 1, right + 1) > 0 and padded <= MOST_ENTRIES
    require(fine, "a convolution with such strides and pads")
    image = np.arange(math.prod(shape)).reshape(shape[1:])  # what is read; -1 will be padding
    image = np.pad(image, ((0, 0), (top, bottom), (left, right)), constant_values=-1)
    windows = np.lib.stride_tricks.sliding_window_view(image, weight.shape[1:])[0, ::sh, ::sw]
    full = (weight.shape[0], *windows.shape)
    require(math.prod(full) <= MOST_ENTRIES, "a convolution that is too large")
    columns = np.broadcast_to(windows, full).reshape(math.prod(full[:3]), -1)
    values = np.broadcast_to(weight[:, None, None], full).reshape(columns.shape)
    rows, slots = np.nonzero((columns >= 0) & (values != 0))
    require(not bias or bias[0].size in (1, full[0]), "a bias that does not fit")
    shift = np.zeros(full[0]) + (bias[0].ravel() if bias else 0.0)
    shifts = np.repeat(shift, full[1] * full[2]).tolist()
    places = zip(rows.tolist(), columns[rows, slots].tolist())
    step = affine(places, values[rows, slots].tolist(), shifts, math.prod(shape))
    return step, (1, *full[:3])


def _stored(tensor: Any) -> Array:
    """A tensor of the file, exactly; one that lies in another file is not read."""
    from onnx import numpy_helper

    require(not tensor.external_data and not tensor.data_location, "weights outside of the file")
    array = numpy_helper.to_array(tensor)
    require(array.dtype.kind in "fiu" and array.dtype.itemsize <= 8, f"type {array.dtype}")
    result = array.astype(np.float64)
    require((result.astype(array.dtype) == array).all(), "a number that is not a float64")
    return np.asarray(result)
