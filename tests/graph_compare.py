"""What ONNX Runtime, the verifier's reader and the checker's reader make of one model.

A reader may refuse. What it reads must run in ONNX Runtime, with the same outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from graph_runtime import NO_KERNEL, Answer, Runtime
from onnx import TensorProto, numpy_helper

from qll.audit.bounds import Bounder, _image
from qll.audit.exact import ONE
from qll.audit.network import Network as CheckedNetwork
from qll.audit.network import NotConfirmed, read_network
from qll.errors import QllError
from qll.networks import Network, load

ROUNDING = 2e-6  # of the largest number on the way: float32 has 6e-8, and sums of some dozens
HUGE = 1e30  # beyond it float32 overflows, which real arithmetic does not


@dataclass(frozen=True)
class Report:
    """``differences`` is empty if both readers agree with ONNX Runtime or refuse."""

    ran: bool
    read: bool
    checked: bool
    differences: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Case:
    """A model with the answer of ONNX Runtime. It does not run some models though they are sound:
    its optimiser fails (a Clip of float64 after a ReLU), or it has no kernel (a convolution of
    float64). The reader, not the checker, takes them, and is held against ``other``: the answer
    without optimisation, or that of the same model in float32."""

    data: bytes
    theirs: Answer
    other: Answer | None

    @classmethod
    def of(cls, data: bytes, seed: int, runtime: Runtime) -> Case:
        theirs, other = runtime(data, seed), None
        if not theirs.ran:
            other = runtime(data, seed, optimise=False)
            if NO_KERNEL in other.reason and (twin := single_precision(data)) is not None:
                other = runtime(twin, seed, optimise=False)
        return cls(data, theirs, other)

    def report(self) -> Report:
        read, first = reader_difference(self)
        checked, second = checker_difference(self)
        found = [f"reader: {first}"] * bool(first) + [f"checker: {second}"] * bool(second)
        return Report(self.theirs.ran, read, checked, tuple(found))


def compare(data: bytes, seed: int, runtime: Runtime) -> Report:
    return Case.of(data, seed, runtime).report()


def reader_difference(case: Case) -> tuple[bool, str | None]:
    """Whether the reader takes the model, and what is wrong with that."""
    try:
        network = load(case.data)
        _ = network.relu_form
    except QllError:
        return False, None
    other = case.other
    theirs = other if other is not None and other.ran else case.theirs
    if not theirs.ran:
        return True, f"read, but ONNX Runtime refuses: {theirs.reason}"
    if network.input_size != theirs.points.shape[1]:
        return True, f"{network.input_size} inputs instead of {theirs.points.shape[1]}"
    if network.graph.output_shape != theirs.shape:
        return True, f"shape {network.graph.output_shape} instead of {theirs.shape}"
    return True, _other_values(network, theirs)


def _other_values(network: Network, theirs: Answer) -> str | None:
    scale = _largest(network, theirs.points)
    if not scale <= HUGE:
        return None
    ours = network.program.forward(theirs.points)
    folded = network.relu_form.forward(theirs.points)
    if not np.allclose(ours, folded, rtol=0, atol=1e-9 * (1 + scale)):
        return f"folded {folded.tolist()} instead of {ours.tolist()}"
    low, high = network.enclose(theirs.points[0])
    exact = [float(v) for v in (low + high) / 2]
    if network.relu_form.is_piecewise_linear:
        exact = [float(v) for v in network.evaluate_exact(theirs.points[0])]
    if not np.allclose(exact, ours[0], rtol=0, atol=1e-9 * (1 + scale)):
        return f"exactly {exact} instead of {ours[0].tolist()}"
    return _unlike(ours, theirs.outputs, scale)


def _largest(network: Network, points: Any) -> float:
    """The largest number on the way, for the size of the rounding errors."""
    program, largest = network.program, float(np.abs(points).max())
    for k in range(len(program.steps)):
        part = type(program)(program.input_shape, program.widths[: k + 2], program.steps[: k + 1])
        largest = max(largest, float(np.abs(part.forward(points)).max(initial=0.0)))
    return largest


def checker_difference(case: Case) -> tuple[bool, str | None]:
    """The same of the checker."""
    theirs = case.theirs
    try:
        checked = read_network(case.data, None, None)
    except NotConfirmed:
        return False, None
    if not theirs.ran:
        return True, f"read, but ONNX Runtime refuses: {theirs.reason}"
    if checked.widths[0] != theirs.points.shape[1]:
        return True, f"{checked.widths[0]} inputs instead of {theirs.points.shape[1]}"
    try:
        ours = np.array([checker_outputs(checked, x) for x in theirs.points])
    except NotConfirmed:  # numbers that are too large for its floats
        return False, None
    if ours.shape != theirs.outputs.shape:
        return True, f"{ours.shape[1]} outputs instead of {theirs.outputs.shape[1]}"
    scale = max(_largest_checked(checked, x) for x in theirs.points)
    return True, _unlike(ours, theirs.outputs, scale)


def _largest_checked(network: CheckedNetwork, x: Any) -> float:
    """A bound of every number on the way at one point."""
    point, largest = np.asarray(x, dtype=np.float64), 1.0
    state = np.abs(point).tolist()
    bounder = Bounder(network)
    area = None if network.is_exact else bounder.area(point, point)
    for k, (layer, bent) in enumerate(zip(network.maps, (*network.curves, None), strict=True)):
        sizes = [
            sum(abs(n) / below * (1.0 if c == ONE else state[c]) for c, n in row.items())
            for row, below in zip(layer.rows, layer.below, strict=True)
        ]
        if area is not None and k < len(network.curves):
            part = bounder.part(k + 1)
            ends = _image(bent, area.low[..., part], area.high[..., part])
            largest = max([largest, *sizes])
            sizes = np.maximum(*(np.abs(end) for end in ends)).ravel().tolist()
        state += sizes
    return max([largest, *state])


def checker_outputs(network: CheckedNetwork, x: Any) -> list[float]:
    """Exactly, or between the ends of a point."""
    if network.is_exact:
        return [float(v) for v in network.exact(x.tolist())]
    point = np.asarray(x, dtype=np.float64)
    low, high = Bounder(network).area(point, point).last
    return [float(v) for v in (low + high) / 2]


def _unlike(ours: Any, theirs: Any, scale: float) -> str | None:
    if scale > HUGE:
        return None
    close = ours.shape == theirs.shape
    if close and np.allclose(ours, theirs, rtol=0, atol=ROUNDING * (1 + scale)):
        return None
    return f"{ours.tolist()} instead of {theirs.tolist()}"


def single_precision(data: bytes) -> bytes | None:
    """The same model with float32 for float64; its weights are short enough for both. None for a
    model with tensors that are not sound."""
    model = onnx.ModelProto.FromString(data)
    graph = model.graph
    stored = list(graph.initializer)
    stored += [a.t for n in graph.node for a in n.attribute if a.type == a.TENSOR]
    for tensor in stored:
        if tensor.data_type == TensorProto.DOUBLE:
            try:
                array = numpy_helper.to_array(tensor).astype(np.float32)
            except (ValueError, onnx.checker.ValidationError):
                return None
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for entry in (*graph.input, *graph.output, *graph.value_info):
        if entry.type.tensor_type.elem_type == TensorProto.DOUBLE:
            entry.type.tensor_type.elem_type = TensorProto.FLOAT
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.i == TensorProto.DOUBLE:
                attribute.i = TensorProto.FLOAT
    return bytes(model.SerializeToString())


def shrink(model: onnx.ModelProto, differs: Callable[[onnx.ModelProto], bool]) -> onnx.ModelProto:
    """A smaller model that still differs: nodes, attributes, tensors and statements are left out
    one by one, for as long as that works."""
    best, changed = model, True
    while changed:
        changed = False
        for smaller in _smaller(best):
            if differs(smaller):
                best, changed = smaller, True
                break
    return best


def _smaller(model: onnx.ModelProto) -> Any:
    def copy() -> onnx.ModelProto:
        other = onnx.ModelProto()
        other.CopyFrom(model)
        return other

    for name in ("value_info", "initializer", "input"):
        for place in range(len(getattr(model.graph, name))):
            other = copy()
            del getattr(other.graph, name)[place]
            yield other
    for place, node in enumerate(model.graph.node):
        for source in [*node.input[:2], None]:  # what read the node reads its operand instead
            other = copy()
            del other.graph.node[place]
            for later in (*other.graph.node, *other.graph.output):
                names = later.input if hasattr(later, "input") else None
                if names is not None and source is not None:
                    names[:] = [source if n in node.output else n for n in names]
                elif names is None and later.name in node.output and source is not None:
                    later.name = source
            yield other
        for at in range(len(node.attribute)):
            other = copy()
            del other.graph.node[place].attribute[at]
            yield other


def describe(model: onnx.ModelProto) -> str:
    try:
        return str(onnx.printer.to_text(model))
    except Exception:  # a model that onnx cannot print is printed as it is stored
        return str(model)
