"""The README as a newcomer types it: every command and every Python block, long ones in short form.

A command that is not in QUICK runs as it stands. The files that commands name are there."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from grid_cases import call, write_grid
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from qll.data.idx import write_idx
from qll.networks.onnx_writer import export_onnx

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")

FEW = ("--set", "data_options={count_train=24, count_test=8}")
# By the beginning of a command: options that replace its own or are added.
QUICK: dict[str, tuple[str, ...]] = {
    "qll train not-both": ("--epochs", "1", *FEW),
    "qll train classification-robustness": (
        "--epochs", "1", "--data-dir", "digits", "--out", "runs/digits",
        "--set", "data_options={checksum=false}", "--set", "batch_size=16",
    ),
    "qll evaluate": ("--prove", "2", "--jobs", "1"),
    "qll attack": ("--count", "5", "--attack", "apgd:3,restarts=0"),
    "qll verify": ("--count", "3", "--jobs", "1"),
    "qll cycle not-both": (
        "--budget", "60s", "--target", "0.01", "--epochs", "1", "--count", "2", "--feedback", "2",
        "--jobs", "1", *FEW,
    ),
    "qll repair rule.qll": ("--budget", "60s", "--jobs", "1", "--out", "runs/repaired"),
    "qll verify rule.qll": (),
    "qll tune": (
        "--trials", "1", "--epochs", "1", "--validation", "8", "--regions", "2",
        "--method", "small-box", *FEW,
    ),
    "qll reproduce": ("--grid", "tiny.toml", "--count", "2", "--jobs", "1"),
    "qll reproduce --list": (),
}  # fmt: skip
# Not only all well: a network of one epoch is often falsified, and misses a target.
EXITS = {
    "qll verify": {0, 10, 11},
    "qll attack": {0, 10},
    "qll cycle": {0, 11},
    "qll repair": {0, 11},
}
RULE = "outputs 2\nforall x in box([0, 0], [1, 1]): y[0] <= y[1]\n"


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text."""

    language: str
    text: str


def blocks(text: str) -> list[Block]:
    return [Block(*found) for found in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)]


def commands() -> list[str]:
    """Without comments; a backslash at the end continues a line."""
    lines = [
        re.split(r"\s#\s", line)[0].strip()
        for block in blocks(README)
        if block.language in ("", "bash", "sh", "console")
        for line in block.text.replace("\\\n", " ").splitlines()
    ]
    return [line.removeprefix("$ ") for line in lines if re.match(r"(\$ )?(qll|make) ", line)]


def shortened(command: str) -> list[str]:
    """The words after ``qll``. An option's own value is replaced: some may be repeated."""
    words = shlex.split(command)[1:]
    starts = [start for start in QUICK if command.startswith(start)]
    quick = QUICK[max(starts, key=len)] if starts else ()
    for option, value in zip(quick[::2], quick[1::2], strict=True):
        if option in words and option != "--set":
            words[words.index(option) + 1] = value
        else:
            words += [option, value]
    return words


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the README's commands name, and small data."""
    monkeypatch.chdir(tmp_path)
    write_grid(tmp_path)
    rng = np.random.default_rng(0)
    for stem, count in (("train", 32), ("t10k", 8)):
        digits = tmp_path / "digits"
        digits.mkdir(exist_ok=True)
        images = rng.integers(0, 256, (count, 28, 28)).astype(np.uint8)
        write_idx(digits / f"{stem}-images-idx3-ubyte", images)
        write_idx(digits / f"{stem}-labels-idx1-ubyte", np.arange(count, dtype=np.uint8) % 10)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    export_onnx(model.eval(), tmp_path / "net.onnx", input_shape=(2,))
    (tmp_path / "rule.qll").write_text(RULE)
    rows = "".join(f"{20 + k % 7},{2000 + 10 * k}\n" for k in range(12))
    (tmp_path / "cars.csv").write_text(f"mpg,weight\n{rows}")
    return tmp_path


def test_the_commands_are_found() -> None:
    found = commands()
    assert {"qll doctor", "qll demo", "qll show", "qll laws"} <= set(found)
    assert any(line.startswith("qll train") for line in found)
    for start in QUICK:
        assert any(line.startswith(start) for line in found), f"'{start}' is no longer there"


def test_every_command_of_the_readme_runs(place: Path) -> None:
    """In order: later ones read what earlier ones wrote."""
    for command in commands():
        if command == "qll demo":  # tests/test_training_cli.py
            continue
        result = call(*shortened(command))
        exits = EXITS.get(" ".join(command.split()[:2]), {0})
        assert result.exit_code in exits, f"{command}\n{result.output}\n{result.exception!r}"


def test_its_targets_of_make_exist() -> None:
    targets = re.findall(r"`make (\w+)`", README)
    assert {"demo", "test", "check"} <= set(targets)
    dry = ["make", "--dry-run", "--always-make", *targets]
    assert subprocess.run(dry, cwd=ROOT, capture_output=True, check=False).returncode == 0


def numbers(text: str) -> set[str]:
    """``18,936`` and ``18936`` are one."""
    found = re.findall(r"\d[\d,]*(?:\.\d+)?", text)
    return {number.strip(",").replace(",", "") for number in found}


def test_every_figure_of_the_readme_is_one_of_the_results() -> None:
    """Each with the command that measures it."""
    table = README.partition("## Measured")[2].partition("\n\nWith dates")[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines()[4:]]
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert len(rows) > 4
    for what, figure, command in rows:
        assert numbers(figure) <= numbers(results), what
        path = command.strip().strip("`")
        assert (ROOT / path).is_file() and path in results, command


def python_blocks() -> list[tuple[str, str]]:
    """Each with the block that follows it, if that is its output."""
    found = blocks(README)
    pairs = []
    for k, block in enumerate(found):
        if block.language == "python":
            following = found[k + 1] if k + 1 < len(found) else Block("", "")
            output = following.text if not re.search(r"^(qll|make) ", following.text, re.M) else ""
            pairs.append((block.text, output if following.language == "" else ""))
    return pairs


@pytest.mark.parametrize("number", range(len(python_blocks())))
def test_every_python_block_of_the_readme_runs(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a model and a loader at hand; what is printed is what stands below the block."""
    import qll

    code, output = python_blocks()[number]
    torch.manual_seed(0)
    images, model = torch.rand(8, 1, 4, 4), nn.Sequential(nn.Flatten(), nn.Linear(16, 10))
    given = {
        "qll": qll,
        "torch": torch,
        "model": model,
        "optimiser": torch.optim.SGD(model.parameters(), lr=0.1),
        "loader": DataLoader(TensorDataset(images, torch.arange(8) % 10), batch_size=4),
    }
    file = tmp_path / "block.py"
    file.write_text(code, encoding="utf-8")
    runpy.run_path(str(file), init_globals=given)
    if output:
        printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        assert printed == [line.rstrip() for line in output.splitlines()]
