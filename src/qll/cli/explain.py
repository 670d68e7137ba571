"""``qll explain``: what a file of verdicts, a certificate or a witness says."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from qll.cli.answers import JsonFile, store
from qll.cli.completion import complete_data
from qll.cli.options import DATA_HELP, Features, Target, data_options

# Points that are told one by one, of each verdict; the others are counted.
_TOLD = 3


def explain(
    verdict: Annotated[
        Path,
        typer.Argument(
            metavar="VERDICT",
            help="Of qll verify --json (of a rule or a query) or --certificate (a file or the "
            "folder), or qll attack --out.",
        ),
    ],
    point: Annotated[
        list[int] | None, typer.Option(help="Tell this point; may be given several times.")
    ] = None,
    network: Annotated[
        Path | None, typer.Option(help="The ONNX file: shows outputs, checks certificates.")
    ] = None,
    data: Annotated[str | None, typer.Option(autocompletion=complete_data, help=DATA_HELP)] = None,
    target: Target = "",
    features: Features = "",
    data_dir: Annotated[str | None, typer.Option(help="Where the data files are.")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw data point, witness and difference: a PNG file.")
    ] = None,
    out: JsonFile = None,
) -> None:
    """Say what was proved, for which points, in which arithmetic and by which evidence; of a
    witness which inputs moved, by how much, and which part of the rule broke.

    Example: qll explain verdicts.json --point 3
    """
    from qll.data import load as load_data
    from qll.reports.explain import explain as read
    from qll.reports.explain import save_pictures

    held = None if data is None else load_data(data, data_dir, **data_options(target, features))
    found = read(verdict, network=network, data=held)
    chosen = _chosen(found, point)
    lines = [*found.heading]
    if point is None and not found.once:
        lines += ["", *found.groups()]
    for item in chosen:
        head = item.lines[0] if found.once else f"point {item.point}: {item.lines[0]}"
        lines += ["", head, *item.lines[1:]]
    left = len(found.items) - len(chosen)
    if point is None and left:
        lines += [
            "",
            f"{left} more: qll explain {shlex.quote(str(verdict))} --point N tells one of them",
        ]
    typer.echo("\n".join(lines))
    if picture is not None:
        drawn = save_pictures(found.items if point is None else chosen, picture)
        typer.echo(f"{drawn} drawn in {picture}")
    if out is not None:
        store(out, found.as_json())


def _chosen(found: Any, numbers: list[int] | None) -> list[Any]:
    """Those asked for; else the first of each verdict, falsified ones first."""
    from qll.errors import InputError

    if numbers is None:
        order = ("falsified", "unknown", "verified")
        return [item for s in order for item in [i for i in found.items if i.status == s][:_TOLD]]
    held = {item.point: item for item in found.items}
    for number in numbers:
        if number not in held:
            raise InputError(
                f"there is no verdict about point {number}",
                expected=f"one of {len(held)} points, as {', '.join(map(str, list(held)[:8]))}",
                found=str(number),
                fix="leave --point out for all of them",
            )
    return [held[number] for number in numbers]


def register(app: typer.Typer) -> None:
    app.command()(explain)
