"""The table of certified runs is what their records say, and the zoo's networks have records."""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path

import pytest

from qll.reports.compact import SUFFIX, read_compact
from qll.training.config import TrainConfig, resolve
from qll.zoo.shelf import names, zoo

ROOT = Path(__file__).parents[1]


def test_the_page_is_what_the_records_say(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "bench")
    made = importlib.import_module("certified_runs")
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    best = made.best_of_paper(shared / "paper/results.json")
    text = made.table(made.rows_of(ROOT / "results/certified"), best)
    assert page == made.replaced(page, text), "run bench/certified_runs.py --write docs/results.md"


@pytest.mark.parametrize("name", [name for name in names() if not zoo(name).card.closed])
def test_a_network_of_the_zoo_has_the_record_of_its_run(name: str) -> None:
    """And the command on its card still says how it was trained, whatever the defaults are now."""
    card = zoo(name).card
    records = [read_compact(path) for path in (ROOT / "results/certified").glob(f"*{SUFFIX}")]
    (record,) = (
        r for r in records if (r.network, r.config["property"]) == (card.network_sha256, card.rule)
    )
    assert record.config["seed"] == card.seed
    assert record.evaluation is not None
    assert card.accuracy == pytest.approx(record.evaluation["pacc"]["share"])
    words = shlex.split(card.recipe)  # qll train RULE --data ..., every option with its value
    given = list(zip(words[3::2], words[4::2], strict=True))
    options = {key.removeprefix("--"): value for key, value in given if key != "--set"}
    settings = [value for key, value in given if key == "--set"]
    again = resolve(words[2], options.pop("data"), options=options, settings=settings)
    run = TrainConfig(**record.config)
    # A method's options cannot be unset: the command says what the run had by default.
    said = {"data_dir": None, "options": {**again.options, **run.options}}
    assert again == run.model_copy(update=said)
