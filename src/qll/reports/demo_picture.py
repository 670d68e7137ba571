"""One picture of the cycle: what the network without the rule gets wrong, and round by round what
the one in the cycle predicts and what is proved of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qll.reports.style import colours

_PROVED, _PREDICTED = colours()["qll"], colours()["baseline"]


def draw_cycle(
    path: Path,
    steps: Sequence[tuple[str, float, float]],
    pictures: Sequence[tuple[Any, str]] = (),
) -> bool:
    """``steps`` are a name, PAcc and CSat each; ``pictures`` (channels first, with what is said
    below) are of a region that the first of them breaks. False without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(9.0, 2.9), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    places: Any = figure.subplots(
        1, len(pictures) + 1, squeeze=False, width_ratios=(*(1.0 for _ in pictures), 2.4)
    )
    for axes, (picture, said) in zip(places[0], pictures, strict=False):
        axes.imshow(picture.transpose(1, 2, 0).clip(0.0, 1.0))
        axes.set_xlabel(said, fontsize=9, labelpad=6)
        axes.set_xticks(())
        axes.set_yticks(())
        axes.spines[:].set_visible(False)
    axes = places[0, -1]
    names = [name for name, _, _ in steps]
    for values, colour, label, sign, above in (
        ([100 * csat for _, _, csat in steps], _PROVED, "regions proved (CSat)", "o-", 6),
        ([100 * pacc for _, pacc, _ in steps], _PREDICTED, "predicted right (PAcc)", "s--", -13),
    ):
        axes.plot(range(len(steps)), values, sign, color=colour, label=label)
        for place, value in enumerate(values):
            rises = max(values[place : place + 2]) > value + 30  # the line would cross the figure
            axes.annotate(
                f"{value:.1f}", (place, value), textcoords="offset points",
                xytext=(-8, -3) if rises else (0, above), ha="right" if rises else "center",
                fontsize=8, color=colour,
            )  # fmt: skip
    axes.set_xticks(range(len(steps)), names, fontsize=8)
    axes.set_xlim(-0.4, len(steps) - 0.6)
    axes.set_ylim(0, 116)
    axes.set_yticks((0, 50, 100))
    axes.set_ylabel("%")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="center right")
    figure.savefig(path)
    return True
