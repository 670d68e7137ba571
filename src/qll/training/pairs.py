"""Rules over two points that may be as near as one likes: monotonicity, Lipschitz bounds.

Such a rule holds with equality where both points are one, so that an attack of single pairs drives
them together and sees nothing. What matters there is the quotient of the difference and the step:
pairs are drawn near each other and compared in units of their distance (Liu et al. 2020, *Certified
monotonic neural networks*, have the derivative itself as the limit of it).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qll.attacks.problem import Points
from qll.bounds.steps import KNOWN, StepBounds, step_bounds
from qll.errors import InputError
from qll.formula.nodes import SOURCES
from qll.logics.base import Logic
from qll.property import Property
from qll.regions import Region
from qll.training.loss import PropertyTerm, property_term

# The distance of a near pair, as a share of that of a pair of the region.
NEAR = 1.0 / 64
# Pairs that are drawn in a step, and of these, the worst that are trained on. The slopes of a ReLU
# network are constant between its kinks: there is no gradient to follow to a worse pair.
_DRAWN, _TRAINED = 2048, 64
_BOXES = 512  # of which the worst are trained on, likewise
_LEAST_SHARE = 1e-6  # of the region's width: pairs nearer than this have no direction
_FACE = 0.25  # the chance of an input to be put at either end


def may_meet(prop: Property, x: Tensor) -> bool:
    """Whether the points of the rule's pairs may be one and the same, where it then holds with
    equality, whatever the outputs are. Looked at once for a property."""
    if len(prop.binders) < 2 or "y2" not in prop.sources:
        return False
    if "meets" not in prop._cache:
        prop._cache["meets"] = _meet(prop, x)
    return bool(prop._cache["meets"])


def _meet(prop: Property, x: Tensor) -> bool:
    region = Region.of(prop, x[:16])
    first = region.sample(torch.Generator().manual_seed(0))["x"]
    if not bool(region.contains({"x": first, "x2": first}, _inexact(first)).all()):
        return False
    outputs = prop.outputs or prop.specification.outputs or 1
    y = torch.linspace(-1.0, 1.0, len(first) * outputs).reshape(len(first), outputs).to(first)
    if prop.uses_labels or prop.sources & {"y0"}:
        return False
    same = {"x": first, "x2": first, "x0": x[: len(first)], "y2": y}
    margins = prop.margin(y, **{name: t for name, t in same.items() if name in prop.sources})
    return bool((margins == 0).all())


def near_term(
    model: nn.Module, prop: Property, x: Tensor, *, logic: Logic, seed: int
) -> PropertyTerm:
    """The property at the worst of many pairs near each other, half of them at data, in units of
    their distance. Whole numbers are not kept whole here: what holds between them holds at them."""
    rows = torch.arange(_DRAWN) % len(x)
    region = Region.of(prop, x[rows])
    pair = _near(region, _drawn(prop, region, x[rows], seed), seed)
    near = in_steps(prop, x)
    with torch.no_grad():
        found = property_term(model, near, pair, x0=x[rows], labels=None, logic=logic)
    worst = found.losses.topk(_TRAINED).indices
    pair = {name: p[worst] for name, p in pair.items()}
    return property_term(model, near, pair, x0=x[rows[worst]], labels=None, logic=logic)


def boxed_term(
    model: nn.Module,
    prop: Property,
    x: Tensor,
    *,
    logic: Logic,
    seed: int,
    size: float,
    found: Points | None = None,
) -> PropertyTerm:
    """A bound of the property over boxes in which a pair is moved about, the worst of many: boxes
    of ``size`` of the region's width. ``found`` are pairs to look around beside those drawn; where
    both points may be one (None), the pairs are near each other, in units of their distance."""
    rows = torch.arange(_BOXES) % len(x)
    region = Region.of(prop, x[rows])
    points = _drawn(prop, region, x[rows], seed)
    if found is None:
        points, prop = _near(region, points, seed), in_steps(prop, x)
    else:
        rows = torch.cat((rows, torch.arange(len(x))))
        region = Region.of(prop, x[rows])
        points = {name: torch.cat((p, found[name].detach())) for name, p in points.items()}
    lower, upper, step = _boxes(region, points, size)
    with torch.no_grad():
        losses = prop.upper(moved_bounds(model, prop, lower, upper, step), logic=logic)
    worst = losses.topk(min(_TRAINED, len(losses))).indices
    bounds = moved_bounds(model, prop, lower[worst], upper[worst], step[worst])
    losses = prop.upper(bounds, logic=logic)
    with torch.no_grad():
        margins = -prop.enclose(bounds, logic="boolean")[1]
    return PropertyTerm(losses, margins, {name: p[worst] for name, p in points.items()})


def spread(prop: Property, points: Points, x0: Tensor, draw: torch.Generator) -> Points:
    """Near pairs of the given ones' direction, somewhere between their points: of a pair that
    breaks such a rule, one of them does. As far apart as near pairs are."""
    region = Region.of(prop, x0)
    x, whole = points["x"], points["x2"] - points["x"]
    width = (region.upper - region.lower).clamp(min=torch.finfo(x.dtype).tiny)
    share = (whole.abs() / width).flatten(1).amax(1).clamp(min=_LEAST_SHARE)
    shape = (-1,) + (1,) * (x.dim() - 1)
    at = torch.rand(len(x), generator=draw, dtype=x.dtype).to(x.device).reshape(shape)
    start = x + at * whole
    return {"x": start, "x2": start + NEAR * whole / share.reshape(shape)}


def moved_bounds(
    model: nn.Module, prop: Property, lower: Tensor, upper: Tensor, step: Tensor | None = None
) -> StepBounds:
    """What the property speaks of, for x in boxes and x2 a step from it."""
    sources = [source for source in SOURCES if source in prop.sources and source in KNOWN]
    step = torch.zeros_like(lower) if step is None else step
    return step_bounds(model, lower, upper, step, sources)


def _drawn(prop: Property, region: Region, x: Tensor, seed: int) -> Points:
    """Pairs of the region; of a closed rule, some at the data ``x``."""
    count = len(x)
    draw = torch.Generator().manual_seed(seed)
    points = region.sample(draw)
    if not prop.is_closed:
        return points
    # A quarter at the data, which uniform samples of a domain miss; half of it pushed to its
    # faces, where a network is extrapolating and most often wrong.
    ends = torch.rand(region.lower.shape, generator=draw)
    faces = torch.where(ends < _FACE, region.lower, points["x"])
    faces = torch.where(ends > 1 - _FACE, region.upper, faces)
    start = torch.cat(
        (x[: count // 4], faces[count // 4 : 3 * count // 4], points["x"][3 * count // 4 :])
    )
    return region.project({"x": start, "x2": points["x2"]})


def _near(region: Region, points: Points, seed: int) -> Points:
    """Half of the pairs differ in a single input, where the region has such pairs: what rises
    along every axis rises, but not the other way round."""
    x, step = points["x"], points["x2"] - points["x"]
    flat = step.flatten(1)
    if int((flat != 0).any(0).sum()) > 1:
        draw = torch.Generator().manual_seed(seed + 1)
        order = torch.rand(flat.shape, generator=draw).to(flat.device) * (flat != 0)
        one = torch.zeros_like(flat).scatter_(1, order.argmax(1, keepdim=True), 1.0)
        alone = (flat * one).reshape(step.shape)
        kept = region.contains({"x": x, "x2": x + alone}, _inexact(x))
        kept &= torch.arange(len(x), device=kept.device) % 2 == 0
        step = torch.where(kept.reshape(-1, *(1,) * (x.dim() - 1)), alone, step)
    return {"x": x, "x2": x + NEAR * step}


def _inexact(x: Tensor) -> float:
    return 1e-5 * float(x.abs().max().clamp(min=1.0))


def in_steps(prop: Property, x: Tensor) -> Property:
    """The property in units of the distance of a near pair."""
    held = prop.scales.get("y")
    outputs = prop.outputs or prop.specification.outputs
    if held is None and outputs is None:
        raise InputError(
            f"the number of outputs of property '{prop.name}' is not known",
            expected="outputs=N",
            found="none",
            fix="load the property with the network's number of outputs",
        )
    steps = [NEAR * s for s in (held or (1.0,) * int(outputs or 1))]
    inputs = prop.scales.get("x", (1.0,) * x[0].numel())
    return prop.with_scales(y=steps, x=[NEAR * s for s in inputs])


def _boxes(region: Region, points: Points, size: float) -> tuple[Tensor, Tensor, Tensor]:
    """Where x may lie such that both points stay in the region's box, and the step between them.
    Entries of one-hot groups stay as they are, whole numbers whole."""
    x, step = points["x"], points["x2"] - points["x"]
    radius = (region.upper - region.lower) * (size / 2)
    hot = [k for group in region.groups for point, k in group if point == "x"]
    if hot:
        flat = radius.flatten(1).clone()
        flat[:, hot] = 0.0
        radius = flat.reshape(radius.shape)
    lower, upper = torch.maximum(x - radius, region.lower), torch.minimum(x + radius, region.upper)
    if region.lower2 is not None and region.upper2 is not None:
        lower = torch.maximum(lower, region.lower2 - step)
        upper = torch.minimum(upper, region.upper2 - step)
    if region.integers is not None:
        whole = region.integers.reshape(x.shape[1:]) & (step == 0)
        lower, upper = (
            torch.where(whole, lower.ceil(), lower),
            torch.where(whole, upper.floor(), upper),
        )
    # The pair itself is in its box, however it was rounded.
    return torch.minimum(lower, x), torch.maximum(upper, x), step
