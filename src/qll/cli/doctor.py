"""``qll doctor``: what is installed here, and whether it works."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qll.cli.answers import JsonFile, fitted, store

if TYPE_CHECKING:
    from qll.doctor import Finding

EXIT_WRONG = 1
_MARKS = {
    "ok": "ok",
    "missing": "missing",
    "optional": "optional",
    "note": "note",
    "wrong": "WRONG",
}
_WIDTH = max(len(mark) for mark in _MARKS.values()) + 1
_TOPIC = 19


def doctor(
    self_test: Annotated[
        bool, typer.Option("--self-test/--no-self-test", help="Prove something small.")
    ] = True,
    out: JsonFile = None,
) -> None:
    """Versions, machine, extras, data, compiled kernels, and a self-test of seconds (the first time
    about a minute of CPU, for compiling). An optional extra is installed by its name: pip install
    'qll[tune]'. Exit code 1: something is wrong.

    Example: qll doctor
    """
    from qll.doctor import examine
    from qll.kernels.announce import announced

    with announced(lambda text: typer.echo(text, err=True)):
        report(examine(self_test=self_test), out)


def report(findings: Iterable[Finding], out: Path | None) -> None:
    """One line each as they come; exit code 1 if anything is wrong."""
    from dataclasses import asdict

    found = []
    for item in findings:
        found.append(item)
        begin = _WIDTH + _TOPIC + 2
        line = f"{_MARKS[item.state]:<{_WIDTH}} {item.topic:<{_TOPIC}} {item.said}"
        typer.echo(fitted(line, begin))
        if item.fix and item.state not in ("ok", "optional"):  # those are asked for by purpose
            typer.echo(fitted(f"{'':{begin}}Fix: {item.fix}", begin))
    store(out, {"findings": [asdict(item) for item in found]})
    if any(item.state == "wrong" for item in found):
        raise typer.Exit(EXIT_WRONG)


def register(app: typer.Typer) -> None:
    app.command()(doctor)
