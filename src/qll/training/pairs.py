"""Rules over two points that may be as near as one likes: monotonicity, Lipschitz bounds.

Such a rule holds with equality where both points are one, so that an attack of single pairs drives
them together and sees nothing. What matters there is the quotient of the difference and the step:
pairs are drawn near each other and compared in units of their distance (Liu et al. 2020, *Certified
monotonic neural networks*, have the derivative itself as the limit of it).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qll.errors import InputError
from qll.logics.base import Logic
from qll.property import Property
from qll.regions import Region
from qll.training.loss import PropertyTerm, property_term

# The distance of a near pair, as a share of that of a pair of the region.
NEAR = 1.0 / 64
# Pairs that are drawn in a step, and of these, the worst that are trained on. The slopes of a ReLU
# network are constant between its kinks: there is no gradient to follow to a worse pair.
_DRAWN, _TRAINED = 2048, 64
_FACE = 0.25  # the chance of an input to be put at either end


def may_meet(prop: Property, x: Tensor) -> bool:
    """Whether the points of the rule's pairs may be one and the same, where it then holds with
    equality, whatever the outputs are."""
    if len(prop.binders) < 2 or "y2" not in prop.sources:
        return False
    region = Region.of(prop, x[:16])
    first = region.sample(torch.Generator().manual_seed(0))["x"]
    tolerance = 1e-5 * float(first.abs().max().clamp(min=1.0))
    if not bool(region.contains({"x": first, "x2": first}, tolerance).all()):
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
    count = _DRAWN
    rows = torch.arange(count) % len(x)
    region = Region.of(prop, x[rows])
    draw = torch.Generator().manual_seed(seed)
    points = region.sample(draw)
    if prop.is_closed:
        # A quarter at the data, which uniform samples of a domain miss; half of it pushed to its
        # faces, where a network is extrapolating and most often wrong.
        ends = torch.rand(region.lower.shape, generator=draw)
        faces = torch.where(ends < _FACE, region.lower, points["x"])
        faces = torch.where(ends > 1 - _FACE, region.upper, faces)
        start = torch.cat((x[rows][: count // 4], faces[count // 4 : 3 * count // 4],
                           points["x"][3 * count // 4 :]))  # fmt: skip
        points = region.project({"x": start, "x2": points["x2"]})
    second = points["x"] + NEAR * (points["x2"] - points["x"])
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
    near = prop.with_scales(y=steps, x=[NEAR * s for s in inputs])
    pair = {"x": points["x"], "x2": second}
    with torch.no_grad():
        found = property_term(model, near, pair, x0=x[rows], labels=None, logic=logic)
    worst = found.losses.topk(_TRAINED).indices
    pair = {name: p[worst] for name, p in pair.items()}
    return property_term(model, near, pair, x0=x[rows[worst]], labels=None, logic=logic)
