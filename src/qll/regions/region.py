"""The region of a property around a batch of data points, as tensors.

A region is a box for each sample, linear constraints on top of it and, for properties that relate
two points, the same for ``x2``, whose ball may be around ``x``. Radii and bounds are raw input
units; nothing here knows of normalisation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qll.errors import InputError
from qll.formula.hard import Affine, affine, negated
from qll.formula.nodes import Ball, Box, Linear, PointBinder, Quantity
from qll.formula.rewrite import Grounder, Shape
from qll.property import Property

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
    radius2: float | None = None  # x2 within this distance of x
    constraints2: tuple[Affine, ...] = ()

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
        lower, upper, _ = _box(prop, first, x0)
        _check_box(lower, upper, "x")
        constraints = _constraints(grounder, first)
        if not rest:
            return cls(x0, lower, upper, constraints)
        lower2, upper2, radius2 = _box(prop, rest[0], x0)
        if radius2 is not None:
            lower2 = torch.maximum(lower2, lower - radius2)
            upper2 = torch.minimum(upper2, upper + radius2)
        _check_box(lower2, upper2, "x2")
        return cls(
            x0, lower, upper, constraints, lower2, upper2, radius2, _constraints(grounder, rest[0])
        )

    @property
    def relates_two_points(self) -> bool:
        return self.lower2 is not None

    def sample(self, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """One point for each sample: uniform in the box, then projected onto the constraints."""
        points = {"x": _uniform(self.lower, self.upper, generator)}
        if self.lower2 is not None and self.upper2 is not None:
            points["x2"] = _uniform(self.lower2, self.upper2, generator)
        return self.project(points)

    def project(self, points: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Points of the region near the given ones: exact for boxes, approximate with linear
        constraints (``contains`` says for which samples it succeeded)."""
        current = self._clamp(dict(points))
        if not (self.constraints or self.constraints2 or self.radius2 is not None):
            return current
        for _ in range(_PROJECTION_ROUNDS):
            violated = False
            for constraint in (*self.constraints, *self.constraints2):
                violated |= self._project_onto(constraint, current)
            current = self._clamp(current)
            if not violated:
                break
        return current

    def contains(self, points: Mapping[str, Tensor], tolerance: float = 0.0) -> Tensor:
        """Which samples lie in the region, ``(batch,)``; exact at tolerance 0."""
        x = points["x"]
        inside = _within(x, self.lower, self.upper, tolerance)
        for constraint in self.constraints:
            inside &= self._value(constraint, points) <= tolerance
        if self.lower2 is not None and self.upper2 is not None:
            x2 = points["x2"]
            inside &= _within(x2, self.lower2, self.upper2, tolerance)
            if self.radius2 is not None:
                inside &= ((x2 - x).abs().flatten(1) <= self.radius2 + tolerance).all(1)
            for constraint in self.constraints2:
                inside &= self._value(constraint, points) <= tolerance
        return inside

    def __getitem__(self, rows: Tensor | slice | Sequence[int]) -> Region:
        """The same region for some of the samples."""

        def take(t: Tensor | None) -> Tensor | None:
            return None if t is None else t[rows]

        return Region(
            self.x0[rows], self.lower[rows], self.upper[rows], self.constraints,
            take(self.lower2), take(self.upper2), self.radius2, self.constraints2,
        )  # fmt: skip

    # --- how ---

    def _clamp(self, points: dict[str, Tensor]) -> dict[str, Tensor]:
        points["x"] = torch.clamp(points["x"], self.lower, self.upper)
        if self.lower2 is not None and self.upper2 is not None:
            low, high = self.lower2, self.upper2
            if self.radius2 is not None:
                low = torch.maximum(low, points["x"] - self.radius2)
                high = torch.minimum(high, points["x"] + self.radius2)
            points["x2"] = torch.clamp(points["x2"], low, high)
            if self.radius2 is not None:
                points["x2"] = _drawn_in(points["x2"], points["x"], self.radius2)
            ties = self._ties()
            if ties:
                flat = points["x2"].flatten(1).clone()
                flat[:, ties] = points["x"].flatten(1)[:, ties]
                points["x2"] = flat.reshape(points["x2"].shape)
        return points

    def _ties(self) -> list[int]:
        """Inputs with ``x2[k] == x[k]``: kept equal exactly, where projections come only close."""
        found = set(self.constraints2)
        return [
            k
            for constraint in self.constraints2
            if constraint.terms
            for k in [constraint.terms[0][0][1]]
            if constraint == affine([(("x", k), 1.0), (("x2", k), -1.0)])
            and negated(constraint) in found
        ]

    def _value(self, constraint: Affine, points: Mapping[str, Tensor]) -> Tensor:
        flat = {"x0": self.x0.flatten(1), **{name: t.flatten(1) for name, t in points.items()}}
        terms, constant = constraint.floats
        total = flat["x"].new_full((len(self.x0),), constant)
        for (source, k), coefficient in terms:
            total = total + coefficient * flat[source][:, k]
        return total

    def _project_onto(self, constraint: Affine, points: dict[str, Tensor]) -> bool:
        excess = self._value(constraint, points)
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


def _drawn_in(x2: Tensor, x: Tensor, radius: float) -> Tensor:
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


def _constraints(grounder: Grounder, binder: PointBinder) -> tuple[Affine, ...]:
    found: list[Affine] = []
    for part in binder.parts:
        if isinstance(part, Linear):
            found.extend(grounder.constraints(part.formula))
    return tuple(found)


def _number(prop: Property, quantity: Quantity) -> float:
    return Grounder(prop.specification, prop.values, Shape(1)).number(quantity)


def _vector(prop: Property, bound: tuple[Quantity, ...], like: Tensor, what: str) -> Tensor:
    numbers = [_number(prop, q) for q in bound]
    if len(numbers) == 1:
        return like.new_full((), numbers[0])
    size = math.prod(like.shape[1:])
    if len(numbers) != size:
        raise InputError(
            f"{what} of property '{prop.name}' does not fit the input",
            expected=f"{size} numbers, for inputs of shape {tuple(like.shape[1:])}",
            found=f"{len(numbers)}",
            fix="give one number or one for each input",
        )
    return like.new_tensor(numbers).reshape(like.shape[1:])


def _box(prop: Property, binder: PointBinder, x0: Tensor) -> tuple[Tensor, Tensor, float | None]:
    lower: Tensor | None = None
    upper: Tensor | None = None
    radius: float | None = None
    for part in binder.parts:
        match part:
            case Ball("x0", size):
                r = _number(prop, size)
                lower, upper = _intersect(lower, upper, x0 - r, x0 + r)
            case Ball("x", size):
                r = _number(prop, size)
                radius = r if radius is None else min(radius, r)
            case Box(low, high, kind):
                least = _vector(prop, low, x0, f"the {kind}")
                most = _vector(prop, high, x0, f"the {kind}")
                lower, upper = _intersect(lower, upper, least, most)
    if lower is None or upper is None:
        return torch.full_like(x0, -math.inf), torch.full_like(x0, math.inf), radius
    return lower.expand_as(x0), upper.expand_as(x0), radius


def _intersect(
    lower: Tensor | None, upper: Tensor | None, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:
    if lower is None or upper is None:
        return low, high
    return torch.maximum(lower, low), torch.minimum(upper, high)


def _check_box(lower: Tensor, upper: Tensor, point: str) -> None:
    if lower.numel():
        # One pass: a training step comes here. NaN (inf - inf) fails both comparisons.
        narrowest, widest = torch.aminmax(upper - lower)
        if bool(narrowest >= 0) and bool(widest < math.inf):
            return
    if not bool(torch.isfinite(lower).all() and torch.isfinite(upper).all()):
        raise InputError(
            f"the region of {point} is unbounded",
            expected="a ball or a box that bounds every input",
            found="an input without a bound",
            fix=f"add 'ball(x0, epsilon)' or 'box(0, 1)' to the region of {point}",
        )
    empty = (lower > upper).flatten(1).any(1)
    if bool(empty.any()):
        first = int(torch.nonzero(empty)[0])
        raise InputError(
            f"the region of {point} is empty for {int(empty.sum())} of {len(lower)} samples",
            expected="data points inside the valid range",
            found=f"sample {first}, which lies outside it",
            fix="give the inputs in raw units, as the property's range states them",
        )
