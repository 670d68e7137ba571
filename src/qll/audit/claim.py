"""From a certificate's header to what has to be proved: a box, and a tree of linear atoms.

The property's text is read by `qll.formula` and grounded for the stated parameters and labels, so
that the claim rests on the text alone; hashes say that the prover meant the same box and formula.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from qll.audit.container import NotConfirmed, digest, require
from qll.audit.network import Array, Network
from qll.formula import units
from qll.formula.hard import Affine, HardForm, Max, negated
from qll.formula.nodes import Ball, Box, Linear
from qll.formula.parse import parse_specification
from qll.formula.rewrite import Grounder, Shape
from qll.formula.slack import hard_form

# How the property is violated: an atom's number (it is > 0), a constant, all parts or any part.
Tree: TypeAlias = "bool | int | tuple[str, tuple[Tree, ...]]"
Ends: TypeAlias = tuple[float, tuple[float, ...], tuple[float, ...]]  # radius, or box
Pairs: TypeAlias = tuple[tuple[str, float], ...]


@dataclass(frozen=True, eq=False)
class Claim:
    """No point of the box violates ``tree`` over atoms ``outputs @ y + inputs @ x + constant``,
    each up to ``radius``; the last ``required`` ones are >= 0 inside the region's constraints."""

    lower: Array
    upper: Array
    tree: Tree
    outputs: Array
    inputs: Array
    constant: Array
    radius: Array
    required: int
    exact: list[tuple[Affine, Fraction]]
    tie_violates: bool


@lru_cache(maxsize=256)
def ground(
    text: str, parameters: Pairs, labels: tuple[int, ...] | None, shape: Shape
) -> tuple[list[Ends], list[Affine], HardForm]:
    """Balls around the data point and boxes, linear constraints, and the formula of a property."""
    spec = parse_specification(text)
    given = dict(parameters)
    require(set(given) <= {p.name for p in spec.parameters}, "an unknown parameter")
    values = {
        p.name: units.convert(p.name, p.unit, given.get(p.name, p.default)) for p in spec.parameters
    }
    require(spec.outputs in (None, shape.outputs), "another number of outputs")
    require([b.point for b in spec.binders] == ["x"], "not a property of one point")
    grounder = Grounder(spec, values, shape)
    ends, constraints = list[Ends](), list[Affine]()
    for part in spec.binders[0].parts:
        if isinstance(part, Ball) and part.centre == "x0":
            ends.append((grounder.number(part.radius), (), ()))
        elif isinstance(part, Box):
            low, high = (tuple(map(grounder.number, side)) for side in (part.lower, part.upper))
            ends.append((0.0, low, high))
        elif isinstance(part, Linear):
            constraints += grounder.constraints(part.formula)
        else:
            raise NotConfirmed("an unknown part of the region")
    return ends, constraints, hard_form(grounder.ground(labels))


def claim_of(header: dict[str, Any], x0: Array, network: Network) -> Claim:
    pairs = tuple((str(k), float(v)) for k, v in header["parameters"].items())
    labels = None if header["labels"] is None else tuple(int(v) for v in header["labels"])
    shape = Shape(network.widths[-1], network.input_shape)
    ends, constraints, form = ground(header["text"], pairs, labels, shape)
    require(x0.size == network.widths[0] and np.isfinite(x0).all(), "a data point of no fit")
    lower, upper = np.full_like(x0, -np.inf), np.full_like(x0, np.inf)
    for radius, low, high in ends:
        fits = len(low) in (0, 1, x0.size) and len(high) in (0, 1, x0.size)
        require(fits and radius >= 0, "a region of no fit")
        lower = np.maximum(lower, np.array(low) if low else x0 - radius)
        upper = np.minimum(upper, np.array(high) if high else x0 + radius)
    require((lower <= upper).all() and np.isfinite(upper - lower).all(), "no bounded region")
    require(header["region"] == digest(lower.tobytes(), upper.tobytes()), "another region")
    require(header["ground"] == digest(repr((form, constraints)).encode()), "another formula")
    compiler = _Compiler(network, x0, bool(header["tie_violates"]))
    tree = compiler.tree(form)
    first = len(compiler.atoms)
    for constraint in constraints:
        compiler.atom(negated(constraint), keep=True)  # type: ignore[arg-type]
    exact = compiler.atoms
    outputs, inputs = (np.zeros((len(exact), network.widths[k])) for k in (-1, 0))
    for row, (atom, _) in enumerate(exact):
        for (source, index), c in atom.terms:
            (outputs if source == "y" else inputs)[row, index] = c
    constant = np.array([float(c) for _, c in exact])
    errors = [float(abs(c - Fraction(float(c)))) for _, c in exact]
    return Claim(
        lower, upper, tree, outputs, inputs, constant, np.nextafter(np.array(errors), 1.0),
        len(exact) - first, exact, compiler.tie_violates,
    )  # fmt: skip


class _Compiler:
    """Numbers the atoms; x0 and y0 (the network's outputs there) become exact constants."""

    def __init__(self, network: Network, x0: Array, tie_violates: bool) -> None:
        self.network, self.tie_violates = network, tie_violates
        self.points: dict[str, list[Any]] = {"x0": x0.tolist()}
        self.atoms: list[tuple[Affine, Fraction]] = []
        self.numbers: dict[Any, int] = {}
        self.sizes = {"y": network.widths[-1], "x": network.widths[0]}

    def tree(self, form: HardForm) -> Tree:
        if isinstance(form, Affine):
            return self.atom(form)
        absorbing = isinstance(form, Max)  # a maximum is violated as soon as one part is
        name, kept = "any" if absorbing else "all", list[Tree]()
        for part in [self.tree(part) for part in form.parts]:
            if part is absorbing:
                return absorbing
            if isinstance(part, tuple) and part[0] == name:
                kept.extend(part[1])
            elif not isinstance(part, bool) and part not in kept:
                kept.append(part)
        if not kept:
            return not absorbing
        return kept[0] if len(kept) == 1 else (name, tuple(kept))

    def atom(self, atom: Affine, *, keep: bool = False) -> Tree:
        total, terms = Fraction(atom.constant), []
        for (source, index), c in atom.terms:
            if source == "y0" and source not in self.points:
                self.points["y0"] = self.network.exact(self.points["x0"])
            there = self.sizes.get(source, len(self.points.get(source, ())))
            require(0 <= index < there, f"{source}[{index}] does not exist")
            if source in self.points:
                total += Fraction(c) * Fraction(self.points[source][index])
            else:
                terms.append(((source, index), c))
        sizes = [abs(total), *(abs(Fraction(c)) for _, c in terms)]
        require(max(sizes) < 2**100, "a number of the formula is out of range")
        if not terms and not keep:
            return total >= 0 if self.tie_violates else total > 0
        key = (tuple(terms), total, len(self.atoms) if keep else -1)
        if key not in self.numbers:
            self.numbers[key] = len(self.atoms)
            self.atoms.append((Affine(tuple(terms), 0.0), total))
        return self.numbers[key]
