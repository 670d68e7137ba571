"""Tables as people have them: decimal commas, units, a stray word, another encoding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qll.cli.main import build_app
from qll.data import load
from qll.errors import DataError

GERMAN = "Fläche;Zimmer;Art;Miete\n48,4;1;Altbau;438,71\n85,7;;Neubau;1.001,60\n61,0;3;Altbau;700\n"


def table(folder: Path, text: str, *, encoding: str = "utf-8") -> Path:
    path = folder / "rents.csv"
    path.write_text(text, encoding=encoding)
    return path


def refusal(path: Path, target: str) -> str:
    with pytest.raises(DataError) as caught:
        load(str(path), target=target)
    said = str(caught.value)
    assert said.count("\n") == 2 and "Fix: " in said
    return said


def test_decimal_commas_are_refused_then_read_as_the_schema_says(tmp_path: Path) -> None:
    path = table(tmp_path, GERMAN)
    said = refusal(path, "Miete")
    assert "line 2, column 'Miete': numbers are written with a comma" in said
    assert "--decimal ," in said
    run = ["data", str(path), "--target", "Miete", "--decimal", ",", "--missing", "mean", "--write"]
    found = CliRunner().invoke(build_app(), [*run, "--json", str(tmp_path / "said.json")])
    assert found.exit_code == 0, found.output
    assert json.loads((tmp_path / "said.json").read_text())["features"][0]["upper"] == 85.7
    data = load(str(path), test=0.34)  # by the schema that was written
    rents = sorted([*data.train.labels[:, 0].tolist(), *data.test.labels[:, 0].tolist()])
    assert rents == pytest.approx([438.71, 700, 1001.60])
    path.write_text(GERMAN.replace("61,0", "61.5"))
    with pytest.raises(DataError, match="a number has a decimal point"):
        load(str(path))


def test_few_values_with_commas_are_no_category(tmp_path: Path) -> None:
    rows = "\n".join(f"{k % 3},{5 * (k % 2)};{k}" for k in range(12))
    assert "written with a comma" in refusal(table(tmp_path, f"a;y\n{rows}\n"), "y")


def test_units_and_stray_words_are_named_by_their_cell(tmp_path: Path) -> None:
    rows = [f"{k}.5,{k}.25 EUR" for k in range(30)]
    path = table(tmp_path, "area,rent\n" + "\n".join(rows) + "\n")
    assert "line 2, column 'rent': a number stands beside a unit" in refusal(path, "rent")
    rows = [f"{k}.5,{k}.25" for k in range(30)]
    rows[7] = '"7,5",7.25'
    path = table(tmp_path, "area,rent\n" + "\n".join(rows) + "\n")
    said = refusal(path, "rent")
    assert "line 9, column 'area': a word stands among numbers" in said
    assert "29 of the column's 30 cells, found '7,5'" in said and "Fix: write 7.5." in said


def test_another_encoding_is_named_with_the_way_out(tmp_path: Path) -> None:
    said = refusal(table(tmp_path, GERMAN, encoding="cp1252"), "Miete")
    assert "line 1: the text is not in UTF-8" in said and "iconv" in said


def test_row_numbers_and_the_code_of_two_words_are_shown(tmp_path: Path) -> None:
    rows = "\n".join(f"{k},{('ja', 'nein')[k % 2]},{k * 1.5}" for k in range(20))
    path = table(tmp_path, f"id,balcony,rent\n{rows}\n")
    shown = CliRunner().invoke(build_app(), ["data", str(path), "--target", "rent"]).output
    assert "0 ja, 1 nein" in shown
    assert "leave it out: --features balcony" in shown
