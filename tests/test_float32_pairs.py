"""Two points in float32: every order of both runs, enumerated on small networks."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from float32_cases import evaluations, linear, random_network
from torch import nn

import qll
from qll.audit import audit, read_claim
from qll.audit.float32 import Errors
from qll.audit.network import read_network
from qll.audit.product import product
from qll.errors import InputError
from qll.networks import load
from qll.networks.joint import Joint
from qll.networks.orders import fused
from qll.verify.arithmetic import radii
from qll.verify.verdict import Evidence

F = np.float32


def every_sum(weight: Any, values: Any, bias: Any) -> set[F]:
    """What any order of ``bias + w0 v0 + w1 v1`` gives, products fused with additions or not."""
    (w0, w1), (v0, v1), b = weight, values, F(bias)

    def add(w: F, v: F, rest: F) -> set[F]:
        one = fused(np.array([w]), np.array([v]), np.array([rest]))[0]
        return {F(F(w * v) + rest), one}

    found = {F(F(F(w0 * v0) + F(w1 * v1)) + b)}
    found |= {F(part + b) for part in add(w0, v0, F(w1 * v1)) | add(w1, v1, F(w0 * v0))}
    found |= {end for part in add(w0, v0, b) for end in add(w1, v1, part)}
    found |= {end for part in add(w1, v1, b) for end in add(w0, v0, part)}
    return found


def every_output(model: nn.Sequential, point: tuple[F, ...]) -> tuple[float, float]:
    """The least and the largest output of two inputs, two ReLUs and one output in any order."""
    first, last = model[0], model[2]
    weight, bias = first.weight.detach().numpy(), first.bias.detach().numpy()
    hidden = [
        {max(v, F(0)) for v in every_sum(w, point, b)} for w, b in zip(weight, bias, strict=True)
    ]
    outputs = {
        y
        for some in itertools.product(*hidden)
        for y in every_sum(last.weight.detach().numpy()[0], some, last.bias.detach().numpy()[0])
    }
    return float(min(outputs)), float(max(outputs))


def neighbours(start: float, count: int) -> list[F]:
    found = [F(start)]
    while len(found) < count:
        found.append(np.nextafter(found[-1], F(np.inf)))
    return found


def pair_case(rng: np.random.Generator) -> tuple[nn.Sequential, str, Any]:
    """A few neighbouring float32 points, all of them enumerated, and a threshold of a few
    roundings; the answers (least, most) of ``y2 - y`` over all pairs and orders."""
    scale = float(rng.choice([1.0, 100.0, 3000.0]))
    model = nn.Sequential(
        linear(rng.normal(size=(2, 2)).tolist(), (rng.normal(size=2) * scale).tolist()),
        nn.ReLU(),
        linear(rng.normal(size=(1, 2)).tolist(), (rng.normal(size=1) * scale).tolist()),
    )
    sides = [neighbours(float(v), 3) for v in rng.normal(size=2)]
    answer = cache(lambda point: every_output(model, point))
    rises, falls = [], []
    for a, b, c in itertools.product(sides[0], sides[0], sides[1]):
        (low, high), (low2, high2) = answer((a, c)), answer((b, c))
        rises.append(high2 - low)  # the most that any two orders make of this pair
        falls.append(low2 - high)
    box = [[float(side[k]) for side in sides] for k in (0, -1)]
    unit = 2.0**-24 * (scale + 4)
    gap = max(rises) + float(rng.choice([-60, -1, 0, 1, 6, 12, 12])) * unit
    region = f"box({box[0]}, {box[1]})"
    text = f"forall x in {region}, x2 in {region} and x2[1] == x[1]: y2[0] - y[0] <= {gap!r}"
    return model, text, (gap, max(rises), falls, answer)


def test_no_pair_of_orders_contradicts_a_verdict() -> None:
    found = []
    for seed in range(24):
        model, text, (gap, most, _, answer) = pair_case(np.random.default_rng(seed))
        network = load(model, input_shape=(2,))
        (verdict,) = qll.verify(
            qll.parse(text, outputs=1), network, arithmetic="float32", timeout=0.2,
            certified=seed % 4 == 0,
        )  # fmt: skip
        found.append(str(verdict.status))
        if verdict.status == "verified":
            assert most <= gap, (seed, text)
        elif verdict.status == "falsified":
            points = [tuple(F(v) for v in p) for p in (verdict.witness, verdict.witness2)]
            (_, high), (low2, _) = answer(points[0]), answer(points[1])
            assert low2 - high > gap, (seed, text)
        if seed % 4 == 0 and verdict.decided:
            assert verdict.evidence is Evidence.CHECKED
    assert found.count("verified") > 6 and found.count("falsified") > 0, found


@pytest.mark.parametrize("seed", range(8))
def test_both_runs_are_within_the_radii_of_prover_and_checker(seed: int) -> None:
    """Each in an order of its own; the first input is tied."""
    rng = np.random.default_rng(seed)
    network, _ = random_network(rng)
    inputs = network.input_size
    home = (*range(inputs), 0, *range(inputs, 2 * inputs - 1))
    joint = Joint((network, network), home, 2 * inputs - 1)
    lower = rng.normal(size=joint.variables) * float(rng.choice([1.0, 10.0, 1e-3]))
    upper = lower + rng.random(joint.variables) * float(rng.choice([0.0, 0.01, 1.0]))
    run = read_network(network.source, None, None, True)
    checker = Errors(product([run, run], home, joint.variables))
    area = checker.bounder.crown(checker.bounder.area(lower[None, None], upper[None, None]))
    rows = np.concatenate([np.eye(2), -np.eye(2)], axis=1)  # y - y2
    both = [
        radii(joint, lower, upper, rows),
        checker.radii((lower, upper), (area.low[0, 0], area.high[0, 0]), rows),
    ]
    for _ in range(3):
        point = rng.uniform(lower, upper).astype(np.float32).astype(np.float64)
        if not ((point >= lower).all() and (point <= upper).all()):
            continue
        real = rows @ np.array([float(v) for v in joint.evaluate_exact(point)])
        ends = joint.expand(point)
        answers = [evaluations(network, end, rng, 5) for end in ends]
        for y, y2 in itertools.product(*answers):
            for radius in both:
                assert (np.abs(y - y2 - real) <= radius).all()


WIDE = "forall x in box(0, 1), x2 in box(0, 1) and (forall i in inputs where i != 0: x2[i] == x[i])"


def test_a_pair_is_proved_and_confirmed_in_float32(tmp_path: Path) -> None:
    """As a difference, with room for the rounding of both runs; a tie is not proved: two orders
    may differ at one point."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 1)
    )
    model[0].weight.data[:, 0].abs_(), model[2].weight.data.abs_(), model[4].weight.data.abs_()
    network = load(model, input_shape=(6,))
    given = {"arithmetic": "float32", "timeout": 20}
    for text, wanted in (
        (f"{WIDE} and x2[0] >= x[0]: y2[0] >= y[0] - 0.001", "verified"),
        (f"{WIDE} and x2[0] >= x[0] + 0.5: y2[0] <= y[0]", "falsified"),
    ):
        folder = tmp_path / wanted
        rule = qll.parse(text, outputs=1)
        (found,) = qll.verify(rule, network, certified=True, certificates=folder, **given)
        assert found.status == wanted and found.evidence is not Evidence.PROVER
        (data,), (file,) = (
            [p.read_bytes() for p in folder.glob(e)] for e in ("*.qllcert", "*.onnx")
        )
        assert audit(data, file, read_claim(folder / "claim.toml")).confirmed
    tie = qll.parse(f"{WIDE} and x2[0] >= x[0]: y2[0] >= y[0]", outputs=1)
    assert qll.verify(tie, network, **{**given, "timeout": 0.5})[0].status == "unknown"
    assert qll.verify(tie, network, timeout=20)[0].status == "verified"


def test_an_image_of_a_map_is_refused_by_name() -> None:
    rule = qll.parse("forall b in [-0.1, 0.1], x = x0 + b: y[0] <= 5", outputs=1)
    with pytest.raises(InputError, match="moves inputs by a map"):
        qll.verify(rule, nn.Linear(2, 1), torch.zeros(1, 2), arithmetic="float32")
