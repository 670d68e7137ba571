"""What a grid costs beside its runs: `qll reproduce` against the same commands by hand.

    python bench/grid_overhead.py [--quick] [--json OUT] [--epochs N] [--seeds N] [--rounds N]
                                   [--clock wall|cpu] [--only warm|processes]

The same runs (not-both on rendered dice, the paper's recipe with few epochs) are done turn about by
`qll reproduce --jobs 1` and by `qll train` and two `qll verify` for each run: once as commands of
one process that is already warm, which is the hardest comparison, and once as processes of their
own, which is what one types. Medians over the rounds. --clock cpu counts
processor seconds, for a machine with other work. --quick does one short round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from typer.testing import CliRunner

from qll.cli.main import build_app

EPSILON = 0.01568627450980392
COUNT, TIMEOUT = "20", "30"
MOST = 0.02


def grid_file(folder: Path, epochs: int, seeds: int) -> Path:
    path = folder / "overhead.toml"
    path.write_text(
        f'name = "overhead"\nseeds = {list(range(seeds))}\n[settings]\nepochs = {epochs}\n'
        '[[rows]]\nproperty = "not-both"\ndata = "dice-rendered"\nlogics = ["qll:5"]\n'
    )
    return path


def by_grid(folder: Path, epochs: int, seeds: int) -> list[list[str]]:
    grid = str(grid_file(folder, epochs, seeds))
    return [
        ["reproduce", "--grid", grid, "--out", str(folder / "grid"), "--jobs", "1",
         "--count", COUNT, "--timeout", TIMEOUT]
    ]  # fmt: skip


def by_hand(folder: Path, epochs: int, seeds: int) -> list[list[str]]:
    commands = []
    for seed in range(seeds):
        run = folder / "hand" / str(seed)
        commands.append(
            ["train", "not-both", "--data", "dice-rendered", "--logic", "qll:5", "--epochs",
             str(epochs), "--seed", str(seed), "--out", str(run)]
        )  # fmt: skip
        for name, epsilon in (("verdicts", EPSILON), ("verdicts-half", EPSILON / 2)):
            commands.append(
                ["verify", "not-both", "--network", str(run / "model.onnx"), "--data",
                 "dice-rendered", "--count", COUNT, "--epsilon", repr(epsilon), "--timeout",
                 TIMEOUT, "--jobs", "1", "--certified", "--json", str(run / f"{name}.json")]
            )  # fmt: skip
    return commands


def now(clock: str) -> float:
    """Wall clock, or processor seconds of this process and of those it waited for."""
    if clock == "wall":
        return time.perf_counter()
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def inside(commands: list[list[str]], clock: str) -> float:
    """Seconds in this process."""
    app = build_app()
    begun = now(clock)
    for command in commands:
        result = CliRunner().invoke(app, command)
        if result.exit_code not in (0, 10, 11):
            raise SystemExit(f"{command}: {result.output} {result.exception!r}")
    return now(clock) - begun


def processes(commands: list[list[str]], clock: str) -> float:
    begun = now(clock)
    for command in commands:
        call = [sys.executable, "-c", "from qll.cli.main import run; run()", *command]
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 10, 11):
            raise SystemExit(f"{command}: {done.stderr}")
    return now(clock) - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("warm", "processes"))
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    epochs, seeds = (2, 1) if options.quick else (options.epochs, options.seeds)
    rounds = 1 if options.quick else options.rounds
    with tempfile.TemporaryDirectory() as scratch:
        inside(by_grid(_fresh(scratch), 1, 1), options.clock)  # compiles
        ways: dict[str, Callable[[list[list[str]], str], float]] = {
            "warm": inside,
            "processes": processes,
        }
        if options.only:
            ways = {options.only: ways[options.only]}
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for turn in range(rounds):
            for name, way in ways.items():
                sides = [by_hand, by_grid] if turn % 2 else [by_grid, by_hand]
                seconds = {
                    side.__name__: way(side(_fresh(scratch), epochs, seeds), options.clock)
                    for side in sides
                }
                found[name].append((seconds["by_grid"], seconds["by_hand"]))
    result = {}
    for name, pairs in found.items():
        grid, hand = (statistics.median(column) for column in zip(*pairs, strict=True))
        overhead = statistics.median(a / b for a, b in pairs) - 1
        result[name] = {"grid": grid, "hand": hand, "overhead": overhead, "rounds": pairs}
        print(
            f"{name:10} grid {grid:7.2f} s   by hand {hand:7.2f} s   overhead "
            f"{100 * overhead:+.2f} %   (at most {100 * MOST:.0f} %: "
            f"{'yes' if overhead <= MOST else 'no'})"
        )
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _fresh(scratch: str) -> Path:
    return Path(tempfile.mkdtemp(dir=scratch))


if __name__ == "__main__":
    main()
