"""How far a region reaches, against the data: an epsilon in 255ths is seen before any work."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from torch import Tensor

from qll.errors import QllError
from qll.property import Property
from qll.regions import Region
from qll.training.progress import Reporter

_POINTS = 100  # whose regions are looked at
_FEWEST = 8  # data points that may tell what the data do
_FAR = 8  # deviations that a region may reach before one looks twice


@dataclass(frozen=True)
class Reach:
    """What can move, by how much; ``far``: one should look twice; ``across``: every data point
    reaches all that the data ever do, so what the network is to predict says nothing."""

    said: str
    fix: str = ""
    far: bool = False
    across: bool = False


def reach(prop: Property, x: Tensor) -> Reach | None:
    """Of the regions around some of the data ``x`` (n, ...); None where that cannot be said."""
    try:
        region = Region.of(prop, x[:_POINTS])
    except QllError:
        return None
    width = (region.upper - region.lower).flatten(1).amax(0)
    spread = x.flatten(1).std(0)
    moved = width > 0
    if not bool(moved.any()):
        return Reach("a single point: nothing in it may move", far=True)
    held = spread[moved & (spread > 0)]
    if not len(held):
        return None
    ratio = float((width[moved & (spread > 0)] / held).median())
    said = f"{int(moved.sum())} of {len(moved)} inputs move, by {ratio:.2g} deviations (median)"
    # All that the data ever do is within reach: a radius in 255ths, mostly.
    span = (x.flatten(1).amax(0) - x.flatten(1).amin(0))[moved]
    across = not prop.is_closed and bool((width[moved] >= span).all())
    if not across and ratio <= _FAR:
        return Reach(said)
    if across:
        said += ": all the way from the least to the greatest value in the data"
    fix = ""
    if "epsilon" in prop.values:
        ends = f"the data go from {float(x.min()):.4g} to {float(x.max()):.4g}"
        fix = f"{ends}, and epsilon is in their units: if it was meant in 255ths, write 8/255"
    return Reach(said, fix, far=True, across=across)


def warn_of_reach(
    prop: Property, x: Tensor, reporter: Reporter | None = None, *, level: int = 3
) -> None:
    """Says, before training, that every region holds all of the data; ``level`` is how far up the
    caller's own code is, where it is Python's warning."""
    found = reach(prop, x) if len(x) >= _FEWEST else None
    if found is None or not found.across or not found.fix:
        return
    said = f"with epsilon = {prop.value_of('epsilon'):g}, {found.said}.\nFix: {found.fix}."
    if reporter is None:
        warnings.warn(said, stacklevel=level)
    else:
        reporter.note(f"Warning: {said}")
