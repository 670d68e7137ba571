"""``qll figures``: the paper's figures, drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qll.cli.answers import JsonFile, store


def figures(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="connectives, hardness, gradients-vs-max, dice; without it, all."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder to draw into.")] = Path("figures"),
    formats: Annotated[
        str, typer.Option("--format", help="Some of pdf, svg, png, with commas.")
    ] = "pdf,svg,png",
    data: Annotated[
        str, typer.Option(help="Whose labels and samples are drawn: dice, or dice-rendered.")
    ] = "dice-rendered",
    data_dir: Annotated[
        str | None, typer.Option(help="Where the photographs are; else they are downloaded.")
    ] = None,
    json_path: JsonFile = None,
) -> None:
    """Draw the connectives of every logic, their gradients, and the Dice data.

    Example: qll figures --out figures --format svg --data dice --data-dir data
    """
    from qll.data.progress import terminal_progress
    from qll.data.source import load
    from qll.reports.figures import draw_figures, figure_names

    wanted = [part.strip() for part in formats.split(",") if part.strip()]
    dice = None
    if "dice" in (names or figure_names()) and (data != "dice-rendered" or data_dir is not None):
        with terminal_progress() as progress:
            dice = load(data, data_dir, progress=progress)
    drawn = draw_figures(out, formats=wanted, names=names, dice=dice)
    for path in drawn:
        typer.echo(path)
    store(json_path, {"files": [str(path) for path in drawn]})


def register(app: typer.Typer) -> None:
    app.command()(figures)
