"""Every command of the documentation is one that the program takes: no option that is gone, none
that is misspelt, nothing that is required left out. The README's are also run."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from qll.cli.main import build_app
from qll.cli.solver import build_solver, query_arguments

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "commands.md"),
    *sorted((ROOT / "examples").glob("*/README.md")),
]


def commands(page: Path) -> list[str]:
    """Of blocks without a language and of indented ones; a backslash continues a line, ``#`` begins
    a remark, and what is in brackets may be left out."""
    found = []
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    indented = [("", line) for line in re.findall(r"^    (qll .*)$", text, re.M)]
    for language, block in [*re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S), *indented]:
        if language not in ("", "bash", "sh", "console"):
            continue
        pending = ""
        for line in block.splitlines():
            line = f"{pending} {line}".strip().removeprefix("$ ")
            if line.startswith("qll ") and line.count("'") % 2:  # a quoted value goes on
                pending = line
                continue
            pending, line = "", re.split(r"\s#\s", line)[0]
            line = re.sub(r" \[(--[^\]]*)\]", r" \1", line).replace(" ... ", " ")
            if re.match(r"qll \S", line):
                found.append(re.split(r" (?:[|>]|&&) ?", line)[0].strip())
    return found


@cache
def program() -> Any:
    return get_command(build_app())


def parse(words: list[str]) -> None:
    """As the program would, without doing anything."""
    query = query_arguments(words)
    command: Any = program() if query is None else get_command(build_solver())
    words = words if query is None else query
    path = "qll"
    while hasattr(command, "commands") and words and words[0] in command.commands:
        path, command = f"{path} {words[0]}", command.commands[words[0]]
        words = words[1:]
    if hasattr(command, "commands") and words and not words[0].startswith("-"):
        raise ValueError(f"no such command: {words[0]}")
    command.make_context(path, list(words))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_are_understood(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for line in commands(page):
        try:
            parse(shlex.split(line)[1:])
        except SystemExit as ended:  # --help, --version
            assert ended.code == 0, line
        except Exception as error:
            raise AssertionError(f"{page.name}: {line}: {error!r}") from error


def test_commands_are_found_and_wrong_ones_are_noticed() -> None:
    assert sum(len(commands(page)) for page in PAGES) > 60
    for wrong in ("verify rule.qll --netwrk n.onnx", "verify rule.qll", "nothing"):
        with pytest.raises(Exception, match=r"(?i)no such|missing"):
            parse(wrong.split())
