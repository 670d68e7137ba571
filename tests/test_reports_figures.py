"""The paper's figures: right numbers behind them, and files that are what they claim to be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from qll.cli.main import build_app
from qll.data.source import load
from qll.errors import InputError
from qll.logics.base import LOGICS
from qll.logics.base import logic as read_logic
from qll.reports.fields import connective, gradient_gap, paper_logics, square
from qll.reports.figures import draw_figures


def test_every_registered_logic_is_drawn_as_the_paper_does() -> None:
    logics = {logic.name: logic for logic in paper_logics()}
    assert set(logics) == set(LOGICS)
    assert (logics["yager"].hardness, logics["qll"].hardness, logics["stl"].hardness) == (5, 1, 1)
    assert square(logics["product"]) == (0.0, 1.0)
    assert square(logics["dl2"]) == (-2.0, 2.0)


def test_fields_are_the_connectives() -> None:
    qll = connective(read_logic("qll:1"), "and", 5, (-2, 2))
    x, y = np.meshgrid(qll.axis, qll.axis)
    np.testing.assert_allclose(qll.value, np.log(np.exp(x) + np.exp(y)))
    np.testing.assert_allclose(qll.by_x, 1 / (1 + np.exp(y - x)))
    # STL's robustness is higher-is-truer: drawn the other way round, its conjunction nears max too.
    stl = connective(read_logic("stl:200"), "and", 5, (-2, 2))
    np.testing.assert_allclose(stl.value, np.maximum(x, y), atol=1e-6)
    product = connective(read_logic("product"), "or", 3, (0, 1))
    assert product.value[1, 1] == pytest.approx(0.75)


def test_gradients_near_those_of_max_as_hardness_grows() -> None:
    gaps = [gradient_gap(read_logic(f"qll:{p}"), 40)[1].mean() for p in (1, 2, 10)]
    assert gaps[0] > gaps[1] > gaps[2]
    _, gap, cosine = gradient_gap(read_logic("qll:2"), 40)
    assert gap.min() >= 0 and gap.max() <= np.sqrt(2) and np.nanmax(cosine) <= 1 + 1e-12


@pytest.mark.parametrize("name", ["gradients-vs-max", pytest.param("dice", marks=pytest.mark.slow)])
def test_files_are_drawn_twice_alike(tmp_path: Path, name: str) -> None:
    first = draw_figures(tmp_path / "a", names=[name])
    second = draw_figures(tmp_path / "b", names=[name], formats=["svg"])
    heads = {path.suffix: path.read_bytes()[:5] for path in first}
    assert heads[".pdf"] == b"%PDF-" and heads[".png"][1:4] == b"PNG" and heads[".svg"] == b"<?xml"
    svg = next(path for path in first if path.suffix == ".svg")
    assert svg.read_bytes() == second[0].read_bytes()


def test_labels_of_the_photographs(shared: Path) -> None:
    """The paper's table of labels."""
    dice = load("dice", shared / "data")
    labels = np.concatenate([dice.train.labels, dice.test.labels])
    assert labels.sum(axis=0).tolist() == [156, 181, 179, 161, 159, 184]


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not drawn as 'gif'"):
        draw_figures(tmp_path, formats=["gif"])
    with pytest.raises(InputError, match="no figure 'cats'"):
        draw_figures(tmp_path, names=["cats"])
    file = tmp_path / "file"
    file.write_text("in the way")
    result = CliRunner().invoke(build_app(), ["figures", "dice", "--out", str(file)])
    assert "cannot be written" in str(result.exception)


@pytest.mark.slow
def test_all_figures(tmp_path: Path) -> None:
    assert len(draw_figures(tmp_path, formats=["png"])) == 4
