"""Grids: which runs there are, and what is refused before any of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from grid_cases import call
from synthetic_runs import GRID

from qll.errors import InputError, QllError
from qll.grid.plan import paper_grid, read_grid
from qll.training.config import resolve


def test_the_paper_s_grid_has_the_paper_s_rows(shared: Path) -> None:
    published = json.loads((shared / "paper" / "results.json").read_text())
    theirs = [
        (
            row["constraint"],
            row["dataset"],
            row["logic"].lower() + ("" if row["parameter"] is None else f":{row['parameter']:g}"),
        )
        for row in published
    ]
    assert [(row.property, row.data, row.logic) for row in paper_grid().rows] == theirs


def test_the_paper_s_runs_are_260_folders_with_the_usual_names() -> None:
    runs = paper_grid().runs()
    names = [run.name for run in runs]
    assert len(names) == len(set(names)) == 260
    assert {"not-both-dice-qll5-0", "not-both-dice-baseline-3"} <= set(names)
    assert "classification-robustness-mnist-qll5-0" in names
    ours = {(pair, logic) for pair, logics in GRID.items() for logic in logics}
    assert {((r.row.property, r.row.data), r.row.logic) for r in runs} == ours
    # the first seed of every row first
    assert [run.config.seed for run in runs] == [seed for seed in range(5) for _ in range(52)]
    for run in runs[:52]:
        assert run.config == resolve(
            run.row.property, run.row.data, options={"logic": run.row.logic, "seed": 0}
        )


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("dice", 22),
        ("not-both/dice/qll:5", 1),
        ("not-both-dice-qll5", 1),
        ("qll:1$", 2),
        ("^excl", 0),
        (r"(mnist|fashion)/qll", 8),
        ("not-both.*(dl2|baseline)", 2),
    ],
)
def test_rows_are_chosen_by_text_or_by_pattern(pattern: str, count: int) -> None:
    if count:
        assert len(paper_grid().choose([pattern]).rows) == count
    else:
        with pytest.raises(InputError, match="no row of the grid 'paper' matches"):
            paper_grid().choose([pattern])


def test_an_unknown_row_is_named_with_a_near_one() -> None:
    with pytest.raises(InputError) as caught:
        paper_grid().choose(["dcie"])
    assert "did you mean 'dice'?" in str(caught.value)
    with pytest.raises(InputError, match=r"matches '\[dice'"):
        paper_grid().choose(["[dice"])


def test_settings_of_a_grid_and_of_a_row(tmp_path: Path) -> None:
    (tmp_path / "mine.qll").write_text((_shipped("not-both")).read_text())
    path = tmp_path / "g.toml"
    path.write_text(
        'name = "g"\nseeds = [3]\n'
        "[settings]\nepochs = 7\nparameters = { epsilon = 0.5 }\n"
        '[[rows]]\nproperty = "not-both"\ndata = "dice"\nlogics = ["qll:5"]\n'
        '[[rows]]\nproperty = "mine.qll"\ndata = "dice"\nlogics = ["qll:p=5"]\nlabel = "low"\n'
        "settings = { alpha = 0.1, epochs = 9 }\n"
    )
    first, second = read_grid(path).runs()
    assert first.name == "not-both-dice-qll5-3" and second.name == "mine-dice-qllp5-low-3"
    assert (first.config.epochs, first.config.alpha) == (7, 0.5)
    assert (second.config.epochs, second.config.alpha) == (9, 0.1)
    assert first.config.parameters["epsilon"] == second.config.parameters["epsilon"] == 0.5
    assert read_grid(path).runs(seeds=[0, 1], epochs=2)[3].config.epochs == 2


def _shipped(name: str) -> Path:
    import qll.properties

    return Path(qll.properties.__file__).parent / f"{name}.qll"


ROW = '[[rows]]\nproperty = "not-both"\ndata = "dice"\nlogics = ["qll:5"]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rows = 3 4", "not TOML"),
        ('name = "g"\n', "key 'rows' is missing"),
        (ROW.replace('"qll:5"', ""), "key 'rows.0.logics' has a wrong value"),
        (ROW + "epoch = 3\n", "unknown key 'rows.0.epoch'"),
        ("seed = [1]\n" + ROW, "unknown key 'seed'"),
        ("seeds = [-1]\n" + ROW, "key 'seeds.0' has a wrong value"),
        ("[settings]\nepoch = 1\n" + ROW, "unknown setting 'epoch'"),
        ("[settings]\nseed = 1\n" + ROW, "'seed' is not a setting of a row"),
        (ROW + ROW, "two rows have one name"),
        (ROW.replace("qll:5", "qlll"), "unknown logic 'qlll'"),
        (ROW.replace("not-both", "not-bth"), "unknown property 'not-bth'"),
        (ROW.replace('"dice"', '"dcie"'), "unknown data set 'dcie'"),
        (ROW + 'label = "../x"\n', "key 'rows.0.label' has a wrong value"),
    ],
)
def test_a_wrong_grid_is_refused_before_anything_runs(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "g.toml"
    path.write_text(text)
    with pytest.raises(QllError) as caught:
        read_grid(path)
    assert message in str(caught.value) and str(path) in str(caught.value)
    assert str(caught.value).count("\n") == 2 and "Fix:" in str(caught.value)


def test_a_grid_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the grid cannot be read"):
        read_grid(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "dcie"], "no row of the grid"),
        (["--seeds", "a"], "--seeds names no seeds"),
        (["--seeds", "3-1"], "--seeds names no seeds"),
        (["--count", "-1"], "cannot be verified"),
        (["--timeout", "0"], "time-out is not positive"),
        (["--engine", "dusk"], "unknown engine 'dusk'"),
        (["--scheduler", "tcp://x:1"], "local processes have no scheduler"),
        (["--grid", "none.toml"], "the grid cannot be read"),
        (["--epochs", "-3"], "setting 'epochs' has a wrong value"),
    ],
)
def test_mistakes_are_three_lines(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("reproduce", *arguments)
    assert isinstance(result.exception, QllError), result.output
    assert message in str(result.exception) and str(result.exception).count("\n") == 2
    assert not list(tmp_path.iterdir())


def test_the_list_runs_nothing(tmp_path: Path) -> None:
    result = call(
        "reproduce", "--list", "--rows", "dice", "--seeds", "0-2", "--out", tmp_path / "x"
    )
    assert result.exit_code == 0
    assert "not-both/dice/qll:10" in result.output and "3 not started" in result.output
    assert "22 rows x 3 seeds = 66 runs" in result.output
    assert not (tmp_path / "x").exists()
