"""From a specification to a ground formula: no labels, no quantifiers, no negation, no parameters.

What remains is a tree of connectives and linear implications over atoms ``left <= right`` whose
sides are affine functions. Labels and index sets are gone before any tensor exists, constants are
simplified away, so readings meet neither a per-class loop nor an infinity.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from qll.errors import FormulaError
from qll.formula.discrete import Gaps, Values, has_gaps, middle_of_gap
from qll.formula.fold import fold
from qll.formula.ground import (
    BOTTOM,
    DUAL,
    FALSE_ATOM,
    TOP,
    UNIT_ATOM,
    Crisp,
    comparison,
    conjuncts,
    degree,
    difference,
    empty_premise,
    has_empty_interior,
    is_decided,
    opposite,
    out_of_range,
    simplify,
)
from qll.formula.hard import ONE, Affine, Slot, added, affine, is_finite, multiplied, nearest
from qll.formula.names import Names
from qll.formula.nodes import (
    INPUT_SOURCES,
    Compare,
    Connective,
    ConnectiveKind,
    Constant,
    Divide,
    Entry,
    EntryKind,
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
    Span,
    Specification,
    Sum,
)
from qll.formula.pace import breathe

# A formula whose unfolding is larger than this is refused: it would take minutes and gigabytes.
MAX_GROUND_NODES = 1_000_000
BREATH = 256  # nodes between two looks at the clock


@dataclass(frozen=True)
class Shape:
    """What a formula must fit: the number of outputs and, if it speaks of inputs, their shape."""

    outputs: int
    inputs: tuple[int, ...] | None = None


Environment = Mapping[str, int]


class Grounder:
    """Unfolds one specification for one shape, label pattern after label pattern."""

    def __init__(
        self,
        specification: Specification,
        values: Mapping[str, float],
        shape: Shape,
        *,
        top_is_unit: bool = False,
    ) -> None:
        self.specification = specification
        self.values = values
        self.shape = shape
        self.top_is_unit = top_is_unit
        self.sets: dict[str, IndexSet] = {}
        for item in specification.sets:  # a set may stand for one above it
            self.sets[item.name] = self.sets.get(item.domain.name or "", item.domain)
        self.definitions = {d.name: d for d in specification.definitions}
        self.names = Names.of(specification)
        if shape.inputs is not None:
            self.names.check_fit("inputs", math.prod(shape.inputs), shape.inputs)
        self._labels: frozenset[int] | None = None
        self._nodes = 0
        self._gapped = has_gaps(specification.binders)
        self._gaps: Gaps | None = None
        self._quantities: dict[tuple[str, tuple[int, ...]], Affine] = {}
        self._literals: dict[int, tuple[tuple[int, ...], ...]] = {}  # sets without their names

    def ground(self, labels: Iterable[int] | None = None) -> Formula:
        """The ground formula for a point with these true labels (None: the formula has none)."""
        self.names.check_fit("outputs", self.shape.outputs)
        self._labels = None if labels is None else frozenset(labels)
        self._nodes = 0
        result = self._run(self.specification.formula, {}, False)
        return degree(result)

    def constraints(self, formula: Formula) -> list[Affine]:
        """A linear constraint of a region as affine functions that must be <= 0."""
        self._labels, self._nodes = None, 0
        ground = self._run(formula, {}, False)
        if ground == BOTTOM:
            raise FormulaError(
                "this constraint of the region can never hold",
                expected="a constraint that some point meets",
                found="a comparison with an infinity that is always false",
                fix="correct the constraint, or remove it",
                where=str(formula.span) if formula.span else None,
            )
        return [difference(atom.left, atom.right) for atom in conjuncts([ground])]

    def slot(self, entry: Entry) -> Slot:
        """An input that a region names."""
        return entry.source, self._slot(entry, entry.source, entry.indices, {})

    def number(self, quantity: Quantity) -> float:
        """A constant quantity (a radius, a bound) as the number it stands for, rounded once."""
        return nearest(self._affine(quantity, {}).constant)

    # --- the machine: visit top-down with an environment, build bottom-up ---

    def _run(self, root: Formula, environment: Environment, negated: bool) -> Formula:
        work: list[Callable[[], None]] = []
        values: list[Formula] = []

        def visit(node: Formula, env: Environment, neg: bool) -> None:
            self._count(node)
            match node:
                case Compare():
                    values.append(self._compare(node, env, neg))
                case Constant(kind):
                    swapped = (
                        {"top": "bottom", "bottom": "top", "unit": "unit"}[kind] if neg else kind
                    )
                    values.append(
                        UNIT_ATOM if swapped == "unit" else (TOP if swapped == "top" else BOTTOM)
                    )
                case Label(index):
                    values.append(Crisp(self._has_label(index, env) != neg, strong=neg))
                case Not(body):
                    work.append(lambda: visit(body, env, not neg))
                case Connective(kind, parts, hardness):
                    gather(DUAL[kind] if neg else kind, hardness, [(p, env) for p in parts], neg)
                case Quantified(kind, _, body, _, hardness):
                    bindings = self._bindings(node, env)
                    universal = (kind == "forall") != neg
                    gather(
                        "and" if universal else "or", hardness, [(body, b) for b in bindings], neg
                    )
                case Implies("material", left, right):
                    # not left or right; the dual under a negation. The premise goes first, so
                    # that a false label spares the unfolding of what it guards.
                    guarded(left, right, env, neg)
                case Implies("linear", left, right):
                    linear(left, right, env, neg)
                case FormulaReference(name, arguments):
                    inner = self._call(name, arguments, env)
                    body_of = self.definitions[name].body
                    work.append(lambda: visit(body_of, inner, neg))  # type: ignore[arg-type]
                case _:
                    raise TypeError(f"no rewrite for {type(node).__name__}")

        def gather(
            kind: ConnectiveKind,
            hardness: float | None,
            parts: list[tuple[Formula, Environment]],
            neg: bool,
        ) -> None:
            def finish() -> None:
                count = len(parts)
                operands = values[len(values) - count :]
                del values[len(values) - count :]
                values.append(simplify(kind, operands, hardness, top_is_unit=self.top_is_unit))

            work.append(finish)
            for part, env in reversed(parts):
                work.append(lambda part=part, env=env: visit(part, env, neg))  # type: ignore[misc]

        def guarded(left: Formula, right: Formula, env: Environment, neg: bool) -> None:
            def decide() -> None:
                premise = values.pop()
                # premise holds the (negated, unless neg) left side already
                if has_empty_interior(premise if neg else opposite(premise)):
                    raise empty_premise(left)
                if not neg and is_decided(True, premise):
                    values.append(TOP)
                elif neg and is_decided(False, premise):
                    values.append(BOTTOM)
                else:
                    work.append(lambda: combine(premise))
                    work.append(lambda: visit(right, env, neg))

            def combine(premise: Formula) -> None:
                conclusion = values.pop()
                if isinstance(premise, Crisp):  # the label decides: only the conclusion remains
                    values.append(conclusion)
                else:
                    kind: ConnectiveKind = "and" if neg else "or"
                    values.append(
                        simplify(kind, [premise, conclusion], None, top_is_unit=self.top_is_unit)
                    )

            work.append(decide)
            work.append(lambda: visit(left, env, not neg))

        def linear(left: Formula, right: Formula, env: Environment, neg: bool) -> None:
            def decide() -> None:
                premise = values.pop()
                if isinstance(premise, Crisp):  # on labels it is the usual "if"
                    if premise.truth:
                        work.append(lambda: visit(right, env, neg))
                    else:
                        values.append(BOTTOM if neg else TOP)
                elif premise == BOTTOM and not neg:
                    values.append(TOP)
                else:
                    work.append(lambda: combine(premise))
                    work.append(lambda: visit(right, env, False))

            def combine(premise: Formula) -> None:
                conclusion = values.pop()
                if neg:  # not (a -o b) = b -o a, as degrees
                    premise, conclusion = conclusion, premise
                false = is_decided(False, premise)
                values.append(TOP if false else self._implication(premise, conclusion))

            work.append(decide)
            work.append(lambda: visit(left, env, False))

        visit(root, environment, negated)
        while work:
            work.pop()()
        return values[0]

    def _implication(self, left: Formula, right: Formula) -> Formula:
        """``left -o right`` with constants simplified; ``left`` is not bottom."""
        if isinstance(left, Crisp):
            return right
        if isinstance(right, Crisp):
            right = degree(right)
        if right == TOP:
            return TOP
        if left == UNIT_ATOM:
            return right
        if left == TOP:
            return right if self.top_is_unit else BOTTOM
        if right == BOTTOM and not self.top_is_unit:
            return BOTTOM
        if right == BOTTOM:  # the residual negation of a degree keeps a conclusion to compare with
            right = FALSE_ATOM
        return Implies("linear", left, right)

    def _count(self, node: Formula) -> None:
        self._nodes += 1
        if self._nodes % BREATH == 0:
            breathe()
        if self._nodes > MAX_GROUND_NODES:
            raise FormulaError(
                "this formula unfolds to too many parts",
                expected=f"at most {MAX_GROUND_NODES:,}",
                found="more",
                fix="use smaller index sets",
                where=str(node.span) if node.span else None,
            )

    # --- indices ---

    def _value(self, index: Index, env: Environment, kind: EntryKind | None = None) -> int:
        if index.quoted is not None:
            return self.names.index(index.quoted, kind, index.span)
        return index.offset if index.name is None else env[index.name] + index.offset

    def _call(self, name: str, arguments: tuple[Index, ...], env: Environment) -> Environment:
        values = (self._value(a, env) for a in arguments)
        return dict(zip(self.definitions[name].arguments, values, strict=True))

    def _has_label(self, index: Index, env: Environment) -> bool:
        if self._labels is None:
            raise FormulaError(
                "this property speaks of labels",
                expected="labels of the data points",
                found="none",
                fix="pass labels=...",
                where=str(index.span) if index.span else None,
            )
        at = self._value(index, env, "outputs")
        self._check_output(at, index.span, "label")
        return at in self._labels

    def _check_output(self, at: int, span: Span | None, what: str) -> None:
        if not 0 <= at < self.shape.outputs:
            raise FormulaError(
                f"{what} {at} does not exist",
                expected=f"an index from 0 to {self.shape.outputs - 1}",
                found=f"{at}",
                fix="check the index set against the number of outputs",
                where=str(span) if span else None,
            )

    def _items(self, domain: IndexSet) -> tuple[tuple[int, ...], ...]:
        if domain.name is None:
            if id(domain) not in self._literals:  # the specification keeps it alive
                self._literals[id(domain)] = tuple(
                    tuple(self._member(member, domain.span) for member in item)
                    for item in domain.items
                )
            return self._literals[id(domain)]
        if domain.name in self.sets:
            return self._items(self.sets[domain.name])
        if domain.name == "outputs":
            return tuple((i,) for i in range(self.shape.outputs))
        return tuple((i,) for i in range(math.prod(self._input_shape(domain.span))))

    def _member(self, member: int | str, span: Span | None) -> int:
        return self.names.index(member, None, span) if isinstance(member, str) else member

    def _input_shape(self, span: Span | None) -> tuple[int, ...]:
        if self.shape.inputs is None and self.names.inputs:
            return (len(self.names.inputs),)
        if self.shape.inputs is None:
            raise FormulaError(
                "this property speaks of inputs, whose shape is not known",
                expected="the input points or their shape",
                found="outputs only",
                fix="pass x=... (and x0=...), or inputs=(1, 28, 28)",
                where=str(span) if span else None,
            )
        return self.shape.inputs

    def _bindings(self, node: Quantified, env: Environment) -> list[Environment]:
        domains = [self._items(binder.domain) for binder in node.binders]
        found: list[Environment] = []
        for items in itertools.product(*domains):
            self._count(node)
            inner = dict(env)
            for binder, item in zip(node.binders, items, strict=True):
                inner.update(zip(binder.names, item, strict=True))
            if all(self._accepts(condition, inner) for condition in node.conditions):
                found.append(inner)
        if not found and not env:
            raise FormulaError(
                "this quantifier ranges over nothing",
                expected="at least one index that meets the conditions",
                found="none",
                fix="change the set or the condition after 'where'",
                where=str(node.span) if node.span else None,
            )
        return found

    def _accepts(self, condition: IndexCondition, env: Environment) -> bool:
        left = self._value(condition.left, env)
        if isinstance(condition.right, IndexSet):
            inside = (left,) in self._items(condition.right)
            return inside == (condition.operator == "in")
        right = self._value(condition.right, env)
        match condition.operator:
            case "==":
                return left == right
            case "!=":
                return left != right
            case "<":
                return left < right
            case "<=":
                return left <= right
            case ">":
                return left > right
            case _:
                return left >= right

    # --- quantities ---

    def _compare(self, node: Compare, env: Environment, negated: bool) -> Formula:
        left, right = self._affine(node.left, env), self._affine(node.right, env)
        if node.operator == "==":
            sides = [comparison(left, right, node.span), comparison(right, left, node.span)]
            return simplify("or" if negated else "and", sides, None, top_is_unit=self.top_is_unit)
        # '<' is read as '<=' and '>' as '>=': the closed reading.
        if node.operator.startswith(">"):
            left, right = right, left
        strict = node.operator in ("<", ">")
        if self._gapped and strict != negated:  # closed, these would say something else
            gap = middle_of_gap(left, right, self._values_of, strict=strict)
            right = affine(right.terms, right.constant + gap) if gap else right
        return comparison(*((right, left) if negated else (left, right)), node.span)

    def _values_of(self, slot: Slot) -> Values | bool:
        if self._gaps is None:
            plain = Grounder(self.specification, self.values, self.shape)
            plain._gapped = False  # what ties inputs has no gaps to mind
            self._gaps = Gaps(self.specification.binders, self.slot, self.number, plain.constraints)
        return self._gaps.values_of(slot)

    def _affine(self, quantity: Quantity, env: Environment) -> Affine:
        def visit(node: Any, parts: list[Affine]) -> Affine:
            match node:
                case Number(value):
                    return affine((), value)
                case Parameter(name):
                    return affine((), self.values[name])
                case Entry(source, indices):
                    return affine([((source, self._slot(node, source, indices, env)), ONE)])
                case Sum():
                    terms = [term for part in parts for term in part.terms]
                    return affine(terms, added(part.constant for part in parts))
                case Scale():
                    factor, body = parts[0].constant, parts[1]
                    if body.terms and not is_finite(factor):
                        raise out_of_range("a factor of this comparison", node.span)
                    scaled = [(slot, multiplied(factor, c)) for slot, c in body.terms]
                    return affine(scaled, factor and multiplied(factor, body.constant))
                case Divide(_, divisor):
                    (body,) = parts
                    by = 1 / Fraction(divisor)
                    terms = [(slot, c * by) for slot, c in body.terms]
                    return affine(terms, multiplied(by, body.constant))
                case QuantityReference(name, arguments):
                    inner = self._call(name, arguments, env)
                    key = (
                        name,
                        tuple(inner.values()),
                    )  # not twice: uses may nest
                    if key not in self._quantities:
                        inside: Any = self.definitions[name].body
                        self._quantities[key] = self._affine(inside, inner)
                    return self._quantities[key]
            raise TypeError(f"no value for {type(node).__name__}")

        try:
            return fold(quantity, visit)
        except OverflowError as error:
            raise out_of_range("the sum of quotients in this quantity", quantity.span) from error

    def _slot(self, node: Entry, source: str, indices: tuple[Index, ...], env: Environment) -> int:
        kind: EntryKind = "inputs" if source in INPUT_SOURCES else "outputs"
        at = [self._value(i, env, kind) for i in indices]
        if source not in INPUT_SOURCES:
            self._check_output(at[0], indices[0].span, "output")
            return at[0]
        shape = self._input_shape(node.span)
        if len(at) == 1:
            shape = (math.prod(shape),)
        if len(at) != len(shape) or any(not 0 <= i < n for i, n in zip(at, shape, strict=False)):
            raise FormulaError(
                f"input {source}[{', '.join(map(str, at))}] does not exist",
                expected=f"an index into shape {tuple(self.shape.inputs or ())}, or a flat one",
                found=f"[{', '.join(map(str, at))}]",
                fix="indices count from 0; give one flat index or one for each axis",
                where=str(node.span) if node.span else None,
            )
        flat = 0
        for i, n in zip(at, shape, strict=True):
            flat = flat * n + i
        return flat
