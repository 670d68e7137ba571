"""Certified training: stages, schedules, the soft quantifier, the threshold start, intervals."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import qll
from qll.bounds import modules
from qll.bounds.modules import module_bounds
from qll.data import load as load_data
from qll.data.base import keep
from qll.errors import InputError, NetworkError, QllError
from qll.kernels.intervals import folded_intervals
from qll.logics import logic as read_logic
from qll.networks.models import create
from qll.regions import Region
from qll.training.config import TrainConfig, resolve
from qll.training.feedback import Feedback
from qll.training.initialise import (
    open_hidden_units,
    ramp_first_convolution,
    threshold_first_convolution,
)
from qll.training.loop import Trainer, build_model, load_configured, train
from qll.training.loss import reduce_losses
from qll.training.progress import Silent
from qll.training.stages import stages

SMALL = {"count_train": 48, "count_test": 12}


def config(**options: object) -> TrainConfig:
    return resolve(
        "not-both",
        "dice-rendered",
        options={"logic": "qll:5", "epochs": 2, "data_options": SMALL, **options},
    )


# --- stages and schedules ---


def test_stages_take_their_shares_and_their_settings() -> None:
    run = config(
        epochs=10,
        method="small-box",
        stages=({"share": 0.4, "method": "attack", "options": {}}, {"alpha": 1.0}),
    )
    first, second = stages(run)
    assert (first.first, first.last, second.first, second.last) == (0, 4, 4, 10)
    assert (first.config.method, second.config.method) == ("attack", "small-box")
    assert second.config.alpha == 1.0 and first.config.alpha == run.alpha


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"share": 2.0}, "shares"),
        ({"network": "wide"}, "cannot set 'network'"),
        ({"alpha": -1.0}, "wrong value"),
    ],
)
def test_wrong_stages_are_named(table: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        config(stages=(table,))


def test_a_run_goes_through_its_stages() -> None:
    run = config(
        method="small-box",
        stages=({"share": 0.5, "method": "attack", "attack": "apgd:2", "options": {}}, {}),
    )
    found = train(run)
    assert [row["method"] for row in found.rows] == ["attack", "small-box"]


def test_views_are_of_training_images_whether_augmented_or_not_and_end_with_their_stage() -> None:
    seen: list[torch.Tensor] = []

    class Looked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = create("paper-dice", in_channels=3, height=28, width=28, outputs=6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                seen.append(x.detach().clone())
            return self.network(x)  # type: ignore[no-any-return]

    data = load_data("dice-rendered", **SMALL)
    mirrored = {"views": {"mirror": True}, "logic": "baseline", "batch_size": 48}
    images = torch.from_numpy(data.train.inputs)

    def shown(batch: torch.Tensor) -> tuple[bool, bool]:
        """Whether all are training images as they are, and whether all are, turned or not."""
        same = [any(torch.equal(x, image) for image in images) for x in batch]
        turned = [any(torch.equal(x.flip(2), image) for image in images) for x in batch]
        return all(same), all(a or b for a, b in zip(same, turned, strict=True))

    for augment in (True, False):
        seen.clear()
        stages = ({"share": 0.5}, {"views": {}})
        run = config(augment=augment, epochs=2, stages=stages, **mirrored)
        train(run, data=replace(data, augment=keep), model=Looked())
        assert [shown(batch) for batch in seen] == [(False, True), (True, True)]

    def black(images: torch.Tensor, _: torch.Generator) -> torch.Tensor:
        return torch.zeros_like(images)

    for augment in (True, False):  # the data set's own
        seen.clear()
        train(config(augment=augment, epochs=1, **mirrored), data=replace(data, augment=black),
              model=Looked())  # fmt: skip
        assert all(bool((batch == 0).all()) is augment for batch in seen)


def test_epsilon_warms_up_to_its_reach() -> None:
    run = config(epochs=4, method="bound", warm_up=0.5, reach=1.5)
    part = Trainer(run, load_data("dice-rendered", **SMALL), None, None, Silent()).parts[0]
    sizes = [part.at(epoch)[0].value_of("epsilon") for epoch in range(4)]
    full = 1.5 * 4 / 255
    assert 0 < sizes[0] < sizes[1] < full
    assert sizes[2:] == pytest.approx([full, full])


def test_a_method_brings_its_own_defaults_and_settings_win() -> None:
    assert resolve("not-both", "dice", options={"method": "bound"}).warm_up > 0
    assert resolve("not-both", "dice", options={"method": "bound", "warm_up": 0.0}).warm_up == 0
    assert resolve("not-both", "dice").warm_up == 0
    assert resolve("not-both", "dice", options={"method": "projected"}).surrogate is not None


def test_a_surrogate_is_trained_on_and_never_judged_by() -> None:
    run = resolve("not-both", "dice", options={"method": "projected"})
    assert run.trained_property(6).name == "label-robustness"
    assert run.trained_property(6).value_of("epsilon") == pytest.approx(8 / 255)
    assert run.judged_property(6).name == run.attacked_property(6).name == "not-both"
    assert run.attacked_property(6).value_of("epsilon") == pytest.approx(4 / 255)


def test_csec_is_by_the_papers_attack_however_short_the_trained_one_is() -> None:
    run = resolve("not-both", "dice", options={"method": "projected"})
    assert "steps=10" in run.make_attack().spec()
    spec = run.make_judging_attack().spec()
    assert "steps=30" in spec and "restarts=3" in spec


# --- the soft quantifier over the batch ---


def test_the_soft_quantifier_runs_from_the_mean_to_the_worst() -> None:
    losses = torch.tensor([-1.0, 0.5, 3.0])
    mean, worst = float(losses.mean()), float(losses.max())
    assert float(reduce_losses(losses, None)) == pytest.approx(mean)
    assert float(reduce_losses(losses, None, 1e-4)) == pytest.approx(mean, abs=1e-3)
    assert float(reduce_losses(losses, None, 1e3)) == pytest.approx(worst, abs=2e-3)
    values = [float(reduce_losses(losses, None, h)) for h in (0.1, 1.0, 10.0)]
    assert mean < values[0] < values[1] < values[2] < worst
    assert float(reduce_losses(losses, None, 2.0)) == pytest.approx(
        math.log(sum(math.exp(2 * v) for v in losses.tolist()) / 3) / 2
    )


@pytest.mark.parametrize("method", ["bound", "mixed", "small-box"])
def test_a_property_without_an_epsilon_is_trained(method: str, tmp_path: Path) -> None:
    rule = tmp_path / "box.qll"
    rule.write_text("outputs 6\nforall x in box(0, 1): not (y[0] >= 0 and y[5] >= 0)\n")
    asked = resolve(
        str(rule),
        "dice-rendered",
        options={"logic": "qll:5", "method": method, "epochs": 1, "data_options": SMALL},
    )
    assert train(asked).rows[0]["property_loss"] is not None


def test_reach_is_a_multiple_of_an_epsilon_from_the_text(tmp_path: Path) -> None:
    rule = tmp_path / "mine.qll"
    rule.write_text(
        "outputs 6\nparameter epsilon: input = 0.03\n"
        "forall x in ball(x0, epsilon) and range(0, 1): not (y[0] >= 0 and y[5] >= 0)\n"
    )
    asked = resolve(str(rule), "dice-rendered", options={"method": "small-box", "reach": 2.0})
    assert asked.trained_property(6).value_of("epsilon") == pytest.approx(0.06)
    assert asked.judged_property(6).value_of("epsilon") == 0.03
    other = resolve(str(rule), "dice-rendered", options={"method": "projected", "reach": 3.0})
    assert other.trained_property(6).value_of("epsilon") == pytest.approx(0.09)


# --- the threshold start ---


def test_thresholds_ignore_what_the_perturbation_alone_can_cause() -> None:
    torch.manual_seed(0)
    model = create("paper-mnist")
    threshold_first_convolution(model, 0.2)
    first = nn.Sequential(*list(model)[:3])  # normalisation, convolution, ReLU
    with torch.no_grad():
        dark = first(torch.full((1, 1, 28, 28), 0.15))
        bright = first(torch.ones(1, 1, 28, 28))
    # the taps' noise aside, a pixel below the threshold gives nothing and a white one gives 1
    assert float(dark.max()) < 0.2
    assert float(bright[..., 1:-1, 1:-1].mean()) == pytest.approx(1.0, abs=0.3)


def test_thresholds_need_a_convolution() -> None:
    with pytest.raises(NetworkError, match="no convolution"):
        threshold_first_convolution(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), 0.1)


def test_a_ramp_is_constant_on_the_boxes_of_dark_and_of_bright_pixels() -> None:
    torch.manual_seed(0)
    model = create("paper-mnist")
    ramp_first_convolution(model, 0.2, 0.7)
    for pixels, values in ((torch.tensor([0.0, 0.1, 0.2]), 0.0), (torch.tensor([0.7, 1.0]), 1.0)):
        read = model[:3](pixels[:, None, None, None].expand(-1, 1, 28, 28))
        difference = read[:, :2] - read[:, 2:]
        inner = difference[..., 1:-1, 1:-1]  # away from the padding
        assert torch.allclose(inner, torch.full_like(inner, values), atol=1e-6)
    after = model[3].weight
    assert torch.equal(after[:, 2:], -after[:, :2])
    # two pixels of each cell of 2 x 2, on its diagonal
    taps = model[1].weight[:2, 0].nonzero().tolist()
    assert taps == [[0, 1, 1], [1, 2, 2]]


def test_a_ramp_before_a_linear_layer() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 4, 3))
    ramp_first_convolution(model, 0.1, 0.9)
    low, high = model(torch.zeros(1, 1, 4, 4)), model(torch.full((1, 1, 4, 4), 0.1))
    assert torch.allclose(low, high)
    weight = model[3].weight.view(3, 2, 4)
    assert torch.equal(weight[:, 1], -weight[:, 0])


@pytest.mark.parametrize(
    ("model", "ends", "message"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), (0.1, 0.9), "no convolution"),
        (nn.Sequential(nn.Conv2d(1, 3, 3), nn.Conv2d(3, 1, 1)), (0.1, 0.9), "in pairs"),
        (nn.Sequential(nn.Conv2d(1, 2, 3)), (0.1, 0.9), "a layer after the first"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 1, 1)), (0.6, 0.4), "out of range"),
    ],
)
def test_ramps_that_cannot_be(model: nn.Module, ends: tuple[float, float], message: str) -> None:
    with pytest.raises(QllError, match=message):
        ramp_first_convolution(model, *ends)


@pytest.mark.parametrize("held", [True, False])
def test_a_held_ramp_stays_and_the_rest_is_trained(held: bool) -> None:
    asked = config(method="bound", initialisation="ramp", epochs=1, ramp={"held": held})
    data = load_configured(asked)
    begun = build_model(asked, data)
    run = train(asked, data=data)
    assert torch.equal(begun[1].weight, run.model[1].weight) is held
    assert torch.equal(begun[1].bias, run.model[1].bias) is held
    assert not torch.equal(begun[3].weight, run.model[3].weight)


def test_hidden_units_behind_ramps_start_open() -> None:
    asked = config(method="bound", initialisation="ramp", ramp={"bias": 1.0})
    data = load_configured(asked)
    own, opened = (build_model(run, data) for run in (config(), asked))
    x = torch.from_numpy(data.train.inputs)
    with torch.no_grad():
        assert bool((opened[:6](x) > 0).all()) and not bool((own[:6](x) > 0).all())
    shallow = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    with pytest.raises(NetworkError, match="no hidden units behind the ramps"):
        open_hidden_units(shallow, 1.0)


# --- intervals in kernels against the plain ones ---


@pytest.mark.parametrize(("name", "channels"), [("paper-mnist", 1), ("paper-dice", 3), ("wide", 1)])
@pytest.mark.parametrize("count", [1, 21])
def test_folded_intervals_are_the_plain_ones(
    name: str, channels: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    model = create(name)
    x = torch.rand(count, channels, 28, 28)
    lower, upper = (x - 0.1).clamp(0, 1), (x + 0.1).clamp(0, 1)
    assert folded_intervals(model, lower, upper) is not None

    def ends() -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        model.zero_grad()
        low, high = module_bounds(model, lower, upper).outputs_box()
        (high.square().sum() - low.sum()).backward()
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        return low.detach(), high.detach(), grads

    fast = ends()
    monkeypatch.setattr(modules, "folded_intervals", lambda *_: None)
    plain = ends()
    torch.testing.assert_close(fast[0], plain[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fast[1], plain[1], rtol=1e-4, atol=1e-4)
    assert len(fast[2]) == len(plain[2]) == len(list(model.parameters()))
    for ours, theirs in zip(fast[2], plain[2], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-3 * float(theirs.abs().max()))


def test_folded_intervals_contain_what_the_network_does() -> None:
    torch.manual_seed(2)
    model = create("paper-mnist")
    x = torch.rand(8, 1, 28, 28)
    lower, upper = (x - 0.2).clamp(0, 1), (x + 0.2).clamp(0, 1)
    low, high = module_bounds(model, lower, upper).outputs_box()
    for _ in range(200):
        y = model(lower + torch.rand_like(x) * (upper - lower))
        assert bool(((y >= low - 1e-4) & (y <= high + 1e-4)).all())


# --- certificates from one forward pass ---


def test_a_certificate_from_the_bound_is_never_refuted_by_the_verifier() -> None:
    """Hard and soft-plus-slack certificates over small boxes, against the complete verifier."""
    torch.manual_seed(3)
    prop = qll.load("not-both", epsilon=0.01)
    data = load_data("dice-rendered", **SMALL)
    x = torch.from_numpy(data.test.inputs[:5])
    accepted = refuted = 0
    for seed in (0, 2, 3):
        torch.manual_seed(seed)
        model = create("paper-dice").eval()
        with torch.no_grad():  # from networks that obey nowhere to some that do everywhere
            model[-1].bias -= 0.5 * seed
        region = Region.of(prop, x)
        bounds = module_bounds(model, region.lower, region.upper, kind="crown")
        hard = prop.enclose(bounds, logic="boolean")[1] <= 0
        soft = prop.certified(bounds, logic="qll:5")
        verdicts = qll.verify(prop, model, x, timeout=1.0)
        for sure, also, verdict in zip(hard.tolist(), soft.tolist(), verdicts, strict=True):
            assert sure or not also, "the soft certificate is the stricter one"
            accepted += also
            refuted += (sure or also) and verdict.status == "falsified"
    assert accepted > 0, "nothing was certified: the test says nothing"
    assert refuted == 0


# --- feedback ---


def test_witnesses_come_back_from_disk_and_join_the_loss(tmp_path) -> None:
    data = load_data("dice-rendered", **SMALL)
    points = torch.rand(5, *data.shape)
    sources = torch.tensor([0, 1, 2, 3, 4])
    Feedback(torch.tensor([7, 8]), points, sources).save(tmp_path)
    held = Feedback.load(tmp_path)
    assert held is not None
    assert held.rows.tolist() == [7, 8] and torch.equal(held.witnesses, points)
    assert held.order(torch.arange(10)).tolist().count(7) > 1
    term = held.term(
        create("paper-dice"), qll.load("not-both"), read_logic("qll:5"), data,
        batch=8, seed=0, place=(0, 0),
    )  # fmt: skip
    assert term is not None and len(term.losses) == 2 and term.losses.requires_grad


def test_the_projected_network_obeys_everywhere() -> None:
    """Also far from the data: on noise of any size."""
    run = config(method="projected", epochs=1, attack="apgd:2")
    model = train(run).model.eval()
    prop = qll.load("not-both")
    with torch.no_grad():
        noise = 30 * torch.randn(2000, 3, 28, 28)
        assert bool(prop.holds(model(noise)).all())
    x = torch.from_numpy(load_data("dice-rendered", **SMALL).test.inputs)
    assert all(v.status == "verified" for v in qll.verify(prop, model, x, timeout=5.0))


def test_opposite_outputs_are_tied_where_the_property_leaves_equality() -> None:
    """Exactly-one: never both above 0 and never both below, at any input whatever."""
    options = {"logic": "qll:5", "method": "projected", "data_options": SMALL}
    run = resolve(
        "exactly-one", "dice-rendered", options={**options, "epochs": 1, "attack": "apgd:2"}
    )
    model = train(run).model.eval()
    prop = qll.load("exactly-one")
    with torch.no_grad():
        y = model(30 * torch.randn(2000, 3, 28, 28))
    assert torch.equal(y[:, [0, 1, 2]] > 0, y[:, [5, 4, 3]] < 0)
    x = torch.from_numpy(load_data("dice-rendered", **SMALL).test.inputs)
    for certified in (False, True):
        verdicts = qll.verify(prop, model, x, timeout=5.0, certified=certified)
        assert all((v.status, v.stage) == ("verified", "construction") for v in verdicts)


def test_a_stricter_rule_may_be_what_holds() -> None:
    def run(rule: str) -> TrainConfig:
        options = {"logic": "qll:5", "method": "projected", "data_options": SMALL, "epochs": 1}
        more = {"attack": "apgd:2", "options": {"rule": rule}}
        return resolve("not-both", "dice-rendered", options={**options, **more})

    model = train(run("exactly-one")).model.eval()
    x = torch.from_numpy(load_data("dice-rendered", **SMALL).test.inputs)
    verdicts = qll.verify(qll.load("not-both"), model, x, timeout=5.0, certified=True)
    assert all((v.status, v.stage) == ("verified", "construction") for v in verdicts)
    looser = {"logic": "qll:5", "method": "projected", "data_options": SMALL}
    with pytest.raises(InputError, match="does not imply"):
        train(
            resolve(
                "exactly-one", "dice-rendered",
                options={**looser, "options": {"rule": "not-both"}},
            )
        )  # fmt: skip


def test_what_cannot_hold_by_construction_is_refused_at_once() -> None:
    """With a margin both conditions of a pair are strict, and exclude each other."""
    run = resolve(
        "exactly-one",
        "dice-rendered",
        options={"logic": "qll:5", "method": "projected", "data_options": SMALL},
        settings=["margin=0.2"],
    )
    with pytest.raises(InputError, match="exclude each other"):
        Trainer(run, load_data("dice-rendered", **SMALL), None, None, Silent())


def test_every_recipe_is_a_run() -> None:
    from qll.training.config import _default_tables

    for name in _default_tables()["recipe"]:
        method, prop, data = name.split("/")
        run = resolve(prop, data, options={"method": method, "logic": "qll:5"})
        parts = [stage.config for stage in stages(run)]
        assert any(part.method == method and not part.is_baseline for part in parts)
        assert all(("size" in part.options) is (part.method == "small-box") for part in parts)


def test_reports_say_what_holds_by_construction(tmp_path) -> None:
    from qll.cli.train import remarks
    from qll.reports.records import read_runs
    from qll.reports.tables import build_table

    run = config(method="projected", epochs=1, attack="apgd:2")
    train(run, tmp_path / "projected")
    assert "by construction" in remarks(run)[0]
    assert remarks(config()) == []
    table = build_table(read_runs([tmp_path]))
    assert any("by construction" in note for note in table.notes())
