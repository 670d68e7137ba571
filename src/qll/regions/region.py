"""The region of a property around a batch of data points, as tensors.

A region is a box for each sample, linear constraints on top of it and, for properties that relate
two points, the same for ``x2``, whose ball may be around ``x``. Radii and bounds are raw input
units; nothing here knows of normalisation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from qll.errors import InputError
from qll.formula.hard import Affine, Slot, affine, negated
from qll.formula.question import Parts
from qll.formula.rewrite import Grounder, Shape
from qll.property import Property
from qll.regions.frame import Frame
from qll.regions.norms import Norm, norms_of
from qll.regions.parameters import Parameters
from qll.regions.sides import (
    Sides,
    box_of,
    check_bounded,
    check_filled,
    constraints_of,
    frame_of,
    mask,
    premises,
    ties_of,
)

# Alternating projections onto box and half-spaces: enough for the handful of constraints that
# properties have; what is still outside afterwards is reported by `contains`, never hidden.
_PROJECTION_ROUNDS = 200


@dataclass(frozen=True)
class Region:
    """Boxes ``lower``/``upper`` of shape ``(batch, *input)``; constraints are ``<= 0``."""

    x0: Tensor
    lower: Tensor
    upper: Tensor
    constraints: tuple[Affine, ...] = ()
    lower2: Tensor | None = None
    upper2: Tensor | None = None
    radius2: float | Tensor | None = None  # x2 within this distance of x, one for each input
    constraints2: tuple[Affine, ...] = ()
    integers: Tensor | None = None  # (inputs,) bool: entries of x that are whole numbers
    integers2: Tensor | None = None
    folded: bool = False  # the box is cut by more than balls and boxes
    groups: tuple[tuple[Slot, ...], ...] = ()  # entries of which one is 1, the others 0
    frame: Frame | None = None  # x is the image of a few parameters; the box is around it
    frame2: Frame | None = None
    norms: tuple[Norm, ...] = ()  # balls in other norms than that of the largest entry
    # Entries that have one of these values, rising, and no other.
    allowed: tuple[tuple[Slot, tuple[float, ...]], ...] = ()

    @classmethod
    def of(cls, prop: Property, x0: Tensor) -> Region:
        """The region that ``prop`` quantifies over, around each row of ``x0``."""
        if not prop.binders:
            raise InputError(
                f"property '{prop.name}' has no region",
                expected="'forall x in ...:' before the formula",
                found="a formula only",
                fix="write forall x in ball(x0, 0.1): in front of it",
            )
        grounder = Grounder(
            prop.specification, prop.values, Shape(prop.outputs or 1, tuple(x0.shape[1:]))
        )
        first, *rest = prop.binders
        sides, radius2 = Sides(x0), None
        parts = Parts(grounder, math.prod(x0.shape[1:]))
        sides.lower["x"], sides.upper["x"], _ = box_of(prop, parts, first, x0)
        for binder in rest:
            sides.lower["x2"], sides.upper["x2"], radius2 = box_of(prop, parts, binder, x0)
        frames = [frame_of(parts, binder, x0) for binder in prop.binders]
        for point, frame in zip(sides.lower, frames, strict=True):
            check_filled(sides.lower[point], sides.upper[point], point)
            if frame is not None:
                sides.around(point, frame.hull(sides.lower["x"], sides.upper["x"]))
        constraints = [sides.fold(constraints_of(parts, binder)) for binder in prop.binders]
        sides.fold(premises(prop, x0), keep=False)
        sides.round(parts.integers)
        check_bounded(sides.lower["x"], sides.upper["x"], "x")
        norms = norms_of(parts, prop.binders)
        sides.folded |= bool(norms)
        whole = [mask(parts.integers, name, x0) for name in ("x", "x2")]
        if not rest:
            lower, upper = sides.lower["x"], sides.upper["x"]
            return cls(x0, lower, upper, constraints[0], integers=whole[0], folded=sides.folded,
                       groups=tuple(parts.groups), frame=frames[0], norms=norms,
                       allowed=tuple(parts.values))  # fmt: skip
        sides.tie(constraints[1])
        if radius2 is not None:
            least, most = sides.lower["x"] - radius2, sides.upper["x"] + radius2
            sides.lower["x2"] = torch.maximum(sides.lower["x2"], least)
            sides.upper["x2"] = torch.minimum(sides.upper["x2"], most)
        check_bounded(sides.lower["x2"], sides.upper["x2"], "x2")
        return cls(
            x0, sides.lower["x"], sides.upper["x"], constraints[0],
            sides.lower["x2"], sides.upper["x2"], radius2, constraints[1],
            whole[0], whole[1], sides.folded, tuple(parts.groups), frames[0], frames[1], norms,
            tuple(parts.values),
        )  # fmt: skip

    @property
    def relates_two_points(self) -> bool:
        return self.lower2 is not None

    @property
    def is_image(self) -> bool:
        return self.frame is not None or self.frame2 is not None

    def sample(
        self,
        generator: torch.Generator | None = None,
        box: tuple[Tensor, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """One point for each sample: uniform in the box, or in another ``box`` for ``x``, then
        projected onto the region."""
        points = {"x": _uniform(*(box or (self.lower, self.upper)), generator)}
        if self.lower2 is not None and self.upper2 is not None:
            points["x2"] = _uniform(self.lower2, self.upper2, generator)
        if self.is_image:
            moved = Parameters(self)
            return moved.expand(moved.sample(points, generator))
        return self.project(points)

    def project(self, points: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Points of the region near the given ones: exact for boxes, approximate with linear
        constraints (``contains`` says for which samples it succeeded)."""
        if self.is_image:
            moved = Parameters(self)
            return moved.expand(moved.project(moved.fit(points)))
        return self.project_plain(points)

    def project_plain(self, points: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As if no point were the image of a map."""
        current = self._clamp(dict(points))
        if not (self.constraints or self.constraints2 or self.radius2 is not None):
            return current
        for _ in range(_PROJECTION_ROUNDS):
            violated = False
            for constraint in self._loose:
                violated |= self._project_onto(constraint, current)
            current = self._clamp(current)
            if not violated:
                break
        return current

    def contains(self, points: Mapping[str, Tensor], tolerance: float = 0.0) -> Tensor:
        """Which samples lie in the region, ``(batch,)``; exact at tolerance 0."""
        x = points["x"]
        if self.is_image:
            return self._holds_images(points, tolerance)
        inside = _within(x, self.lower, self.upper, tolerance)
        for name, whole in (("x", self.integers), ("x2", self.integers2)):
            if whole is not None and name in points:
                values = points[name].flatten(1)[:, whole]
                inside &= ((values - values.round()).abs() <= tolerance).all(1)
        for group in self.groups:
            if group[0][0] in points:
                total = points[group[0][0]].flatten(1)[:, [k for _, k in group]].sum(1)
                inside &= (total - 1).abs() <= tolerance
        for (name, k), known in self.allowed:
            if name in points:
                own = points[name].flatten(1)[:, k : k + 1]
                inside &= ((own - own.new_tensor(known)).abs() <= tolerance).any(1)
        for norm in self.norms:
            inside &= norm.contains(points[norm.point], self.x0, tolerance)
        for constraint in self.constraints:
            inside &= self.value(constraint, points) <= tolerance
        if self.lower2 is not None and self.upper2 is not None:
            x2 = points["x2"]
            inside &= _within(x2, self.lower2, self.upper2, tolerance)
            if self.radius2 is not None:
                inside &= ((x2 - x).abs() <= self.radius2 + tolerance).flatten(1).all(1)
            for constraint in self.constraints2:
                inside &= self.value(constraint, points) <= tolerance
        return inside

    def __getitem__(self, rows: Tensor | slice | Sequence[int]) -> Region:
        """The same region for some of the samples."""

        def take(t: Tensor | None) -> Tensor | None:
            return None if t is None else t[rows]

        return Region(
            self.x0[rows], self.lower[rows], self.upper[rows], self.constraints,
            take(self.lower2), take(self.upper2), self.radius2, self.constraints2,
            self.integers, self.integers2, self.folded, self.groups,
            None if self.frame is None else self.frame[rows],
            None if self.frame2 is None else self.frame2[rows], self.norms, self.allowed,
        )  # fmt: skip

    def _holds_images(self, points: Mapping[str, Tensor], tolerance: float) -> Tensor:
        """An image in floats is off by its rounding; the other parts of the region are exact."""
        plain = replace(self, frame=None, frame2=None)
        x, inside = points["x"], torch.ones(len(self.x0), dtype=torch.bool, device=self.x0.device)
        for name, frame in (("x", self.frame), ("x2", self.frame2)):
            if frame is not None:
                inside &= frame.contains(points[name], x, tolerance)
        room = tolerance
        for low, high in ((self.lower, self.upper), (self.lower2, self.upper2)):
            if low is not None and high is not None and low.numel():
                size = float(torch.maximum(low.abs(), high.abs()).max())
                room = max(room, tolerance + 16 * torch.finfo(low.dtype).eps * size)
        return inside & plain.contains(points, room)

    # --- how ---

    @cached_property
    def _tied(self) -> list[int]:
        return ties_of(self.constraints2)

    @cached_property
    def _loose(self) -> tuple[Affine, ...]:
        """The constraints that clamping does not see to: ties are equal after it."""
        tied = {affine([(("x", k), 1.0), (("x2", k), -1.0)]) for k in self._tied}
        tied |= {negated(tie) for tie in tied}  # type: ignore[misc]
        return tuple(c for c in (*self.constraints, *self.constraints2) if c not in tied)

    def _hot(self, point: str) -> list[list[int]]:
        """Groups of which one entry is 1: clamping leaves the one that is aimed at most."""
        return [[k for _, k in group] for group in self.groups if group[0][0] == point]

    def _clamp(self, points: dict[str, Tensor]) -> dict[str, Tensor]:
        for norm in self.norms:  # clamping afterwards only shortens, where x0 is in the box
            points[norm.point] = norm.drawn_in(points[norm.point], self.x0)
        points["x"] = _one_hot(
            _rounded(torch.clamp(points["x"], self.lower, self.upper), self.integers),
            points["x"],
            (self.lower, self.upper),
            self._hot("x"),
        )
        points["x"] = self._chosen("x", points["x"], self.lower, self.upper)
        if self.lower2 is not None and self.upper2 is not None:
            low, high = self.lower2, self.upper2
            if self.radius2 is not None:
                low = torch.maximum(low, points["x"] - self.radius2)
                high = torch.minimum(high, points["x"] + self.radius2)
            points["x2"] = _one_hot(
                _rounded(torch.clamp(points["x2"], low, high), self.integers2),
                points["x2"],
                (low, high),
                self._hot("x2"),
            )
            points["x2"] = self._chosen("x2", points["x2"], low, high)
            if self.radius2 is not None:
                points["x2"] = _drawn_in(points["x2"], points["x"], self.radius2)
            ties = self._tied
            if ties:
                flat = points["x2"].flatten(1).clone()
                flat[:, ties] = points["x"].flatten(1)[:, ties]
                points["x2"] = flat.reshape(points["x2"].shape)
        return points

    def _chosen(self, point: str, x: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """With the nearest of its values, within the box, where an entry has only some."""
        own = [(k, values) for (name, k), values in self.allowed if name == point]
        if not own:
            return x
        flat, low, high = x.flatten(1).clone(), lower.flatten(1), upper.flatten(1)
        for k, values in own:
            known, at = flat.new_tensor(values), slice(k, k + 1)
            away = (flat[:, at] - known).abs()
            away = away.masked_fill((known < low[:, at]) | (known > high[:, at]), torch.inf)
            flat[:, k] = known[away.argmin(1)]
        return flat.reshape(x.shape)

    def value(self, constraint: Affine, points: Mapping[str, Tensor]) -> Tensor:
        flat = {"x0": self.x0.flatten(1), **{name: t.flatten(1) for name, t in points.items()}}
        terms, constant = constraint.floats
        total = flat["x"].new_full((len(self.x0),), constant)
        for (source, k), coefficient in terms:
            total = total + coefficient * flat[source][:, k]
        return total

    def _project_onto(self, constraint: Affine, points: dict[str, Tensor]) -> bool:
        excess = self.value(constraint, points)
        if not bool((excess > 0).any()):
            return False
        terms, constant = constraint.floats
        free = [(s, k, c) for (s, k), c in terms if s != "x0"]
        scale = sum(c * c for _, _, c in free)
        if scale == 0.0:
            return False
        # A step a hair beyond the boundary ends inside despite rounding; not so for an equation,
        # which has another constraint on the far side.
        beyond = 0.0
        if negated(constraint) not in (*self.constraints, *self.constraints2):
            sizes = [abs(constant)]
            for (source, k), c in terms:
                values = self.x0 if source == "x0" else points[source]
                sizes.append(abs(c) * float(values.flatten(1)[:, k].abs().max()))
            beyond = 4 * torch.finfo(excess.dtype).eps * sum(sizes)
        step = torch.where(excess > 0, (excess * (1.0 + 1e-6) + beyond) / scale, 0.0)
        for source, k, coefficient in free:
            flat = points[source].flatten(1).clone()
            flat[:, k] -= coefficient * step
            points[source] = flat.reshape(points[source].shape)
        return True


def _uniform(lower: Tensor, upper: Tensor, generator: torch.Generator | None) -> Tensor:
    noise = torch.rand(lower.shape, generator=generator, dtype=lower.dtype, device=lower.device)
    return torch.clamp(lower + noise * (upper - lower), lower, upper)


def _drawn_in(x2: Tensor, x: Tensor, radius: float | Tensor) -> Tensor:
    """``x + radius`` may round to a number whose distance from x is more than the radius: then the
    next one towards x is taken, and once more where the difference itself was rounded."""
    for _ in range(2):
        outside = (x2 - x).abs() > radius
        if not bool(outside.any()):
            break
        x2 = torch.where(outside, torch.nextafter(x2, x), x2)
    return x2


def _within(x: Tensor, lower: Tensor, upper: Tensor, tolerance: float) -> Tensor:
    inside = (x >= lower - tolerance) & (x <= upper + tolerance)
    return inside.flatten(1).all(1)


def _rounded(x: Tensor, whole: Tensor | None) -> Tensor:
    """Whole numbers where they have to be; the box has whole ends there."""
    if whole is None:
        return x
    flat = x.flatten(1)
    return torch.where(whole, flat.round(), flat).reshape(x.shape)


def _one_hot(
    x: Tensor, aim: Tensor, box: tuple[Tensor, Tensor], groups: Sequence[Sequence[int]]
) -> Tensor:
    """Of every group the entry that the search aimed at most, among those that may be 1."""
    if not groups:
        return x
    flat, wanted = x.flatten(1).clone(), aim.flatten(1)
    low, high = box[0].flatten(1), box[1].flatten(1)
    for group in groups:
        members = list(group)
        # A rule about one value of a category leaves the box no other: low is 1 there.
        liked = wanted[:, members].masked_fill(high[:, members] < 1, -torch.inf)
        liked = liked.masked_fill(low[:, members] > 0, torch.inf)
        best = liked.argmax(1, keepdim=True)
        flat[:, members] = torch.zeros_like(flat[:, members]).scatter(1, best, 1.0)
    return flat.reshape(x.shape)
