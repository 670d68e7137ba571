"""Records of the repository and folders of runs, changed as by hand."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qll.reports.compact import SUFFIX

PAPER = Path(__file__).parents[1] / "results/paper"
ROBUST = f"classification-robustness-mnist-dl2-0{SUFFIX}"
DICE = f"not-both-dice-qll5-0{SUFFIX}"
STRONG = f"strong-classification-robustness-mnist-qll5-0{SUFFIX}"
Values = dict[str, Any]


def forged(path: Path, change: Callable[[Values], object], *, name: str = ROBUST) -> Path:
    """A record of the repository in which something was changed by hand."""
    values = json.loads(lzma.decompress((PAPER / name).read_bytes()))
    change(values)
    path.write_bytes(lzma.compress(json.dumps(values).encode(), preset=0))
    return path


def verdicts(values: Values) -> Values:
    held: Values = values["verdicts"]["verdicts.json"]
    return held


def share(good: float, total: int) -> Values:
    return {"good": good, "total": total, "share": good / total}


def edit(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
