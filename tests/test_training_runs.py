"""Runs on disk: resumed, killed, interrupted, out of space, two at a time, out of range."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import qll
from qll import files
from qll.errors import DataError, InputError, MissingExtra, NetworkError, QllError, RunError
from qll.training.checkpoint import load_checkpoint
from qll.training.config import TrainConfig, resolve
from qll.training.loop import open_run, train
from qll.training.progress import PlainLines, Silent, describe
from qll.training.run import RunFolder
from qll.training.streams import stream_seed

SMALL = {"count_train": 24, "count_test": 8}
OPTIONS: dict[str, Any] = {
    "logic": "qll:5",
    "epochs": 3,
    "batch_size": 8,
    "steps": 2,
    "restarts": 0,
    "engine": "autograd",
    "data_options": SMALL,
}


def config(**changes: Any) -> TrainConfig:
    return resolve("not-both", "dice-rendered", options={**OPTIONS, **changes})


def rows_without_time(folder: Path) -> list[dict[str, Any]]:
    rows = RunFolder(folder).rows()
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def assert_same_run(found: Path, expected: Path) -> None:
    """Weights, optimiser, metrics, figures and the exported network, bit for bit."""
    last = sorted(p.name for p in (expected / "checkpoints").iterdir())[-1]
    assert rows_without_time(found) == rows_without_time(expected)
    for name in (f"checkpoints/{last}", "evaluation.json", "model.onnx"):
        # compared outside of the assertion: pytest would take minutes to show where bytes differ
        same = (found / name).read_bytes() == (expected / name).read_bytes()
        assert same, f"{name} differs"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing happened to."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    train(config(), folder)
    return folder


class StopAfter(Silent):
    """Ctrl-C, so many steps into the run."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_a_run_folder_holds_what_it_says(reference: Path) -> None:
    names = {path.name for path in reference.iterdir()}
    assert names == {
        "config.json", "environment.json", "metrics.jsonl", "checkpoints", "model.onnx",
        "evaluation.json", "samples.png", "lock",
    }  # fmt: skip
    assert len(list((reference / "checkpoints").iterdir())) == 2
    assert RunFolder.open(reference).config() == config()
    rows = RunFolder(reference).rows()
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert {"prediction_loss", "property_loss", "lambda", "train_csec", "pacc"} <= rows[0].keys()
    environment = json.loads((reference / "environment.json").read_text())
    assert environment["packages"]["torch"] and environment["python"]
    evaluation = RunFolder(reference).evaluation()
    assert evaluation is not None and evaluation.csec_qll.total == 8


@pytest.mark.parametrize("steps", [1, 4, 6])
def test_interrupted_and_resumed_equals_uninterrupted(
    reference: Path, tmp_path: Path, steps: int
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(config(), folder, reporter=StopAfter(steps))
    done = len(RunFolder(folder).rows())
    assert done == (steps - 1) // 3
    # What is there is usable: the network after the last finished epoch.
    assert (folder / "model.onnx").exists() == (done > 0)
    train(RunFolder.open(folder).config(), folder, resume=True)
    assert_same_run(folder, reference)


def test_a_resumed_run_takes_the_threads_it_was_started_with(
    reference: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(config(), folder, reporter=StopAfter(4))
    taken: list[int] = []

    class Watching(Silent):
        def step(self) -> None:
            taken.append(torch.get_num_threads())

    torch.set_num_threads(2)
    try:
        train(RunFolder.open(folder).config(), folder, resume=True, reporter=Watching())
        assert set(taken) == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert_same_run(folder, reference)


KILLED_IN_WRITING = """
import os, signal, sys
from pathlib import Path
from qll import files
from qll.training.loop import train
from qll.training.run import RunFolder
sys.path.insert(0, {tests!r})
from test_training_runs import config

target, when = {target!r}, {when!r}
real_open = Path.open
calls = [0]

class Dying:
    def __init__(self, file): self.file = file
    def __enter__(self): return self
    def __exit__(self, *_): self.file.close()
    def write(self, data):
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

def open_dying(self, mode="r", *rest, **more):
    file = real_open(self, mode, *rest, **more)
    if mode in ("wb", "ab") and target in self.name:
        calls[0] += 1
        if calls[0] == when:
            return Dying(file)
    return file

Path.open = open_dying
train(config(), {folder!r})
"""


@pytest.mark.parametrize(
    ("target", "when"), [("epoch-000002", 1), ("metrics.jsonl", 2), ("epoch-000001", 1)]
)
def test_killed_in_the_middle_of_writing_the_run_resumes(
    reference: Path, tmp_path: Path, target: str, when: int
) -> None:
    folder = tmp_path / "run"
    script = KILLED_IN_WRITING.format(
        tests=str(Path(__file__).parent), target=target, when=when, folder=str(folder)
    )
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    half = [p for p in folder.rglob("*") if p.name.endswith(".part")]
    assert half or target == "metrics.jsonl", "the kill came too early or too late"
    train(RunFolder.open(folder).config(), folder, resume=True)
    assert_same_run(folder, reference)


@pytest.mark.parametrize("damage", ["truncated", "one bit", "empty", "other"])
def test_a_damaged_checkpoint_is_not_believed(reference: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(config(), folder, reporter=StopAfter(7))
    last = folder / "checkpoints" / "epoch-000002.safetensors"
    content = bytearray(last.read_bytes())
    if damage == "truncated":
        content = content[: len(content) // 2]
    elif damage == "one bit":
        content[-100] ^= 4
    elif damage == "empty":
        content = bytearray()
    else:
        content = bytearray(b"PK\x03\x04 something else")
    last.write_bytes(content)
    with pytest.raises(RunError, match="checkpoint is damaged"):
        load_checkpoint(last)
    # The one before serves; the epoch is repeated.
    train(RunFolder.open(folder).config(), folder, resume=True)
    assert_same_run(folder, reference)


def test_all_checkpoints_damaged_is_an_error_not_a_new_start(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(config(), folder, reporter=StopAfter(4))
    for path in (folder / "checkpoints").iterdir():
        path.write_bytes(b"")
    with pytest.raises(RunError, match="checkpoint is damaged"):
        train(config(), folder, resume=True)


def test_no_space_stops_with_a_message_and_nothing_lost(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    written: list[str] = []
    real = os.fsync

    def full(descriptor: int) -> None:
        name = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        written.append(name)
        if "epoch-000002" in name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError) as caught:
        train(config(), folder)
    message = str(caught.value)
    assert "no space on the disk" in message and "--resume" in message
    assert message.count("\n") == 2
    assert not list(folder.rglob("*.part"))
    monkeypatch.undo()
    assert len(written) > 3
    train(RunFolder.open(folder).config(), folder, resume=True)
    assert_same_run(folder, reference)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        train(config(), blocked / "run")


def test_two_writers_are_refused(reference: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = RunFolder.create(folder, config())
    with run.locked(), pytest.raises(RunError, match="another process is writing"):
        train(config(), folder, resume=True)
    # The lock went with its holder.
    train(config(), folder, resume=True)
    assert_same_run(folder, reference)


def test_a_folder_holds_one_run(reference: Path) -> None:
    with pytest.raises(RunError, match="holds a run already"):
        train(config(), reference)
    with pytest.raises(RunError, match="another 'epochs'"):
        train(config(epochs=5), reference, resume=True)
    with pytest.raises(RunError, match="not the folder of a run"):
        train(config(), reference / "nowhere", resume=True)


def test_a_finished_run_is_not_repeated(reference: Path) -> None:
    before = (reference / "metrics.jsonl").stat().st_mtime_ns
    again = train(config(), reference, resume=True)
    assert (reference / "metrics.jsonl").stat().st_mtime_ns == before
    assert again.evaluation == RunFolder(reference).evaluation()


def test_a_run_is_read_back(reference: Path) -> None:
    trainer = open_run(reference)
    assert trainer.evaluate() == RunFolder(reference).evaluation()
    x = torch.rand(2, 3, 28, 28)
    from qll.networks import load

    found = torch.from_numpy(load(reference / "model.onnx").runtime(x.numpy())).float()
    torch.testing.assert_close(trainer.model(x).detach(), found, atol=1e-5, rtol=1e-5)


def test_seeds_are_different_and_repeatable() -> None:
    weights = [
        torch.cat([p.flatten() for p in train(config(epochs=1, seed=seed)).model.parameters()])
        for seed in (0, 0, 1)
    ]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    seeds = {stream_seed(s, n, e) for s in range(3) for n in ("a", "b") for e in range(50)}
    assert len(seeds) == 300


def test_the_callers_random_state_is_left_alone() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    train(config(epochs=1))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_loss_that_is_not_finite_stops_with_the_batch_saved(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(RunError) as caught:
        train(config(learning_rate=1e20, epochs=5), folder)
    message = str(caught.value)
    assert "loss is not finite" in message and "learning_rate" in message
    assert "step" in message and "failed-batch.safetensors" in message
    from safetensors.torch import load_file

    batch = load_file(folder / "failed-batch.safetensors")
    assert batch["x"].shape[1:] == (3, 28, 28) and len(batch["labels"]) == len(batch["x"])


def test_a_baseline_has_no_property_term(tmp_path: Path) -> None:
    run = train(config(logic="baseline", epochs=1), tmp_path / "run")
    assert run.rows[0]["lambda"] is None and run.rows[0]["train_csec"] is None
    assert run.evaluation.csec_self is None and run.evaluation.csec_qll.total == 8
    assert "CSec" not in describe(run.rows[0])


def test_schedules_move_hardness_and_epsilon() -> None:
    ramp = {"start": 1.0, "end": 9.0, "epochs": 2}
    size = {"start": 0.0, "end": 0.02, "epochs": 2}
    run = train(config(hardness=ramp, epsilon=size, learning_rate_schedule="cosine"))
    assert [row["hardness"] for row in run.rows] == [1.0, 5.0, 9.0]
    assert [row["epsilon"] for row in run.rows] == pytest.approx([0.0, 0.01, 0.02])
    assert run.rows[-1]["learning_rate"] < run.rows[0]["learning_rate"] <= 1e-3


def test_the_learning_rate_rises_at_the_start_of_each_stage() -> None:
    stages = [{"share": 0.5}, {"learning_rate_warm_up": 4.0}]
    run = train(config(epochs=4, learning_rate_warm_up=1.0, stages=stages))
    rates = [row["learning_rate"] for row in run.rows]  # of the last step of each epoch
    assert rates[0] < rates[1] == 1e-3
    assert rates[2] < rates[3] < 0.5e-3


def test_the_property_may_come_later() -> None:
    rows = train(config(delay=2)).rows
    assert rows[1]["lambda"] is None and rows[2]["lambda"] is not None


def test_validation_images_are_cut_from_the_training_images() -> None:
    run = train(config(validation=8, evaluate_every=2, epochs=2))
    assert "validation" not in run.rows[0] and run.rows[1]["validation"]["cacc"]["total"] == 8
    with pytest.raises(InputError, match="nothing is left to train on"):
        train(config(validation=24))


def test_a_network_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_nets.py").write_text(
        textwrap.dedent(
            """
            from torch import nn
            def tiny(*, in_channels, height, width, outputs, mean, std, hidden=4):
                inputs = in_channels * height * width
                return nn.Sequential(
                    nn.Flatten(), nn.Linear(inputs, hidden), nn.Dropout(0.5), nn.ReLU(),
                    nn.Linear(hidden, outputs),
                )
            def wrong(**options):
                return nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, 4))
            """
        )
    )
    monkeypatch.syspath_prepend(tmp_path)
    options = {"network": "own_nets:tiny", "network_options": {"hidden": 5}, "epochs": 2}
    first = train(config(**options), tmp_path / "a")
    assert first.model[1].out_features == 5  # type: ignore[index, union-attr]
    # Dropout draws from a stream of its own: a resumed run draws the same.
    with pytest.raises(KeyboardInterrupt):
        train(config(**options), tmp_path / "b", reporter=StopAfter(4))
    train(config(**options), tmp_path / "b", resume=True)
    assert_same_run(tmp_path / "b", tmp_path / "a")
    with pytest.raises(QllError, match=r"does not fit the labels|output 5 does not exist"):
        train(config(network="own_nets:wrong"))
    with pytest.raises(NetworkError, match="not found"):
        train(config(network="own_nets:missing"))


def test_training_goes_on_from_a_network_in_hand() -> None:
    first = train(config(epochs=1))
    again = train(config(epochs=0), model=first.model)
    assert again.evaluation == first.evaluation


def test_missing_data_and_devices_are_named(tmp_path: Path) -> None:
    options = {"data_options": {}, "data_dir": str(tmp_path)}
    with pytest.raises(DataError, match="not complete"):
        train(resolve("classification-robustness", "mnist", options={**OPTIONS, **options}))
    with pytest.raises(InputError, match="unknown data set"):
        train(resolve("classification-robustness", "mnits", options=OPTIONS))
    with pytest.raises(InputError, match="device 'tpu' cannot be used"):
        train(config(device="tpu"))
    with pytest.raises(InputError, match="unknown method"):
        train(config(method="atack"))
    with pytest.raises(InputError, match="has no option 'size'"):
        train(config(options={"size": 0.1}))


def test_without_safetensors_the_message_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(MissingExtra, match="safetensors"):
        train(config(), tmp_path / "run")


def test_lines_are_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    files.append_line(path, {"epoch": 1})
    with path.open("ab") as file:
        file.write(b'{"epoch": 2, "pa')
    assert files.read_lines(path) == [{"epoch": 1}]


def test_plain_lines_for_pipes(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    class Told(PlainLines):
        rows: list[Mapping[str, Any]] = []  # noqa: RUF012

    reporter = Told(Console(file=sys.stdout, width=120))
    train(config(epochs=2), reporter=reporter)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("not-both on dice-rendered (qll:5, attack, seed 0)")
    assert lines[1].startswith("epoch 1/2  PAcc ") and "lambda" in lines[1] and "CSec" in lines[1]


def test_methods_are_found_by_name_and_may_act_after_a_step() -> None:
    from qll.training.methods import METHODS
    from qll.training.methods.attack import AttackMethod

    acted: list[str] = []

    class Projecting(AttackMethod):
        def after_step(self) -> None:
            acted.append("step")
            with torch.no_grad():
                for layer in self.setup.model.modules():
                    if isinstance(layer, nn.Linear):
                        layer.bias.zero_()

        def finish(self) -> None:
            acted.append("finish")

    if "projecting-test" not in METHODS:
        METHODS.register("projecting-test")(Projecting)
    run = train(config(method="projecting-test", epochs=1))
    assert acted == ["step"] * 3 + ["finish"]
    assert not run.model[-1].bias.any()  # type: ignore[index, union-attr]
    assert isinstance(run.evaluation, qll.metrics.Evaluation)  # type: ignore[attr-defined]


def test_a_live_bar_on_a_terminal() -> None:
    import io

    from rich.console import Console

    from qll.training.progress import LiveBar

    shown = io.StringIO()
    bar = LiveBar(Console(file=shown, force_terminal=True, width=160))
    with bar.bars:
        train(config(epochs=2), reporter=bar)
    text = shown.getvalue()
    for word in ("not-both", "epoch", "2/2", "PAcc", "CSec", "eta"):
        assert word in text
