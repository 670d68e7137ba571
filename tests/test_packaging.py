"""What a wheel needs is declared: every file of the package that is not Python is package data."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/qll"


def _project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_other_file_is_package_data() -> None:
    patterns = _project()["tool"]["setuptools"]["package-data"]["qll"]  # type: ignore[index]
    held = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    tracked = subprocess.run(
        ["git", "ls-files", "src/qll"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    others = {ROOT / name for name in tracked if not name.endswith(".py")}
    assert others and others <= held


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert all((folder / "__init__.py").is_file() for folder in folders)


def test_the_version_is_stated_alike() -> None:
    version = _project()["project"]["version"]  # type: ignore[index]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_source_archive_holds_what_its_tests_need() -> None:
    """Every tracked file outside of the package is named, or its folder is."""
    words = [line.split() for line in (ROOT / "MANIFEST.in").read_text().splitlines()]
    grafted = {name for kind, *names in filter(None, words) if kind == "graft" for name in names}
    included = {name for kind, *names in filter(None, words) if kind == "include" for name in names}
    included |= {"pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"}  # by setuptools
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    of_the_host = (".github", ".ci", ".gitignore", "src")
    tops = {name.split("/")[0] for name in tracked}
    assert tops - set(of_the_host) <= grafted | included
