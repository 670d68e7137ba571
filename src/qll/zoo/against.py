"""What a network of the zoo says of a data set, seen with the data set itself.

Without data a card's accuracy is only said, and so is that the points of its archive are the first
ones of the test set. With them both are computed here, and any region can be decided anew, not only
those whose certificates are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qll.audit import Expected
from qll.errors import InputError
from qll.zoo.shelf import ProvedNetwork

if TYPE_CHECKING:
    from qll.data.base import DataSet

# A card's accuracy is of the network as it was trained; ONNX's arithmetic may turn a tie.
MOST_TURNED = 2


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
    from qll.metrics import prediction_accuracy
    from qll.networks.trainable import to_module

    said = entry.card.accuracy
    if said is None:
        return []
    x, labels = data.test.batch(slice(None))
    share = prediction_accuracy(to_module(entry.network), x, labels, task=data.task)
    if abs(share.value - said) * share.total <= MOST_TURNED:
        return []
    return [f"the card says an accuracy of {said:.2%}, on this test set it is {share.value:.2%}"]


def _label(row: Any) -> tuple[int, ...]:
    """As claims have them: the class, or the sorted ones of several."""
    return (int(row),) if np.ndim(row) == 0 else tuple(np.flatnonzero(row).tolist())


def _few(rows: list[int]) -> str:
    shown = ", ".join(str(row) for row in rows[:5])
    return shown if len(rows) <= 5 else f"{shown} and {len(rows) - 5} more"
