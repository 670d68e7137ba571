"""The networks that a document declares, as one network from all its inputs to all its outputs.

Several inputs or outputs, hidden nodes and several networks become one ONNX graph: a vector is cut
into the declared inputs, and what the networks compute is put together again. Inputs that the
document says are equal become one (`qll.exchange.tied`), so that the region keeps an interior.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qll.errors import InputError, NetworkError
from qll.exchange.document import Declaration, Document, Tensor
from qll.exchange.rounding import FIXED_NOTE, with_float32
from qll.exchange.structure import Structures
from qll.exchange.tied import Tied, reduced, tied
from qll.formula.hard import nearest
from qll.networks import Network, load
from qll.networks.onnx_external import network_bytes
from qll.networks.onnx_tensors import onnx_package, parse_model

Array = NDArray[np.float64]
FLOATS = {1: "float32", 11: "float64"}  # codes of ONNX
FREE = "qll_inputs"
SLICE_BY_INPUTS = 10  # the opset from which its ends are inputs


@dataclass(frozen=True, eq=False)
class Attached:
    """``document`` speaks of the inputs of ``network``, which may be fewer than the declared ones
    (`qll.exchange.tied`)."""

    document: Document
    network: Network
    ties: Tied | None = None
    notes: tuple[str, ...] = ()

    def all_inputs(self, point: Array) -> Array:
        if self.ties is None:
            return point
        factors = np.array([float(factor) for factor in self.ties.factors])
        return np.asarray(point[list(self.ties.places)] * factors)

    def outputs(self, point: Array) -> Array:
        """In the declared type: floats next to the real numbers, or what ONNX Runtime answers."""
        if not all(tensor.is_real for tensor in self.document.tensors):
            return np.asarray(self.network.runtime(point[None]), dtype=np.float64).reshape(-1)
        low, high = self.network.enclose(point)
        if np.isfinite(low).all() and np.isfinite(high).all():
            return np.asarray(low + (high - low) / 2)
        return np.array([nearest(value) for value in self.network.evaluate_exact(point)])


def files_of(document: Document, given: Sequence[str]) -> dict[str, Path]:
    """``NAME=FILE`` for each declared network that is not equal to another one. Vehicle names a
    file for those as well: it must be the same."""
    wanted = [n.name for n in document.networks if n.equal_to is None]
    equal = {n.name: n.equal_to for n in document.networks if n.equal_to is not None}
    found: dict[str, Path] = {}
    for option in given:
        name, sign, path = option.partition("=")
        if sign and Path(option).is_file():  # a file whose name has a sign, without a name
            name, sign, path = "", "", option
        if document.version[0] == 1 or not sign:  # one network, which needs no name
            name, path = (wanted[0], path if sign else option)
            if len(wanted) > 1:
                raise _not_these(wanted, given)
        if name not in (*wanted, *equal) or name in found:
            raise _not_these(wanted, given)
        found[name] = Path(path)
    for name, other in equal.items():
        if name in found and not (other in found and _same(found.pop(name), found[other])):
            raise _not_these(wanted, given)
    if len(found) != len(wanted):
        raise _not_these(wanted, given)
    return found


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other) or one.read_bytes() == other.read_bytes()
    except OSError:
        return False


def _not_these(wanted: list[str], given: Sequence[str]) -> InputError:
    names = [name or "f" for name in wanted]
    return InputError(
        "the network files are not those that the query declares",
        expected=", ".join(f"--network {name}=FILE" for name in names),
        found=", ".join(given) or "none",
        fix="give one ONNX file for each declared network that is not equal to another",
    )


def attach(
    document: Document, files: Mapping[str, Path], arithmetic: str | None = None
) -> Attached:
    """The query with its networks as one. In the ``arithmetic`` float32 a fixed decimal stands for
    a float32 number wherever its input is, under another name too."""
    models = [_Model.of(n, files[n.equal_to or n.name], document.source) for n in document.networks]
    _require_isomorphic(models)
    ties = tied(document)
    given = document
    if ties is not None and arithmetic == "float32":
        document = with_float32(document)
    first = document.networks[0]
    notes = () if document.version[0] == 1 else tuple(n for m in models for n in m.notes)
    if document is not given:
        notes = (*notes, FIXED_NOTE)
    if len(models) == 1 and len(first.tensors) == 2 and ties is None:
        return Attached(document, models[0].alone(), notes=notes)
    return replace(_joined(document, models, ties), notes=notes)


@dataclass(frozen=True, eq=False)
class _Model:
    """One declared network with its file."""

    declaration: Declaration
    path: Path
    data: bytes
    proto: Any
    inputs: tuple[Any, ...]
    source: str = ""  # the query's file

    @classmethod
    def of(cls, declaration: Declaration, path: Path, source: str = "") -> _Model:
        """Inputs for which the file stores a default are its weights (older files list them so),
        unless the query declares every input: then they are inputs like the others."""
        data = network_bytes(path)
        try:
            proto = parse_model(data)
        except NetworkError as error:  # which of several files it is
            raise (error if error.where else error.at(str(path))) from error
        stored = {tensor.name for tensor in proto.graph.initializer}
        inputs = tuple(entry for entry in proto.graph.input if entry.name not in stored)
        listed = tuple(proto.graph.input)
        if len(declaration.of_kind("input")) == len(listed) != len(inputs):
            inputs, named = listed, {entry.name for entry in listed}
            kept = [tensor for tensor in proto.graph.initializer if tensor.name not in named]
            del proto.graph.initializer[:]
            proto.graph.initializer.extend(kept)
            data = proto.SerializeToString()
        model = cls(declaration, path, data, proto, inputs, source)
        model._check("input", declaration.of_kind("input"), inputs)
        model._check("output", declaration.of_kind("output"), tuple(proto.graph.output))
        return model

    @property
    def notes(self) -> tuple[str, ...]:
        own = {entry.name for entry in self.inputs}
        stored = [entry.name for entry in self.proto.graph.input if entry.name not in own]
        if not stored:
            return ()
        names = ", ".join(stored[:3]) + (", ..." if stored[3:] else "")
        return (
            f"inputs of {self.path.name} that are not declared have their stored values: {names}",
        )

    def _check(self, kind: str, declared: tuple[Tensor, ...], entries: tuple[Any, ...]) -> None:
        for tensor in declared:
            if tensor.initialized:
                raise InputError(
                    f"the input '{tensor.name}' is declared as initialized",
                    expected="inputs that the query chooses",
                    found="a default value of the model",
                    fix="assert that the input equals that value",
                    where=tensor.place or None,
                )
        if len(declared) != len(entries):
            raise InputError(
                f"the query's {kind}s are not those of {self.path}",
                expected=f"{len(entries)}: {', '.join(e.name for e in entries)}",
                found=f"{len(declared)}: {', '.join(t.name for t in declared)}",
                fix=f"declare every {kind} of the model, in its order",
                where=declared[-1].place or self.source or None,
            )
        for tensor, entry in zip(declared, entries, strict=True):
            shape_in_model(tensor, _sizes(entry), str(self.path))
            self._check_type(tensor, entry)

    def _check_type(self, tensor: Tensor, entry: Any) -> None:
        """The standard: another type than the declared one is an error, unless that is ``real``."""
        code = entry.type.tensor_type.elem_type
        if not tensor.is_real and FLOATS.get(code) != tensor.element.lower():
            raise InputError(
                f"the {tensor.kind} '{tensor.name}' has another type in {self.path}",
                expected=f"{tensor.element}, as the query declares",
                found=FLOATS.get(code, f"ONNX's type {code}"),
                fix="declare it as the network has it, or as real",
                where=tensor.place or None,
            )

    def alone(self) -> Network:
        """A network of one input and one output, as it is."""
        tensor, entry = self.declaration.of_kind("input")[0], self.inputs[0]
        sizes = _sizes(entry)
        shape = shape_in_model(tensor, sizes, str(self.path))
        batched = sizes is not None and len(sizes) >= 2 and sizes[0] in (None, 1)
        is_open = sizes is None or None in (sizes[1:] if batched else sizes)
        given = (shape[1:] if batched or sizes is None else shape) if is_open else None
        network = load(self.path, input_shape=given)
        output = self.declaration.of_kind("output")[0]
        for declared, found in ((tensor, network.input_size), (output, network.output_size)):
            if declared.size != found:
                raise _wrong_shape(declared, f"{found:,} numbers", str(self.path))
        return network


def _sizes(entry: Any) -> list[int | None] | None:
    kind = entry.type.tensor_type
    if not kind.HasField("shape"):
        return None
    return [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]


def shape_in_model(tensor: Tensor, sizes: list[int | None] | None, path: str) -> tuple[int, ...]:
    """The shape of a tensor of the model: the model's where it is fixed, the query's where the
    model leaves an axis open. The query's must be the same, but for leading axes of size 1; or it
    is flat, which can mean only the order in which the elements are stored."""
    if sizes is None:
        return tensor.shape
    more = len(sizes) - len(tensor.shape)
    declared = (1,) * more + tensor.shape[max(-more, 0) :]
    if all(size in (None, own) for size, own in zip(sizes, declared, strict=True)) and all(
        size == 1 for size in tensor.shape[: max(-more, 0)]
    ):
        return declared
    shape = tuple(1 if size is None else size for size in sizes)
    known = math.prod(shape)
    if sizes.count(None) == 1 and known and tensor.size % known == 0:
        shape = tuple(tensor.size // known if size is None else size for size in sizes)
    flat = all(size == 1 for size in tensor.shape[:-1])
    if not flat or math.prod(shape) != tensor.size:
        axes = ",".join("?" if size is None else str(size) for size in sizes)
        flat_too = f", or flat: [{tensor.size}]" if math.prod(shape) == tensor.size else ""
        raise _wrong_shape(tensor, f"[{axes}]{flat_too}", path)
    return shape


def _wrong_shape(tensor: Tensor, wanted: str, path: str) -> InputError:
    kind = "hidden node" if tensor.kind == "hidden" else tensor.kind
    return InputError(
        f"the {kind} of the query is not that of {path}: '{tensor.name}' has another shape",
        expected=f"{wanted}; leading axes of size 1 may be left out or added",
        found=f"[{','.join(map(str, tensor.shape))}], {tensor.size:,} numbers",
        fix="declare the tensor as the model has it, or use the query that was written for it",
        where=tensor.place or None,
    )


def _require_isomorphic(models: Sequence[_Model]) -> None:
    """``isomorphic-to``: the same graph, whatever the weights and their types are."""
    known = Structures()
    by_name = {model.declaration.name: model for model in models}
    for model in models:
        target = model.declaration.isomorphic_to
        if target is None or known.of(model.proto) == known.of(by_name[target].proto):
            continue
        raise InputError(
            f"{model.path} is not isomorphic to {by_name[target].path}",
            expected=f"the operators of '{target}' in the same graph, with weights of the same "
            "shapes",
            found="another graph",
            fix="leave out isomorphic-to: any two networks may be compared",
            where=model.declaration.tensors[0].place or None,
        )


# --- one graph of many ---


def _joined(document: Document, models: list[_Model], ties: Tied | None) -> Attached:
    onnx = onnx_package()
    imported = [entry for m in models for entry in m.proto.opset_import]
    opsets = {entry.version for entry in imported if entry.domain in ("", "ai.onnx")}
    types = {entry.type.tensor_type.elem_type for m in models for entry in m.inputs}
    if len(opsets) != 1 or len(types) != 1 or not types <= set(FLOATS):
        raise NetworkError(
            "the networks cannot be put together",
            expected="one operator set, and inputs of one type, float32 or float64",
            found=f"operator sets {sorted(opsets)}, types {sorted(types)}",
            fix="export the networks again with the same settings",
        )
    kind = types.pop()
    inputs = document.inputs if ties is None else len(ties.free)
    builder = _Builder(onnx, opsets.pop(), kind)
    whole = FREE if ties is None else builder.chosen(ties)
    for number, model in enumerate(models):
        builder.add(model, f"n{number}_", whole)
    data = builder.model(inputs, document.outputs, max(m.proto.ir_version for m in models))
    network = load(data)
    return Attached(document if ties is None else reduced(document, ties), network, ties)


class _Builder:
    def __init__(self, onnx: Any, opset: int, kind: int) -> None:
        self.onnx, self.helper = onnx, onnx.helper
        self.opset, self.kind = opset, kind
        self.nodes: list[Any] = []
        self.stored: list[Any] = []
        self.parts: list[str] = []

    def chosen(self, ties: Tied) -> str:
        """The declared inputs from the free ones, without rounding: a matrix of powers of two."""
        count = len(ties.places)
        matrix = np.zeros((len(ties.free), count), FLOATS[self.kind])
        matrix[list(ties.places), np.arange(count)] = [float(factor) for factor in ties.factors]
        self.stored.append(self.onnx.numpy_helper.from_array(matrix, "qll_chosen"))
        self.node("MatMul", [FREE, "qll_chosen"], "qll_all")
        return "qll_all"

    def add(self, model: _Model, prefix: str, whole: str) -> None:
        part = self.onnx.compose.add_prefix(model.proto, prefix)
        self.stored.extend(part.graph.initializer)
        for tensor, entry in zip(model.declaration.of_kind("input"), model.inputs, strict=True):
            cut = self.cut(whole, f"{prefix}x{tensor.offset}", tensor.offset, tensor.size)
            shape = shape_in_model(tensor, _sizes(entry), str(model.path))
            self.reshape(cut, prefix + entry.name, shape)
        self.nodes.extend(part.graph.node)
        outputs = iter(model.proto.graph.output)
        inner = _shapes(model.proto) if model.declaration.of_kind("hidden") else {}
        for tensor in model.declaration.tensors:
            if tensor.kind != "input":
                value = _hidden(model, tensor) if tensor.kind == "hidden" else next(outputs).name
                if tensor.kind == "hidden":
                    shape_in_model(tensor, inner.get(value), str(model.path))
                self.parts.append(f"{prefix}y{tensor.offset}")
                self.reshape(prefix + value, self.parts[-1], (1, tensor.size))

    def cut(self, source: str, name: str, begin: int, size: int) -> str:
        if self.opset < SLICE_BY_INPUTS:
            self.node("Slice", [source], name, starts=[begin], ends=[begin + size], axes=[1])
        else:
            ends = [
                self.integers(f"{name}_{k}", [value])
                for k, value in enumerate((begin, begin + size, 1))
            ]
            self.node("Slice", [source, *ends], name)
        return name

    def reshape(self, source: str, target: str, shape: Sequence[int]) -> None:
        self.node("Reshape", [source, self.integers(f"{target}_shape", shape)], target)

    def integers(self, name: str, values: Sequence[int]) -> str:
        array = np.array(values, dtype=np.int64)
        self.stored.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def node(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> None:
        self.nodes.append(self.helper.make_node(operator, inputs, [output], **attributes))

    def model(self, inputs: int, outputs: int, ir_version: int) -> bytes:
        self.node("Concat", self.parts, "qll_outputs", axis=1)
        info = self.helper.make_tensor_value_info
        graph = self.helper.make_graph(
            self.nodes,
            "joined",
            [info(FREE, self.kind, [1, inputs])],
            [info("qll_outputs", self.kind, [1, outputs])],
            self.stored,
        )
        opset = self.helper.make_opsetid("", self.opset)
        model = self.helper.make_model(graph, opset_imports=[opset], ir_version=ir_version)
        return bytes(model.SerializeToString())


def _shapes(proto: Any) -> dict[str, list[int | None]]:
    """Of the values within a model, as far as ONNX can tell."""
    inferred = onnx_package().shape_inference.infer_shapes(proto)
    found = ((entry.name, _sizes(entry)) for entry in inferred.graph.value_info)
    return {name: sizes for name, sizes in found if sizes is not None}


def _hidden(model: _Model, tensor: Tensor) -> str:
    """The value that a hidden node's name means: an output of a node, or the node that has one."""
    nodes = model.proto.graph.node
    if any(tensor.node in node.output for node in nodes):
        return tensor.node or ""
    named = [node for node in nodes if node.name == tensor.node]
    if len(named) == 1 and len(named[0].output) == 1:
        return str(named[0].output[0])
    raise InputError(
        f"the hidden node '{tensor.name}' is not in {model.path}",
        expected="the name of a node's output",
        found=f"'{tensor.node}'",
        fix="look up the name in the ONNX file",
        where=tensor.place or None,
    )
