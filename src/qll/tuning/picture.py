"""The front as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

_COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860")


class HasFigures(Protocol):
    pacc: float
    csat: float
    on_front: bool
    measure: str
    settings: dict[str, Any]


def draw_front(path: Path, points: Sequence[HasFigures]) -> bool:
    """False without matplotlib: the numbers are in front.json all the same."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(5.2, 3.8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    front = sorted((p for p in points if p.on_front), key=lambda p: p.pacc)
    axes.step(
        [100 * p.pacc for p in front],
        [100 * p.csat for p in front],
        where="pre",
        color="#999999",
        linewidth=1,
        zorder=1,
    )
    methods = sorted({str(p.settings.get("method", "?")) for p in points})
    for method, colour in zip(methods, _COLOURS * len(methods), strict=False):
        own = [p for p in points if p.settings.get("method", "?") == method]
        for on_front in (False, True):
            some = [p for p in own if p.on_front is on_front]
            axes.scatter(
                [100 * p.pacc for p in some],
                [100 * p.csat for p in some],
                s=34 if on_front else 12,
                color=colour,
                alpha=1.0 if on_front else 0.45,
                label=method if on_front else None,  # an empty set of points names it too
                zorder=2,
            )
    axes.set_xlabel(f"{points[0].measure} on validation data, %")
    axes.set_ylabel("CSat on validation data, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)
    return True
