"""ONNX bytes to operators and constants: only what ONNX Runtime is known to read in the same way.

A whitelist. Each operator has its numbers of inputs, its attributes with their types and the
opsets that have them, and its element types. Every name is defined once, and before it is used;
what is declared beside the nodes (other inputs, types, shapes) must be true. A field of the file
that is not named here is not confirmed, be it ever so harmless. `make fuzz` compares with ONNX
Runtime on random graphs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Dims: TypeAlias = tuple[int, ...]
FLOAT, DOUBLE, INT64 = 1, 11, 7  # of TensorProto; the next, of AttributeProto
A_FLOAT, A_INT, A_STRING, A_TENSOR, A_INTS = 1, 2, 3, 4, 7
OPSETS, IR_VERSIONS = range(7, 27), range(3, 14)
TYPES = {FLOAT: ("float_data", "<f4"), DOUBLE: ("double_data", "<f8"), INT64: ("int64_data", "<i8")}
VALUES = {A_FLOAT: "f", A_INT: "i", A_STRING: "s", A_TENSOR: "t", A_INTS: "ints"}
NOTES = "name doc_string metadata_props"  # without meaning


class NotConfirmed(Exception):
    """The certificate does not prove its claim; the message says why."""


def require(truth: object, reason: str) -> None:
    if not truth:
        raise NotConfirmed(reason)


class Rule(NamedTuple):
    """Least and most inputs, attributes, element types of the value that goes through."""

    least: int
    most: int
    attributes: dict[str, int] = {}  # noqa: RUF012
    types: tuple[int, ...] = (FLOAT, DOUBLE)


PAIR, WINDOW = Rule(2, 2), ("dilations", "kernel_shape", "pads", "strides")
POOL = {"auto_pad": A_STRING, "ceil_mode": A_INT, **dict.fromkeys(WINDOW, A_INTS)}
# Activations by their names in `qll.audit.curves`. Of some ONNX Runtime has no float64 form.
ENTRYWISE = {
    **dict.fromkeys(("Abs", "Exp", "Sigmoid", "Tanh"), Rule(1, 1)),
    **dict.fromkeys(("HardSwish", "Softplus"), Rule(1, 1, {}, (FLOAT,))),
    "Gelu": Rule(1, 1, {"approximate": A_STRING}, (FLOAT,)),
}
OPERATORS = {
    "Add": PAIR,
    "Sub": PAIR,
    "Mul": PAIR,
    "Div": PAIR,
    "MatMul": PAIR,
    "Gemm": Rule(2, 3, {"alpha": A_FLOAT, "beta": A_FLOAT, "transA": A_INT, "transB": A_INT}),
    # ONNX Runtime has no float64 convolution.
    "Conv": Rule(
        2, 3, {"auto_pad": A_STRING, "group": A_INT, **dict.fromkeys(WINDOW, A_INTS)}, (FLOAT,)
    ),
    "BatchNormalization": Rule(
        5, 5, {"epsilon": A_FLOAT, "momentum": A_FLOAT, "spatial": A_INT, "training_mode": A_INT}
    ),
    **dict.fromkeys(("Relu", "Neg"), Rule(1, 1)),
    **ENTRYWISE,
    **dict.fromkeys(("Reciprocal", "Sqrt"), Rule(1, 1)),
    "Pow": PAIR,
    "Softmax": Rule(1, 1, {"axis": A_INT}),
    # ONNX Runtime computes it in float32 whatever it is given.
    "LayerNormalization": Rule(
        2, 3, {"axis": A_INT, "epsilon": A_FLOAT, "stash_type": A_INT}, (FLOAT,)
    ),
    **dict.fromkeys(("ReduceMean", "ReduceSum"), Rule(1, 2, {"axes": A_INTS, "keepdims": A_INT})),
    "MaxPool": Rule(1, 1, {**POOL, "storage_order": A_INT}),
    # Of these it has no float64 form either, or one that fails after a ReLU.
    "Clip": Rule(2, 3, {}, (FLOAT,)),
    "LeakyRelu": Rule(1, 1, {"alpha": A_FLOAT}, (FLOAT,)),
    "AveragePool": Rule(1, 1, {**POOL, "count_include_pad": A_INT}, (FLOAT,)),
    "GlobalAveragePool": Rule(1, 1, {}, (FLOAT,)),
    "PRelu": Rule(2, 2, {}, (FLOAT,)),
    "Max": Rule(1, 1 << 20),
    "Min": Rule(1, 1 << 20),
    "Slice": Rule(3, 5),
    "Concat": Rule(1, 1 << 20, {"axis": A_INT}),
    "Transpose": Rule(1, 1, {"perm": A_INTS}),
    "Pad": Rule(2, 3, {"mode": A_STRING}),
    "Flatten": Rule(1, 1, {"axis": A_INT}),
    "Reshape": Rule(2, 2, {"allowzero": A_INT}),
    "Identity": Rule(1, 1),
    "Constant": Rule(0, 0, {"value": A_TENSOR}),
}
# Opsets before which an operator, or an attribute of it, was unknown or meant something else.
SINCE = {
    "BatchNormalization.training_mode": 14,
    "Reshape.allowzero": 14,
    "MaxPool.float64": 8,
    "MaxPool.storage_order": 8,
    "MaxPool.ceil_mode": 10,
    "MaxPool.dilations": 10,
    "AveragePool.ceil_mode": 10,
    "AveragePool.dilations": 19,
    "Clip": 11,
    "Gelu": 20,
    "HardSwish": 14,
    "LayerNormalization": 17,
    "Softmax": 13,
    "Max": 8,
    "Min": 8,
    "Pad": 11,
    "PRelu": 9,
    "Slice": 10,
}
UNTIL = {"spatial": 8}
AXES_INPUT = {"ReduceMean": 18, "ReduceSum": 13}  # before, axes were an attribute
REQUIRED = {"AveragePool": "kernel_shape", "Concat": "axis", "Constant": "value",
            "MaxPool": "kernel_shape"}  # fmt: skip


@dataclass(frozen=True)
class Node:
    kind: str
    inputs: list[str]
    output: str
    options: dict[str, Any]


@dataclass(frozen=True, eq=False)
class File:
    """One input of shape (1, *dims), and nodes in an order in which they can be run. The types of
    all names, and shapes that the file states for some (0 is open), are for the reader to check."""

    name: str
    dims: Dims
    type: int
    constants: dict[str, NDArray[Any]]
    nodes: list[Node]
    output: str
    stated: list[tuple[str, int, Dims | None]]


def parse(data: bytes) -> File:
    import onnx

    model = onnx.ModelProto.FromString(data)
    whole = model.ByteSize()
    model.DiscardUnknownFields()
    require(model.ByteSize() == whole, "fields that are not ONNX's, or values they cannot have")
    _only(
        model, "ir_version opset_import producer_name producer_version domain model_version graph"
    )
    opset, graph = _opset(model), model.graph
    _only(graph, "node initializer input output value_info")
    constants = {t.name: _array(t) for t in graph.initializer}
    free = [entry for entry in graph.input if entry.name not in constants]
    require(len(free) == 1 and len(graph.output) == 1, "not one input and one output")
    name, kind, dims = _stated(free[0])
    require(kind in (FLOAT, DOUBLE), "an input that is not a float tensor")
    batch, *sizes = dims or (2,)
    require(batch in (0, 1) and min(sizes, default=0) > 0, "the input is not a batch of one shape")
    _once([t.name for t in graph.initializer])
    _once([entry.name for entry in graph.input])
    known, nodes = {*constants, name}, []
    for message in graph.node:
        node = _node(message, opset, kind)
        require(known.issuperset(node.inputs), f"the input of a {node.kind} is not there yet")
        require(node.output and node.output not in known, f"the name '{node.output}' stands twice")
        known.add(node.output)
        if node.kind == "Constant":
            constants[node.output] = _array(node.options["value"])
        else:
            nodes.append(node)
    require("" not in known, "a tensor without a name")
    if model.ir_version < 4:  # ONNX Runtime does not find what is neither an input nor used
        used = {*(entry.name for entry in graph.input), *(n for v in nodes for n in v.inputs)}
        require(used.issuperset(t.name for t in graph.initializer), "a tensor that nobody uses")
    stated = [_stated(entry) for entry in (*graph.input, *graph.output, *graph.value_info)]
    return File(name, tuple(sizes), kind, constants, nodes, graph.output[0].name, stated)


def network_bytes(path: Path) -> bytes:
    """A network's file as certificates are about it: with weights that lie beside it inside."""
    import onnx
    from onnx import external_data_helper

    data = path.read_bytes()
    if b"location" not in data:
        return data
    try:
        model = onnx.ModelProto.FromString(data)
        attributes = (a.t for node in model.graph.node for a in node.attribute)
        if not any(t.data_location for t in (*model.graph.initializer, *attributes)):
            return data
        external_data_helper.load_external_data_for_model(model, str(path.parent))
        return bytes(model.SerializeToString())
    except Exception as error:
        raise OSError(f"its weights are not in it, nor beside it: {error}") from error


def _only(message: Any, fields: str) -> None:
    other = {field.name for field, _ in message.ListFields()} - {*fields.split(), *NOTES.split()}
    require(not other, f"a model with {', '.join(sorted(other))}")


def _once(names: Iterable[str]) -> None:
    names = list(names)
    require(len(names) == len(set(names)), "a name stands twice")


def _opset(model: Any) -> int:
    """tf2onnx always names a second domain; no operator of it is taken."""
    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    others = [o for o in model.opset_import if o.domain not in ("", "ai.onnx")]
    inert = all(o.domain == "ai.onnx.ml" and 1 <= o.version <= 5 for o in others)
    require(inert and len(others) < 2, "operators of another domain")
    fine = len(versions) == 1 and versions[0] in OPSETS and model.ir_version in IR_VERSIONS
    require(fine, f"opset {versions}, version {model.ir_version} of ONNX")
    return int(versions[0])


def _node(message: Any, opset: int, kind: int) -> Node:
    operator = str(message.op_type)
    _only(message, "input output op_type domain attribute")
    known = operator in OPERATORS and message.domain in ("", "ai.onnx")
    require(known, f"operator {message.domain}.{operator} is not understood".replace(" .", " "))
    rule = OPERATORS[operator]
    least = 3 if operator == "Gemm" and opset < 11 else rule.least
    fine = least <= len(message.input) <= rule.most and len(message.output) == 1
    require(fine and kind in rule.types, f"a {operator} of these inputs")
    since = max(SINCE.get(operator, 0), SINCE.get(f"{operator}.float64", 0) * (kind == DOUBLE))
    require(opset >= since, f"a {operator} in opset {opset}")
    if operator in AXES_INPUT:
        later = opset >= AXES_INPUT[operator]
        fine = later == (len(message.input) == 2)
        require(fine and later != any(a.name == "axes" for a in message.attribute), "such axes")
    _once([a.name for a in message.attribute])
    options = {}
    for a in message.attribute:
        fits = rule.attributes.get(a.name) == a.type
        fits = fits and SINCE.get(f"{operator}.{a.name}", 0) <= opset <= UNTIL.get(a.name, opset)
        require(fits, f"a {operator} with '{a.name}' of type {a.type} in opset {opset}")
        require(a.name != "axis" or a.i >= 0 or opset >= 11, f"a {operator} of a negative axis")
        _only(a, f"type {VALUES[a.type]}")
        value = getattr(a, VALUES[a.type])
        options[a.name] = list(value) if a.type == A_INTS else value
    lacks = REQUIRED.get(operator)
    require(lacks is None or lacks in options, f"a {operator} without '{lacks}'")
    return Node(operator, list(message.input), str(message.output[0]), options)


def _stated(entry: Any) -> tuple[str, int, Dims | None]:
    """Name, element type and shape (None: not stated), open sizes as 0."""
    require(entry.type.WhichOneof("value") == "tensor_type", f"'{entry.name}' is no tensor")
    tensor = entry.type.tensor_type
    if not tensor.HasField("shape"):
        return entry.name, tensor.elem_type, None
    sizes = [d.dim_value if d.HasField("dim_value") else 0 for d in tensor.shape.dim]
    closed = [d.dim_value for d in tensor.shape.dim if d.HasField("dim_value")]
    require(min(closed, default=1) > 0, f"'{entry.name}' has no such shape")
    return entry.name, tensor.elem_type, tuple(sizes)


def _array(tensor: Any) -> NDArray[Any]:
    """A tensor of the file, exactly; one that lies in another file is not read."""
    require(tensor.data_location == 0, "weights outside of the file")
    require(tensor.data_type in TYPES, f"'{tensor.name}' is of type {tensor.data_type}")
    field, kind = TYPES[tensor.data_type]
    raw = tensor.HasField("raw_data")
    _only(tensor, f"dims data_type data_location {'raw_data' if raw else field}")
    size = math.prod(tensor.dims)
    stored = len(tensor.raw_data) if raw else len(getattr(tensor, field)) * int(kind[-1])
    fits = min(tensor.dims, default=1) > 0 and stored == size * int(kind[-1])
    require(fits, f"'{tensor.name}' is not of its shape")
    array = np.frombuffer(tensor.raw_data, kind) if raw else np.array(getattr(tensor, field), kind)
    require(np.isfinite(array).all(), f"'{tensor.name}' has entries that are no numbers")
    return array.reshape(tuple(tensor.dims))
