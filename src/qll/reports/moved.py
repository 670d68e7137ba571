"""A witness of a table in words: which features moved, from where to where, and by how much."""

from __future__ import annotations

from collections.abc import Sequence

from qll.data.schema import Feature, Schema

# Features that are listed; of more, the number is said.
_SHOWN = 8


def describe_move(schema: Schema, before: Sequence[float], after: Sequence[float]) -> str:
    """What is different between two rows, by name; the largest moves, in steps of the features,
    first.

    >>> schema = Schema((Feature("age", "integer", 18, 90, unit="years"),), (Feature("y"),),
    ...                 "regression")
    >>> describe_move(schema, [30.0], [32.0])
    'age 30 -> 32 years (+2)'
    """
    found: list[tuple[float, str]] = []
    place = 0
    for feature in schema.features:
        width = len(feature.values) if feature.is_one_hot else 1
        old, new = before[place : place + width], after[place : place + width]
        place += width
        if list(old) != list(new):
            found.append(_one(feature, old, new))
    found.sort(key=lambda each: -each[0])
    if not found:
        return "nothing moved"
    more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(text for _, text in found[:_SHOWN]) + more


def describe_row(schema: Schema, row: Sequence[float]) -> str:
    """All features of a point, by name."""
    parts: list[str] = []
    place = 0
    for feature in schema.features:
        width = len(feature.values) if feature.is_one_hot else 1
        parts.append(f"{feature.name} {_shown(feature, row[place : place + width])}")
        place += width
    more = f", and {len(parts) - 2 * _SHOWN} more" if len(parts) > 2 * _SHOWN else ""
    return ", ".join(parts[: 2 * _SHOWN]) + more


def _one(feature: Feature, old: Sequence[float], new: Sequence[float]) -> tuple[float, str]:
    unit = f" {feature.unit}" if feature.unit else ""
    text = f"{feature.name} {_shown(feature, old)} -> {_shown(feature, new)}{unit}"
    if feature.kind in ("category", "binary"):
        return 1.0, text
    step = new[0] - old[0]
    return abs(step) / (feature.scale or 1.0), f"{text} ({step:+.4g})"


def _shown(feature: Feature, numbers: Sequence[float]) -> str:
    if feature.is_one_hot:
        hot = [feature.values[k] for k, v in enumerate(numbers) if v == 1.0]
        rest = [v for v in numbers if v not in (0.0, 1.0)]
        if len(hot) == 1 and not rest:
            return hot[0]
        return "[" + " ".join(f"{v:.3g}" for v in numbers) + "]"  # between categories
    value = numbers[0]
    if feature.values and value == int(value) and 0 <= value < len(feature.values):
        return feature.values[int(value)]
    return f"{value:.6g}"
