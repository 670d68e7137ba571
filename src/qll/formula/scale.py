"""Comparisons in units of what they compare: 0.184 <= y[0] of an output that spreads by 0.003 is a
comparison of numbers near 1 once both sides are divided by that spread.

A logic softens a comparison on a scale of its own, about 1; a violation far below it moves nothing,
one far above it drowns the rest. Both sides of an atom are multiplied by one power of two, so that
no number is rounded and what holds is what held before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from qll.formula.fold import fold, rebuild, walk
from qll.formula.ground import Atom
from qll.formula.hard import Affine, affine, is_finite
from qll.formula.nodes import Connective, Formula, Implies

Scales = Mapping[str, Sequence[float]]
"""By source, ``y`` or ``x``, what a step of each entry is: ``{"y": (0.003,)}``. Comparisons of a
source of which nothing is said stay as they are."""

_MOST_EXPONENT = 60


def rescaled(formula: Formula, scales: Scales) -> Formula:
    """The ground formula with every comparison in units of its own scale; by one unit for all where
    degrees are added or compared (tensor, par, -o), whose truth hangs on their sizes."""
    if not scales:
        return formula
    atoms = [node for node in walk(formula) if isinstance(node, Atom)]
    factors = {id(atom): _factor(atom, scales) for atom in atoms}
    known = [f for f in factors.values() if f is not None]
    if not known:
        return formula
    common = min(known) if _adds_degrees(formula) else None

    def visit(node: Any, parts: list[Any]) -> Any:
        if not isinstance(node, Atom):
            return rebuild(node, parts)
        own = factors[id(node)]
        factor = own if own is None or common is None else common
        if factor is None or factor == 1:  # a comparison of constants stays what it is
            return node
        return Atom(_times(node.left, factor), _times(node.right, factor), node.span)

    found: Formula = fold(formula, visit)
    return found


def _adds_degrees(formula: Formula) -> bool:
    return any(
        isinstance(node, Implies)
        or (isinstance(node, Connective) and node.kind in ("tensor", "par"))
        for node in walk(formula)
    )


def _factor(atom: Atom, scales: Scales) -> Fraction | None:
    """One over the scale of the difference of both sides, as a power of two: that of its outputs,
    or of its inputs where it has no output. None for a comparison of constants."""
    sizes: dict[bool, float] = {}
    for side in (atom.left, atom.right):
        for (source, k), coefficient in side.terms:
            held = scales.get("y" if source.startswith("y") else "x", ())
            step = held[k] if k < len(held) else 1.0
            size = abs(float(coefficient)) * step
            is_output = source.startswith("y")
            sizes[is_output] = max(sizes.get(is_output, 0.0), size)
    if True in sizes and "y" not in scales:
        return None
    size = sizes.get(True, sizes.get(False, 0.0))
    if not size or not math.isfinite(size):
        return None
    exponent = max(-_MOST_EXPONENT, min(_MOST_EXPONENT, -round(math.log2(size))))
    return Fraction(2) ** exponent


def _times(side: Affine, factor: Fraction) -> Affine:
    constant = side.constant * factor if is_finite(side.constant) else side.constant
    return affine([(slot, c * factor) for slot, c in side.terms], constant)
