"""A rule as several, each with a region of its own.

``forall x in R: (P -> A) and (Q -> B)``, where P and Q speak of inputs alone, says what ``forall x
in R and P: A`` and ``forall x in R and Q: B`` say together. For a proof both are cases of one
question (`qll.formula.normal`); a search, a sample and a loss need them apart: of a region that is
a small part of R nothing is seen otherwise, and in a soft "not P or A" the distance to the edge of
P, which no network can change, stands in for A.
"""

from __future__ import annotations

from dataclasses import replace

from qll.formula.fold import walk
from qll.formula.nodes import (
    INPUT_SOURCES,
    Compare,
    Connective,
    Definition,
    Entry,
    Formula,
    FormulaReference,
    Implies,
    Label,
    Linear,
    Node,
    QuantityReference,
    Specification,
)


def clauses(specification: Specification) -> tuple[Specification, ...]:
    """The rules, in the order in which they are written; the specification itself where no premise
    speaks of inputs alone. Rules without such a premise stay together.

    >>> from qll.formula.parse import parse_specification
    >>> text = "forall x in box(0, 1): (x[0] >= 0.8 -> y[0] <= 2) and (x[1] <= 0.1 -> y[1] <= 3)"
    >>> for rule in clauses(parse_specification(text, outputs=2)):
    ...     print(str(rule.binders[0].parts[1]), "|", rule.formula)
    x[0] >= 0.8 | y[0] <= 2
    x[1] <= 0.1 | y[1] <= 3
    """
    known = {d.name: d for d in specification.definitions if not d.arguments}
    bound: set[str] = {binder.point for binder in specification.binders}
    rules: list[tuple[tuple[Formula, ...], list[Formula]]] = []
    for part in _conjuncts(specification.formula, known):
        premise, rest = _premise(part, known, bound)
        for held, bodies in rules:
            if held == premise:
                bodies.append(rest)
                break
        else:
            rules.append((premise, [rest]))
    if not specification.binders or all(not premise for premise, _ in rules):
        return (specification,)
    return tuple(_rule(specification, premise, bodies) for premise, bodies in rules)


def _rule(
    specification: Specification, premise: tuple[Formula, ...], bodies: list[Formula]
) -> Specification:
    *first, last = specification.binders  # here all points are bound
    parts = tuple(Linear(part, span=part.span) for part in premise)
    formula = bodies[0] if len(bodies) == 1 else Connective("and", tuple(bodies))
    return replace(
        specification,
        formula=formula,
        binders=(*first, replace(last, parts=last.parts + parts)),
        definitions=_used(specification.definitions, formula),
    )


def _used(definitions: tuple[Definition, ...], formula: Formula) -> tuple[Definition, ...]:
    """What the formula refers to, by way of others too: the rest may speak of other points."""
    wanted: set[str] = set()
    roots: list[Node] = [formula]
    by_name = {d.name: d for d in definitions}
    while roots:
        for node in walk(roots.pop()):
            if isinstance(node, FormulaReference | QuantityReference) and node.name not in wanted:
                wanted.add(node.name)
                roots.append(by_name[node.name].body)
    return tuple(d for d in definitions if d.name in wanted)


def _conjuncts(formula: Formula, known: dict[str, Definition]) -> list[Formula]:
    """Parts that all have to hold; definitions without arguments are looked into. A hardness of its
    own keeps a conjunction whole."""
    found: list[Formula] = []
    stack = [formula]
    while stack:
        node = stack.pop()
        body = known[node.name].body if _is_known(node, known) else node  # type: ignore[attr-defined]
        if isinstance(body, Connective) and body.kind == "and" and body.hardness is None:
            stack += reversed(body.parts)
        else:
            found.append(node)
    return found


def _is_known(node: Formula, known: dict[str, Definition]) -> bool:
    return isinstance(node, FormulaReference) and node.name in known


def _premise(
    rule: Formula, known: dict[str, Definition], bound: set[str]
) -> tuple[tuple[Formula, ...], Formula]:
    """What a rule asks of inputs alone, and what is left of it."""
    inputs: list[Formula] = []
    node = known[rule.name].body if _is_known(rule, known) else rule  # type: ignore[attr-defined]
    left: Formula = rule
    while isinstance(node, Implies) and node.kind == "material":
        parts = _conjuncts(node.left, known)
        own = [part for part in parts if _is_constraint(part, bound)]
        if not own:
            break
        inputs += own
        others = tuple(part for part in parts if part not in own)
        if others:
            held = others[0] if len(others) == 1 else Connective("and", others)
            left = replace(node, left=held)
            break
        left = node = node.right
    return tuple(inputs), left


def _is_constraint(node: Formula, bound: set[str]) -> bool:
    """A comparison of inputs, such as a region takes."""
    if not isinstance(node, Compare) or node.operator == "==":
        return False
    inside = walk(node)
    sources = {entry.source for entry in inside if isinstance(entry, Entry)}
    if any(isinstance(n, QuantityReference | Label) for n in inside):
        return False
    return bool(sources) and sources <= INPUT_SOURCES and sources <= bound | {"x0"}
