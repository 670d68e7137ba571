"""``qll evaluate``: the paper's figures of a run, on the whole test set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from qll.cli.train import figures


def evaluate(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    split: Annotated[str, typer.Option(help="test, or validation if the run has one.")] = "test",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """PAcc, CAcc and CSec of a trained network; written to evaluation.json for the test set.

    Example: qll evaluate runs/dice
    """
    from qll.errors import InputError
    from qll.training.loop import open_run

    trainer = open_run(run)
    splits = ["test", "validation"] if len(trainer.validation_rows) else ["test"]
    if split not in splits:
        raise InputError(
            f"this run has no images called '{split}'",
            where=str(run),
            expected=" or ".join(splits),
            found=f"'{split}'",
            fix="leave --split out",
        )
    found = trainer.evaluate(split)
    if split == "test" and trainer.folder is not None:
        with trainer.folder.locked():
            trainer.folder.save_evaluation(found)
    values = found.to_json()
    if as_json:
        typer.echo(json.dumps(values))
        return
    for line in figures(values):
        typer.echo(line)


def register(app: typer.Typer) -> None:
    app.command()(evaluate)
