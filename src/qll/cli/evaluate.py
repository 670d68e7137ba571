"""``qll evaluate``: the paper's figures of a run, on the whole test set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qll.cli.train import figures, remarks

if TYPE_CHECKING:
    from qll.metrics import Satisfaction
    from qll.training.loop import Trainer


def evaluate(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    split: Annotated[str, typer.Option(help="test, or validation if the run has one.")] = "test",
    prove: Annotated[
        int,
        typer.Option(
            help="Regions to verify for CSat: the paper's; if more, test images in order; 0: none."
        ),
    ] = 100,
    timeout: Annotated[float, typer.Option(help="Seconds for each of them.")] = 10.0,
    jobs: Annotated[int, typer.Option(help="Processes that verify; 0 for all cores.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """PAcc, CAcc, CSec and CSat of a trained network; written to evaluation.json for the test set.

    CSat is proved at epsilon and at half of it, every proof confirmed by the checker.

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
    found = trainer.evaluate(split, csat=_satisfaction(trainer, split, prove, timeout, jobs))
    if split == "test" and trainer.folder is not None:
        with trainer.folder.locked():
            trainer.folder.save_evaluation(found)
    values = found.to_json()
    if as_json:
        typer.echo(json.dumps(values))
        return
    for line in [*figures(values), *remarks(trainer.config)]:
        typer.echo(line)


def _satisfaction(
    trainer: Trainer, split: str, count: int, timeout: float, jobs: int
) -> Satisfaction | None:
    """The verifier on the images that the paper's was asked about, where those are known."""
    import os

    from qll.metrics import constraint_satisfaction

    declared = {p.name for p in trainer.judged.specification.parameters}
    if count <= 0 or "epsilon" not in declared:
        return None
    images = trainer.data.train if split == "validation" else trainer.data.test
    rows = trainer.validation_rows if split == "validation" else trainer.data.published
    chosen = slice(0, count) if rows is None or count > len(rows) else rows[:count]
    x, labels = images.batch(chosen)
    workers = jobs or os.cpu_count() or 1
    return constraint_satisfaction(trainer.judged, x, labels, timeout=timeout, jobs=workers)


def register(app: typer.Typer) -> None:
    app.command()(evaluate)
