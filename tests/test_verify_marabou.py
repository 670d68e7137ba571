"""Marabou as a second opinion: never wrong where it answers, and ended when its time is over."""

from __future__ import annotations

import subprocess
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from verify_cases import FormNetwork, chain, random_condition, random_network, worst_value

from qll.formula.hard import affine
from qll.networks import load
from qll.networks.relu_form import FormLayer, ReluForm
from qll.verify.backend import BACKENDS, Budget
from qll.verify.backends import marabou
from qll.verify.query import Query
from qll.verify.verdict import Reason, Status, Verdict

pytest.importorskip("maraboupy")

# Within this share of the numbers involved the enumeration's own solver cannot tell.
TIE = 1e-6


def ask(query: Query, seconds: float = 20.0) -> Verdict:
    return BACKENDS["marabou"]().decide([query], Budget(seconds=seconds))[0]


def scaled(network: FormNetwork, factor: float) -> FormNetwork:
    first, *rest = network.relu_form.layers
    terms = tuple((source, weight * factor) for source, weight in first.terms)
    layers = (FormLayer(first.bias * factor, terms), *rest)
    return FormNetwork(ReluForm(network.relu_form.input_shape, layers))


def random_query(seed: int, *, skips: bool, depth: int, factor: float = 1.0) -> Query:
    rng = np.random.default_rng(seed)
    network = random_network(rng, skips=skips)
    inputs = network.relu_form.input_size
    centre = rng.standard_normal(inputs)
    radius = 10.0 ** rng.uniform(-2, 0.5) * (rng.random(inputs) > 0.1)
    condition = random_condition(rng, 3, inputs, depth)
    return Query(scaled(network, factor), centre - radius, centre + radius, condition)


def assert_right(query: Query, verdict: Verdict, what: Any) -> None:
    worst = worst_value(query)
    scale = max(1.0, float(np.abs(query.form.forward(query.lower[None])).max()))
    if verdict.status is Status.VERIFIED:
        assert worst <= TIE * scale, (what, worst)
    if verdict.status is Status.FALSIFIED:
        assert worst >= -TIE * scale, (what, worst)


# Found by fuzzing: each was 'verified' and has a violation, or ended in 'map::at'.
KNOWN = [
    (99, True, 2, 1.0),  # layers guessed
    (136, True, 1, 1.0),
    (175, True, 1, 1e-3),
    (204, True, 1, 1.0),
    (54, False, 2, 1.0),  # a neuron that reads nothing
    (0, True, 1, 1e-3),  # ranges below 1e-5
    (12, True, 1, 1e-3),
    (1, False, 1, 1e-6),
    (9, False, 1, 1e-6),
]


@pytest.mark.parametrize("case", KNOWN)
def test_what_was_wrong_once(case: tuple[int, bool, int, float]) -> None:
    seed, skips, depth, factor = case
    query = random_query(seed, skips=skips, depth=depth, factor=factor)
    verdict = ask(query)
    assert_right(query, verdict, case)
    assert verdict.decided or verdict.reason is Reason.UNSUPPORTED


@pytest.mark.parametrize(
    "block", [0, *(pytest.param(b, marks=pytest.mark.slow) for b in range(1, 40))]
)
def test_random_networks_against_enumeration(block: int) -> None:
    decided = 0
    for seed in range(5000 + block * 12, 5012 + block * 12):
        factor = (1.0, 1e-3, 1.0, 1e3)[seed % 4]
        query = random_query(seed, skips=seed % 2 == 0, depth=1, factor=factor)
        verdict = ask(query)
        assert_right(query, verdict, seed)
        decided += verdict.decided
    assert decided >= 6


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = torch.relu(self.first(x))
        return self.last(held + torch.relu(self.second(held)))


def test_other_activations_are_refused_by_name() -> None:
    """-leaky(x) is up to 0.1 below 0, where -relu(x) is 0."""
    module = nn.Sequential(nn.Linear(1, 1), nn.LeakyReLU(0.1), nn.Linear(1, 1))
    with torch.no_grad():
        for part, weight in ((module[0], 1.0), (module[2], -1.0)):
            part.weight.fill_(weight)
            part.bias.zero_()
    network = load(module.eval(), input_shape=(1,))
    query = Query(network, -np.ones(1), np.ones(1), affine([(("y", 0), 1.0)], -0.05))
    verdict = ask(query)
    assert verdict.reason is Reason.UNSUPPORTED
    assert "layer 1 is a leaky-relu" in verdict.notes[0]
    assert BACKENDS["bab"]().decide([query], Budget())[0].status is Status.FALSIFIED


def test_residual_networks_agree_with_our_verifier() -> None:
    decided = 0
    for seed in range(4):
        torch.manual_seed(seed)
        network = load(Residual().eval(), input_shape=(2,))
        assert not network.relu_form.is_chain
        middle = float(network.relu_form.forward(np.zeros((1, 2)))[0, 0])
        for shift in (0.05, 1.0):
            condition = affine([(("y", 0), 1.0)], -middle - shift)
            query = Query(network, -np.ones(2) / 2, np.ones(2) / 2, condition)
            ours = BACKENDS["bab"]().decide([query], Budget(seconds=20))[0]
            theirs = ask(query)
            assert not ours.contradicts(theirs), (seed, shift)
            decided += theirs.decided
    assert decided >= 6


def hard_query() -> Query:
    rng = np.random.default_rng(0)
    layers = []
    for below, width in ((60, 60), (60, 60), (60, 60), (60, 1)):
        weight = rng.standard_normal((width, below)) / np.sqrt(below)
        layers.append((weight, rng.standard_normal(width) * 0.1))
    network = chain(*layers)
    return Query(network, -np.ones(60), np.ones(60), affine([(("y", 0), 1.0)], -1.6))


def test_its_process_is_ended_when_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def noted(*arguments: Any, **options: Any) -> Any:
        started.append(real(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(marabou.subprocess, "Popen", noted)
    # Without a clock of its own, as it behaves on larger networks.
    script = marabou.Path(marabou.__file__).with_name("_marabou_process.py").read_text()
    deaf = script.replace("options._timeoutInSeconds = ", "options._timeoutInSeconds = 600 + ")
    assert deaf != script
    (tmp_path / "_marabou_process.py").write_text(deaf)
    monkeypatch.setattr(marabou, "__file__", str(tmp_path / "marabou.py"))
    began = time.monotonic()
    verdict = ask(hard_query(), seconds=1.5)
    assert (verdict.status, verdict.reason) == (Status.UNKNOWN, Reason.TIME)
    assert time.monotonic() - began <= 15  # of which 1.5 are its own; the rest is a busy machine's
    (child,) = started
    assert child.poll() is not None, "it still runs"


def test_a_query_without_a_limit_is_answered() -> None:
    """As the command line asks without --timeout: 1e9 seconds are more than the system can wait."""
    network = chain((np.eye(2), [0.0, 0.0]), (np.eye(2), [0.0, 0.0]))
    query = Query(network, np.zeros(2), np.ones(2), affine([(("y", 0), 1.0)], -2.0))
    assert ask(query, seconds=1e9).status is Status.VERIFIED


def test_a_process_that_dies_is_a_failure_of_the_backend(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "_marabou_process.py").write_text("import os\nos.abort()\n")
    monkeypatch.setattr(marabou, "__file__", str(tmp_path / "marabou.py"))
    network = chain((np.eye(2), [0.0, 0.0]), (np.eye(2), [0.0, 0.0]))
    query = Query(network, np.zeros(2), np.ones(2), affine([(("y", 0), 1.0)], -2.0))
    verdict = ask(query)
    assert (verdict.status, verdict.reason) == (Status.UNKNOWN, Reason.BACKEND)
    assert "without an answer" in verdict.notes[0]


def test_what_it_cannot_decide_soundly_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shift = 2.0**53
    network = chain(([[1.0]], [shift]), ([[1.0]], [-shift]), ([[1.0]], [0.0]))
    query = Query(network, np.zeros(1), np.full(1, 0.8), affine([(("y", 0), 1.0)], -0.5))
    verdict = ask(query)
    assert verdict.reason is Reason.UNSUPPORTED
    assert "layer 1" in verdict.notes[0]
    monkeypatch.setattr(marabou, "MOST_WEIGHTS", 2)
    small = chain((np.eye(2), [0.0, 0.0]), (np.eye(2), [0.0, 0.0]))
    large = ask(Query(small, np.zeros(2), np.ones(2), affine([(("y", 0), 1.0)], -2.0)))
    assert large.reason is Reason.UNSUPPORTED
    assert "at most 2 weights" in large.notes[0]
