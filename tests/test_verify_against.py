"""Two networks: verdicts against enumeration, and certificates that name both."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forgery_networks import evaluate, model_of, random_layers
from torch import nn
from typer.testing import CliRunner

import qll
from qll.audit import audit, read_claim
from qll.audit.layout import unpack
from qll.cli.main import build_app
from qll.errors import InputError
from qll.networks import load
from qll.verify.certificate import pack
from qll.verify.verdict import Evidence

SAME = "(forall i in inputs: x2[i] == x[i])"


def two_networks(rng: np.random.Generator) -> tuple[Any, Any]:
    """The second is the first, a little changed, or one of other layers."""
    layers = random_layers(rng)
    if rng.random() < 0.5:
        return layers, [(w + rng.integers(-1, 2, w.shape) / 8, b) for w, b in layers]
    other = random_layers(rng)
    first, last = other[0], other[-1]
    other[0] = rng.integers(-4, 5, (len(first[1]), len(layers[0][0][0]))) / 4, first[1]
    outputs = len(layers[-1][1])
    other[-1] = (
        rng.integers(-4, 5, (outputs, len(other[-1][0][0]))) / 4,
        np.resize(last[1], outputs),
    )
    return layers, other


def against_rule(rng: np.random.Generator) -> tuple[str, Any, Any, bool]:
    layers, other = two_networks(rng)
    inputs = len(layers[0][0][0])
    lower = rng.integers(-2, 1, inputs)
    upper = lower + rng.integers(1, 3, inputs)
    points = [
        [Fraction(int(a + v)) for a, v in zip(lower, at, strict=True)]
        for at in np.ndindex(*(upper - lower + 1).tolist())
    ]
    rises = [evaluate(other, x)[0] - evaluate(layers, x)[0] for x in points]
    most = max(rises) + Fraction(str(rng.choice(["-0.125", "0.125", "1"])))
    region = f"box({lower.tolist()}, {upper.tolist()}) and integer(x)"
    text = f"forall x in {region}, x2 in {SAME}: y2[0] - y[0] <= {float(most)!r}"
    return text, layers, other, max(rises) <= most


def assert_enumerated(seed: int, count: int) -> list[str]:
    rng, found = np.random.default_rng(seed), []
    for number in range(count):
        text, layers, other, true = against_rule(rng)
        prop = qll.parse(text, outputs=len(layers[-1][1]))
        certified = number % 2 == 0
        (verdict,) = qll.verify(
            prop, load(model_of(layers)), against=load(model_of(other)), certified=certified,
            timeout=20,
        )  # fmt: skip
        assert verdict.status != ("falsified" if true else "verified"), (text, layers, other)
        if certified and verdict.decided:
            assert verdict.evidence is Evidence.CHECKED, (text, layers, other)
        found.append(str(verdict.status))
    return found


def test_verdicts_are_those_of_enumeration() -> None:
    found = assert_enumerated(3, 30)
    assert found.count("verified") > 8 and found.count("falsified") > 4, found
    assert found.count("unknown") < 4, found


@pytest.mark.slow
def test_a_thousand_verdicts_are_those_of_enumeration() -> None:
    assert_enumerated(4, 1000)


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    torch.manual_seed(0)
    old = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 1))
    new = nn.Sequential(nn.Linear(3, 5), nn.Sigmoid(), nn.Linear(5, 1))
    return load(old, input_shape=(3,)), load(new, input_shape=(3,))


@pytest.mark.parametrize("arithmetic", ["real", "float32"])
def test_certificates_name_both_networks(
    pair: tuple[Any, Any], arithmetic: str, tmp_path: Path
) -> None:
    old, new = pair
    if arithmetic == "float32":  # nobody knows what float32 makes of a sigmoid
        torch.manual_seed(1)
        new = load(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), input_shape=(3,))
    rule = qll.parse(f"forall x in box(0, 1), x2 in {SAME}: y2[0] - y[0] <= 2", outputs=1)
    given: Any = {"certificates": tmp_path, "arithmetic": arithmetic, "timeout": 20}
    (verdict,) = qll.verify(rule, old, against=new, **given)
    assert verdict.status == "verified" and verdict.evidence is Evidence.CHECKED
    data = (tmp_path / "00000.qllcert").read_bytes()
    claim = read_claim(tmp_path / "claim.toml")
    assert audit(data, old.source, claim, against=new.source).confirmed
    for against, reason in ((None, "of x2"), (old.source, "of x2")):
        answer = audit(data, old.source, claim, against=against)
        assert not answer.confirmed and reason in answer.reason
    answer = audit(data, new.source, against=old.source)
    assert not answer.confirmed and "another network" in answer.reason
    # Relabelled: the proof is about the other order.
    header, arrays = unpack(data)
    turned = pack(replace(header, network=header.against, against=header.network), arrays)
    answer = audit(turned, new.source, claim, against=old.source)
    assert not answer.confirmed and "the network of x2 is" in answer.reason
    alone = pack(replace(header, against=None), arrays)
    assert not audit(alone, old.source, claim).confirmed
    asked = ["audit", str(tmp_path), "--claim", str(tmp_path / "claim.toml")]
    done = CliRunner().invoke(build_app(), asked)
    assert done.exit_code == 0 and "network of x2: sha256" in done.output, done.output
    (tmp_path / f"{new.sha256}.onnx").unlink()
    assert CliRunner().invoke(build_app(), asked).exit_code == 12
    (tmp_path / "new.onnx").write_bytes(new.source)
    done = CliRunner().invoke(build_app(), [*asked, "--against", str(tmp_path / "new.onnx")])
    assert done.exit_code == 0, done.output


def test_a_rule_of_one_point_has_one_network(pair: tuple[Any, Any]) -> None:
    old, new = pair
    with pytest.raises(InputError, match="two networks are given"):
        qll.verify(qll.parse("forall x in box(0, 1): y[0] <= 9", outputs=1), old, against=new)
    # The same file twice is one network: its certificates are those of a pair of runs.
    rule = qll.parse(f"forall x in box(0, 1), x2 in {SAME}: y2[0] >= y[0]", outputs=1)
    assert qll.verify(rule, old, against=old, certified=True)[0].status == "verified"
