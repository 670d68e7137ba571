"""``qll cycle``: train, verify, feed back, until the property is proved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qll.cli.answers import JsonFile, plain_console, store
from qll.cli.completion import complete_data, complete_rule
from qll.cli.options import DATA_HELP, Features, data_options
from qll.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from qll.cycle.records import CycleResult

EXIT_NOT_MET = 11


def cycle(
    prop: Annotated[
        str,
        typer.Argument(
            metavar="PROPERTY",
            autocompletion=complete_rule,
            help="A shipped property or a .qll file.",
        ),
    ],
    data: Annotated[str | None, typer.Option(autocompletion=complete_data, help=DATA_HELP)] = None,
    predict: Annotated[str, typer.Option(help="Of a table: the column to predict.")] = "",
    features: Features = "",
    network: Annotated[Path | None, typer.Option(help="An ONNX file to start from.")] = None,
    target: Annotated[float, typer.Option(help="The share of regions to be proved.")] = 0.95,
    accuracy: Annotated[
        float | None,
        typer.Option(
            help="The least PAcc (R2 of a regression), 0 for none; without it, 5 points below the "
            "same network trained without the rule."
        ),
    ] = None,
    budget: Annotated[str, typer.Option(help="Time in all: 90s, 30m, 2h.")] = "30m",
    out: Annotated[Path, typer.Option(help="The folder of the cycle.")] = Path("runs/cycle"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the cycle in --out.")
    ] = False,
    count: Annotated[int, typer.Option(help="Regions asked, around test images.")] = 200,
    feedback: Annotated[int, typer.Option(help="Regions around training images, a round.")] = 400,
    epochs: Annotated[int, typer.Option(help="Epochs of the first round.")] = 10,
    more_epochs: Annotated[int, typer.Option(help="Epochs of every later round.")] = 5,
    method: Annotated[str, typer.Option(help="How the property becomes a loss.")] = "small-box",
    logic: Annotated[
        str | None, typer.Option(help="qll:5, dl2, ...; without it, what the method's recipe says.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one proof.")] = 5.0,
    jobs: Annotated[int, typer.Option(help="Processes that verify; 0: one for each core.")] = 0,
    seed: Annotated[int, typer.Option(help="Seeds every random stream.")] = 0,
    data_dir: Annotated[str | None, typer.Option(help="Where the data files are.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting of the training.")
    ] = None,
    json_path: JsonFile = None,
) -> None:
    """From a specification to a proved network: train, verify, feed the witnesses and the open
    regions back, repeat, until a network that is accurate enough meets the target. Exit
    code 0: the target is met, 11: not.

    Example: qll cycle not-both --data dice-rendered --target 0.95 --budget 5m --out runs/dice
    """
    import os

    console = plain_console()
    workers = jobs or os.cpu_count() or 1
    if data is None:
        raise InputError(
            "there is nothing to train on",
            expected="--data",
            found="none",
            fix="write --data mnist, or mend a network: qll repair RULE --network net.onnx",
        )
    from qll.checkup import refuse_empty
    from qll.cli.train import remarks
    from qll.cycle.budget import seconds_of
    from qll.cycle.loop import CycleConfig
    from qll.cycle.loop import cycle as run
    from qll.cycle.records import summary
    from qll.kernels.announce import announced
    from qll.networks import load as load_network
    from qll.networks.trainable import to_module
    from qll.records import record
    from qll.training.config import default_logic, resolve
    from qll.training.loop import load_configured
    from qll.training.progress import console_reporter

    options = {
        "logic": logic or default_logic(prop, data, method),
        "method": method,
        "epochs": epochs,
        "seed": seed,
        "data_dir": data_dir,
        "data_options": data_options(predict, features) or None,
    }
    train = resolve(prop, data, options=options, settings=settings or [])
    config = record(
        CycleConfig,
        {"asked": "count"},
        "--",
        train=train,
        target=target,
        accuracy=accuracy,
        budget=seconds_of(budget),
        asked=count,
        feedback=feedback,
        more_epochs=more_epochs,
        timeout=timeout,
        jobs=workers,
    )
    start = None if network is None else to_module(load_network(network))
    loaded = load_configured(train)
    refuse_empty(train, loaded)
    with console_reporter() as reporter, announced(reporter.note):
        result = run(
            config,
            out,
            resume=resume,
            start=start,
            reporter=reporter,
            data=loaded,
            on_round=lambda found: reporter.note(found.describe(loaded.measure)),
        )
    show_rounds(console, result)
    ending = summary(result, target=config.target, patience=config.patience)
    console.print(f"{ending} ({result.seconds:.0f} s)")
    for line in remarks(train):
        console.print(line)
    console.print(
        f"{out}: model.onnx, verdicts.json, curve.png; evidence in "
        f"round-{result.best:02d}/certificates ('qll audit' checks it)"
    )
    store(json_path, {"out": str(out), **result.model_dump(mode="json")})
    if result.ending != "met":
        raise typer.Exit(EXIT_NOT_MET)


def show_rounds(console: Console, result: CycleResult) -> None:
    from rich.table import Table

    table = Table(title="Rounds of training and proof")
    compared = any(r.agreement is not None for r in result.rounds)
    measure = result.accuracy.measure
    columns = ["round", "epochs", measure, "CSat", "at most", "witnesses", "seconds"]
    for name in columns + (["agreement"] if compared else []):
        table.add_column(name, justify="right")
    for found in result.rounds:
        low = " -" if found.pacc < result.accuracy.least else ""
        row = [
            f"{found.number}{' *' if found.number == result.best else ''}",
            str(found.epochs),
            f"{100 * found.pacc:.1f} %{low}",
            f"{100 * found.csat:.1f} %",
            f"{100 * found.limit:.1f} %",
            str(found.witnesses),
            f"{found.seconds:.0f}",
        ]
        if compared:
            row.append("" if found.agreement is None else f"{100 * found.agreement:.1f} %")
        table.add_row(*row)
    console.print(table)
    console.print("* kept. At most: regions whose data point satisfies the property.")
    console.print(f"{measure}: {result.accuracy}; - marks what is below.")
    vacuous = result.chosen.vacuous
    if vacuous:
        console.print(
            f"CSat leaves out {vacuous} of the regions asked: the property says nothing of them, "
            "so they hold whatever the network computes."
        )


def register(app: typer.Typer) -> None:
    app.command()(cycle)
