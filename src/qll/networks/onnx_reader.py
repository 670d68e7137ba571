"""ONNX to the op graph: what is constant, what the input is, and every node in turn.

What an operator means is in ``onnx_operators``, ``onnx_products`` and ``onnx_constants``; what a
sound model is, in ``onnx_checks``; how a stored tensor is read, in ``onnx_tensors``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qll.errors import InputError, NetworkError
from qll.networks import (  # noqa: F401 (they register operators)
    onnx_constants,
    onnx_operators,
    onnx_products,
)
from qll.networks.graph import Graph, GraphBuilder
from qll.networks.layers import Shape
from qll.networks.onnx_checks import (
    DEFAULT,
    check_model,
    check_node,
    check_stated,
    check_types,
    label,
    place,
)
from qll.networks.onnx_reading import OPERATORS, Call, Reading
from qll.networks.onnx_tensors import FLOATS, TYPES, parse_model, tensor_array, type_name, type_of

__all__ = ["OPERATORS", "read_onnx"]

MAX_NODES = 10_000


def read_onnx(data: bytes, *, input_shape: Shape | None = None) -> Graph:
    """The op graph of an ONNX model. ``input_shape`` (no batch axis) fills in what the file leaves
    open."""
    model = parse_model(data)
    graph = model.graph
    _check_size(graph)
    _refuse_unknown(graph.node)
    opset = check_model(model)
    entry = _input(graph)
    shape, tensor_shape = _input_shape(entry, input_shape)
    reading = Reading(GraphBuilder(shape, tensor_shape), opset)
    reading.activations[entry.name] = 0
    reading.types[entry.name] = TYPES[entry.type.tensor_type.elem_type][0]
    for tensor in graph.initializer:
        array = tensor_array(tensor, tensor.name)
        reading.constants[tensor.name], reading.types[tensor.name] = array, type_of(array)
    reading.stored = set(reading.constants) - {entry.name for entry in graph.input}
    reading.stored |= {node.output[0] for node in graph.node if node.op_type == "Constant"}
    # ONNX Runtime runs what nobody reads too, and refuses the model if it cannot.
    for node in graph.node:
        _read_node(reading, node)
    check_stated(graph, reading.types, {name: reading.shape(name) for name in reading.types})
    return reading.builder.finish(reading.value(graph.output[0].name))


def _read_node(reading: Reading, node: Any) -> None:
    given = check_node(node, reading.opset)
    for name in node.input:
        if name and name not in reading.types:
            raise NetworkError(
                f"the tensor '{name}' is not one we compute",
                expected="the first output of a node",
                found="another",
                fix="export the network without it",
                where=place(node),
            )
    kind = check_types(node, reading.opset, reading.types)
    call = Call(node.op_type, label(node), tuple(node.input), given)
    try:
        result = OPERATORS[node.op_type](reading, call)
    except NetworkError as error:
        if error.where is None or not error.where.startswith("node '"):
            raise error.at(place(node)) from error
        raise
    except (ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
        raise NetworkError(
            "the node is malformed",
            expected=f"inputs and attributes as ONNX defines {node.op_type}",
            found=str(error) or type(error).__name__,
            fix="check the model with onnx.checker, or export it again",
            where=place(node),
        ) from error
    target = node.output[0]
    # numpy scalars are constants too, so it is the index that is told by its type.
    if type(result) is int:
        reading.activations[target] = result
        # The output type of a cast is said by no input.
        reading.types[target] = kind or TYPES[given["to"]][0]
    else:
        reading.constants[target] = np.asarray(result)
        reading.types[target] = type_of(reading.constants[target])


def _check_size(graph: Any) -> None:
    if len(graph.output) != 1:
        raise NetworkError(
            "the network does not have one output",
            expected="exactly one output tensor",
            found=", ".join(f"'{o.name}'" for o in graph.output) or "none",
            fix="export the network with the output that the property speaks of",
        )
    if len(graph.node) > MAX_NODES:
        raise NetworkError(
            "the network has too many nodes",
            expected=f"at most {MAX_NODES:,}",
            found=f"{len(graph.node):,}",
            fix="use a smaller network",
        )


def _refuse_unknown(nodes: Any) -> None:
    unknown = [
        node
        for node in nodes
        if node.op_type not in OPERATORS or node.domain not in DEFAULT or not any(node.output)
    ]
    if unknown:
        names = ", ".join(f"{node.op_type} (node '{label(node)}')" for node in unknown)
        raise NetworkError(
            "the network has operators that we do not take",
            expected=f"affine layers and activations: {', '.join(sorted(OPERATORS))}",
            found=names,
            fix="replace these layers, or cut the network before them",
        )


def _input(graph: Any) -> Any:
    stored = {tensor.name for tensor in graph.initializer}
    entries = [entry for entry in graph.input if entry.name not in stored]
    if len(entries) != 1:
        raise NetworkError(
            "the network does not have one input",
            expected="exactly one input tensor",
            found=", ".join(f"'{entry.name}'" for entry in entries) or "none",
            fix="export the network with its other inputs fixed as constants",
        )
    kind = entries[0].type.tensor_type.elem_type
    if TYPES.get(kind, ("",))[0] not in FLOATS:
        raise NetworkError(
            f"the input '{entries[0].name}' is not a float tensor",
            expected="float32 or float64",
            found=type_name(kind),
            fix="export the network with a float input",
        )
    return entries[0]


def _input_shape(entry: Any, given: Shape | None) -> tuple[Shape, Shape]:
    """(shape of one point, shape of the input tensor). A leading axis that is open or 1 is the
    batch; any other open axis must be given."""
    kind = entry.type.tensor_type
    declared: list[int | None] | None = None
    if kind.HasField("shape"):
        declared = [
            int(dim.dim_value) if dim.HasField("dim_value") else None for dim in kind.shape.dim
        ]
    if declared is None:
        if given is None:
            raise _open_shape(entry.name, "no shape at all")
        return given, (1, *given)
    batched = len(declared) >= 2 and declared[0] in (None, 1)
    rest = declared[1:] if batched else declared
    if given is not None:
        fits = len(given) == len(rest) and all(d in (None, g) for d, g in zip(rest, given))
        if not fits:
            raise InputError(
                "the given input shape is not the network's",
                expected=f"{_shape_text(rest)}",
                found=str(given),
                fix="leave the input shape out, or give the network's",
            )
        shape = given
    else:
        shape = tuple(size for size in rest if size is not None)
        if len(shape) != len(rest):
            raise _open_shape(entry.name, _shape_text(declared))
    return shape, ((1, *shape) if batched else shape)


def _shape_text(shape: list[int | None]) -> str:
    return "(" + ", ".join("?" if size is None else str(size) for size in shape) + ")"


def _open_shape(name: str, found: str) -> NetworkError:
    return NetworkError(
        f"the input '{name}' has an open shape",
        expected="a fixed shape; only the leading batch axis may be open",
        found=found,
        fix="pass the shape of one input, without the batch, as input_shape",
    )
