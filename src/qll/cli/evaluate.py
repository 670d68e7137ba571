"""``qll evaluate``: the paper's figures of a run, on the whole test set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qll.cli.answers import JsonFile, store
from qll.cli.train import figures, remarks


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
    out: JsonFile = None,
) -> None:
    """PAcc, CAcc, CSec and CSat of a trained network; written to evaluation.json for the test set.

    CSat is proved at epsilon and at half of it, every proof confirmed by the checker.

    Example: qll evaluate runs/dice
    """
    import os

    from rich.console import Console

    from qll.kernels.announce import announced
    from qll.training.progress import Watched
    from qll.training.run import RunFolder
    from qll.verbs import evaluate as run_evaluation

    workers = jobs or os.cpu_count() or 1
    with Watched(Console(stderr=True)) as watch, announced(watch.tell):
        found = run_evaluation(
            run, split=split, prove=prove, timeout=timeout, jobs=workers, watch=watch
        )
    values = found.to_json()
    for line in [*figures(values), *remarks(RunFolder.open(run).config())]:
        typer.echo(line)
    store(out, values)


def register(app: typer.Typer) -> None:
    app.command()(evaluate)
