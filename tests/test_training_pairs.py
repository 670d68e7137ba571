"""Rules over two points trained on bounds: sound boxes, a proved network, pairs fed back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qll
from qll.bounds.steps import step_bounds
from qll.cycle import CycleConfig, cycle
from qll.data import load
from qll.data.base import DataSet
from qll.errors import FormulaError, InputError, NetworkError
from qll.properties import parse
from qll.regions import Region
from qll.training.config import resolve
from qll.training.feedback import Feedback
from qll.training.loop import train
from qll.training.methods.signed import ways_of_inputs, ways_of_outputs
from qll.training.pairs import boxed_term, moved_bounds, spread
from qll.verify.verdict import Evidence

RISING = """
forall x in domain,
       x2 in domain and x2["size"] >= x["size"] and x2["age"] == x["age"]:
  y2["price"] >= y["price"]
"""


def homes() -> DataSet:
    """Prices that rise with size but for the largest, of which there are few."""
    rng = np.random.default_rng(1)
    size, age = rng.uniform(0, 10, 160), rng.integers(0, 5, 160)
    price = np.where(size > 8, 16 - size, size) - 0.3 * age + rng.normal(0, 0.1, 160)
    return load({"size": size, "age": age, "price": price}, target="price")


def chain(seed: int, outputs: int = 2) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, outputs)]
    return nn.Sequential(*layers).double()


@pytest.mark.parametrize("seed", range(6))
def test_bounds_hold_wherever_a_pair_is_moved(seed: int) -> None:
    model, draw = chain(seed), torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=draw, dtype=torch.float64)

    low = -uniform(5, 3)
    high = low + uniform(5, 3)
    step = (uniform(5, 3) - 0.5) * (0.1, 2.0)[seed % 2]
    rows = 2 * uniform(1, 7, 10) - 1
    rows[0, :3, :2] = -rows[0, :3, 8:]  # differences of the outputs, and rows that are none
    constant = uniform(1, 7)
    least, most = step_bounds(model, low, high, step, ("y", "x", "x2", "y2")).affine(
        rows, constant, None
    )
    with torch.no_grad():
        for k in range(400):
            x = low + (high - low) * uniform(5, 3)
            x = torch.where(x > (low + high) / 2, high, low) if k % 2 else x
            z = torch.cat((model(x), x, x + step, model(x + step)), 1)
            found = (z @ rows[0].t() + constant).t()
            assert bool((found >= least - 1e-9).all() and (found <= most + 1e-9).all())
        # What is equal cancels: no step, no difference.
        still = step_bounds(model, low, high, 0 * step, ("y", "x", "x2", "y2"))
        pure = rows[:, :3].clone()
        pure[..., 2:8] = 0
        ends = still.affine(pure, 0 * constant[:, :3], None)
        assert all(float(end.abs().max()) < 1e-9 for end in ends)


def test_a_bound_of_a_small_step_is_near_the_slope() -> None:
    """Compared with the two runs apart, which a box of any size leaves wide."""
    model = chain(0, 1)
    x = torch.zeros(1, 3, dtype=torch.float64)
    step = torch.tensor([[1e-3, 0.0, 0.0]], dtype=torch.float64)
    rows = torch.tensor([[[-1.0, 1.0]]], dtype=torch.float64)
    bounds = step_bounds(model, x - 0.2, x + 0.2, step, ("y", "y2"))
    least, most = bounds.affine(rows, torch.zeros(1, 1, dtype=torch.float64), None)
    true = float(model(x + step) - model(x))
    assert float(most - least) < 0.5e-3 and float(least) - 1e-12 <= true <= float(most) + 1e-12


def test_a_formula_of_inputs_is_bounded_too() -> None:
    prop = parse("forall x in box(-1, 1): y[0] + 2*x[0] - x[1] <= 3", outputs=1)
    model, x = chain(1, 1).float(), torch.zeros(4, 3)
    region = Region.of(prop, x)
    upper = prop.upper(moved_bounds(model, prop, region.lower, region.upper))
    draw = torch.Generator().manual_seed(0)
    for _ in range(50):
        x = region.sample(draw)["x"]
        assert bool((prop.loss(model(x), x=x) <= upper + 1e-5).all())
    about = parse("forall x in ball(x0, 1): y[0] <= x0[0]", outputs=1)
    with pytest.raises(FormulaError, match="cannot be bounded"):
        about.upper(moved_bounds(model, about, x, x))


def test_boxes_stay_in_the_domain_and_whole(tmp_path: Path) -> None:
    data = homes()
    prop = parse(RISING, schema=data.schema)
    x = torch.from_numpy(data.train.inputs[:32])
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0, 0.0]]))
    term = boxed_term(model, prop, x, logic=qll.QLL(5), seed=0, size=0.4)
    assert not bool(term.satisfied.any()) and float(term.losses.detach().min()) > 0.5
    term.losses.mean().backward()  # type: ignore[no-untyped-call]
    assert float(model.weight.grad[0, 0]) < 0  # type: ignore[index]
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0]]))
    assert bool(boxed_term(model, prop, x, logic=qll.QLL(5), seed=0, size=1.0).satisfied.all())
    wavy = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    with pytest.raises(NetworkError, match="cannot be bounded"):
        boxed_term(wavy, prop, x, logic=qll.QLL(5), seed=0, size=0.4)


@pytest.mark.parametrize(
    "method", ["small-box", "bound", pytest.param("mixed", marks=pytest.mark.slow)]
)
def test_a_network_trained_on_bounds_is_proved_monotone(tmp_path: Path, method: str) -> None:
    data = homes()
    path = tmp_path / "rule.qll"
    path.write_text(RISING)
    options: dict[str, Any] = {"epochs": 15, "network": "mlp:8", "learning_rate": 0.03}
    if method == "mixed":
        options["options"] = {"share": 0.5}
    run = train(resolve(str(path), data.name, options={**options, "method": method}), data=data)
    assert run.evaluation.r2 is not None and run.evaluation.r2 > 0.75
    assert all(0 <= row["train_csec"] <= 1 for row in run.rows)
    prop = parse(RISING, schema=data.schema)
    (verdict,) = qll.verify(prop, run.model.eval(), data.test.batch(slice(0, 1))[0], timeout=30)
    assert str(verdict.status) == "verified"


def test_pairs_that_break_the_rule_are_fed_back(tmp_path: Path) -> None:
    data = homes()
    path = tmp_path / "rule.qll"
    path.write_text(RISING)
    first, last = nn.Linear(2, 4), nn.Linear(4, 1)
    with torch.no_grad():
        last.weight.copy_(-first.weight[:, 0])  # it falls with the size
    start = nn.Sequential(first, nn.ReLU(), last)
    options = {"epochs": 1, "logic": "qll:5", "learning_rate": 1e-6}
    config = CycleConfig(
        train=resolve(str(path), "data", options=options),
        target=1.0, budget=60, asked=1, feedback=1, most_rounds=2, more_epochs=1, accuracy=0.0,
    )  # fmt: skip
    result = cycle(config, tmp_path / "out", data=data, start=start)
    assert result.rounds[0].falsified == 1 and result.rounds[0].witnesses == 1
    kept = Feedback.load(tmp_path / "out" / "round-01")
    assert kept is not None and kept.seconds is not None
    assert kept.witnesses.shape == kept.seconds.shape == (1, 2)
    assert float(kept.seconds[0, 0]) > float(kept.witnesses[0, 0])
    falling = nn.Linear(2, 1)
    with torch.no_grad():
        falling.weight.copy_(torch.tensor([[-1.0, 0.0]]))
    prop = parse(RISING, schema=data.schema)
    term = kept.term(falling, prop, qll.QLL(5), data, batch=8, seed=0, place=(0, 0))
    assert term is not None and not bool(term.satisfied.any())
    assert float(term.losses.detach()) > 0.5  # however small the step of the pair
    x0 = torch.from_numpy(data.train.inputs[:1])
    pair = spread(prop, {"x": kept.witnesses, "x2": kept.seconds}, x0, torch.Generator())
    between = (pair["x"] >= kept.witnesses) & (pair["x"] <= kept.seconds)
    assert bool(between.all())


# --- by construction ---

FAIR = """
forall x in domain, x2 in domain and x2["size"] == x["size"]:
  y["price"] >= 2 -> y2["price"] >= 2
"""


def test_signs_of_weights_make_a_network_rise_whatever_it_learns(tmp_path: Path) -> None:
    data = homes()
    prop = parse(RISING, schema=data.schema)
    x = torch.from_numpy(data.train.inputs)
    assert ways_of_inputs(prop, x) == [1.0, None] and ways_of_outputs(prop, 1) == [1.0]
    path = tmp_path / "rule.qll"
    path.write_text(RISING)
    options = {"epochs": 15, "network": "mlp:9,6", "learning_rate": 0.03, "method": "signed"}
    run = train(resolve(str(path), data.name, options=options), tmp_path / "run", data=data)
    assert run.evaluation.r2 is not None and run.evaluation.r2 > 0.75
    (verdict,) = qll.verify(
        prop, run.model.eval(), data.test.batch(slice(0, 1))[0], certified=True, timeout=30
    )
    assert str(verdict.status) == "verified" and verdict.nodes == 1
    assert verdict.evidence is Evidence.CHECKED


def test_a_network_is_made_blind_to_what_a_rule_lets_go_either_way(tmp_path: Path) -> None:
    data = homes()
    prop = parse(FAIR, schema=data.schema)
    x = torch.from_numpy(data.train.inputs)
    assert ways_of_inputs(prop, x) == [None, 0.0] and ways_of_outputs(prop, 1) == [0.0]
    path = tmp_path / "rule.qll"
    path.write_text(FAIR)
    options = {"epochs": 10, "network": "mlp:6", "method": "signed", "learning_rate": 0.03}
    model = train(resolve(str(path), data.name, options=options), data=data).model
    other = torch.cat((x[:, :1], 4 - x[:, 1:]), 1)
    assert torch.equal(model(x), model(other))
    assert float(model(x).detach().std()) > 0.1
    # y >= 2 and y2 < 2 need a difference, and there is none.
    (verdict,) = qll.verify(prop, model.eval(), x[:1], certified=True, timeout=30)
    assert str(verdict.status) == "verified" and verdict.nodes == 1
    assert verdict.evidence is Evidence.CHECKED


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('forall x in domain: y["price"] >= 0', "over two points"),
        (RISING.replace(">= y[", ">= 1 + y["), "equal outputs"),
    ],
)
def test_what_signs_cannot_give_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rule.qll"
    path.write_text(text)
    config = resolve(str(path), "data", options={"epochs": 1, "method": "signed"})
    with pytest.raises(InputError, match=message):
        train(config, data=homes())


def test_other_layers_have_no_signs_to_keep(tmp_path: Path) -> None:
    path = tmp_path / "rule.qll"
    path.write_text(RISING)
    config = resolve(str(path), "data", options={"epochs": 1, "method": "signed"})
    wavy = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    with pytest.raises(NetworkError, match="signs of this network's weights"):
        train(config, data=homes(), model=wavy)
