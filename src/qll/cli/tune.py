"""``qll tune``: the front of accuracy and proved share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qll.cli.answers import JsonFile, plain_console, store
from qll.cli.completion import complete_data, complete_rule
from qll.cli.options import DATA_HELP, Features, Target, data_options

if TYPE_CHECKING:
    from qll.tuning import Point


def tune(
    prop: Annotated[
        str,
        typer.Argument(
            metavar="PROPERTY",
            autocompletion=complete_rule,
            help="A shipped property or a .qll file.",
        ),
    ],
    data: Annotated[str, typer.Option(autocompletion=complete_data, help=DATA_HELP)],
    target: Target = "",
    features: Features = "",
    trials: Annotated[int, typer.Option(help="Trials of the study, over all sessions.")] = 50,
    epochs: Annotated[int, typer.Option(help="Epochs of each trial.")] = 10,
    validation: Annotated[
        int | None,
        typer.Option(help="Training data held out to judge by; 1000, of your own data a fifth."),
    ] = None,
    regions: Annotated[int, typer.Option(help="Of these, how many are verified.")] = 200,
    method: Annotated[
        list[str] | None, typer.Option(help="Only these methods; repeatable.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one proof.")] = 2.0,
    jobs: Annotated[int, typer.Option(help="Processes that verify in a trial.")] = 1,
    out: Annotated[Path, typer.Option(help="The folder of the study.")] = Path("runs/tune"),
    data_dir: Annotated[str | None, typer.Option(help="Where the data files are.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting that all trials share.")
    ] = None,
    json_path: JsonFile = None,
) -> None:
    """Search method and dials for the best trade-offs of PAcc and CSat, on validation images. Call
    it again to go on; call it in several terminals to work on one study together.

    Example: qll tune not-both --data dice-rendered --trials 30 --epochs 5 --out runs/front
    """
    from rich.table import Table

    from qll.records import record
    from qll.training.methods import METHODS
    from qll.tuning import TuneConfig
    from qll.tuning import tune as run

    console = plain_console()
    for name in method or []:
        METHODS[name]  # names one that does not exist
    held_out = _fifth(data, data_dir, target, features) if validation is None else validation
    options = {
        "epochs": epochs,
        "validation": held_out,
        "data_dir": data_dir,
        "data_options": data_options(target, features) or None,
    }
    config = record(
        TuneConfig,
        None,
        "--",
        property=prop,
        data=data,
        options={k: v for k, v in options.items() if v is not None},
        settings=tuple(settings or ()),
        trials=trials,
        regions=regions,
        timeout=timeout,
        jobs=jobs,
        **({"methods": tuple(method)} if method else {}),
    )

    def tell(point: Point) -> None:
        mark = "  on the front" if point.on_front else ""
        console.print(
            f"trial {point.trial}: {point.settings.get('method')}, "
            f"{point.measure} {100 * point.pacc:.1f} %, CSat {100 * point.csat:.1f} %{mark}"
        )

    def tell_failure(trial: int, reason: str) -> None:
        console.print(f"trial {trial}: no result. {reason}", markup=False)

    points = run(config, out, on_trial=tell, on_failure=tell_failure)
    verified = min(regions, held_out)
    table = Table(title=f"The front, on {held_out} validation data ({verified} verified)")
    for column in ("trial", points[0].measure, "CSat", "method", "settings"):
        words = column in ("method", "settings")
        table.add_column(column, justify="left" if words else "right")
    for point in sorted((p for p in points if p.on_front), key=lambda p: -p.pacc):
        table.add_row(
            str(point.trial),
            f"{100 * point.pacc:.1f} %",
            f"{100 * point.csat:.1f} %",
            str(point.settings.get("method")),
            dials(point.settings),
        )
    console.print(table)
    console.print(f"{out}: front.png, front.json, and the run folder of every trial on the front")
    store(
        json_path, {"out": str(out), "trials": [point.model_dump(mode="json") for point in points]}
    )


def _fifth(data: str, data_dir: str | None, target: str, features: str) -> int:
    from qll.data import data_sets, load

    if data in data_sets:
        return 1000
    return max(len(load(data, data_dir, **data_options(target, features)).train) // 5, 1)


def dials(settings: dict[str, Any]) -> str:
    """What a trial chose, in a line.

    >>> dials({"method": "mixed", "logic": "qll:5", "alpha": 0.25, "options": {"share": 0.1}})
    'qll:5, alpha 0.25, share 0.1'
    """
    ramp = {f"ramp {end}": value for end, value in settings.get("ramp", {}).items()}
    flat = {**settings, **settings.get("options", {}), **ramp}
    numbers = [f"{k} {v:.3g}" for k, v in flat.items() if isinstance(v, float)]
    first = settings["stages"][0].get("share") if settings.get("stages") else None
    stage = [f"attack for {100 * first:.0f} % first"] if first is not None else []
    return ", ".join([str(settings.get("logic", "")), *numbers, *stage])


def register(app: typer.Typer) -> None:
    app.command()(tune)
