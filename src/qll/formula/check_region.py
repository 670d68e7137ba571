"""What can be wrong with a region: which points it binds, and what it says of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qll.errors import FormulaError
from qll.formula.fold import walk
from qll.formula.moves import check_image
from qll.formula.names import Names
from qll.formula.nodes import (
    Ball,
    Box,
    Compare,
    Connective,
    Entry,
    Linear,
    Member,
    Node,
    OneHot,
    PointBinder,
    Quantified,
    QuantityReference,
    Specification,
    Whole,
)
from qll.formula.vectors import Image, Listed, Perturbed, walk_vector


def place(span: object) -> str | None:
    return str(span) if span is not None else None


def error_at(what: str, expected: str, found: str, fix: str, node: object) -> FormulaError:
    return FormulaError(
        what, expected=expected, found=found, fix=fix, where=place(getattr(node, "span", None))
    )


@dataclass(frozen=True)
class Regions:
    """``walk`` and ``depth`` check an expression, as they do in the formula."""

    specification: Specification
    walk: Callable[..., None]
    depth: Callable[[Node], int]

    def run(self) -> None:
        bound: list[str] = []
        for binder in self.specification.binders:
            if binder.point in bound:
                raise error_at(
                    f"'{binder.point}' is bound twice",
                    "each point once",
                    f"'{binder.point}' again",
                    "use x for the first point and x2 for the second",
                    binder,
                )
            if binder.point == "x2" and "x" not in bound:
                raise error_at(
                    "'x2' is bound before 'x'", "x first", "x2 first", "bind x, then x2", binder
                )
            if binder.point not in ("x", "x2"):
                raise error_at(
                    f"'{binder.point}' cannot be quantified",
                    "x or x2",
                    f"'{binder.point}'",
                    "x0 is the data point itself",
                    binder,
                )
            bound.append(binder.point)
            for part in binder.parts:
                match part:
                    case Ball(centre, radius, at):
                        if centre not in ("x0", "x") or centre == binder.point:
                            raise error_at(
                                "this ball is around the point it binds",
                                "a ball around x0 or x",
                                f"ball({centre}, ...) for {binder.point}",
                                "use ball(x0, ...)",
                                part,
                            )
                        for size in radius:
                            self._constant(size, "the radius of a ball", part)
                        self._norm(part, binder)
                        for index in at:
                            self.walk(Entry("x0", (index,), span=index.span), {}, True)
                    case Box(lower, upper, kind):
                        for value in (*lower, *upper):
                            self._constant(value, f"a bound of a {kind}", part)
                        if len(lower) != len(upper) and 1 not in (len(lower), len(upper)):
                            raise error_at(
                                f"the bounds of this {kind} have different lengths",
                                "the same length",
                                f"{len(lower)} and {len(upper)}",
                                "give one number or one for each input",
                                part,
                            )
                    case Linear(formula):
                        self._linear(formula, part, bound)
                    case Image() | Perturbed():
                        self._image(part, binder)
                    case Whole(_, entries) | OneHot(entries):
                        self._own(part, binder, entries)
                    case Member(entry, values):
                        self._own(part, binder, (entry,))
                        for value in values:
                            self._constant(value, "a value of an input", part)

    def _norm(self, part: Ball, binder: PointBinder) -> None:
        if not part.norm:
            return
        if len(part.radius) > 1 or part.at or part.centre != "x0":
            raise error_at(
                f"a ball in the norm {part.norm} is around x0 and has one radius",
                f"ball(x0, 0.5, {part.norm})",
                "several radii" if part.centre == "x0" else f"a ball around {part.centre}",
                "leave the norm out for a radius for each input, or for a ball around x",
                part,
            )
        if any(isinstance(other, Image | Perturbed) for other in binder.parts):
            raise error_at(
                f"a ball in the norm {part.norm} stands beside a map",
                "a ball in the norm of the largest entry, boxes and linear constraints",
                f"the norm {part.norm}",
                "bound the map's parameters instead",
                part,
            )

    def _image(self, part: Image | Perturbed, binder: PointBinder) -> None:
        others = [p for p in binder.parts if p is not part]
        for other in others:
            if isinstance(other, Image | Perturbed):
                raise error_at(
                    f"{binder.point} is the image of two maps",
                    "one map with several parameters",
                    "two maps",
                    "write one: b in [-0.1, 0.1], c in [-0.2, 0.2], x = x0 + c*(x0 - mean(x0)) + b",
                    other,
                )
            if isinstance(other, Whole | OneHot | Member):
                raise error_at(
                    f"{binder.point} is the image of real parameters, and has whole numbers",
                    "balls, boxes and linear constraints beside the map",
                    "integer, one_hot or a set of values",
                    "leave it out, or bound the inputs by a box",
                    other,
                )
        if isinstance(part, Perturbed):
            self._constant(part.amount, f"the amount of {part.kind}", part)
            wanted = ("x0",) if part.kind != "brightness" else ("x0", "x")
            if part.centre not in wanted or part.centre == binder.point:
                raise error_at(
                    f"this {part.kind} is of the wrong point",
                    " or ".join(f"{part.kind}({c}, ...)" for c in wanted if c != binder.point),
                    f"{part.kind}({part.centre}, ...) for {binder.point}",
                    f"use {part.kind}(x0, ...): of a point that moves only the brightness is "
                    "affine",
                    part,
                )
            return
        check_image(part, binder.point, lambda value, what: self._constant(value, what, part))
        for node in walk_vector(part.body):
            for index in node.at if isinstance(node, Listed) else ():
                self.walk(Entry("x0", (index,), span=index.span), {}, True)

    def _own(self, part: Any, binder: PointBinder, entries: tuple[Entry, ...]) -> None:
        """Integers and values are said of the point that is bound."""
        sources = {e.source for e in entries} or {part.point}
        if sources != {binder.point}:
            raise error_at(
                f"this says of another point than {binder.point} which values it has",
                f"inputs of {binder.point}",
                f"inputs of {', '.join(sorted(sources))}",
                f"write {binder.point}, or move it to the region of the other point",
                part,
            )
        for entry in entries:
            self.walk(entry, {}, True)
        if isinstance(part, OneHot):
            self._different(part)

    def _different(self, part: OneHot) -> None:
        """One of them is 1 and the others are 0: an input that is named twice could be neither."""
        names, seen = Names.of(self.specification), set()
        for entry in part.entries:
            place = tuple(
                index.offset
                if index.quoted is None
                else names.index(index.quoted, "inputs", index.span)
                for index in entry.indices
            )
            if place in seen:
                raise error_at(
                    "one_hot names an input twice",
                    "different inputs: one of them is 1, the others are 0",
                    f"{entry!r} again",
                    "leave it out",
                    entry,
                )
            seen.add(place)

    def bound_points(self) -> None:
        """A property that quantifies over points speaks of those it binds (and of the data)."""
        bound = {binder.point for binder in self.specification.binders}
        bodies = [definition.body for definition in self.specification.definitions]
        for node in (n for root in (self.specification.formula, *bodies) for n in walk(root)):
            if isinstance(node, Entry) and node.source in ("x2", "y2") and "x2" not in bound:
                raise error_at(
                    f"'{node.source}' speaks of a second point that is not bound",
                    "'x2 in ...' in the quantifier over points",
                    f"'{node.source}' in the formula",
                    "bind it: forall x in ..., x2 in ...:",
                    node,
                )

    def _constant(self, value: Node, what: str, part: object) -> None:
        if any(isinstance(node, Entry | QuantityReference) for node in walk(value)):
            raise error_at(
                f"{what} is not constant",
                "numbers and parameters",
                "a variable",
                "use a parameter",
                part,
            )
        self.walk(value, {}, True)

    def _linear(self, formula: Node, part: object, bound: list[str]) -> None:
        self.walk(formula, {}, True)
        self.depth(formula)
        body = formula
        while isinstance(body, Quantified) and body.kind == "forall":
            body = body.body
        parts = body.parts if isinstance(body, Connective) and body.kind == "and" else (body,)
        for node in parts:
            if not isinstance(node, Compare):
                raise error_at(
                    "a region takes linear constraints only",
                    "a comparison, or 'forall' over comparisons",
                    "another formula",
                    "move it into the formula after the colon",
                    part,
                )
            for entry in walk(node):
                if isinstance(entry, Entry) and entry.source.startswith("y"):
                    raise error_at(
                        "a region speaks of inputs only",
                        "x, x2 and x0",
                        f"'{entry.source}'",
                        "make it the premise of '->' in the formula",
                        entry,
                    )
                if isinstance(entry, Entry) and entry.source not in ("x0", *bound):
                    raise error_at(
                        f"'{entry.source}' is not bound here",
                        f"x0 or a point that is bound: {', '.join(bound)}",
                        f"'{entry.source}'",
                        "constrain x2 where x2 is bound",
                        entry,
                    )
