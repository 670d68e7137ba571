"""Small networks, claims that are true or false beyond doubt, and certificates of the true ones."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

from qll.audit.layout import COLUMNS, MAGIC, digest, unpack
from qll.formula.question import question
from qll.formula.rewrite import Shape
from qll.networks import Network, load
from qll.properties import parse
from qll.property import Property
from qll.verify.backend import BACKENDS, Budget
from qll.verify.certificate import certify
from qll.verify.query import Query
from qll.verify.subject import Subject
from qll.verify.verdict import Status, Verdict

ROBUST = """
outputs 3
parameter epsilon: input = 0.1
forall x in ball(x0, epsilon) and range(0, 1):
  forall c in outputs: label(c) -o forall i in outputs where i != c: y[c] >= y[i]
"""
# A disjunction inside a conjunction: an obligation of two atoms with simplex weights.
EITHER = """
outputs 3
parameter epsilon: input = 0.1
forall x in ball(x0, epsilon) and range(0, 1):
  (y[0] >= y[1] or y[0] >= y[2]) and (y[0] >= y[1] or y[1] >= y[2] or y[2] >= y[0] + 5)
"""
SHAPE = (1, 6, 6)


class Small(nn.Module):
    def __init__(self, seed: int, channels: int = 3, hidden: int = 6) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, channels, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, 4, 3, stride=2, padding=1),
            nn.Flatten(),
            nn.Linear(16, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 3),
        )
        rng = np.random.default_rng(seed)  # the same numbers with every version of torch
        with torch.no_grad():
            for parameter in self.parameters():
                scale = 1.6 / np.sqrt(max(1, parameter[0].numel()))
                parameter.copy_(torch.from_numpy(rng.uniform(-scale, scale, parameter.shape)))

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x)


@dataclass(frozen=True, eq=False)
class Case:
    network: Network
    prop: Property
    x0: Any
    label: int | None

    def query(self, epsilon: float) -> Query:
        lower, upper = np.clip(self.x0 - epsilon, 0, 1), np.clip(self.x0 + epsilon, 0, 1)
        form = self.prop.hard_form(self.label, outputs=3, inputs=SHAPE)
        return Query(self.network, lower, upper, form)

    def subject(self, epsilon: float) -> Subject:
        return Subject.of(self.prop.with_parameters(epsilon=epsilon), self.x0, self.label)

    def decide(self, epsilon: float) -> Verdict:
        budget = Budget(seconds=5.0, proofs=True)
        return BACKENDS["bab"]().decide([self.query(epsilon)], budget)[0]


@dataclass(frozen=True, eq=False)
class Certified:
    case: Case
    epsilon: float
    false_epsilon: float
    witness: Any
    data: bytes

    def parts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        header, arrays = unpack(self.data)
        return asdict(header), {name: array.copy() for name, array in arrays.items()}


def seal(header: dict[str, Any], arrays: dict[str, Any]) -> bytes:
    """A certificate with a fitting checksum, whatever it holds: numbers keep their bytes."""
    bits = header.get("precision", 8)
    bits = bits if bits in (8, 16, 32) else 8
    lengths = {
        name: a.nbytes // (COLUMNS[name].type(bits).itemsize if name in COLUMNS else 1)
        for name, a in arrays.items()
    }
    head = json.dumps({**header, "arrays": lengths}).encode()
    return sealed(head, b"".join(a.tobytes() for a in arrays.values()))


def sealed(head: bytes, raw: bytes) -> bytes:
    body = zlib.compress(len(head).to_bytes(4, "little") + head + raw)
    return MAGIC + hashlib.sha256(body).digest() + body


def hashes(
    text: str, labels: tuple[int, ...] | None, shape: Shape, lower: Any, upper: Any
) -> dict[str, str]:
    """What a header says of a claim, so that only the proof is left to find it out."""
    asked = question(text, labels, shape)
    return {
        "ground": digest(repr((asked.form, asked.constraints)).encode()),
        "region": digest(lower.tobytes(), upper.tobytes()),
    }


def make_case(seed: int, text: str = ROBUST) -> Case:
    network = load(Small(seed), input_shape=SHAPE, mean=np.array(0.4), std=np.array(0.3))
    rng = np.random.default_rng(seed)
    prop = parse(text, outputs=3)
    for _ in range(200):
        x0 = np.round(rng.random(36), 6)
        y = network.relu_form.forward(x0[None])[0]
        if text is ROBUST and np.sort(y)[-1] - np.sort(y)[-2] > 0.3:
            return Case(network, prop, x0, int(y.argmax()))
        if text is EITHER and y[0] > y[1] + 0.2:
            return Case(network, prop, x0, None)
    raise AssertionError("no data point")


# Network, property, and radii at which the property is true, just so, and false.
EDGES = (
    (0, ROBUST, 0.0575, 0.07),
    (3, ROBUST, 0.25, 0.27),
    (5, ROBUST, 0.155, 0.17),
    (8, ROBUST, 0.071, 0.085),
    (0, EITHER, 0.335, 0.39),
    (1, EITHER, 0.235, 0.255),
)


@cache
def certified() -> tuple[Certified, ...]:
    """Proofs near the edge of what is true: at the root, with splits, with disjunctions."""
    found = []
    for seed, text, good, bad in EDGES:
        case = make_case(seed, text)
        verdict = case.decide(good)
        assert verdict.status is Status.VERIFIED, (seed, verdict)
        data, answer = certify(case.query(good), verdict, case.subject(good))
        assert answer.confirmed, (seed, answer)
        refuted = case.decide(bad)
        assert refuted.status is Status.FALSIFIED, (seed, refuted)
        found.append(Certified(case, good, bad, refuted.witness, data))
    return tuple(found)
