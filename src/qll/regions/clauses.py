"""The rules that a property consists of, each with a region of its own, and rows to see them at."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from qll.formula.clauses import clauses as specifications
from qll.property import Property
from qll.regions.region import Region


def clauses(prop: Property) -> tuple[Property, ...]:
    """As `qll.formula.clauses` has it; the property itself, where it is one rule."""
    if "clauses" not in prop._cache:
        found = specifications(prop.specification)
        prop._cache["clauses"] = (
            (prop,)
            if found[0] is prop.specification
            else tuple(replace(prop, specification=rule, _cache={}) for rule in found)
        )
    return prop._cache["clauses"]  # type: ignore[no-any-return]


def speaks_of(rule: Property, x: Tensor) -> Tensor:
    """Rows ``(batch,)`` whose region is not empty: where a premise cannot hold, nothing is said."""
    if not rule.is_closed:
        return _filled(Region.of(rule, x))
    key = ("filled", tuple(x.shape[1:]))
    if key not in rule._cache:
        rule._cache[key] = bool(_filled(Region.of(rule, x[:1])).all())
    return torch.full((len(x),), rule._cache[key], device=x.device)


def turns(prop: Property, x: Tensor, seed: int = 0) -> list[tuple[Property, Tensor]]:
    """The rules of a property, each with the rows of ``x`` that it is looked at: the rules that
    speak of a row have it in turns, which ``seed`` shifts."""
    rules = clauses(prop)
    if rules == (prop,):
        return [(prop, torch.arange(len(x), device=x.device))]
    said = torch.stack([speaks_of(rule, x) for rule in rules])  # (rules, rows)
    turn = (torch.arange(len(x), device=x.device) + seed) % said.sum(0).clamp(min=1)
    chosen = said & (said.cumsum(0) - 1 == turn)
    return [(rule, own.nonzero().flatten()) for rule, own in zip(rules, chosen, strict=True)]


def _filled(region: Region) -> Tensor:
    full = (region.lower <= region.upper).flatten(1).all(1)
    if region.lower2 is not None and region.upper2 is not None:
        full &= (region.lower2 <= region.upper2).flatten(1).all(1)
    return full
