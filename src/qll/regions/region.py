"""The region of a property around a batch of data points, as tensors.

A region is a box for each sample, linear constraints on top of it and, for properties that relate
two points, the same for ``x2``, whose ball may be around ``x``. Radii and bounds are raw input
units; nothing here knows of normalisation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from qll.errors import InputError
from qll.formula.hard import Affine, Slot, affine, negated
from qll.formula.nodes import Ball, Box, PointBinder, Quantity
from qll.formula.normal import cases, demands
from qll.formula.question import Parts
from qll.formula.rewrite import Grounder, Shape
from qll.property import Property

# Alternating projections onto box and half-spaces: enough for the handful of constraints that
# properties have; what is still outside afterwards is reported by `contains`, never hidden.
_PROJECTION_ROUNDS = 200
_INPUTS = ("x", "x2", "x0")


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
        sides, radius2 = _Sides(x0), None
        parts = Parts(grounder, math.prod(x0.shape[1:]))
        sides.lower["x"], sides.upper["x"], _ = _box(prop, parts, first, x0)
        for binder in rest:
            sides.lower["x2"], sides.upper["x2"], radius2 = _box(prop, parts, binder, x0)
        for point in sides.lower:
            _check_filled(sides.lower[point], sides.upper[point], point)
        constraints = [sides.fold(_constraints(parts, binder)) for binder in prop.binders]
        sides.fold(_premises(prop, x0), keep=False)
        sides.round(parts.integers)
        _check_bounded(sides.lower["x"], sides.upper["x"], "x")
        whole = [_mask(parts.integers, name, x0) for name in ("x", "x2")]
        if not rest:
            lower, upper = sides.lower["x"], sides.upper["x"]
            return cls(x0, lower, upper, constraints[0], integers=whole[0], folded=sides.folded,
                       groups=tuple(parts.groups))  # fmt: skip
        sides.tie(constraints[1])
        if radius2 is not None:
            least, most = sides.lower["x"] - radius2, sides.upper["x"] + radius2
            sides.lower["x2"] = torch.maximum(sides.lower["x2"], least)
            sides.upper["x2"] = torch.minimum(sides.upper["x2"], most)
        _check_bounded(sides.lower["x2"], sides.upper["x2"], "x2")
        return cls(
            x0, sides.lower["x"], sides.upper["x"], constraints[0],
            sides.lower["x2"], sides.upper["x2"], radius2, constraints[1],
            whole[0], whole[1], sides.folded, tuple(parts.groups),
        )  # fmt: skip

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
            for constraint in self._loose:
                violated |= self._project_onto(constraint, current)
            current = self._clamp(current)
            if not violated:
                break
        return current

    def contains(self, points: Mapping[str, Tensor], tolerance: float = 0.0) -> Tensor:
        """Which samples lie in the region, ``(batch,)``; exact at tolerance 0."""
        x = points["x"]
        inside = _within(x, self.lower, self.upper, tolerance)
        for name, whole in (("x", self.integers), ("x2", self.integers2)):
            if whole is not None and name in points:
                values = points[name].flatten(1)[:, whole]
                inside &= ((values - values.round()).abs() <= tolerance).all(1)
        for group in self.groups:
            if group[0][0] in points:
                total = points[group[0][0]].flatten(1)[:, [k for _, k in group]].sum(1)
                inside &= (total - 1).abs() <= tolerance
        for constraint in self.constraints:
            inside &= self._value(constraint, points) <= tolerance
        if self.lower2 is not None and self.upper2 is not None:
            x2 = points["x2"]
            inside &= _within(x2, self.lower2, self.upper2, tolerance)
            if self.radius2 is not None:
                inside &= ((x2 - x).abs() <= self.radius2 + tolerance).flatten(1).all(1)
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
            self.integers, self.integers2, self.folded, self.groups,
        )  # fmt: skip

    # --- how ---

    @cached_property
    def _tied(self) -> list[int]:
        return _ties(self.constraints2)

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
        points["x"] = _one_hot(
            _rounded(torch.clamp(points["x"], self.lower, self.upper), self.integers),
            points["x"],
            self._hot("x"),
        )
        if self.lower2 is not None and self.upper2 is not None:
            low, high = self.lower2, self.upper2
            if self.radius2 is not None:
                low = torch.maximum(low, points["x"] - self.radius2)
                high = torch.minimum(high, points["x"] + self.radius2)
            points["x2"] = _one_hot(
                _rounded(torch.clamp(points["x2"], low, high), self.integers2),
                points["x2"],
                self._hot("x2"),
            )
            if self.radius2 is not None:
                points["x2"] = _drawn_in(points["x2"], points["x"], self.radius2)
            ties = self._tied
            if ties:
                flat = points["x2"].flatten(1).clone()
                flat[:, ties] = points["x"].flatten(1)[:, ties]
                points["x2"] = flat.reshape(points["x2"].shape)
        return points

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


def _ties(constraints: Sequence[Affine]) -> list[int]:
    """Inputs with ``x2[k] == x[k]``: kept equal exactly, where projections come only close."""
    found = set(constraints)
    return [
        k
        for constraint in constraints
        if constraint.terms
        for k in [constraint.terms[0][0][1]]
        if constraint == affine([(("x", k), 1.0), (("x2", k), -1.0)])
        and negated(constraint) in found
    ]


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


def _one_hot(x: Tensor, aim: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
    """Of every group the entry that the search aimed at most."""
    if not groups:
        return x
    flat, wanted = x.flatten(1).clone(), aim.flatten(1)
    for group in groups:
        members = list(group)
        best = wanted[:, members].argmax(1, keepdim=True)
        flat[:, members] = torch.zeros_like(flat[:, members]).scatter(1, best, 1.0)
    return flat.reshape(x.shape)


def _mask(slots: set[Slot], point: str, x0: Tensor) -> Tensor | None:
    own = [k for source, k in slots if source == point]
    if not own:
        return None
    mask = torch.zeros(math.prod(x0.shape[1:]), dtype=torch.bool, device=x0.device)
    mask[own] = True
    return mask


def _constraints(parts: Parts, binder: PointBinder) -> list[Affine]:
    """Of one point; those of balls and boxes are in the box, a distance from x is kept apart."""
    before = len(parts.constraints)
    said = tuple(part for part in binder.parts if not isinstance(part, Ball | Box))
    parts.place(PointBinder(binder.point, said))
    return parts.constraints[before:]


def _premises(prop: Property, x0: Tensor) -> list[Affine]:
    """What the formula's premises say of single inputs, as constraints: a point at which they do
    not hold satisfies it, so that nobody needs to look there."""
    outputs = prop.outputs or prop.specification.outputs
    if outputs is None or prop.uses_labels or not prop.sources & {"x", "x2"}:
        return []
    key = ("premises", outputs, tuple(x0.shape[1:]))
    if key not in prop._cache:
        form = prop.hard_form(outputs=outputs, inputs=tuple(x0.shape[1:]))
        found = [] if len(cases(form)) > 1 else demands(form)
        prop._cache[key] = [
            negated(f) for f in found
            if isinstance(f, Affine) and f.terms and all(s in _INPUTS for (s, _), _ in f.terms)
        ]  # fmt: skip
    return prop._cache[key]  # type: ignore[no-any-return]


class _Sides:
    """The boxes of x and x2 while they are cut."""

    def __init__(self, x0: Tensor) -> None:
        self.x0, self.flat = x0, x0.flatten(1)
        self.lower: dict[str, Tensor] = {}
        self.upper: dict[str, Tensor] = {}
        self.folded = False

    def fold(self, constraints: list[Affine], *, keep: bool = True) -> tuple[Affine, ...]:
        """What is said of one input alone is cut off the box; the rest, to ``keep``."""
        left = []
        for constraint in constraints:
            own = [(slot, c) for slot, c in constraint.floats[0] if slot[0] != "x0"]
            if len(own) != 1 or own[0][0][0] not in self.lower:
                left.append(constraint)
                continue
            ((point, k), c) = own[0]
            end = self.flat.new_full((len(self.flat),), constraint.floats[1])
            for (source, index), factor in constraint.floats[0]:
                if source == "x0":
                    end = end + factor * self.flat[:, index]
            self._cut(self.upper if c > 0 else self.lower, point, k, end / -c, most=c > 0)
        return tuple(left) if keep else ()

    def _cut(
        self, sides: dict[str, Tensor], point: str, k: int, end: Tensor, *, most: bool
    ) -> None:
        flat = sides[point].flatten(1).clone()
        flat[:, k] = (torch.minimum if most else torch.maximum)(flat[:, k], end)
        sides[point] = flat.reshape(self.x0.shape)
        self.folded = True

    def tie(self, constraints: Sequence[Affine]) -> None:
        """Entries that are equal have one range."""
        for k in _ties(constraints):
            for sides, most in ((self.lower, False), (self.upper, True)):
                for one, other in (("x", "x2"), ("x2", "x")):
                    self._cut(sides, one, k, sides[other].flatten(1)[:, k], most=most)

    def round(self, integers: set[Slot]) -> None:
        for point in self.lower:
            whole = _mask(integers, point, self.x0)
            if whole is not None:
                self.folded = True
                for sides, rounded in ((self.lower, torch.ceil), (self.upper, torch.floor)):
                    flat = sides[point].flatten(1)
                    sides[point] = torch.where(whole, rounded(flat), flat).reshape(self.x0.shape)


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


def radius_of(parts: Parts, ball: Ball, like: Tensor) -> float | Tensor:
    """One number, or a tensor with one for each input."""
    sizes = parts.radii(ball)
    if min(sizes) < 0:
        raise InputError(
            "a radius of a ball is negative",
            where=str(ball.span) if ball.span else None,
            expected="0 or more, in raw input units",
            found=f"{min(sizes):g}",
            fix="check the sign of the radius",
        )
    return sizes[0] if len(sizes) == 1 else like.new_tensor(sizes).reshape(like.shape[1:])


def least_radius(one: float | Tensor | None, other: float | Tensor) -> float | Tensor:
    if one is None:
        return other
    if isinstance(one, Tensor):
        return torch.minimum(one, torch.as_tensor(other).to(one))
    return other.clamp(max=one) if isinstance(other, Tensor) else min(one, other)


def _box(
    prop: Property, parts: Parts, binder: PointBinder, x0: Tensor
) -> tuple[Tensor, Tensor, float | Tensor | None]:
    lower: Tensor | None = None
    upper: Tensor | None = None
    radius: float | Tensor | None = None
    for part in binder.parts:
        match part:
            case Ball("x0"):
                r = radius_of(parts, part, x0)
                lower, upper = _intersect(lower, upper, x0 - r, x0 + r)
            case Ball("x"):
                radius = least_radius(radius, radius_of(parts, part, x0))
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


def _check_bounded(lower: Tensor, upper: Tensor, point: str) -> None:
    # A training step comes here: one pass. NaN (inf - inf) fails the comparison.
    if lower.numel() and bool((upper - lower).abs().max() < math.inf):
        return
    if not bool(torch.isfinite(lower).all() and torch.isfinite(upper).all()):
        raise InputError(
            f"the region of {point} is unbounded",
            expected="a ball or a box that bounds every input",
            found="an input without a bound",
            fix=f"add 'ball(x0, epsilon)' or 'box(0, 1)' to the region of {point}",
        )


def _check_filled(lower: Tensor, upper: Tensor, point: str) -> None:
    """Of balls and boxes alone: where a constraint leaves nothing, a property holds vacuously."""
    if not lower.numel() or bool((upper - lower).min() >= 0):
        return
    empty = (lower > upper).flatten(1).any(1)
    if bool(empty.any()):
        first = int(torch.nonzero(empty)[0])
        raise InputError(
            f"the region of {point} is empty for {int(empty.sum())} of {len(lower)} samples",
            expected="data points inside the valid range",
            found=f"sample {first}, which lies outside it",
            fix="give the inputs in raw units, as the property's range states them",
        )
