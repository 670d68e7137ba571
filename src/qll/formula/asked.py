"""A question at a data point, in normal form: variables, their box, and cases (`normal`).

The entries of x, then those of x2, become variables: entries that are said to be equal are one. The
outputs are those of x, then those of x2. Prover and checker both begin here, with the same text.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from qll.errors import InputError
from qll.formula.hard import ONE, VIOLATED, Affine, HardForm, Slot, affine
from qll.formula.moves import rows_of
from qll.formula.normal import (
    MOST_CASES,
    Folded,
    Ties,
    cases,
    eliminate,
    fold,
    rename,
    rounded,
    substitute,
    through,
    tie,
)
from qll.formula.question import Place, Question
from qll.formula.rounds import Round


@dataclass(frozen=True)
class Asked:
    """``lower``/``upper`` and ``integers`` are of the variables; ``constraints`` and ``form`` are
    over ``("x", variable)`` and ``("y", output)``, and so are the constraints of the ``choices``,
    of which one holds."""

    points: int
    ties: Ties
    lower: list[float]
    upper: list[float]
    integers: list[bool] | None
    constraints: tuple[Affine, ...]
    choices: tuple[tuple[Affine, ...], ...]
    form: HardForm
    # Entries of x, then of x2, as functions of the variables, where they are no variables
    # themselves; and what the variables are called.
    image: tuple[Affine, ...] | None = None
    names: tuple[str, ...] = ()
    rounds: tuple[Round, ...] = ()  # balls in the norms l1 and l2

    def folded(self, *, tie_violates: bool = False) -> list[Folded]:
        """A box for each case that can have a violation, in order."""
        forms = cases(self.form)
        found = [
            fold(self.lower, self.upper, form, (*self.constraints, *choice), self.integers,
                 tie_violates=tie_violates)
            for choice in self.choices
            for form in forms
        ]  # fmt: skip
        return [each for each in found if not each.is_empty]


def ask(
    question: Question,
    inputs: int,
    outputs: int,
    values: Mapping[str, Sequence[Any]],
    *,
    solved: bool = True,
) -> Asked:
    """``values`` are those of x0 and, where it is spoken of, y0, at the data point. ``solved``:
    equations between inputs of one point are, for one of them."""
    if any(place.move is not None for place in question.places):
        return _ask_image(question, inputs, outputs, values)
    points = len(question.places)
    given = [_substituted(c, values) for c in question.constraints]
    balls = [
        (kind, radius, _away(point, values["x0"]))
        for point, place in zip(("x", "x2"), question.places, strict=False)
        for kind, radius in place.norms
    ]
    groups = question.groups
    if math.prod(len(v) for _, v in question.values) * math.prod(map(len, groups)) > MOST_CASES:
        # Too many to go through one by one: their sums are constraints.
        given += [side for group in groups for side in one_of(group)]
        groups = ()
    ties, constraints = tie(given, inputs, points)
    lower, upper = [-math.inf] * ties.count, [math.inf] * ties.count
    for point, place in enumerate(question.places):
        lows, highs = ends(place, values["x0"])
        for k in range(inputs):
            home = ties.home[point * inputs + k]
            lower[home], upper[home] = max(lower[home], lows[k]), min(upper[home], highs[k])
    # A comparison may be all that bounds an input.
    lower, upper = _bounded(lower, upper, constraints)
    integers = None
    if question.integers:
        whole = {ties.home[_entry(slot, inputs)] for slot in question.integers}
        integers = [k in whole for k in range(ties.count)]
    names = {
        "x": lambda k: ("x", ties.home[k]),
        "x2": lambda k: ("x", ties.home[inputs + k]),
        "y2": lambda k: ("y", outputs + k),
    }
    form = rename(substitute(question.form, values), names)
    rounds = tuple(
        Round(kind, tuple(_renamed(row, names) for row in rows), radius)
        for kind, radius, rows in balls
    )
    choices = _choices(question.values, groups, ties, inputs)
    found = Asked(points, ties, lower, upper, integers, tuple(constraints), choices, form,
                  rounds=rounds)  # fmt: skip
    few = points == 1 and ties.count <= MOST_SOLVED
    return without_equations(found) if solved and few else found


def _substituted(constraint: Affine, values: Mapping[str, Sequence[Any]]) -> Affine:
    found = substitute(constraint, values)
    if not isinstance(found, Affine):
        raise TypeError("a constraint became something else")
    return found


def _away(point: str, x0: Sequence[float]) -> list[Affine]:
    """The difference of each entry from the data point."""
    return [affine([((point, k), ONE)], -Fraction(float(v))) for k, v in enumerate(x0)]


def _renamed(row: Affine, names: Mapping[str, Any]) -> Affine:
    found = rename(row, names)
    if not isinstance(found, Affine):
        raise TypeError("a difference became something else")
    return found


def _entry(slot: Slot, inputs: int) -> int:
    return slot[1] + (inputs if slot[0] == "x2" else 0)


def ends(place: Place, x0: Sequence[float]) -> tuple[list[float], list[float]]:
    """Of the box of one point, in floats: that is the region, however it is rounded."""
    size = len(x0)
    lower, upper = [-math.inf] * size, [math.inf] * size
    for radii in place.radii:
        for k, centre in enumerate(x0):
            radius = radii[k if len(radii) > 1 else 0]
            lower[k] = max(lower[k], float(centre) - radius)
            upper[k] = min(upper[k], float(centre) + radius)
    for low, high in place.boxes:
        if not {len(low), len(high)} <= {1, size}:
            raise InputError(
                "a box of the region does not fit the input",
                expected=f"one number, or {size}",
                found=f"{len(low)} and {len(high)}",
                fix="give one number or one for each input",
            )
        lower = [max(a, low[k if len(low) > 1 else 0]) for k, a in enumerate(lower)]
        upper = [min(a, high[k if len(high) > 1 else 0]) for k, a in enumerate(upper)]
    return lower, upper


def one_of(group: Sequence[Slot]) -> tuple[Affine, Affine]:
    """That these entries add up to 1."""
    return affine([(s, ONE) for s in group], -ONE), affine([(s, -ONE) for s in group], ONE)


def _choices(
    values: tuple[tuple[Slot, tuple[float, ...]], ...],
    groups: tuple[tuple[Slot, ...], ...],
    ties: Ties,
    inputs: int,
    moves: Sequence[Sequence[Mapping[int, float]]] = (),
) -> tuple[tuple[Affine, ...], ...]:
    """Constraints for each choice of values of inputs that have gaps between them, of the entry of
    each group that is 1, and of variables that a move fixes. Groups of tied entries must agree: the
    others are empty."""
    count = math.prod([len(allowed) for _, allowed in values] + [len(each) for each in moves])
    if count > MOST_CASES:
        raise InputError(
            "inputs with values that have gaps between them have too many combinations",
            expected=f"at most {MOST_CASES}",
            found=f"{count}",
            fix="number the values from 0 on, or use 'integer' and a box",
        )
    fixed = [[{slot: v} for v in allowed] for slot, allowed in values]
    fixed += [[{s: float(s == hot) for s in group} for hot in group] for group in groups]
    fixed += [[{("x", k): v for k, v in each.items()} for each in move] for move in moves]
    found: dict[tuple[tuple[int, float], ...], tuple[Affine, ...]] = {}
    for chosen in itertools.product(*fixed):
        held: dict[int, set[float]] = {}
        for slot, value in (item for part in chosen for item in part.items()):
            held.setdefault(ties.home[_entry(slot, inputs)], set()).add(value)
        if any(len(each) > 1 for each in held.values()):
            continue  # one variable cannot have two values
        numbers = {k: Fraction(min(each)) for k, each in held.items()}
        sides = [affine([(("x", k), ONE)], -v) for k, v in numbers.items()]
        sides += [affine([(("x", k), -ONE)], v) for k, v in numbers.items()]
        found[tuple((k, float(v)) for k, v in numbers.items())] = tuple(sides)
    return tuple(found.values())


# --- equations ---

# Variables of a question whose equations are solved: the map has that many entries squared.
MOST_SOLVED = 1000


def without_equations(asked: Asked) -> Asked:
    """The same over fewer variables: what an equation says of them is solved for one. A region that
    is thin has no inside in which a search could find a point. Whole numbers stay as they are, and
    so does what has values of its own."""
    chosen = {k for choice in asked.choices for side in choice for (_, k), _ in side.terms}
    kept = [k in chosen or bool(asked.integers and asked.integers[k])
            for k in range(asked.ties.count)]  # fmt: skip
    solved = eliminate(asked.constraints, asked.ties.count, kept)
    if solved is None:
        return asked
    rows, left, constraints = solved
    for k, row in enumerate(rows):
        if k not in left:
            constraints += _between(row, asked.lower[k], asked.upper[k])
    lower, upper = ([side[k] for k in left] for side in (asked.lower, asked.upper))
    lower, upper = _bounded(lower, upper, constraints)

    def moved(form: HardForm) -> Any:
        return through(form, {"x": rows})

    first = {home: f"x[{k}]" for k, home in reversed(list(enumerate(asked.ties.home)))}
    return replace(
        asked,
        ties=Ties(tuple(range(len(left))), len(left)),
        lower=lower,
        upper=upper,
        integers=None if asked.integers is None else [asked.integers[k] for k in left],
        constraints=tuple(c for c in constraints if _matters(c, lower, upper)),
        choices=tuple(tuple(moved(side) for side in choice) for choice in asked.choices),
        form=moved(asked.form),
        rounds=tuple(Round(r.kind, tuple(map(moved, r.rows)), r.radius) for r in asked.rounds),
        image=tuple(rows[home] for home in asked.ties.home),
        names=tuple(first[k] for k in left),
    )


# --- images of a few parameters ---


def _ask_image(
    question: Question, inputs: int, outputs: int, values: Mapping[str, Sequence[Any]]
) -> Asked:
    """Variables are the parameters that move, and the entries of a point that no map gives."""
    rows: dict[str, list[Affine]] = {}
    lower: list[float] = []
    upper: list[float] = []
    names: list[str] = []
    constraints: list[Affine] = []
    fixed: list[list[dict[int, float]]] = []
    rounds: list[Round] = []
    for point, place in zip(("x", "x2"), question.places, strict=False):
        lows, highs = ends(place, values["x0"])
        first = len(lower)
        if place.move is None:
            rows[point] = [affine([(("x", first + k), ONE)]) for k in range(inputs)]
            lower, upper = lower + lows, upper + highs
            names += [f"{point}[{k}]" for k in range(inputs)]
            away = [affine(row.terms, -Fraction(float(v)))
                    for row, v in zip(rows[point], values["x0"], strict=True)]  # fmt: skip
            rounds += [Round(kind, tuple(away), radius) for kind, radius in place.norms]
            continue
        rows[point] = rows_of(place.move, values["x0"], first, rows.get("x", ()))
        lower += [low for _, low, _ in place.move.smalls]
        upper += [high for _, _, high in place.move.smalls]
        names += [name for name, _, _ in place.move.smalls]
        fixed.append([{first + k: v for k, v in each} for each in place.move.choices])
        for row, low, high in zip(rows[point], lows, highs, strict=True):
            constraints += _between(row, low, high)
    for constraint in question.constraints:
        moved = through(_substituted(constraint, values), rows)
        if not isinstance(moved, Affine):
            raise TypeError("a constraint became something else")
        constraints.append(moved)
    ties = Ties(tuple(range(len(lower))), len(lower))
    lower, upper = _bounded(lower, upper, constraints)
    kept = [c for c in constraints if _matters(c, lower, upper)]

    def variable(slot: Slot) -> Slot:
        return rows[slot[0]][slot[1]].terms[0][0]

    integers = None
    if question.integers:
        whole = {variable(slot)[1] for slot in question.integers}
        integers = [k in whole for k in range(ties.count)]
    held = tuple((variable(slot), allowed) for slot, allowed in question.values)
    groups = tuple(tuple(map(variable, group)) for group in question.groups)
    choices = _choices(held, groups, ties, ties.count, fixed)
    outside = {"y2": [affine([(("y", outputs + k), ONE)]) for k in range(outputs)]}
    form = through(substitute(question.form, values), {**rows, **outside})
    image = tuple(row for point in rows.values() for row in point)
    return Asked(len(question.places), ties, lower, upper, integers, tuple(kept), choices, form,
                 image, tuple(names), tuple(rounds))  # fmt: skip


def _between(row: Affine, low: float, high: float) -> list[Affine]:
    found = []
    if high < math.inf:
        found.append(affine(row.terms, Fraction(row.constant) - Fraction(high)))
    if low > -math.inf:
        turned = [(slot, -c) for slot, c in row.terms]
        found.append(affine(turned, Fraction(low) - Fraction(row.constant)))
    return found


def _matters(constraint: Affine, lower: Sequence[float], upper: Sequence[float]) -> bool:
    """Whether some point of the box breaks it."""
    if not all(math.isfinite(lower[k]) and math.isfinite(upper[k]) for (_, k), _ in
               constraint.terms):  # fmt: skip
        return True
    ends = [(c, upper[k] if c > 0 else lower[k]) for (_, k), c in constraint.terms]
    return Fraction(constraint.constant) + sum(c * Fraction(end) for c, end in ends) > 0


def _bounded(
    lower: list[float], upper: list[float], constraints: Sequence[Affine]
) -> tuple[list[float], list[float]]:
    """Ends cut by what is said of one variable; and for variables that have none, where a
    constraint gives them some by the ends of others: rounded outward."""
    cut = fold(lower, upper, VIOLATED, constraints)
    if cut.is_empty:
        return lower, upper
    lower, upper = cut.lower, cut.upper
    changed = any(map(math.isinf, (*lower, *upper)))
    while changed:
        changed = False
        for constraint in constraints:
            for (_, k), c in constraint.terms:
                end = (upper if c > 0 else lower)[k]
                if math.isfinite(end):
                    continue
                others = [(d, (lower if d > 0 else upper)[j]) for (_, j), d in constraint.terms
                          if j != k]  # fmt: skip
                if not all(math.isfinite(value) for _, value in others):
                    continue
                rest = sum((d * Fraction(v) for d, v in others), Fraction(constraint.constant))
                (upper if c > 0 else lower)[k] = rounded(-rest / c, up=c > 0)
                changed = True
    return lower, upper
