"""Marabou's property files: one conjunction of closed linear comparisons each.

A document becomes as many files as its assertions have ways to hold; it is satisfiable iff one of
them is. Marabou knows no strict comparisons: they are closed, so its ``sat`` may be a tie.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product

from qll.errors import InputError
from qll.exchange.document import All, Assertion, Atom, Document, conjunction
from qll.formula.hard import nearest

MOST_FILES = 1000


def files(document: Document) -> list[list[str]]:
    """The lines of each file. Marabou computes in float64, so numbers are the nearest floats."""
    if [t.kind for t in document.tensors] != ["input", "output"]:
        raise InputError(
            "a Marabou property speaks of one network",
            expected="one network with one input and one output",
            found=", ".join(t.name for t in document.tensors)[:80],
            fix="write it with --to vnnlib2",
        )
    bounds = list(document.bounds.atoms())
    ways = list(islice(_ways(conjunction(document.assertions)), MOST_FILES + 1))
    if len(ways) > MOST_FILES:
        raise InputError(
            "the query has too many ways to hold for Marabou's conjunctions",
            expected=f"at most {MOST_FILES}",
            found="more",
            fix="write it with --to vnnlib2",
        )
    return [[_line(atom) for atom in (*bounds, *way) if atom.terms] for way in ways]


def _ways(node: Assertion) -> Iterator[tuple[Atom, ...]]:
    """Conjunctions, of which one must hold; those with a false constant are left out."""
    if isinstance(node, Atom):
        if node.terms or node.constant > 0 or (node.constant == 0 and not node.strict):
            yield (node,)
    elif isinstance(node, All):
        for chosen in product(*(list(_ways(part)) for part in node.parts)):
            yield tuple(atom for way in chosen for atom in way)
    else:
        for part in node.parts:
            yield from _ways(part)


def _line(atom: Atom) -> str:
    """``x0 >= 0.5`` for one variable, ``+1.0y0 -1.0y1 >= 0.0`` for several."""
    if len(atom.terms) == 1:
        (((source, index), c),) = atom.terms
        end = nearest(-atom.constant / c)
        return f"{source}{index} {'>=' if c > 0 else '<='} {end!r}"
    terms = " ".join(f"{nearest(c):+.17g}{source}{index}" for (source, index), c in atom.terms)
    return f"{terms} >= {nearest(-atom.constant)!r}"
