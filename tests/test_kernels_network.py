"""Network kernels against torch: outputs and input gradients of random layer stacks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("numba")

from qll.kernels.chain import ChainPlan
from qll.kernels.network import plan_network
from qll.kernels.patches import has_patches
from qll.kernels.plan import run_network
from qll.kernels.recognise import recognise
from qll.networks.models import Normalize, paper_mnist


def published() -> tuple[nn.Module, tuple[int, ...]]:
    return paper_mnist(), (1, 28, 28)


def deep() -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 12, (3, 2), stride=(2, 1), padding=(0, 1)),
        nn.ReLU(),
        nn.Conv2d(12, 5, 3, dilation=2, padding=2),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(5, 8, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(96, 7),
    ), (3, 9, 11)


def grouped() -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Sequential(
        Normalize([0.1, 0.2, 0.3, 0.4], [0.5, 1.0, 2.0, 0.25]),
        nn.Conv2d(4, 8, 3, groups=2, padding=1, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=8, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 24, 3, groups=4, stride=3),
        nn.ReLU(),
        nn.Conv2d(24, 6, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, 3),
    ), (4, 13, 13)


def dense() -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Sequential(
        nn.Linear(301, 33),
        nn.BatchNorm1d(33),
        nn.ReLU(),
        nn.Linear(33, 17),
        nn.Linear(17, 600),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(600, 2, bias=False),
    ), (301,)


def folded_to_image() -> tuple[nn.Module, tuple[int, ...]]:
    """Two convolutions without a ReLU between them that are cheaper as one dense map."""
    return nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1),
        nn.Conv2d(64, 3, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(3, 2, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2, 4),
    ), (1, 4, 4)


STACKS = [published, deep, grouped, dense, folded_to_image]


def randomised(module: nn.Module) -> nn.Module:
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(part.running_mean)
            nn.init.uniform_(part.running_var, 0.5, 2.0)
            nn.init.normal_(part.weight)
            nn.init.normal_(part.bias)
    return module.eval()


def assert_agrees(module: nn.Module, shape: tuple[int, ...], count: int) -> None:
    plan = plan_network(module, shape)
    assert isinstance(plan, ChainPlan)
    assert_plan_agrees(plan, module, shape, count)


def assert_plan_agrees(plan, module: nn.Module, shape: tuple[int, ...], count: int) -> None:
    points = torch.randn(count, *shape)
    exact = module.double()
    leaf = points.double().requires_grad_()
    outputs = exact(leaf)
    cotangent = torch.randn(count, plan.outputs)
    (gradient,) = torch.autograd.grad((outputs * cotangent.double()).sum(), leaf)
    module.float()
    got, got_gradient = run_network(plan, points.reshape(count, -1).numpy(), cotangent.numpy())
    for found, expected in ((got, outputs), (got_gradient, gradient)):
        wanted = expected.detach().reshape(count, -1).numpy()
        # A ReLU within float noise of its kink may open on one side only: none of these seeds has.
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("count", [1, 33])
def test_outputs_and_gradients_agree_with_float64(stack, count) -> None:
    torch.manual_seed(0)
    module, shape = stack()
    assert_agrees(randomised(module), shape, count)


@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "padding"),
    [
        (1, 3, 2, 1), (3, 3, 2, 1), (3, 5, 2, 2), (2, 4, 2, 1), (1, 3, 2, 0), (1, 2, 2, 0),
        (3, 4, 4, 0), (1, (3, 2), (1, 4), (1, 0)), (2, (7, 3), (2, 2), (3, 1)),
    ],
)  # fmt: skip
def test_first_convolutions_in_patches(channels, kernel, stride, padding) -> None:
    """A tap reaches the part of its patch that the output reads, at the border too."""
    torch.manual_seed(0)
    first = nn.Conv2d(channels, 5, kernel, stride=stride, padding=padding)
    module = nn.Sequential(first, nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
    module(torch.zeros(1, channels, 8, 12))
    assert has_patches(recognise(module, (channels, 8, 12))[0])
    assert_agrees(module, (channels, 8, 12), 3)


def test_refresh_reads_the_new_weights() -> None:
    torch.manual_seed(1)
    module, shape = published()
    plan = plan_network(module, shape)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    plan.refresh()
    assert_plan_agrees(plan, module, shape, 5)


def test_the_published_network_is_folded() -> None:
    module, shape = published()
    plan = plan_network(module, shape)
    # conv1 keeps its structure; conv2, flatten and fc1 are one map of 784 by 16.
    assert plan.multiplications == 196 * 4 * 9 + 784 * 16 + 16 * 10


def test_a_nan_stays_in_its_lane() -> None:
    torch.manual_seed(2)
    module, shape = published()
    plan = plan_network(module, shape)
    points = np.random.default_rng(0).random((7, 784), dtype=np.float32)
    clean, _ = run_network(plan, points)
    points[3, 400] = np.nan
    outputs, _ = run_network(plan, points)
    assert np.isnan(outputs[3]).all()
    keep = np.arange(7) != 3
    np.testing.assert_array_equal(outputs[keep], clean[keep])


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (
            nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), nn.Flatten()),
            "reflect",
        ),
        (nn.Sequential(nn.Flatten(), nn.Linear(784, 3).double()), "float64"),
        (nn.Sequential(nn.Flatten(), nn.Linear(783, 3)), "linear layer does not fit"),
        (nn.Sequential(nn.Flatten(), nn.Linear(784, 3), nn.ELU()), "ELU"),
        (nn.Conv2d(1, 2, 3), "output of shape"),
        (nn.LSTM(784, 3), "LSTM"),
    ],
)
def test_unknown_networks_are_left_to_autograd(module, why) -> None:
    assert why in str(plan_network(module, (1, 28, 28)))


def test_a_hooked_layer_is_left_to_autograd() -> None:
    layer = nn.Linear(4, 2)
    layer.register_forward_hook(lambda module, inputs, output: output * 2)
    assert "hook" in str(plan_network(nn.Sequential(layer), (4,)))
