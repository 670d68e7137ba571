"""What bounds a region, sample by sample, while it is put together: boxes, and what cuts them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from qll.errors import InputError
from qll.formula.hard import Affine, Slot, affine, negated
from qll.formula.nodes import Ball, Box, PointBinder, Quantity
from qll.formula.normal import cases, demands
from qll.formula.question import Parts
from qll.formula.rewrite import Grounder, Shape
from qll.formula.vectors import Image, Perturbed
from qll.property import Property
from qll.regions.frame import Frame

_INPUTS = ("x", "x2", "x0")


def ties_of(constraints: Sequence[Affine]) -> list[int]:
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


def mask(slots: set[Slot], point: str, x0: Tensor) -> Tensor | None:
    own = [k for source, k in slots if source == point]
    if not own:
        return None
    mask = torch.zeros(math.prod(x0.shape[1:]), dtype=torch.bool, device=x0.device)
    mask[own] = True
    return mask


def constraints_of(parts: Parts, binder: PointBinder) -> list[Affine]:
    """Of one point; those of balls and boxes are in the box, a distance from x is kept apart."""
    before = len(parts.constraints)
    kept_apart = Ball | Box | Image | Perturbed
    said = tuple(part for part in binder.parts if not isinstance(part, kept_apart))
    parts.place(PointBinder(binder.point, said))
    return parts.constraints[before:]


def premises(prop: Property, x0: Tensor) -> list[Affine]:
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


class Sides:
    """The boxes of x and x2 while they are cut."""

    def __init__(self, x0: Tensor) -> None:
        self.x0, self.flat = x0, x0.flatten(1)
        self.lower: dict[str, Tensor] = {}
        self.upper: dict[str, Tensor] = {}
        self.folded = False

    def around(self, point: str, hull: tuple[Tensor, Tensor]) -> None:
        """A box around the image of a map."""
        low, high = (side.reshape(self.x0.shape) for side in hull)
        self.lower[point] = torch.maximum(self.lower[point], low)
        self.upper[point] = torch.minimum(self.upper[point], high)
        self.folded = True

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
        for k in ties_of(constraints):
            for sides, most in ((self.lower, False), (self.upper, True)):
                for one, other in (("x", "x2"), ("x2", "x")):
                    self._cut(sides, one, k, sides[other].flatten(1)[:, k], most=most)

    def round(self, integers: set[Slot]) -> None:
        for point in self.lower:
            whole = mask(integers, point, self.x0)
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


def frame_of(parts: Parts, binder: PointBinder, x0: Tensor) -> Frame | None:
    """The map that the point is the image of, if there is one."""
    for part in binder.parts:
        if isinstance(part, Image | Perturbed):
            return Frame.of(parts.move(part), x0)
    return None


def box_of(
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


def check_bounded(lower: Tensor, upper: Tensor, point: str) -> None:
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


def check_filled(lower: Tensor, upper: Tensor, point: str) -> None:
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
