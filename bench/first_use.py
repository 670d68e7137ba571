"""What the first command on a machine costs: processor seconds with an empty folder of kernels.

    python bench/first_use.py [--quick] [--json OUT]

Each command runs in a process of its own, first with no compiled kernel kept and then once more;
the difference is what compiling takes. ``kernels`` counts the compiled functions that were kept.
``--quick`` has the training alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

COMMANDS = {
    "train": "train not-both --data dice-rendered --epochs 1 --out run{turn}",
    "verify": "verify not-both --network run1/model.onnx --data dice-rendered --timeout 1",
    "demo": "demo --epochs 1",
}


def cpu_seconds(command: str, folder: Path, cache: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "QLL_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-m", "qll", *command.split()],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode > 1:  # 1: something is not verified, which is no failure here
        raise SystemExit(f"qll {command}\n{done.stdout}{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the training alone")
    parser.add_argument("--json", metavar="OUT", help="write the rows there")
    options = parser.parse_args()
    rows = []
    print(f"{'command':8} {'first, s':>9} {'second':>7} {'compiling':>10} {'kernels':>8}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for title, command in list(COMMANDS.items())[: 1 if options.quick else None]:
            cache = folder / f"cache-{title}"
            turns = [command.format(turn=turn) for turn in (1, 2)]
            first, second = (cpu_seconds(turn, folder, cache) for turn in turns)
            kernels = len(list(cache.rglob("*.nbc")))
            rows.append({"command": title, "first": first, "second": second, "kernels": kernels})
            print(f"{title:8} {first:9.1f} {second:7.1f} {first - second:10.1f} {kernels:8}")
            sys.stdout.flush()
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
