"""Rules that only compare outputs are decided before a last layer that keeps their order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import qll
from qll.audit import audit
from qll.audit.network import read_network
from qll.formula.hard import Max, Min, affine, compares_outputs
from qll.networks import load
from qll.verify.order import seen_through
from qll.verify.verdict import Status

LESS = affine([(("y", 0), 2.0), (("y", 3), -2.0)])
LAST = {"softmax": nn.Softmax(1), "sigmoid": nn.Sigmoid(), "tanh": nn.Tanh()}


def network(last: nn.Module, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    inner = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))
    with torch.no_grad():
        for parameter in inner.parameters():
            parameter.mul_(2.0)
    return nn.Sequential(*inner, last).eval()


def test_what_compares_outputs() -> None:
    assert compares_outputs(LESS)
    assert compares_outputs(Max((LESS, Min((LESS, affine([(("x", 0), 1.0)], -3.0))))))
    for other in (
        affine([(("y", 0), 1.0), (("y", 3), -1.0)], 0.1),
        affine([(("y", 0), 1.0), (("y", 3), -2.0)]),
        affine([(("y", 0), 1.0), (("y", 3), 1.0)]),
        affine([(("y", 0), 1.0), (("x", 3), -1.0)]),
        affine([(("y", 0), 1.0), (("y2", 0), -1.0)]),
        affine([(("y", 0), 1.0), (("y", 1), -1.0), (("y", 2), 0.5)]),
        affine([(("y", 0), 1.0)]),
    ):
        assert not compares_outputs(other)
        assert not compares_outputs(Max((LESS, other)))


@pytest.mark.parametrize("name", LAST)
def test_logits_are_those_of_the_file(name: str) -> None:
    module = network(LAST[name])
    whole = load(module, input_shape=(3,))
    logits = seen_through(whole, LESS, None)
    assert logits is not whole and logits.whole is whole and logits.source == whole.source
    assert seen_through(whole, LESS, "float32") is whole
    assert seen_through(whole, affine([(("y", 0), 1.0)]), None) is whole
    x = np.random.default_rng(0).normal(size=(9, 3))
    with torch.no_grad():
        expected = module[:-1](torch.from_numpy(x).float()).numpy()
    np.testing.assert_allclose(logits.relu_form.forward(x), expected, atol=1e-5)
    checked = read_network(whole.source, None, None).logits
    assert checked is not None and tuple(checked.widths) == logits.relu_form.widths


def test_a_softmax_of_several_sums_is_not_seen_through() -> None:
    """Shares of different sums say nothing of their logits."""
    module = nn.Sequential(nn.Linear(3, 4), nn.Unflatten(1, (2, 2)), nn.Softmax(2))
    whole = load(module, input_shape=(3,))
    assert whole.logits is None
    assert read_network(whole.source, None, None).logits is None


@pytest.mark.parametrize("name", LAST)
def test_verdicts_are_those_of_the_logits_and_certified(name: str, tmp_path: Path) -> None:
    module, x = network(LAST[name]), torch.rand(8, 3)
    rule = qll.parse("outputs 4\nforall x in ball(x0, 0.15): y[0] <= y[1] or y[2] <= y[3]")
    found = qll.verify(rule, module, x, timeout=20, certificates=tmp_path)
    plain = qll.verify(rule, module[:-1], x, timeout=20, certified=True)
    assert [v.status for v in found] == [v.status for v in plain]
    assert {v.status for v in found} == {Status.VERIFIED, Status.FALSIFIED}
    (stored,) = tmp_path.glob("*.onnx")
    for verdict in found:
        data = (tmp_path / verdict.certificate).read_bytes()
        assert audit(data, stored.read_bytes()).confirmed
        if verdict.witness is not None:
            point = torch.as_tensor(verdict.witness)[None].float()
            y = module(point)[0]
            assert y[0] > y[1] and y[2] > y[3]
