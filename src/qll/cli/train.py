"""``qll train``: a network that satisfies a property, by the paper's recipe or another."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qll.cli.answers import JsonFile, store
from qll.cli.completion import complete_data, complete_rule
from qll.cli.options import DATA_HELP, Features, Target, data_options

# Points that an attack missed, as a share: below it is what any attack misses now and then.
_MISSED = 0.02

if TYPE_CHECKING:
    from qll.training.config import TrainConfig


def train(
    prop: Annotated[
        str | None,
        typer.Argument(
            metavar="PROPERTY",
            autocompletion=complete_rule,
            help="A shipped property or a .qll file.",
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(autocompletion=complete_data, help=DATA_HELP)] = None,
    target: Target = "",
    features: Features = "",
    data_dir: Annotated[
        str | None, typer.Option(help="Where the data files are; else they are downloaded.")
    ] = None,
    logic: Annotated[
        str | None, typer.Option(help="qll:5, stl:5, dl2, ...; baseline: prediction alone.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="How the property becomes a loss.")] = None,
    network: Annotated[
        str | None, typer.Option(help="A named one, mlp:64,32, or package.module:factory.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Default: the paper's 100.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seeds every random stream.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda:0, ...")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting: --set alpha=0.3.")
    ] = None,
    json_path: JsonFile = None,
) -> None:
    """Train a network on a property. Defaults are the paper's for the property and the data.

    Example: qll train not-both --data dice-rendered --logic qll:5 --epochs 20 --out runs/dice
    """
    from qll.checkup import refuse_empty
    from qll.data.own import is_own
    from qll.data.progress import terminal_progress
    from qll.kernels.announce import announced
    from qll.training.events import with_events
    from qll.training.loop import load_configured
    from qll.training.loop import train as run_training
    from qll.training.progress import console_reporter

    given: dict[str, Any] = {
        "data_dir": data_dir,
        "data_options": data_options(target, features) or None,
        "logic": logic,
        "method": method,
        "network": network,
        "epochs": epochs,
        "seed": seed,
        "device": device,
    }
    if resume:
        resolved = _resumed(prop, data, out, given, config, settings or [])
    else:
        resolved = _resolved(prop, data, given, config, settings or [])
    folder = out or default_folder(resolved)
    with (
        terminal_progress() as download,
        console_reporter() as console,
        with_events(console, folder) as reporter,
        announced(reporter.note),
    ):
        own = load_configured(resolved) if is_own(resolved.data) else None
        if own is not None:
            refuse_empty(resolved, own)
        try:
            run = run_training(
                resolved, folder, resume=resume, reporter=reporter, download=download, data=own
            )
        except KeyboardInterrupt:
            said = "Nothing was trained yet."
            if (folder / "config.json").exists():
                said = f"{folder} holds every finished epoch; go on with: "
                said += shlex.join(["qll", "train", "--resume", "--out", str(folder)])
            reporter.note(f"Stopped. {said}")
            raise
    typer.echo(f"run: {folder}")
    for line in [*figures(run.evaluation.to_json()), *remarks(resolved)]:
        typer.echo(line)
    typer.echo(f"next: {_next(resolved, folder)}")
    store(json_path, {"run": str(folder), **run.evaluation.to_json()})


def _next(config: TrainConfig, folder: Path) -> str:
    """The command that proves the run, to be copied as it is."""
    words = ["qll", "verify", config.property, "--network", str(folder / "model.onnx")]
    words += ["--data", config.data]
    for name in ("target", "features"):
        if name in config.data_options:
            words += [f"--{name}", str(config.data_options[name])]
    return shlex.join(words)


def default_folder(config: TrainConfig) -> Path:
    from qll.grid.experiment import run_name

    return Path("runs") / run_name(config)


def figures(values: dict[str, Any]) -> list[str]:
    """The figures of an evaluation, one a line."""
    names = {
        "pacc": "PAcc         right predictions",
        "cacc": "CAcc         satisfied at random points",
        "csec_self": "CSec (self)  not falsified, own logic",
        "csec_qll": "CSec (QLL)   not falsified, QLL oracle",
    }
    lines = [
        _figure(text, values[name], values.get("chance") if name == "pacc" else None)
        for name, text in names.items()
        if values.get(name) is not None
    ]
    if values.get("rmse") is not None:
        lines.insert(0, f"{'RMSE         of the predictions':44}{values['rmse']:8.4g}")
    if values.get("r2") is not None:
        share = f"{'R2           variance explained':44}{values['r2']:8.3f}"
        lines.insert(1, f"{share}   (0 for the best constant answer)")
    proved = values.get("csat", {})
    lines += [
        _figure(f"CSat         proved at epsilon {epsilon}", share)
        for epsilon, share in proved.items()
    ]
    shares = [values.get(name) for name in names] + list(proved.values())
    if any(share and share.get("vacuous") for share in shares):
        lines.append(
            "Vacuous: the property says nothing of these data points, so they satisfy it whatever "
            "the network computes; they are not counted."
        )
    missed = values.get("missed")
    if missed and missed["share"] and missed["share"] > _MISSED:
        lines.append(
            f"Misled: around {missed['good']} of {missed['total']} points that the attack left, it "
            "finds a violation if it is kept to half of epsilon. The network has learned to "
            "mislead it, so CSec is too high: rely on CSat, and train with another seed or "
            "certified (--method small-box)."
        )
    return lines


def _figure(text: str, share: dict[str, Any], chance: dict[str, Any] | None = None) -> str:
    """One line: the share, what it is of, and what stands beside it."""
    value = "   n/a  " if share["share"] is None else f"{100 * share['share']:6.1f} %"
    beside = f"{share['good']} of {share['total']}"
    if share.get("vacuous"):
        beside += f"; {share['vacuous']} vacuous"
    if chance is not None:
        beside += f"; chance {100 * chance['share']:.1f} %"
    return f"{text:44}{value}   ({beside})"


def remarks(config: TrainConfig) -> list[str]:
    """What has to be said of a network beside its figures."""
    from qll.training.methods import METHODS

    remark = None if config.is_baseline else METHODS[config.method].remark
    return [] if remark is None else [f"Note: {remark}."]


def _resolved(
    prop: str | None,
    data: str | None,
    given: dict[str, Any],
    config: Path | None,
    settings: list[str],
) -> TrainConfig:
    from qll.errors import InputError
    from qll.training.config import default_logic, read_config, resolve

    held = read_config(config) if config is not None else {}
    prop, data = prop or held.get("property"), data or held.get("data")
    for name, value, example in (
        ("PROPERTY", prop, "qll train classification-robustness"),
        ("--data", data, "--data mnist"),
    ):
        if value is None:
            raise InputError(
                f"{name} is missing",
                expected=f"{name}, or a --config that names it",
                found="none",
                fix=f"write {example}",
            )
    if given["logic"] is None and "logic" not in held:
        method = str(given.get("method") or held.get("method") or "attack")
        given = {**given, "logic": default_logic(str(prop), str(data), method)}
    return resolve(str(prop), str(data), file=config, options=given, settings=settings)


def _resumed(
    prop: str | None,
    data: str | None,
    out: Path | None,
    given: dict[str, Any],
    config: Path | None,
    settings: list[str],
) -> TrainConfig:
    """The folder's own configuration; what is said again must be the same."""
    from qll.errors import InputError, RunError
    from qll.training.run import RunFolder

    if out is None or config is not None or settings:
        raise InputError(
            "a run is resumed as it was started",
            expected="--resume --out FOLDER, without --config and --set",
            found="no --out" if out is None else "--config or --set",
            fix="write qll train --resume --out FOLDER",
        )
    held = RunFolder.open(out).config()
    for name, value in {"property": prop, "data": data, **given}.items():
        if value is not None and getattr(held, name) != value:
            raise RunError(
                f"the run in this folder has another {name}",
                where=str(out),
                expected=str(getattr(held, name)),
                found=str(value),
                fix="leave it out to resume, or start a new run with another --out",
            )
    return held


def register(app: typer.Typer) -> None:
    app.command()(train)
