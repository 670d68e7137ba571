"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from qll.errors import InputError

DATA_HELP = "mnist, fashion, dice, dice-rendered; a table, images, package.module:factory."
Target = Annotated[
    str,
    typer.Option(
        "--target", "--predict", help="Of a table: the column to predict; several with commas."
    ),
]
Features = Annotated[str, typer.Option(help="Of a table: the columns to predict from.")]

JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Write the answer as JSON here; - prints it alone.")
]


def prints_json(path: Path | None) -> bool:
    """Whether standard output is for the JSON alone."""
    return path is not None and str(path) == "-"


def store(path: Path | None, values: Any) -> None:
    """What ``--json`` asks for."""
    import json

    from qll.files import write_json

    if path is None:
        return
    if prints_json(path):
        typer.echo(json.dumps(values))
    else:
        write_json(path, values)


def data_options(target: str, features: str) -> dict[str, Any]:
    """What was said of a table, as ``qll.data.load`` takes it."""
    return {k: v for k, v in (("target", target), ("features", features)) if v}


def parse_settings(settings: list[str] | None) -> dict[str, float]:
    """``--set key=value`` for the parameters of a property."""
    values: dict[str, float] = {}
    for setting in settings or []:
        key, sign, text = setting.partition("=")
        try:
            top, _, bottom = text.partition("/")
            values[key.strip()] = float(top) / float(bottom) if bottom else float(top)
        except (ValueError, ZeroDivisionError):
            raise InputError(
                f"--set {setting} is not a setting",
                expected="NAME=NUMBER",
                found=f"'{text}'" if sign else "no '='",
                fix="write --set epsilon=0.1 or --set epsilon=4/255",
            ) from None
    return values
