"""``qll zoo``: networks that are proved, and their proofs checked on your machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qll.cli.answers import JsonFile, fail, store

if TYPE_CHECKING:
    from qll.zoo.check import Checked
    from qll.zoo.shelf import ProvedNetwork

EXIT_NOT_CONFIRMED = 12
app = typer.Typer(
    help="Proved networks: list them, check their proofs here, add one.", rich_markup_mode=None
)
Folder = Annotated[
    Path | None,
    typer.Option(help="The zoo; default: $QLL_ZOO, then that of the repository, ./zoo."),
]


@app.callback(invoke_without_command=True)
def listed(context: typer.Context, folder: Folder = None, out: JsonFile = None) -> None:
    """List the networks with their accuracy (R2 of a regression) and what is proved: so many
    regions around test data, or the whole domain.

    Example: qll zoo check mnist-robust
    """
    from qll.errors import InputError
    from qll.zoo.shelf import names, zoo, zoo_folder

    context.obj = folder
    if context.invoked_subcommand is not None:
        return
    cards, unread = [], []
    for name in names(folder):
        try:
            cards.append(zoo(name, folder=folder).card)
        except InputError as error:  # the others are listed all the same
            unread.append(error)
    if not cards and not unread:
        raise InputError(
            "there is no network in the zoo",
            where=str(zoo_folder(folder)),
            expected="a folder with a card.toml for each network",
            found="none",
            fix="pass --folder with the folder zoo of the repository",
        )
    rows = [("name", "rule", "data", "accuracy", "proved", "regions", "unknown")]
    for card in cards:
        held = card.proved
        rows.append(
            (
                card.name,
                card.rule,
                card.data,
                card.figure,
                f"{held.share:.1%}",
                "whole domain" if card.closed else f"{held.meant:,}",
                str(held.unknown),
            )
        )
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        left = [row[k].ljust(widths[k]) for k in range(3)]
        right = [row[k].rjust(widths[k]) for k in range(3, len(row))]
        typer.echo("  ".join([*left, *right]).rstrip())
    store(out, [card.model_dump(exclude_none=True) for card in cards])
    for bad in unread:
        fail(str(bad))
    if unread:
        raise typer.Exit(EXIT_NOT_CONFIRMED)


@app.command()
def check(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A network of the zoo.")],
    sample: Annotated[int, typer.Option(min=0, help="Regions to prove again.")] = 5,
    seed: Annotated[
        int | None, typer.Option(help="Chooses them; default: others each time.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(help="Seconds for each of them; default: the card's, 10 at least."),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="The data files: compares points, labels and accuracy with them too."),
    ] = None,
    folder: Folder = None,
    out: JsonFile = None,
) -> None:
    """Check the certificates of a network, and prove some of its regions again; with the data, of
    all its regions. Exit code 0: what can be seen here is as its card says, 12: something is not,
    2: a file of it is damaged, or wrong use.

    Example: qll zoo check mnist-robust --sample 10
    """
    import sys
    from dataclasses import asdict

    from qll.zoo.against import load_named, require_data_points
    from qll.zoo.check import check as check_network
    from qll.zoo.check import require_seconds
    from qll.zoo.shelf import zoo

    require_seconds(timeout)
    entry = zoo(name, folder=folder or context.obj)
    data = None
    if data_dir is not None:
        require_data_points(entry)
        data = load_named(entry, data_dir)
    typer.echo(repr(entry))
    typer.echo(entry.property.show().rstrip())

    def said(count: int, total: int) -> None:
        if sys.stderr is not None and sys.stderr.isatty():
            typer.echo(f"\r{count} of {total} certificates", nl=count == total, err=True)

    found = check_network(
        entry, data=data, sample=sample, seed=seed, timeout=timeout, progress=said
    )
    if found.listed:  # else it was left at the first look
        typer.echo(f"certificates confirmed by the checker: {_counted(found.confirmed)}")
        typer.echo(f"proved again: {_counted(found.proved)}")
    if found.listed and data is not None:
        typer.echo(
            f"compared with the {len(data.test):,} test images of {entry.card.data} in {data_dir}: "
            "points, labels, accuracy"
        )
    if found.listed and data is None and not entry.property.is_closed:
        typer.echo(_unseen(entry))
    if found.seen < found.listed:
        typer.echo(_trusted(found, sampled=data is not None))
    for line in found.failures:
        fail(line)
    store(out, {"name": name, **asdict(found)})
    if found.failures:
        raise typer.Exit(EXIT_NOT_CONFIRMED)


@app.command()
def add(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What to call it.")],
    run: Annotated[Path, typer.Option(help="The folder of the run or cycle.")],
    verdicts: Annotated[Path, typer.Option(help="Of qll verify --count 0 --json.")],
    certificates: Annotated[Path, typer.Option(help="Of the same call, --certificate.")],
    count: Annotated[int, typer.Option(min=100, help="Regions whose certificates are kept.")] = 100,
    licence: Annotated[str, typer.Option(help="Of the network and its data.")] = "MIT",
    data: Annotated[
        str, typer.Option(help="What the data are called; default: as in the run.")
    ] = "",
    recipe: Annotated[
        list[str] | None,
        typer.Option(help="A command that made it, in order; default: the run's qll train."),
    ] = None,
    folder: Folder = None,
    out: JsonFile = None,
) -> None:
    """Put a trained and proved run, or the network of a cycle, into the zoo.

    Example: qll zoo add mine --run runs/a --verdicts all.json --certificates certificates
    """
    from qll.zoo.adding import add as add_network
    from qll.zoo.shelf import zoo_folder

    place = zoo_folder(folder or context.obj)
    add_network(
        name,
        run,
        verdicts,
        certificates,
        place,
        count=count,
        licence=licence,
        data=data,
        recipe=recipe or [],
    )
    typer.echo(place / name)
    store(out, {"name": name, "folder": str(place / name)})


def _unseen(entry: ProvedNetwork) -> str:
    """What only the data can show."""
    from qll.data.base import data_sets

    text = "the accuracy, and that the points are of the test data, are the card's word here"
    if entry.card.data not in data_sets:
        return text
    return f"{text}: --data-dir with the files of {entry.card.data} compares them"


def _trusted(found: Checked, *, sampled: bool) -> str:
    """What nobody has seen here."""
    left = found.listed - found.seen
    text = f"of {left:,} of {found.listed:,} regions the zoo has a verdict"
    if found.vacuous:
        text += f", for {found.vacuous:,} of them because the rule is said to be silent there,"
    text += " and the hash of a certificate alone: "
    return text + ("checked here only in the sample" if sampled else "not checked here")


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "none"


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="zoo")
