"""Ten thousand queries in one run: every answer there, and no more memory than for a thousand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from qll.data.idx import write_idx
from qll.networks.onnx_writer import export_onnx

# Peak memory of the process itself, as the system counted it.
RUN = """
import resource, sys
from qll.cli.main import run
try:
    run()
except SystemExit as error:
    code = error.code
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, code, file=sys.stderr)
"""
PROPERTY = "outputs 2\nparameter epsilon: input = 0.01\nforall x in ball(x0, epsilon): y[0] <= 3\n"


def peak_of(folder: Path, count: int) -> int:
    """Megabytes; the verdicts are checked on the way."""
    rng = np.random.default_rng(0)
    write_idx(folder / f"{count}.idx", rng.uniform(-1, 1, (count, 4)))
    out = folder / f"{count}.json"
    command = [
        "verify", str(folder / "p.qll"), "--network", str(folder / "net.onnx"), "--images",
        str(folder / f"{count}.idx"), "--count", "0", "--jobs", "1", "--json", str(out),
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", RUN, *command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    peak, code = done.stderr.strip().splitlines()[-1].split()
    assert code in ("0", "10", "11"), done.stderr
    verdicts = json.loads(out.read_text())["verdicts"]
    assert [v["point"] for v in verdicts] == list(range(count))
    assert all(v["status"] in ("verified", "falsified") for v in verdicts)
    return int(peak)


@pytest.mark.slow
def test_ten_thousand_queries_need_no_more_memory_than_a_thousand(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    export_onnx(net, tmp_path / "net.onnx", input_shape=(4,))
    (tmp_path / "p.qll").write_text(PROPERTY)
    few, many = peak_of(tmp_path, 1_000), peak_of(tmp_path, 10_000)
    print(f"peak memory: {few} MB at 1,000 queries, {many} MB at 10,000")  # noqa: T201
    # The verdicts themselves, to be sorted and written, are about a kilobyte each.
    assert many < few + 60, (few, many)
