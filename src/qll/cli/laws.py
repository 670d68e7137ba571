"""``qll laws``: the paper's comparison tables, computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from qll.cli.answers import JsonFile, plain_console, store

if TYPE_CHECKING:
    from qll.logics.laws import Row


def laws(
    why: Annotated[bool, typer.Option("--why", help="Show the evidence for every entry.")] = False,
    out: JsonFile = None,
) -> None:
    """Test every logic for the features and laws of the paper's tables.

    Nothing is looked up: each entry is tried on random, tied and extreme values.

    Example: qll laws --json laws.json
    """
    from qll.logics import laws as tables

    features, algebra = tables.features(), tables.algebra()
    _print("Features", features, why)
    _print("Laws ('~' holds at non-extremal values only)", algebra, why)
    typer.echo("Differences from the paper's table of features:")
    for difference in tables.differences(features):
        typer.echo(
            f"  {difference.feature}, {difference.logic}: paper "
            f"{'yes' if difference.paper else 'no'}, computed {difference.computed.sign}"
            f" ({difference.computed.evidence}): {difference.reason}."
        )
    typer.echo("Slips in print, and what is computed instead:")
    for slip in tables.SLIPS:
        typer.echo(f"  {slip}.")
    if out is not None:
        content = {
            title: {
                row.name: {
                    k: {"holds": o.holds, "evidence": o.evidence} for k, o in row.outcomes.items()
                }
                for row in rows
            }
            for title, rows in (("features", features), ("laws", algebra))
        }
        store(out, content)


def _print(title: str, rows: list[Row], why: bool) -> None:
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("", overflow="fold")
    for name in rows[0].outcomes:
        table.add_column(name, justify="center")
    for row in rows:
        cells = []
        for outcome in row.outcomes.values():
            partial = outcome.holds and outcome.evidence.startswith("at non-extremal")
            cells.append("~" if partial else outcome.sign)
        table.add_row(row.name, *cells)
    console = plain_console(highlight=True)
    console.print(table)
    if why:
        for row in rows:
            for name, outcome in row.outcomes.items():
                console.print(
                    f"  {row.name}, {name}: {outcome.sign}, {outcome.evidence}", markup=False
                )


def register(app: typer.Typer) -> None:
    app.command()(laws)
