"""The pages: the commands' reference is the program's, every page is in the navigation."""

from __future__ import annotations

import re
from pathlib import Path

from qll.cli.reference import reference

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def test_the_reference_of_commands_is_up_to_date() -> None:
    held = (DOCS / "commands.md").read_text(encoding="utf-8")
    assert held == reference(), "run: python -m qll.cli.reference > docs/commands.md"


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
    assert listed == {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
