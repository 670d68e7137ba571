"""Refuses a model that ONNX Runtime refuses, or that two readers could read in two ways.

The operators themselves are described by ONNX's own schemas, for the opset that the file names:
which attributes of which type there are, how many inputs, and which element types go together.
Here is what the schemas do not say: names are defined once and before they are used, nothing is
defined beside the graph (functions, sparse tensors, subgraphs, a second version of an opset), and
what the file states of its values is true. `make fuzz` holds it against ONNX Runtime.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any

from qll.errors import NetworkError
from qll.networks.layers import Shape
from qll.networks.onnx_tensors import TYPES, onnx_package, type_name

DEFAULT = ("", "ai.onnx")
OPSETS = range(7, 27)  # before, broadcasting meant something else; after, ONNX Runtime stops
IR_VERSIONS = range(3, 14)
ALL_CONSTANT_IR = 4  # the first in which a stored tensor need not be an input as well
# Other operator sets may be named though no node uses them; ONNX Runtime stops at these versions.
OTHER_DOMAINS = {"ai.onnx.ml": 5, "com.microsoft": 1}
MODEL_FIELDS = {
    "ir_version", "opset_import", "producer_name", "producer_version", "domain", "model_version",
    "doc_string", "graph", "metadata_props",
}  # fmt: skip
GRAPH_FIELDS = {
    "name", "doc_string", "node", "initializer", "input", "output", "value_info", "metadata_props",
}  # fmt: skip
NODE_FIELDS = {
    "name", "doc_string", "op_type", "domain", "input", "output", "attribute", "metadata_props",
}  # fmt: skip
MORE_OUTPUTS = ("Dropout", "MaxPool")  # places that nobody may read
FLAGS = {
    "allowzero", "ceil_mode", "count_include_pad", "keepdims", "noop_with_empty_axes", "spatial",
    "training_mode", "transA", "transB",
}  # fmt: skip
VALUE_FIELDS = {1: "f", 2: "i", 3: "s", 4: "t", 6: "floats", 7: "ints", 8: "strings"}


def label(node: Any) -> str:
    return str(node.name or (node.output[0] if node.output else "") or node.op_type)


def place(node: Any) -> str:
    return f"node '{label(node)}' ({node.op_type})"


def check_model(model: Any) -> int:
    """The opset, of a model whose names and declarations are sound."""
    _refuse_fields(model, MODEL_FIELDS)
    _refuse_fields(model.graph, GRAPH_FIELDS)
    opset = _opset(model)
    _check_names(model.graph)
    if model.ir_version < ALL_CONSTANT_IR:
        _check_old_style(model.graph)
    return opset


def _refuse_fields(message: Any, allowed: set[str]) -> None:
    other = sorted({field.name for field, _ in message.ListFields()} - allowed)
    if other:
        raise NetworkError(
            f"the model has parts that we do not take: {', '.join(other)}",
            expected="one graph of standard operators and dense tensors",
            found=other[0],
            fix="export the network without them (inline functions, store dense weights)",
        )


def _opset(model: Any) -> int:
    versions = {o.version for o in model.opset_import if o.domain in DEFAULT}
    if len(versions) != 1 or not versions <= set(OPSETS):
        raise NetworkError(
            "the ONNX model's operator set is not one we take",
            expected=f"one standard operator set, of version {OPSETS[0]} to {OPSETS[-1]}",
            found=" and ".join(map(str, sorted(versions))) or "none",
            fix="export the network again with a recent opset (18, say)",
        )
    if model.ir_version not in IR_VERSIONS:
        raise NetworkError(
            "the ONNX file's format is not one we take",
            expected=f"an IR version from {IR_VERSIONS[0]} to {IR_VERSIONS[-1]}",
            found=str(model.ir_version),
            fix="export the network again with a current exporter",
        )
    for entry in model.opset_import:
        if entry.version > OTHER_DOMAINS.get(entry.domain, entry.version):
            raise NetworkError(
                f"the operator set '{entry.domain}' is not one that ONNX Runtime takes",
                expected=f"at most version {OTHER_DOMAINS[entry.domain]}",
                found=str(entry.version),
                fix="remove the import, which no operator of the network can use",
            )
    return int(versions.pop())


def _check_names(graph: Any) -> None:
    """Each name has one origin, and is there before it is used."""
    stored = [tensor.name for tensor in graph.initializer]
    entries = [entry.name for entry in graph.input]
    free = [name for name in entries if name not in set(stored)]
    produced = [name for node in graph.node for name in node.output if name]
    counts = Counter([*stored, *free, *produced]) | Counter(entries)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise NetworkError(
            f"the tensor '{twice[0]}' is produced twice",
            expected="one producer for each tensor",
            found=f"{counts[twice[0]]}",
            fix="export the network again",
        )
    if "" in counts:
        raise NetworkError(
            "a tensor has no name",
            expected="a name for every stored tensor and input",
            found="an empty one",
            fix="export the network again",
        )
    known = {*stored, *free}
    for node in graph.node:
        for name in node.input:
            if name and name not in known:
                raise NetworkError(
                    f"the tensor '{name}' is read before any node produces it",
                    expected="nodes in order, each reading what came before",
                    found="no such tensor yet",
                    fix="check that the file was copied whole, or export the network again",
                    where=place(node),
                )
        known.update(node.output)


def _check_old_style(graph: Any) -> None:
    """ONNX Runtime does not find a stored tensor that is neither an input nor read by a node."""
    used = {entry.name for entry in graph.input} | {n for node in graph.node for n in node.input}
    unused = [tensor.name for tensor in graph.initializer if tensor.name not in used]
    if unused:
        raise NetworkError(
            f"the stored tensor '{unused[0]}' is neither an input nor read by a node",
            expected=f"a use for every tensor, as in files of IR version below {ALL_CONSTANT_IR}",
            found="none",
            fix="export the network again with a current exporter",
        )


@lru_cache(maxsize=1024)
def _schema(operator: str, opset: int) -> Any:
    onnx = onnx_package()
    try:
        return onnx.defs.get_schema(operator, opset, "")
    except onnx.defs.SchemaError:
        return None


def check_node(node: Any, opset: int) -> dict[str, Any]:
    """The node's attributes, if it is as ONNX defines its operator in this opset."""
    _refuse_fields(node, NODE_FIELDS)
    schema = _schema(node.op_type, opset)
    if schema is None or schema.deprecated:
        raise _malformed(node, f"an operator of opset {opset}", node.op_type)
    for what, names, least, most in (
        ("inputs", node.input, schema.min_input, schema.max_input),
        ("outputs", node.output, 1, schema.max_output if node.op_type in MORE_OUTPUTS else 1),
    ):
        if not least <= len(names) <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            raise _malformed(node, f"{wanted} {what}", str(len(names)))
    counts = Counter(attribute.name for attribute in node.attribute)
    given: dict[str, Any] = {}
    for attribute in node.attribute:
        formal = schema.attributes.get(attribute.name)
        if formal is None or counts[attribute.name] > 1:
            found = f"'{attribute.name}'" + (" twice" if formal is not None else "")
            known = ", ".join(sorted(schema.attributes)) or "none"
            raise _malformed(node, f"attributes of opset {opset} ({known}), each once", found)
        given[attribute.name] = _value(node, attribute, formal)
    for name, formal in schema.attributes.items():
        if formal.required and name not in given:
            raise _malformed(node, f"the attribute '{name}'", "none")
    return given


def _value(node: Any, attribute: Any, formal: Any) -> Any:
    """In exactly the field that its type says."""
    field = VALUE_FIELDS.get(attribute.type)
    filled = {entry.name for entry, _ in attribute.ListFields()}
    extra = filled - {"name", "type", "doc_string", field}
    if field is None or attribute.type != int(formal.type.value) or extra:
        found = f"type {attribute.type}" + (f" and {', '.join(sorted(extra))}" if extra else "")
        raise _malformed(node, f"'{attribute.name}' of type {formal.type.name}", found)
    value = getattr(attribute, field)
    if attribute.name in FLAGS and value not in (0, 1):
        raise _malformed(node, f"'{attribute.name}' of 0 or 1", str(value))
    if field == "s":
        return value.decode("ascii", "replace")
    return list(value) if field in ("floats", "ints", "strings") else value


def check_types(node: Any, opset: int, types: dict[str, str]) -> str | None:
    """The element type of the first output, if the inputs' types say it."""
    schema = _schema(node.op_type, opset)
    bound: dict[str, str] = {}
    for position, name in enumerate(node.input):
        formal = schema.inputs[min(position, len(schema.inputs) - 1)]
        if not name:
            if formal.option.name != "Optional":
                raise _malformed(node, f"the input {formal.name}", "none")
            continue
        if types[name] not in formal.types:
            wanted = ", ".join(sorted(formal.types & {kind for kind, _, _ in TYPES.values()}))
            raise _malformed(node, f"'{name}' of type {wanted or formal.type_str}", types[name])
        if bound.setdefault(formal.type_str, types[name]) != types[name]:
            expected = f"'{name}' of type {bound[formal.type_str]}, as its other inputs"
            raise _malformed(node, expected, types[name])
    output = schema.outputs[0]
    return bound.get(output.type_str) or (min(output.types) if len(output.types) == 1 else None)


def _malformed(node: Any, expected: str, found: str) -> NetworkError:
    return NetworkError(
        f"the node is not as ONNX defines {node.op_type}",
        expected=expected,
        found=found,
        fix="check the model with onnx.checker, or export it again",
        where=place(node),
    )


def check_stated(graph: Any, types: dict[str, str], shapes: dict[str, Shape]) -> None:
    """Types and shapes that the file states of its inputs, outputs and values on the way."""
    for entry in (*graph.input, *graph.output, *graph.value_info):
        if entry.name not in types:
            continue
        kind = entry.type.tensor_type
        stated = TYPES.get(kind.elem_type, (type_name(kind.elem_type), "", ""))[0]
        real = shapes[entry.name]
        sizes = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
        fits = len(sizes) == len(real) and all(s in (None, r) for s, r in zip(sizes, real))
        if stated != types[entry.name] or (kind.HasField("shape") and not fits):
            raise NetworkError(
                f"the tensor '{entry.name}' is not what the file states",
                expected=f"{stated} of shape {sizes}",
                found=f"{types[entry.name]} of shape {list(real)}",
                fix="export the network again, or remove the statement (graph.value_info)",
            )
