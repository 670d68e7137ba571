"""The gallery of rules: each is read, printed, trained on and decided for small networks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import qll

PAGE = Path(__file__).parents[1] / "docs/gallery.md"
RULES = re.findall(r"^```qll\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
INPUTS = 4  # where a rule names none


def test_there_are_twenty() -> None:
    assert len(RULES) == 20


@pytest.mark.parametrize("number", range(1, len(RULES) + 1))
def test_rule(number: int) -> None:
    prop = qll.parse(RULES[number - 1])
    assert qll.parse(prop.show()).show() == prop.show()
    named = [d.names for d in prop.specification.names if d.kind == "inputs"]
    width = len(named[0]) if named else INPUTS
    outputs = prop.specification.outputs
    assert outputs is not None
    torch.manual_seed(number)
    model = nn.Sequential(nn.Linear(width, 6), nn.ReLU(), nn.Linear(6, outputs)).eval()
    x = torch.rand(3, width)
    labels = torch.arange(3) % outputs if prop.uses_labels else None
    for logic in ("qll:5", "dl2"):
        loss = qll.PropertyLoss(prop, logic=logic, attack="apgd:3,restarts=0", task="single-label")
        value = loss(model, x, labels if labels is not None else torch.zeros(3, dtype=torch.long))
        assert torch.isfinite(value)
    verdicts = qll.verify(prop, model, x, labels, timeout=10)
    assert all(str(v.status) in ("verified", "falsified") for v in verdicts), verdicts
