"""Options that several commands share."""

from __future__ import annotations

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


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "node"), counted(2, "node")
    ('1 node', '2 nodes')
    """
    return f"{number} {noun}" + ("" if number == 1 else "s")


def data_options(target: str, features: str) -> dict[str, Any]:
    """What was said of a table, as ``qll.data.load`` takes it."""
    return {k: v for k, v in (("target", target), ("features", features)) if v}


def require_seconds(timeout: float) -> None:
    if not timeout > 0:
        raise InputError(
            "the time-out is not positive",
            expected="seconds > 0",
            found=f"{timeout:g}",
            fix="pass --timeout 60",
        )


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
