"""Formula kernels of every logic against torch autograd, on random formulas."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from qll.formula.ground import Atom
from qll.formula.hard import affine
from qll.formula.nodes import Connective, Constant, Formula, Implies
from qll.kernels.formula import compile_formulas, run_formulas
from qll.logics import LOGICS, logic

OUTPUTS = 6
LOGIC_TEXTS = [
    "qll:5", "qll:1", "qll:inf", "qll:5,comparison=relu", "qll:3,comparison=softplus", "dl2",
    "stl:5", "stl:1", "stl:inf", "goedel", "lukasiewicz", "product", "yager:2", "yager:3.5",
    "yager:1", "yager:inf",
]  # fmt: skip


def random_side(draw: random.Random, centre: bool):
    sources = ["y", "y0"] if centre else ["y"]
    terms = [
        ((draw.choice(sources), draw.randrange(OUTPUTS)), draw.choice([-1.0, 1.0, 0.5, 2.0]))
        for _ in range(draw.choice([0, 1, 1, 1, 2]))
    ]
    return affine(terms, draw.choice([0.0, 0.0, 0.75, -1.5]))


def random_formula(draw: random.Random, depth: int, centre: bool = False) -> Formula:
    if depth == 0 or draw.random() < 0.25:
        return Atom(random_side(draw, centre), random_side(draw, centre))
    if draw.random() < 0.2:
        parts = [random_formula(draw, depth - 1, centre) for _ in range(2)]
        return Implies("linear", *parts)
    kind = draw.choice(["and", "or", "and", "or", "tensor", "par"])
    hardness = draw.choice([None, None, 2.0, math.inf]) if kind in ("and", "or") else None
    count = draw.choice([2, 2, 3, 5, 9])
    parts = tuple(random_formula(draw, depth - 1, centre) for _ in range(count))
    return Connective(kind, parts, hardness)


def torch_value(root: Formula, record, slots) -> torch.Tensor:
    match root:
        case Atom(left, right):
            sides = [
                sum((c * slots[s] for s, c in side.floats[0]), torch.zeros_like(slots["y", 0]))
                + side.floats[1]
                for side in (left, right)
            ]
            return record.leq(*sides)
        case Connective(kind, parts, hardness):
            values = torch.stack([torch_value(part, record, slots) for part in parts])
            if kind == "and":
                return record.conj(values, hardness=hardness)
            if kind == "or":
                return record.disj(values, hardness=hardness)
            return record.tensor(values) if kind == "tensor" else record.par(values)
        case Implies(_, left, right):
            return record.implies(
                torch_value(left, record, slots), torch_value(right, record, slots)
            )
    raise TypeError(root)


def reference(root: Formula, record, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = y.double().requires_grad_()
    slots = {("y", i): leaf[:, i] for i in range(OUTPUTS)}
    if y.shape[1] > OUTPUTS:
        slots |= {("y0", i): leaf[:, OUTPUTS + i].detach() for i in range(OUTPUTS)}
    losses = record.loss(torch_value(record.prepare(root), record, slots))
    if not losses.requires_grad:
        return losses, torch.zeros(len(y), OUTPUTS, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(losses.sum(), leaf)
    return losses.detach(), gradient[:, :OUTPUTS]


def assert_agree(tape, roots, record, y: torch.Tensor, patterns: np.ndarray) -> None:
    losses, gradients = run_formulas(tape, patterns, y.numpy())
    for k, root in enumerate(roots):
        shown = repr(root)
        chosen = patterns == k
        wanted, slope = reference(root, record, y[chosen])
        np.testing.assert_allclose(losses[chosen], wanted, rtol=1e-9, atol=1e-11, err_msg=shown)
        scale = slope.abs().amax(1, keepdim=True)
        scaled = torch.where(scale > 0, slope / scale, slope)
        np.testing.assert_allclose(gradients[chosen], scaled, rtol=1e-5, atol=2e-6, err_msg=shown)


@pytest.mark.parametrize("text", LOGIC_TEXTS)
def test_values_and_gradients_agree_with_autograd(text) -> None:
    record = logic(text)
    draw = random.Random(text)
    generator = torch.Generator().manual_seed(len(text))
    for depth in (0, 1, 1, 2, 2, 3):
        roots = [random_formula(draw, depth) for _ in range(3)]
        tape = compile_formulas(roots, record, OUTPUTS)
        assert tape is not None
        y = torch.randn(37, OUTPUTS, generator=generator)
        assert_agree(tape, roots, record, y, np.arange(37) % 3)


@pytest.mark.parametrize("text", ["qll:5", "stl:5", "product"])
def test_formulas_over_the_centre(text) -> None:
    record, draw = logic(text), random.Random(7)
    roots = [random_formula(draw, 1, centre=True) for _ in range(4)]
    tape = compile_formulas(roots, record, OUTPUTS)
    assert tape.uses_centre
    y = torch.randn(20, 2 * OUTPUTS, generator=torch.Generator().manual_seed(0))
    assert_agree(tape, roots, record, y, np.arange(20) % 4)


def test_every_logic_with_a_kernel_is_tested() -> None:
    compiled = {name for name in LOGICS if LOGICS[name].from_text("").kernel() is not None}
    assert compiled == {text.partition(":")[0] for text in LOGIC_TEXTS}


def robustness(c: int) -> Formula:
    """All conjuncts, ``i = c`` included: the published loss."""
    own = affine([(("y", c), 1.0)])
    return Connective("and", tuple(Atom(affine([(("y", i), 1.0)]), own) for i in range(OUTPUTS)))


def test_classes_share_one_pass() -> None:
    tape = compile_formulas([robustness(c) for c in range(OUTPUTS)], logic("qll:5"), OUTPUTS)
    assert set(tape.patterns[:, 4].tolist()) == {0}


def test_the_gradient_survives_a_wide_margin() -> None:
    """In float32 autograd, the part of the true class cancels: 1 - 1 instead of a sum of tails."""
    y = torch.zeros(1, OUTPUTS)
    y[0, 2] = 30.0
    tape = compile_formulas([robustness(2)], logic("qll:5"), OUTPUTS)
    _, gradient = run_formulas(tape, np.zeros(1, dtype=np.int64), y.numpy())
    np.testing.assert_allclose(gradient[0, 2], -1.0, rtol=1e-6)
    np.testing.assert_allclose(np.delete(gradient[0], 2), 0.2, rtol=1e-6)


def test_constants_have_no_gradient() -> None:
    tape = compile_formulas([Constant("top"), Constant("bottom")], logic("dl2"), OUTPUTS)
    losses, gradient = run_formulas(tape, np.array([0, 1]), np.ones((2, OUTPUTS), dtype=np.float32))
    assert losses.tolist() == [0.0, math.inf]
    assert not gradient.any()


def test_a_nan_output_gives_a_nan_loss_in_its_own_lane() -> None:
    tape = compile_formulas([robustness(0)], logic("qll:5"), OUTPUTS)
    y = np.random.default_rng(0).normal(size=(9, OUTPUTS)).astype(np.float32)
    y[4, 3] = np.nan
    losses, _ = run_formulas(tape, np.zeros(9, dtype=np.int64), y)
    assert np.isnan(losses[4])
    assert np.isfinite(np.delete(losses, 4)).all()


def test_formulas_over_inputs_are_left_to_autograd() -> None:
    atom = Atom(affine([(("x", 0), 1.0)]), affine([(("y", 0), 1.0)]))
    assert compile_formulas([atom], logic("qll:5"), OUTPUTS) is None


def test_exp_and_log_agree_with_numpy() -> None:
    import ctypes

    from numba import cfunc, types

    from qll.kernels.lanes import WIDTH, rows

    def both(v, n, out):
        for i in range(n):
            out[2 * i] = np.exp(v[i])
            out[2 * i + 1] = np.log(v[i])

    compiled = cfunc(types.void(rows, types.int64, rows))(both)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(
        compiled.address
    )
    draw = np.random.default_rng(0)
    special = [np.inf, -np.inf, np.nan, 0.0, -1.0, 1e308, 1e-300, 1.0]
    x = np.concatenate([draw.normal(size=400) * 100, draw.random(400), special])
    out = np.zeros(2 * len(x))
    call(x.ctypes.data, len(x) // WIDTH, out.ctypes.data)
    got = out.reshape(-1, 2, WIDTH)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got[:, 0].reshape(-1), np.exp(x), rtol=1e-15, atol=1e-307)
        np.testing.assert_allclose(got[:, 1].reshape(-1), np.log(x), rtol=1e-15)
