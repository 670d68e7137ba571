"""Trees of the quantifier over points to nodes: regions and what they are made of."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from lark import Token, v_args

from qll.errors import FormulaError
from qll.formula import build
from qll.formula.domain import (
    DomainMark,
    ScaleMark,
    misplaced_scale,
    spread_scale,
    unknown_domain,
)
from qll.formula.fold import walk
from qll.formula.nodes import (
    Ball,
    Box,
    Entry,
    Formula,
    Index,
    Linear,
    Member,
    Node,
    Number,
    OneHot,
    Parameter,
    PointBinder,
    Quantity,
    Span,
    Whole,
)
from qll.formula.trees_base import ASCII, Trees, unquoted
from qll.formula.vectors import (
    AXES,
    DIRECTIONS,
    PERTURBATIONS,
    Added,
    Axis,
    Image,
    Listed,
    Mean,
    Minus,
    Moving,
    Perturbed,
    Point,
    Product,
    Quotient,
    Same,
    Shifted,
    Small,
    Vector,
)
from qll.registry import suggest


@v_args(meta=True)
class RegionTrees(Trees):
    def _no_scale(self, formula: Formula, binders: tuple[PointBinder, ...]) -> None:
        """The word stands for as many numbers as there are inputs: where one is meant it cannot."""
        parts = [part for binder in binders for part in binder.parts]
        roots: list[Node] = [formula, *(d.body for d in self._definitions.values())]
        for part in parts:
            match part:
                case Linear(inner):
                    roots.append(inner)
                case Ball(_, sizes) | Member(_, sizes):
                    roots += sizes
        for node in (n for root in roots for n in walk(root)):
            if isinstance(node, ScaleMark):
                raise misplaced_scale(node.span)

    def point_quantifier(self, meta: Any, items: list[Any]) -> tuple[PointBinder, ...]:
        """Parameters that move belong to the point after them that is an image."""
        found: list[PointBinder] = []
        waiting: list[Small] = []
        for item in items:
            if isinstance(item, Small):
                waiting.append(item)
            elif isinstance(item, PointBinder):
                first = item.parts[0]
                if isinstance(first, Image):
                    image = replace(first, smalls=tuple(waiting))
                    waiting, item = [], replace(item, parts=(image, *item.parts[1:]))
                found.append(item)
        if waiting or not found:
            raise FormulaError(
                f"parameter '{waiting[0].name}' moves no point",
                expected="a point after it that depends on it: b in [-0.1, 0.1], x = x0 + b",
                found="none",
                fix="say how x depends on it, or leave it out",
                where=str(waiting[0].span),
            )
        return tuple(found)

    def small(self, meta: Any, items: list[Any]) -> Small:
        name, span = str(items[0]), self._span(meta)
        taken = {*self._parameters, *self._sets, *self._definitions, *self._smalls, *AXES}
        if name in taken:
            raise FormulaError(
                f"'{name}' is declared twice",
                expected="one declaration for each name",
                found=f"a second declaration of '{name}'",
                fix="rename one of them",
                where=str(span),
            )
        self._smalls[name] = span
        lower, upper = (self._quantity(item) for item in items[2:])
        return Small(name, lower, upper, span=span)

    def moved_binder(self, meta: Any, items: list[Any]) -> PointBinder:
        image = Image(items[1], (), span=self._span(meta))
        return self._bound_point(meta, items[0], [image, *items[2:]])

    def point_binder(self, meta: Any, items: list[Any]) -> PointBinder:
        return self._bound_point(meta, items[0], items[1:])

    def _bound_point(self, meta: Any, token: Any, items: list[Any]) -> PointBinder:
        point = ASCII.get(str(token), str(token))
        parts: list[Any] = []
        for item in items:
            if isinstance(item, DomainMark):
                if self._domain is None:
                    raise unknown_domain(item.span)
                parts += self._domain.parts(point, item.span)
            elif not isinstance(item, Token):
                parts.append(item)
        return PointBinder(point, tuple(parts), span=self._span(meta))  # type: ignore[arg-type]

    def perturbed(self, meta: Any, items: list[Any]) -> Perturbed:
        kind, centre, *amounts = items
        span = self._span(meta)
        if str(kind) not in PERTURBATIONS:
            raise unknown_change(str(kind), "region", span)
        if len(amounts) != 1:
            raise FormulaError(
                f"{kind} is given {len(amounts)} amounts",
                expected=f"one: {kind}(x0, 0.1)",
                found=str(len(amounts)),
                fix="for several parameters write them out: b in [-0.1, 0.1], x = x0 + b",
                where=str(span),
            )
        source: Any = ASCII.get(str(centre), str(centre))
        return Perturbed(str(kind), source, self._quantity(amounts[0]), span=span)

    # --- vectors ---

    def v_sum(self, meta: Any, items: list[Any]) -> Vector:
        parts = [items[0]]
        for sign, part in zip(items[1::2], items[2::2], strict=True):
            parts.append(Minus(part, span=part.span) if str(sign) == "-" else part)
        return Added(tuple(parts), span=self._span(meta))

    def v_product(self, meta: Any, items: list[Any]) -> Vector:
        return Product(items[0], items[2], span=self._span(meta))

    def v_quotient(self, meta: Any, items: list[Any]) -> Vector:
        divisor = float(items[2])
        if not divisor or math.isinf(divisor):
            raise FormulaError(
                "this division is not by a number",
                expected="a number that is not 0",
                found=str(items[2]),
                fix="multiply by a number instead",
                where=str(self._span(meta)),
            )
        return Quotient(items[0], divisor, span=self._span(meta))

    def v_minus(self, meta: Any, items: list[Any]) -> Vector:
        return Minus(items[1], span=self._span(meta))

    def v_number(self, meta: Any, items: list[Any]) -> Vector:
        span = self._span(meta)
        return Same(Number(float(items[0]), span=span), span=span)

    def v_name(self, meta: Any, items: list[Any]) -> Vector:
        name, span = str(items[0]), self._span(meta)
        if name in self._smalls:
            return Moving(name, span=span)
        if name in self._parameters:
            return Same(Parameter(name, span=span), span=span)
        if name in AXES:
            return Axis(name, span=span)
        known = sorted([*self._smalls, *self._parameters, *AXES])
        raise FormulaError(
            f"unknown name '{name}'",
            expected="a parameter that moves, a parameter of the property, row or column",
            found=f"'{name}'",
            fix=f"{suggest(name, known)}; or bind it: {name} in [-0.1, 0.1], x = ...",
            where=str(span),
        )

    def v_point(self, meta: Any, items: list[Any]) -> Vector:
        source: Any = ASCII.get(str(items[0]), str(items[0]))
        return Point(source, span=self._span(meta))

    def v_call(self, meta: Any, items: list[Any]) -> Vector:
        name, source, *amounts = items
        span = self._span(meta)
        if str(name) not in (*DIRECTIONS, "mean"):
            raise unknown_change(str(name), "vector", span)
        sizes = [
            build.literal(amount.value) if isinstance(amount, Same) else None for amount in amounts
        ]
        whole = all(size is not None and size == int(size) and size > 0 for size in sizes)
        if ASCII.get(str(source), str(source)) != "x0" or len(sizes) > (str(name) != "mean"):
            raise FormulaError(
                f"'{name}' takes the data point",
                expected=f"{name}(x0)" + ("" if str(name) == "mean" else f", {name}(x0, 2)"),
                found="something else",
                fix="shifts and means of a point that moves are not affine in what moves it",
                where=str(span),
            )
        if not whole:
            raise FormulaError(
                f"'{name}' moves by something that is no number of pixels",
                expected="a whole number above 0",
                found="something else",
                fix=f"write {name}(x0, 1) and interpolate: t in [0, 1], "
                f"x = x0 + t*({name}(x0) - x0)",
                where=str(span),
            )
        if str(name) == "mean":
            return Mean(span=span)
        return Shifted(str(name), int(sizes[0] or 1) if sizes else 1, span=span)

    def v_list(self, meta: Any, items: list[Any]) -> Vector:
        return Listed(tuple(self._quantity(item) for item in items), span=self._span(meta))

    def v_named(self, meta: Any, items: list[Any]) -> Vector:
        return Listed(tuple(items[0].values()), tuple(items[0]), span=self._span(meta))

    def v_group(self, meta: Any, items: list[Any]) -> Vector:
        return items[0]  # type: ignore[no-any-return]

    # --- parts ---

    def domain(self, meta: Any, items: list[Any]) -> DomainMark:
        return DomainMark(self._span(meta))

    def ball(self, meta: Any, items: list[Any]) -> Ball:
        centre: Any = ASCII.get(str(items[1]), str(items[1]))
        given, span = items[2], self._span(meta)
        norm: Any = str(items[3]) if len(items) > 3 else ""
        if isinstance(given, dict):
            return Ball(centre, tuple(given.values()), tuple(given), norm, span=span)
        return Ball(centre, given, norm=norm, span=span)

    def radii(self, meta: Any, items: list[Any]) -> dict[Index, Quantity]:
        found: dict[Index, Quantity] = {}
        for index, radius in items:
            if index in found:
                raise FormulaError(
                    f"input {index!r} has two radii",
                    expected="one radius for each input that is named",
                    found=f"{index!r} again",
                    fix="leave one of them out",
                    where=str(index.span),
                )
            found[index] = radius
        return found

    def index_radius(self, meta: Any, items: list[Any]) -> tuple[Index, Quantity]:
        token, radius = items
        span = self._span(meta)
        if token.type == "INT":
            return Index(None, self._integer(token), span=span), self._quantity(radius)
        return Index(None, quoted=unquoted(token), span=span), self._quantity(radius)

    def box(self, meta: Any, items: list[Any]) -> Box:
        return Box(items[1], items[2], str(items[0]), span=self._span(meta))  # type: ignore[arg-type]

    def bound(self, meta: Any, items: list[Any]) -> tuple[Quantity, ...]:
        return spread_scale(tuple(self._quantity(item) for item in items), self._domain)

    def integer_all(self, meta: Any, items: list[Any]) -> Whole:
        point = ASCII.get(str(items[1]), str(items[1]))
        return Whole(point, span=self._span(meta))  # type: ignore[arg-type]

    def integer_some(self, meta: Any, items: list[Any]) -> Whole:
        entries = self._inputs(items[1:], "integer")
        return Whole(entries[0].source, entries, span=self._span(meta))  # type: ignore[arg-type]

    def one_hot(self, meta: Any, items: list[Any]) -> OneHot:
        return OneHot(self._inputs(items[1:], "one_hot"), span=self._span(meta))

    def member_of(self, meta: Any, items: list[Any]) -> Member:
        (entry,) = self._inputs(items[:1], "in {...}")
        values = tuple(self._quantity(item) for item in items[2:])
        return Member(entry, values, span=self._span(meta))

    def _inputs(self, items: list[Any], what: str) -> tuple[Entry, ...]:
        for item in items:
            if not isinstance(item, Entry) or item.source not in ("x", "x2"):
                raise FormulaError(
                    f"'{what}' speaks of something that is not an input",
                    expected='inputs such as x[3] or x["age"]',
                    found="another quantity",
                    fix="name inputs of the point that is bound, one by one",
                    where=str(item.span) if getattr(item, "span", None) else None,
                )
        return tuple(items)

    def linear(self, meta: Any, items: list[Any]) -> Linear:
        return Linear(self._formula(items[0]), span=self._span(meta))


# What people ask for and no affine map says, and what can be said instead.
_REFUSED = {
    "rotation": "a rotation is not affine in its angle: bound the change of each pixel by "
    "ball(x0, [...]), or interpolate towards a turned picture of your own, x = x0 + t*[...]",
    "scaling": "a zoom is not affine in its factor: interpolate towards a zoomed picture of your "
    "own, x = x0 + t*[...]",
    "blur": "for a blur interpolate towards the blurred picture, x = x0 + t*[...]",
    "gamma": "a gamma correction is no affine map: use brightness and contrast",
    "softmax": "softmax stands for outputs, not inputs: compare the logits, y[0] >= y[1]",
}
_ALIKE = {"rotate": "rotation", "zoom": "scaling", "scale": "scaling", "shear": "rotation"}


def unknown_change(name: str, what: str, span: Span) -> FormulaError:
    """Refused by name, with what can be said."""
    regions = ("domain", "ball", "box", "range", *PERTURBATIONS)
    known = regions if what == "region" else ("mean", *DIRECTIONS)
    reason = _REFUSED.get(_ALIKE.get(name, name), suggest(name, list(known)))
    return FormulaError(
        f"'{name}' is no {what} that can be said",
        expected=f"{', '.join(known)}, or an affine map: b in [-0.1, 0.1], x = x0 + b",
        found=f"'{name}'",
        fix=reason,
        where=str(span),
    )
