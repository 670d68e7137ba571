"""Every shipped property: loads, reads finitely with finite gradients, agrees with a hand check."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import qll
from qll.errors import FormulaError, InputError
from qll.formula.show import Style
from qll.properties import names, purposes

BATCH, OUTPUTS, INPUTS = 64, {"exactly-one": 6, "not-both": 6, "label-robustness": 6}, (2, 3)
Points = dict[str, Tensor]


def points(name: str) -> Points:
    generator = torch.Generator().manual_seed(len(name))
    outputs = OUTPUTS.get(name, 10)

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(BATCH, *shape, generator=generator, dtype=torch.float64) * scale

    return {
        "y": draw(outputs, scale=1.5),
        "y0": draw(outputs, scale=0.4),
        "y2": draw(outputs, scale=1.5),
        "x": draw(*INPUTS, scale=0.05),
        "x0": draw(*INPUTS, scale=0.05),
        "x2": draw(*INPUTS),
        "c": torch.randint(0, outputs, (BATCH,), generator=generator),
    }


def classification(p: Points) -> list[bool]:
    return [bool(row[c] >= row.max()) for row, c in zip(p["y"], p["c"], strict=True)]


def strong(p: Points) -> list[bool]:
    return [torch.sigmoid(row[c]).item() >= 0.7 for row, c in zip(p["y"], p["c"], strict=True)]


def clothing(p: Points) -> list[bool]:
    clothes, shoes = {0, 2, 3, 4, 6}, {5, 7, 9}
    found = []
    for row, c in zip(p["y"].tolist(), p["c"].tolist(), strict=True):
        rivals = shoes if c in clothes else clothes if c in shoes else set()
        found.append(all(row[c] >= row[i] for i in rivals))
    return found


def not_both(p: Points) -> list[bool]:
    return [not any(row[i] > 0 and row[5 - i] > 0 for i in range(3)) for row in p["y"].tolist()]


def exactly_one(p: Points) -> list[bool]:
    return [all((row[i] > 0) != (row[5 - i] > 0) for i in range(3)) for row in p["y"].tolist()]


def standard(p: Points) -> list[bool]:
    return ((p["y"] - p["y0"]).abs() <= 1).all(1).tolist()


def lipschitz(p: Points) -> list[bool]:
    moved = (p["y"] - p["y0"]).abs().amax(1)
    return (moved <= 10 * (p["x"] - p["x0"]).abs().flatten(1).amax(1)).tolist()


def bounds(p: Points) -> list[bool]:
    return (p["y"].abs() <= 10).all(1).tolist()


def group(p: Points) -> list[bool]:
    chosen = p["y"][:, [0, 2, 3, 4, 6]]
    return (chosen.amax(1) - chosen.amin(1) <= 2).tolist()


def monotone(p: Points) -> list[bool]:
    return (p["y2"][:, 0] >= p["y"][:, 0]).tolist()


def labels_right(p: Points) -> list[bool]:
    return [
        all((row[k] >= 0) if k == c else (row[k] <= 0) for k in range(6))
        for row, c in zip(p["y"].tolist(), p["c"].tolist(), strict=True)
    ]


BY_HAND: dict[str, Callable[[Points], list[bool]]] = {
    "classification-robustness": classification,
    "strong-classification-robustness": strong,
    "clothing-footwear": clothing,
    "not-both": not_both,
    "exactly-one": exactly_one,
    "standard-robustness": standard,
    "lipschitz-robustness": lipschitz,
    "output-bounds": bounds,
    "group-similarity": group,
    "monotonicity": monotone,
    "label-robustness": labels_right,
}
# Scales at which the property holds for some samples and fails for others.
SCALES = {"lipschitz-robustness": 0.02, "standard-robustness": 0.4, "output-bounds": 5.0,
          "group-similarity": 0.6, "label-robustness": 1.0}  # fmt: skip


def arguments(prop: qll.Property, p: Points) -> dict[str, Tensor]:
    given = {name: p[name] for name in prop.sources if name != "y"}
    return {**given, "labels": p["c"]} if prop.uses_labels else given


def prepared(name: str) -> Points:
    p = points(name)
    p["y"] = p["y"] * SCALES.get(name, 1.0)
    if name == "label-robustness":  # random signs would almost never be right
        right = torch.where(torch.arange(6) == p["c"][:, None], 1.0, -1.0)
        p["y"] = torch.where(torch.arange(BATCH)[:, None] % 2 == 0, p["y"].abs() * right, p["y"])
    if name == "exactly-one":
        p["y"][::2, 3:] = -p["y"][::2, :3].flip(1)
    if name == "lipschitz-robustness":
        p["y0"] = p["y"] + p["y0"]
    return p


def test_every_shipped_property_is_checked_by_hand_here() -> None:
    assert sorted(BY_HAND) == names()


@pytest.mark.parametrize("name", names())
def test_holds_agrees_with_a_hand_written_check(name: str) -> None:
    prop, p = qll.load(name), prepared(name)
    found = prop.holds(p["y"], **arguments(prop, p)).tolist()
    assert found == BY_HAND[name](p)
    assert len(set(found)) == 2, "the points should tell good from bad"


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_readings_are_finite_with_finite_gradients(name: str, dtype: torch.dtype) -> None:
    prop = qll.load(name)
    p = {k: v.to(dtype) if v.is_floating_point() else v for k, v in prepared(name).items()}
    for logic in qll.LOGICS:
        y = p["y"].clone().requires_grad_()
        loss = prop.loss(y, logic=logic, **arguments(prop, p))
        assert loss.shape == (BATCH,) and loss.dtype == dtype
        assert torch.isfinite(loss).all(), logic
        if logic == "boolean":
            assert torch.equal(loss == 0, prop.holds(y, **arguments(prop, p)))
            continue
        (slope,) = torch.autograd.grad(loss.sum(), y)
        assert torch.isfinite(slope).all(), logic
        if logic in ("qll", "stl"):
            assert slope.abs().sum() > 0


@pytest.mark.parametrize("name", names())
def test_region_and_slack(name: str) -> None:
    prop = qll.load(name, outputs=OUTPUTS.get(name, 10), inputs=INPUTS)
    region = qll.Region.of(prop, torch.full((4, *INPUTS), 0.5))
    found = region.sample(torch.Generator().manual_seed(1))
    assert region.contains(found, tolerance=1e-6).all()
    a, b = prop.slack("qll:5")
    assert a >= 0 and b >= 0
    assert prop.slack("boolean") == (0.0, 0.0)


def test_described_for_the_command_line() -> None:
    found = purposes()
    assert list(found) == names()
    for name, sentence in found.items():
        assert len(sentence) > 20 and sentence in qll.load(name).documentation.replace("\n", " ")


def test_other_numbers_of_outputs() -> None:
    prop = qll.load("classification-robustness", outputs=4)
    y = torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    assert prop.holds(y, labels=torch.tensor([1])).item()
    with pytest.raises(FormulaError, match="output 5 does not exist"):
        qll.load("clothing-footwear", outputs=4).holds(y, labels=torch.tensor([0]))


def test_files_by_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.qll"
    file.write_text("# Mine.\nparameter a: number = 1\ny[0] <= a\n", encoding="utf-8")
    prop = qll.load(file, a=2)
    assert prop.name == "mine.qll" and prop.values == {"a": 2.0}
    assert qll.load(str(file)).documentation == "Mine."
    file.write_text("y[0] <= \n", encoding="utf-8")
    with pytest.raises(FormulaError, match=r"mine.qll:1:\d+: the text ends"):
        qll.load(file)
    (tmp_path / "bytes.qll").write_bytes(b"\xff\xfe y[0]")
    for missing in (tmp_path / "bytes.qll", tmp_path / "none.qll", tmp_path):
        with pytest.raises(InputError):
            qll.load(missing)


@pytest.mark.parametrize("style", ["ascii", "unicode"])
@pytest.mark.parametrize("name", names())
def test_a_printed_property_carries_its_parameters(name: str, style: Style) -> None:
    """``load("not-both", epsilon=0.02)``, printed and read again, had 0.0157."""
    outputs = OUTPUTS.get(name, 10)
    usual = qll.load(name, outputs=outputs)
    changed = {
        "probability": 0.123456789,
        "input": 1e-7 / 3,
        "logit": -2.0 / 3,
        "number": -1e22,
        "rate": 12345.678,
    }
    values = {p.name: changed[p.unit] for p in usual.specification.parameters}
    assert values, "a property without a parameter tests nothing here"
    given = usual.with_parameters(**values)
    read = qll.parse(given.show(style), outputs=outputs)
    for parameter, value in values.items():
        assert read.value_of(parameter) == value != usual.value_of(parameter)
    assert read.values == given.values
    assert read.show(style) == given.show(style)
    p = points(name)
    others = {k: p[k] for k in given.sources - {"y"}}
    labels = p["c"] if given.uses_labels else None
    found = [prop.margin(p["y"], labels=labels, **others) for prop in (given, read)]
    assert torch.equal(*found)
