"""Random ONNX graphs over every operator that the readers know, each the same for the same seed.

Weights and points are small multiples of powers of two, so that float32 computes most graphs
without rounding and a wrong reading shows. Now and then a choice is odd (an axis that is not there,
a constant that does not fit), and a part of the graphs is spoiled afterwards (`graph_mutations`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper, shape_inference

Shape: TypeAlias = tuple[int, ...]
OPSETS = (*range(7, 27), 7, 8, 9, 10, 11, 13, 17, 18, 18, 19, 20, 21)
IR_OF_OPSET = ((7, 3), (8, 3), (9, 4), (10, 5), (11, 6), (12, 7), (15, 8), (19, 9), (21, 10))
LARGEST = 150  # entries of a value: small graphs, many of them
KINDS = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}
INT64 = 1 << 64


class Maker:
    """A graph that grows: nodes, stored tensors, and the names of values with their shapes."""

    def __init__(self, seed: int, *, chain: bool) -> None:
        self.rng = random.Random(seed)
        self.chain = chain
        self.opset = self.rng.choice(OPSETS)
        self.dtype = "float64" if self.chance(0.25) else "float32"
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []
        self.entries: list[Any] = []  # initialisers that are inputs too, as old files have them
        self.shapes: dict[str, Shape | None] = {}
        self.old_style = self.opset < 9 and self.chance(0.5)
        self._count = 0
        self.input_shape = self._input_shape()
        self.shapes["x"] = self.input_shape
        self.values = ["x"]

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def odd(self) -> bool:
        return self.chance(0.03)

    def pick(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def name(self) -> str:
        self._count += 1
        return f"t{self._count}"

    def _input_shape(self) -> Shape:
        number = self.rng.randint
        ranks = [(1, number(1, 6))] * 3 + [(1, number(1, 3), number(1, 6), number(1, 6))] * 4
        if not self.chain:
            ranks += [(1, number(1, 3), number(1, 7))] * 2 + [(number(2, 5),), (2, 3)]
            ranks += [(1, 1, number(1, 3), number(1, 3), number(1, 4))]
        return self.rng.choice(ranks)

    # --- numbers ---

    def numbers(self, *shape: int) -> Any:
        values = [self.rng.randint(-8, 8) / 4 for _ in range(math.prod(shape))]
        return np.array(values, dtype=self.dtype).reshape(shape)

    def divisors(self, *shape: int) -> Any:
        values = [self.pick(0.25, 0.5, 1, 2, -1, -2, 4, 3) for _ in range(math.prod(shape))]
        return np.array(values, dtype=self.dtype).reshape(shape)

    # --- nodes ---

    def add(self, kind: str, inputs: list[str], **attributes: Any) -> str:
        output = self.name()
        node = helper.make_node(kind, inputs, [output], name=f"n_{output}")
        for key, value in attributes.items():
            if value is not None:
                of = AttributeProto.INTS if value == [] else None
                node.attribute.append(helper.make_attribute(key, value, attr_type=of))
        self.nodes.append(node)
        return output

    def shape(self, name: str) -> Shape | None:
        """By onnx's own shape inference, which the readers do not use."""
        if name not in self.shapes:
            try:
                inferred = shape_inference.infer_shapes(self.model(name), data_prop=True)
            except Exception:
                self.shapes[name] = None
                return None
            for info in [*inferred.graph.value_info, *inferred.graph.output]:
                kind = info.type.tensor_type
                sizes = [d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim]
                known = kind.HasField("shape") and min(sizes, default=1) >= 1
                self.shapes.setdefault(info.name, tuple(sizes) if known else None)
        return self.shapes.get(name)

    def model(self, output: str, *, batch: int | str = 1) -> onnx.ModelProto:
        kind = KINDS[self.dtype]
        shape: list[int | str] = list(self.input_shape)
        if batch != 1:
            shape[0] = batch
        graph = helper.make_graph(
            self.nodes,
            "random",
            [helper.make_tensor_value_info("x", kind, shape), *self.entries],
            [helper.make_tensor_value_info(output, kind, None)],
            self.tensors,
        )
        built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        built.ir_version = max(ir for since, ir in IR_OF_OPSET if since <= self.opset)
        return built

    # --- constants: one array, many ways to write it ---

    def stored(self, array: Any) -> str:
        name = self.name()
        tensor = numpy_helper.from_array(np.asarray(array), name)
        if self.chance(0.2):  # in the typed field instead of raw bytes
            flat = np.asarray(array).ravel().tolist()
            tensor = helper.make_tensor(name, tensor.data_type, array.shape, flat)
        self.shapes[name] = array.shape
        if self.chance(0.15):
            tensor.name = ""
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
            return name
        self.tensors.append(tensor)
        if self.old_style or self.chance(0.02):
            info = helper.make_tensor_value_info(name, tensor.data_type, array.shape)
            self.entries.append(info)
        return name

    def constant(self, array: Any) -> str:
        array = np.asarray(array)
        if self.chance(0.05 if self.chain else 0.3):
            ways = WAYS_INT if array.dtype.kind == "i" else WAYS_FLOAT
            found = self.rng.choice(ways)(self, array)
            if found is not None:
                self.shapes[found] = array.shape
                return found
        return self.stored(array)

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, dtype=np.int64))


Way: TypeAlias = Callable[[Maker, Any], str | None]


def as_attribute(m: Maker, array: Any) -> str | None:
    if m.opset < 12 and not m.odd():
        return None
    integer = array.dtype.kind == "i"
    if array.ndim > 1 or array.dtype in (np.int32, np.float64):
        return None
    values = array.tolist()
    field = ("value_int" if integer else "value_float") + ("s" if array.ndim else "")
    return m.add("Constant", [], **{field: values})


def identity(m: Maker, array: Any) -> str | None:
    return m.add("Identity", [m.constant(array)])


def reshaped(m: Maker, array: Any) -> str | None:
    flat = m.constant(array.reshape(-1))
    return m.add("Reshape", [flat, m.ints(*array.shape)]) if array.ndim else None


def transposed(m: Maker, array: Any) -> str | None:
    order = list(range(array.ndim))
    m.rng.shuffle(order)
    inverse = [order.index(i) for i in range(array.ndim)]
    if not order:
        return None
    return m.add("Transpose", [m.constant(array.transpose(inverse))], perm=order)


def unsqueezed(m: Maker, array: Any) -> str | None:
    places = [i for i, size in enumerate(array.shape) if size == 1]
    if not places:
        return None
    axis = m.rng.choice(places)
    inner = m.constant(array.squeeze(axis))
    if m.opset < 13:
        return m.add("Unsqueeze", [inner], axes=[axis])
    return m.add("Unsqueeze", [inner, m.ints(axis)])


def squeezed(m: Maker, array: Any) -> str | None:
    axis = m.rng.randint(0, array.ndim)
    inner = m.constant(np.expand_dims(array, axis))
    if m.opset < 13:
        return m.add("Squeeze", [inner], axes=[axis])
    return m.add("Squeeze", [inner, m.ints(axis)])


def sliced(m: Maker, array: Any) -> str | None:
    if not array.ndim:
        return None
    axis = m.rng.randrange(array.ndim)
    step = m.pick(1, 1, 2, -1) if m.opset >= 10 else 1
    size = array.shape[axis]
    if not size:
        return None
    wide = np.repeat(array[(slice(None),) * axis + (slice(None, None, -1),)], abs(step), axis)
    if step > 0:
        wide = np.flip(wide, axis)
    start, end = (0, m.pick(2**62, wide.shape[axis])) if step > 0 else (m.pick(-1, 2**62), -(2**62))
    return take_slice(m, m.constant(wide), [start], [end], [axis], [step])


def take_slice(
    m: Maker, value: str, starts: list[int], ends: list[int], axes: list[int] | None, steps: Any
) -> str:
    if m.opset < 10:
        return m.add("Slice", [value], starts=starts, ends=ends, axes=axes)
    inputs = [value, m.ints(*starts), m.ints(*ends)]
    if axes is not None:
        inputs.append(m.ints(*axes))
        if steps is not None:
            inputs.append(m.ints(*steps))
    return m.add("Slice", inputs)


def joined(m: Maker, array: Any) -> str | None:
    if not array.ndim or not array.size:
        return None
    axis = m.rng.randrange(array.ndim)
    cut = m.rng.randint(1, array.shape[axis])
    parts = [p for p in np.split(array, [cut], axis) if p.shape[axis]]
    return m.add("Concat", [m.constant(p) for p in parts], axis=axis)


def gathered(m: Maker, array: Any) -> str | None:
    if not array.ndim or not array.size:
        return None
    axis = m.rng.randrange(array.ndim)
    order = list(range(array.shape[axis]))
    m.rng.shuffle(order)
    inverse = np.argsort(order).tolist()
    places = np.array([i - len(order) if m.chance(0.2) else i for i in order], dtype=np.int64)
    if m.chance(0.3):
        places = places.astype(np.int32)
    source = m.constant(np.take(array, inverse, axis))
    return m.add("Gather", [source, m.constant(places)], axis=axis)


def added(m: Maker, array: Any) -> str | None:
    other = _random_like(m, array)
    kind = m.pick("Add", "Sub")
    first = array - other if kind == "Add" else array + other
    return m.add(kind, [m.constant(first.astype(array.dtype)), m.constant(other)])


def _random_like(m: Maker, array: Any) -> Any:
    if array.dtype.kind == "f":
        return m.numbers(*array.shape).astype(array.dtype)
    values = [m.rng.randint(-9, 9) for _ in range(array.size)]
    return np.array(values, dtype=array.dtype).reshape(array.shape)


def negated(m: Maker, array: Any) -> str | None:
    return m.add("Neg", [m.constant(-array)])


def product(m: Maker, array: Any) -> str | None:
    factor = np.array(m.pick(0.5, 2, -1, 4), dtype=array.dtype)
    return m.add(m.pick("Mul", "Div"), [m.constant(array), m.constant(factor)])


def cast(m: Maker, array: Any) -> str | None:
    if np.any(array != np.round(array)) or m.chance(0.5):
        other = "float64" if array.dtype == np.float32 else "float32"
    else:
        other = m.pick("int32", "int64")
    to = helper.np_dtype_to_tensor_dtype(array.dtype)
    with np.errstate(invalid="ignore"):
        stored = array.astype(other)
    return m.add("Cast", [m.constant(stored)], to=to)


def cast_down(m: Maker, array: Any) -> str | None:
    """From a float: the fraction is cut off."""
    to = helper.np_dtype_to_tensor_dtype(array.dtype)
    above = np.where(array >= 0, 0.75, -0.75)
    return m.add("Cast", [m.constant((array + above).astype(np.float32))], to=to)


def cast_integer(m: Maker, array: Any) -> str | None:
    other = np.int32 if array.dtype == np.int64 else np.int64
    to = helper.np_dtype_to_tensor_dtype(array.dtype)
    return m.add("Cast", [m.constant(array.astype(other))], to=to)


def quotient(m: Maker, array: Any) -> str | None:
    """Integer division cuts towards zero: the remainder has the dividend's sign."""
    divisor = m.pick(2, 3, 7, -2, -3)
    remainder = m.rng.randint(0, abs(divisor) - 1)
    whole = array * divisor
    dividend = whole + np.where(whole >= 0, remainder, -remainder)
    dividend = np.where(array == 0, m.pick(-1, 1) * remainder, dividend)
    return m.add(
        "Div", [m.constant(dividend.astype(array.dtype)), m.constant(array.dtype.type(divisor))]
    )


def wrapped(m: Maker, array: Any) -> str | None:
    """A product that overflows, and whose low bits are the number wanted."""
    modulus = INT64 if array.dtype == np.int64 else 1 << 32
    factor = 2 * m.rng.randint(10**3, 10**4) + 1
    inverse = pow(factor, -1, modulus)
    half = modulus // 2
    parts = [(int(v) * inverse + half) % modulus - half for v in array.reshape(-1)]
    first = np.array(parts, dtype=array.dtype).reshape(array.shape)
    return m.add("Mul", [m.constant(first), m.constant(array.dtype.type(factor))])


def reduced(m: Maker, array: Any) -> str | None:
    axis = m.rng.randint(0, array.ndim)
    kind = m.pick("ReduceSum", "ReduceSum", "ReduceMean")
    other = _random_like(m, array)
    parts = [other, array - other] if kind == "ReduceSum" else [array - 1, array + 2]
    source = m.constant(np.stack(parts, axis).astype(array.dtype))
    return reduce(m, kind, source, [axis], 0)


def reduce(m: Maker, kind: str, value: str, axes: list[int] | None, keep: int | None) -> str:
    since = 13 if kind == "ReduceSum" else 18
    if m.opset < since or axes is None:
        return m.add(kind, [value], axes=axes, keepdims=keep)
    return m.add(kind, [value, m.ints(*axes)], keepdims=keep)


def measured(m: Maker, array: Any) -> str | None:
    """The shape of something of that shape."""
    sizes = tuple(array.reshape(-1).tolist())
    if array.ndim != 1 or array.dtype != np.int64 or min(sizes, default=1) < 1:
        return None
    if math.prod(sizes) > 1000:
        return None
    inner = m.stored(np.zeros(sizes, dtype=np.float32))
    return m.add("Shape", [inner])


def extreme(m: Maker, array: Any) -> str | None:
    kind = m.pick("Max", "Min")
    other = array - 1 if kind == "Max" else array + 1
    pair = [m.constant(array), m.constant(other.astype(array.dtype))]
    m.rng.shuffle(pair)
    return m.add(kind, pair)


def filled(m: Maker, array: Any) -> str | None:
    if not array.size or np.any(array != array.reshape(-1)[0]) or m.opset < 9:
        return None
    value = numpy_helper.from_array(array.reshape(-1)[:1])
    return m.add("ConstantOfShape", [m.ints(*array.shape)], value=value)


WAYS_BOTH: tuple[Way, ...] = (
    as_attribute, identity, reshaped, transposed, unsqueezed, squeezed, sliced, joined, gathered,
    added, negated, extreme, filled, reduced,
)  # fmt: skip
WAYS_FLOAT: tuple[Way, ...] = (*WAYS_BOTH, product, cast)
WAYS_INT: tuple[Way, ...] = (
    *WAYS_BOTH, quotient, quotient, wrapped, cast_down, cast_integer, measured, measured,
)  # fmt: skip
