"""``qll demo tabular``: a table, a rule over two points, a network that is proved to obey it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from qll.data import DataSet
    from qll.property import Property
    from qll.verify.verdict import Verdict

ROWS, EPOCHS, NETWORK = 800, 15, "mlp:12"
TIMEOUT = 20.0
RULE = """\
# Two applicants who differ in their group alone get almost the same score.
parameter apart: number = 0.5
forall x in domain, x2 in domain and x2["age"] == x["age"] and x2["income"] == x["income"]
    and x2["debt"] == x["debt"]:
  y2["granted"] - y["granted"] <= apart
"""


@dataclass(frozen=True, eq=False)
class Trained:
    name: str
    model: nn.Module
    pacc: float
    verdict: Verdict
    seconds: float


def applicants(rows: int = ROWS, seed: int = 0) -> dict[str, Any]:
    """Credit decisions of the past, which were not fair: group b was granted less."""
    import numpy as np

    rng = np.random.default_rng(seed)
    age, group = rng.integers(18, 76, rows), rng.integers(0, 2, rows)
    income, debt = rng.gamma(4.0, 12.0, rows).round(1), rng.gamma(2.0, 8.0, rows).round(1)
    worth = 0.06 * (income - 45) - 0.08 * (debt - 15) + 0.02 * (age - 40) - 1.2 * group
    granted = worth + rng.logistic(0, 0.4, rows) > 0
    return {
        "age": age,
        "income": income,
        "debt": debt,
        "group": np.where(group == 1, "b", "a"),
        "granted": granted.astype(int),
    }


def demo_table(
    console: Console, epochs: int, seed: int, out: Path | None
) -> list[dict[str, object]]:
    import tempfile

    import torch

    from qll.data import load
    from qll.kernels.announce import announced
    from qll.properties import load as load_rule
    from qll.training.progress import console_reporter

    begun = time.perf_counter()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        data = load(applicants(), target="granted", task="binary")
        console.print(RULE, markup=False, end="", soft_wrap=True)
        console.print(
            f"\n{len(data.train)} generated applicants to train on, {len(data.test)} to test on; "
            "decisions of the past, which were not fair.",
            soft_wrap=True,
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "fair.qll"
            path.write_text(RULE, encoding="utf-8")
            prop = load_rule(path, schema=data.schema)
            with console_reporter() as reporter, announced(reporter.note):
                found = [
                    _trained(name, data, prop, str(path), epochs, seed, reporter)
                    for name in ("baseline", "qll:5")
                ]
        _show(console, found, data)
        console.print(f"{time.perf_counter() - begun:.0f} s in all", markup=False)
        if out is not None:
            _keep(out, data, found)
            console.print(f"Table, rule and networks: {out}", markup=False)
        return [
            {"name": one.name, "pacc": one.pacc, "verdict": str(one.verdict.status),
             "seconds": round(one.seconds, 1)}
            for one in found
        ]  # fmt: skip
    finally:
        torch.set_num_threads(threads)


def _trained(
    name: str, data: DataSet, prop: Property, rule: str, epochs: int, seed: int, reporter: Any
) -> Trained:
    from qll.training.config import resolve
    from qll.training.loop import train
    from qll.verify.api import verify

    begun = time.perf_counter()
    options = {"logic": name, "network": NETWORK, "epochs": epochs, "seed": seed, "weight": 10.0}
    run = train(resolve(rule, data.name, options=options), data=data, reporter=reporter)
    (verdict,) = verify(
        prop, run.model.eval(), data.test.batch(slice(0, 1))[0], certified=True, timeout=TIMEOUT
    )
    pacc = run.evaluation.pacc
    share = pacc.value if pacc is not None else float("nan")
    return Trained(name, run.model, share, verdict, time.perf_counter() - begun)


def _show(console: Console, found: list[Trained], data: DataSet) -> None:
    import torch
    from rich.table import Table

    from qll.metrics import chance_accuracy

    chance = chance_accuracy(torch.from_numpy(data.test.labels), task=data.task)
    title = "The same network, trained without the rule and with it"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    for one in found:
        table.add_column(one.name, justify="right")
    table.add_row(f"decisions predicted right (chance {chance})",
                  *(f"{100 * one.pacc:.1f} %" for one in found))  # fmt: skip
    table.add_row("the rule, on the whole domain", *(str(one.verdict.status) for one in found))
    table.add_row("seconds", *(f"{one.seconds:.0f}" for one in found))
    console.print(table)
    for one in found:
        said = _witness(one, data)
        if said:
            console.print(said, markup=False, soft_wrap=True)


def _witness(one: Trained, data: DataSet) -> str:
    """Two applicants, in words."""
    import torch

    from qll.reports.moved import describe_move, describe_row

    first, second = one.verdict.witness, getattr(one.verdict, "witness2", None)
    if first is None or second is None or data.schema is None:
        return ""
    with torch.no_grad():
        rows = torch.tensor([first.reshape(-1).tolist(), second.reshape(-1).tolist()])
        scores = one.model(rows)[:, 0].tolist()
    return (
        f"A witness against the {one.name}: {describe_row(data.schema, rows[0].tolist())}; with "
        f"{describe_move(data.schema, rows[0].tolist(), rows[1].tolist())} the score goes from "
        f"{scores[0]:.2f} to {scores[1]:.2f}."
    )


def _keep(out: Path, data: DataSet, found: list[Trained]) -> None:
    from qll.files import write_atomically, write_error
    from qll.networks.onnx_writer import export_onnx

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(out, error) from error
    columns = applicants()
    lines = [",".join(columns)]
    lines += [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    write_atomically(out / "applicants.csv", ("\n".join(lines) + "\n").encode())
    write_atomically(out / "fair.qll", RULE.encode())
    for one, name in zip(found, ("baseline", "fair"), strict=True):
        export_onnx(one.model.eval(), out / f"{name}.onnx", input_shape=data.shape)
