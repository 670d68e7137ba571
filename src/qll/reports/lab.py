"""What the lab shows: every logic's loss over two outputs, computed as training computes it.

The lab has no network. It takes the outputs themselves as the point that moves, as if the network
were the identity: ``x`` is ``y``, and ``x0``, ``y0``, ``x2``, ``y2`` stand at the marker. The
square of half-width epsilon around the marker is then the ball of the property.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from qll.errors import InputError, LogicError, QllError
from qll.logics.base import LOGICS, Logic
from qll.logics.base import logic as read_logic
from qll.properties import parse
from qll.property import Property
from qll.reports.style import titled

FINE, COARSE, MESH = 41, 13, 25  # points a side: of a picture, of the arrows, of the epsilon-square
MOST_OUTPUTS = 64
MOST_CHARACTERS = 20_000
_DEFAULT_OUTPUTS = 3
_DIGITS = 5


@dataclass(frozen=True)
class LabRequest:
    """What is asked for; every value is checked before it is used."""

    text: str
    outputs: int | None = None
    axes: tuple[int, int] = (0, 1)
    labels: tuple[int, ...] = (0,)
    others: float = 0.0
    hardness: float = 1.0
    epsilon: float = 0.2
    marker: tuple[float, float] = (0.0, 0.0)
    ends: tuple[float, float] = (-3.0, 3.0)
    parameters: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_json(cls, values: Any) -> LabRequest:
        """From an untrusted object."""
        if not isinstance(values, Mapping) or not isinstance(values.get("text"), str):
            raise wrong("a request", "an object with 'text'", type(values).__name__)
        given: dict[str, Any] = {"text": values["text"]}
        if values.get("outputs") is not None:
            given["outputs"] = whole(values["outputs"], "outputs")
        for name in ("others", "hardness", "epsilon"):
            if name in values:
                given[name] = number(values[name], name, infinite=name == "hardness")
        for name, read in (("marker", number), ("ends", number), ("axes", whole)):
            if name in values:
                pair = values[name]
                if not isinstance(pair, list) or len(pair) != 2:
                    raise wrong(f"'{name}'", "two numbers", repr(pair)[:40])
                given[name] = tuple(read(v, name) for v in pair)
        if isinstance(values.get("labels"), list):
            given["labels"] = tuple(whole(v, "labels") for v in values["labels"][:MOST_OUTPUTS])
        if isinstance(values.get("parameters"), Mapping):
            held = list(values["parameters"].items())[:MOST_OUTPUTS]
            given["parameters"] = {str(k): number(v, str(k)) for k, v in held}
        return cls(**given)


def evaluate(request: LabRequest, *, only_hardened: bool = False) -> dict[str, Any]:
    """All that the page draws, or raises a `QllError`. ``only_hardened`` leaves out the logics
    that are the same at every hardness."""
    prop, outputs = _property(request)
    axes = _indices(request.axes, outputs, "the two outputs that are drawn")
    if axes[0] == axes[1]:
        raise wrong("the choice of outputs", "two different outputs", f"y[{axes[0]}] twice")
    labels = _indices(request.labels, outputs, "the true labels") if prop.uses_labels else ()
    low, high = request.ends
    if not low < high:
        raise wrong("the range", "a lower end below the upper one", f"{low:g} to {high:g}")
    plane = _Plane(prop, outputs, (axes[0], axes[1]), tuple(labels), request)
    inset = (high - low) / (2 * COARSE)
    points = {
        "fine": _square(low, high, FINE),
        "coarse": _square(low + inset, high - inset, COARSE),
        "marker": torch.tensor([request.marker], dtype=torch.float64),
        "mesh": _square(-request.epsilon, request.epsilon, MESH)
        + torch.tensor(request.marker, dtype=torch.float64),
    }
    judged = plane.margin(torch.cat(list(points.values())))
    sizes = [len(held) for held in points.values()]
    margins = dict(zip(points, torch.split(judged, sizes), strict=True))
    violated = bool((margins["mesh"] < 0).any())
    logics = [
        logic
        for logic in _logics(request.hardness)
        if not (only_hardened and math.isnan(logic.hardness))
    ]
    return {
        "outputs": outputs,
        "axes": list(axes),
        "ends": [low, high],
        "fine": FINE,
        "coarse": COARSE,
        "inset": inset,
        "marker": list(request.marker),
        "epsilon": request.epsilon,
        "uses_labels": prop.uses_labels,
        "parameters": [
            {"name": p.name, "unit": p.unit, "value": prop.value_of(p.name)}
            for p in prop.specification.parameters
        ],
        "margin": listed(margins["fine"]),
        "holds": bool(margins["marker"][0] >= 0),
        "square_violated": violated,
        "shown": prop.show("unicode"),
        "logics": [_panel(plane, logic, points, margins) for logic in logics],
    }


def report_error(error: QllError) -> dict[str, Any]:
    """An error as data, with the place in the text if it has one."""
    place = re.search(r":(\d+):(\d+)$", error.where or "")
    return {
        "what": error.what,
        "expected": error.expected,
        "found": error.found,
        "fix": error.fix,
        "line": int(place[1]) if place else None,
        "column": int(place[2]) if place else None,
    }


def _logics(hardness: float) -> list[Logic]:
    records = [read_logic(name) for name in LOGICS]
    return [r if math.isnan(r.hardness) else r.harden(hardness) for r in records]


def _property(request: LabRequest) -> tuple[Property, int]:
    if len(request.text) > MOST_CHARACTERS:
        raise wrong("the text", f"at most {MOST_CHARACTERS} characters", str(len(request.text)))
    prop = parse(request.text, outputs=request.outputs, name="formula")
    declared = {p.name for p in prop.specification.parameters}
    given = {k: v for k, v in request.parameters.items() if k in declared}
    if "epsilon" in declared:
        given["epsilon"] = request.epsilon
    prop = prop.with_parameters(**given)
    outputs = request.outputs or prop.specification.outputs or _DEFAULT_OUTPUTS
    if not 2 <= outputs <= MOST_OUTPUTS:
        raise wrong("the number of outputs", f"2 to {MOST_OUTPUTS}", str(outputs))
    return replace(prop, outputs=outputs, inputs=(outputs,), _cache={}), outputs


@dataclass(frozen=True, eq=False)
class _Plane:
    """The formula over two outputs, all others held."""

    prop: Property
    outputs: int
    axes: tuple[int, int]
    labels: tuple[int, ...]
    request: LabRequest

    def loss(self, logic: Logic, points: Tensor) -> tuple[Tensor, Tensor]:
        """The loss and its gradient by the two outputs, at points ``(n, 2)``."""
        moved = points.clone().requires_grad_()
        y, named = self._quantities(moved)
        loss = self.prop.loss(y, logic=logic, **named)
        slope = torch.zeros_like(points)
        if loss.requires_grad:
            (slope,) = torch.autograd.grad(loss.sum(), moved)
        return loss.detach(), slope

    def value(self, logic: Logic, points: Tensor) -> Tensor:
        y, named = self._quantities(points)
        return self.prop.value(y, logic=logic, **named)

    def margin(self, points: Tensor) -> Tensor:
        y, named = self._quantities(points)
        return self.prop.margin(y, **named)

    def _quantities(self, points: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        y = self._filled(points)
        still = torch.tensor([self.request.marker], dtype=points.dtype).expand(len(points), 2)
        named: dict[str, Tensor] = {}
        for source in self.prop.sources - {"y"}:
            named[source] = y if source == "x" else self._filled(still)
        if self.prop.uses_labels:
            hot = torch.zeros(len(points), self.outputs, dtype=torch.long)
            hot[:, list(self.labels)] = 1
            named["labels"] = hot
        return y, named

    def _filled(self, points: Tensor) -> Tensor:
        columns = [torch.full((len(points),), self.request.others, dtype=points.dtype)]
        columns *= self.outputs
        for axis, column in zip(self.axes, points.unbind(1), strict=True):
            columns[axis] = column
        return torch.stack(columns, dim=1)


def _panel(
    plane: _Plane, logic: Logic, points: Mapping[str, Tensor], margins: Mapping[str, Tensor]
) -> dict[str, Any]:
    """One logic. What it cannot do is said, and does not hide the others."""
    panel: dict[str, Any] = {
        "name": titled(logic),
        "logic": logic.name,
        "has_hardness": not math.isnan(logic.hardness),
        "error": None,
    }
    try:
        # One batch: most of the time goes to the calls.
        losses, slopes = plane.loss(logic, torch.cat(list(points.values())))
        value = plane.value(logic, points["marker"])
    except QllError as error:
        return {**panel, "error": f"{error.what}: expected {error.expected}, found {error.found}"}
    sizes = [len(held) for held in points.values()]
    loss = dict(zip(points, torch.split(losses, sizes), strict=True))
    slope = dict(zip(points, torch.split(slopes, sizes), strict=True))
    mesh = loss["mesh"]
    worst = _largest(mesh, points["mesh"] - points["marker"])
    return {
        **panel,
        "loss": listed(loss["fine"]),
        "by_x": listed(slope["coarse"][:, 0]),
        "by_y": listed(slope["coarse"][:, 1]),
        "at": {
            "loss": rounded(float(loss["marker"][0])),
            "value": rounded(float(value[0])),
            "gradient": listed(slope["marker"][0]),
        },
        "worst": {
            "loss": rounded(float(mesh[worst])),
            "point": listed(points["mesh"][worst]),
            "violated": bool(margins["mesh"][worst] < 0),
        },
        "slack": _slack(plane, logic),
    }


def _largest(loss: Tensor, offsets: Tensor) -> int:
    """Where the loss is largest; of points that tie, the nearest to the marker, because an attack
    that starts there has no reason to leave."""
    known = torch.nan_to_num(loss, nan=-math.inf)
    tied = known >= known.max() - 1e-12
    distance = offsets.abs().amax(dim=1)
    return int(torch.where(tied, distance, math.inf).argmin())


def _slack(plane: _Plane, logic: Logic) -> list[float | None] | None:
    multi = len(plane.labels) > 1
    try:
        below, above = plane.prop.slack(logic, outputs=plane.outputs, multi_label=multi)
    except (LogicError, InputError):
        return None  # this logic has no such bound
    return [rounded(below), rounded(above)]


def _square(low: float, high: float, points: int) -> Tensor:
    """``(points * points, 2)``, row by row. The middle of a symmetric range is exactly 0, where
    formulas like to change."""
    steps = torch.arange(points, dtype=torch.float64)
    axis = low + (high - low) * (steps / (points - 1))
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    return torch.stack([x.reshape(-1), y.reshape(-1)], dim=1)


def listed(tensor: Tensor) -> list[float | None]:
    return [rounded(v) for v in tensor.detach().reshape(-1).tolist()]


def rounded(value: float) -> float | None:
    """JSON has no infinities: they become None, and the page writes them as such."""
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


# --- checks ---


def wrong(what: str, expected: str, found: str) -> InputError:
    return InputError(
        f"{what} does not fit", expected=expected, found=found, fix="correct it in the page"
    )


def number(value: Any, name: str, *, infinite: bool = False) -> float:
    if infinite and value == "inf":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise wrong(f"'{name}'", "a finite number", repr(value)[:40])
    return float(value)


def whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1_000_000:
        raise wrong(f"'{name}'", "a whole number", repr(value)[:40])
    return value


def _indices(values: tuple[int, ...], outputs: int, what: str) -> list[int]:
    for value in values:
        if not 0 <= value < outputs:
            raise wrong(what, f"indices below {outputs}", str(value))
    return list(values)
