"""One step of a random graph for each operator: takes a value, adds nodes, gives the new value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import onnx
from graph_cases import LARGEST, Maker, Shape, reduce, take_slice
from graph_mutations import spoil
from graph_products import fitting, layer_norm, matrices, power, product, quotient, softmax
from onnx import TensorProto, helper, numpy_helper

Step: TypeAlias = Callable[[Maker, str, Shape], str | None]


def flat(m: Maker, x: str, shape: Shape) -> tuple[str, int]:
    """The value as a matrix (1, n)."""
    if len(shape) == 2 and shape[0] == 1:
        return x, shape[1]
    if m.chance(0.7) and len(shape) >= 2 and shape[0] == 1:
        return m.add("Flatten", [x], axis=m.pick(None, 1)), math.prod(shape)
    return m.add("Reshape", [x, m.ints(1, m.pick(-1, math.prod(shape)))]), math.prod(shape)


def arithmetic(m: Maker, x: str, shape: Shape) -> str | None:
    kind = m.pick("Add", "Sub", "Mul", "Div")
    wanted = fitting(m, shape)
    array = m.divisors(*wanted) if kind == "Div" else m.numbers(*wanted)
    pair = [x, m.constant(array)]
    if m.chance(0.3) and (kind != "Div" or m.odd()):
        pair.reverse()
    return m.add(kind, pair)


def two_values(m: Maker, x: str, shape: Shape) -> str | None:
    others = [v for v in m.values if m.shape(v) is not None and len(m.shape(v) or ()) == len(shape)]
    same = [v for v in others if m.shape(v) == shape] or [x]
    other = m.rng.choice(others if m.chance(0.2) else same)
    pair = [x, other]
    m.rng.shuffle(pair)
    kind = m.pick("Add", "Add", "Sub", "Sum", "Max", "Min", "Mul")
    if kind in ("Sum", "Max", "Min") and m.chance(0.4):
        third = shape if m.opset < 8 and not m.odd() else fitting(m, shape)
        pair.append(m.constant(m.numbers(*third)))
    return m.add(kind, pair)


def extremum(m: Maker, x: str, shape: Shape) -> str | None:
    wanted = shape if m.opset < 8 and not m.odd() else fitting(m, shape)
    operands = [x, m.constant(m.numbers(*wanted))][: m.pick(1, 2, 2, 2)]
    m.rng.shuffle(operands)
    return m.add(m.pick("Max", "Min", "Sum"), operands)


def matmul(m: Maker, x: str, shape: Shape) -> str | None:
    if not shape:
        return None
    if m.chance(0.25) and len(shape) > 1 and not m.chain:
        weight = m.numbers(m.rng.randint(1, 4), shape[-2])
        return m.add("MatMul", [m.constant(weight), x])
    rows = shape[-1] + m.odd()
    weight = m.numbers(*m.pick((rows, m.rng.randint(1, 5)), (rows, m.rng.randint(1, 5))))
    if m.odd():
        weight = weight.reshape(m.pick((-1,), (1, *weight.shape)))
    return m.add("MatMul", [x, m.constant(weight)])


def gemm(m: Maker, x: str, shape: Shape) -> str | None:
    x, width = (x, shape[-1]) if m.odd() and shape else flat(m, x, shape)
    out = width if m.chance(0.25) else m.rng.randint(1, 5)
    turned = m.chance(0.5)
    weight = m.numbers(*((out, width) if turned else (width, out)))
    inputs = [x, m.constant(weight)]
    if m.opset < 11 or m.chance(0.7):
        bias = m.pick((out,), (out,), (out,), (1, out), (1,), (), (1, 1), (1, 1, out))
        inputs.append(m.constant(m.numbers(*bias)))
    elif m.chance(0.1):
        inputs.append("")
    attributes: dict[str, Any] = {"transB": 1 if turned else m.pick(None, 0)}
    if not m.chain or m.chance(0.1):
        attributes["alpha"] = m.pick(None, 1.0, 0.5, 2.0)
        attributes["beta"] = m.pick(None, 1.0, 0.25, 0.0)
    if m.chance(0.15):
        attributes["transA"] = 0
    elif m.chance(0.1):
        inputs[0], attributes["transA"] = m.add("Transpose", [inputs[0]]), 1
    return m.add("Gemm", inputs, **attributes)


def images(m: Maker, x: str, shape: Shape) -> tuple[str, Shape] | None:
    """A value with channels and one to three spatial axes."""
    if 3 <= len(shape) <= 5 and shape[0] == 1:
        return x, shape
    if m.chain:
        return None
    size = math.prod(shape)
    width = next(w for w in (4, 3, 2, 1) if size % w == 0)
    target = m.pick((1, 1, size), (1, 1, size // width, width), (1, width, size // width))
    return m.add("Reshape", [x, m.ints(*target)]), target


def window(m: Maker, rank: int, *, dilate: bool, auto: bool = True) -> dict[str, Any]:
    given: dict[str, Any] = {
        "kernel_shape": [m.rng.randint(1, 3) for _ in range(rank)],
        "strides": [m.rng.randint(1, 3) for _ in range(rank)] if m.chance(0.6) else None,
        "dilations": [m.rng.randint(1, 2) for _ in range(rank)] if dilate else None,
        "pads": None,
        "auto_pad": None,
    }
    if auto and m.chance(0.35):
        given["auto_pad"] = m.pick("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER", "SAME_UPPER")
    if (given["auto_pad"] is None and m.chance(0.6)) or m.odd():
        given["pads"] = [m.rng.randint(0, 2) for _ in range(2 * rank)]
    return given


def convolution(m: Maker, x: str, shape: Shape) -> str | None:
    found = images(m, x, shape)
    if found is None:
        return None
    x, shape = found
    rank, channels = len(shape) - 2, shape[1]
    plain = m.chain and m.chance(0.5)
    given = window(m, rank, dilate=m.chance(0.3) and not plain, auto=not plain)
    group = 1 if plain else m.rng.choice([g for g in (1, 1, 2, 3) if channels % g == 0])
    # Eight channels: ONNX Runtime has kernels of their own for blocks of them.
    out = group * (8 if m.chance(0.1) else m.rng.randint(1, 3))
    taken = channels // group + m.odd()
    inputs = [x, m.constant(m.numbers(out, taken, *given["kernel_shape"]))]
    if m.chance(0.6):
        inputs.append(m.constant(m.numbers(1 if m.odd() else out)))
    if m.chance(0.4):
        given["kernel_shape"] = None
    return m.add("Conv", inputs, **given, group=group if group > 1 or m.chance(0.3) else None)


def pool(m: Maker, x: str, shape: Shape) -> str | None:
    found = images(m, x, shape)
    if found is None:
        return None
    x, shape = found
    kind = m.pick("MaxPool", "AveragePool")
    since = {"MaxPool": 10, "AveragePool": 19}[kind]
    dilate = m.chance(0.3) and (m.opset >= since or m.odd())
    given = window(m, len(shape) - 2, dilate=dilate)
    if m.opset >= 10 or m.odd():
        given["ceil_mode"] = m.pick(None, 0, 1, 1)
    if kind == "AveragePool":
        given["count_include_pad"] = m.pick(None, 0, 1)
    elif m.opset >= 8:
        given["storage_order"] = m.pick(None, None, None, 0, 1)
    if given["pads"] is not None and not m.odd():  # less than the kernel, as ONNX Runtime wants
        pairs = zip(given["pads"], given["kernel_shape"] * 2, strict=True)
        given["pads"] = [min(before, size - 1) for before, size in pairs]
    output = m.add(kind, [x], **given)
    if kind == "MaxPool" and m.opset >= 8 and m.chance(0.05):
        m.nodes[-1].output.append(m.name())
    return output


def global_pool(m: Maker, x: str, shape: Shape) -> str | None:
    if len(shape) < 3 and not m.odd():
        return None
    return m.add(m.pick("GlobalAveragePool", "GlobalMaxPool"), [x])


def reduction(m: Maker, x: str, shape: Shape) -> str | None:
    kind = m.pick("ReduceMean", "ReduceSum")
    rank = len(shape)
    count = m.rng.randint(0, rank)
    axes = m.rng.sample(range(rank), count)
    if m.opset >= 11 or m.odd():
        axes = [axis - rank if m.chance(0.3) else axis for axis in axes]
    if m.odd():
        axes.append(m.pick(rank, *axes))
    output = reduce(m, kind, x, None if m.chance(0.1) else axes, m.pick(None, 0, 1))
    if m.opset >= (13 if kind == "ReduceSum" else 18) and (not axes or m.chance(0.1)):
        m.nodes[-1].attribute.append(helper.make_attribute("noop_with_empty_axes", m.pick(0, 1)))
    return output


def batch_norm(m: Maker, x: str, shape: Shape) -> str | None:
    if len(shape) < 2 and not m.odd():
        return None
    channels = shape[1] if len(shape) > 1 else 1
    plain = m.chain and m.chance(0.8)
    variance = np.array([1 if plain else m.pick(1, 0.25, 4, 3) for _ in range(channels)])
    parts = [m.numbers(channels) for _ in range(3)]
    tensors = [m.constant(part) for part in (*parts, variance.astype(m.dtype))]
    given: dict[str, Any] = {"epsilon": 0.0 if plain else m.pick(None, 0.0, 1e-3)}
    given["momentum"] = m.pick(None, None, 0.5)
    if m.opset >= 14 and m.chance(0.2):
        given["training_mode"] = m.pick(0, 0, 1)
    if m.opset < 9 and m.chance(0.4):
        given["spatial"] = m.pick(1, 0)
    return m.add("BatchNormalization", [x, *tensors], **given)


def relu(m: Maker, x: str, shape: Shape) -> str | None:
    return m.add("Relu", [x])


def leaky_relu(m: Maker, x: str, shape: Shape) -> str | None:
    if m.chance(0.5):
        return m.add("LeakyRelu", [x], alpha=m.pick(None, 0.25, 0.125, -0.5))
    return m.add("PRelu", [x, m.constant(m.numbers(*fitting(m, shape)))])


def clip(m: Maker, x: str, shape: Shape) -> str | None:
    low, high = sorted((m.rng.randint(-6, 6) / 4, m.rng.randint(-6, 12) / 4))
    if m.odd():
        low, high = m.pick((high, low), (math.inf, math.inf), (-math.inf, math.inf), (math.nan, 1))
    if m.opset < 11:
        return m.add("Clip", [x], min=m.pick(None, low, low), max=m.pick(None, high, high))
    ends: list[str] = []
    for end in (low, high):
        array = np.array(end, dtype=m.dtype).reshape((1,) if m.odd() else ())
        ends.append(m.constant(array) if m.chance(0.8) else "")
    return m.add("Clip", [x, *ends][: m.pick(2, 3, 3)])


def pad(m: Maker, x: str, shape: Shape) -> str | None:
    rank, low = len(shape), -1 if m.chance(0.3) else 0
    places, axes = list(range(rank)), None
    if m.opset >= 18 and m.chance(0.4):
        axes = m.rng.sample(places, m.rng.randint(1, rank)) if rank else None
        axes = axes and [axis - rank if m.chance(0.3) else axis for axis in axes]
        places = axes or places
    pads = [m.rng.randint(low, 2) if places[i % len(places)] else 0 for i in range(2 * len(places))]
    mode = m.pick("reflect", "edge") if m.chance(0.1) else m.pick(None, "constant")
    if m.opset < 11:
        return m.add("Pad", [x], pads=pads, mode=mode, value=m.pick(None, 0.0, 1.5))
    inputs = [x, m.ints(*pads)]
    if m.chance(0.5) or axes:
        fill = m.numbers(*((1,) if m.odd() else ()))
        inputs.append("" if m.chance(0.3) else m.constant(fill))
    if axes:
        inputs.append(m.ints(*axes))
    return m.add("Pad", inputs, mode=mode)


def cut(m: Maker, x: str, shape: Shape) -> str | None:
    count = m.rng.randint(1, len(shape)) if shape else 0
    axes = m.rng.sample(range(len(shape)), count)
    starts, ends, steps = [], [], []
    for axis in axes:
        step = m.pick(1, 1, 1, 2, -1, -2) if m.opset >= 10 else 1
        size = shape[axis]
        low, high = m.rng.randint(0, size - 1), m.pick(size, 2**62, m.rng.randint(-2, size + 3))
        ends.append(high if step > 0 else m.pick(-(2**62), -size - 1, low - 1))
        starts.append((low if m.chance(0.8) else low - size) if step > 0 else m.pick(-1, 2**62))
        steps.append(step)
    if m.odd():
        starts = [m.pick(-100, 100, start) for start in starts]
    if m.opset >= 11 or m.odd():
        axes = [axis - len(shape) if m.chance(0.2) else axis for axis in axes]
    if m.odd() and axes:
        axes[-1] = m.pick(axes[0], len(shape))
    whole = sorted(axes) == list(range(len(shape))) and axes == sorted(axes)
    plain = all(step == 1 for step in steps)
    return take_slice(
        m, x, starts, ends, None if whole and plain and m.chance(0.5) else axes,
        None if plain and m.chance(0.5) else steps,
    )  # fmt: skip


def transpose(m: Maker, x: str, shape: Shape) -> str | None:
    order = list(range(len(shape)))
    m.rng.shuffle(order)
    if m.odd() and order:
        order[0] = m.pick(-1, order[-1], len(shape))
    return m.add("Transpose", [x], perm=None if m.chance(0.2) else order)


def reshape(m: Maker, x: str, shape: Shape) -> str | None:
    size = math.prod(shape)
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    first = m.rng.choice(divisors)
    target = [1, first, size // first][0 if m.chain or m.chance(0.7) else 1 :]
    if m.chance(0.3):
        target[m.rng.randrange(len(target))] = -1
    place = m.rng.randrange(len(target))
    if m.chance(0.6) and place < len(shape) and target[place] == shape[place]:
        target[place] = 0
    if m.odd():
        target[m.rng.randrange(len(target))] = m.pick(-1, 0, -2, 5)
    zero = m.pick(None, 0, 1) if m.opset >= 14 and (0 in target or m.chance(0.2)) else None
    return m.add("Reshape", [x, m.ints(*target)], allowzero=zero)


def by_shape(m: Maker, x: str, shape: Shape) -> str | None:
    """The way torch exports ``x.view(x.shape[0], -1)``."""
    sizes = m.add("Shape", [x])
    if m.opset >= 15 and m.chance(0.3):
        m.nodes[-1].attribute.append(helper.make_attribute("start", 0))
        m.nodes[-1].attribute.append(helper.make_attribute("end", m.pick(1, 2, len(shape))))
    lead = m.add("Gather", [sizes, m.stored(np.array(0, dtype=np.int64))], axis=0)
    if m.opset < 13:
        lead = m.add("Unsqueeze", [lead], axes=[0])
    else:
        lead = m.add("Unsqueeze", [lead, m.ints(0)])
    return m.add("Reshape", [x, m.add("Concat", [lead, m.ints(-1)], axis=0)])


def flatten(m: Maker, x: str, shape: Shape) -> str | None:
    usual = m.chain and m.chance(0.8)
    axis = m.pick(None, 1) if usual else m.pick(None, 0, 1, 2, len(shape), -1)
    if axis is not None and axis < 0 and m.opset < 11 and not m.odd():
        axis = 1
    return m.add("Flatten", [x], axis=axis)


def squeeze(m: Maker, x: str, shape: Shape) -> str | None:
    rank = len(shape)
    ones = [i for i, size in enumerate(shape) if size == 1]
    if ones and m.chance(0.6):
        axes = m.rng.sample(ones, m.rng.randint(not m.odd(), len(ones)))
        if m.odd():
            axes.append(m.rng.randint(-rank, rank))
        if m.chance(0.2):
            return m.add("Squeeze", [x])
        kind = "Squeeze"
    else:
        axes, kind = m.rng.sample(range(rank + 1), m.pick(0, 1, 1)), "Unsqueeze"
        rank += len(axes)
    if m.opset >= 11 or m.odd():
        axes = [axis - rank if m.chance(0.3) else axis for axis in axes]
    if m.opset < 13:
        return m.add(kind, [x], axes=axes)
    return m.add(kind, [x, m.ints(*axes)])


def concat(m: Maker, x: str, shape: Shape) -> str | None:
    if not shape:
        return None
    axis = m.rng.randrange(len(shape))
    wanted = (*shape[:axis], m.rng.randint(1, 3), *shape[axis + 1 :])
    others = [v for v in m.values if m.shape(v) == shape] or [x]
    parts = [x, m.pick(m.constant(m.numbers(*wanted)), m.rng.choice(others))]
    m.rng.shuffle(parts)
    if m.opset >= 11 or m.odd():
        axis = axis - len(shape) if m.chance(0.3) else axis
    return m.add("Concat", parts[: m.pick(1, 2, 2, 2)], axis=axis)


def bend(m: Maker, x: str, shape: Shape) -> str | None:
    kinds = ["Sigmoid", "Tanh", "Exp", "Abs", "Softplus", "Neg"]
    kinds += ["HardSwish"] * 3 if m.opset >= 14 or m.odd() else []
    kind = m.rng.choice([*kinds, *["Gelu"] * 12] if m.opset >= 20 or m.odd() else kinds)
    if kind == "Gelu":
        return m.add("Gelu", [x], approximate=m.pick(None, None, None, "none", "none", "tanh"))
    found = m.add(kind, [x])
    if kind == "Sigmoid" and m.chance(0.4):  # SiLU, or nearly
        pair = [x if not m.odd() else found, found]
        m.rng.shuffle(pair)
        return m.add("Mul", pair)
    return found


def nothing(m: Maker, x: str, shape: Shape) -> str | None:
    kind = "Identity" if m.chain else m.pick("Identity", "Dropout", "Cast", "Neg")
    if kind == "Cast":
        return m.add("Cast", [x], to=TensorProto.FLOAT if m.dtype == "float32" else 11)
    if kind != "Dropout":
        return m.add(kind, [x])
    if m.opset < 12:
        return m.add("Dropout", [x], ratio=m.pick(None, 0.5))
    inputs = [x, m.constant(np.array(0.25, dtype=np.float32)), m.stored(np.array(m.odd()))]
    output = m.add("Dropout", inputs[: m.pick(1, 2, 3)])
    if m.chance(0.1):
        m.nodes[-1].output.append(m.name())
    return output


def filling(m: Maker, x: str, shape: Shape) -> str | None:
    """One number for every entry, or the zero that is meant by none."""
    if m.opset < 9 and not m.odd():
        return None
    value = None if m.chance(0.2) else numpy_helper.from_array(m.numbers(1))
    sizes = m.ints(*(size if m.chance(0.8) else 1 for size in shape))
    return m.add("Add", [x, m.add("ConstantOfShape", [sizes], value=value)])


def integers_to_floats(m: Maker, x: str, shape: Shape) -> str | None:
    """An integer computed from constants that becomes a number of the network."""
    kind = np.int32 if m.chance(0.3) else np.int64
    array = np.array([m.rng.randint(-5, 5) for _ in range(shape[-1] if shape else 1)], dtype=kind)
    to = TensorProto.FLOAT if m.dtype == "float32" else TensorProto.DOUBLE
    return m.add("Add", [x, m.add("Cast", [m.constant(array)], to=to)])


def sizes_to_floats(m: Maker, x: str, shape: Shape) -> str | None:
    """The sizes of a value, some of them, as numbers of the network."""
    sizes = m.add("Shape", [x])
    if m.opset >= 15:
        ends = {"start": m.pick(None, 1, -1, -9), "end": m.pick(None, None, 1, -1, 9)}
        given = [helper.make_attribute(k, v) for k, v in ends.items() if v is not None]
        m.nodes[-1].attribute.extend(given)
    to = TensorProto.FLOAT if m.dtype == "float32" else TensorProto.DOUBLE
    flat_sizes = m.add("Reshape", [m.add("Cast", [sizes], to=to), m.ints(1, -1)])
    return m.add("Concat", [flat(m, x, shape)[0], flat_sizes], axis=1)


CHAIN: tuple[Step, ...] = (
    arithmetic, arithmetic, matmul, gemm, gemm, convolution, convolution, relu, relu, relu, flatten,
    reshape, batch_norm, nothing, bend, bend, leaky_relu, clip, pool, global_pool, transpose, pad,
    concat, two_values, product, matrices, quotient, softmax, layer_norm, reduction, power,
)  # fmt: skip
ANY: tuple[Step, ...] = (
    arithmetic, two_values, extremum, matmul, gemm, convolution, pool, pool, pool, pool,
    global_pool, reduction, reduction, batch_norm, relu, leaky_relu, clip, bend, bend, pad, cut,
    cut, transpose, reshape, by_shape, flatten, squeeze, squeeze, concat, nothing, nothing,
    integers_to_floats, sizes_to_floats, filling, product, matrices, quotient, softmax,
    layer_norm, power,
)  # fmt: skip


def random_model(seed: int, *, spoiled: bool = True) -> onnx.ModelProto:
    """Half are chains of what the checker reads; four of ten are spoiled in one way or two."""
    chain = seed % 2 == 0
    m = Maker(seed, chain=chain)
    for _ in range(m.pick(1, 1, 2, 2, 3, 3, 4, 5, 6, 7)):
        if not take_step(m, m.rng.choice(CHAIN if chain else ANY)):
            break
    built = finished(m)
    if spoiled and m.chance(0.4):
        spoil(built, m.rng)
    return built


def one_step_model(seed: int) -> onnx.ModelProto:
    """One operator, each in turn, not spoiled."""
    chain = tuple(dict.fromkeys(CHAIN))
    steps = (*chain, *ANY)
    m = Maker(seed, chain=seed % len(steps) < len(chain))
    take_step(m, steps[seed % len(steps)])
    return finished(m)


def take_step(m: Maker, step: Step) -> bool:
    x = m.values[-1] if m.chain or m.chance(0.8) else m.rng.choice(m.values)
    if not m.chain and m.chance(0.03):
        x = m.constant(m.numbers(*(m.shape(x) or (1, 2))))
    shape = m.shape(x)
    if shape is None:
        return False
    found = step(m, x, shape)
    if found is None:
        return True
    m.values.append(found)
    after = m.shape(found)
    return after is not None and math.prod(after) <= LARGEST


def finished(m: Maker) -> onnx.ModelProto:
    if m.values[-1] == "x":
        m.values.append(m.add("Identity", ["x"]))
    open_batch = m.input_shape[0] == 1 and len(m.input_shape) > 1 and m.chance(0.4)
    return m.model(m.values[-1], batch="batch" if open_batch else 1)
