"""The compiled attack against the autograd one, through the public attack."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import qll
from qll import kernels
from qll.attacks import attack
from qll.attacks.compiled import compile_search
from qll.attacks.problem import AttackBatch
from qll.errors import RunError
from qll.networks.models import create

# float32 sums in another order: values agree to this, relative to their size.
TOLERANCE = 2e-5


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    if not kernels.available():
        pytest.fail("numba is part of the development environment: pip install 'qll[fast]'")


CASES = [
    ("classification-robustness", "qll:5", "apgd:20,restarts=1"),
    ("classification-robustness", "stl:5", "apgd:20,restarts=1,as_published=true"),
    ("strong-classification-robustness", "product", "apgd:12,restarts=0"),
    ("clothing-footwear", "dl2", "pgd:15,restarts=2"),
    ("standard-robustness", "qll:2", "apgd:15,restarts=0"),
]


@pytest.mark.parametrize(("name", "logic", "search"), CASES)
def test_both_engines_find_the_same(name: str, logic: str, search: str) -> None:
    torch.manual_seed(0)
    net = create("paper-mnist")
    x, labels = torch.rand(40, 1, 28, 28), torch.arange(40) % 10
    prop = qll.load(name, epsilon=0.05)
    found = {
        engine: attack(search)(net, prop, x, labels, logic=logic, seed=11, engine=engine)
        for engine in ("autograd", "compiled")
    }
    ours, reference = found["compiled"], found["autograd"]
    close = (ours.losses - reference.losses).abs() <= TOLERANCE * (1 + reference.losses.abs())
    # A gradient entry of 0 up to rounding may step either way, and the paths part: rarely.
    assert close.float().mean() >= 0.95, (ours.losses - reference.losses).abs().max()
    assert ours.inside.all()
    torch.testing.assert_close(ours.losses.mean(), reference.losses.mean(), rtol=1e-3, atol=1e-3)


def test_multi_label_patterns_keep_their_place() -> None:
    prop = qll.parse(
        "forall x in ball(x0, 0.05): forall c in outputs: label(c) -o y[c] >= 0", outputs=6
    )
    net = create("paper-dice")
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.rand(12, 3, 28, 28)
        labels = (torch.rand(12, 6) > 0.5).long()
        ours, reference = (
            attack("apgd:6,restarts=0")(net, prop, x, labels, seed=seed, engine=engine)
            for engine in ("compiled", "autograd")
        )
        # A step either way where a gradient is 0 up to rounding is worth less than this.
        torch.testing.assert_close(ours.losses, reference.losses, rtol=2e-3, atol=2e-3)


def test_weights_are_read_anew_at_every_search() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    prop = qll.parse("forall x in ball(x0, 0.2): y[0] <= y[1]", outputs=2)
    x = torch.rand(64, 4)
    for _ in range(3):
        ours, reference = (
            attack("apgd:10")(net, prop, x, engine=engine) for engine in ("compiled", "autograd")
        )
        torch.testing.assert_close(ours.losses, reference.losses, rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            for weight in net.parameters():
                weight.add_(0.5 * torch.randn_like(weight))
    net[2] = nn.Linear(8, 2)  # another layer in the same network
    ours, reference = (
        attack("apgd:10")(net, prop, x, engine=engine) for engine in ("compiled", "autograd")
    )
    torch.testing.assert_close(ours.losses, reference.losses, rtol=1e-4, atol=1e-4)


def test_training_on_either_engine_ends_alike() -> None:
    from qll.training.config import resolve
    from qll.training.loop import train

    losses = {}
    for engine in ("compiled", "autograd"):
        options = {
            "logic": "qll:5", "epochs": 2, "steps": 5, "engine": engine,
            "data_options": {"count_train": 64, "count_test": 16},
        }  # fmt: skip
        run = train(resolve("not-both", "dice-rendered", options=options))
        losses[engine] = [row["property_loss"] for row in run.rows]
    assert losses["compiled"] == pytest.approx(losses["autograd"], rel=1e-3)


@pytest.mark.parametrize(
    ("why", "text", "layers"),
    [
        ("ELU", "forall x in ball(x0, 1): y[0] <= 0", [nn.ELU()]),
        ("speaks of inputs", "forall x in ball(x0, 1): y[0] <= x[0]", []),
        ("not a box", "forall x in box(0, 1) and x[0] <= x[1]: y[0] <= 0", []),
    ],
)
def test_what_the_kernels_do_not_take_autograd_does(
    why: str, text: str, layers: list[nn.Module]
) -> None:
    prop = qll.parse(text, outputs=1, inputs=(2,))
    net = nn.Sequential(nn.Linear(2, 4), *layers, nn.ReLU(), nn.Linear(4, 1))
    x = torch.full((3, 2), 0.5)
    with pytest.raises(RunError, match=why):
        attack("apgd:3").find(net, prop, x, engine="compiled")
    assert attack("apgd:3")(net, prop, x).inside.all()


def test_hooks_and_double_precision_go_to_autograd() -> None:
    prop = qll.parse("forall x in ball(x0, 1): y[0] <= 0", outputs=1)
    net = nn.Sequential(nn.Linear(2, 1))
    handle = net[0].register_forward_hook(lambda module, inputs, output: output + 1)
    x = torch.rand(3, 2)

    def reason(x: torch.Tensor) -> object:
        region = qll.Region.of(prop, x)
        return compile_search(
            AttackBatch(net, prop, qll.QLL(5), region, None, None, seed=0, engine="auto")
        )

    assert "hook" in str(reason(x))
    handle.remove()
    assert callable(reason(x)) and "float64" in str(reason(x.double()))


def test_resumed_equals_uninterrupted_with_the_kernels(tmp_path: Path) -> None:
    from qll.training.config import resolve
    from qll.training.loop import train
    from qll.training.progress import Silent
    from qll.training.run import RunFolder

    class Stop(Silent):
        def epoch(self, row: object) -> None:
            raise KeyboardInterrupt

    options = {
        "logic": "stl:5", "epochs": 3, "steps": 4, "batch_size": 40, "engine": "compiled",
        "data_options": {"count_train": 100, "count_test": 16},
    }  # fmt: skip
    config = resolve("exactly-one", "dice-rendered", options=options)
    train(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "parts", reporter=Stop())
    assert len(RunFolder(tmp_path / "parts").rows()) == 1
    train(config, tmp_path / "parts", resume=True)
    for name in ("checkpoints/epoch-000003.safetensors", "model.onnx", "evaluation.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()
