"""Properties that the last layer alone refutes the violation of: exact, or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qll
from qll.audit import Answer
from qll.formula.hard import affine
from qll.networks import load
from qll.networks.onnx_writer import onnx_bytes
from qll.properties import parse
from qll.verify.certificate import Unwritable, certify
from qll.verify.construction import by_construction
from qll.verify.proof import ByConstruction
from qll.verify.query import Query
from qll.verify.verdict import Status, Verdict

INPUTS, HIDDEN = 12, 5
EXACTLY_ONE = """
outputs 2
forall x in ball(x0, 0.5):
  (y[0] <= 0 or y[1] <= 0) and (y[0] >= 0 or y[1] >= 0)
"""
NOT_BOTH = """
outputs 2
forall x in ball(x0, 0.5): y[0] <= 0 or y[1] <= 0
"""


def network(seed: int, *, tied: bool = True, **changes: Any) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2)).eval()
    last = model[-1]
    with torch.no_grad():
        if tied:
            last.weight[1], last.bias[1] = -last.weight[0], -last.bias[0]
        for name, (place, value) in changes.items():
            getattr(last, name)[place] = value
    return model


def query(model: nn.Module, text: str = EXACTLY_ONE, **options: Any) -> Query:
    prop = parse(text)
    handle = load(onnx_bytes(model, input_shape=(INPUTS,)))
    form = prop.hard_form(outputs=2, inputs=(INPUTS,))
    x0 = np.zeros(INPUTS)
    return Query(handle, x0 - 0.5, x0 + 0.5, form, **options)


def forged(asked: Query) -> Answer:
    """What the checker says to the claim that it holds by construction."""
    verdict = Verdict(Status.VERIFIED, "construction", proof=ByConstruction())
    return certify(asked, verdict)[1]


@pytest.mark.parametrize("seed", range(5))
def test_tied_outputs_are_never_both_above_or_below(seed: int) -> None:
    model = network(seed)
    found = by_construction(query(model))
    assert found is not None and (found.status, found.stage) == ("verified", "construction")
    prop = parse(EXACTLY_ONE)
    with torch.no_grad():
        assert bool(prop.holds(model(10 * torch.randn(5000, INPUTS))).all())
    for certified in (False, True):
        (verdict,) = qll.verify(prop, model, np.zeros((1, INPUTS)), certified=certified)
        assert (verdict.status, verdict.stage) == ("verified", "construction")


@pytest.mark.parametrize("name", ["weight", "bias"])
@pytest.mark.parametrize("towards", [-9.0, 9.0])
def test_one_bit_away_from_a_tie_is_no_tie(name: str, towards: float) -> None:
    place = (1, 2) if name == "weight" else 1
    held = getattr(network(0)[-1], name)[place].detach().numpy()
    near = float(np.nextafter(held, np.float32(towards)))
    asked = query(network(0, **{name: (place, near)}))
    assert by_construction(asked) is None
    assert not forged(asked).confirmed and "can be positive" in forged(asked).reason


def test_a_sum_that_is_never_positive_is_not_both() -> None:
    model = network(1)
    with torch.no_grad():
        model[-1].weight[1] -= 0.25
    assert by_construction(query(model, NOT_BOTH)) is not None
    assert by_construction(query(model)) is None, "but sometimes both are below"
    assert not forged(query(model)).confirmed
    with torch.no_grad():
        model[-1].weight[1] += 0.5
    assert by_construction(query(model, NOT_BOTH)) is None
    assert not forged(query(model, NOT_BOTH)).confirmed


def test_where_ties_count_as_violations_equality_is_not_enough() -> None:
    tied = query(network(2), NOT_BOTH, tie_violates=True)
    assert by_construction(tied) is None and not forged(tied).confirmed
    lower = network(2)
    with torch.no_grad():
        lower[-1].bias[1] -= 1e-6
    strict = query(lower, NOT_BOTH, tie_violates=True)
    assert by_construction(strict) is not None and forged(strict).confirmed


def test_without_a_hidden_layer_inputs_may_be_negative() -> None:
    """The same coefficients, but of inputs: their sign is not known."""
    model = nn.Sequential(nn.Linear(INPUTS, 2)).eval()
    with torch.no_grad():
        model[0].weight[0], model[0].weight[1] = 0.0, -1.0
        model[0].bias.copy_(torch.tensor([0.1, -0.2]))
    asked = query(model, NOT_BOTH)
    assert by_construction(asked) is None and not forged(asked).confirmed
    (verdict,) = qll.verify(parse(NOT_BOTH), model, np.zeros((1, INPUTS)))
    assert verdict.status == "falsified"


def test_conditions_on_the_input_are_left_to_the_provers() -> None:
    text = "outputs 2\nforall x in ball(x0, 0.5): y[0] <= x[0] or y[1] <= 0\n"
    asked = query(network(3), text)
    assert by_construction(asked) is None
    assert not forged(asked).confirmed, "the atom of the input has a weight too"
    cut = query(network(3), constraints=(affine([(("x", 0), 1.0)], -0.1),))
    assert by_construction(cut) is None


def test_random_last_layers_are_judged_as_their_samples_are() -> None:
    """Whatever is confirmed holds at every sampled activation, in exact arithmetic."""
    rng = np.random.default_rng(0)
    confirmed = 0
    for seed in range(60):
        model = network(seed, tied=False)
        with torch.no_grad():  # small integers: sums of them are often 0
            model[-1].weight.copy_(torch.from_numpy(rng.integers(-2, 2, (2, HIDDEN))))
            model[-1].bias.copy_(torch.from_numpy(rng.integers(-2, 2, 2)))
        try:
            answer = forged(query(model, NOT_BOTH))
        except Unwritable:
            continue
        weight, bias = (p.detach().double().numpy() for p in model[-1].parameters())
        activations = rng.integers(0, 4, (2000, HIDDEN)) * rng.integers(0, 2, (2000, HIDDEN))
        y = activations @ weight.T + bias
        if answer.confirmed:
            confirmed += 1
            assert not ((y[:, 0] > 0) & (y[:, 1] > 0)).any()
            assert by_construction(query(model, NOT_BOTH)) is not None
    assert confirmed > 0
