"""The bench of how bounds scale: both engines bound the same thing, and each row is told."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCH = Path(__file__).parents[1] / "bench" / "scaling.py"


@pytest.fixture(scope="module")
def scaling() -> Any:
    spec = importlib.util.spec_from_file_location("bench_scaling", BENCH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_both_bound_the_same_output_from_below(scaling: Any) -> None:
    setting = scaling.Setting(width=12, depth=2, inputs=4, instances=3, split_depth=2)
    form = scaling.network(setting)
    some = scaling.boxes(form, setting)
    assert [len(box.splits) for box in some] == [4, 4, 4]
    bounder = scaling.ChainBounder(form)
    ours, theirs = scaling.compiled(bounder, some), scaling.alpha_crown(form, some)
    rng = np.random.default_rng(0)
    whole = scaling.Setting(width=12, depth=2, inputs=4, instances=3)
    roots = scaling.boxes(form, whole)
    for bound in (scaling.compiled(bounder, roots), scaling.alpha_crown(form, roots)):
        least = [
            form.forward(rng.uniform(b.sizes.lower, b.sizes.upper, (500, 4))).min() for b in roots
        ]
        assert bound <= np.mean(least) + 1e-4
    # splits and their multipliers only raise the mean of the domains
    assert ours >= theirs - 1e-3


def test_every_axis_is_a_row(
    scaling: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(scaling, "AXES", dict.fromkeys(scaling.AXES, (2,)))
    scaling.main(["--quick", "--json", str(tmp_path / "out.json")])
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["axis"] for row in rows] == ["base", *scaling.AXES]
    for row in rows:
        assert row["ours_seconds"] > 0 and row["torch_seconds"] > 0
        assert row["ratio"] == pytest.approx(row["torch_seconds"] / row["ours_seconds"])
        assert row["axis"] == "base" or row[row["axis"]] == 2
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(rows)
