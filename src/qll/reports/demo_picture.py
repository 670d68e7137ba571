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
    *,
    clean: Any = None,
    witness: Any = None,
) -> bool:
    """``steps`` are a name, PAcc and CSat each; ``clean`` and ``witness`` are pictures (channels
    first) of a region that the first of them breaks. False without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(9.0, 2.9), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    shown = clean is not None and witness is not None
    places: Any = figure.subplots(1, 3 if shown else 1, width_ratios=(1, 1, 2.4) if shown else None)
    if shown:
        for axes, picture, title in zip(
            places,
            (clean, witness),
            ("a picture", "in its region: the rule is broken"),
            strict=False,
        ):
            axes.imshow(picture.transpose(1, 2, 0).clip(0.0, 1.0))
            axes.set_title(title, fontsize=9)
            axes.set_axis_off()
    axes = places[-1] if shown else places
    names = [name for name, _, _ in steps]
    for values, colour, label, sign, above in (
        ([100 * csat for _, _, csat in steps], _PROVED, "regions proved (CSat)", "o-", 6),
        ([100 * pacc for _, pacc, _ in steps], _PREDICTED, "predicted right (PAcc)", "s--", -13),
    ):
        axes.plot(range(len(steps)), values, sign, color=colour, label=label)
        for place, value in enumerate(values):
            axes.annotate(
                f"{value:.1f}", (place, value), textcoords="offset points", xytext=(0, above),
                ha="center", fontsize=8, color=colour,
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
