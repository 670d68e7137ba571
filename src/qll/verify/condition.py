"""A condition compiled for search: affine leaves as matrices, a max/min tree over leaf numbers.

The property holds at a point iff the value of the tree is <= 0. A *violation* chooses, at every
maximum, one part and, at every minimum, all parts: a disjunction of conjunctions of affine
functions that must all be positive. That disjunction can be exponentially long, so it is expanded
lazily (`Obligation.expand`): a bound on the functions chosen so far often closes it early.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qll.errors import InputError
from qll.formula.hard import Affine, HardForm, Max, Min, Slot, is_finite, is_usable, nearest

Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Both:
    """Violated iff every part is (a minimum)."""

    parts: tuple[Tree, ...]


@dataclass(frozen=True)
class Any_:
    """Violated iff some part is (a maximum)."""

    parts: tuple[Tree, ...]


# A leaf is the row of its affine function; True and False are violated everywhere and nowhere.
Tree: TypeAlias = int | bool | Both | Any_


@dataclass(frozen=True, eq=False)
class Condition:
    """Leaf ``m`` is ``exact[m]``, in floats ``constant[m] + outputs[m] @ y + inputs[m] @ x``; the
    property holds iff the tree's value is <= 0 (or < 0, where ``tie_violates``).

    Each float is the nearest to its fraction, off by at most 2^-53 of itself: a bound that counts
    every sum of products with one more rounding than it has products covers that. What judges a
    point reads the fractions."""

    outputs: Array  # (leaves, output size)
    inputs: Array | None  # (leaves, input size), or nothing speaks of the input
    constant: Array  # (leaves,)
    tree: Tree
    tie_violates: bool = False
    exact: tuple[Affine, ...] = ()

    @property
    def leaves(self) -> int:
        return int(self.constant.shape[0])

    def leaf_values(self, y: Array, x: Array) -> Array:
        """(B, leaves) for outputs ``y`` (B, outputs) at points ``x`` (B, inputs)."""
        values = y @ self.outputs.T + self.constant
        if self.inputs is not None:
            values = values + x @ self.inputs.T
        return np.asarray(values)

    def value(self, leaf_values: Array) -> Array:
        """(B,) the hard value of the tree."""
        return reduce_tree(self.tree, leaf_values)

    def is_violated(self, value: float) -> bool:
        return value >= 0 if self.tie_violates else value > 0

    def exact_range(
        self, low: Array, high: Array, x: Sequence[float] | Array
    ) -> tuple[Fraction, Fraction]:
        """The exact range of the value at the point ``x`` when output i is in [low[i], high[i]]."""
        lows, highs = self.leaf_ranges(low, high, x)
        return self.of_leaves(lows), self.of_leaves(highs)

    def of_leaves(self, values: list[Fraction]) -> Fraction:
        """The value of the tree for those of its leaves."""
        return _exact(self.tree, values)

    def leaf_ranges(
        self, low: Array, high: Array, x: Sequence[float] | Array
    ) -> tuple[list[Fraction], list[Fraction]]:
        """The same of every leaf."""
        lows, highs = [], []
        for leaf in self.exact:
            floor = ceiling = Fraction(leaf.constant)
            for (source, i), c in leaf.terms:
                span = (low[i], high[i]) if source == "y" else (x[i],)
                ends = [c * Fraction(float(v)) for v in span]
                floor, ceiling = floor + min(ends), ceiling + max(ends)
            lows.append(floor)
            highs.append(ceiling)
        return lows, highs

    def exact_value(self, y: Sequence[Fraction], x: Sequence[Any] | Array) -> Fraction:
        """The value at the point ``x`` with the exact outputs ``y``."""
        leaves = []
        for leaf in self.exact:
            total = Fraction(leaf.constant)
            for (source, i), c in leaf.terms:
                total += c * (Fraction(y[i]) if source == "y" else Fraction(x[i]))
            leaves.append(total)
        return _exact(self.tree, leaves)

    def soft_weights(self, leaf_values: Array, hardness: float) -> Array:
        """(B, leaves) the gradient of the softened value: shares by softmax at a maximum, softmin
        at a minimum, so that a search can trade the leaves of a conjunction."""
        weights = np.zeros_like(leaf_values)
        add_soft_weights(self.tree, leaf_values, hardness, np.ones(leaf_values.shape[0]), weights)
        return weights

    def with_tree(self, tree: Tree) -> Condition:
        return replace(self, tree=tree)


@dataclass(frozen=True)
class Obligation:
    """Leaves that must all be positive, and disjunctions of which one part must hold as well.

    Refuting the leaves alone refutes the obligation, so ``waiting`` is expanded only if need be.
    """

    leaves: tuple[int, ...]
    waiting: tuple[Any_, ...] = ()

    @property
    def is_conjunction(self) -> bool:
        return not self.waiting

    def expand(self) -> list[Obligation]:
        """One obligation per part of the shortest waiting disjunction."""
        first = min(self.waiting, key=lambda node: len(node.parts))
        rest = tuple(node for node in self.waiting if node is not first)
        return [obligation(part, self.leaves, rest) for part in first.parts]


def obligation(
    tree: Tree, leaves: tuple[int, ...] = (), waiting: tuple[Any_, ...] = ()
) -> Obligation:
    """What must hold for ``tree`` to be violated, besides ``leaves`` and ``waiting``."""
    chosen, pending = list(leaves), list(waiting)
    stack: list[Tree] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, Both):
            stack.extend(node.parts)
        elif isinstance(node, Any_):
            pending.append(node)
        elif not isinstance(node, bool) and node not in chosen:
            chosen.append(node)
    return Obligation(tuple(sorted(chosen)), tuple(pending))


def ways(tree: Tree) -> int:
    """How many conjunctions of leaves the violation would be, fully expanded."""
    if isinstance(tree, Both):
        return math.prod(ways(part) for part in tree.parts)
    if isinstance(tree, Any_):
        return sum(ways(part) for part in tree.parts)
    return int(tree is not False)


def obligations(tree: Tree) -> list[Obligation]:
    """The violation as a disjunction of obligations, one level deep."""
    if isinstance(tree, Any_):
        return [obligation(part) for part in tree.parts]
    return [obligation(tree)]


@dataclass
class _Compiler:
    """Collects equal leaves once and drops what is true or false everywhere."""

    output_size: int
    input_size: int
    tie_violates: bool
    rows: dict[Affine, int] = field(default_factory=dict)

    def compile(self, form: HardForm) -> Tree:
        match form:
            case Affine(terms, constant):
                if not terms or not is_finite(constant):
                    return constant >= 0 if self.tie_violates else constant > 0
                if not form.is_usable:
                    raise unusable(form)
                for slot, _ in terms:
                    self._check(slot)
                return self.rows.setdefault(form, len(self.rows))
            case Max(parts):
                return _gather([self.compile(part) for part in parts], absorbing=True)
            case Min(parts):
                return _gather([self.compile(part) for part in parts], absorbing=False)

    def _check(self, slot: Slot) -> None:
        source, index = slot
        size = {"y": self.output_size, "x": self.input_size}.get(source)
        if size is None:
            raise InputError(
                f"the condition speaks of {source}[{index}]",
                expected="only outputs y and inputs x of one run of the network",
                found=f"'{source}'",
                fix="substitute the values of the reference point, or verify another property",
            )
        if not 0 <= index < size:
            kind = "output" if source == "y" else "input"
            raise InputError(
                f"the condition speaks of {source}[{index}], which does not exist",
                expected=f"an index below {size}, the network's number of {kind}s",
                found=str(index),
                fix="use a property written for this network",
            )


def _gather(parts: list[Tree], *, absorbing: bool) -> Tree:
    """A maximum (absorbing True: violated as soon as one part is) or a minimum (False)."""
    kept: list[Tree] = []
    kind = Any_ if absorbing else Both
    for part in parts:
        if isinstance(part, bool):
            if part is absorbing:
                return absorbing
        elif isinstance(part, kind):
            kept.extend(part.parts)
        elif part not in kept:
            kept.append(part)
    if not kept:
        return not absorbing
    return kept[0] if len(kept) == 1 else kind(tuple(kept))


def both(parts: tuple[Tree, ...]) -> Tree:
    """The tree that is violated iff every part is."""
    return _gather(list(parts), absorbing=False)


def assume(tree: Tree, known: Mapping[int, bool]) -> Tree:
    """The tree where the leaves in ``known`` are violated everywhere or nowhere."""
    if isinstance(tree, Both | Any_):
        parts = [assume(part, known) for part in tree.parts]
        return _gather(parts, absorbing=isinstance(tree, Any_))
    return tree if isinstance(tree, bool) else known.get(tree, tree)


def unusable(form: Affine) -> InputError:
    numbers = [form.constant, *(c for _, c in form.terms)]
    return InputError(
        "a number of the condition is too large or too small",
        expected="0, or a size between 1e-307 and 8e307 once like terms are collected",
        found=", ".join(f"{nearest(c):.3g}" for c in numbers if not is_usable(c))[:80],
        fix="check the thresholds and parameters of the property",
    )


def compile_condition(
    form: HardForm, *, output_size: int, input_size: int, tie_violates: bool = False
) -> Condition:
    compiler = _Compiler(output_size, input_size, tie_violates)
    tree = compiler.compile(form)
    outputs = np.zeros((len(compiler.rows), output_size))
    inputs = np.zeros((len(compiler.rows), input_size))
    constant = np.zeros(len(compiler.rows))
    for leaf, row in compiler.rows.items():
        terms, constant[row] = leaf.floats
        for (source, index), coefficient in terms:
            (outputs if source == "y" else inputs)[row, index] = coefficient
    exact, direct = tuple(compiler.rows), inputs if inputs.any() else None
    return Condition(outputs, direct, constant, tree, tie_violates, exact)


def reduce_tree(tree: Tree, values: NDArray[Any]) -> NDArray[Any]:
    """(B,) the value of the tree for the leaves' values (B, leaves)."""
    if isinstance(tree, bool):
        return np.full(values.shape[0], np.inf if tree else -np.inf)
    if isinstance(tree, int):
        return values[:, tree]
    parts = [reduce_tree(part, values) for part in tree.parts]
    return np.asarray((np.max if isinstance(tree, Any_) else np.min)(parts, axis=0))


def _exact(tree: Tree, values: list[Fraction]) -> Fraction:
    if isinstance(tree, bool):  # a stand-in for infinity: only the sign is read
        return Fraction(1 if tree else -1)
    if isinstance(tree, int):
        return values[tree]
    parts = [_exact(part, values) for part in tree.parts]
    return max(parts) if isinstance(tree, Any_) else min(parts)


def add_soft_weights(
    tree: Tree, values: NDArray[Any], hardness: float, share: Array, weights: Array
) -> None:
    """Add to ``weights`` (B, leaves) the ``share`` (B,) that reaches each leaf."""
    if isinstance(tree, bool):
        return
    if isinstance(tree, int):
        weights[:, tree] += share
        return
    parts = np.stack([reduce_tree(part, values) for part in tree.parts], axis=1)
    sign = 1.0 if isinstance(tree, Any_) else -1.0
    scores = sign * hardness * parts
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    for index, part in enumerate(tree.parts):
        add_soft_weights(part, values, hardness, share * shares[:, index], weights)


def conjunctions(waiting: list[Obligation]) -> list[list[int]]:
    """All obligations fully expanded; for many boxes at once there is no lazy way."""
    done: list[list[int]] = []
    stack = list(waiting)
    while stack:
        obligation = stack.pop()
        if obligation.is_conjunction:
            done.append(list(obligation.leaves))
        else:
            stack.extend(obligation.expand())
    return done
