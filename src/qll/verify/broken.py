"""Which part of a rule a witness breaks, and by how much, in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from qll.formula.hard import Affine, Slot
from qll.property import Property
from qll.verify.condition import Any_, Array, Both, Tree, reduce_tree
from qll.verify.query import Query

# Comparisons of one violation that are named; a conjunction may need many.
MOST_NAMED = 4


def broken(query: Query, witness: Array, prop: Property | None = None) -> str:
    """What holds at the witness and should not: ``y[2] exceeds y[0] by 0.013``. In float64: that it
    is broken at all was judged exactly."""
    condition = query.compiled
    point = np.asarray(witness, dtype=np.float64).reshape(1, -1)
    whole = getattr(query.network, "whole", None)  # of logits: what is asked of is not they
    form = query.form if whole is None else whole.relu_form
    values = condition.leaf_values(form.forward(point), point)
    leaves = list(dict.fromkeys(_chosen(condition.tree, values)))
    name = _namer(query, prop)
    said = [_said(condition.exact[m], float(values[0, m]), name) for m in leaves[:MOST_NAMED]]
    more = len(leaves) - len(said)
    return " and ".join(said) + (f" and {more} more" if more > 0 else "")


def _chosen(tree: Tree, values: Array) -> list[int]:
    """The leaves of the worst way in which the tree is violated."""
    if isinstance(tree, bool):
        return []
    if isinstance(tree, Both):
        return [leaf for part in tree.parts for leaf in _chosen(part, values)]
    if isinstance(tree, Any_):
        worst = max(tree.parts, key=lambda part: float(reduce_tree(part, values)[0]))
        return _chosen(worst, values)
    return [tree]


def _namer(query: Query, prop: Property | None) -> Callable[[Slot], str]:
    """Entries by the names that the property declares, and of the point that they belong to."""
    kinds = {"outputs": "y", "inputs": "x"}
    declared = [] if prop is None else prop.specification.names
    names = {kinds[said.kind]: said.names for said in declared}
    home = getattr(query.network, "home", None)  # of a network at two points (`Joint`)
    variables = getattr(query.network, "names", ())  # of a network behind a map (`Moved`)

    def name(slot: Slot) -> str:
        source, index = slot
        second = ""
        if source == "x" and variables:
            return str(variables[index])
        if home is not None:
            place = list(home).index(index) if source == "x" else index
            whole = len(home) if source == "x" else query.form.output_size
            size = whole // query.network.points  # type: ignore[attr-defined]
            second, index = "2" if place >= size else "", place % size
        known = names.get(source, ())
        entry = f'"{known[index]}"' if index < len(known) else str(index)
        return f"{source}{second}[{entry}]"

    return name


def _said(leaf: Affine, value: float, name: Callable[[Slot], str]) -> str:
    terms = [(name(slot), float(c)) for slot, c in leaf.terms]
    constant = float(leaf.constant)
    ups = [name for name, c in terms if c == 1]
    downs = [name for name, c in terms if c == -1]
    if len(terms) <= 2 and len(ups) + len(downs) == len(terms) and len(ups) <= 1 >= len(downs):
        left = ups[0] if ups else f"{constant:g}"
        right = downs[0] if downs else f"{0.0 - constant:g}"
        if ups and downs and constant:
            right += f" {'-' if constant > 0 else '+'} {abs(constant):g}"
        return f"{left} exceeds {right} by {value:.3g}" if value > 0 else f"{left} equals {right}"
    return f"{_sum(terms, constant)} is {value:.3g}, and should not be above 0"


def _sum(terms: Sequence[tuple[str, float]], constant: float) -> str:
    """
    >>> _sum([("y[0]", 1.0), ("y[1]", -1.0), ("y[2]", 2.5)], -0.5)
    'y[0] - y[1] + 2.5*y[2] - 0.5'
    """
    parts = [(c, name if abs(c) == 1 else f"{abs(c):.3g}*{name}") for name, c in terms]
    parts += [(constant, f"{abs(constant):.3g}")] if constant else []
    said = "".join(f" {'-' if c < 0 else '+'} {text}" for c, text in parts)
    return said.removeprefix(" + ") if not said.startswith(" - ") else f"-{said[3:]}"
