"""ONNX bytes to layers: exact, and as floats with rigorous radii.

With ``a_0`` the raw input and ``a_k = f_k(z_k)``, every layer is ``z_k = bias_k + sum_j W_kj a_j``
over earlier j: the operators between activations, and a normalisation before the first, are folded
*exactly*, as integers over a denominator. For bounds, every entry is then rounded once, correctly,
to a float64. A root in a batch normalisation is rounded to float64 first, and that number is what
the network is taken to hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np

from qll.audit.composed import composed, is_composed
from qll.audit.curves import Curve, curve
from qll.audit.exact import Affine, Array, affine, diagonal, identity, over_common
from qll.audit.onnx_file import (
    ENTRYWISE,
    FLOAT,
    INT64,
    TYPES,
    Dims,
    Node,
    NotConfirmed,
    parse,
    require,
)
from qll.audit.operators import SCALED, Rounded, Value, apply, spreads, windows
from qll.audit.pace import Beyond

__all__ = ["Affine", "Array", "Network", "NotConfirmed", "read_network", "require"]

Scales: TypeAlias = tuple[float, ...] | None
TYPE_OF = {kind: code for code, (_, kind) in TYPES.items()}
MOST_WIDTH = 1 << 20


@dataclass(frozen=True, eq=False)
class Network:
    input_shape: Dims
    maps: tuple[Affine, ...]  # the last gives the outputs
    curves: tuple[Curve | None, ...]  # of the others; None is ReLU
    roundings: tuple[Rounded, ...] | None = None  # of the maps, if they are read for float32
    logits: Network | None = None  # before a last operator that keeps the order of its entries

    @cached_property
    def widths(self) -> list[int]:
        return [math.prod(self.input_shape), *map(len, self.maps)]

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Of the input and each activation in the state."""
        return tuple(int(n) for n in np.cumsum([0, *self.widths[:-1]]))

    @cached_property
    def floats(self) -> list[tuple[list[tuple[int, Array, Array]], Array]]:
        return [each.blocks(self.starts) for each in self.maps]

    @property
    def is_exact(self) -> bool:
        return all(c is None or c.exact is not None for c in self.curves)

    def exact(self, point: list[Any]) -> list[Fraction]:
        """The outputs in rational arithmetic on the stored weights."""
        # Integers over one denominator: a fraction for every neuron would be reduced every time.
        state, common = over_common(point)
        for layer, bent in zip(self.maps, (*self.curves, None), strict=True):
            values, scale = layer.at([*state, common])
            common *= scale
            if bent is None:
                more = [max(v, 0) for v in values]
            elif bent.exact is None:
                raise Beyond("an activation without exact values")
            else:
                bents = [bent.exact(Fraction(v, common)) for v in values]
                more, below = over_common(bents)
                grown = math.lcm(common, below)
                more = [v * (grown // below) for v in more]
                scale, common = scale * (grown // common), grown
            state = [v * scale for v in state] + more
        return [Fraction(v, common) for v in values]


class _Walk:
    """The state as it grows, and the values that are known by name."""

    def __init__(self, width: int) -> None:
        self.size, self.maps, self.curves = width, list[Affine](), list[Curve | None]()
        self.roundings = list[Rounded]()

    def activate(self, value: Value, bent: Curve | None) -> Value:
        self.maps.append(value.form)
        self.curves.append(bent)
        start, width = self.size, len(value.form)
        self.size += width
        require(self.size <= MOST_WIDTH, "a network that is too large")
        if value.rounded is not None:
            self.roundings.append(value.rounded)
        return entries(start, value.shape, value.rounded is not None)

    def maximum(self, value: Value, taps: Any) -> Value:
        """The largest entry of each row of places (-1 is none), as a tree of
        ``max(a, b) = a + relu(b - a)``, absent entries last. In float32 a maximum is not rounded:
        this differs from it by the errors of a and b alone."""
        taps = np.take_along_axis(taps, np.argsort(taps < 0, 1, "stable"), 1)
        while taps.shape[1] > 1:
            taps = np.pad(taps, ((0, 0), (0, taps.shape[1] % 2)), constant_values=-1)
            left, right = taps[:, ::2], taps[:, 1::2]
            paired = right >= 0
            a, b = value.moved(left[paired]), value.moved(right[paired])
            gain = self.activate(_exactly(b, a, -1), None)
            place = np.where(paired, np.cumsum(paired).reshape(paired.shape) - 1, -1)
            kept = left >= 0
            value = _exactly(value.moved(left[kept]), gain.moved(place[kept]), 1)
            taps = np.where(kept, np.cumsum(kept).reshape(kept.shape) - 1, -1)
        return value.moved(taps[:, 0])

    def extremum(self, a: Value, b: Value, sign: int) -> Value:
        """``max(a, b) = b + relu(a - b)``, ``min(a, b) = b - relu(b - a)``."""
        gap = _exactly(a, b, -1) if sign > 0 else _exactly(b, a, -1)
        return _exactly(b, self.activate(gap, None), sign)

    def leaky(self, value: Value, slope: Array) -> Value:
        """A slope for each entry: ``slope x + (1 - slope) relu(x)``."""
        require(value.rounded is None, "a PRelu of several slopes in float32")
        wide, zero = np.broadcast_to(slope, value.shape).ravel(), np.zeros(len(value.form))
        positive = self.activate(value, None).form
        under = diagonal(wide, zero, zero + 1)
        form = under.after(value.form).plus(positive, 1).plus(under.after(positive), -1)
        return value._replace(form=form)


def constant(numbers: Any, shape: Dims, in_float32: bool) -> Value:
    flat = np.broadcast_to(numbers, shape).astype(np.float64).ravel()
    form, size = (affine((), [], v.tolist()) for v in (flat, np.abs(flat)))
    none = np.zeros(len(flat))
    return Value(form, shape, Rounded(size, none, none) if in_float32 else None)


def _exactly(a: Value, b: Value, sign: int) -> Value:
    """A sum that is not rounded."""
    rounded = a.rounded and b.rounded and a.rounded.plus(b.rounded, 0)
    return Value(a.form.plus(b.form, sign), a.shape, rounded)


def entries(start: int, shape: Dims, in_float32: bool) -> Value:
    """Those of the state from ``start`` on."""
    form = identity(start, math.prod(shape))
    none = np.zeros(len(form))
    return Value(form, shape, Rounded(form, none, none) if in_float32 else None)


@lru_cache(maxsize=2)  # certificates of one folder mostly share it
def read_network(data: bytes, mean: Scales, std: Scales, in_float32: bool = False) -> Network:
    """The network of raw input, with ``(x - mean) / std`` (one number, one a channel or one an
    input) before the file's own operators; ``in_float32`` with what `qll.audit.float32` needs."""
    file = parse(data)
    dims, width = file.dims, math.prod(file.dims)
    require(width <= MOST_WIDTH, "an input that is too large")
    scales = [np.array([v] if s is None else s) for v, s in ((0.0, mean), (1.0, std))]
    fits = all(s.size in (1, dims[0], width) for s in scales)
    require(fits and (scales[1] > 0).all(), "a normalisation that does not fit")
    centre, deviation = (np.repeat(s, width // s.size) for s in scales)
    walk = _Walk(width)
    require(not in_float32 or file.type == FLOAT, "a network that is not stored in float32")
    scale, first = diagonal(np.ones(width), -centre, deviation), entries(0, (1, *dims), in_float32)
    rounded = first.rounded
    if rounded is not None and mean is not None:
        size, ones = diagonal(np.ones(width), np.abs(centre), deviation), np.ones(width)
        rounded = rounded.after(scale, SCALED, diagonal(ones, 2.0**-124 * ones, ones).after(size))
    values = {file.name: Value(scale, (1, *dims), rounded)}
    found = {n: (TYPE_OF[c.dtype.str], c.shape) for n, c in file.constants.items()}
    found[file.name] = file.type, (1, *dims)
    nodes, logits = _shares(_gates(file.nodes), file.constants), None
    read = {file.output, *(name for node in nodes for name in node.inputs)}
    require(all(node.output in read for node in nodes), "an operator whose value nobody reads")
    for node in nodes:
        require(any(name in values for name in node.inputs), f"a {node.kind} of constants")
        counted = ("Reshape", "Pad", "Slice", "ReduceMean", "ReduceSum")
        wanted = INT64 if node.kind in counted else file.type
        others = [name for name in node.inputs if name not in values]
        fine = all(
            found[name][0] == (wanted if i == 0 or node.kind == "Slice" else file.type)
            for i, name in enumerate(others)
        )
        require(fine, f"inputs of a {node.kind} that are not constants of its type")
        given = [values.get(name, file.constants.get(name)) for name in node.inputs]
        before = len(walk.maps)
        values[node.output] = _step(walk, node, given)
        taken = given[0]
        if node.output == file.output and isinstance(taken, Value) and _keeps_order(node, taken):
            maps = (*walk.maps[:before], taken.form)
            logits = Network(dims, maps, tuple(walk.curves[:before]))
        found[node.output] = file.type, values[node.output].shape
    require(file.output in values, "the output is a constant")
    for other, kind, sizes in file.stated:
        real = found.get(other, (None, ()))
        same = sizes is None or len(sizes) == len(real[1])
        same = same and all(s in (0, r) for s, r in zip(sizes or (), real[1]))
        require(same and kind == real[0], f"'{other}' is not what the file says")
    last = values[file.output]
    roundings = (*walk.roundings, last.rounded) if last.rounded is not None else None
    whole = roundings is None or len(roundings) == len(walk.maps) + 1
    require(whole and (roundings is not None) == in_float32, "an operator not counted in float32")
    return Network(dims, (*walk.maps, last.form), tuple(walk.curves), roundings, logits)


def _keeps_order(node: Node, value: Value) -> bool:
    """Whether of any two entries the larger stays the larger, strictly."""
    if node.kind == "Softmax":  # of one sum for all
        return bool(math.prod(value.shape) == value.shape[node.options.get("axis", -1)])
    return node.kind in ("Sigmoid", "Tanh", "Exp", "Softplus")


def _gates(nodes: list[Node]) -> list[Node]:
    """``x * sigmoid(x)`` is SiLU, which has no operator of its own in most opsets."""
    made = {node.output: node for node in nodes}
    done, gates = list[Node](), set[str]()
    for node in nodes:
        if node.kind == "Mul":
            for value, share in (node.inputs, node.inputs[::-1]):
                gate = made.get(share)
                if gate is not None and gate.kind == "Sigmoid" and gate.inputs == [value]:
                    node = replace(node, kind="Silu", inputs=[value])
                    gates.add(share)
                    break
        done.append(node)
    return _read(done, gates)


def _shares(nodes: list[Node], constants: dict[str, Any]) -> list[Node]:
    """Exponentials over their sum are a softmax, written out."""
    made = {node.output: node for node in nodes}
    done, parts = list[Node](), set[str]()
    for node in nodes:
        grown, total = map(made.get, node.inputs) if node.kind == "Div" else (None, None)
        if grown and total and (grown.kind, total.kind) == ("Exp", "ReduceSum"):
            own, *rest = total.inputs
            axes = constants.get(rest[0]) if rest else np.array(total.options["axes"])
            fits = own == grown.output and total.options.get("keepdims", 1) == 1
            if fits and axes is not None and axes.dtype == np.int64 and axes.size == 1:
                parts.update(node.inputs)
                node = Node("Softmax", grown.inputs, node.output, {"axis": int(axes.ravel()[0])})
        done.append(node)
    return _read(done, parts)


def _read(nodes: list[Node], parts: set[str]) -> list[Node]:
    """Without those of the ``parts`` that nobody reads any more, the last first."""
    for node in reversed(nodes):
        if node.output in parts and not any(node.output in other.inputs for other in nodes):
            nodes = [other for other in nodes if other is not node]
    return nodes


def _step(walk: _Walk, node: Node, given: list[Any]) -> Value:
    kind, options, value = node.kind, node.options, given[0]
    if is_composed(node, given):
        return composed(walk, node, given)
    if kind in ("Max", "Min"):
        return _extrema(walk, given, 1 if kind == "Max" else -1)
    if kind not in {*ENTRYWISE, "Silu", "Relu", "LeakyRelu", "PRelu", "Clip", "MaxPool"}:
        return apply(kind, given, options)
    require(isinstance(value, Value), f"a constant that goes through {kind}")
    if kind == "MaxPool":
        taps, shape = windows(value.shape, options)
        return walk.maximum(value, taps)._replace(shape=shape)
    bent = None
    if kind == "PRelu":
        require(spreads(given[1].shape, value.shape), "a slope that does not fit")
        require(np.isfinite(given[1]).all(), "a slope that is no number")
        if given[1].size > 1:
            return walk.leaky(value, given[1].astype(np.float64))
        bent = curve("leaky-relu", float(given[1].reshape(())))
    elif kind == "LeakyRelu":
        bent = curve("leaky-relu", options.get("alpha", float(np.float32(0.01))))
    elif kind == "Clip":
        ends = [float(c.reshape(())) for c in given[1:]]
        lower, upper = (*ends, -math.inf, math.inf)[:2] if len(ends) != 1 else (ends[0], math.inf)
        bent = curve("clip", lower, upper)
    elif kind != "Relu":
        require(options.get("approximate", b"none") == b"none", "an approximated activation")
        bent = curve(kind.lower())
    return walk.activate(value, bent)


def _extrema(walk: _Walk, given: list[Any], sign: int) -> Value:
    """One operand after the other, as broadcast as all before it."""
    (some, *_) = (g for g in given if isinstance(g, Value))
    result, shape = given[0], given[0].shape
    for other in given[1:]:
        shape = shape if spreads(other.shape, shape) else other.shape
        require(all(spreads(v.shape, shape) for v in (result, other)), "an extremum of no fit")
        a, b = (
            v.moved(np.broadcast_to(v.places, shape))
            if isinstance(v, Value)
            else constant(v, shape, some.rounded is not None)
            for v in (result, other)
        )
        result = walk.extremum(a, b, sign)
    if not isinstance(result, Value) or shape[0] != 1:
        raise NotConfirmed("an extremum of this form")
    return result
