"""Signed-gradient ascent by autograd: the reference of the compiled attack, for any network that
torch can differentiate, any formula, any region and any device. ``qll.kernels.schedule`` states the
mathematics; restarts are stacked in the batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qll.attacks.problem import AttackBatch, Points
from qll.kernels.schedule import RHO, Schedule
from qll.kernels.starts import run_keys, uniform_numbers
from qll.regions import Region
from qll.regions.parameters import Parameters


def ascend(problem: AttackBatch, schedule: Schedule, runs: int) -> Points:
    """The point of largest loss of ``runs`` random starts, for each sample; of a map in several
    cases every case has a start of its own."""
    frames = (problem.region.frame, problem.region.frame2)
    runs = max(runs, *(1 if frame is None else len(frame.least) for frame in frames))
    region = _stack(problem.region, runs)
    space = Parameters(region) if region.is_image else Plain(region)
    widths = _widths(problem, space, runs)
    state = _State.start(problem, space, runs)
    best = state.points
    best_grads = state.grads
    best_values = state.values
    checked = state.values
    size = torch.full_like(state.values, schedule.step)
    rises = torch.zeros_like(state.values)
    # The published counter compares the first step with 0, and its second condition never applies.
    last = torch.zeros_like(state.values) if schedule.as_published else state.values
    reduced = torch.full_like(state.values, schedule.as_published, dtype=torch.bool)
    before, here, grads = state.points, state.points, state.grads
    for k, window in enumerate(schedule.windows):
        alpha = schedule.alpha if k > 0 else 1.0
        after = _step(space, here, before, grads, widths, size, alpha)
        values, grads = _evaluate(problem, space, after, runs, gradient=k + 1 < schedule.steps)
        before, here = here, after
        better = values > best_values
        best = _choose(better, here, best)
        best_grads = _choose(better, grads, best_grads)
        best_values = torch.where(better, values, best_values)
        rises += values > last
        last = values
        if window:
            limit = RHO * window
            few = rises <= limit if schedule.as_published else rises < limit
            reduced = few | (~reduced & (checked >= best_values))
            size = torch.where(reduced, size / 2, size)
            here = _choose(reduced, best, here)
            grads = _choose(reduced, best_grads, grads)
            last = torch.where(reduced, best_values, last)
            checked = best_values
            rises = torch.zeros_like(rises)
    return _best_run(space.expand(best), best_values, runs)


@dataclass(frozen=True)
class Plain:
    """The space of a search where points are moved themselves."""

    region: Region

    def expand(self, held: Points) -> Points:
        return held

    def project(self, held: Points) -> Points:
        return self.region.project(held)


Space = Plain | Parameters


@dataclass
class _State:
    points: Points
    values: Tensor
    grads: Points

    @classmethod
    def start(cls, problem: AttackBatch, space: Space, runs: int) -> _State:
        points = space.project(_starts(problem, space, runs))
        values, grads = _evaluate(problem, space, points, runs, gradient=True)
        return cls(points, values, grads)


def _evaluate(
    problem: AttackBatch, space: Space, points: Points, runs: int, *, gradient: bool
) -> tuple[Tensor, Points]:
    if not gradient:
        return problem.loss(space.expand(points), repeats=runs).detach(), points
    with torch.enable_grad():
        leaves = {name: t.detach().requires_grad_(True) for name, t in points.items()}
        losses = problem.loss(space.expand(leaves), repeats=runs)
        if not losses.requires_grad:  # every sample's formula is constant
            return losses.detach(), {name: torch.zeros_like(t) for name, t in points.items()}
        found = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)
    grads = {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(leaves.items(), found, strict=True)
    }
    return losses.detach(), grads


def _step(
    space: Space,
    here: Points,
    before: Points,
    grads: Points,
    widths: Mapping[str, Tensor],
    size: Tensor,
    alpha: float,
) -> Points:
    aim = space.project(
        {
            name: point + widths[name] * _by_sample(size, point) * torch.sign(grads[name])
            for name, point in here.items()
        }
    )
    if alpha == 1.0:
        return aim
    return space.project(
        {
            name: point + alpha * (aim[name] - point) + (1 - alpha) * (point - before[name])
            for name, point in here.items()
        }
    )


def _starts(problem: AttackBatch, space: Space, runs: int) -> Points:
    """Uniform in the box before the valid range cuts it, as the compiled attack has them; of a map
    uniform in its parameters."""
    box = problem.box
    samples = problem.samples
    numbers = _uniform(problem.seed, runs * samples, box.lower)
    points = {"x": _repeated(box.lower, runs) + numbers * _repeated(box.width, runs)}
    region = problem.region
    if region.lower2 is not None and region.upper2 is not None:
        if region.radius2 is None:
            low, width = _repeated(region.lower2, runs), _repeated(region.upper2, runs)
            width = width - low
        else:
            low = points["x"] - region.radius2
            width = torch.as_tensor(2 * region.radius2).to(low).expand_as(low)
        # Another stream than that of x.
        points["x2"] = low + _uniform(problem.seed + (1 << 62), runs * samples, low) * width
    if isinstance(space, Parameters):
        for number, (name, frame) in enumerate(space.frames.items()):
            like = box.lower.new_empty(1, frame.count)
            seed = problem.seed + (number << 62)
            numbers = _uniform(seed, runs * samples, like)
            points[name] = frame.start(numbers, torch.arange(len(numbers)) // samples)
    return points


def _uniform(seed: int, runs: int, like: Tensor) -> Tensor:
    inputs = int(np.prod(like.shape[1:]))
    numbers = uniform_numbers(run_keys(seed, runs), inputs)
    return torch.from_numpy(numbers).to(like).reshape(runs, *like.shape[1:])


def _widths(problem: AttackBatch, space: Space, runs: int) -> dict[str, Tensor]:
    widths = {"x": problem.box.width}
    region = problem.region
    if region.lower2 is not None and region.upper2 is not None:
        whole = region.upper2 - region.lower2
        if region.radius2 is not None:
            whole = torch.minimum(whole, torch.as_tensor(2 * region.radius2).to(whole))
        widths["x2"] = whole
    found = {name: _repeated(width, runs) for name, width in widths.items()}
    if isinstance(space, Parameters):
        found.update({name: space.widths(name) for name in space.frames})
    return found


def _stack(region: Region, runs: int) -> Region:
    """The region once for each run, one after the other."""
    rows = torch.arange(len(region.x0), device=region.x0.device).repeat(runs)
    return region if runs == 1 else region[rows]


def _repeated(t: Tensor, runs: int) -> Tensor:
    return t if runs == 1 else t.repeat(runs, *(1,) * (t.dim() - 1))


def _by_sample(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *(1,) * (like.dim() - 1))


def _choose(mask: Tensor, new: Points, old: Points) -> Points:
    return {name: torch.where(_by_sample(mask, t), t, old[name]) for name, t in new.items()}


def _best_run(points: Points, values: Tensor, runs: int) -> Points:
    if runs == 1:
        return points
    samples = len(values) // runs
    pick = values.reshape(runs, samples).argmax(0)
    rows = pick * samples + torch.arange(samples, device=values.device)
    return {name: t[rows] for name, t in points.items()}
