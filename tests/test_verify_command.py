"""``qll verify`` as a user calls it: exit codes, records, second opinions and mistakes."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from typer.testing import CliRunner, Result

from qll.cli.main import build_app
from qll.errors import QllError
from qll.kernels.announce import MESSAGE
from qll.networks import load
from qll.verify.backend import BACKENDS, Backend, Budget
from qll.verify.query import Query
from qll.verify.verdict import Reason, Status, Verdict

PROPERTY = """outputs 3
parameter epsilon: input = 0.1

forall x in ball(x0, epsilon) and range(0, 1):
  forall c in outputs: label(c) -o forall i in outputs where i != c: y[c] >= y[i]
"""


def write_idx(path: Path, values: Any, kind: int, dtype: str) -> None:
    head = struct.pack(f">HBB{values.ndim}I", 0, kind, values.ndim, *values.shape)
    path.write_bytes(head + values.astype(dtype).tobytes())


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A network that sums one row of the picture for each class. Around pictures 0 to 2, which are
    bright in one row, the property holds; picture 3 is a little brighter in row 0 than in row 1."""
    weight = torch.zeros(3, 16)
    for c in range(3):
        weight[c, 4 * c : 4 * c + 4] = 1.0
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3), torch.nn.ReLU(),
                                 torch.nn.Linear(3, 3))  # fmt: skip
    with torch.no_grad():
        module[1].weight.copy_(weight)
        module[3].weight.copy_(torch.eye(3))
        module[1].bias.zero_()
        module[3].bias.zero_()
    (tmp_path / "net.onnx").write_bytes(load(module, input_shape=(1, 4, 4)).source)
    pictures = np.full((4, 4, 4), 0.1)
    for c in range(3):
        pictures[c, c] = 0.9
    pictures[3, :2] = [[0.5], [0.45]]
    write_idx(tmp_path / "pictures.idx", pictures, 14, ">f8")
    write_idx(tmp_path / "labels.idx", np.array([0, 1, 2, 0]), 8, ">u1")
    (tmp_path / "robust.qll").write_text(PROPERTY)
    return tmp_path


def verify(folder: Path, *more: str, count: int = 4) -> Result:
    arguments = [
        "verify", str(folder / "robust.qll"), "--network", str(folder / "net.onnx"),
        "--images", str(folder / "pictures.idx"), "--labels", str(folder / "labels.idx"),
        "--count", str(count), "--jobs", "1", "--timeout", "20", *more,
    ]  # fmt: skip
    return CliRunner().invoke(build_app(), arguments)


@dataclass
class Fake(Backend):
    """Says the same of every query."""

    name: ClassVar[str] = "fake"
    said: ClassVar[Verdict] = Verdict(Status.UNKNOWN, "fake", reason=Reason.TIME, bound=-0.5)

    def run(self, queries: Sequence[Query], budget: Budget) -> list[Verdict]:
        return [self.said] * len(queries)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Fake]]:
    assert "fake" not in BACKENDS
    monkeypatch.setitem(BACKENDS._items, "fake", Fake)
    monkeypatch.setattr(Fake, "said", Fake.said)
    yield Fake


def test_all_verified_is_exit_code_0(inputs: Path) -> None:
    result = verify(inputs, "--json", str(inputs / "out.json"), count=3)
    assert result.exit_code == 0, result.output
    assert "3 verified, 0 falsified, 0 unknown of 3 (CSat 100.0 %)" in result.output
    record = json.loads((inputs / "out.json").read_text())
    assert record["total"]["verified"] == 3
    assert [v["status"] for v in record["verdicts"]] == ["verified"] * 3
    assert not (inputs / "out.json.partial").exists()


def test_some_falsified_is_exit_code_10_with_a_witness(inputs: Path) -> None:
    result = verify(inputs, "--json", str(inputs / "out.json"))
    assert result.exit_code == 10, result.output
    found = json.loads((inputs / "out.json").read_text())["verdicts"][3]
    assert found["status"] == "falsified"
    witness = np.array(found["witness"]).reshape(4, 4)
    assert witness[1].sum() > witness[0].sum()
    assert (np.abs(witness[:2] - [[0.5], [0.45]]) <= 0.1 + 1e-12).all()


def test_epsilon_0_and_a_smaller_one(inputs: Path) -> None:
    for epsilon in ("0", "1/100"):
        result = verify(inputs, "--epsilon", epsilon)
        assert result.exit_code == 0, result.output


def test_some_unknown_is_exit_code_11_with_its_reason(inputs: Path, fake: type[Fake]) -> None:
    result = verify(inputs, "--backend", "fake")
    assert result.exit_code == 11
    assert "point 0: unknown: out of time" in result.output
    assert "Fix (out of time): --timeout 120 (it was 20)" in result.output


def test_a_second_opinion_that_differs_is_an_error(inputs: Path, fake: type[Fake]) -> None:
    fake.said = Verdict(Status.VERIFIED, "fake")
    assert verify(inputs, "--cross-check", "fake", count=3).exit_code == 0
    result = verify(inputs, "--cross-check", "fake")
    assert isinstance(result.exception, QllError)
    text = str(result.exception)
    assert "contradict" in text and "point 3" in text and "falsified and verified" in text


def test_marabou_gives_the_same_verdicts(inputs: Path) -> None:
    pytest.importorskip("maraboupy")
    result = verify(inputs, "--backend", "marabou", "--cross-check", "bab")
    assert result.exit_code == 10, result.output
    assert "3 verified, 1 falsified, 0 unknown" in result.output


def truncate(folder: Path) -> None:
    data = (folder / "net.onnx").read_bytes()
    (folder / "net.onnx").write_bytes(data[: len(data) // 2])


def poison(folder: Path) -> None:
    model = onnx.load(folder / "net.onnx")
    for tensor in model.graph.initializer:
        values = np.array(numpy_helper.to_array(tensor))
        if values.dtype == np.float32:
            values.reshape(-1)[0] = np.nan
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    onnx.save(model, folder / "net.onnx")


def widen(folder: Path) -> None:
    write_idx(folder / "pictures.idx", np.zeros((4, 5, 5)), 14, ">f8")


def unbound(folder: Path) -> None:
    text = PROPERTY.replace("ball(x0, epsilon) and range(0, 1)", "x[0] <= 1")
    (folder / "robust.qll").write_text(text)


def too_many_outputs(folder: Path) -> None:
    (folder / "robust.qll").write_text("forall x in ball(x0, 0.1):\n  y[7] >= y[0]\n")


def two_labels(folder: Path) -> None:
    write_idx(folder / "labels.idx", np.array([0, 1]), 8, ">u1")


def label_that_is_not_there(folder: Path) -> None:
    write_idx(folder / "labels.idx", np.array([0, 1, 2, 9]), 8, ">u1")


@pytest.mark.parametrize(
    "damage",
    [truncate, poison, widen, unbound, too_many_outputs, two_labels, label_that_is_not_there],
)
def test_bad_input_is_named_and_nothing_is_written(inputs: Path, damage: Any) -> None:
    damage(inputs)
    result = verify(inputs, "--json", str(inputs / "out.json"))
    assert isinstance(result.exception, QllError), result.output
    text = str(result.exception)
    assert "Expected" in text or "expected" in text
    assert "Fix:" in text
    assert not list(inputs.glob("out.json*"))


def test_what_holds_vacuously_is_counted_apart(inputs: Path, tmp_path: Path) -> None:
    rule = "outputs 3\nforall x in ball(x0, 0.1): label(0) -> (y[0] >= y[1] and y[0] >= y[2])\n"
    (inputs / "robust.qll").write_text(rule)
    found = verify(inputs, "--json", str(tmp_path / "v.json"), count=3)
    assert found.exit_code == 0
    assert "1 verified, 0 falsified, 0 unknown of 1 (CSat 100.0 %); 2 more hold" in found.stdout
    record = json.loads((tmp_path / "v.json").read_text())
    assert record["total"]["vacuous"] == 2
    assert [row["vacuous"] for row in record["verdicts"]] == [False, True, True]


def test_the_time_left_is_not_guessed_from_one_verdict() -> None:
    from qll.cli.board import Board

    board = Board(44, {})
    board.began -= 22.0  # the first verdict, after reading
    board.add("verified")
    assert board._left()[1] is None
    for _ in range(9):
        board.add("verified")
    left = board._left()[1]
    assert left is not None and 0 < left < 200


def test_compilation_is_announced(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whatever is compiled first, before any query is asked."""
    numba = pytest.importorskip("numba")
    from qll.verify.backends.bab import BranchAndBound

    def compile_something(_: object, query: object) -> None:
        numba.njit(lambda x: x + 1)(1)

    monkeypatch.setattr(BranchAndBound, "prepare", compile_something)
    result = verify(inputs, count=3)
    assert result.exit_code == 0, result.output
    assert MESSAGE in result.stderr.replace("\n", " ")


def test_the_screen_says_which_comparison_broke(inputs: Path) -> None:
    """Picture 3: the sums of rows 0 and 1 are 2.0 and 1.8, and each entry may move by 0.1."""
    result = verify(inputs, "--json", str(inputs / "out.json"))
    line = next(line for line in result.stdout.splitlines() if "point 3" in line)
    found = re.fullmatch(
        r"  point 3: falsified: y\[1\] exceeds y\[0\] by ([0-9.]+); the witness moves \d+ of 16 "
        r"inputs, by at most 0.1",
        line,
    )
    assert found and 0 < float(found[1]) <= 0.6 + 1e-6
    record = json.loads((inputs / "out.json").read_text())["verdicts"][3]
    assert record["detail"].startswith("y[1] exceeds y[0] by ")
