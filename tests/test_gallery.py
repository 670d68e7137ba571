"""The gallery of rules: each is read, printed, trained on and decided for small networks."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import qll

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/gallery.md"


def _script() -> ModuleType:
    """What made the pictures and the networks knows at which points a rule is asked."""
    spec = importlib.util.spec_from_file_location("gallery", ROOT / "bench/gallery_figures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GALLERY = _script()
RULES = GALLERY.rules()


def test_there_are_twenty() -> None:
    assert len(RULES) == 20
    page = PAGE.read_text(encoding="utf-8")
    for number in range(1, 21):
        picture = f"figures/gallery/{number:02}.png"
        assert f"({picture})" in page and (PAGE.parent / picture).is_file()


@pytest.mark.parametrize("number", range(1, len(RULES) + 1))
def test_the_network_beside_it_obeys(number: int) -> None:
    prop = qll.parse(RULES[number - 1])
    network = ROOT / GALLERY.NETWORKS / f"{number:02}.onnx"
    assert GALLERY.proved(prop, network, number) == GALLERY.regions(prop)


@pytest.mark.parametrize("number", range(1, len(RULES) + 1))
def test_rule(number: int) -> None:
    prop = qll.parse(RULES[number - 1])
    assert qll.parse(prop.show()).show() == prop.show()
    width = GALLERY.width_of(prop)
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
