"""``qll export``: a query in another format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

FORMATS = {"vnnlib": 1, "vnnlib2": 2}


def export(
    query: Annotated[Path, typer.Argument(metavar="QUERY", help="A VNN-LIB file, version 1 or 2.")],
    to: Annotated[str, typer.Option("--to", help=" or ".join(FORMATS) + ".")],
    element: Annotated[
        str | None, typer.Option(help="Replaces the element type of all tensors: real.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A file; otherwise it is printed.")] = None,
) -> None:
    """Write a query as VNN-LIB 1 or 2. It is read back and must ask the same.

    Example: qll export query.vnnlib --to vnnlib2 --element real --out real.vnnlib
    """
    from qll.errors import InputError, RunError
    from qll.exchange.files import parse, read
    from qll.exchange.version2 import ELEMENTS
    from qll.exchange.writers import write
    from qll.files import write_atomically

    for name, value, known in (("--to", to, tuple(FORMATS)), ("--element", element, ELEMENTS)):
        if value is not None and value not in known:
            raise InputError(
                f"{name} {value} is not known",
                expected="one of " + ", ".join(known),
                found=f"'{value}'",
                fix=f"write {name} {known[-1]}",
            )
    document = read(query)
    text = "\n".join(write(document, FORMATS[to], element)) + "\n"
    again = parse(text)
    if list(again.bounds.atoms()) != list(document.bounds.atoms()) or (
        again.assertions != document.assertions
    ):
        raise RunError(
            "what was written does not ask the same",
            expected="the same bounds and assertions when it is read back",
            found="others",
            fix="report this query",
        )
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_atomically(out, text.encode())


def register(app: typer.Typer) -> None:
    app.command()(export)
