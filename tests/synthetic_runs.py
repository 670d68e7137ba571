"""Records that no network ever made: invented figures, to test reports and to time them.

Nothing here is a result. The folders and the pages made from them say "synthetic"."""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from qll.properties import load
from qll.training.config import resolve

HARDENED = [f"{logic}:{h}" for logic in ("stl", "qll") for h in (1, 2, 5, 10)]
FUZZY = ["goedel", "lukasiewicz", "product", "yager:2"]
FEW = ["baseline", "dl2", "stl:5", "qll:5"]
GRID = {
    ("clothing-footwear", "fashion"): ["baseline", "dl2", *HARDENED],
    ("not-both", "dice"): ["baseline", "dl2", *FUZZY, *HARDENED],
    ("exactly-one", "dice"): [*FEW, *FUZZY],
    ("strong-classification-robustness", "mnist"): FEW,
    ("strong-classification-robustness", "fashion"): FEW,
    ("classification-robustness", "mnist"): [*FEW, *FUZZY],
    ("classification-robustness", "fashion"): FEW,
}
"""The shape of the paper's grid: 52 rows."""


def write_grid(out: Path, *, seeds: int = 5, epochs: int = 100, pairs: int = 7) -> int:
    """All rows with all seeds; the number of runs."""
    count = 0
    for (prop, data), logics in list(GRID.items())[:pairs]:
        for logic in logics:
            for seed in range(seeds):
                name = f"synthetic-{prop}-{data}-{logic.replace(':', '')}-{seed}"
                write_run(out / name, prop, data, logic, seed, epochs=epochs)
                count += 1
    return count


def write_run(
    path: Path,
    prop: str,
    data: str,
    logic: str,
    seed: int,
    *,
    epochs: int = 100,
    verified: float | None = None,
    finished: bool = True,
    witnesses: bool = True,
    pacc: float | None = None,
    chance: float | None = None,
    vacuous: int = 0,
) -> None:
    """``pacc`` and ``chance`` go into the evaluation; of the regions the first ``vacuous`` are."""
    options = {"logic": logic, "seed": seed, "epochs": epochs}
    config = resolve(prop, data, options=options)
    draw = np.random.default_rng(zlib.crc32(f"{prop} {data} {logic} {seed}".encode()))
    path.mkdir(parents=True)
    _write(path / "config.json", json.loads(config.model_dump_json()))
    _write(path / "environment.json", {"started": "2000-01-01T00:00:00+00:00", "packages": {}})
    rows = [_epoch(k, epochs, draw, config.is_baseline) for k in range(1, epochs + 1)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (path / "metrics.jsonl").write_text(lines)
    if not finished:
        return
    level = float(draw.uniform(0.1, 0.9)) if verified is None else verified
    found = _evaluation(level, draw, config.is_baseline)
    for key, value in (("pacc", pacc), ("chance", chance)):
        if value is not None:
            found[key] = {"good": round(1000 * value), "total": 1000, "share": value}
    _write(path / "evaluation.json", found)
    judged = config.parameters if config.judged is None else config.judged
    network = f"no network: {prop} {data} {logic} {seed}".encode()
    (path / "model.onnx").write_bytes(network)
    for name, part, share in (("full", 1.0, level), ("half", 0.5, math.sqrt(level))):
        asked = {**judged, "epsilon": part * judged["epsilon"]}
        content = _verdicts(prop, asked, network, share, draw)
        for row in content["verdicts"][:vacuous]:
            row.update(status="verified", stage="vacuous", vacuous=True)
        _write(path / f"verdicts-{name}.json", content)
    if witnesses and seed == 0:
        _witnesses(path, data, draw)


def _epoch(k: int, epochs: int, chance: np.random.Generator, baseline: bool) -> dict[str, object]:
    fall = math.exp(-3 * k / epochs)
    jitter = float(chance.uniform(0.9, 1.1))
    row: dict[str, object] = {
        "epoch": k,
        "prediction_loss": fall * jitter,
        "pacc": 0.95 - 0.5 * fall * jitter,
        "train_pacc": 0.9 - 0.5 * fall,
        "learning_rate": 0.001,
        "seconds": 1.5,
    }
    mine = ("property_loss", "lambda", "prediction_norm", "property_norm", "train_csec")
    values = (2 * fall * jitter - 0.3, 0.3 / jitter, 0.2 * jitter, fall * jitter, 0.9 - fall)
    return row | {n: None if baseline else v for n, v in zip(mine, values, strict=True)}


def _evaluation(level: float, chance: np.random.Generator, baseline: bool) -> dict[str, object]:
    def share(value: float) -> dict[str, float | int]:
        good = round(1000 * min(max(value, 0.0), 1.0))
        return {"good": good, "total": 1000, "share": good / 1000}

    return {
        "pacc": share(0.97 - 0.15 * level + float(chance.normal(0, 0.01))),
        "cacc": share(0.99),
        "csec_self": None if baseline else share(level + 0.3 * (1 - level)),
        "csec_qll": share(level + 0.1 * (1 - level)),
        "rmse": None,
        "csat": {},
    }


def _verdicts(
    prop: str,
    asked: dict[str, float],
    network: bytes,
    share: float,
    chance: np.random.Generator,
) -> dict[str, Any]:
    drawn = chance.uniform(size=100)
    verdicts = [
        {
            "point": k,
            "status": "verified" if u < share else "falsified" if u < share + 0.05 else "unknown",
            "reason": None,
            "stage": "root",
            "bound": None,
            "nodes": 1,
            "seconds": float(10 ** chance.uniform(-3, 1)),
            "backend": "bab",
            "notes": [],
        }
        for k, u in enumerate(drawn.tolist())
    ]
    return {
        "property": prop,
        "text": load(prop, **asked).show(),
        "parameters": asked,
        "network_sha256": hashlib.sha256(network).hexdigest(),
        "count": len(verdicts),
        "verdicts": verdicts,
    }


def _witnesses(path: Path, data: str, chance: np.random.Generator) -> None:
    channels, outputs = (3, 6) if data == "dice" else (1, 10)
    clean = chance.uniform(0.2, 0.8, size=(3, channels, 28, 28)).astype(np.float32)
    labels = np.zeros((3, outputs), np.int64) if data == "dice" else np.arange(3)
    if data == "dice":
        labels[:, :3] = 1
    np.savez_compressed(
        path / "counterexamples.npz",
        index=np.arange(3),
        clean=clean,
        attacked_x=clean + chance.choice([-0.1, 0.1], size=clean.shape).astype(np.float32),
        labels=labels,
        outputs=chance.normal(size=(3, outputs)),
        clean_outputs=chance.normal(size=(3, outputs)),
        margin=-chance.uniform(size=3),
    )


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))
