"""The paper's figures, drawn from the logics themselves: ``qll figures``.

connectives         surface and gradient of every logic's ``and`` and ``or``
hardness            the conjunction of every unbounded logic with a hardness (STL, QLL) at 1, 2, 10
gradients-vs-max    how far the gradient of that conjunction is from max's, in norm and direction
dice                how often each face is seen, and samples
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qll.errors import InputError
from qll.logics.base import Logic
from qll.reports.fields import (
    Field,
    Kind,
    connective,
    gradient_gap,
    is_bounded,
    paper_logics,
    square,
)
from qll.reports.style import colours, data_name, require, titled, write

if TYPE_CHECKING:
    from qll.data.base import DataSet

FORMATS = ("pdf", "svg", "png")
HARDNESSES = (1.0, 2.0, 10.0)
GAP_HARDNESS = 2.0

_FINE, _COARSE = 101, 11  # points a side of a surface, and of a field of arrows
_VALUE_MAP = "viridis"
_INK = "#1F2937"
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8.0,
    "axes.titlesize": 9.0,
    "axes.labelsize": 8.0,
    "axes.edgecolor": "#9CA3AF",
    "axes.linewidth": 0.6,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": "#4B5563",
    "ytick.color": "#4B5563",
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "svg.hashsalt": "qll",  # the same figure is the same file
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
    "contour.negative_linestyle": "solid",
    "figure.dpi": 100,
}


def figure_names() -> list[str]:
    return list(_DRAWERS)


def draw_figures(
    out: Path,
    *,
    formats: Sequence[str] = FORMATS,
    names: Sequence[str] | None = None,
    dice: DataSet | None = None,
) -> list[Path]:
    """Draw ``names`` (default: all) into ``out``; ``dice`` defaults to rendered dice."""
    for name in formats:
        if name not in FORMATS:
            raise InputError(
                f"figures are not drawn as '{name}'",
                expected=f"some of {', '.join(FORMATS)}",
                found=f"'{name}'",
                fix="write --format pdf,svg",
            )
    written = []
    for name in names or figure_names():
        if name not in _DRAWERS:
            raise InputError(
                f"there is no figure '{name}'",
                expected=f"one of: {', '.join(_DRAWERS)}",
                found=f"'{name}'",
                fix="leave the name out to draw all of them",
            )
        with _pyplot() as plt:
            figure = _DRAWERS[name](plt, dice)
            # Laid out once: else each format would move things a little.
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
            for extension in formats:
                written.append(write(out / f"{name}.{extension}", _encode(figure, extension)))
    return written


@contextmanager
def _pyplot() -> Iterator[Any]:
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise require("matplotlib", "drawing figures") from error
    mpl.use("Agg", force=False)
    from matplotlib import pyplot

    with mpl.rc_context(_STYLE):
        yield pyplot
        pyplot.close("all")


def _encode(figure: Any, extension: str) -> bytes:
    content = io.BytesIO()
    # No date in the file: drawing twice gives the same bytes.
    plain: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(
        extension, {}
    )
    figure.savefig(content, format=extension, dpi=200, metadata=plain, facecolor="white")
    return content.getvalue()


# --- one panel ---


def _surface(axes: Any, logic: Logic, kind: Kind) -> None:
    field = connective(logic, kind, _FINE, square(logic))
    x, y = np.meshgrid(field.axis, field.axis)
    axes.plot_surface(
        x,
        y,
        field.value,
        cmap=_VALUE_MAP,
        rcount=50,
        ccount=50,
        linewidth=0,
        antialiased=False,  # else the seams between patches show
        rasterized=True,
    )
    low, high = field.axis[0], field.axis[-1]
    top, bottom = field.value.max(), field.value.min()
    if top - bottom > 1e-9:
        axes.contour(x, y, field.value, 9, zdir="z", offset=bottom, cmap=_VALUE_MAP, linewidths=0.6)
    middle = (low + high) / 2
    axes.set(xticks=[low, middle, high], yticks=[low, middle, high], xlabel="x", ylabel="y")
    axes.set_zticks([bottom, (bottom + top) / 2, top])
    axes.set_zticklabels([f"{v:.2g}" for v in (bottom, (bottom + top) / 2, top)])
    axes.tick_params(pad=-3)
    axes.xaxis.labelpad = axes.yaxis.labelpad = -8
    axes.view_init(elev=27, azim=-122)
    axes.set_box_aspect((1, 1, 0.72), zoom=1.12)
    for side in (axes.xaxis, axes.yaxis, axes.zaxis):
        side.set_pane_color((1, 1, 1, 1))
        side._axinfo["grid"].update({"color": "#E5E7EB", "linewidth": 0.5})


def _contour(axes: Any, logic: Logic, kind: Kind) -> None:
    """Level lines of the value with the gradient as arrows; what lies outside of the logic's own
    domain (the paper draws DL2 there too) is veiled."""
    field = connective(logic, kind, _FINE, square(logic))
    axes.contourf(field.axis, field.axis, field.value, 14, cmap=_VALUE_MAP, alpha=0.85)
    axes.contour(field.axis, field.axis, field.value, 14, colors="white", linewidths=0.35)
    _veil(axes, logic, field)
    low, high = square(logic)
    inset = (high - low) / (2 * _COARSE)
    _arrows(axes, connective(logic, kind, _COARSE, (low + inset, high - inset)))
    middle = (low + high) / 2
    axes.set(xticks=[low, middle, high], yticks=[low, middle, high], aspect="equal")
    axes.set(xlim=(low, high), ylim=(low, high))
    axes.tick_params(length=2, pad=1.5)


def _arrows(axes: Any, field: Field) -> None:
    step = field.axis[1] - field.axis[0]
    x, y = np.meshgrid(field.axis, field.axis)
    longest = max(float(np.nanmax(field.norm)), 1e-12)
    shown = field.norm > 1e-9 * longest
    scale = 0.92 * step / longest
    axes.quiver(
        x[shown],
        y[shown],
        field.by_x[shown] * scale,
        field.by_y[shown] * scale,
        angles="xy",
        scale_units="xy",
        scale=1,
        pivot="middle",
        color=_INK,
        width=0.009,
        headwidth=3.6,
        headlength=3.8,
        headaxislength=3.5,
    )
    # No gradient at all: a dot says that the arrow was not forgotten.
    axes.plot(x[~shown], y[~shown], ".", color=_INK, markersize=1.1)


def _veil(axes: Any, logic: Logic, field: Field) -> None:
    low, high = field.axis[0], field.axis[-1]
    edge = float(logic.domain[0])
    if not low < edge < high:
        return
    from matplotlib.patches import Rectangle

    for corner, width, height in (
        ((low, low), edge - low, high - low),
        ((edge, low), high - edge, edge - low),
    ):
        axes.add_patch(
            Rectangle(corner, width, height, facecolor="white", alpha=0.55, edgecolor="none")
        )
    axes.plot([edge, edge, high], [high, edge, edge], color=_INK, linewidth=0.7, linestyle=":")


# --- the figures ---


def _draw_connectives(plt: Any, dice: DataSet | None) -> Any:
    logics = paper_logics()
    height = 1.62
    figure = plt.figure(figsize=(8.3, height * len(logics) + 0.75))
    grid = figure.add_gridspec(
        len(logics),
        5,
        width_ratios=[0.28, 1.45, 1, 1.45, 1],
        left=0.02,
        right=0.985,
        top=1 - 0.55 / figure.get_figheight(),
        bottom=0.22 / figure.get_figheight(),
        hspace=0.16,
        wspace=0.12,
    )
    for row, logic in enumerate(logics):
        _row_title(figure.add_subplot(grid[row, 0]), logic)
        for column, kind in ((1, "and"), (3, "or")):
            _surface(figure.add_subplot(grid[row, column], projection="3d"), logic, kind)  # type: ignore[arg-type]
            _contour(figure.add_subplot(grid[row, column + 1]), logic, kind)  # type: ignore[arg-type]
    _column_titles(figure, grid, {1: "conjunction  x ∧ y", 3: "disjunction  x ∨ y"})
    return figure


def _row_title(axes: Any, logic: Logic) -> None:
    axes.axis("off")
    axes.text(
        0.35, 0.5, titled(logic), rotation=90, ha="center", va="center", fontsize=10, weight="bold"
    )
    reading = "1 is true" if is_bounded(logic) else "lower is truer"
    axes.text(
        0.85, 0.5, reading, rotation=90, ha="center", va="center", fontsize=7, color="#6B7280"
    )


def _column_titles(figure: Any, grid: Any, titles: dict[int, str]) -> None:
    for column, title in titles.items():
        first, second = grid[0, column].get_position(figure), grid[0, column + 1]
        right = second.get_position(figure).x1
        top = 1 - 0.18 / figure.get_figheight()
        figure.text((first.x0 + right) / 2, top, title, ha="center", fontsize=11, weight="bold")
        below = top - 0.2 / figure.get_figheight()
        centre = second.get_position(figure)
        figure.text((first.x0 + first.x1) / 2, below, "surface", ha="center", color="#6B7280")
        figure.text((centre.x0 + centre.x1) / 2, below, "gradient", ha="center", color="#6B7280")


def _hardened() -> list[Logic]:
    """Unbounded logics that have a hardness: STL and QLL, and whoever joins them."""
    found = [l for l in paper_logics() if not is_bounded(l) and not np.isnan(l.hardness)]  # noqa: E741
    return sorted(found, key=lambda logic: logic.name, reverse=True)


def _draw_hardness(plt: Any, dice: DataSet | None) -> Any:
    logics = _hardened()
    figure = plt.figure(figsize=(4.1 * len(logics), 1.75 * len(HARDNESSES) + 0.7))
    grid = figure.add_gridspec(
        len(HARDNESSES),
        2 * len(logics),
        width_ratios=[1.4, 1] * len(logics),
        left=0.035,
        right=0.985,
        top=1 - 0.6 / figure.get_figheight(),
        bottom=0.25 / figure.get_figheight(),
        hspace=0.18,
        wspace=0.12,
    )
    for column, logic in enumerate(logics):
        for row, hardness in enumerate(HARDNESSES):
            hard = logic.harden(hardness)
            surface = figure.add_subplot(grid[row, 2 * column], projection="3d")
            _surface(surface, hard, "and")
            surface.set_title(titled(hard), loc="left", weight="bold", y=0.93)
            _contour(figure.add_subplot(grid[row, 2 * column + 1]), hard, "and")
    names = {2 * k: f"{titled(logic).split()[0]} conjunction" for k, logic in enumerate(logics)}
    _column_titles(figure, grid, names)
    return figure


def _draw_gradients(plt: Any, dice: DataSet | None) -> Any:
    logics = [logic.harden(GAP_HARDNESS) for logic in _hardened()]
    gaps = [gradient_gap(logic, 201) for logic in logics]
    figure, panels = plt.subplots(
        2,
        len(logics),
        figsize=(3.1 * len(logics) + 0.9, 6.0),
        squeeze=False,
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    lowest = min(float(np.nanmin(cosine)) for _, _, cosine in gaps)
    largest = max(float(gap.max()) for _, gap, _ in gaps)
    for column, (logic, (axis, gap, cosine)) in enumerate(zip(logics, gaps, strict=True)):
        shared = {"shading": "nearest", "rasterized": True}
        norm = panels[0, column].pcolormesh(
            axis, axis, gap, cmap="magma_r", vmin=0, vmax=largest, **shared
        )
        turn = panels[1, column].pcolormesh(
            axis, axis, cosine, cmap="cividis", vmin=lowest, vmax=1, **shared
        )
        panels[0, column].set_title(titled(logic), weight="bold", fontsize=11)
        panels[1, column].set_xlabel("x")
        for row in (0, 1):
            panels[row, column].set(aspect="equal", xticks=[-2, 0, 2], yticks=[-2, 0, 2])
    for row, mappable, text in (
        (0, norm, "‖∇(x ∧ y) − ∇max‖   (less is better)"),
        (1, turn, "cos(∇(x ∧ y), ∇max)   (1 is best)"),
    ):
        panels[row, 0].set_ylabel("y")
        bar = figure.colorbar(mappable, ax=panels[row, :].tolist(), shrink=0.9, pad=0.02)
        bar.set_label(text)
        bar.locator = plt.MaxNLocator(6)
        bar.outline.set_linewidth(0.4)
        bar.update_ticks()
    return figure


def _draw_dice(plt: Any, dice: DataSet | None) -> Any:
    if dice is None:
        from qll.data.source import load

        dice = load("dice-rendered", count_train=272, count_test=68)
    labels = np.concatenate([dice.train.labels, dice.test.labels])
    if labels.ndim != 2 or dice.shape[0] not in (1, 3):
        raise InputError(
            "the figure of labels needs pictures with several labels each",
            where=dice.name,
            expected="a multi-label data set with one or three channels",
            found=f"{dice.task}, {dice.shape[0]} channels",
            fix="write --data dice or --data dice-rendered",
        )
    figure = plt.figure(figsize=(8.3, 2.9))
    grid = figure.add_gridspec(1, 2, width_ratios=[1, 1.55], left=0.065, right=0.99, wspace=0.08)
    bars = figure.add_subplot(grid[0])
    _draw_label_bars(bars, labels, dice.classes)
    bars.set_title(f"{data_name(dice.name)}: {len(labels)} images", loc="left", weight="bold")
    samples = grid[1].subgridspec(3, 8, hspace=0.42, wspace=0.08)
    for k in range(min(24, len(dice.train))):
        axes = figure.add_subplot(samples[k // 8, k % 8])
        image = dice.train.batch(slice(k, k + 1))[0][0].numpy()
        axes.imshow(np.broadcast_to(image.transpose(1, 2, 0), (*image.shape[1:], 3)))
        seen = [name for name, bit in zip(dice.classes, dice.train.labels[k], strict=True) if bit]
        axes.set_title(" ".join(seen), fontsize=7, pad=1.5)
        axes.set(xticks=[], yticks=[])
    return figure


def _draw_label_bars(axes: Any, labels: Any, classes: Sequence[str]) -> None:
    counts = labels.sum(axis=0)
    bars = axes.bar(classes, counts, color=colours()["qll"], width=0.72)
    shares = [f"{count}\n{100 * count / len(labels):.1f} %" for count in counts]
    axes.bar_label(bars, shares, label_type="center", color="white", fontsize=7)
    axes.set(xlabel="face", ylabel="images that show it")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=2)


_DRAWERS: dict[str, Callable[[Any, DataSet | None], Any]] = {
    "connectives": _draw_connectives,
    "hardness": _draw_hardness,
    "gradients-vs-max": _draw_gradients,
    "dice": _draw_dice,
}
