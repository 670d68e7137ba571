"""What a notebook shows: LaTeX of a rule, a verdict with its witness, a run with its curves."""

from __future__ import annotations

import base64
import io
import sys
from types import ModuleType, SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import nn

import qll
from qll.notebook import curves, png, points


def test_a_rule_is_latex() -> None:
    shown = qll.load("not-both")._repr_latex_()
    assert shown.startswith("$$\\begin{aligned}") and shown.endswith("\\end{aligned}$$")


def test_a_picture_is_read_back() -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for shape in ((1, 5, 7), (3, 5, 7), (5, 7)):
        image = rng.integers(0, 256, shape)
        data = base64.b64decode(png(image / 255).partition(",")[2])
        found = np.asarray(Image.open(io.BytesIO(data)))
        expected = np.moveaxis(image, 0, -1).squeeze() if image.ndim == 3 else image
        assert (found == expected).all()


def test_a_verdict_shows_its_witness_and_what_it_rests_on() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        model[2].bias.fill_(5.0)
        model[2].weight.zero_()
    rule = "forall x in ball(x0, 0.1): y[0] <= {}"
    x = torch.tensor([[0.5, 0.5]])
    (broken,) = qll.verify(qll.parse(rule.format(4), outputs=1), model, x)
    (holds,) = qll.verify(qll.parse(rule.format(6), outputs=1), model, x)
    assert "falsified" in broken._repr_html_() and "witness" in broken._repr_html_()
    assert "verified" in holds._repr_html_() and "witness" not in holds._repr_html_()
    for verdict in (broken, holds):
        ElementTree.fromstring(verdict._repr_html_())  # noqa: S314 - our own


def test_inputs_are_pictures_or_numbers() -> None:
    assert points(np.zeros((1, 28, 28))).startswith("<img")
    assert points(np.array([0.25, 1e-9])) == "0.25, 1e-09"
    assert "(50 numbers)" in points(np.zeros(50))


def test_curves_leave_out_what_is_not_there() -> None:
    rows = [{"pacc": 0.5, "property_loss": None}, {"pacc": 0.75, "property_loss": float("nan")}]
    text = curves(rows, {"pacc": "red", "property_loss": "blue"})
    drawn = ElementTree.fromstring(text)  # noqa: S314 - our own
    assert len(drawn.findall("polyline")) == 1
    assert "0.5 to 0.75" in "".join(drawn.itertext())


def test_a_run_shows_its_figures() -> None:
    options = {"count_train": 8, "count_test": 4}
    run = qll.train("not-both", "dice-rendered", logic="baseline", epochs=1, data_options=options)
    shown = run._repr_html_()
    assert "not-both on dice-rendered" in shown and "PAcc" in shown and "<polyline" in shown


class _Shell:
    """What IPython is to us: a shell with a kernel, HTML, and a display that can be updated."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        top, inner = ModuleType("IPython"), ModuleType("IPython.display")
        top.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
        inner.HTML = str  # type: ignore[attr-defined]
        inner.display = lambda *_, **__: SimpleNamespace(update=self.shown.append)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", top)
        monkeypatch.setitem(sys.modules, "IPython.display", inner)


def test_long_calls_show_how_far_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook a bar that is gone at the end; in a program nothing."""
    shell = _Shell()
    model = nn.Sequential(nn.Linear(2, 2)).eval()
    rule = qll.parse("forall x in ball(x0, 0.1): y[0] <= 100")
    qll.verify(rule, model, torch.zeros(3, 2))
    assert shell.shown == []
    shell.install(monkeypatch)
    qll.verify(rule, model, torch.zeros(3, 2))
    assert any("3 of 3 regions decided" in text for text in shell.shown)
    assert shell.shown[-1] == ""
    shell.shown.clear()
    options = {"count_train": 8, "count_test": 4}
    qll.train("not-both", "dice-rendered", logic="baseline", epochs=1, data_options=options)
    assert any("epoch 1 of 1" in text and "<progress" in text for text in shell.shown)
    assert shell.shown[-1] == ""
