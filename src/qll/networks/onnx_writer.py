"""The op graph to ONNX: one file, no external data, raw input.

Written node by node rather than by torch's exporter, so that what is written is what the reader
took and what Marabou reads rightly: a normalisation is a batch norm and a constant is added, never
subtracted (see ``torch_operators``).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from qll.errors import NetworkError
from qll.files import write_atomically
from qll.networks.activations.clip import Clip
from qll.networks.activations.gelu import Gelu
from qll.networks.activations.leaky_relu import LeakyRelu
from qll.networks.activations.power import Power
from qll.networks.activations.silu import Silu
from qll.networks.activations.square import Square
from qll.networks.graph import Graph, Node
from qll.networks.layers import (
    Apply,
    AveragePool,
    BatchNorm,
    Concat,
    Constant,
    Convolution,
    Extremum,
    Layer,
    LayerNorm,
    Linear,
    MatrixProduct,
    MaxPool,
    Mean,
    Pad,
    ParametricRelu,
    Product,
    Reshape,
    Scale,
    Slice,
    Softmax,
    Sum,
    Transpose,
)
from qll.networks.onnx_tensors import onnx_package
from qll.networks.torch_reader import parameter_type, read_torch
from qll.networks.windows import Window

OPSET = 17
IR_VERSION = 8  # of the same release as the opset: old readers refuse a newer one
GELU_OPSET, GELU_IR_VERSION = 20, 9


def export_onnx(module: nn.Module, path: str | Path, *, input_shape: tuple[int, ...]) -> bytes:
    """Write the module to ``path``, wholly or not at all; returns the bytes."""
    data = onnx_bytes(module, input_shape=input_shape)
    write_atomically(Path(path), data)
    return data


def onnx_bytes(module: nn.Module, *, input_shape: tuple[int, ...]) -> bytes:
    graph = read_torch(module, input_shape=input_shape)
    double = parameter_type(module) is torch.float64
    return graph_bytes(graph, double=double)


def graph_bytes(graph: Graph, *, double: bool = False) -> bytes:
    onnx = onnx_package()
    # An old opset is read by more tools; GELU's own operator needs a newer one.
    needs_gelu = any(node.layer == Apply(Gelu()) for node in graph.nodes)
    opset = GELU_OPSET if needs_gelu else OPSET
    writer = _Writer(graph, double=double, opset=opset)
    kind = onnx.TensorProto.DOUBLE if double else onnx.TensorProto.FLOAT
    batch: int | str = "batch" if _keeps_batch(graph) else 1
    rest = graph.output_shape[1:] if graph.output_shape else ()
    output_shape = [batch, *rest] if graph.output_shape else []
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            writer.write(),
            "network",
            [onnx.helper.make_tensor_value_info("input", kind, [batch, *graph.input_shape])],
            [onnx.helper.make_tensor_value_info("output", kind, output_shape)],
            writer.tensors,
        ),
        opset_imports=[onnx.helper.make_opsetid("", opset)],
        producer_name="qll",
    )
    model.ir_version = IR_VERSION if opset == OPSET else GELU_IR_VERSION
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))


def _keeps_batch(graph: Graph) -> bool:
    """Whether every layer acts on each row alone, so that the batch axis may be left open."""
    shapes = [graph.tensor_shape, *(node.shape for node in graph.nodes)]
    constant = {i + 1 for i, node in enumerate(graph.nodes) if isinstance(node.layer, Constant)}
    for node in graph.nodes:
        if isinstance(node.layer, Constant):
            continue
        operands = [shapes[s] for s in node.sources if s not in constant]
        given = [shapes[s] for s in node.sources if s in constant]
        ranks = {len(shape) for shape in operands}
        leading = all(shape[:1] == (1,) for shape in (*operands, node.shape))
        low = all(len(g) < len(node.shape) or g[0] == 1 for g in given)
        if not operands or not leading or len(ranks) != 1 or not low or _moves_batch(node):
            return False
    return bool(graph.tensor_shape) and graph.tensor_shape[0] == 1 and graph.output not in constant


def _moves_batch(node: Node) -> bool:
    match node.layer:
        case Transpose(order):
            return order[0] != 0
        case Concat(axis):
            return axis % len(node.shape) == 0
        case Mean(axes, _):
            rank = len(node.shape) if node.layer.keep else len(node.shape) + len(axes)
            return any(axis % rank == 0 for axis in axes)
        case MatrixProduct():
            return len(node.shape) < 3
        case Softmax(axis):
            return axis % len(node.shape) == 0
        case LayerNorm():
            return node.layer.axes >= len(node.shape)
        case Pad(before, after):
            return bool(before[0] or after[0])
        case Slice(slices):
            return bool(slices) and slices[0] != (None, None, None)
        case Scale(factor, divisor):
            parts = [factor] if divisor is None else [factor, divisor]
            return any(p.ndim >= len(node.shape) and p.shape[0] != 1 for p in parts)
    return False


class _Writer:
    def __init__(self, graph: Graph, *, double: bool, opset: int) -> None:
        self.graph = graph
        self.opset = opset
        self.dtype = np.float64 if double else np.float32
        self.tensors: list[Any] = []
        self.nodes: list[Any] = []
        self.names = ["input"]
        self.shapes = [graph.tensor_shape]
        self._used: set[str] = {"input", "output"}

    def write(self) -> list[Any]:
        for node in self.graph.nodes:
            operands = [self.names[source] for source in node.sources]
            emit = EMIT.get(type(node.layer))
            if emit is None:
                raise NetworkError(
                    f"the layer '{node.name}' cannot be written to ONNX",
                    expected=f"one of {', '.join(sorted(kind.__name__ for kind in EMIT))}",
                    found=type(node.layer).__name__,
                    fix="export the network without it",
                )
            self.shapes.append(node.shape)
            self.names.append(emit(self, node.layer, node, operands))
        # The output has a fixed name; an identity keeps the writer free of special cases.
        self._name_output(self.names[self.graph.output])
        return self.nodes

    def _name_output(self, name: str) -> None:
        last = self.nodes[-1] if self.nodes else None
        used = any(name in node.input for node in self.nodes)
        if last is not None and list(last.output) == [name] and not used:
            last.output[0] = "output"
        else:
            self.nodes.append(onnx_package().helper.make_node("Identity", [name], ["output"]))

    def fresh(self, name: str) -> str:
        candidate, count = name, 1
        while candidate in self._used:
            candidate, count = f"{name}_{count}", count + 1
        self._used.add(candidate)
        return candidate

    def tensor(self, name: str, value: Any) -> str:
        array = np.asarray(value)
        stored = array if array.dtype == np.int64 else array.astype(self.dtype)
        if stored.dtype != np.int64 and not np.array_equal(stored.astype(np.float64), array):
            raise NetworkError(
                f"the weights of '{name}' do not fit the file's precision",
                expected=f"{np.dtype(self.dtype)} values",
                found="values with more digits",
                fix="call module.float(), or keep every weight in float64",
            )
        title = self.fresh(name)
        self.tensors.append(onnx_package().numpy_helper.from_array(np.array(stored), title))
        return title

    def node(self, kind: str, place: str, operands: list[str], **attributes: Any) -> str:
        output = self.fresh(f"{place}.{kind.lower()}")
        self.nodes.append(
            onnx_package().helper.make_node(kind, operands, [output], name=output, **attributes)
        )
        return output


Emit: TypeAlias = Callable[[_Writer, Any, Node, list[str]], str]


def _constant(writer: _Writer, layer: Constant, node: Node, operands: list[str]) -> str:
    return writer.tensor(node.name, layer.value)


def _reshape(writer: _Writer, layer: Reshape, node: Node, operands: list[str]) -> str:
    source = writer.shapes[node.sources[0]]
    if source == layer.target:
        return operands[0]
    if len(layer.target) == 2 and source[:1] == layer.target[:1] == (1,):
        return writer.node("Flatten", node.name, operands, axis=1)
    # -1 for the batch: the rows stay apart however many there are.
    leading = -1 if layer.target[:1] == (1,) else layer.target[0]
    shape = np.array([leading, *layer.target[1:]], dtype=np.int64)
    return writer.node(
        "Reshape", node.name, [operands[0], writer.tensor(f"{node.name}.shape", shape)]
    )


def _transpose(writer: _Writer, layer: Transpose, node: Node, operands: list[str]) -> str:
    return writer.node("Transpose", node.name, operands, perm=list(layer.order))


def _pad(writer: _Writer, layer: Pad, node: Node, operands: list[str]) -> str:
    pads = writer.tensor(
        f"{node.name}.pads", np.array([*layer.before, *layer.after], dtype=np.int64)
    )
    fill = writer.tensor(f"{node.name}.fill", np.asarray(layer.fill))
    return writer.node("Pad", node.name, [operands[0], pads, fill])


def _slice(writer: _Writer, layer: Slice, node: Node, operands: list[str]) -> str:
    far = np.iinfo(np.int64)
    starts, ends, axes, steps = [], [], [], []
    for axis, (start, stop, step) in enumerate(layer.slices):
        pace = 1 if step is None else step
        if (start, stop, pace) == (None, None, 1):
            continue
        starts.append((0 if pace > 0 else far.max) if start is None else start)
        ends.append((far.max if pace > 0 else far.min) if stop is None else stop)
        axes.append(axis)
        steps.append(pace)
    if not axes:
        return operands[0]
    parts = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
    tensors = [
        writer.tensor(f"{node.name}.{name}", np.array(values, dtype=np.int64))
        for name, values in parts.items()
    ]
    return writer.node("Slice", node.name, [operands[0], *tensors])


def _concat(writer: _Writer, layer: Concat, node: Node, operands: list[str]) -> str:
    return writer.node("Concat", node.name, operands, axis=layer.axis)


def _sum(writer: _Writer, layer: Sum, node: Node, operands: list[str]) -> str:
    layers = {i + 1: n.layer for i, n in enumerate(writer.graph.nodes)}
    total: str | None = None
    for source, name, sign in zip(node.sources, operands, layer.signs, strict=True):
        constant = layers.get(source)
        term, positive = name, sign > 0
        if not positive and isinstance(constant, Constant):
            term, positive = writer.tensor(f"{node.name}.negated", -constant.value), True
        if total is None:
            total = term if positive else writer.node("Neg", node.name, [term])
        else:
            total = writer.node("Add" if positive else "Sub", node.name, [total, term])
    return total or operands[0]


def _scale(writer: _Writer, layer: Scale, node: Node, operands: list[str]) -> str:
    value = operands[0]
    if layer.divisor is None or not np.all(layer.factor == 1.0):
        factor = writer.tensor(f"{node.name}.factor", layer.factor)
        value = writer.node("Mul", node.name, [value, factor])
    if layer.divisor is not None:
        divisor = writer.tensor(f"{node.name}.divisor", layer.divisor)
        value = writer.node("Div", node.name, [value, divisor])
    return value


def _batch_norm(writer: _Writer, layer: BatchNorm, node: Node, operands: list[str]) -> str:
    parts = {
        "gain": layer.gain,
        "shift": layer.shift,
        "mean": layer.mean,
        "variance": layer.variance,
    }
    tensors = [writer.tensor(f"{node.name}.{name}", value) for name, value in parts.items()]
    return writer.node(
        "BatchNormalization", node.name, [operands[0], *tensors], epsilon=layer.epsilon
    )


def _linear(writer: _Writer, layer: Linear, node: Node, operands: list[str]) -> str:
    bias = writer.tensor(f"{node.name}.bias", layer.bias)
    if len(node.shape) == 2:
        weight = writer.tensor(f"{node.name}.weight", layer.weight)
        return writer.node("Gemm", node.name, [operands[0], weight, bias], transB=1)
    weight = writer.tensor(f"{node.name}.weight", np.ascontiguousarray(layer.weight.T))
    product = writer.node("MatMul", node.name, [operands[0], weight])
    return writer.node("Add", node.name, [product, bias])


def _window(window: Window) -> dict[str, Any]:
    return {
        "kernel_shape": list(window.kernel),
        "strides": list(window.stride),
        "pads": [*window.before, *window.after],
    }


def _ceil_mode(writer: _Writer, window: Window, node: Node) -> int:
    return int(window.settle_ceil(writer.shapes[node.sources[0]][2:]).ceil)


def _convolution(writer: _Writer, layer: Convolution, node: Node, operands: list[str]) -> str:
    weight = writer.tensor(f"{node.name}.weight", layer.weight)
    bias = writer.tensor(f"{node.name}.bias", layer.bias)
    return writer.node(
        "Conv",
        node.name,
        [operands[0], weight, bias],
        **_window(layer.window),
        dilations=list(layer.window.dilation),
        group=layer.groups,
    )


def _average_pool(writer: _Writer, layer: AveragePool, node: Node, operands: list[str]) -> str:
    return writer.node(
        "AveragePool",
        node.name,
        operands,
        **_window(layer.window),
        ceil_mode=_ceil_mode(writer, layer.window, node),
        count_include_pad=int(layer.count_padding),
    )


def _max_pool(writer: _Writer, layer: MaxPool, node: Node, operands: list[str]) -> str:
    return writer.node(
        "MaxPool",
        node.name,
        operands,
        **_window(layer.window),
        dilations=list(layer.window.dilation),
        ceil_mode=_ceil_mode(writer, layer.window, node),
    )


def _mean(writer: _Writer, layer: Mean, node: Node, operands: list[str]) -> str:
    if layer.divide and writer.opset < 18:  # its axes are an attribute
        return writer.node(
            "ReduceMean", node.name, operands, axes=list(layer.axes), keepdims=int(layer.keep)
        )
    axes = writer.tensor(f"{node.name}.axes", np.array(layer.axes, dtype=np.int64))
    kind = "ReduceMean" if layer.divide else "ReduceSum"
    return writer.node(kind, node.name, [operands[0], axes], keepdims=int(layer.keep))


def _apply(writer: _Writer, layer: Apply, node: Node, operands: list[str]) -> str:
    match layer.function:
        case LeakyRelu(slope):
            if writer.dtype is np.float32:
                return writer.node("LeakyRelu", node.name, operands, alpha=slope)
            return _parametric(writer, ParametricRelu(np.asarray(slope)), node, operands)
        case Clip(lower, upper):
            ends = [
                writer.tensor(f"{node.name}.{name}", np.asarray(end)) if np.isfinite(end) else ""
                for name, end in (("lower", lower), ("upper", upper))
            ]
            return writer.node("Clip", node.name, [operands[0], *ends])
        case Square():
            return writer.node("Mul", node.name, [operands[0], operands[0]])
        case Power(exponent, _):
            kind = {-1.0: "Reciprocal", 0.5: "Sqrt"}[exponent]
            return writer.node(kind, node.name, operands)
        case Silu():  # which has no operator before opset 24
            share = writer.node("Sigmoid", node.name, operands)
            return writer.node("Mul", node.name, [operands[0], share])
    return writer.node(layer.function.onnx[0], node.name, operands)


def _parametric(writer: _Writer, layer: ParametricRelu, node: Node, operands: list[str]) -> str:
    slope = writer.tensor(f"{node.name}.slope", layer.slope)
    return writer.node("PRelu", node.name, [operands[0], slope])


def _extremum(writer: _Writer, layer: Extremum, node: Node, operands: list[str]) -> str:
    return writer.node("Max" if layer.sign > 0 else "Min", node.name, operands)


def _product(writer: _Writer, layer: Product, node: Node, operands: list[str]) -> str:
    return writer.node("Mul", node.name, operands)


def _matrix_product(writer: _Writer, layer: Layer, node: Node, operands: list[str]) -> str:
    return writer.node("MatMul", node.name, operands)


def _softmax(writer: _Writer, layer: Softmax, node: Node, operands: list[str]) -> str:
    return writer.node("Softmax", node.name, operands, axis=layer.axis)


def _layer_norm(writer: _Writer, layer: LayerNorm, node: Node, operands: list[str]) -> str:
    last = node.shape[len(node.shape) - layer.axes :]
    parts = {"gain": layer.gain, "shift": layer.shift}
    tensors = [
        writer.tensor(f"{node.name}.{name}", np.broadcast_to(value, last))
        for name, value in parts.items()
    ]
    return writer.node(
        "LayerNormalization",
        node.name,
        [operands[0], *tensors],
        axis=-layer.axes,
        epsilon=layer.epsilon,
    )


EMIT: dict[type[Layer], Emit] = {
    Constant: _constant,
    Reshape: _reshape,
    Transpose: _transpose,
    Pad: _pad,
    Slice: _slice,
    Concat: _concat,
    Sum: _sum,
    Scale: _scale,
    BatchNorm: _batch_norm,
    Linear: _linear,
    Convolution: _convolution,
    AveragePool: _average_pool,
    MaxPool: _max_pool,
    Mean: _mean,
    Apply: _apply,
    ParametricRelu: _parametric,
    Extremum: _extremum,
    Product: _product,
    MatrixProduct: _matrix_product,
    Softmax: _softmax,
    LayerNorm: _layer_norm,
}
