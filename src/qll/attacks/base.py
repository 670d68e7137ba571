"""The attack as a template: a subclass searches, the base projects and judges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, final

import torch
from torch import Tensor, nn

from qll.attacks.problem import (
    ENGINES,
    AttackBatch,
    Engine,
    Points,
    held_still,
    other_points,
    run_model,
)
from qll.errors import InputError
from qll.logics.base import Logic
from qll.logics.base import logic as read_logic
from qll.points import check_inputs
from qll.property import Property
from qll.regions import Region
from qll.regions.clauses import clauses, speaks_of
from qll.registry import Registry, suggest

ATTACKS: Registry[type[Attack]] = Registry("attack", "qll.attacks")


@dataclass(frozen=True, eq=False)
class AttackResult:
    """The worst point found for each sample, as judged on the network itself.

    ``outputs`` are the network's there. ``margins`` is positive where the point satisfies the
    property, negative where it violates it; ``falsified`` marks samples whose point lies in the
    region and violates. The others are *not falsified*: nothing is proved of them.
    """

    points: Points
    margins: Tensor
    losses: Tensor
    inside: Tensor
    falsified: Tensor
    outputs: Tensor

    @property
    def x(self) -> Tensor:
        return self.points["x"]

    @property
    def near_ties(self) -> Tensor:
        """Samples whose point violates the property in float32 by its rounding alone: not in exact
        arithmetic on the stored weights, so that they are not falsified."""
        return self.inside & (self.margins < 0) & ~self.falsified

    def __repr__(self) -> str:
        return f"<AttackResult: {int(self.falsified.sum())} of {len(self.margins)} falsified>"


@dataclass(frozen=True)
class Attack(ABC):
    """Base of the attacks; a subclass is a frozen dataclass whose fields are its parameters."""

    @abstractmethod
    def search(self, problem: AttackBatch) -> Points:
        """Points, at best in the region, that make the loss large; ``(samples, ...)`` each."""

    @final
    def find(
        self,
        model: nn.Module,
        prop: Property,
        x0: Tensor,
        labels: Tensor | None = None,
        *,
        logic: Logic | str = "qll:5",
        region: Region | None = None,
        seed: int = 0,
        engine: Engine = "auto",
    ) -> Points:
        """The points alone, projected onto the region: what a training step needs.

        ``logic`` is the one whose loss is driven up. ``region`` defaults to the property's own
        around ``x0``. ``engine`` forces the compiled kernels or autograd.
        """
        _check_batch(x0, labels, engine)
        own = region is None
        region = Region.of(prop, x0) if region is None else region
        with held_still(model), torch.no_grad():
            y0 = run_model(model, x0) if "y0" in prop.sources else None
            problem = AttackBatch(
                model, prop, read_logic(logic), region, labels, y0, seed, engine, own
            )
            if not len(x0):
                return region.project({"x": x0.clone(), **_second(region)})
            points = self.search(problem)
            return {name: t.detach() for name, t in region.project(points).items()}

    @final
    def __call__(
        self,
        model: nn.Module,
        prop: Property,
        x0: Tensor,
        labels: Tensor | None = None,
        *,
        logic: Logic | str = "qll:5",
        region: Region | None = None,
        judge: Property | None = None,
        seed: int = 0,
        engine: Engine = "auto",
    ) -> AttackResult:
        """Search, project, and judge by the Boolean reading on the network itself.

        ``judge`` is the property that decides (default: ``prop``); a training variant of a formula
        may drive the search for another. The region is then the judge's.
        """
        _check_batch(x0, labels, engine)
        judge = prop if judge is None else judge
        rules, leading = clauses(judge), clauses(prop)
        if region is None and rules != (judge,) and len(leading) == len(rules):
            found = [
                self(model, lead, x0, labels, logic=logic, judge=rule, seed=seed, engine=engine)
                for lead, rule in zip(leading, rules, strict=True)
            ]
            return worst_of(found, [speaks_of(rule, x0) for rule in rules])
        whole = region
        if region is None:
            region = Region.of(judge, x0)
            # Where the formula that leads has the same region, its own ball sets the steps.
            whole = None if prop is judge or _same(Region.of(prop, x0), region) else region
        points = self.find(
            model, prop, x0, labels, logic=logic, region=whole, seed=seed, engine=engine
        )
        with held_still(model), torch.no_grad():
            y = run_model(model, points["x"])
            y0 = run_model(model, x0) if "y0" in prop.sources | judge.sources else None
            both = [other_points(model, p, points, x0=x0, y0=y0) for p in (prop, judge)]
            losses = prop.loss(y, labels=labels, logic=logic, **both[0])
            margins = judge.margin(y, labels=labels, **both[1])
            inside = region.contains(points)
        return AttackResult(points, margins, losses, inside, inside & (margins < 0), y)

    def spec(self) -> str:
        """The text that ``attack`` reads back to this record."""
        name = next(n for n in ATTACKS if ATTACKS[n] is type(self))
        values = ",".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self))
        return f"{name}:{values}"


def worst_of(found: Sequence[AttackResult], said: Sequence[Tensor]) -> AttackResult:
    """Of several rules, for each sample the one that is nearest to a violation, or beyond it;
    ``said``: which samples each of them speaks of at all."""
    margins = torch.stack(
        [torch.where(own, r.margins, torch.inf) for r, own in zip(found, said, strict=True)]
    )
    outside = torch.stack([~r.inside for r in found])
    beyond = torch.full_like(margins, torch.finfo(margins.dtype).max)
    best = torch.where(outside, margins + beyond, margins).argmin(0)

    def chosen(parts: Sequence[Tensor]) -> Tensor:
        return torch.stack(tuple(parts))[best, torch.arange(len(best), device=best.device)]

    names = found[0].points
    return AttackResult(
        {name: chosen([r.points[name] for r in found]) for name in names},
        chosen(list(margins)),
        chosen([r.losses for r in found]),
        chosen([r.inside for r in found]),
        chosen([r.falsified & own for r, own in zip(found, said, strict=True)]),
        chosen([r.outputs for r in found]),
    )


def attack(text: str | Attack) -> Attack:
    """``apgd``, ``apgd:20`` (steps), ``apgd:20,restarts=2,as_published=true``, ``pgd:40,step=0.1``.

    >>> attack("apgd:20,restarts=2").spec()
    'apgd:steps=20,restarts=2,as_published=False'
    """
    if isinstance(text, Attack):
        return text
    name, _, arguments = text.partition(":")
    kind = ATTACKS[name.strip().lower()]
    known = {f.name: f for f in fields(kind)}
    values: dict[str, Any] = {}
    for position, item in enumerate(part for part in arguments.split(",") if part.strip()):
        key, _, value = item.rpartition("=")
        field = key.strip() or (list(known)[position] if position < len(known) else item)
        if field not in known:
            raise InputError(
                f"attack '{name}' has no option '{field}'",
                expected=f"one of: {', '.join(known)}",
                found=f"'{item}'",
                fix=suggest(field, list(known)),
            )
        values[field] = _read(name, field, value.strip(), known[field].default)
    return kind(**values)


def _read(name: str, field: str, text: str, default: object) -> object:
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        return int(text) if isinstance(default, int) else float(text)
    except (ValueError, KeyError):
        kind = {bool: "true or false", int: "a whole number"}.get(type(default), "a number")
        raise InputError(
            f"option '{field}' of attack '{name}' cannot be read",
            expected=kind,
            found=f"'{text}'",
            fix=f"write {field}={str(default).lower()}, say",
        ) from None


def check_count(value: int, name: str, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(
            f"the number of {name} of an attack is out of range",
            expected=f"a whole number, at least {least}",
            found=repr(value),
            fix=f"pass {name}={max(least, 20)}, say",
        )


def _same(a: Region, b: Region) -> bool:
    parts = [p for r in (a, b) for p in (r.constraints, r.relates_two_points, r.is_image, r.norms)]
    plain = not any(parts)
    return plain and torch.equal(a.lower, b.lower) and torch.equal(a.upper, b.upper)


def _second(region: Region) -> Points:
    return {} if region.lower2 is None else {"x2": region.lower2.clone()}


def check_engine(engine: Engine) -> Engine:
    if engine not in ENGINES:
        raise InputError(
            f"unknown engine '{engine}'",
            expected=" or ".join(ENGINES),
            found=f"'{engine}'",
            fix=suggest(str(engine), list(ENGINES)),
        )
    return engine


def _check_batch(x0: Tensor, labels: Tensor | None, engine: Engine) -> None:
    check_engine(engine)
    if not x0.is_floating_point() or x0.dim() < 2:
        raise InputError(
            "the data points have the wrong shape",
            expected="a floating-point tensor (batch, ...) in raw units",
            found=f"{x0.dtype} of shape {tuple(x0.shape)}",
            fix="pass images as floats, with a leading batch axis",
        )
    check_inputs(x0)
    if labels is not None and len(labels) != len(x0):
        raise InputError(
            "labels and data points differ in number",
            expected=f"{len(x0)} labels",
            found=str(len(labels)),
            fix="pass the labels of the same samples",
        )
