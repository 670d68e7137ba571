"""The lab with a network and data points: what bounds, an attack and the verifier say of one region
as its radius moves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import qll
from qll.attacks import attack as read_attack
from qll.attacks.shipped import attack_shipped
from qll.bounds.modules import module_bounds
from qll.data import DataSet
from qll.errors import InputError, QllError
from qll.networks import Network
from qll.networks.trainable import to_module
from qll.notebook import png
from qll.property import Property
from qll.regions import Region
from qll.reports.lab import listed, number, rounded, whole, wrong
from qll.reports.page import embed, render, template
from qll.verify.api import verify
from qll.verify.explanation import describe, input_names

RADIUS = "epsilon"
MOST_SECONDS = 10.0
MOST_OUTPUTS = 64
_ATTACK = "apgd:20,restarts=1"
_FEATURES = 12  # of a table: those that moved most


@dataclass(frozen=True)
class NetworkRequest:
    point: int = 0
    epsilon: float = 0.0
    seconds: float = 2.0

    @classmethod
    def from_json(cls, values: Any) -> NetworkRequest:
        """From an untrusted object."""
        if not isinstance(values, Mapping):
            raise wrong("a request", "an object", type(values).__name__)
        given = cls(
            whole(values.get("point"), "point"),
            number(values.get("epsilon"), RADIUS),
            number(values.get("seconds", 2.0), "seconds"),
        )
        if given.epsilon < 0 or not 0 < given.seconds <= MOST_SECONDS:
            expected = f"{RADIUS} >= 0, seconds up to {MOST_SECONDS:g}"
            raise wrong("a setting", expected, f"{given.epsilon:g}, {given.seconds:g}")
        return given


@dataclass(frozen=True, eq=False)
class NetworkLab:
    """One network, one rule with a radius, and the test points of a data set."""

    network: Network
    prop: Property
    data: DataSet

    def __post_init__(self) -> None:
        if RADIUS not in {p.name for p in self.prop.specification.parameters}:
            raise InputError(
                f"property '{self.prop.name}' has no radius to move",
                expected=f"'parameter {RADIUS}: input = ...' in the rule",
                found=", ".join(p.name for p in self.prop.specification.parameters) or "none",
                fix="write ball(x0, epsilon) and declare the parameter",
            )
        if tuple(self.network.input_shape) != tuple(self.data.shape):
            raise InputError(
                "the data points do not fit the network",
                expected=f"inputs of shape {tuple(self.network.input_shape)}",
                found=str(tuple(self.data.shape)),
                fix="pass the data that the network was trained on",
            )
        if self.network.output_size > MOST_OUTPUTS:
            raise InputError(
                "the network has too many outputs to draw",
                expected=f"at most {MOST_OUTPUTS}",
                found=str(self.network.output_size),
                fix="use qll verify and qll explain",
            )

    @cached_property
    def module(self) -> nn.Module | None:
        """For bounds; None where the network cannot be had in torch."""
        try:
            return to_module(self.network).eval()
        except QllError:
            return None

    def examine(self, request: NetworkRequest) -> dict[str, Any]:
        """All that the page draws, or raises a `QllError`."""
        if request.point >= len(self.data.test):
            raise wrong("the point", f"a number below {len(self.data.test)}", str(request.point))
        prop = self.prop.with_parameters(epsilon=request.epsilon)
        x, labels = self.data.test.batch(slice(request.point, request.point + 1))
        region = Region.of(prop, x)
        truth = labels if prop.uses_labels else None
        found = attack_shipped(read_attack(_ATTACK), self.network, prop, x, truth)
        (verdict,) = verify(prop, self.network, x, truth, timeout=request.seconds)
        witness = verdict.witness if verdict.witness is not None else found.x[0].numpy()
        row = {**verdict.as_json(), "witness": verdict.witness, "witness2": verdict.witness2}
        names = input_names(self.data.shape, prop)
        before = self.network.runtime(x.numpy())
        after = self.network.runtime(np.asarray(witness, dtype=np.float64)[None])
        return {
            "point": request.point,
            "epsilon": request.epsilon,
            "label": self._label(labels),
            "outputs": self._outputs(before[0], after[0], region),
            "attack": {
                "falsified": bool(found.falsified[0]),
                "margin": rounded(float(found.margins[0])),
            },
            "status": str(verdict.status),
            "said": describe(row, before=x[0].numpy(), names=names),
            "pictures": _pictures(x[0].numpy(), np.asarray(witness)),
            "features": self._features(x[0].numpy(), np.asarray(witness), region),
        }

    def _outputs(
        self, before: NDArray[Any], after: NDArray[Any], region: Region
    ) -> list[dict[str, Any]]:
        flat = [np.asarray(v, dtype=np.float64).reshape(-1) for v in (before, after)]
        known = {kind: self._bounds(region, kind) for kind in ("interval", "crown")}
        rows = []
        for k in range(self.network.output_size):
            row: dict[str, Any] = {
                "name": self._output_name(k),
                "clean": rounded(float(flat[0][k])),
                "attacked": rounded(float(flat[1][k])),
            }
            for kind, ends in known.items():
                row[kind] = None if ends is None else listed(ends[:, k])
            rows.append(row)
        return rows

    def _bounds(self, region: Region, kind: Any) -> Tensor | None:
        """(2, outputs): what the outputs can be at most, by cheap bounds."""
        if self.module is None:
            return None
        count = self.network.output_size
        try:
            with torch.no_grad():
                bounds = module_bounds(self.module, region.lower, region.upper, kind=kind)
                ends = bounds.affine(torch.eye(count)[None], torch.zeros(1, count), None)
        except QllError:
            return None
        lower, upper = (end.reshape(count, -1)[:, 0].double() for end in ends)
        return torch.stack([lower, upper])

    def _output_name(self, k: int) -> str:
        for declared in self.prop.specification.names:
            if declared.kind == "outputs":
                return declared.names[k]
        names = self.data.classes
        return f"y[{k}]" + (f" {names[k]}" if k < len(names) else "")

    def _label(self, labels: Tensor) -> str:
        values = labels[0]
        if values.dim() == 0:
            known = not values.is_floating_point() and int(values) < len(self.data.classes)
            return str(self.data.classes[int(values)] if known else values.item())
        return ", ".join(str(self.data.classes[k]) for k in values.nonzero()[:, 0].tolist())

    def _features(
        self, before: NDArray[Any], after: NDArray[Any], region: Region
    ) -> list[dict[str, Any]]:
        """Of a table, what moved most, within its ends."""
        if before.ndim != 1:
            return []
        lower, upper = (v[0].double().numpy().reshape(-1) for v in (region.lower, region.upper))
        wide = np.where(upper > lower, upper - lower, 1.0)
        order = np.argsort(-np.abs(after.reshape(-1) - before) / wide)[:_FEATURES]
        names = input_names(before.shape, self.prop)
        schema = self.data.schema
        if schema is not None:
            names = list(schema.input_names)
        columns = {"before": before, "after": after.reshape(-1), "lower": lower, "upper": upper}
        return [
            {"name": names[k], **{n: rounded(float(v[k])) for n, v in columns.items()}}
            for k in order.tolist()
        ]

    def page(self) -> str:
        """Sliders begin at the rule's own radius; their end is some times that."""
        own = self.prop.value_of(RADIUS)
        context = {
            "version": qll.__version__,
            "rule": self.prop.show().strip(),
            "network": Path(self.network.name).name,
            "data_name": self.data.name,
            "style": template("lab.css"),
            "script": template("lab_network.js"),
            "data": embed(
                {
                    "points": len(self.data.test),
                    "epsilon": own,
                    "most": 4 * own if own > 0 and math.isfinite(own) else 0.1,
                }
            ),
        }
        return render("lab_network.html", context)


def _pictures(before: NDArray[Any], after: NDArray[Any]) -> dict[str, str] | None:
    if before.ndim != 3 or before.shape[0] not in (1, 3):
        return None
    change = np.asarray(after, dtype=np.float64).reshape(before.shape) - before
    peak = float(np.abs(change).max())
    middle = 0.5 + change / (2 * peak) if peak else np.full_like(change, 0.5)
    return {
        "clean": png(before),
        "attacked": png(after.reshape(before.shape)),
        "change": png(middle),
        "largest": f"{peak:.3g}",
    }
