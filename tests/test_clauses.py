"""Rules with premises on inputs: trained, attacked and sampled where their premises hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import qll
from qll.attacks.base import attack
from qll.formula.parse import parse_specification
from qll.metrics import constraint_accuracy
from qll.regions.clauses import clauses, speaks_of, turns
from qll.training.config import resolve
from qll.training.feedback import Feedback
from qll.training.loop import Trainer, load_configured
from qll.training.progress import Silent
from qll.verify.verdict import Evidence

CORNERS = """
define low = x[0] <= 0.01 and x[1] <= 0.01
define high = x[0] >= 0.99 and x[1] >= 0.99
forall x in box(0, 1):
  (low -> y[0] <= -1) and (high -> y[0] >= 1) and (low -> y[0] >= -3)
"""


def rules_of(text: str) -> list[str]:
    return [
        f"{' and '.join(map(str, rule.binders[-1].parts[1:]))}: {rule.formula}"
        for rule in clauses(qll.parse(text, outputs=2))
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("y[0] <= 1", [": y[0] <= 1"]),
        ("x[0] >= 1 -> y[0] <= 1", ["x[0] >= 1: y[0] <= 1"]),
        ("x[0] >= 1 and y[1] <= 0 -> y[0] <= 1", ["x[0] >= 1: y[1] <= 0 -> y[0] <= 1"]),
        ("x[0] >= 1 -> x[1] <= x[2] -> y[0] <= 1", ["x[0] >= 1 and x[1] <= x[2]: y[0] <= 1"]),
        ("(x[0] >= 1 -> y[0] <= 1) and y[1] <= 2", ["x[0] >= 1: y[0] <= 1", ": y[1] <= 2"]),
        # a disjunction of premises, a degree, a quantifier: they stay as they are written
        (
            "x[0] >= 1 or x[1] >= 1 -> y[0] <= 1",
            [": x[0] >= 1 or x[1] >= 1 -> y[0] <= 1"],
        ),
        ("x[0] >= 1 -o y[0] <= 1", [": x[0] >= 1 -o y[0] <= 1"]),
    ],
)
def test_premises_of_inputs_move_into_the_region(text: str, expected: list[str]) -> None:
    assert rules_of(f"forall x in box(0, 2): {text}") == expected


def test_a_rule_of_one_region_is_itself() -> None:
    prop = qll.load("not-both")
    assert clauses(prop) == (prop,) and clauses(prop)[0] is prop
    assert parse_specification(CORNERS, outputs=1).definitions
    low, high = clauses(qll.parse(CORNERS, outputs=1))
    assert low.sources == high.sources == {"y"}  # no definition that it has no use for
    assert not low.specification.definitions


def test_both_say_the_same() -> None:
    whole = qll.parse(CORNERS, outputs=1)
    x = (torch.randint(100, (4000, 2)) + 0.5) / 100  # off the edges, where a closed premise is void
    x[:2000] = (x[:2000] > 0.5).float()  # the corners
    y = 6 * torch.rand(4000, 1) - 3
    apart = torch.ones(4000, dtype=torch.bool)
    for rule in clauses(whole):
        inside = qll.Region.of(rule, x).contains({"x": x})
        apart &= ~inside | rule.holds(y)
    assert torch.equal(whole.holds(y, x=x), apart) and 0.2 < apart.float().mean() < 0.95


def test_rows_are_seen_where_a_premise_can_hold() -> None:
    """Of a person of 30 who may be 2 years older, nothing is said about those above 60."""
    text = "forall x in ball(x0, 2): (x[0] >= 60 -> y[0] <= 1) and (x[0] <= 61 -> y[0] >= 0)"
    prop = qll.parse(text, outputs=1)
    x = torch.tensor([[30.0], [60.0], [59.0], [80.0], [61.0]])
    old, _ = clauses(prop)
    assert speaks_of(old, x).tolist() == [False, True, True, True, True]
    for seed in range(4):
        shared = dict(zip("ab", [rows.tolist() for _, rows in turns(prop, x, seed)], strict=True))
        assert sorted(shared["a"] + shared["b"]) == [0, 1, 2, 3, 4]
        assert 0 in shared["b"] and 3 in shared["a"]
    nowhere = qll.parse("forall x in ball(x0, 2): x[0] >= 200 -> y[0] <= 1", outputs=1)
    assert [rows.tolist() for _, rows in turns(nowhere, x)] == [[]]
    found = attack("apgd:3")(nn.Linear(1, 1), nowhere, x)
    assert not found.falsified.any() and (found.margins == torch.inf).all()
    loss = qll.PropertyLoss(nowhere, attack="apgd:2", task=lambda y, t: ((y - t) ** 2).mean())
    assert torch.isfinite(loss(nn.Linear(1, 1), x, x / 100)) and loss.last.satisfied == 1.0


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * 0 + 0.5


def test_regions_that_are_small_are_attacked_and_sampled() -> None:
    """Two corners of a 10,000th of the box each: no random point of the box lies in them."""
    prop, model = qll.parse(CORNERS, outputs=1), Constant()
    x = torch.rand(20, 2)
    assert constraint_accuracy(model, prop, x, None).value == 0.0
    found = attack("apgd:3")(model, prop, x)
    assert found.falsified.all() and torch.allclose(found.margins, torch.tensor(-1.5))


STEPS = ["learning_rate=0.02", "batch_size=12", "weight=5", "enough=-1"]


def table(folder: Path) -> str:
    rng = np.random.default_rng(0)
    x = rng.random((120, 2))
    path = str(folder / "table.csv")
    np.savetxt(path, np.c_[x, x.sum(1)], delimiter=",", header="a,b,target", comments="")
    return path


@pytest.mark.parametrize("method", ["attack", "bound"])
def test_small_regions_are_trained(tmp_path: Path, method: str) -> None:
    """The corners are told apart from the plain sum, which is 0 and 2 there."""
    rule = str(tmp_path / "corners.qll")
    Path(rule).write_text(CORNERS)
    options = {"method": method, "logic": "qll:5", "epochs": 15, "network": "mlp:8"}
    options["data_options"] = {"task": "regression"}
    config = resolve(rule, table(tmp_path), options=options, settings=STEPS)
    data = load_configured(config)
    trainer = Trainer(config, data, None, None, Silent())
    trainer.run_epochs(0)
    ends = torch.tensor([[0.0, 0.0], [0.01, 0.01], [0.99, 0.99], [1.0, 1.0]])
    with torch.no_grad():
        y = trainer.model.eval()(ends)
    assert trainer.judged.holds(y, x=ends).all(), y


def test_witnesses_belong_to_their_rule() -> None:
    """One in the low corner, one on the edge of the high one, rounded to the outside."""
    prop = qll.parse(CORNERS, outputs=1).with_scales(y=[1.0])
    points = torch.tensor([[0.005, 0.005], [0.98999999, 0.995]])
    none = torch.zeros(0, dtype=torch.long)
    held = Feedback(none, points, torch.tensor([0, 1]))

    class Rows:
        class train:
            @staticmethod
            def batch(rows: Tensor) -> tuple[Tensor, Tensor]:
                return torch.rand(len(rows), 2), torch.zeros(len(rows))

    term = held.term(
        Constant(),
        prop,
        qll.logic("qll:5"),
        Rows,
        batch=8,
        seed=0,
        place=(0, 0),  # type: ignore[arg-type]
    )
    assert term is not None and len(term.losses) == 2 and (term.losses > 0).all()
    assert not term.satisfied.any()


def test_an_onnx_network_is_attacked_in_its_own_precision() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)).double().eval()
    rule = "forall x in box(0, 1): (x[0] >= 0.8 -> y[0] <= -9) and (x[1] <= 0.1 -> y[0] <= 9)"
    prop = qll.parse(rule, outputs=1)
    hit = qll.attack(prop, model, torch.full((3, 2), 0.5, dtype=torch.float64))
    assert hit.margins.dtype is torch.float64 and bool(hit.falsified.all())
    assert bool((hit.points["x"][:, 0] >= 0.8).all())


@pytest.mark.parametrize("whole", ["", " and integer(x)"])
def test_a_clause_whose_premise_nothing_meets_is_certified(whole: str) -> None:
    """No constraint alone says so, but they do together."""
    model = nn.Sequential(nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 1))
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), (1.0, 0.5, 1.0, 0.0), strict=True):
            parameter.fill_(value)
    region = f"box(0, 1){whole} and x[0] + x[1] <= 1 and x[0] <= x[1]"
    rule = f"forall x in {region}: (y[0] <= {{}}) and (x[0] >= 0.75 -> y[0] <= 3)"
    for most, expected in ((5, "verified"), (1.2, "falsified")):
        prop = qll.parse(rule.format(most), outputs=1)
        (verdict,) = qll.verify(prop, model.eval(), torch.zeros(1, 2), certified=True)
        assert verdict.status == expected and verdict.evidence is Evidence.CHECKED
