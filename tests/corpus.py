"""Formulas with points, expected truth and expected provability.

Every parser, printer, rewrite, logic and backend loops over these. A case may come with a tiny
affine/ReLU network and a data point: then ``verdict`` is what is true of the whole region, found by
hand, and a falsified one names a witness.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import qll

Matrix = tuple[tuple[float, ...], ...]
Layer = tuple[Matrix, tuple[float, ...]]  # weights (out, in) and bias; ReLU between layers


@dataclass(frozen=True)
class At:
    """The formula at one point: vectors by source, labels, and whether it holds."""

    holds: bool
    y: tuple[float, ...]
    labels: tuple[int, ...] = ()
    points: dict[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Provable:
    """The property on a network around a data point."""

    verdict: Literal["verified", "falsified"]
    layers: tuple[Layer, ...]
    x0: tuple[float, ...]
    label: int | None = None
    witness: dict[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    name: str
    text: str
    outputs: int
    inputs: tuple[int, ...] | None = None
    at: tuple[At, ...] = ()
    provable: tuple[Provable, ...] = ()

    def property(self) -> qll.Property:
        return qll.parse(self.text, outputs=self.outputs, inputs=self.inputs, name=self.name)


IDENTITY2: Layer = (((1.0, 0.0), (0.0, 1.0)), (0.0, 0.0))
# y0 = relu(x0 - x1), y1 = relu(x1 - x0)
RELU2: tuple[Layer, ...] = (
    (((1.0, -1.0), (-1.0, 1.0)), (0.0, 0.0)),
    IDENTITY2,
)

CASES: tuple[Case, ...] = (
    Case(
        "comparison",
        "forall x in ball(x0, 0.25): y[0] >= y[1]",
        2,
        (2,),
        at=(At(True, (1, 0)), At(True, (1, 1)), At(False, (0, 0.5))),
        provable=(
            Provable("verified", (IDENTITY2,), (1.0, 0.5)),  # touches 0 at a corner: closed
            Provable("falsified", (IDENTITY2,), (1.0, 0.75), witness={"x": (0.75, 1.0)}),
        ),
    ),
    Case(
        "robustness",
        "forall x in ball(x0, 0.1) and range(0, 1): forall c in outputs: label(c) -o"
        " forall i in outputs where i != c: y[c] >= y[i]",
        2,
        (2,),
        at=(
            At(True, (2, 1), (0,)),
            At(False, (2, 1), (1,)),
            At(True, (1, 1), (1,)),
            At(False, (2, 1), (0, 1)),
            At(True, (2, 1), ()),
        ),
        provable=(
            Provable("verified", RELU2, (0.75, 0.25), 0),
            Provable("falsified", RELU2, (0.5, 0.45), 0, witness={"x": (0.4, 0.55)}),
            Provable("verified", RELU2, (0.0, 0.2), 1),  # tight: y0 = y1 = 0 at (0.1, 0.1)
        ),
    ),
    Case(
        "disjunction",
        "forall x in box(-1, 1): y[0] <= 0 or y[1] <= 0",
        2,
        (2,),
        at=(At(True, (-1, 5)), At(True, (5, 0)), At(False, (1, 1))),
        provable=(
            Provable("verified", RELU2, (0.0, 0.0)),  # one of the two ReLUs is always off
            Provable("falsified", (IDENTITY2,), (0.0, 0.0), witness={"x": (0.5, 0.5)}),
        ),
    ),
    Case(
        "negation",
        "forall x in ball(x0, 0.5): not (y[0] >= 0 and y[1] >= 0)",
        2,
        (2,),
        at=(At(True, (0, 0)), At(True, (-1, 3)), At(False, (0.5, 0.5))),
        provable=(Provable("verified", (IDENTITY2,), (-0.5, 3.0)),),
    ),
    Case(
        "exactly-one-pair",
        "forall x in ball(x0, 0.1): (y[0] <= 0 or y[1] <= 0) and (y[0] >= 0 or y[1] >= 0)",
        2,
        (2,),
        at=(At(True, (1, -1)), At(False, (1, 1)), At(False, (-1, -1)), At(True, (0, -4))),
        provable=(Provable("verified", (IDENTITY2,), (1.0, -1.0)),),
    ),
    Case(
        "material-premise",
        "forall x in box(-1, 1): y[0] >= 0.5 -> y[1] <= 0.25",
        2,
        (2,),
        at=(At(True, (0, 9)), At(True, (1, 0)), At(False, (1, 1)), At(True, (0.5, 3))),
        provable=(
            Provable("falsified", (IDENTITY2,), (0.0, 0.0), witness={"x": (1.0, 1.0)}),
            Provable("verified", RELU2, (0.0, 0.0)),
        ),
    ),
    Case(
        "linear-by-degrees",
        "forall x in ball(x0, 0.1): (y[0] <= 1) -o (y[1] <= 2)",
        2,
        (2,),
        # y1 - 2 <= y0 - 1: stricter than material implication where both hold
        at=(At(True, (1, 2)), At(False, (-5, 1)), At(True, (3, 4)), At(False, (0, 1.5))),
        provable=(Provable("verified", (IDENTITY2,), (1.0, 1.0)),),
    ),
    Case(
        "tensor-and-par",
        "forall x in ball(x0, 0.1): (y[0] <= 1) tensor (y[1] <= 1) par (y[0] >= 0)",
        2,
        (2,),
        # (y0 - 1) + (y1 - 1) - y0 = y1 - 2
        at=(At(True, (7, 2)), At(False, (7, 2.5)), At(True, (-3, 1))),
        provable=(
            Provable("verified", (IDENTITY2,), (5.0, 1.5)),
            Provable("falsified", (IDENTITY2,), (5.0, 2.0), witness={"x": (5.0, 2.1)}),
        ),
    ),
    Case(
        "maximum-of-sums",
        "forall x in box(-1, 1): (y[0] <= 0 and y[1] <= 0) tensor (y[0] >= 0 or y[1] >= 0)",
        2,
        (2,),
        # max(y0, y1) + min(-y0, -y1) = 0 everywhere
        at=(At(True, (0.5, -0.25)), At(True, (2, 2)), At(True, (-1, 3))),
    ),
    Case(
        "hardness-is-infinite-when-judged",
        "forall x in ball(x0, 0.01): y[0] <= 0 and[0.001] y[1] <= 0",
        2,
        (2,),
        at=(At(True, (-0.5, -0.5)), At(False, (-1, 0.1))),
        provable=(Provable("verified", (IDENTITY2,), (-0.1, -0.1)),),
    ),
    Case(
        "labels-in-every-position",
        "(not label(0) or y[0] >= 1) and (label(1) -> y[1] >= 1) and (label(2) -o not y[2] <= 1)",
        3,
        at=(
            At(True, (1, 0, 0), (0,)),
            At(False, (0, 5, 5), (0,)),
            At(True, (0, 1, 0), (1,)),
            At(True, (0, 0, 1), (2,)),
            At(False, (1, 1, 0), (0, 1, 2)),
            At(True, (0, 0, 0), ()),
        ),
    ),
    Case(
        "inputs-and-the-data-point",
        "forall x in ball(x0, 1): y[0] - y0[0] <= 2*(x[0] - x0[0]) or y[0] <= y0[0]",
        1,
        (2,),
        at=(
            At(True, (3,), points={"x": (2, 0), "x0": (1, 0), "y0": (1,)}),
            At(False, (3.5,), points={"x": (2, 0), "x0": (1, 0), "y0": (1,)}),
            At(True, (0.5,), points={"x": (0, 0), "x0": (1, 0), "y0": (1,)}),
        ),
        provable=(Provable("verified", ((((2.0, 0.0),), (1.0,)),), (0.0, 0.0)),),
    ),
    Case(
        "linear-region",
        "forall x in box(0, 1) and x[0] + x[1] <= 1: y[0] + y[1] <= 1",
        2,
        (2,),
        at=(At(True, (0.5, 0.5)), At(False, (1, 0.5))),
        provable=(
            Provable("verified", (IDENTITY2,), (0.0, 0.0)),
            Provable("verified", RELU2, (0.0, 0.0)),
        ),
    ),
    Case(
        "two-points",
        "forall x in box(0, 1), x2 in box(0, 1) and ball(x, 0.5) and x2[0] >= x[0]"
        " and x2[1] == x[1]: y2[0] >= y[0]",
        2,
        (2,),
        at=(
            At(True, (1, 0), points={"y2": (2, 0)}),
            At(False, (1, 0), points={"y2": (0.5, 9)}),
        ),
        provable=(
            Provable("verified", RELU2, (0.0, 0.0)),
            Provable(
                "falsified",
                ((((-1.0, 0.0), (0.0, 1.0)), (0.0, 0.0)),),
                (0.0, 0.0),
                witness={"x": (0.25, 0.5), "x2": (0.5, 0.5)},
            ),
        ),
    ),
    Case(
        "quantifiers-sets-definitions",
        """
        parameter gap: number = 0.5
        set edges = {(0, 1), (1, 2)}
        set ends = {0, 2}
        define above(i, j) = y[i] >= y[j] + gap
        define spread = y[0] - y[2]
        (forall (i, j) in edges: above(i, j)) and
        (exists i in ends where i in ends and i != 1: y[i] >= 2) and spread <= 3
        """,
        3,
        at=(
            At(True, (3, 2, 1)),
            At(False, (3, 2.75, 1)),
            At(False, (1, 0.5, 0)),
            At(True, (2, 1, 0)),
        ),
    ),
    Case(
        "named-entries",
        """
        outputs cat, "big dog"
        inputs weight, age
        set pets = {cat, "big dog"}
        define on(i) = y[i] >= 0.1
        forall x in ball(x0, 0.1) and x["age"] >= x0["age"] - 0.1:
          (label("cat") -> y["cat"] >= y["big dog"]) and
          forall i in pets where i != "cat": not on("cat") or not on(i)
        """,
        2,
        (2,),
        at=(
            At(True, (2, 0), (0,)),
            At(False, (2, 1), (0,)),
            At(False, (0, 2), (0,)),
            At(True, (0, 2), (1,)),
        ),
        provable=(
            Provable("verified", RELU2, (0.75, 0.25), 0),
            Provable("falsified", RELU2, (0.5, 0.45), 0, witness={"x": (0.4, 0.55)}),
        ),
    ),
    Case(
        "constants",
        "(top -> y[0] <= 1) and (bottom or y[1] <= inf) and (y[0] >= -inf and unit)",
        2,
        at=(At(True, (1, 5)), At(False, (2, 5))),
    ),
    Case(
        "strict-and-equal",
        "y[0] < 1 and y[1] == 2*y[0] and 0 <= y[0] <= 3",
        2,
        at=(At(True, (0.5, 1)), At(True, (1, 2)), At(False, (0.5, 1.5)), At(False, (-1, -2))),
    ),
)
