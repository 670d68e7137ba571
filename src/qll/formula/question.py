"""What a property's text asks about one point: its region, and its formula as a hard form.

Pure numbers, without a network and without tensors: what a certificate is checked against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from qll.errors import FormulaError
from qll.formula import units
from qll.formula.fold import walk
from qll.formula.hard import Affine, HardForm
from qll.formula.nodes import Ball, Box, Label, Linear, Specification
from qll.formula.parse import parse_specification
from qll.formula.rewrite import Grounder, Shape
from qll.formula.show import show_specification
from qll.formula.slack import hard_form


@dataclass(frozen=True)
class Question:
    """Radii of balls around the data point, ends of boxes (one number, or one for each input),
    linear constraints ``<= 0``, and the formula, which is satisfied where it is <= 0."""

    radii: tuple[float, ...]
    boxes: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...]
    constraints: tuple[Affine, ...]
    form: HardForm


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
    >>> found.radii, found.form
    ((0.5,), Affine(terms=((('y', 0), Fraction(1, 1)),), constant=Fraction(-2, 1)))
    """
    spec = parse_specification(text)
    _require(text == canonical(spec), "its text is not the canonical one")
    _require(spec.outputs in (None, shape.outputs), "it has another number of outputs")
    _require([b.point for b in spec.binders] == ["x"], "it is not a property of one point")
    roots = [spec.formula, *(d.body for d in spec.definitions)]
    speaks = any(isinstance(node, Label) for root in roots for node in walk(root))
    _require(speaks == (labels is not None), "labels belong to a property that speaks of them")
    known = labels is None or (list(labels) == sorted(set(labels)) and _exist(labels, shape))
    _require(known, "a label does not exist, or stands twice")
    values = {p.name: units.convert(p.name, p.unit, p.default) for p in spec.parameters}
    grounder, radii, boxes, constraints = Grounder(spec, values, shape), [], [], list[Affine]()
    for part in spec.binders[0].parts:
        if isinstance(part, Ball) and part.centre == "x0":
            radii.append(grounder.number(part.radius))
        elif isinstance(part, Box):
            low, high = (tuple(map(grounder.number, side)) for side in (part.lower, part.upper))
            boxes.append((low, high))
        elif isinstance(part, Linear):
            constraints += grounder.constraints(part.formula)
        else:
            _require(False, "its region has an unknown part")
    form = hard_form(grounder.ground(labels))
    return Question(tuple(radii), tuple(boxes), tuple(constraints), form)


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
