"""Every logic once more, in plain Python floats, by recursion over the formula as written.

No grounding, no templates, no masks, no flattening, no torch: what the library computes with
tables must agree with this. Constants are symbolic (TOP, BOTTOM), because they are worked in
before any reading; QLL and the Boolean reading are on the extended reals throughout, with
negation as a change of sign, not pushed inward.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from qll.formula.hard import Affine, HardForm, Max, Min
from qll.formula.nodes import (
    Compare,
    Connective,
    Constant,
    Divide,
    Entry,
    Formula,
    FormulaReference,
    Implies,
    Index,
    IndexCondition,
    IndexSet,
    Label,
    Not,
    Number,
    Parameter,
    Quantified,
    Quantity,
    QuantityReference,
    Scale,
    Specification,
    Sum,
)

TOP, BOTTOM = "top", "bottom"
Env = Mapping[str, int]
Degree = float | str  # a number, or TOP or BOTTOM


@dataclass(frozen=True)
class Point:
    """One data point: named vectors (inputs flat) and its set of true labels."""

    vectors: Mapping[str, Sequence[float]]
    labels: frozenset[int] = frozenset()


@dataclass
class Naive:
    specification: Specification
    values: Mapping[str, float]  # parameters as the formula sees them
    point: Point
    input_shape: tuple[int, ...] = (1,)
    sets: dict[str, IndexSet] = field(init=False)

    def __post_init__(self) -> None:
        self.sets = {s.name: s.domain for s in self.specification.sets}
        self.definitions = {d.name: d for d in self.specification.definitions}

    # --- quantities and indices ---

    def named(self, name: str, kind: str | None = None) -> int:
        """The place of ``name`` in its declaration; of two, that of the outputs."""
        lists = [d.names for d in self.specification.names if kind in (None, d.kind)]
        return next(names.index(name) for names in lists if name in names)

    def index(self, index: Index, env: Env, kind: str | None = None) -> int:
        if index.quoted is not None:
            return self.named(index.quoted, kind)
        return index.offset + (0 if index.name is None else env[index.name])

    def quantity(self, q: Quantity, env: Env) -> float:
        match q:
            case Number(value):
                return value
            case Parameter(name):
                return self.values[name]
            case Entry(source, indices):
                kind = "inputs" if source[0] == "x" else "outputs"
                at = [self.index(i, env, kind) for i in indices]
                if len(at) == 1:
                    return self.point.vectors[source][at[0]]
                flat = 0
                for i, size in zip(at, self.input_shape, strict=True):
                    flat = flat * size + i
                return self.point.vectors[source][flat]
            case Sum(parts):
                return sum(self.quantity(part, env) for part in parts)
            case Scale(factor, body):
                return self.quantity(factor, env) * self.quantity(body, env)
            case Divide(body, divisor):
                return self.quantity(body, env) / divisor
            case QuantityReference(name, arguments):
                return self.quantity(self.definitions[name].body, self.call(name, arguments, env))
        raise TypeError(q)

    def call(self, name: str, arguments: Sequence[Index], env: Env) -> Env:
        values = [self.index(a, env) for a in arguments]
        return dict(zip(self.definitions[name].arguments, values, strict=True))

    def items(self, domain: IndexSet) -> list[tuple[int, ...]]:
        if domain.name is None:
            return [
                tuple(m if isinstance(m, int) else self.named(m) for m in item)
                for item in domain.items
            ]
        if domain.name == "outputs":
            return [(i,) for i in range(len(self.point.vectors["y"]))]
        if domain.name == "inputs":
            return [(i,) for i in range(math.prod(self.input_shape))]
        return self.items(self.sets[domain.name])

    def bindings(self, node: Quantified, env: Env) -> list[Env]:
        found = []
        for items in itertools.product(*(self.items(b.domain) for b in node.binders)):
            inner = dict(env)
            for binder, item in zip(node.binders, items, strict=True):
                inner.update(zip(binder.names, item, strict=True))
            if all(self.accepts(c, inner) for c in node.conditions):
                found.append(inner)
        return found

    def accepts(self, condition: IndexCondition, env: Env) -> bool:
        left = self.index(condition.left, env)
        if isinstance(condition.right, IndexSet):
            return ((left,) in self.items(condition.right)) == (condition.operator == "in")
        right = self.index(condition.right, env)
        return {
            "==": left == right, "!=": left != right, "<": left < right,
            "<=": left <= right, ">": left > right, ">=": left >= right,
        }[condition.operator]  # fmt: skip


# --- QLL and the Boolean reading: the extended reals ----------------------------------------------


def lse(xs: Sequence[float], p: float) -> float:
    """``(1/p) log sum e^(p x)`` on the extended reals."""
    peak = max(xs)
    if math.isinf(peak) or math.isinf(p):
        return peak
    return peak + math.log(sum(math.exp(p * (x - peak)) for x in xs)) / p


def plus(xs: Sequence[float]) -> float:
    """The paper's tensor: ``-inf + inf = +inf``."""
    return math.inf if math.inf in xs else sum(xs)


def qll_value(
    naive: Naive, formula: Formula, p: float, *, hard: bool = False, comparison: str = "difference"
) -> float:
    """``hard`` sets every hardness to infinity, annotated ones too."""

    def gap(a: float, b: float) -> float:
        d = a - b
        if comparison == "difference" or math.isinf(d):  # a side of infinity is no question
            return d
        if comparison == "relu" or hard or math.isinf(p):
            return max(d, 0.0)
        return lse([0.0, d], p)

    unit = gap(0.0, 0.0)  # the comparison 0 <= 0: not quite 0 through softplus

    def connect(kind: str, values: list[float], hardness: float | None) -> float:
        q = math.inf if hard else (p if hardness is None else hardness)
        match kind:
            case "and":
                return lse(values, q) if values else -math.inf
            case "or":
                return -lse([-v for v in values], q) if values else math.inf
            case "tensor":
                return plus(values)
            case _:
                return -plus([-v for v in values])

    # `flipped`: under an odd number of negations, where a label is top or bottom. There a
    # comparison stands for its opposite, which matters for ReLU and softplus only.
    def visit(node: Formula, env: Env, flipped: bool) -> float:
        match node:
            case Compare(operator, left, right):
                a, b = naive.quantity(left, env), naive.quantity(right, env)
                if operator == "==":
                    return connect("and", [gap(a, b), gap(b, a)], None)
                if operator.startswith(">"):
                    a, b = b, a
                return -gap(b, a) if flipped else gap(a, b)
            case Constant("unit") if flipped:
                return -unit
            case Constant(kind):
                return {"top": -math.inf, "bottom": math.inf, "unit": unit}[kind]
            case Label(at):
                true = naive.index(at, env) in naive.point.labels
                return (-math.inf if flipped else unit) if true else math.inf
            case Not(body):
                return negated(body, env, flipped)
            case Connective(kind, parts, hardness):
                return connect(kind, [visit(part, env, flipped) for part in parts], hardness)
            case Quantified(kind, _, body, _, hardness):
                values = [visit(body, inner, flipped) for inner in naive.bindings(node, env)]
                return connect("and" if kind == "forall" else "or", values, hardness)
            case Implies("material", left, right):
                truth = crisp(naive, left, env)
                if truth is not None:  # as a premise labels are top or bottom
                    return visit(right, env, flipped) if truth else -math.inf
                return connect(
                    "or", [negated(left, env, flipped), visit(right, env, flipped)], None
                )
            case Implies(_, left, right):
                truth = crisp(naive, left, env)
                if truth is not None:
                    return visit(right, env, flipped) if truth else -math.inf
                if flipped:  # as seen from outside the negation: right -o left
                    return -degrees(right, left, env)
                return degrees(left, right, env)
            case FormulaReference(name, arguments):
                body = naive.definitions[name].body
                return visit(body, naive.call(name, arguments, env), flipped)
        raise TypeError(node)

    def negated(body: Formula, env: Env, flipped: bool) -> float:
        return -visit(body, env, not flipped)

    def degrees(left: Formula, right: Formula, env: Env) -> float:
        """``left -o right``: ``(not left) +* right``; labels as a premise are the usual 'if'."""
        truth = crisp(naive, left, env)
        if truth is not None:
            return visit(right, env, False) if truth else -math.inf
        return -plus([visit(left, env, False), -visit(right, env, False)])

    return visit(formula, {}, False)


def crisp(naive: Naive, node: Formula, env: Env) -> bool | None:
    """The truth of a label or a negated label, None for everything else."""
    match node:
        case Label(at):
            return naive.index(at, env) in naive.point.labels
        case Not(body):
            inner = crisp(naive, body, env)
            return None if inner is None else not inner
    return None


# --- the other logics: negation pushed to the comparisons -----------------------------------------


def sigmoid(v: float) -> float:
    return 1 / (1 + math.exp(-v)) if v >= 0 else math.exp(v) / (1 + math.exp(v))


class Operations:
    """Connectives on lists of numbers; ``leq`` on quantities; ``unit``, ``top``, ``bottom``."""

    top, bottom, unit = 1.0, 0.0, 1.0

    def leq(self, a: float, b: float) -> float:
        return self.implies(sigmoid(a), sigmoid(b))

    def conj(self, xs: list[float], hardness: float | None) -> float:
        raise NotImplementedError

    def disj(self, xs: list[float], hardness: float | None) -> float:
        raise NotImplementedError

    def implies(self, a: float, b: float) -> float:
        raise NotImplementedError

    def loss(self, value: float) -> float:
        return 1 - value


class Goedel(Operations):
    def conj(self, xs: list[float], hardness: float | None) -> float:
        return min(xs)

    def disj(self, xs: list[float], hardness: float | None) -> float:
        return max(xs)

    def implies(self, a: float, b: float) -> float:
        return 1.0 if a <= b else b


class Lukasiewicz(Operations):
    def conj(self, xs: list[float], hardness: float | None) -> float:
        return max(0.0, sum(xs) - (len(xs) - 1))

    def disj(self, xs: list[float], hardness: float | None) -> float:
        return min(1.0, sum(xs))

    def implies(self, a: float, b: float) -> float:
        return min(1.0, 1 - a + b)


class Product(Operations):
    def conj(self, xs: list[float], hardness: float | None) -> float:
        return math.prod(xs)

    def disj(self, xs: list[float], hardness: float | None) -> float:
        total = xs[0]
        for v in xs[1:]:
            total = total + v - total * v
        return total

    def implies(self, a: float, b: float) -> float:
        return 1.0 if a <= b else b / a


class Yager(Operations):
    def __init__(self, r: float) -> None:
        self.r = r

    def conj(self, xs: list[float], hardness: float | None) -> float:
        return max(0.0, 1 - sum((1 - v) ** self.r for v in xs) ** (1 / self.r))

    def disj(self, xs: list[float], hardness: float | None) -> float:
        return min(1.0, sum(v**self.r for v in xs) ** (1 / self.r))

    def implies(self, a: float, b: float) -> float:
        return 1.0 if a <= b else 1 - ((1 - b) ** self.r - (1 - a) ** self.r) ** (1 / self.r)


class DL2(Operations):
    top, bottom, unit = 0.0, math.inf, 0.0

    def leq(self, a: float, b: float) -> float:
        return max(a - b, 0.0)

    def conj(self, xs: list[float], hardness: float | None) -> float:
        return sum(xs)

    def disj(self, xs: list[float], hardness: float | None) -> float:
        return math.prod(xs)

    def implies(self, a: float, b: float) -> float:
        return max(b - a, 0.0)

    def loss(self, value: float) -> float:
        return value


class STL(Operations):
    top, bottom, unit = math.inf, -math.inf, 0.0

    def __init__(self, nu: float) -> None:
        self.nu = nu

    def leq(self, a: float, b: float) -> float:
        return b - a

    def conj(self, xs: list[float], hardness: float | None) -> float:
        """The paper's equation (stl-conjunction), without its leading minus."""
        nu = self.nu if hardness is None else hardness
        low = min(xs)
        if math.isinf(nu) or low == 0.0:
            return low
        relative = [(v - low) / low for v in xs]
        if low < 0:
            top = sum(low * math.exp(t) * math.exp(nu * t) for t in relative)
            return top / sum(math.exp(nu * t) for t in relative)
        weights = [math.exp(max(-nu * t, -700)) for t in relative]
        return sum(v * w for v, w in zip(xs, weights, strict=True)) / sum(weights)

    def disj(self, xs: list[float], hardness: float | None) -> float:
        """The paper's equation (stl-disjunction), without its leading minus."""
        nu = self.nu if hardness is None else hardness
        high = max(xs)
        if math.isinf(nu) or high == 0.0:
            return high
        relative = [(v - high) / high for v in xs]
        if high > 0:
            top = sum(high * math.exp(t) * math.exp(nu * t) for t in relative)
            return top / sum(math.exp(nu * t) for t in relative)
        weights = [math.exp(max(-nu * t, -700)) for t in relative]
        return sum(v * w for v, w in zip(xs, weights, strict=True)) / sum(weights)

    def implies(self, a: float, b: float) -> float:
        return b - a

    def loss(self, value: float) -> float:
        return -value


def pushed_value(naive: Naive, formula: Formula, ops: Operations) -> float:
    """A reading whose negation stands at the comparisons, as in all logics but QLL."""

    def connect(conjunctive: bool, values: list[Degree], hardness: float | None) -> Degree:
        absorbing, neutral = (BOTTOM, TOP) if conjunctive else (TOP, BOTTOM)
        if absorbing in values:
            return absorbing
        numbers = [v for v in values if not isinstance(v, str)]
        if not numbers:
            return neutral
        if len(numbers) == 1:
            return numbers[0]
        return ops.conj(numbers, hardness) if conjunctive else ops.disj(numbers, hardness)

    def visit(node: Formula, env: Env, neg: bool) -> Degree:
        match node:
            case Compare(operator, left, right):
                a, b = naive.quantity(left, env), naive.quantity(right, env)
                if operator == "==":  # 'not' of it, which a premise may have: either is less
                    return connect(not neg, [compare(a, b), compare(b, a)], None)
                return compare(b, a) if operator.startswith(">") != neg else compare(a, b)
            case Constant("unit"):
                return ops.unit
            case Constant(kind):
                return TOP if (kind == "top") != neg else BOTTOM
            case Label(at):
                true = naive.index(at, env) in naive.point.labels
                if neg:
                    return BOTTOM if true else TOP
                return ops.unit if true else BOTTOM
            case Not(body):
                return visit(body, env, not neg)
            case Connective(kind, parts, hardness):
                conjunctive = (kind in ("and", "tensor")) != neg
                return connect(conjunctive, [visit(part, env, neg) for part in parts], hardness)
            case Quantified(kind, _, body, _, hardness):
                values = [visit(body, inner, neg) for inner in naive.bindings(node, env)]
                return connect((kind == "forall") != neg, values, hardness)
            case Implies("material", left, right):
                truth = crisp(naive, left, env)
                if truth is not None:
                    return visit(right, env, neg) if truth else BOTTOM if neg else TOP
                return connect(neg, [visit(left, env, not neg), visit(right, env, neg)], None)
            case Implies(_, left, right):
                truth = crisp(naive, left, env)
                if truth is not None:
                    return visit(right, env, neg) if truth else BOTTOM if neg else TOP
                return degrees(right, left, env) if neg else degrees(left, right, env)
            case FormulaReference(name, arguments):
                body = naive.definitions[name].body
                return visit(body, naive.call(name, arguments, env), neg)
        raise TypeError(node)

    def compare(a: float, b: float) -> Degree:
        if math.isinf(a) or math.isinf(b):
            return TOP if a <= b else BOTTOM
        return ops.leq(a, b)

    def degrees(left: Formula, right: Formula, env: Env) -> Degree:
        truth = crisp(naive, left, env)
        if truth is not None:
            return visit(right, env, False) if truth else TOP
        a, b = visit(left, env, False), visit(right, env, False)
        if a == BOTTOM or b == TOP:
            return TOP
        if a == TOP:
            return b
        if b == BOTTOM:
            return ops.implies(a, ops.bottom)
        return ops.implies(a, b)

    value = visit(formula, {}, False)
    return {TOP: ops.top, BOTTOM: ops.bottom}[value] if isinstance(value, str) else value


# --- hard forms -----------------------------------------------------------------------------------


def form_value(form: HardForm, point: Point) -> float:
    match form:
        case Affine(terms, constant):
            return constant + sum(c * point.vectors[source][k] for (source, k), c in terms)
        case Max(parts):
            return max((form_value(part, point) for part in parts), default=-math.inf)
        case Min(parts):
            return min((form_value(part, point) for part in parts), default=math.inf)
