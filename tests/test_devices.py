"""The torch path on a device of its own, as a GPU is one: no tensor of the host among its tensors.

There is no GPU here. torch's ``meta`` device stands in for it (``devices.py``): it has no numbers,
so these tests say where tensors are, and not what is in them; the same code on the CPU is held to
numbers by the other tests.
"""

from __future__ import annotations

import pytest
import torch
from devices import META, Generator, OneDevice
from torch import nn

import qll
from qll.attacks.apgd import AutoPGD
from qll.attacks.pgd import PGD
from qll.data.source import load as load_data
from qll.properties import names
from qll.training.config import resolve
from qll.training.loop import train

# The projection onto its region goes on while a number says so, and here every number does.
LONG = ("monotonicity",)
MULTI_LABEL = ("not-both", "exactly-one")


def network(outputs: int) -> nn.Module:
    with META:
        return nn.Sequential(
            nn.Conv2d(1, 2, 2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(18, outputs)
        )


def test_the_stand_in_has_the_rules_of_a_device() -> None:
    x = torch.zeros(3, device=META)
    with OneDevice() as mode:
        assert (x + torch.tensor(2.0)).device == META  # a number of the host may join in
        assert torch.zeros(3).to(META).device == META
        with pytest.raises(AssertionError, match="two devices"):
            x + torch.zeros(3)
        with pytest.raises(AssertionError, match="two devices"):
            torch.where(x > 0, x, torch.zeros(3))
        with pytest.raises(AssertionError, match="two devices"):
            network(3)(torch.zeros(1, 1, 2, 2))
    assert mode.moved == 1


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in names()],
)
def test_attacks_and_losses_stay_on_the_device(name) -> None:
    prop, several = qll.load(name), name in MULTI_LABEL
    outputs = 6 if several else 10
    model, x = network(outputs), torch.rand(3, 1, 2, 2, device=META)
    labels = torch.zeros(3, *[outputs] * several, dtype=torch.long, device=META)
    with OneDevice() as mode:
        found = PGD(2, 1)(model, prop, x, labels)
        loss = qll.PropertyLoss(
            prop, attack=AutoPGD(2, 1), task="multi-label" if several else "single-label"
        )(model, x, labels)
        loss.backward()
    tensors = [found.x, found.losses, found.margins, found.falsified, found.outputs, loss]
    assert {t.device for t in [*tensors, *(p.grad for p in model.parameters())]} == {META}
    assert mode.operations > 100


@pytest.mark.parametrize("method", ["attack", "bound"])
def test_a_run_stays_on_the_device(method, monkeypatch) -> None:
    """Batches are brought there; an epoch, its measures and the checkpoint's are computed there."""
    monkeypatch.setattr(torch, "Generator", Generator)
    data = load_data("dice-rendered", None)
    options = {"epochs": 1, "device": "meta", "steps": 1, "restarts": 0, "batch_size": 272}
    config = resolve("not-both", "dice-rendered", options={**options, "method": method})
    with OneDevice() as mode:
        run = train(config, data=data)
    assert {p.device for p in run.model.parameters()} == {META}
    assert mode.moved > 0 and mode.operations > 300
