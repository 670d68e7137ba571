"""The only recursion over nodes: iterative, so that deep formulas do not exhaust the stack, and
memoised by identity, so that a shared part is visited once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from qll.formula.nodes import (
    Compare,
    Connective,
    Divide,
    Implies,
    Node,
    Not,
    Quantified,
    Scale,
    Sum,
)

T = TypeVar("T")


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case Sum(parts) | Connective(_, parts):
            return parts
        case Scale(factor, body):
            return (factor, body)
        case Compare(_, left, right):
            return (left, right)
        case Implies(_, left, right):
            return (left, right)
        case Not(body) | Divide(body):
            return (body,)
        case Quantified(_, _, body):
            return (body,)
        case _:
            return ()


def rebuild(node: Any, parts: Sequence[Any]) -> Any:
    """The same node over other children; the node itself if they are the same objects."""
    if all(new is old for new, old in zip(parts, children(node), strict=True)):
        return node
    match node:
        case Sum():
            return replace(node, parts=tuple(parts))
        case Connective():
            return replace(node, parts=tuple(parts))
        case Scale():
            return replace(node, factor=parts[0], body=parts[1])
        case Compare() | Implies():
            return replace(node, left=parts[0], right=parts[1])
        case _:
            return replace(node, body=parts[0])


def fold(root: Node, visit: Callable[[Any, list[T]], T]) -> T:
    """Bottom-up: ``visit(node, results of its children)``."""
    done: dict[int, T] = {}
    stack: list[tuple[Node, bool]] = [(root, False)]
    while stack:
        node, expanded = stack.pop()
        if id(node) in done:
            continue
        parts = children(node)
        if expanded or not parts:
            done[id(node)] = visit(node, [done[id(part)] for part in parts])
        else:
            stack.append((node, True))
            stack.extend((part, False) for part in parts)
    return done[id(root)]


def walk(root: Node) -> list[Node]:
    """Every node once, children before parents."""
    found: list[Node] = []

    def visit(node: Node, _: list[None]) -> None:
        found.append(node)

    fold(root, visit)
    return found
