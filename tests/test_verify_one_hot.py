"""One-hot groups: verdicts against enumeration, their certificates against the checker."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import qll
from qll.networks import load as load_network
from qll.networks.onnx_writer import onnx_bytes
from qll.regions import Region

# Two groups of three and two, one whole number and nothing else: 3 * 2 * 4 points.
TEXT = """
forall x in box([0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 3]) and integer(x[5])
    and one_hot(x[0], x[1], x[2]) and one_hot(x[3], x[4]):
  y[0] <= {}
"""


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1)).eval()


def points() -> torch.Tensor:
    rows = [
        [*np.eye(3)[i], *np.eye(2)[j], float(k)]
        for i in range(3)
        for j in range(2)
        for k in range(4)
    ]
    return torch.tensor(np.array(rows), dtype=torch.float32)


@pytest.mark.parametrize("seed", range(12))
def test_verdicts_are_those_of_enumeration(seed: int, tmp_path: Path) -> None:
    model = network(seed)
    most = float(model(points()).max())
    for gap, status in ((0.01, "verified"), (-0.01, "falsified")):
        rule = qll.parse(TEXT.format(most + gap), outputs=1)
        source = onnx_bytes(model, input_shape=(6,))
        folder = tmp_path / status
        (found,) = qll.verify(rule, load_network(source), certificates=folder, timeout=20)
        assert found.status.value == status, (gap, found)
        if found.witness is not None:
            assert found.witness.reshape(-1).tolist() in points().tolist()
        for path in folder.glob("*.qllcert"):
            assert qll.audit(path.read_bytes(), source).confirmed


def test_too_many_choices_are_constraints() -> None:
    """Beyond what is gone through one by one, the sums remain: sound, if less often decided."""
    groups = [f"one_hot({', '.join(f'x[{4 * g + k}]' for k in range(4))})" for g in range(4)]
    text = f"forall x in box(0, 1) and {' and '.join(groups)}: y[0] <= {{}}"
    model = nn.Linear(16, 1)
    with torch.no_grad():
        model.weight.copy_(torch.arange(16.0)[None])
        model.bias.fill_(0.0)
    # At most one entry of each group counts: 3 + 7 + 11 + 15; all of the box would be 120.
    (found,) = qll.verify(
        qll.parse(text.format(36.5), outputs=1), model, torch.zeros(1, 16), timeout=20
    )
    assert found.status.value == "verified"
    (open_one,) = qll.verify(
        qll.parse(text.format(35.5), outputs=1), model, torch.zeros(1, 16), timeout=5
    )
    assert open_one.status.value != "verified"


def test_samples_and_projections_are_one_hot() -> None:
    rule = qll.parse(TEXT.format(0), outputs=1)
    region = Region.of(rule, torch.zeros(64, 6))
    sampled = region.sample(torch.Generator().manual_seed(0))
    assert bool(region.contains(sampled).all())
    assert {tuple(row) for row in sampled["x"].tolist()} <= {tuple(r) for r in points().tolist()}
    aimed = region.project({"x": torch.tensor([[0.2, 0.9, 0.3, 0.0, 0.1, 1.6]]).expand(64, 6)})
    assert aimed["x"][0].tolist() == [0.0, 1.0, 0.0, 0.0, 1.0, 2.0]
    assert not bool(region.contains({"x": torch.zeros(64, 6)}).any())
