"""``qll demo``: the whole idea in a minute, without a download."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qll.cli.answers import JsonFile, plain_console, store

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from qll.attacks import AttackResult
    from qll.cycle.records import Round
    from qll.data import DataSet
    from qll.metrics import Share
    from qll.property import Property
    from qll.training.progress import Reporter
    from qll.verify.verdict import Verdict

PROPERTY = "not-both"
# Small enough for a minute, large enough that the two networks predict alike.
IMAGES, TEST_IMAGES, EPOCHS = 1000, 200, 10
TRAINING = {"batch_size": 32, "learning_rate": 3e-3, "attack": "apgd:10,restarts=0"}
JUDGING = "apgd:40,restarts=3"
# Regions that the verifier decides for each network, every answer confirmed by the checker.
PROVED = 60
# Seconds of the processor for each region: a busy machine gives the same answers.
PATIENCE = 15.0
# The cycle: regions around training images that teach, its goal, and the most it may take. It ends
# with the goal, within a minute; the rest is for slow machines, which come to the same result.
TAUGHT, TARGET, BUDGET = 60, 1.0, 900.0
# The PAcc that a proof may cost here: so few epochs leave the network of the cycle some behind.
COST = 0.1


@dataclass(frozen=True, eq=False)
class Trained:
    """One of the two networks and what was found of it."""

    name: str
    model: nn.Module
    pacc: Share
    cacc: Share
    attacked: AttackResult
    verdicts: list[Verdict]
    seconds: float

    @property
    def proved(self) -> Share:
        from qll.metrics import proved_share

        return proved_share(verdict.as_json() for verdict in self.verdicts)

    def as_json(self) -> dict[str, object]:
        shares = {"pacc": self.pacc, "cacc": self.cacc, "csec": self.security, "csat": self.proved}
        values = {name: share.value for name, share in shares.items()}
        return {"name": self.name, **values, "seconds": round(self.seconds, 1)}

    @property
    def security(self) -> Share:
        from qll.metrics import Share

        falsified = int(self.attacked.falsified.sum())
        return Share(len(self.attacked.falsified) - falsified, len(self.attacked.falsified))


def demo(
    what: Annotated[
        str, typer.Argument(help="dice: rendered pictures; tabular: a generated table.")
    ] = "dice",
    epochs: Annotated[int | None, typer.Option(help="Epochs for each of the two networks.")] = None,
    seed: Annotated[int, typer.Option(help="Seeds every random stream.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A folder for networks and pictures.")] = None,
    json_path: JsonFile = None,
) -> None:
    """Train without a property and with it; attack or prove both, compare.

    Example: qll demo tabular --out demo
    """
    import torch

    from qll.cli.demo_table import EPOCHS as TABLE_EPOCHS
    from qll.cli.demo_table import demo_table
    from qll.data import load as load_data
    from qll.kernels.announce import announced
    from qll.logics.base import choice
    from qll.properties import load
    from qll.training.progress import console_reporter
    from qll.verify import clock

    console = plain_console()
    if choice(what, "demo", "what", ("dice", "tabular")) == "tabular":
        rows = demo_table(console, TABLE_EPOCHS if epochs is None else epochs, seed, out)
        store(json_path, rows)
        return
    epochs = EPOCHS if epochs is None else epochs
    prop = load(PROPERTY)
    show_formula(console, prop)
    # Batches of 32 small images gain nothing from a second thread, and lose much on a busy machine.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        data = load_data("dice-rendered", count_train=IMAGES, count_test=TEST_IMAGES)
        console.print(f"\n{IMAGES} rendered dice to train on, {TEST_IMAGES} to test on.")
        with console_reporter() as reporter, announced(reporter.note), clock.counting("cpu"):
            plain = train_baseline(data, prop, epochs, seed, reporter)
            proved, rounds = run_cycle(data, prop, epochs, seed, reporter, plain.pacc.value)
        found = [plain, proved]
        show_comparison(console, found, data)
        if out is not None:
            keep(out, data, found)
            keep_cycle(out / "rounds.png", data, plain, rounds)
            console.print(f"\nNetworks and pictures: {out}")
        store(json_path, [one.as_json() for one in found])
    finally:
        torch.set_num_threads(threads)


def show_formula(console: Console, prop: Property) -> None:
    """The rule's own text, in lines that can be copied: never wrapped."""
    console.print(prop.show("unicode").rstrip(), markup=False, soft_wrap=True)


def train_baseline(
    data: DataSet, prop: Property, epochs: int, seed: int, reporter: Reporter
) -> Trained:
    from qll.training.config import resolve
    from qll.training.loop import train

    begun = time.perf_counter()
    options = {**TRAINING, "logic": "baseline", "epochs": epochs, "seed": seed}
    config = resolve(prop.name, data.name, options=options)
    run = train(config, data=data, reporter=reporter)
    return judged("baseline", data, prop, run.model, seed, begun)


def run_cycle(
    data: DataSet, prop: Property, epochs: int, seed: int, reporter: Reporter, plain: float
) -> tuple[Trained, Sequence[Round]]:
    """Train, verify, feed back what was not proved, until the target; ``plain`` is the PAcc of the
    other network."""
    import tempfile

    from qll.cycle import CycleConfig, cycle
    from qll.networks import load as load_network
    from qll.networks.trainable import to_module
    from qll.training.config import resolve

    begun = time.perf_counter()
    options = {**TRAINING, "logic": "qll:5", "epochs": epochs, "seed": seed}
    config = CycleConfig(
        train=resolve(prop.name, data.name, options=options),
        target=TARGET,
        accuracy=max(plain - COST, 0.0),
        budget=BUDGET,
        asked=PROVED,
        feedback=TAUGHT,
        more_epochs=2,
        timeout=PATIENCE,
    )
    with tempfile.TemporaryDirectory() as folder:
        result = cycle(
            config,
            folder,
            data=data,
            reporter=reporter,
            on_round=lambda found: reporter.note(str(found)),
        )
        model = to_module(load_network(Path(folder) / "model.onnx"))
    return judged("cycle", data, prop, model, seed, begun), result.rounds


def judged(
    name: str, data: DataSet, prop: Property, model: nn.Module, seed: int, begun: float
) -> Trained:
    import torch

    from qll.attacks import attack
    from qll.metrics import constraint_accuracy, prediction_accuracy
    from qll.verify.api import verify

    x, labels = torch.from_numpy(data.test.inputs), torch.from_numpy(data.test.labels)
    found = attack(JUDGING)(model, prop, x, labels, seed=seed)
    verdicts = verify(prop, model.eval(), x[:PROVED], certified=True, timeout=PATIENCE)
    return Trained(
        name,
        model,
        prediction_accuracy(model, x, labels, task=data.task),
        constraint_accuracy(model, prop, x, None, seed=seed),
        found,
        verdicts,
        time.perf_counter() - begun,
    )


def show_comparison(console: Console, found: list[Trained], data: DataSet) -> None:
    import torch
    from rich.table import Table

    from qll.metrics import chance_accuracy

    chance = chance_accuracy(torch.from_numpy(data.test.labels), task=data.task)
    title = "The same network, trained without the property and in the cycle"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    for one in found:
        table.add_column(one.name, justify="right")
    rows: list[tuple[str, list[object]]] = [
        (f"PAcc: faces predicted right (chance {chance})", [one.pacc for one in found]),
        ("CAcc: satisfied at random points", [one.cacc for one in found]),
        ("CSec: regions that an attack did not falsify", [one.security for one in found]),
        (f"CSat: of {PROVED} regions, proved and checked", [one.proved for one in found]),
    ]
    for name, values in rows:
        table.add_row(name, *(str(value) for value in values))
    table.add_row("seconds", *(f"{one.seconds:.0f}" for one in found))
    console.print(table)
    worst = found[0].attacked.margins.min().item()
    console.print(
        f"Worst violation of the {found[0].name}: two opposite faces predicted with logits of at "
        f"least {-worst:.2f}."
        if worst < 0
        else "No violation was found; that proves nothing: the line CSat does.",
        soft_wrap=True,
    )
    console.print("Next: qll demo tabular (a table, a fair decision), or qll show (the rules)")


def keep(out: Path, data: DataSet, found: list[Trained]) -> None:
    from qll.data.pictures import save_comparison
    from qll.files import write_error
    from qll.networks.onnx_writer import export_onnx

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(out, error) from error
    for one in found:
        name = one.name
        export_onnx(one.model.eval(), out / f"{name}.onnx", input_shape=data.shape)
        worst = one.attacked.margins.argsort()[:4]
        save_comparison(
            out / f"{name}.png",
            data.test.inputs[worst.numpy()],
            one.attacked.x[worst].numpy(),
            captions=[
                f"{'violated' if m < 0 else 'not falsified'}, margin {m:.3g}"
                for m in one.attacked.margins[worst].tolist()
            ],
        )
        _keep_witnesses(out / f"{name}-witnesses.png", data, one)


def keep_cycle(path: Path, data: DataSet, plain: Trained, rounds: Sequence[Round]) -> None:
    """The network without the rule, then round by round the one in the cycle."""
    from qll.reports.demo_picture import draw_cycle

    steps = [("without the rule", plain.pacc.value, plain.proved.value)]
    steps += [(f"round {found.number}", found.pacc, found.csat) for found in rounds]
    broken = next((i for i, v in enumerate(plain.verdicts) if v.witness is not None), None)
    pictures = []
    if broken is not None and (witness := plain.verdicts[broken].witness) is not None:
        clean, moved = data.test.inputs[broken], witness.reshape(data.shape)
        pictures = [
            (clean, f"a picture: the network\nsees {_seen(plain.model, clean)}"),
            (moved, f"no pixel moved by more than\n4/255: it sees {_seen(plain.model, moved)}"),
        ]
    draw_cycle(path, steps, pictures)


def _seen(model: nn.Module, picture: Any) -> str:
    """The faces that a network predicts, as one says it."""
    import torch

    with torch.no_grad():
        y = model.eval()(torch.as_tensor(picture, dtype=torch.float32)[None])[0]
    faces = [str(k + 1) for k, value in enumerate(y.tolist()) if value >= 0]
    return " and ".join(filter(None, (", ".join(faces[:-1]), *faces[-1:]))) or "no face"


def _keep_witnesses(path: Path, data: DataSet, one: Trained) -> None:
    """Points that violate the property, replayed in exact arithmetic and in ONNX Runtime."""
    import numpy as np

    from qll.data.pictures import save_comparison

    shown = [(i, v) for i, v in enumerate(one.verdicts) if v.witness is not None][:4]
    if not shown:
        return
    save_comparison(
        path,
        data.test.inputs[[i for i, _ in shown]],
        np.stack([v.witness.reshape(data.shape) for _, v in shown if v.witness is not None]),
        captions=[
            f"image {i}: falsified, violated by {v.value[0]:.3g}" for i, v in shown if v.value
        ],
    )


def register(app: typer.Typer) -> None:
    app.command()(demo)
