"""Ground formulas of many label patterns as one regular template.

Formulas that differ only in indices and coefficients (the same conjunction for every class, the
same disjunction for every pair) share one template whose leaves are tables. A reading evaluates a
template with a handful of array operations, whatever the number of classes, pairs or labels; the
shorter of two conjunctions is padded and masked.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from qll.formula.ground import Atom
from qll.formula.nodes import Connective, ConnectiveKind, Constant, Formula, Implies


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
class Patterns:
    """All patterns: variants, and the patterns whose formula is a constant (True: top)."""

    variants: tuple[Variant, ...]
    constants: dict[int, bool]
    patterns: int


def plan(formulas: Sequence[Formula]) -> Patterns:
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
    return Patterns(tuple(variants), constants, len(formulas))


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
    """Operands of every row (``columns`` holds the list of each), side by side.

    Rows are aligned by one side of their atoms where that makes the side the same for every label
    (``y[i]`` in "the true class beats every other i"): its table then needs no look-up by label.
    Connectives are commutative in every logic, so the order is free.
    """
    count = max(len(column) for column in columns)
    aligned = None
    if any(len(column) != count for column in columns):  # some operands will be masked anyway
        aligned = _aligned(columns, "left") or _aligned(columns, "right")
    if aligned is None:
        aligned = [[c[k] if k < len(c) else None for c in columns] for k in range(count)]
    stand_in = next(part for column in columns for part in column)
    present = [part is not None for line in aligned for part in line]
    rows: list[Formula] = []
    for line in aligned:
        # An absent operand is masked; repeating a neighbour keeps the tables small.
        neighbour = next((part for part in line if part is not None), stand_in)
        rows.extend(_moved(neighbour, columns[k]) if p is None else p for k, p in enumerate(line))
    template = _template(rows, (len(aligned), *shape))
    return Group(template, len(aligned), None if all(present) else tuple(present))


def _moved(neighbour: Formula, own: list[Formula]) -> Formula:
    """A masked stand-in: the aligned side of the line, the other side of the row itself."""
    if own and isinstance(neighbour, Atom) and isinstance(own[0], Atom):
        if len({atom.right for atom in own if isinstance(atom, Atom)}) == 1:
            return Atom(neighbour.left, own[0].right)
        if len({atom.left for atom in own if isinstance(atom, Atom)}) == 1:
            return Atom(own[0].left, neighbour.right)
    return neighbour


def _aligned(columns: list[list[Formula]], side: str) -> list[list[Formula | None]] | None:
    """Lines of operands that agree on one side, or None where that would waste too much."""
    if not all(isinstance(part, Atom) for column in columns for part in column):
        return None
    keyed = [{getattr(part, side): part for part in column} for column in columns]
    if any(len(k) != len(column) for k, column in zip(keyed, columns, strict=True)):
        return None  # the same side twice in one row
    sides = list(dict.fromkeys(key for k in keyed for key in k))
    longest = max(len(column) for column in columns)
    if longest < 2 or len(sides) > 2 * longest:
        return None
    order = sorted(sides, key=lambda affine: (affine.terms, affine.constant))
    return [[k.get(key) for k in keyed] for key in order]
