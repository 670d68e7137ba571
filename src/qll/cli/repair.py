"""``qll repair``: a network that violates a rule, moved as little as it takes to prove it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qll.cli.answers import JsonFile, plain_console, store
from qll.cli.completion import complete_data
from qll.cli.cycle import EXIT_NOT_MET
from qll.cli.options import (
    DATA_HELP,
    Features,
    Target,
    counted,
    data_options,
    parse_settings,
)

if TYPE_CHECKING:
    from qll.cycle.repair import RepairResult


def repair(
    prop: Annotated[
        str, typer.Argument(metavar="PROPERTY", help="A .qll file: a rule of a box of inputs.")
    ],
    network: Annotated[Path, typer.Option(help="The ONNX file to repair.")],
    data: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete_data, help="What it should go on to predict: " + DATA_HELP
        ),
    ] = None,
    target: Target = "",
    features: Features = "",
    data_dir: Annotated[str | None, typer.Option(help="Where the data files are.")] = None,
    budget: Annotated[str, typer.Option(help="Time in all: 90s, 30m, 2h.")] = "30m",
    out: Annotated[Path, typer.Option(help="A folder for the result.")] = Path("runs/repaired"),
    timeout: Annotated[float, typer.Option(help="Seconds for one proof.")] = 300.0,
    decision: Annotated[
        str, typer.Option(help="How the network decides: max or min of its outputs.")
    ] = "max",
    keep: Annotated[float, typer.Option(help="The weight of --data against the rule's.")] = 2.0,
    jobs: Annotated[int, typer.Option(help="Processes that verify; 0: one for each core.")] = 0,
    seed: Annotated[int, typer.Option(help="Seeds every random stream.")] = 0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter: --set delta=0.7.")
    ] = None,
    json_path: JsonFile = None,
) -> None:
    """Repair a network that violates a rule: rounds of fine-tuning and proof, then as far back to
    its own weights as the proof allows. With --data it keeps predicting them, and the figures
    before and after are shown. Exit code 0: proved, 11: not, or a network that decides nothing.

    Example: qll repair rule.qll --network net.onnx --data cars.csv --target mpg
    """
    import os

    from qll.cycle.budget import seconds_of
    from qll.cycle.repair import Repair
    from qll.cycle.repair import repair as run
    from qll.data import load as load_data
    from qll.kernels.announce import announced
    from qll.logics.base import choice
    from qll.networks import load as load_network
    from qll.properties import load_fitting
    from qll.records import record

    console = plain_console()
    handle = load_network(network)
    table = data_options(target, features)
    loaded = None if data is None else load_data(data, data_dir, **table)
    config = record(
        Repair,
        None,
        "--",
        budget=seconds_of(budget),
        timeout=timeout,
        decision=choice(decision, "repair", "decision", ("max", "min")),
        keep=keep,
        jobs=jobs or os.cpu_count() or 1,
        seed=seed,
    )

    def tell(row: dict[str, Any]) -> None:
        console.print(
            f"round {row['round']}: {row['status']} ({counted(row['nodes'], 'node')}, "
            f"{row['proof_seconds']:.1f} s), weights moved {100 * row['moved']:.2f} %"
        )

    schema = None if loaded is None else loaded.schema
    fits = handle.output_size if schema is None else schema
    rule = load_fitting(prop, fits, **parse_settings(settings))
    with announced(lambda text: typer.echo(text, err=True)):
        result, _ = run(rule, handle, config, out, data=loaded, on_round=tell)
    console.print(
        f"\n{result.status} after {counted(result.rounds, 'round')}, {result.seconds:.0f} s"
    )
    for name, value in _lines(result, handle.output_size):
        console.print(f"{name:44}{value}")
    said = {
        "confirmed": "the proof is confirmed by the independent checker",
        "refused": "the independent checker refused the proof",
        "not asked": "certificates, which 'qll audit' checks",
    }[result.checker]
    if result.status != "verified" and result.checker == "not asked":
        said = "the network is not proved, so there is no certificate"
    console.print(f"{out}: model.onnx, repair.json; {said}", soft_wrap=True)
    if result.status != "verified" and result.seconds > config.budget:
        console.print("Fix: give it more time, --budget 10m", soft_wrap=True)
    if result.constant is not None:
        console.print(
            f"This is no repair: the network decides nothing any more, {result.constant}."
        )
    store(json_path, {"out": str(out), **result.model_dump(mode="json")})
    if not result.is_success:
        raise typer.Exit(EXIT_NOT_MET)


def _lines(result: RepairResult, outputs: int) -> list[tuple[str, str]]:
    """The figures, one a line."""
    same = change = "it obeyed at no sampled point"
    if result.output_change is not None:
        change = f"{100 * result.output_change:.1f} % of their spread"
        same = "one output, of one sign: none" if outputs == 1 else same
    if result.agreement is not None:
        same = f"{100 * result.agreement:.2f} %"
    lines = [
        ("weights moved, relative to their norm", f"{100 * result.moved:.3f} %"),
        ("of the way that training went", f"{100 * result.step_back:.0f} %"),
        ("same decision where the original obeyed", same),
        ("mean change of its outputs there", change),
        ("sampled points that violate: before", f"{100 * result.violated_before:.3f} %"),
        ("                             after", f"{100 * result.violated_after:.3f} %"),
    ]
    kept = result.kept
    if kept is None:
        return lines
    lines += [
        (f"{kept.measure} on the test data: before", f"{100 * kept.before:.1f} %"),
        (f"{'':{len(kept.measure)}}                   after", f"{100 * kept.after:.1f} %"),
    ]
    if kept.rmse_before is not None and kept.rmse_after is not None:
        lines += [
            ("RMSE on the test data: before", f"{kept.rmse_before:.4g}"),
            ("                       after", f"{kept.rmse_after:.4g}"),
        ]
    return lines


def register(app: typer.Typer) -> None:
    app.command()(repair)
