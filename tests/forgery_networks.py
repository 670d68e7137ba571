"""Small random networks, evaluated in exact rational arithmetic that shares nothing with prover or
checker."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Layers = list[tuple[Any, Any]]
Vector = list[Fraction]
# Activations of the hidden layers: ReLU, those with rational values, and curves.
BENT: dict[str, Callable[[Fraction], Fraction]] = {
    "relu": lambda z: max(z, Fraction(0)),
    "leaky": lambda z: z if z >= 0 else z / 4,
    "falling": lambda z: z if z >= 0 else -z / 2,
    "clip": lambda z: min(max(z, Fraction(-1)), Fraction(1)),
    "abs": abs,
}
SMOOTH: dict[str, Callable[[float], float]] = {
    "sigmoid": lambda z: 1 / (1 + math.exp(-z)),
    "tanh": math.tanh,
}
_NODES: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "relu": ("Relu", {}, []), "leaky": ("LeakyRelu", {"alpha": 0.25}, []),
    "falling": ("LeakyRelu", {"alpha": -0.5}, []), "clip": ("Clip", {}, ["least", "most"]),
    "abs": ("Abs", {}, []), "sigmoid": ("Sigmoid", {}, []), "tanh": ("Tanh", {}, []),
}  # fmt: skip


def model_of(layers: Layers, bent: Sequence[str] = ()) -> bytes:
    """A chain of Gemm with activations between, float32."""
    nodes, name = [], "x"
    stored = [
        numpy_helper.from_array(np.array(end, np.float32), n)
        for n, end in (("least", -1.0), ("most", 1.0))
        if "clip" in bent
    ]
    for k, (weight, bias) in enumerate(layers):
        stored += [
            numpy_helper.from_array(np.asarray(weight, np.float32), f"w{k}"),
            numpy_helper.from_array(np.asarray(bias, np.float32), f"b{k}"),
        ]
        nodes.append(helper.make_node("Gemm", [name, f"w{k}", f"b{k}"], [f"z{k}"], transB=1))
        name = f"z{k}"
        if k + 1 < len(layers):
            kind, options, more = _NODES[bent[k] if bent else "relu"]
            nodes.append(helper.make_node(kind, [name, *more], [f"a{k}"], **options))
            name = f"a{k}"
    sizes = [1, len(layers[0][0][0])], [1, len(layers[-1][1])]
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in zip(("x", name), sizes, strict=True)
    ]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def evaluate(layers: Layers, x: Vector, bent: Sequence[str] = ()) -> Vector:
    """The outputs, exactly (where an activation is smooth: to 12 digits)."""
    values = x
    for k, (weight, bias) in enumerate(layers):
        if k:
            name = bent[k - 1] if bent else "relu"
            if name in SMOOTH:
                values = [Fraction(SMOOTH[name](float(v))) for v in values]
            else:
                values = [BENT[name](v) for v in values]
        values = [
            Fraction(float(b))
            + sum(Fraction(float(w)) * v for w, v in zip(row, values, strict=True))
            for row, b in zip(np.asarray(weight), np.asarray(bias), strict=True)
        ]
    return values


def random_layers(rng: Any, scale: int = 4) -> Layers:
    """Weights are quarters, so that neurons meet exactly at points that floats hold."""
    inputs, outputs = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    hidden = [int(rng.integers(1, 5)) for _ in range(rng.integers(1, 4))]
    layers = []
    for fan_in, fan_out in itertools.pairwise([inputs, *hidden, outputs]):
        weight = rng.integers(-2 * scale, 2 * scale + 1, (fan_out, fan_in)) / scale
        layers.append((weight, rng.integers(-scale, scale + 1, fan_out) / scale))
    return layers


def large_layers(rng: Any) -> tuple[Layers, float]:
    """relu(w x + S) - S', with large S: what is left is small beside what was summed."""
    size = float(np.float32(rng.uniform(1, 2) * 2.0 ** int(rng.integers(10, 60))))
    width = int(rng.integers(1, 4))
    first = rng.uniform(-1, 1, (width, 1)).astype(np.float32), np.full(width, size)
    share = rng.uniform(0.25, 1, (1, width)).astype(np.float32)
    layers: Layers = [first]
    if rng.random() < 0.5:
        layers.append((np.eye(width), np.full(width, np.float32(-size / 2))))
        size /= 2
    layers.append((share, np.array([np.float32(-size * float(share.sum()))])))
    return layers, size


def points_of(lower: Any, upper: Any, rng: Any) -> Iterator[Vector]:
    """Corners, the middle, and dyadic points between."""
    ends = [(Fraction(float(a)), Fraction(float(b))) for a, b in zip(lower, upper, strict=True)]
    yield from (list(corner) for corner in itertools.product(*ends))
    for _ in range(24):
        shares = [Fraction(int(rng.integers(0, 17)), 16) for _ in ends]
        yield [a + s * (b - a) for s, (a, b) in zip(shares, ends, strict=True)]


def largest(layers: Layers, row: Vector, lower: float, upper: float) -> tuple[Fraction, Fraction]:
    """Of a network of one input: where ``row . y`` is largest on an interval, and what it is there,
    by enumeration of its linear pieces."""
    pieces = [(Fraction(lower), Fraction(upper), [(Fraction(1), Fraction(0))])]
    for k, (weight, bias) in enumerate(layers):
        found = []
        for start, end, values in pieces:
            lines = [
                (sum(Fraction(float(w)) * a for w, (a, _) in zip(r, values, strict=True)),
                 sum((Fraction(float(w)) * b for w, (_, b) in zip(r, values, strict=True)),
                     Fraction(float(shift))))
                for r, shift in zip(np.asarray(weight), np.asarray(bias), strict=True)
            ]  # fmt: skip
            zeros = {-b / a for a, b in lines if a} if k + 1 < len(layers) else set()
            cuts = sorted({start, end, *(z for z in zeros if start < z < end)})
            for one, other in itertools.pairwise(cuts) if start < end else [(start, end)]:
                middle = (one + other) / 2
                kept = [(a, b) if k + 1 == len(layers) or a * middle + b > 0 else
                        (Fraction(0), Fraction(0)) for a, b in lines]  # fmt: skip
                found.append((one, other, kept))
        pieces = found
    ends = {x for start, end, _ in pieces for x in (start, end)}
    return max(
        ((x, sum((r * v for r, v in zip(row, evaluate(layers, [x]), strict=True)), Fraction(0)))
         for x in ends), key=lambda pair: pair[1],
    )  # fmt: skip


def below(value: Fraction) -> float:
    """The largest float that is not above."""
    found = float(value)
    return found if Fraction(found) <= value else float(np.nextafter(found, -np.inf))
