"""A query of ours as a document that others read (`qll.exchange`): satisfiable iff it is falsified.

Every point that a property binds is a declared network with its own inputs: ``f`` of x and, for a
property of two points, ``g`` of x2. Inputs that are one variable in the query are asserted equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from qll.errors import InputError
from qll.exchange.document import (
    FALSE,
    TRUE,
    All,
    Assertion,
    Atom,
    Bounds,
    Declaration,
    Document,
    Tensor,
    conjunction,
    disjunction,
)
from qll.exchange.rounding import outward
from qll.formula.hard import Affine, HardForm, Max, Min, affine, negated
from qll.networks.joint import Joint
from qll.verify.condition import Array
from qll.verify.moved import Moved
from qll.verify.query import Query

NETWORKS = (("f", "X", "Y"), ("g", "X2", "Y2"))  # network, input, output


def document_of(query: Query, scales: tuple[Array, Array] | None = None) -> Document:
    """Ends are the floats, exactly. With ``scales``, a mean and a deviation for each input, it is
    about networks that take ``(x - mean) / std``: ends are rounded outward, to the next float."""
    _require_reals(query)
    joint = query.network if isinstance(query.network, Joint) else None
    home = tuple(range(query.form.input_size)) if joint is None else joint.home
    points = 1 if joint is None else joint.points
    inputs, outputs = len(home) // points, query.form.output_size // points
    first = [home.index(variable) for variable in range(query.form.input_size)]
    moved = _Moved(first, inputs, scales)
    bounds = Bounds()
    bounds.grow(len(home))
    for index, variable in enumerate(home):
        for side, end in (("lower", query.lower[variable]), ("upper", query.upper[variable])):
            bounds.tighten(side, index, moved.end(index, Fraction(float(end)), side))
    region = [_assertion(negated(moved(c)), strict=False) for c in query.constraints]
    chosen = disjunction(
        conjunction(_assertion(negated(moved(c)), strict=False) for c in choice)
        for choice in query.choices
    )
    violated = _assertion(moved(query.condition), strict=not query.tie_violates)
    found = conjunction([*_ties(home, first), *region, chosen, violated])
    # As a reader takes it: what is said of one input is one of its ends.
    assertions = tuple(p for p in _conjuncts(found) if not bounds.take(p))
    networks = tuple(
        Declaration(
            name,
            (
                Tensor(x, "input", "real", (inputs,), k * inputs),
                Tensor(y, "output", "real", (outputs,), k * outputs),
            ),
            equal_to=NETWORKS[0][0] if k and _is_one(joint) else None,
        )
        for k, (name, x, y) in enumerate(NETWORKS[:points])
    )
    return Document((2, 0), networks, bounds, assertions, query.name or "<query>")


def _conjuncts(node: Assertion) -> tuple[Assertion, ...]:
    return node.parts if isinstance(node, All) else (node,)


def _require_reals(query: Query) -> None:
    if query.rounds:
        raise InputError(
            "other formats have no balls in the norms l1 and l2",
            expected="a property whose inputs are bounded by boxes and linear constraints",
            found=f"a ball in the norm {query.rounds[0].kind}",
            fix="decide it with qll verify, or export the box around it: ball(x0, ...)",
        )
    if isinstance(query.network, Moved):
        raise InputError(
            "other formats have no points that are the image of a map",
            expected="a property whose inputs are bounded by boxes and linear constraints",
            found=f"inputs that {', '.join(query.network.names[:4])} move",
            fix="decide it with qll verify, or export the box around it: ball(x0, ...)",
        )
    if query.integers is not None and query.integers.any():
        raise InputError(
            "other formats have no whole numbers among real inputs",
            expected="a property whose inputs are real numbers",
            found=f"{int(query.integers.sum())} inputs that are whole numbers",
            fix="decide it with qll verify",
        )


def _is_one(joint: Joint | None) -> bool:
    return joint is not None and all(n is joint.networks[0] for n in joint.networks)


def _ties(home: tuple[int, ...], first: list[int]) -> Iterator[Assertion]:
    for index, variable in enumerate(home):
        if (other := first[variable]) != index:
            terms = (("x", other), Fraction(1)), (("x", index), Fraction(-1))
            yield Atom(terms, Fraction(0))
            yield Atom(tuple((slot, -c) for slot, c in terms), Fraction(0))


class _Moved:
    """Forms over the variables as forms over declared inputs, normalised where they are."""

    def __init__(self, first: list[int], size: int, scales: tuple[Array, Array] | None) -> None:
        self.first, self.size, self.scales = first, size, scales

    def scale(self, index: int) -> tuple[Fraction, Fraction]:
        if self.scales is None:
            return Fraction(0), Fraction(1)
        mean, std = (Fraction(float(values[index % self.size])) for values in self.scales)
        return mean, std

    def end(self, index: int, value: Fraction, side: str) -> Fraction:
        if self.scales is None:
            return value
        mean, std = self.scale(index)
        return Fraction(outward((value - mean) / std, side))

    def __call__(self, form: HardForm) -> HardForm:
        if not isinstance(form, Affine):
            return type(form)(tuple(self(part) for part in form.parts))
        terms, constant = [], form.constant
        for (source, k), c in form.terms:
            if source == "x":
                k = self.first[k]
                mean, std = self.scale(k)
                constant, c = constant + c * mean, c * std
            terms.append(((source, k), c))
        return affine(terms, constant)


def _assertion(form: HardForm, *, strict: bool) -> Assertion:
    """What holds where the form is > 0, or >= 0."""
    match form:
        case Affine(terms, constant):
            if not isinstance(constant, Fraction):
                return TRUE if constant > 0 else FALSE
            return Atom(terms, constant, strict)
        case Max(parts):
            return disjunction(_assertion(part, strict=strict) for part in parts)
        case Min(parts):
            return conjunction(_assertion(part, strict=strict) for part in parts)
