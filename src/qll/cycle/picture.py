"""The curve of a cycle: accuracy and proved share by round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class HasFigures(Protocol):
    number: int
    pacc: float
    csat: float
    limit: float


class HasLeast(Protocol):
    least: float
    chance: float
    measure: str


def draw_curve(path: Path, rounds: Sequence[HasFigures], target: float, accuracy: HasLeast) -> bool:
    """False without matplotlib: the numbers are in the record all the same."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(5.2, 3.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    numbers = [r.number for r in rounds]
    axes.plot(
        numbers, [100 * r.pacc for r in rounds], "s-", color="#4c72b0", label=accuracy.measure
    )
    axes.plot(numbers, [100 * r.csat for r in rounds], "o-", color="#c44e52", label="CSat")
    limits = [100 * r.limit for r in rounds]
    axes.plot(numbers, limits, "_:", color="#555555", label="satisfied at the data point")
    for name, value in (
        ("CSat: target", target),
        (f"{accuracy.measure}: least", accuracy.least),
        (f"{accuracy.measure}: chance", accuracy.chance),
    ):
        axes.axhline(100 * value, color="#999999", linewidth=0.8, linestyle="--")
        axes.annotate(
            name, (numbers[-1], 100 * value), fontsize=7, color="#666666", va="bottom", ha="right"
        )
    axes.set_xlabel("round")
    axes.set_ylabel("%")
    axes.set_xticks(numbers if len(numbers) <= 12 else numbers[:: len(numbers) // 10])
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="best")
    figure.savefig(path)
    return True
