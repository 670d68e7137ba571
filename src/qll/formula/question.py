"""What a property's text asks about one point: its region, and its formula as a hard form.

Pure numbers, without a network and without tensors: what a certificate is checked against.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from qll.errors import FormulaError
from qll.formula import units
from qll.formula.fold import walk
from qll.formula.hard import ONE, Affine, HardForm, Slot, affine
from qll.formula.moves import Move, Resolver
from qll.formula.nodes import (
    Ball,
    Box,
    Entry,
    Index,
    Label,
    Linear,
    Member,
    Node,
    OneHot,
    PointBinder,
    Specification,
    Whole,
)
from qll.formula.parse import parse_specification
from qll.formula.rewrite import Grounder, Shape
from qll.formula.show import show_specification
from qll.formula.slack import hard_form
from qll.formula.vectors import Image, Mean, Perturbed, Point, Shifted, Vector, walk_vector


@dataclass(frozen=True)
class Place:
    """Of one point: radii of balls around the data point and ends of boxes, one number each or one
    for each input."""

    radii: tuple[tuple[float, ...], ...]
    boxes: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...]
    move: Move | None = None  # it is the image of a few parameters
    norms: tuple[tuple[str, float], ...] = ()  # balls in the norms l1 and l2


@dataclass(frozen=True)
class Question:
    """Where x is (and x2, if there are two points), linear constraints ``<= 0`` on both, inputs
    that are whole numbers, inputs with the values they may have, groups of inputs of which one is 1
    and the others 0, and the formula, which is satisfied where it is <= 0."""

    places: tuple[Place, ...]
    constraints: tuple[Affine, ...]
    form: HardForm
    integers: frozenset[Slot] = frozenset()
    values: tuple[tuple[Slot, tuple[float, ...]], ...] = ()
    groups: tuple[tuple[Slot, ...], ...] = ()


def is_closed(specification: Specification) -> bool:
    """Whether nothing in it depends on a data point: it is asked once."""
    roots: list[Node] = [specification.formula, *(d.body for d in specification.definitions)]
    for binder in specification.binders:
        for part in binder.parts:
            if isinstance(part, Ball | Perturbed) and part.centre == "x0":
                return False
            if isinstance(part, Image) and any(map(_of_data, walk_vector(part.body))):
                return False
            roots += [part.formula] if isinstance(part, Linear) else []
    data = ("x0", "y0")
    return bool(specification.binders) and not any(
        isinstance(node, Label) or (isinstance(node, Entry) and node.source in data)
        for root in roots
        for node in walk(root)
    )


def _of_data(vector: Vector) -> bool:
    return isinstance(vector, Mean | Shifted) or vector == Point("x0")


def canonical(specification: Specification, parameters: Mapping[str, float] | None = None) -> str:
    """The one text of a property and its parameters: ASCII but for names in quotes, without
    comments, the values of the parameters in place of their defaults. Nothing that is read is
    missing from it.

    >>> spec = parse_specification("parameter a: number = 1  # or 2?\\n y[0]  ≤ a", outputs=1)
    >>> canonical(spec, {"a": 0.5})
    'parameter a: number = 0.5;\\ny[0] <= a\\n'
    """
    given = parameters or {}
    declared = specification.parameters
    unknown = set(given) - {p.name for p in declared}
    _require(not unknown, f"it has no parameter {', '.join(sorted(unknown))}")
    values = tuple(replace(p, default=float(given.get(p.name, p.default))) for p in declared)
    return show_specification(replace(specification, parameters=values, documentation=""))


@lru_cache(maxsize=256)  # the points of a data set share it but for their labels
def question(text: str, labels: tuple[int, ...] | None, shape: Shape) -> Question:
    """What a canonical text asks of a network of this shape at a point with these labels.

    >>> found = question("forall x in ball(x0, 0.5) and x[0] <= 1:\\n  y[0] <= 2\\n", None,
    ...     Shape(1, (1,)))
    >>> found.places[0].radii, found.form
    (((0.5,),), Affine(terms=((('y', 0), Fraction(1, 1)),), constant=Fraction(-2, 1)))
    """
    spec = parse_specification(text)
    _require(text == canonical(spec), "its text is not the canonical one")
    _require(spec.outputs in (None, shape.outputs), "it has another number of outputs")
    points = [b.point for b in spec.binders]
    _require(points in (["x"], ["x", "x2"]), "it is not a property of one point or two")
    roots = [spec.formula, *(d.body for d in spec.definitions)]
    speaks = any(isinstance(node, Label) for root in roots for node in walk(root))
    _require(speaks == (labels is not None), "labels belong to a property that speaks of them")
    known = labels is None or (list(labels) == sorted(set(labels)) and _exist(labels, shape))
    _require(known, "a label does not exist, or stands twice")
    values = {p.name: units.convert(p.name, p.unit, p.default) for p in spec.parameters}
    grounder = Grounder(spec, values, shape)
    parts = Parts(grounder, math.prod(shape.inputs or (0,)))
    places = tuple(parts.place(binder) for binder in spec.binders)
    form = hard_form(grounder.ground(labels))
    return Question(
        places,
        tuple(parts.constraints),
        form,
        frozenset(parts.integers),
        tuple(parts.values),
        tuple(parts.groups),
    )


class Parts:
    """Reads the parts of regions."""

    def __init__(self, grounder: Grounder, inputs: int) -> None:
        self.grounder, self.inputs = grounder, inputs
        self.constraints: list[Affine] = []
        self.integers: set[Slot] = set()
        self.values: list[tuple[Slot, tuple[float, ...]]] = []
        self.groups: list[tuple[Slot, ...]] = []

    def place(self, binder: PointBinder) -> Place:
        radii, boxes, number, move, norms = [], [], self.grounder.number, None, []
        for part in binder.parts:
            match part:
                case Image() | Perturbed():
                    move = self.move(part)
                case Ball("x0", norm=norm):
                    radii.append(self.radii(part))
                    norms += [(norm, radii[-1][0])] if norm else []
                case Ball("x"):
                    self._near(self.radii(part))
                case Box(lower, upper):
                    low, high = (tuple(map(number, side)) for side in (lower, upper))
                    boxes.append((low, high))
                case Linear(formula):
                    self.constraints += self.grounder.constraints(formula)
                case Whole(point, entries):
                    self.integers |= {self.grounder.slot(e) for e in entries} or {
                        (point, k) for k in range(self.inputs)
                    }
                case Member(entry, values):
                    self._member(self.grounder.slot(entry), {number(v) for v in values})
                case OneHot(entries):
                    slots = [self.grounder.slot(entry) for entry in entries]
                    for slot in slots:
                        self._member(slot, {0.0, 1.0})
                    self.groups.append(tuple(slots))
                case _:
                    _require(False, "its region has an unknown part")
        return Place(tuple(radii), tuple(boxes), move, tuple(norms))

    def move(self, part: Image | Perturbed) -> Move:
        grounder = self.grounder

        def place(index: Index) -> int:
            return grounder.slot(Entry("x0", (index,), span=index.span))[1]

        return Resolver(grounder.number, place, grounder.shape.inputs or (0,)).move(part)

    def radii(self, ball: Ball) -> tuple[float, ...]:
        """One number, or one for each input."""
        sizes = tuple(map(self.grounder.number, ball.radius))
        if ball.at:
            found = [0.0] * self.inputs
            for index, size in zip(ball.at, sizes, strict=True):
                found[self.grounder.slot(Entry("x0", (index,), span=index.span))[1]] = size
            return tuple(found)
        if len(sizes) not in (1, self.inputs):
            raise FormulaError(
                "the radii of a ball do not fit the input",
                expected=f"one number, or {self.inputs}",
                found=f"{len(sizes)}",
                fix="give one radius, or one for each input",
                where=str(ball.span) if ball.span else None,
            )
        return sizes

    def _near(self, radii: tuple[float, ...]) -> None:
        """x2 within a distance of x."""
        for k in range(self.inputs):
            far = -Fraction(radii[k if len(radii) > 1 else 0])
            ends = (("x2", k), ONE), (("x", k), -ONE)
            self.constraints += [affine(ends, far), affine([(s, -c) for s, c in ends], far)]

    def _member(self, slot: Slot, values: set[float]) -> None:
        """Whole numbers without a gap are a box; other values are gone through."""
        _require(all(map(math.isfinite, values)), "a value of an input is not finite")
        least, most = min(values), max(values)
        self.constraints += [affine([(slot, ONE)], -Fraction(most)),
                             affine([(slot, -ONE)], Fraction(least))]  # fmt: skip
        if all(v == math.floor(v) for v in values):
            self.integers.add(slot)
            if len(values) == most - least + 1:
                return
        if least < most:
            self.values.append((slot, tuple(sorted(values))))


def _exist(labels: tuple[int, ...], shape: Shape) -> bool:
    return all(0 <= label < shape.outputs for label in labels)


def _require(truth: bool, reason: str) -> None:
    if not truth:
        raise FormulaError(
            f"the property cannot be asked here: {reason}",
            expected="a property 'forall x in ...' of the network's outputs, as qll prints it",
            found="another one",
            fix="use the property and the parameters that the network was verified with",
        )
