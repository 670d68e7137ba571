"""ONNX to the op graph: which nodes matter, what is constant, what the input is.

What an operator means is in ``onnx_operators``; how a stored tensor is read, in ``onnx_tensors``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qll.errors import InputError, NetworkError
from qll.networks.graph import Graph, GraphBuilder
from qll.networks.layers import Constant, Layer, Shape
from qll.networks.onnx_tensors import is_float, onnx_package, opset, parse_model, tensor_array

MAX_NODES = 10_000


@dataclass(eq=False)
class Reading:
    """What is known while the nodes are walked in order: constants and activations by name."""

    builder: GraphBuilder
    opset: int
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    activations: dict[str, int] = field(default_factory=dict)

    def is_constant(self, name: str) -> bool:
        return name in self.constants

    def constant(self, name: str) -> np.ndarray:
        if name in self.constants:
            return self.constants[name]
        self.value(name)  # complains if it does not exist at all
        raise NetworkError(
            f"the tensor '{name}' depends on the input where a constant must stand",
            expected="a stored constant",
            found="a computed tensor",
            fix="export the network so that shapes and weights are constants",
        )

    def value(self, name: str) -> int:
        if name in self.activations:
            return self.activations[name]
        if name not in self.constants:
            raise NetworkError(
                f"the tensor '{name}' is read before any node produces it",
                expected="nodes in order, each reading what came before",
                found="no such tensor yet",
                fix="check that the file was copied whole, or export the network again",
            )
        array = self.constants[name].astype(np.float64)
        index = self.builder.add(name, Constant(array), ())
        self.activations[name] = index
        return index

    def shape(self, name: str) -> Shape:
        if name in self.constants:
            return self.constants[name].shape
        return self.builder.shape(self.value(name))

    def add(self, name: str, layer: Layer, *operands: int) -> int:
        return self.builder.add(name, layer, operands)


def read_onnx(data: bytes, *, input_shape: Shape | None = None) -> Graph:
    """The op graph of an ONNX model. ``input_shape`` (no batch axis) fills in what the file leaves
    open."""
    from qll.networks.onnx_operators import OPERATORS

    model = parse_model(data)
    nodes = _needed(model.graph)
    _refuse_unknown(nodes, OPERATORS)
    entry = _input(model.graph)
    shape, tensor_shape = _input_shape(entry, input_shape)
    reading = Reading(GraphBuilder(shape, tensor_shape), opset(model))
    reading.activations[entry.name] = 0
    for tensor in model.graph.initializer:
        reading.constants[tensor.name] = tensor_array(tensor, tensor.name)
    for node in nodes:
        _read_node(reading, node, OPERATORS)
    return reading.builder.finish(reading.value(model.graph.output[0].name))


def _read_node(reading: Reading, node: Any, operators: Any) -> None:
    place = f"node '{label(node)}' ({node.op_type})"
    target = node.output[0]
    try:
        result = operators[node.op_type](reading, node)
    except NetworkError as error:
        if error.where is None or not error.where.startswith("node '"):
            raise error.at(place) from error
        raise
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, AttributeError) as error:
        raise NetworkError(
            "the node is malformed",
            expected=f"inputs and attributes as ONNX defines {node.op_type}",
            found=str(error) or type(error).__name__,
            fix="check the model with onnx.checker, or export it again",
            where=place,
        ) from error
    # numpy scalars are constants too, so it is the index that is told by its type.
    if type(result) is int:
        reading.activations[target] = result
    else:
        reading.constants[target] = np.asarray(result)


def label(node: Any) -> str:
    return str(node.name or (node.output[0] if node.output else "") or node.op_type)


def _needed(graph: Any) -> list[Any]:
    """The nodes the output depends on, in file order."""
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
    if graph.sparse_initializer:
        raise NetworkError(
            "the network stores sparse weights",
            expected="dense initializers",
            found=f"{len(graph.sparse_initializer)} sparse ones",
            fix="export the network with dense weights",
        )
    _refuse_duplicates(graph)
    producer = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    keep: set[int] = set()
    pending = [graph.output[0].name]
    while pending:
        index = producer.get(pending.pop())
        if index is not None and index not in keep:
            keep.add(index)
            pending.extend(name for name in graph.node[index].input if name)
    return [node for i, node in enumerate(graph.node) if i in keep]


def _refuse_duplicates(graph: Any) -> None:
    stored = [tensor.name for tensor in graph.initializer]
    free = [entry.name for entry in graph.input if entry.name not in set(stored)]
    produced = [name for node in graph.node for name in node.output if name]
    counts = Counter([*stored, *free, *produced])
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise NetworkError(
            f"the tensor '{twice[0]}' is produced twice",
            expected="one producer for each tensor",
            found=f"{counts[twice[0]]}",
            fix="export the network again",
        )


def _refuse_unknown(nodes: list[Any], operators: Any) -> None:
    unknown = [
        node
        for node in nodes
        if node.op_type not in operators or node.domain not in ("", "ai.onnx") or not node.output
    ]
    if unknown:
        names = ", ".join(f"{node.op_type} (node '{label(node)}')" for node in unknown)
        raise NetworkError(
            "the network has operators that we do not take",
            expected=f"affine and ReLU layers: {', '.join(sorted(operators))}",
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
    if not is_float(kind):
        raise NetworkError(
            f"the input '{entries[0].name}' is not a float tensor",
            expected="float32 or float64",
            found=f"ONNX type {kind}",
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


def attributes(node: Any) -> dict[str, Any]:
    onnx = onnx_package()
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
