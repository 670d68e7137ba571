"""The space in which a search moves where a region is the image of a map: its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from qll.regions.frame import Frame

Points = dict[str, Tensor]
# How often a point is drawn towards where nothing moves, until every constraint is met.
_DRAWS = 4


class Framed(Protocol):
    """What is used of a `qll.regions.Region`."""

    @property
    def x0(self) -> Tensor: ...

    @property
    def lower(self) -> Tensor: ...

    @property
    def upper(self) -> Tensor: ...

    @property
    def lower2(self) -> Tensor | None: ...

    @property
    def upper2(self) -> Tensor | None: ...

    @property
    def constraints(self) -> tuple[Any, ...]: ...

    @property
    def constraints2(self) -> tuple[Any, ...]: ...

    @property
    def frame(self) -> Frame | None: ...

    @property
    def frame2(self) -> Frame | None: ...

    def project_plain(self, points: Mapping[str, Tensor]) -> dict[str, Tensor]: ...

    def value(self, constraint: Any, points: Mapping[str, Tensor]) -> Tensor: ...


class Parameters:
    """Under the name of a point stand its parameters, or the point itself where no map gives it."""

    def __init__(self, region: Framed) -> None:
        self.region = region
        both = (("x", region.frame), ("x2", region.frame2))
        self.frames: dict[str, Frame] = {name: f for name, f in both if f is not None}

    def expand(self, held: Mapping[str, Tensor]) -> Points:
        """The points themselves."""
        found = dict(held)
        for name in ("x", "x2"):
            if name in self.frames:
                flat = self.frames[name].expand(held[name], found.get("x"))
                found[name] = flat.reshape(self.region.x0.shape)
        return found

    def fit(self, points: Mapping[str, Tensor]) -> Points:
        return {
            name: self.frames[name].fit(point, points["x"]) if name in self.frames else point
            for name, point in points.items()
        }

    def sample(self, points: Mapping[str, Tensor], generator: torch.Generator | None) -> Points:
        """Parameters in their box, and points where there is no map."""
        found = dict(points)
        for name, frame in self.frames.items():
            like = self.region.x0
            numbers = torch.rand(
                (len(like), frame.count), generator=generator, dtype=like.dtype, device=like.device
            )
            choice = torch.randint(len(frame.least), (len(like),), generator=generator)
            found[name] = frame.start(numbers, choice)
        return self.project(found)

    def widths(self, name: str) -> Tensor:
        frame = self.frames[name]
        wide = frame.most.amax(0) - frame.least.amin(0)
        return wide.expand(len(self.region.x0), -1)

    def project(self, held: Mapping[str, Tensor]) -> Points:
        """Into the parameters' box, then towards where nothing moves until boxes and constraints of
        the points are met."""
        found = dict(held)
        for name, frame in self.frames.items():
            found[name] = frame.clamp(held[name])
        plain = {name: point for name, point in found.items() if name not in self.frames}
        if plain:
            found.update(self._plain(plain, self.expand(found)))
        still = {
            name: frame.still(found[name]) if name in self.frames else found[name]
            for name, frame in self.frames.items()
        }
        for _ in range(_DRAWS):
            share = self._share(found, {**found, **still})
            if bool((share >= 1).all()):
                break
            for name, rest in still.items():
                found[name] = rest + share[:, None] * (found[name] - rest)
        return found

    def _plain(self, plain: Mapping[str, Tensor], points: Points) -> Points:
        """Points that no map gives are projected as ever."""
        moved = self.region.project_plain({**points, **plain})
        return {name: moved[name] for name in plain}

    def _share(self, held: Points, still: Points) -> Tensor:
        """How much of the way from where nothing moves every constraint allows, (batch,)."""
        region = self.region
        here, rest = self.expand(held), self.expand(still)
        share = torch.ones(len(region.x0), dtype=region.x0.dtype, device=region.x0.device)
        sides = [("x", region.lower, region.upper)]
        if region.lower2 is not None and region.upper2 is not None:
            sides.append(("x2", region.lower2, region.upper2))
        over = []
        for name, low, high in sides:
            if name in self.frames:
                now, before = here[name].flatten(1), rest[name].flatten(1)
                low, high = low.flatten(1), high.flatten(1)
                eps = 4 * torch.finfo(now.dtype).eps * torch.maximum(low.abs(), high.abs())
                over += [(now - high - eps, before - high), (low - eps - now, low - before)]
        for constraint in (*region.constraints, *region.constraints2):
            over.append((region.value(constraint, here)[:, None],
                         region.value(constraint, rest)[:, None]))  # fmt: skip
        for now, before in over:
            room = (-before).clamp(min=0.0)
            part = torch.where(now > 0, room / (now.clamp(min=0.0) + room).clamp(min=1e-300), 1.0)
            share = torch.minimum(share, part.amin(1))
        return share
