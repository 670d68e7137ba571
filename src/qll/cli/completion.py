"""Names that the shell completes. No torch is imported for a press of the tab key; what is none of
these is a file, which the shell completes itself."""

from __future__ import annotations

from pathlib import Path

import qll
from qll.cli.options import DATA_HELP


def complete_rule(incomplete: str) -> list[str]:
    """Shipped properties: the files of their package."""
    files = (Path(qll.__file__).parent / "properties").glob("*.qll")
    return sorted(file.stem for file in files if file.stem.startswith(incomplete))


def complete_data(incomplete: str) -> list[str]:
    names = DATA_HELP.partition(";")[0].split(", ")
    return [name for name in names if name.startswith(incomplete)]
