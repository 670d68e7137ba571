"""What a network of the zoo says of a data set, seen with the data set itself.

Without data a card's accuracy is only said, and so is that the points of its archive are the first
ones of the test set. With them both are computed here, and any region can be decided anew, not only
those whose certificates are kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qll.audit import Expected
from qll.errors import InputError
from qll.zoo.shelf import ProvedNetwork

if TYPE_CHECKING:
    from qll.data.base import DataSet

# A card's accuracy is of the network as it was trained; ONNX's arithmetic may turn a tie.
MOST_TURNED = 2
MOST_R2 = 1e-3


def require_data_points(entry: ProvedNetwork) -> None:
    """A rule without data points has nothing to compare with data."""
    if entry.property.is_closed:
        raise InputError(
            f"the rule of '{entry.card.name}' depends on no data point",
            where=str(entry.path / "rule.qll"),
            expected="a rule of regions around test data",
            found="a rule of one region, the whole domain: it is checked without data",
            fix="leave --data-dir out",
        )


def load_named(entry: ProvedNetwork, folder: Path) -> DataSet:
    """The data that the card names, if qll itself knows them: a card that brought its own, as a
    file or as code to import, would be compared with itself."""
    from qll.data.base import data_sets

    name = entry.card.data
    if name not in data_sets:
        raise InputError(
            f"the data of '{entry.card.name}' are not published ones",
            where=str(entry.path / "card.toml"),
            expected=f"one of: {', '.join(sorted(data_sets))}",
            found=f"data = {name!r}",
            fix="leave --data-dir out, or pass data that you trust to qll.zoo.check.check",
        )
    if not folder.is_dir():
        raise InputError(
            "there is no such folder",
            where=str(folder),
            expected=f"the folder of the files of '{name}'",
            found="a file" if folder.exists() else "nothing",
            fix="pass the folder that --data-dir of qll train had, or leave --data-dir out: then "
            "nothing is compared with the data",
        )
    return data_sets[name](folder)


def compare_data(entry: ProvedNetwork, expected: Expected, listed: int, data: DataSet) -> list[str]:
    """Every difference, as a sentence."""
    failures = []
    if listed != len(data.test):
        failures.append(f"the zoo lists {listed} regions, the test set has {len(data.test)} images")
    seen = min(len(expected.points), len(data.test))
    x, labels = data.test.batch(slice(0, seen))
    # The certificates quote float64; the data are float32, and both say the same numbers.
    points = x.numpy().reshape(seen, -1).astype(np.float64)
    if points.shape[1] != expected.points.shape[1]:
        return [*failures, f"the test set's images have {points.shape[1]} numbers, the archive's "
                f"points {expected.points.shape[1]}"]  # fmt: skip
    others = np.flatnonzero((points != expected.points[:seen]).any(axis=1)).tolist()
    if others:
        failures.append(f"points of the archive are not the test set's: {_few(others)}")
    own = [_label(row) for row in labels.numpy()]
    told = expected.labels or ()  # none: the rule speaks of none
    wrong = [row for row, (a, b) in enumerate(zip(told, own, strict=False)) if tuple(a) != b]
    if wrong:
        failures.append(f"labels of the archive are not the test set's: {_few(wrong)}")
    return failures + _compare_accuracy(entry, data)


def _compare_accuracy(entry: ProvedNetwork, data: DataSet) -> list[str]:
    from qll.metrics import prediction_accuracy, regression_errors
    from qll.networks.trainable import to_module

    said, model = entry.card.accuracy, to_module(entry.network)
    x, labels = data.test.batch(slice(None))
    if data.task == "regression":
        r2 = regression_errors(model, x, labels)[1]
        if entry.card.r2 is not None and abs(entry.card.r2 - r2) <= MOST_R2:
            return []
        return [f"the card says {entry.card.figure}, on this test set R2 is {r2:.3f}"]
    share = prediction_accuracy(model, x, labels, task=data.task)
    if said is None:
        return [f"the card says {entry.card.figure}, of a prediction of classes"]
    if abs(share.value - said) * share.total <= MOST_TURNED:
        return []
    return [f"the card says an accuracy of {said:.2%}, on this test set it is {share.value:.2%}"]


def _label(row: Any) -> tuple[int, ...]:
    """As claims have them: the class, or the sorted ones of several."""
    return (int(row),) if np.ndim(row) == 0 else tuple(np.flatnonzero(row).tolist())


def _few(rows: list[int]) -> str:
    shown = ", ".join(str(row) for row in rows[:5])
    return shown if len(rows) <= 5 else f"{shown} and {len(rows) - 5} more"
