"""The loss for one's own loop, the balance, the published variants, and the configuration."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import qll
from qll.attacks import attack
from qll.errors import InputError, NetworkError, QllError, RunError
from qll.prediction import correct_predictions, prediction_loss
from qll.training import Balance, PropertyLoss
from qll.training.balance import gradient_norm
from qll.training.config import (
    check_property,
    paper_defaults,
    parse_settings,
    published_formula,
    resolve,
)
from qll.training.schedule import Ramp, cosine

SEPARABLE = "forall x in ball(x0, 0.1): forall c in outputs: label(c) -o forall i in outputs where i != c: y[c] >= y[i]"  # noqa: E501


def blobs(count: int = 96, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three clouds in the plane, classes 0 to 2."""
    torch.manual_seed(seed)
    labels = torch.arange(count) % 3
    centres = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    return centres[labels] + 0.15 * torch.randn(count, 2), labels


def classifier() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))


# --- the loss in one's own loop ---


def test_three_lines_make_any_loop_property_driven() -> None:
    """Clouds that touch: the regions stay apart only if the loss asks for it."""
    x, labels = blobs()
    prop = qll.parse(SEPARABLE.replace("0.1", "0.3"), outputs=3)

    def attacked_share(balance: Balance | float) -> float:
        model = classifier()
        optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
        property_loss = qll.PropertyLoss(
            prop, attack="apgd:5,restarts=0", balance=balance, engine="autograd"
        )
        for _ in range(100):
            loss = property_loss(model, x, labels)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        found = attack("apgd:20")(model, prop, x, labels, engine="autograd")
        return float((~found.falsified).float().mean())

    with_property, without = attacked_share(Balance()), attacked_share(0.0)
    assert with_property > without + 0.1, (with_property, without)


def test_the_total_is_prediction_plus_lambda_times_property() -> None:
    x, labels = blobs(30)
    model, prop = classifier(), qll.parse(SEPARABLE, outputs=3)
    loss = PropertyLoss(
        prop, logic="qll:2", attack="apgd:3", engine="autograd", balance=Balance(alpha=0.7)
    )
    total = loss(model, x, labels)
    seen = loss.last
    assert seen is not None
    assert float(total.detach()) == pytest.approx(
        seen.prediction + seen.weight * seen.property, rel=1e-6
    )
    assert seen.prediction == pytest.approx(
        float(functional.cross_entropy(model(x), labels).detach()), rel=1e-6
    )
    assert 0 <= seen.satisfied <= 1


def test_lambda_is_the_ratio_of_the_last_layers_gradients() -> None:
    x, labels = blobs(30)
    model = classifier()
    y = model(x)
    prediction = functional.cross_entropy(y, labels)
    other = (y**2).mean()
    last = list(model[2].parameters())
    norms = [
        torch.cat([g.flatten() for g in torch.autograd.grad(f, last, retain_graph=True)]).norm()
        for f in (prediction, other)
    ]
    weight = Balance(alpha=0.5).weigh(prediction, other, Balance().chosen(model))
    assert Balance().chosen(model) == last
    assert float(weight.value) == pytest.approx(float(0.5 * norms[0] / norms[1]), rel=1e-5)
    assert not weight.value.requires_grad
    # Clipped at 10, as published, also where the property has no gradient at all.
    assert float(Balance().weigh(prediction, other * 1e-9, last).value) == 10.0
    assert float(Balance().weigh(prediction, torch.zeros(()), last).value) == 10.0
    everything = Balance(parameters="all").chosen(model)
    assert len(everything) == 4 and gradient_norm(prediction, everything) > norms[0]


def test_balance_refuses_what_it_cannot_do() -> None:
    with pytest.raises(InputError, match="balance of the losses is out of range"):
        Balance(alpha=-1)
    with pytest.raises(InputError, match="unknown choice of parameters"):
        Balance(parameters="first")
    with pytest.raises(NetworkError, match="no parameters to balance"):
        Balance().chosen(nn.Sequential(nn.Conv2d(1, 1, 1)))


def test_a_floor_gives_no_reward_beyond_satisfaction() -> None:
    x, labels = blobs(12)
    prop = qll.parse("forall x in ball(x0, 0.1): y[0] <= 100", outputs=3)
    free = PropertyLoss(prop, attack="apgd:2", engine="autograd", floor=None)
    clipped = PropertyLoss(prop, attack="apgd:2", engine="autograd", floor=0.0)
    model = classifier()
    free(model, x, labels)
    clipped(model, x, labels)
    assert free.last is not None and clipped.last is not None
    assert free.last.property < -50 and clipped.last.property == 0.0


def test_any_prediction_loss_and_any_task() -> None:
    x = blobs(12)[0]
    model = classifier()
    prop = qll.parse("forall x in ball(x0, 0.1): y[0] <= 0", outputs=3)
    multi = (torch.rand(12, 3, generator=torch.manual_seed(0)) > 0.5).long()
    for task, labels in (
        ("multi-label", multi),
        ("regression", torch.rand(12, 3)),
        (nn.MSELoss(), torch.rand(12, 3)),
    ):
        loss = PropertyLoss(prop, attack="apgd:2", task=task, engine="autograd")(model, x, labels)  # type: ignore[arg-type]
        assert torch.isfinite(loss)


def test_a_property_is_a_property() -> None:
    with pytest.raises(InputError, match="not a property"):
        PropertyLoss("classification-robustness")  # type: ignore[arg-type]


# --- prediction ---


def test_predictions_are_counted_as_the_paper_counts_them() -> None:
    y = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]])
    assert correct_predictions(y, torch.tensor([0, 2]), "single-label") == (1, 2)
    # Predicted iff the logit is above 0; one label at a time.
    multi = torch.tensor([[1, 1, 0], [0, 1, 0]])
    assert correct_predictions(y, multi, "multi-label") == (5, 6)


@pytest.mark.parametrize(
    ("labels", "task"),
    [
        (torch.tensor([0, 3]), "single-label"),
        (torch.tensor([0, -1]), "single-label"),
        (torch.tensor([0.0, 1.0]), "single-label"),
        (torch.tensor([[0, 1, 2], [0, 0, 0]]), "multi-label"),
        (torch.tensor([0, 1]), "multi-label"),
        (torch.tensor([0.0]), "regression"),
    ],
)
def test_labels_out_of_range_are_named(labels: Tensor, task: str) -> None:
    with pytest.raises(InputError, match="labels do not fit"):
        prediction_loss(torch.zeros(2, 3), labels, task)


# --- the published variants ---


def test_published_robustness_at_p_1_is_cross_entropy() -> None:
    y, labels = torch.randn(20, 10), torch.arange(20) % 10
    prop = qll.load(published_formula("classification-robustness"))
    torch.testing.assert_close(
        prop.loss(y, labels=labels, logic="qll:1"),
        functional.cross_entropy(y, labels, reduction="none"),
    )


@pytest.mark.parametrize("logic", ["qll:5", "stl:5", "dl2"])
def test_published_clothing_has_eight_conjuncts_always(logic: str) -> None:
    prop = qll.load(published_formula("clothing-footwear"))
    clothing, footwear = {0, 2, 3, 4, 6}, {5, 7, 9}
    y = torch.randn(10, 10, generator=torch.manual_seed(0))
    labels = torch.arange(10)
    record = qll.logic(logic)
    for c in range(10):
        row = y[c]
        rivals = [row[i] if c in clothing else row[c] for i in sorted(footwear)]
        rivals += [row[i] if c in footwear else row[c] for i in sorted(clothing)]
        values = torch.stack([record.leq(rival, row[c]) for rival in rivals])
        expected = record.loss(record.conj(values))
        found = prop.loss(y[c : c + 1], labels=labels[c : c + 1], logic=logic)[0]
        torch.testing.assert_close(found, expected)


def test_variants_mean_the_same_as_the_clean_formulas() -> None:
    y = torch.randn(200, 10, generator=torch.manual_seed(1))
    labels = torch.arange(200) % 10
    for name in ("classification-robustness", "clothing-footwear"):
        clean, published = qll.load(name), qll.load(published_formula(name))
        assert torch.equal(clean.holds(y, labels=labels), published.holds(y, labels=labels)), name


# --- schedules ---


def test_ramps() -> None:
    ramp = Ramp(1.0, 10.0, epochs=10, delay=5)
    assert [ramp.at(e) for e in (0, 5, 10, 15, 99)] == [1.0, 1.0, 5.5, 10.0, 10.0]
    geometric = Ramp(1.0, 100.0, epochs=2, geometric=True)
    assert geometric.at(1) == pytest.approx(10.0)
    assert Ramp(3.0, 7.0, epochs=0).at(0) == 7.0
    assert cosine(0, 10) == 1.0 and cosine(10, 10) == pytest.approx(0.0)
    for bad in ((0.0, 1.0, 5, 0, True), (math.nan, 1.0, 5, 0, False), (0.0, 1.0, -1, 0, False)):
        with pytest.raises(InputError, match="schedule is out of range"):
            Ramp(*bad)


# --- configuration ---


def test_defaults_are_the_papers() -> None:
    mnist = resolve("classification-robustness", "mnist", options={"logic": "qll:5"})
    assert (mnist.batch_size, mnist.steps, mnist.restarts, mnist.epochs) == (512, 20, 2, 100)
    assert (mnist.learning_rate, mnist.weight_decay, mnist.alpha) == (1e-3, 1e-4, 0.5)
    assert mnist.parameters == {"epsilon": 0.2} and mnist.formula == "classification-robustness"
    dice = resolve("not-both", "dice")
    assert (dice.batch_size, dice.steps, dice.restarts) == (16, 30, 3)
    assert dice.parameters["epsilon"] == 4 / 255
    strong = resolve("strong-classification-robustness", "fashion")
    assert strong.parameters == {"epsilon": 0.2, "delta": 0.7}
    assert strong.judged == {"epsilon": 0.1, "delta": 0.7} and strong.floor == 0.0
    exactly = resolve("exactly-one", "dice")
    assert exactly.parameters["margin"] == 0.1
    assert exactly.judged_property(6).value_of("margin") == 0.0
    assert "as_published=True" in mnist.make_attack().spec()


def test_every_pair_of_the_paper_has_defaults() -> None:
    pairs = {
        "mnist": ["classification-robustness", "strong-classification-robustness"],
        "fashion": [
            "classification-robustness",
            "strong-classification-robustness",
            "clothing-footwear",
        ],
        "dice": ["not-both", "exactly-one"],
    }
    for data, properties in pairs.items():
        for prop in properties:
            assert paper_defaults(prop, data)["parameters"]
            check_property(resolve(prop, data), 6 if data == "dice" else 10)


def test_a_file_then_options_then_settings(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('epochs = 7\nlogic = "dl2"\nalpha = 0.1\n[parameters]\nepsilon = 0.05\n')
    config = resolve(
        "classification-robustness",
        "mnist",
        file=file,
        options={"epochs": 8, "seed": None},
        settings=["alpha=0.2", "hardness={start = 1, end = 10, epochs = 5}"],
    )
    assert (config.epochs, config.logic, config.alpha, config.seed) == (8, "dl2", 0.2, 0)
    assert config.parameters == {"epsilon": 0.05}
    assert config.hardness is not None and config.hardness.ramp().at(0) == 1.0


def test_a_bare_parameter_is_where_the_property_is_trained_and_judged() -> None:
    name = "strong-classification-robustness"
    both = resolve(name, "mnist", settings=["epsilon=8/255"])
    assert both.parameters["epsilon"] == both.judged["epsilon"] == 8 / 255  # type: ignore[index]
    trained = resolve(name, "mnist", settings=["parameters.epsilon=0.3"])
    assert trained.parameters["epsilon"] == 0.3 and trained.judged["epsilon"] == 0.1  # type: ignore[index]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("epoch=3", "did you mean 'epochs'"),
        ("epochs=many", "setting 'epochs' has a wrong value"),
        ("epochs", "a setting has no value"),
        ("epochs=-1", "greater than or equal to 0"),
        ("learning_rate=0", "greater than 0"),
        ("logic=qlll:5", "unknown logic 'qlll'"),
        ("attack=apdg", "unknown attack 'apdg'"),
        ("epsilon.start=0.1", "setting 'epsilon.end' has a wrong value"),
        ("learning_rate_schedule=step", "learning_rate_schedule"),
    ],
)
def test_wrong_settings_are_named(setting: str, message: str) -> None:
    with pytest.raises(QllError) as caught:
        resolve("classification-robustness", "mnist", settings=[setting])
    assert message in str(caught.value) and "Fix:" in str(caught.value)


def test_wrong_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        resolve("not-both", "dice", file=tmp_path / "none.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("epochs: 3")
    with pytest.raises(InputError, match="not TOML"):
        resolve("not-both", "dice", file=bad)
    bad.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        resolve("not-both", "dice", file=bad)


def test_index_sets_that_do_not_fit_the_network_are_named_before_any_work() -> None:
    with pytest.raises(QllError, match="output 7 does not exist"):
        check_property(resolve("clothing-footwear", "fashion"), 6)


def test_settings_are_texts_numbers_and_tables() -> None:
    values, own = parse_settings(
        ["data_dir=/some/where", "epochs=3", "data_options.seed=4", "epsilon=0.1"],
        parameters={"epsilon"},
    )
    assert values == {"data_dir": "/some/where", "epochs": 3, "data_options": {"seed": 4}}
    assert own == {"epsilon": 0.1}


def test_a_loss_that_is_not_finite_is_named() -> None:
    from qll.training.loss import reduce_losses

    with pytest.raises(RunError, match="not finite"):
        reduce_losses(torch.tensor([1.0, math.inf]), None)


def test_what_is_measured_as_published_is_not_what_is_proved() -> None:
    """Exactly-one: the published runs measured CAcc and CSec with the margin of training."""
    usual = resolve("exactly-one", "dice", options={"logic": "qll:5"})
    assert usual.judged_property(6).value_of("margin") == 0.0
    assert usual.measured_property(6).value_of("margin") == 0.1
    assert usual.attacked_property(6).value_of("margin") == 0.1
    own = resolve("exactly-one", "dice", settings=["margin=0.3"])
    assert own.measured_property(6).value_of("margin") == 0.3
    plain = resolve("exactly-one", "dice", options={"as_published": False})
    assert plain.measured_property(6).value_of("margin") == 0.0
    labels = resolve("exactly-one", "dice", options={"method": "projected"})
    assert labels.attacked_property(6).value_of("margin") == 0.0
