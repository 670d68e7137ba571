"""Ties, which bounds in floats cannot tell from violations, are decided in rational arithmetic."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from exchange_cases import BOX1, HEAD1, layered

from qll.exchange.document import All, Atom, Some
from qll.exchange.files import parse
from qll.exchange.models import attach
from qll.networks import load
from qll.verify.documents import Answer, Decision, decide
from qll.verify.ties import Refuter

F = Fraction
HEAD = HEAD1 + "(declare-const Y_1 Real)\n"
ABSOLUTE = (
    ([[1, 0], [0, 1], [-1, 0], [0, -1]], [0] * 4),
    ([[1, 0, 1, 0], [0, 1, 0, 1]], [0, 0]),
)  # y = |x0|, |x1|


def answer(assertions: str, path: Path, box: str = BOX1) -> Decision:
    attached = attach(parse(f"{HEAD}{box}(assert (and {assertions}))"), {"": path})
    return decide(attached.document, attached.network, seconds=30)


@pytest.mark.parametrize(
    ("assertions", "expected"),
    [
        ("(> Y_0 1)", "unsat"),
        ("(>= Y_0 1)", "sat"),
        ("(< Y_0 0)", "unsat"),
        ("(<= Y_0 0)", "sat"),
        ("(< Y_0 X_0)", "unsat"),
        ("(> (+ Y_0 Y_1) 2)", "unsat"),
        ("(<= X_0 0.1) (>= X_0 0) (> Y_0 0.1)", "unsat"),  # at a decimal that no float has
        ("(== X_0 0.1) (!= Y_0 0.1)", "unsat"),
        ("(>= X_0 0) (!= Y_0 X_0)", "unsat"),
        ("(== X_1 (* 2 X_0)) (> Y_1 (* 2 Y_0))", "unsat"),  # behind an equation
        ("(> Y_0 1) (>= Y_1 0.5)", "unsat"),  # with a comparison that is not strict
        ("(or (> Y_0 1) (< Y_1 0))", "unsat"),
        ("(< X_0 1) (>= X_0 0) (>= Y_0 1)", "unsat"),  # by two of them together
        ("(<= X_0 X_1) (>= X_0 0) (> Y_0 Y_1)", "unsat"),
        ("(or (> Y_0 1) (< Y_1 0.5))", "sat"),
    ],
)
def test_ties_are_decided(assertions: str, expected: str, tmp_path: Path) -> None:
    path = layered(tmp_path / "absolute.onnx", *ABSOLUTE)
    assert answer(assertions, path).answer == expected


def test_a_tie_that_nothing_decides_ends_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a reason, and long before the time is over."""
    monkeypatch.setattr("qll.verify.ties.MOST_PRODUCTS", 10**9)
    monkeypatch.setattr(Refuter, "refutes", lambda *_: False)
    for name, value in (("TIE_SECONDS", 0.2), ("TIE_SHARE", 0.01)):
        monkeypatch.setattr(f"qll.verify.documents.{name}", value)
    found = answer("(> Y_0 1)", layered(tmp_path / "absolute.onnx", *ABSOLUTE))
    assert found.answer is Answer.UNKNOWN
    assert any("tie" in note or "rounding" in note for note in found.notes)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_refuted_has_no_point(seed: int, tmp_path: Path) -> None:
    """Random networks, thresholds at values that the network has: exactly at the greatest of them
    on a grid, and a little beside it."""
    rng = np.random.default_rng(seed)
    shapes = [(5, 2), (4, 5), (2, 4)]
    layers = [(rng.integers(-8, 9, s) / 8, rng.integers(-8, 9, s[0]) / 8) for s in shapes]
    network = load(layered(tmp_path / "net.onnx", *layers))
    assert Refuter.fits(network.program)
    refuter = Refuter(network.program)
    axis = [F(k, 4) for k in range(-4, 5)]
    points = list(product(axis, repeat=2))
    outputs = [network.evaluate_exact.at(point) for point in points]
    box = ((F(-1), F(1)), (F(-1), F(1)))
    for c in ((1, 0, 0), (0, -1, 0), (1, -1, 0), (1, 1, -2)):
        values = [c[0] * y[0] + c[1] * y[1] + c[2] * x[0] for x, y in zip(points, outputs)]
        terms = tuple((slot, F(v)) for slot, v in zip((("y", 0), ("y", 1), ("x", 0)), c) if v)
        for beside in (F(-1, 64), F(0), F(1, 64), F(4)):
            threshold = max(values) + beside
            for strict in (False, True):
                atom = Atom(terms, -threshold, strict)
                reached = beside < 0 or (beside == 0 and not strict)
                held = Atom(((("x", 0), F(1)), (("x", 1), F(-2))), F(3))  # everywhere
                node = Some((atom, Atom((), F(-1)))) if strict else All((atom, held))
                assert not (refuter.refutes(box, node, 0.03) and reached)
    assert refuter.refutes(box, Atom(((("y", 0), F(1)),), F(-1000)), 1.0)
