"""Ways to spoil an ONNX graph a little: what is nearly valid is where readers part."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Spoiler: TypeAlias = Callable[[onnx.ModelProto, random.Random], None]
SPOILERS: list[Spoiler] = []
TYPES = (
    "float16",
    "float32",
    "float64",
    "float32",
    "float64",
    "int8",
    "uint8",
    "int32",
    "int64",
    "bool",
)


def spoiler(change: Spoiler) -> Spoiler:
    SPOILERS.append(change)
    return change


def spoil(model: onnx.ModelProto, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 1, 2))):
        spoil_by(model, rng, rng.choice(SPOILERS))


def spoil_by(model: onnx.ModelProto, rng: random.Random, change: Spoiler) -> None:
    try:
        with np.errstate(all="ignore"):
            change(model, rng)
    except (IndexError, ValueError, OverflowError, onnx.checker.ValidationError):
        return  # nothing there to change in this way


def some_node(model: onnx.ModelProto, rng: random.Random) -> Any:
    return rng.choice(list(model.graph.node))


def some_tensor(model: onnx.ModelProto, rng: random.Random) -> Any:
    stored = list(model.graph.initializer)
    stored += [a.t for n in model.graph.node for a in n.attribute if a.type == a.TENSOR]
    return rng.choice(stored)


def some_attribute(model: onnx.ModelProto, rng: random.Random) -> Any:
    return rng.choice([a for n in model.graph.node for a in n.attribute])


def other_values(tensor: Any) -> Any:
    array = numpy_helper.to_array(tensor)
    return numpy_helper.from_array((array + 1).astype(array.dtype), tensor.name)


# --- names ---


@spoiler
def constant_that_shadows(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(list(model.graph.initializer))
    extra = helper.make_node("Constant", [], [tensor.name], value=other_values(tensor))
    nodes = list(model.graph.node)
    nodes.insert(rng.randint(0, len(nodes)), extra)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


@spoiler
def node_that_shadows(model: onnx.ModelProto, rng: random.Random) -> None:
    """A node writes to the name of another value, before or after that is read."""
    names = ["x", *(t.name for t in model.graph.initializer)]
    names += [name for n in model.graph.node for name in n.output]
    some_node(model, rng).output[0] = rng.choice(names)


@spoiler
def sparse_twin(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(list(model.graph.initializer))
    array = numpy_helper.to_array(other_values(tensor)).reshape(-1)
    twin = model.graph.sparse_initializer.add()
    twin.values.CopyFrom(numpy_helper.from_array(array, tensor.name))
    twin.indices.CopyFrom(numpy_helper.from_array(np.arange(array.size, dtype=np.int64)))
    twin.dims.extend(tensor.dims)
    if rng.random() < 0.3:
        model.graph.initializer.remove(tensor)


@spoiler
def tensor_twice(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(list(model.graph.initializer))
    model.graph.initializer.append(other_values(tensor))


@spoiler
def renamed_input(model: onnx.ModelProto, rng: random.Random) -> None:
    node = some_node(model, rng)
    names = [name for n in model.graph.node for name in (*n.input, *n.output)]
    node.input[rng.randrange(len(node.input))] = rng.choice([*names, "", "ghost"])


@spoiler
def other_order(model: onnx.ModelProto, rng: random.Random) -> None:
    nodes = list(model.graph.node)
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


@spoiler
def other_output(model: onnx.ModelProto, rng: random.Random) -> None:
    names = [name for n in model.graph.node for name in n.output]
    names += [t.name for t in model.graph.initializer]
    model.graph.output[0].name = rng.choice([*names, "x"])


@spoiler
def output_twice(model: onnx.ModelProto, rng: random.Random) -> None:
    model.graph.output.append(model.graph.output[0])


@spoiler
def second_input(model: onnx.ModelProto, rng: random.Random) -> None:
    name = rng.choice(["x", "z", *(t.name for t in model.graph.initializer)])
    kind = rng.choice((TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64))
    shape = rng.choice(([1, 2], [], [3], [1]))
    model.graph.input.append(helper.make_tensor_value_info(name, kind, shape))


@spoiler
def tensor_named_like_the_input(model: onnx.ModelProto, rng: random.Random) -> None:
    rng.choice(list(model.graph.initializer)).name = "x"


@spoiler
def unused_node(model: onnx.ModelProto, rng: random.Random) -> None:
    """ONNX Runtime checks and runs what nobody reads."""
    kind = rng.choice(("Relu", "Sigmoid", "Neg", "Flatten", "MatMul", "Add", "Nothing"))
    names = ["x", *(name for n in model.graph.node for name in n.output)]
    names += [t.name for t in model.graph.initializer]
    count = 2 if kind in ("MatMul", "Add") else 1
    inputs = [rng.choice(names) for _ in range(count)]
    model.graph.node.append(helper.make_node(kind, inputs, ["unused"]))


@spoiler
def unused_tensor(model: onnx.ModelProto, rng: random.Random) -> None:
    array = np.ones(3, dtype=rng.choice(TYPES))
    model.graph.initializer.append(numpy_helper.from_array(array, "unused"))


# --- attributes ---


@spoiler
def attribute_twice(model: onnx.ModelProto, rng: random.Random) -> None:
    node = rng.choice([n for n in model.graph.node if n.attribute])
    extra = onnx.AttributeProto()
    extra.CopyFrom(rng.choice(list(node.attribute)))
    if extra.type == extra.INT:
        extra.i += 1
    elif extra.type == extra.INTS:
        extra.ints[:] = [v + 1 for v in extra.ints]
    elif extra.type == extra.FLOAT:
        extra.f += 1.0
    elif extra.type == extra.TENSOR:
        extra.t.CopyFrom(other_values(extra.t))
    node.attribute.insert(rng.randint(0, len(node.attribute)), extra)


@spoiler
def unknown_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    name = rng.choice(("axis", "broadcast", "transA", "transB", "alpha", "consumed_inputs", "foo"))
    value: Any = {"alpha": 0.5, "consumed_inputs": [0]}.get(name, 1)
    node = some_node(model, rng)
    if all(a.name != name for a in node.attribute):
        node.attribute.append(helper.make_attribute(name, value))


@spoiler
def attribute_of_another_type(model: onnx.ModelProto, rng: random.Random) -> None:
    attribute = some_attribute(model, rng)
    value = rng.choice((1, 1.0, [1], [1.0], "1", [1, 1], numpy_helper.from_array(np.float32([1]))))
    attribute.CopyFrom(helper.make_attribute(attribute.name, value))


@spoiler
def attribute_with_two_fields(model: onnx.ModelProto, rng: random.Random) -> None:
    attribute = some_attribute(model, rng)
    field, value = rng.choice((("i", 1), ("f", 1.0), ("s", b"1")))
    setattr(attribute, field, value)


@spoiler
def attribute_of_another_value(model: onnx.ModelProto, rng: random.Random) -> None:
    attribute = some_attribute(model, rng)
    if attribute.type == attribute.INT:
        attribute.i = rng.choice((-3, -2, -1, 0, 1, 2, 3, 2**31, -(2**63)))
    elif attribute.type == attribute.INTS and attribute.ints:
        place = rng.randrange(len(attribute.ints))
        attribute.ints[place] = rng.choice((-2, -1, 0, 1, 2, 3))
    elif attribute.type == attribute.FLOAT:
        attribute.f = rng.choice((0.0, -1.0, 1.0, 0.5, float("inf"), float("nan")))
    elif attribute.type == attribute.STRING:
        values = (b"", b"SAME_UPPER", b"SAME_LOWER", b"VALID", b"NOTSET", b"same_upper", b"reflect")
        attribute.s = rng.choice(values)


@spoiler
def attribute_of_another_length(model: onnx.ModelProto, rng: random.Random) -> None:
    attributes = [a for n in model.graph.node for a in n.attribute if a.type == a.INTS]
    attribute = rng.choice(attributes)
    if rng.random() < 0.5:
        attribute.ints.append(1)
    else:
        del attribute.ints[-1:]


@spoiler
def attribute_dropped(model: onnx.ModelProto, rng: random.Random) -> None:
    node = rng.choice([n for n in model.graph.node if n.attribute])
    node.attribute.remove(rng.choice(list(node.attribute)))


@spoiler
def attribute_without_type(model: onnx.ModelProto, rng: random.Random) -> None:
    some_attribute(model, rng).ClearField("type")


@spoiler
def attribute_by_reference(model: onnx.ModelProto, rng: random.Random) -> None:
    some_attribute(model, rng).ref_attr_name = "other"


@spoiler
def subgraph(model: onnx.ModelProto, rng: random.Random) -> None:
    inner = helper.make_graph([helper.make_node("Neg", ["x"], ["inner"])], "inner", [], [])
    some_node(model, rng).attribute.append(helper.make_attribute("body", inner))


# --- tensors ---


@spoiler
def tensor_of_another_type(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = some_tensor(model, rng)
    array = numpy_helper.to_array(tensor).astype(rng.choice(TYPES))
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


@spoiler
def tensor_of_another_precision(model: onnx.ModelProto, rng: random.Random) -> None:
    other = {TensorProto.FLOAT: np.float64, TensorProto.DOUBLE: np.float32}
    tensor = rng.choice([t for t in model.graph.initializer if t.data_type in other])
    array = numpy_helper.to_array(tensor).astype(other[tensor.data_type])
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


@spoiler
def all_tensors_of_another_type(model: onnx.ModelProto, rng: random.Random) -> None:
    """The whole network in integers, in half precision, or in the other precision."""
    kind = rng.choice(TYPES)
    code = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    for entry in (*model.graph.input, *model.graph.output):
        if entry.type.tensor_type.elem_type in (TensorProto.FLOAT, TensorProto.DOUBLE):
            entry.type.tensor_type.elem_type = code
    for tensor in model.graph.initializer:
        if tensor.data_type in (TensorProto.FLOAT, TensorProto.DOUBLE):
            array = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(array.astype(kind), tensor.name))


@spoiler
def tensor_of_another_shape(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = some_tensor(model, rng)
    array = numpy_helper.to_array(tensor)
    shapes = ((-1,), (1, *array.shape), (*array.shape, 1), array.shape[::-1])
    array = array[:1] if array.ndim and rng.random() < 0.3 else array.reshape(rng.choice(shapes))
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))


@spoiler
def tensor_of_other_values(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = some_tensor(model, rng)
    array = numpy_helper.to_array(tensor).copy()
    if array.dtype.kind == "f":
        value: Any = rng.choice((np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3.0))
    else:
        value = rng.choice((-(2**31), -3, -2, -1, 0, 1, 2, 2**31 - 1))
    array[(rng.randrange(array.shape[0]),) if array.ndim else ()] = value
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


@spoiler
def tensor_with_two_fields(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = some_tensor(model, rng)
    field = rng.choice(("float_data", "double_data", "int64_data", "int32_data"))
    getattr(tensor, field).extend([1] * rng.choice((1, int(np.prod(tensor.dims)))))


@spoiler
def tensor_of_another_length(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = some_tensor(model, rng)
    if rng.random() < 0.5 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] += rng.choice((-1, 1))
    else:
        tensor.raw_data = tensor.raw_data + b"\0" * rng.choice((1, 4, 8))


@spoiler
def tensor_that_lies_elsewhere(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = some_tensor(model, rng)
    tensor.data_location = rng.choice((TensorProto.EXTERNAL, TensorProto.DEFAULT))
    if rng.random() < 0.7:
        tensor.external_data.add(key="location", value="nowhere")


@spoiler
def segment(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = some_tensor(model, rng)
    tensor.segment.begin, tensor.segment.end = 0, 1


# --- nodes ---


@spoiler
def input_more(model: onnx.ModelProto, rng: random.Random) -> None:
    names = [t.name for t in model.graph.initializer] or ["x"]
    some_node(model, rng).input.append(rng.choice([*names, ""]))


@spoiler
def input_less(model: onnx.ModelProto, rng: random.Random) -> None:
    del some_node(model, rng).input[-1:]


@spoiler
def inputs_swapped(model: onnx.ModelProto, rng: random.Random) -> None:
    node = rng.choice([n for n in model.graph.node if len(n.input) > 1])
    names = list(node.input)
    rng.shuffle(names)
    node.input[:] = names


@spoiler
def output_more(model: onnx.ModelProto, rng: random.Random) -> None:
    some_node(model, rng).output.extend(rng.choice((["more"], [""], ["more", "most"])))


@spoiler
def other_operator(model: onnx.ModelProto, rng: random.Random) -> None:
    others = ("Relu", "Neg", "Add", "Sub", "Mul", "Div", "Max", "Identity", "Sigmoid", "MatMul")
    some_node(model, rng).op_type = rng.choice(others)


@spoiler
def other_domain(model: onnx.ModelProto, rng: random.Random) -> None:
    names = ("ai.onnx", "com.microsoft", "ai.onnx.ml", "com.example")
    some_node(model, rng).domain = rng.choice(names)


@spoiler
def overload(model: onnx.ModelProto, rng: random.Random) -> None:
    some_node(model, rng).overload = "other"


# --- the model ---


@spoiler
def other_opset(model: onnx.ModelProto, rng: random.Random) -> None:
    model.opset_import[0].version = rng.choice((0, 1, 5, 6, *range(7, 29)))


@spoiler
def opset_more(model: onnx.ModelProto, rng: random.Random) -> None:
    domain = rng.choice(("", "", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.example"))
    model.opset_import.add(domain=domain, version=rng.choice((1, 7, 10, 13, 18)))


@spoiler
def no_opset(model: onnx.ModelProto, rng: random.Random) -> None:
    model.opset_import[0].domain = rng.choice(("ai.onnx", "com.example", "com.microsoft"))


@spoiler
def other_ir_version(model: onnx.ModelProto, rng: random.Random) -> None:
    model.ir_version = rng.choice((0, 1, 2, 3, 4, 8, 10, 13, 14, 15))


@spoiler
def unknown_field(model: onnx.ModelProto, rng: random.Random) -> None:
    """A field with the number 999, or a value that is not one of its enumeration's."""
    place = rng.choice((model, model.graph, some_node(model, rng), some_attribute(model, rng)))
    place.MergeFromString(b"\xb8\x3e\x01" if rng.random() < 0.5 else b"\xa0\x01\x63")


@spoiler
def function_of_the_model(model: onnx.ModelProto, rng: random.Random) -> None:
    """An operator's name, defined anew inside the model."""
    node = some_node(model, rng)
    domain = rng.choice(("", "local"))
    inputs = [f"i{i}" for i in range(len(node.input))]
    body = [helper.make_node("Neg", inputs[:1], ["o"])]
    made = helper.make_function(domain, node.op_type, inputs, ["o"], body, model.opset_import)
    model.functions.append(made)
    if domain:
        model.opset_import.add(domain=domain, version=1)
        node.domain = rng.choice(("", domain))


@spoiler
def other_input_type(model: onnx.ModelProto, rng: random.Random) -> None:
    kind = rng.choice(
        (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.FLOAT16)
    )
    model.graph.input[0].type.tensor_type.elem_type = kind


@spoiler
def other_output_type(model: onnx.ModelProto, rng: random.Random) -> None:
    kind = rng.choice((TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, 0))
    model.graph.output[0].type.tensor_type.elem_type = kind


@spoiler
def other_input_shape(model: onnx.ModelProto, rng: random.Random) -> None:
    sizes = model.graph.input[0].type.tensor_type.shape.dim
    sizes[rng.randrange(len(sizes))].dim_value = rng.choice((0, 1, 1, 2, 3, 4, -1))


@spoiler
def other_input_rank(model: onnx.ModelProto, rng: random.Random) -> None:
    sizes = model.graph.input[0].type.tensor_type.shape.dim
    if rng.random() < 0.5:
        sizes.add().dim_value = 1
    else:
        del sizes[0]


@spoiler
def stated_output_shape(model: onnx.ModelProto, rng: random.Random) -> None:
    entry = model.graph.output[0]
    kind = entry.type.tensor_type.elem_type
    shape = rng.choice(([1, 2], [], [1], ["n", 3], [1, 1, 2, 2]))
    entry.CopyFrom(helper.make_tensor_value_info(entry.name, kind, shape))


@spoiler
def stated_value(model: onnx.ModelProto, rng: random.Random) -> None:
    names = ["x", *(name for n in model.graph.node for name in n.output)]
    names += [t.name for t in model.graph.initializer]
    kind = rng.choice((TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64))
    shape = rng.choice(([1, 2], [], [1], ["n", 3], [1, 1, 2, 2]))
    model.graph.value_info.append(helper.make_tensor_value_info(rng.choice(names), kind, shape))
