"""``qll doctor`` and the groups of ``qll --help``."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import qll.doctor
from qll.cli.groups import GROUPS
from qll.cli.main import build_app
from qll.doctor import EXTRAS, OF_ALL, Finding, examine

ROOT = Path(__file__).parents[1]


def test_everything_is_well_here(tmp_path: Path) -> None:
    found = CliRunner().invoke(build_app(), ["doctor", "--json", str(tmp_path / "found.json")])
    assert found.exit_code == 0, found.output
    findings = json.loads((tmp_path / "found.json").read_text())["findings"]
    states = {item["topic"]: item["state"] for item in findings}
    assert states["self-test"] == "ok"
    assert "wrong" not in states.values()


def test_the_extras_are_those_of_the_package() -> None:
    held = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    bundles = {"all", "dev"}
    assert set(EXTRAS) == set(held) - bundles
    (listed,) = held["all"]
    assert set(OF_ALL) == set(listed.removeprefix("qll[").removesuffix("]").split(","))


def test_a_wrong_answer_is_a_wrong_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-test can fail: a verifier that says the opposite is noticed."""
    from qll.verify import api
    from qll.verify.verdict import Verdict

    def lies(*_: object, **__: object) -> list[Verdict]:
        return [Verdict("falsified", "attack")]

    monkeypatch.setattr(api, "verify", lies)
    (last,) = [item for item in examine() if item.topic == "self-test"]
    assert last.state == "wrong"
    said = [Finding("x", "y", "wrong", "z"), Finding("u", "v", "optional", "w")]
    monkeypatch.setattr(qll.doctor, "examine", lambda **_: iter(said))
    found = CliRunner().invoke(build_app(), ["doctor"])
    assert found.exit_code == 1 and "Fix: z" in found.output
    assert "optional  u" in found.output and "Fix: w" not in found.output  # no fault of anybody's


def test_every_command_stands_in_a_group_and_has_an_example() -> None:
    held = get_command(build_app())
    commands = held.commands  # type: ignore[attr-defined]
    grouped = [name for names in GROUPS.values() for name in names]
    assert len(grouped) == len(set(grouped))
    assert set(commands) <= set(grouped)
    shown = CliRunner().invoke(build_app(), ["--help"]).output
    assert "..." not in shown.split("From a rule")[1]  # every line is whole on 80 columns
    for name, command in commands.items():
        assert f"\n  {name} " in shown
        assert "Example: qll" in command.help or name in ("zoo", "supports"), name


def test_the_list_of_rules_fits_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from qll.cli.answers import fitted

    text = (
        f"{'clothing':34}a piece of clothing beats every kind of footwear, and the other way round"
    )
    assert "\n" not in fitted(text, 34)  # a pipe has a line each
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    lines = fitted(text, 34).splitlines()
    assert len(lines) == 2 and all(len(line) <= 80 for line in lines)
    assert lines[1].startswith(" " * 34 + "footwear")
