"""Ground formulas of many label patterns as one regular template.

Formulas that differ only in indices and coefficients (the same conjunction for every class, the
same disjunction for every pair) share one template whose leaves are tables. A reading evaluates a
template with a handful of array operations, whatever the number of classes, pairs or labels; the
shorter of two conjunctions is padded and masked.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from qll.formula.nodes import Connective, ConnectiveKind, Constant, Formula, Implies
from qll.formula.rewrite import Atom


@dataclass(frozen=True)
class Leaf:
    """Atoms in row-major order of ``shape``; the last axis counts label patterns."""

    atoms: tuple[Atom, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Group:
    """Operands of one form: a template with ``count`` as its new leading axis.

    ``present`` (row-major over ``(count, *shape)``) marks the operands that are there; None
    where all are.
    """

    template: Template
    count: int
    present: tuple[bool, ...] | None


@dataclass(frozen=True)
class Reduce:
    kind: ConnectiveKind
    hardness: float | None
    groups: tuple[Group, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Imply:
    left: Template
    right: Template
    shape: tuple[int, ...]


Template = Leaf | Reduce | Imply


@dataclass(frozen=True)
class Variant:
    """One template, and for which label patterns it gives the value."""

    template: Template
    patterns: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """All patterns: variants, and the patterns whose formula is a constant (True: top)."""

    variants: tuple[Variant, ...]
    constants: dict[int, bool]
    patterns: int


def plan(formulas: Sequence[Formula]) -> Plan:
    """One ground formula for each label pattern, as few templates as their forms allow."""
    constants = {
        k: formula.kind == "top"
        for k, formula in enumerate(formulas)
        if isinstance(formula, Constant)
    }
    groups: dict[Hashable, list[int]] = {}
    for k, formula in enumerate(formulas):
        if k not in constants:
            groups.setdefault(_form(formula), []).append(k)
    variants = []
    for members in groups.values():
        # A pattern of another variant gets a stand-in row: its value is computed and not used,
        # which is cheaper than splitting a batch.
        rows = [
            formulas[k] if k in set(members) else formulas[members[0]] for k in range(len(formulas))
        ]
        variants.append(Variant(_template(rows, (len(rows),)), tuple(members)))
    return Plan(tuple(variants), constants, len(formulas))


def _form(node: Formula) -> Hashable:
    """What must agree for two formulas to share a template: everything but indices and counts."""
    match node:
        case Connective(kind, parts, hardness):
            return (kind, hardness, frozenset(_form(part) for part in parts))
        case Implies(_, left, right):
            return ("-o", _form(left), _form(right))
        case _:
            return "atom"


def _template(rows: Sequence[Formula], shape: tuple[int, ...]) -> Template:
    first = rows[0]
    if isinstance(first, Connective):
        grouped: dict[Hashable, list[list[Formula]]] = {}
        for position, row in enumerate(rows):
            for part in row.parts:  # type: ignore[attr-defined]
                columns = grouped.setdefault(_form(part), [[] for _ in rows])
                columns[position].append(part)
        groups = tuple(_group(columns, shape) for columns in grouped.values())
        return Reduce(first.kind, first.hardness, groups, shape)
    if isinstance(first, Implies):
        left = _template([row.left for row in rows], shape)  # type: ignore[attr-defined]
        right = _template([row.right for row in rows], shape)  # type: ignore[attr-defined]
        return Imply(left, right, shape)
    return Leaf(tuple(rows), shape)  # type: ignore[arg-type]


def _group(columns: list[list[Formula]], shape: tuple[int, ...]) -> Group:
    count = max(len(column) for column in columns)
    stand_in = next(part for column in columns for part in column)
    present = [k < len(column) for k in range(count) for column in columns]
    rows = [
        column[k] if k < len(column) else (column[0] if column else stand_in)
        for k in range(count)
        for column in columns
    ]
    template = _template(rows, (count, *shape))
    return Group(template, count, None if all(present) else tuple(present))
