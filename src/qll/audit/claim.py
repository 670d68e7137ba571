"""From a certificate's header to what has to be proved: a box, and a tree of linear atoms.

The property's text is read again by `qll.formula` and grounded for the stated parameters and labels;
the result must equal the ground formula and the region that the certificate was written for.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from qll.audit.network import Array, Network
from qll.audit.container import require
from qll.formula import units
from qll.formula.hard import Affine, HardForm, Max, Min
from qll.formula.nodes import Ball, Box, Linear
from qll.formula.parse import parse_specification
from qll.formula.rewrite import Grounder, Shape
from qll.formula.slack import hard_form

# How the property is violated: an atom's number (it is > 0), a constant, all parts or any part.
Tree: TypeAlias = "bool | int | tuple[str, tuple[Tree, ...]]"


@dataclass(frozen=True, eq=False)
class Claim:
    """``tree`` over atoms ``outputs @ y + inputs @ x + constant``, each known up to ``radius``; the
    last ``required`` ones are the region's constraints (>= 0 inside)."""

    lower: Array
    upper: Array
    tree: Tree
    outputs: Array
    inputs: Array
    constant: Array
    radius: Array
    required: int
    exact: tuple[tuple[Affine, Fraction], ...]
    tie_violates: bool


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


def plain(form: HardForm) -> list[Any]:
    """The ground formula as JSON: exact, because Python prints floats so that they round-trip."""
    if isinstance(form, Affine):
        return ["atom", form.constant, [[s, k, c] for (s, k), c in form.terms]]
    return ["max" if isinstance(form, Max) else "min", *(plain(part) for part in form.parts)]


def unplain(data: Any, depth: int = 0) -> HardForm:
    require(isinstance(data, list) and data and depth < 200, "the ground formula is damaged")
    if data[0] == "atom":
        require(len(data) == 3 and isinstance(data[2], list), "the ground formula is damaged")
        terms = tuple(((str(s), int(k)), float(c)) for s, k, c in data[2])
        return Affine(terms, float(data[1]))
    require(data[0] in ("max", "min"), "the ground formula is damaged")
    parts = tuple(unplain(part, depth + 1) for part in data[1:])
    return Max(parts) if data[0] == "max" else Min(parts)


def ground(
    prop: dict[str, Any], x0: Array, network: Network
) -> tuple[Array, Array, list[Affine], HardForm]:
    """Box, linear constraints and formula that a property's text means around a data point."""
    spec = parse_specification(prop["text"])
    given = prop["parameters"]
    require(set(given) <= {p.name for p in spec.parameters}, "an unknown parameter")
    values = {
        p.name: units.convert(p.name, p.unit, float(given.get(p.name, p.default)))
        for p in spec.parameters
    }
    require(spec.outputs in (None, network.widths[-1]), "another number of outputs")
    grounder = Grounder(spec, values, Shape(network.widths[-1], network.input_shape))
    require(len(spec.binders) == 1, "not a property of one point")
    lower, upper = np.full_like(x0, -np.inf), np.full_like(x0, np.inf)
    constraints: list[Affine] = []
    for part in spec.binders[0].parts:
        if isinstance(part, Ball):
            require(part.centre == "x0", "a ball around another point")
            radius = grounder.number(part.radius)
            lower, upper = np.maximum(lower, x0 - radius), np.minimum(upper, x0 + radius)
        elif isinstance(part, Box):
            low, high = (
                np.array([grounder.number(q) for q in side]) for side in (part.lower, part.upper)
            )
            require(low.size in (1, x0.size) and high.size in (1, x0.size), "a box of no fit")
            lower, upper = np.maximum(lower, low), np.minimum(upper, high)
        else:
            require(isinstance(part, Linear), "an unknown part of the region")
            constraints += grounder.constraints(part.formula)  # type: ignore[attr-defined]
    labels = prop["labels"]
    form = hard_form(grounder.ground(None if labels is None else [int(v) for v in labels]))
    return lower, upper, constraints, form


def claim_of(header: dict[str, Any], arrays: dict[str, Array], network: Network) -> Claim:
    stored = unplain(header["ground"])
    constraints = [unplain(c) for c in header["constraints"]]
    lower, upper = arrays["lower"], arrays["upper"]
    points = {}
    if header["property"] is not None:
        prop, x0 = header["property"], arrays["x0"]
        require(prop["sha256"] == digest(prop["text"].encode()), "another property")
        require(x0.size == network.widths[0] and np.isfinite(x0).all(), "a data point of no fit")
        found = ground(prop, x0, network)
        require((found[0] == lower).all() and (found[1] == upper).all(), "another region")
        require(found[2] == constraints, "other constraints of the region")
        require(found[3] == stored, "the ground formula is not that of the property")
        points["x0"] = [Fraction(v) for v in x0.tolist()]
    require(lower.size == upper.size == network.widths[0], "a box of another size")
    require(np.isfinite(lower).all() and np.isfinite(upper).all(), "a box without ends")
    require(header["region"] == digest(lower.tobytes(), upper.tobytes()), "another region")
    return _Compiler(network, points, bool(header["tie_violates"])).claim(
        stored, constraints, lower, upper
    )


class _Compiler:
    def __init__(
        self, network: Network, points: dict[str, list[Fraction]], tie_violates: bool
    ) -> None:
        self.network, self.points, self.tie = network, points, tie_violates
        self.atoms: dict[Affine, int] = {}
        self.exact: list[tuple[Affine, Fraction]] = []

    def claim(
        self, form: HardForm, constraints: list[HardForm], lower: Array, upper: Array
    ) -> Claim:
        tree = self._tree(form)
        first = len(self.exact)
        for constraint in constraints:
            require(isinstance(constraint, Affine), "a constraint that is not linear")
            assert isinstance(constraint, Affine)  # noqa: S101 - for the type checker
            negated = tuple((s, -c) for s, c in constraint.terms)
            self._atom(Affine(negated, -constraint.constant), fresh=True)
        count, inputs = len(self.exact), self.network.widths[0]
        outputs = np.zeros((count, self.network.widths[-1]))
        entering = np.zeros((count, inputs))
        constant = np.array([float(c) for _, c in self.exact])
        radius = np.array(
            [np.nextafter(float(abs(c - Fraction(float(c)))), np.inf) for _, c in self.exact]
        )
        for row, (atom, _) in enumerate(self.exact):
            for (source, index), c in atom.terms:
                (outputs if source == "y" else entering)[row, index] = c
        return Claim(
            lower, upper, tree, outputs, entering, constant, radius, count - first,
            tuple(self.exact), self.tie,
        )  # fmt: skip

    def _tree(self, form: HardForm) -> Tree:
        if isinstance(form, Affine):
            return self._atom(form)
        absorbing = isinstance(form, Max)
        name = "any" if absorbing else "all"
        kept: list[Tree] = []
        for part in [self._tree(part) for part in form.parts]:
            if isinstance(part, bool):
                if part is absorbing:
                    return absorbing
            elif isinstance(part, tuple) and part[0] == name:
                kept.extend(part[1])
            elif part not in kept:
                kept.append(part)
        if not kept:
            return not absorbing
        return kept[0] if len(kept) == 1 else (name, tuple(kept))

    def _atom(self, atom: Affine, *, fresh: bool = False) -> Tree:
        sizes = {"y": self.network.widths[-1], "x": self.network.widths[0]}
        require(all(abs(c) < 2.0**100 for _, c in atom.terms), "a coefficient out of range")
        require(abs(atom.constant) < 2.0**100, "a constant out of range")
        total, terms = Fraction(atom.constant), []
        for (source, index), c in atom.terms:
            if source == "y0" and "x0" in self.points and "y0" not in self.points:
                self.points["y0"] = self.network.exact(self.points["x0"])
            if source in self.points:
                require(0 <= index < len(self.points[source]), "an entry that does not exist")
                total += Fraction(c) * self.points[source][index]
            else:
                require(0 <= index < sizes.get(source, 0), f"{source}[{index}] does not exist")
                terms.append(((source, index), c))
        if not terms and not fresh:
            return total >= 0 if self.tie else total > 0
        key = Affine(tuple(terms), float(total))
        if fresh or key not in self.atoms:
            self.exact.append((key, total))
            if not fresh:
                self.atoms[key] = len(self.exact) - 1
        return len(self.exact) - 1 if fresh else self.atoms[key]
