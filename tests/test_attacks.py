"""The attacks: against a grid, a second implementation, and a dishonest searcher."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import qll
from qll.attacks import ATTACKS, Attack, attack
from qll.attacks.problem import AttackBatch, Points, search_box
from qll.errors import InputError, RunError
from qll.kernels.schedule import checkpoints
from qll.kernels.starts import run_keys, uniform_numbers

TWO_PIXELS = "forall x in ball(x0, 0.3) and range(0, 1): (y[0] <= 0 or y[1] <= 0) and y[2] <= 1"


def small_network(seed: int, inputs: int = 2, outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(inputs, 12), nn.ReLU(), nn.Linear(12, outputs))
    for layer in (net[0], net[2]):
        nn.init.normal_(layer.weight, std=1.2)
        nn.init.normal_(layer.bias, std=0.5)
    return net


def grid_maximum(net: nn.Module, prop: qll.Property, x0: Tensor, logic: str) -> float:
    region = qll.Region.of(prop, x0)
    (low, high) = region.lower[0], region.upper[0]
    axes = [torch.linspace(float(low[k]), float(high[k]), 151) for k in range(2)]
    points = torch.cartesian_prod(*axes)
    with torch.no_grad():
        return float(prop.loss(net(points), logic=logic).max())


@pytest.mark.parametrize("logic", ["qll:5", "dl2", "stl:5", "product"])
def test_autopgd_reaches_the_grid_maximum_on_two_pixels(logic: str) -> None:
    """Sign steps can stop on a slanted ridge, and DL2 has plateaus: 2 of 24 may stay below."""
    prop = qll.parse(TWO_PIXELS, outputs=3)
    search = attack("apgd:100,restarts=19")
    missed = []
    for seed in range(24):
        net, x0 = small_network(seed), torch.rand(1, 2, generator=torch.manual_seed(seed))
        best = grid_maximum(net, prop, x0, logic)
        found = search(net, prop, x0, logic=logic, engine="autograd")
        if float(found.losses[0]) < best - 2e-3:
            missed.append((seed, best, float(found.losses[0])))
    assert len(missed) <= 2, missed


def test_what_a_grid_falsifies_the_attack_falsifies() -> None:
    prop = qll.parse(TWO_PIXELS, outputs=3)
    violated = 0
    for seed in range(20):
        net, x0 = small_network(seed), torch.rand(1, 2, generator=torch.manual_seed(seed))
        if grid_maximum(net, prop, x0, "qll:inf") > 0.02:
            violated += 1
            assert attack("apgd:60,restarts=11")(
                net, prop, x0, engine="autograd"
            ).falsified.all(), seed
    assert violated > 5


def test_autopgd_needs_its_step_control() -> None:
    """The halving matters: without a check the same number of steps ends lower on average."""
    prop = qll.parse("forall x in ball(x0, 0.5): y[0] <= 0", outputs=1)
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    for layer in (net[0], net[2]):
        nn.init.normal_(layer.weight, std=2.0)
    x0 = torch.zeros(64, 8)
    controlled = attack("apgd:40,restarts=0")(net, prop, x0, engine="autograd")
    fixed = attack("pgd:40,restarts=0,step=1.0")(net, prop, x0, engine="autograd")
    assert float(controlled.losses.mean()) > float(fixed.losses.mean()) + 0.5


def test_a_planted_violation_in_a_disjunction_is_found() -> None:
    """Violated only where two opposite corners of eight inputs meet: one part in ten thousand."""
    prop = qll.parse("forall x in box(0, 1): y[0] <= 0 or y[1] <= 0", outputs=2)
    net = nn.Linear(8, 2)
    with torch.no_grad():
        net.weight.zero_()
        net.weight[0, :4] = 1.0
        net.weight[1, 2:6] = 1.0
        net.bias.fill_(-3.4)
    x0 = torch.full((16, 8), 0.5)
    sampled = qll.Region.of(prop, torch.full((512, 8), 0.5)).sample(torch.manual_seed(0))["x"]
    with torch.no_grad():
        assert prop.holds(net(sampled)).float().mean() > 0.99
    for logic in ("qll:5", "stl:5", "qll:1"):
        found = attack("apgd:30")(net, prop, x0, logic=logic)
        assert found.falsified.all(), logic
        assert (found.margins < 0).all()


@pytest.mark.parametrize("as_published", [False, True])
def test_autopgd_is_the_algorithm_as_written_down_a_second_time(as_published: bool) -> None:
    """Croce and Hein's Algorithm 1, sample by sample in plain Python, and the published variant."""
    prop = qll.parse(TWO_PIXELS, outputs=3)
    net = small_network(5)
    x0 = torch.rand(6, 2, generator=torch.manual_seed(1))
    steps, runs = 25, 3
    search = ATTACKS["apgd"](steps=steps, restarts=runs - 1, as_published=as_published)
    found = search(net, prop, x0, seed=7, engine="autograd")
    numbers = torch.from_numpy(uniform_numbers(run_keys(7, runs * 6), 2)).reshape(runs, 6, 2)
    for sample in range(6):
        best = max(
            (
                written_down(net, prop, x0[sample], numbers[run, sample], steps, as_published)
                for run in range(runs)
            ),
            key=lambda pair: pair[0],
        )
        assert float(found.losses[sample]) == pytest.approx(best[0], abs=1e-5)
        torch.testing.assert_close(found.x[sample], best[1], atol=1e-5, rtol=0)


def written_down(
    net: nn.Module, prop: qll.Property, x0: Tensor, start: Tensor, steps: int, as_published: bool
) -> tuple[float, Tensor]:
    ball_low, ball_high = x0 - 0.3, x0 + 0.3

    def project(x: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(x, ball_low), ball_high).clamp(0, 1)

    def value(x: Tensor) -> tuple[float, Tensor]:
        leaf = x.clone().requires_grad_(True)
        loss = prop.loss(net(leaf[None]), logic="qll:5")[0]
        return float(loss.detach()), torch.autograd.grad(loss, leaf)[0]

    x = project(ball_low + start * (ball_high - ball_low))
    old = x
    f, g = value(x)
    eta, f_max, x_max, g_max = 0.6, f, x, g
    history = [0.0 if as_published else f]
    marks = [max(int(0.22 * steps), 1)] if as_published else checkpoints(steps)
    last_mark, rises, halved, f_max_then = 0, 0, as_published, f
    for k in range(1, steps + 1):
        a = 1.0 if k == 1 else 0.75
        z = project(x + eta * torch.sign(g))
        new = project(x + a * (z - x) + (1 - a) * (x - old))
        old, x = x, new
        f, g = value(x)
        rises += f > history[-1]
        history.append(f)
        if f > f_max:
            f_max, x_max, g_max = f, x, g
        if k in marks:
            share = 0.75 * (k - last_mark)
            few = rises <= share if as_published else rises < share
            halved = few or (not halved and f_max == f_max_then)
            if halved:
                eta, x, g = eta / 2, x_max, g_max
                history.append(f_max)
            last_mark, rises, f_max_then = k, 0, f_max
    return f_max, x_max


def test_as_published_halves_at_most_once_and_runs_once_more() -> None:
    schedule = ATTACKS["apgd"](steps=20, restarts=2, as_published=True).schedule()
    assert sum(1 for window in schedule.windows if window) == 1
    calls: list[int] = []
    net = nn.Linear(2, 3)
    counting = nn.Sequential(net)
    counting.register_forward_hook(lambda module, inputs, output: calls.append(len(inputs[0])))
    prop = qll.parse(TWO_PIXELS, outputs=3)
    attack("apgd:20,restarts=2,as_published=true").find(counting, prop, torch.rand(5, 2))
    # Restarts are batched: three runs at once, the start and twenty steps.
    assert calls == [15] * 21


class Liar(Attack):
    """Answers with points far outside, where every network violates."""

    def search(self, problem: AttackBatch) -> Points:
        return {"x": torch.full_like(problem.region.x0, 1e6)}


def test_a_searcher_is_never_believed() -> None:
    prop = qll.parse("forall x in ball(x0, 0.1): y[0] <= 0", outputs=1)
    net = nn.Linear(2, 1)
    with torch.no_grad():
        net.weight.fill_(1.0)
        net.bias.fill_(-1.0)
    x0 = torch.tensor([[0.1, 0.1], [0.45, 0.45]])
    found = Liar()(net, prop, x0)
    assert found.inside.all()
    torch.testing.assert_close(found.x, x0 + 0.1)
    # 0.2 + 0.2 - 1 < 0 holds; 0.55 + 0.55 - 1 > 0 does not.
    assert found.falsified.tolist() == [False, True]
    assert found.margins.tolist() == pytest.approx([0.6, -0.1], abs=1e-6)


def test_the_judge_decides_not_the_formula_that_led() -> None:
    leading = qll.parse("forall x in ball(x0, 0.1): y[0] <= -5", outputs=1)
    judge = qll.parse("forall x in ball(x0, 0.1): y[0] <= 5", outputs=1)
    net = nn.Linear(2, 1)
    found = attack("pgd:5")(net, leading, torch.rand(4, 2), judge=judge)
    assert not found.falsified.any() and (found.margins > 0).all()
    assert (found.losses > 0).all()


def test_modes_gradients_and_random_state_come_back() -> None:
    net = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 3))
    net.train()
    net[1].eval()
    net[0].weight.requires_grad_(False)
    net[3].weight.grad = torch.ones_like(net[3].weight)
    before = {name: (m.training, m) for name, m in net.named_modules()}
    state = torch.get_rng_state()
    prop = qll.parse(TWO_PIXELS, outputs=3)
    attack("apgd:5")(net, prop, torch.rand(3, 2, generator=torch.Generator().manual_seed(0)))
    assert all(m.training == mode for mode, m in before.values())
    assert not net[0].weight.requires_grad and net[3].weight.requires_grad
    assert net[0].weight.grad is None and torch.equal(
        net[3].weight.grad, torch.ones_like(net[3].weight)
    )
    assert torch.equal(torch.get_rng_state(), state)


def test_modes_come_back_when_the_search_fails() -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 1))

        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no")

    net = Failing().train()
    with pytest.raises(ValueError, match="no"):
        attack("apgd:5")(
            net, qll.parse("forall x in ball(x0, 1): y[0] <= 0", outputs=1), torch.rand(3, 2)
        )
    assert net.training and net.weight.requires_grad


def test_two_points_that_relate() -> None:
    """Monotonicity: raising input 0 must not lower the output."""
    prop = qll.load("monotonicity")
    net = nn.Linear(3, 1)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[-1.0, 2.0, 0.0]]))
    found = attack("apgd:20")(net, prop, torch.rand(5, 3))
    assert found.falsified.all()
    x, x2 = found.points["x"], found.points["x2"]
    assert (x2[:, 0] >= x[:, 0]).all() and torch.equal(x2[:, 1:], x[:, 1:])
    # The most that the region allows: a step of 0.1.
    torch.testing.assert_close(found.margins, torch.full((5,), -0.1), atol=1e-5, rtol=0)
    with torch.no_grad():
        net.weight[0, 0] = 1.0
    assert not attack("apgd:20")(net, prop, torch.rand(5, 3)).falsified.any()


def test_linear_constraints_of_the_region_hold() -> None:
    prop = qll.parse("forall x in box(0, 1) and x[0] + x[1] <= 1: y[0] <= 1.2", outputs=1)
    net = nn.Linear(2, 1)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.0, 1.0]]))
        net.bias.zero_()
    found = attack("apgd:40")(net, prop, torch.full((4, 2), 0.25))
    assert found.inside.all() and not found.falsified.any()
    assert (found.x.sum(1) <= 1).all() and (found.x.sum(1) > 0.99).all()


def test_formulas_over_the_centre_and_the_input() -> None:
    net = small_network(1)
    x0 = torch.rand(8, 2, generator=torch.manual_seed(0))
    for name, options in (("standard-robustness", {}), ("lipschitz-robustness", {"inputs": (2,)})):
        prop = qll.load(name, outputs=3, **options)
        tight = prop.with_parameters(**{"delta" if name[0] == "s" else "L": 1e-3})
        assert attack("apgd:20")(net, tight, x0).falsified.all(), name
        loose = prop.with_parameters(**{"delta" if name[0] == "s" else "L": 1e3})
        assert not attack("apgd:20")(net, loose, x0).falsified.any(), name


def test_steps_are_of_the_ball_not_of_what_the_range_leaves() -> None:
    prop = qll.load("classification-robustness", epsilon=0.2)
    x0 = torch.zeros(2, 1, 28, 28)
    box = search_box(prop, qll.Region.of(prop, x0), own=True)
    assert box.valid == (0.0, 1.0)
    torch.testing.assert_close(box.width, torch.full_like(x0, 0.4))
    inner = qll.Region.of(prop.with_parameters(epsilon=0.05), x0)
    torch.testing.assert_close(search_box(prop, inner, own=False).width, inner.upper - inner.lower)


def test_an_empty_batch_is_no_work() -> None:
    prop = qll.parse(TWO_PIXELS, outputs=3)
    found = attack("apgd:5")(small_network(0), prop, torch.rand(0, 2))
    assert found.x.shape == (0, 2) and found.falsified.shape == (0,)


def test_seeds_give_the_same_and_other_points() -> None:
    prop, net = qll.parse(TWO_PIXELS, outputs=3), small_network(0)
    x0 = torch.rand(4, 2, generator=torch.manual_seed(0))
    search = attack("apgd:0,restarts=0")
    first = search.find(net, prop, x0, seed=3)["x"]
    assert torch.equal(first, search.find(net, prop, x0, seed=3)["x"])
    assert not torch.equal(first, search.find(net, prop, x0, seed=4)["x"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("apdg", "unknown attack 'apdg'"),
        ("apgd:many", "option 'steps' of attack 'apgd' cannot be read"),
        ("apgd:20,restart=2", "attack 'apgd' has no option 'restart'"),
        ("apgd:as_published=perhaps", "option 'as_published'"),
        ("apgd:-1", "the number of steps of an attack is out of range"),
        ("pgd:5,step=-2", "the step of an attack is not usable"),
    ],
)
def test_attacks_by_a_wrong_text(text: str, message: str) -> None:
    prop = qll.parse(TWO_PIXELS, outputs=3)
    with pytest.raises(InputError) as caught:
        attack(text).find(small_network(0), prop, torch.rand(1, 2))
    assert message in str(caught.value) and "Fix:" in str(caught.value)


def test_texts_round_trip() -> None:
    for name in ATTACKS:
        record = ATTACKS[name]()
        assert attack(record.spec().lower()) == record
    assert attack("apgd:7,as_published=true") == ATTACKS["apgd"](steps=7, as_published=True)


@dataclass(frozen=True)
class Case:
    x0: Tensor
    labels: Tensor | None
    message: str


@pytest.mark.parametrize(
    "case",
    [
        Case(torch.zeros(4, 784, dtype=torch.uint8), None, "wrong shape"),
        Case(torch.zeros(4, 1, 28, 28), torch.zeros(3, dtype=torch.long), "differ in number"),
        Case(torch.zeros(4, 1, 28, 28), torch.full((4,), 10), "labels do not fit"),
        Case(torch.zeros(4, 1, 28, 28), torch.zeros(4), "labels do not fit"),
        Case(torch.zeros(4, 1, 28, 28), None, "speaks of labels"),
        Case(torch.full((4, 1, 28, 28), 2.0), torch.zeros(4, dtype=torch.long), "empty"),
        Case(torch.full((4, 1, 28, 28), torch.nan), torch.zeros(4, dtype=torch.long), "x is not f"),
    ],
    ids=lambda case: case.message,
)
def test_wrong_batches_are_named(case: Case) -> None:
    from qll.networks.models import create

    prop = qll.load("classification-robustness")
    with pytest.raises(InputError, match=case.message):
        attack("apgd:2")(create("paper-mnist"), prop, case.x0, case.labels)


def test_a_network_with_the_wrong_output_is_named() -> None:
    prop = qll.parse("forall x in ball(x0, 1): y[0] <= 0", outputs=1)
    with pytest.raises(InputError, match="outputs have the wrong shape"):
        attack("apgd:2")(nn.Identity(), prop, torch.rand(2, 1, 3))


def test_forcing_the_kernels_on_what_they_do_not_take_says_why() -> None:
    prop = qll.parse(TWO_PIXELS, outputs=3)
    net = nn.Sequential(nn.Linear(2, 4), nn.ELU(), nn.Linear(4, 3))
    with pytest.raises(RunError, match="compiled attack does not take this problem"):
        attack("apgd:2").find(net, prop, torch.rand(2, 2), engine="compiled")
    with pytest.raises(InputError, match="unknown engine"):
        attack("apgd:2").find(net, prop, torch.rand(2, 2), engine="cuda")  # type: ignore[arg-type]
