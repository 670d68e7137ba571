"""What a property's text asks about one point: its region, and its formula as a hard form.

Pure numbers, without a network and without tensors: what a certificate is checked against.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

from qll.errors import FormulaError
from qll.formula import units
from qll.formula.hard import Affine, HardForm
from qll.formula.nodes import Ball, Box, Linear
from qll.formula.parse import parse_specification
from qll.formula.rewrite import Grounder, Shape
from qll.formula.slack import hard_form

Ends: TypeAlias = tuple[float, tuple[float, ...], tuple[float, ...]]  # a ball's radius, or a box
Pairs: TypeAlias = tuple[tuple[str, float], ...]


@lru_cache(maxsize=256)  # the points of a data set share it but for their labels
def question(
    text: str, parameters: Pairs, labels: tuple[int, ...] | None, shape: Shape
) -> tuple[list[Ends], list[Affine], HardForm]:
    """Balls around the data point and boxes, linear constraints ``<= 0``, and the formula.

    >>> text = "forall x in ball(x0, 0.5) and x[0] <= 1: y[0] <= 2"
    >>> ends, constraints, form = question(text, (), None, Shape(1, (1,)))
    >>> ends, form
    ([(0.5, (), ())], Affine(terms=((('y', 0), Fraction(1, 1)),), constant=Fraction(-2, 1)))
    """
    spec, values = parse_specification(text), dict(parameters)
    _require(set(values) <= {p.name for p in spec.parameters}, "it has an unknown parameter")
    for p in spec.parameters:
        values[p.name] = units.convert(p.name, p.unit, values.get(p.name, p.default))
    _require(spec.outputs in (None, shape.outputs), "it has another number of outputs")
    _require([b.point for b in spec.binders] == ["x"], "it is not a property of one point")
    grounder, ends, constraints = Grounder(spec, values, shape), list[Ends](), list[Affine]()
    for part in spec.binders[0].parts:
        if isinstance(part, Ball) and part.centre == "x0":
            ends.append((grounder.number(part.radius), (), ()))
        elif isinstance(part, Box):
            low, high = (tuple(map(grounder.number, side)) for side in (part.lower, part.upper))
            ends.append((0.0, low, high))
        elif isinstance(part, Linear):
            constraints += grounder.constraints(part.formula)
        else:
            _require(False, "its region has an unknown part")
    return ends, constraints, hard_form(grounder.ground(labels))


def _require(truth: bool, reason: str) -> None:
    if not truth:
        raise FormulaError(
            f"the property cannot be asked here: {reason}",
            expected="a property 'forall x in ...' of the network's outputs",
            found="another one",
            fix="use the property and the parameters that the network was verified with",
        )
