"""The folded forward pass of a training step against the module itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

pytest.importorskip("numba")

from qll.kernels.forward import FoldedForward, fold_forward, training_forward
from qll.networks.models import paper_dice, paper_mnist, wide


def deep() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, stride=2),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(12 * 9, 20),
        nn.ReLU(),
        nn.Linear(20, 6),
    )


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(588, 9), nn.ReLU(), nn.Linear(9, 6))


CASES = [
    (paper_mnist, (1, 28, 28)),
    (paper_dice, (3, 28, 28)),
    (wide, (1, 28, 28)),
    (deep, (3, 14, 14)),
    (dense, (3, 14, 14)),
]


@pytest.mark.parametrize(("make", "shape"), CASES)
@pytest.mark.parametrize("count", [1, 33, 150])
def test_outputs_and_gradients_agree(make, shape, count) -> None:
    torch.manual_seed(0)
    module = make()
    folded = fold_forward(module, shape)
    x = torch.randn(count, *shape)
    labels = torch.randint(0, 6, (count,))
    found = []
    for forward in (module, folded):
        module.zero_grad()
        y = forward(x)
        functional.cross_entropy(y, labels).backward()
        found.append((y.detach(), [p.grad.clone() for p in module.parameters()]))
    (y, grads), (folded_y, folded_grads) = found
    torch.testing.assert_close(folded_y, y, rtol=0, atol=2e-6 * float(y.abs().max() + 1))
    for expected, got in zip(grads, folded_grads, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=2e-5 * float(expected.abs().max()))


def test_the_same_bits_every_time_and_two_graphs_at_once() -> None:
    torch.manual_seed(0)
    module = paper_mnist()
    folded = fold_forward(module, (1, 28, 28))
    x = torch.rand(200, 1, 28, 28)
    runs = []
    for _ in range(3):
        module.zero_grad()
        first, second = folded(x).sum(), folded(1 - x).pow(2).sum()  # both graphs are alive
        (first + second).backward()
        runs.append([p.grad.clone() for p in module.parameters()])
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))
    module.zero_grad()
    (module(x).sum() + module(1 - x).pow(2).sum()).backward()
    for got, parameter in zip(runs[0], module.parameters(), strict=True):
        wanted = parameter.grad
        torch.testing.assert_close(got, wanted, rtol=0, atol=5e-5 * float(wanted.abs().max()))


def test_new_weights_are_seen() -> None:
    torch.manual_seed(0)
    module, x = paper_mnist(), torch.rand(40, 1, 28, 28)
    forward = training_forward(module, x)
    assert isinstance(forward, FoldedForward)
    forward(x)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    torch.testing.assert_close(forward(x), module(x), rtol=0, atol=1e-5)
    assert training_forward(module, x) is forward


def test_an_input_that_wants_a_gradient_goes_through_the_module() -> None:
    torch.manual_seed(0)
    module, x = paper_mnist(), torch.rand(4, 1, 28, 28, requires_grad=True)
    (gradient,) = torch.autograd.grad(training_forward(module, x)(x).sum(), x)
    (wanted,) = torch.autograd.grad(module(x).sum(), x)
    assert torch.equal(gradient, wanted)


def test_modules_with_a_mode_or_a_hook_run_themselves() -> None:
    x = torch.rand(4, 3)
    dropping = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2))
    assert training_forward(dropping, x) is dropping
    hooked = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    assert training_forward(hooked, x) is not hooked
    hooked[1].register_forward_hook(lambda module, inputs, output: output * 2)
    assert training_forward(hooked, x) is hooked


@pytest.mark.parametrize(("make", "shape"), CASES)
def test_a_step_that_folds_once_has_the_same_gradients(make, shape) -> None:
    """Several passes, one of them on bounds and one while the weights are held still."""
    from contextlib import nullcontext

    from qll.attacks.problem import held_still
    from qll.kernels.intervals import folded_intervals
    from qll.kernels.spans import folded_once

    torch.manual_seed(0)
    module = make()
    x, other = torch.rand(40, *shape), torch.rand(40, *shape)
    found = []
    for scope in (nullcontext, folded_once):
        module.zero_grad()
        with scope():
            with held_still(module):
                assert not training_forward(module, x)(x).requires_grad
            first = training_forward(module, x)(x)
            second = training_forward(module, x)(other)
            ends = folded_intervals(module, x - 0.1, x + 0.1)
            loss = first.square().mean() + second.abs().mean() + sum(e.mean() for e in ends)
            with torch.no_grad():
                assert not training_forward(module, x)(x).requires_grad
        loss.backward()
        found.append([p.grad.clone() for p in module.parameters()])
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=2e-5 * float(expected.abs().max()))


def test_weights_that_change_are_folded_anew() -> None:
    from qll.kernels.spans import folded_once

    module, x = paper_mnist(), torch.rand(3, 1, 28, 28)
    with folded_once():
        before = training_forward(module, x)(x).detach()
        with torch.no_grad():
            module[-3].weight.mul_(2.0)
        torch.testing.assert_close(training_forward(module, x)(x), module(x))
        assert not torch.allclose(before, module(x))
