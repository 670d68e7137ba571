"""What all tables, figures and pages share: names, signs and colours."""

from __future__ import annotations

import math
from pathlib import Path

from qll.errors import MissingExtra, RunError
from qll.logics.base import LOGICS, Logic

BASELINE = "baseline"

# Okabe and Ito's colours, which the colour-blind tell apart, and darker ones for more logics.
_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195", "#8C6D31")
_GREY = "#6B7280"
# Whose colour is fixed, so that the protagonists look alike in every figure; others take the rest.
_FIXED = {"qll": "#0072B2", "stl": "#D55E00", "dl2": "#009E73"}

_LOGIC_NAMES = {
    "qll": "QLL",
    "stl": "STL",
    "dl2": "DL2",
    "goedel": "Gödel",
    "lukasiewicz": "Łukasiewicz",
}
_DATA_NAMES = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "dice": "Dice"}


def logic_name(name: str) -> str:
    """How a logic is written: ``QLL``; one without an entry by its capitalised name."""
    return _LOGIC_NAMES.get(name, name.capitalize())


def data_name(name: str) -> str:
    return _DATA_NAMES.get(name, name.capitalize())


def property_name(name: str) -> str:
    """``clothing-footwear`` as the paper writes it."""
    written = {"clothing-footwear": "Clothing/Footwear", "not-both": "Not-Both"}
    written["exactly-one"] = "Exactly-One"
    return written.get(name, Path(name).stem.replace("-", " ").capitalize())


def number(value: float) -> str:
    """``5``, ``0.5``, ``∞``."""
    return "∞" if math.isinf(value) else f"{value:g}"


def titled(logic: Logic) -> str:
    """``QLL 5``: the logic and its hardness, if it has one."""
    name = logic_name(logic.name)
    return name if math.isnan(logic.hardness) else f"{name} {number(logic.hardness)}"


def colours() -> dict[str, str]:
    """A colour for every logic of the registry and for the baseline."""
    free = [c for c in _PALETTE if c not in _FIXED.values()]
    found = {BASELINE: _GREY, "boolean": "#111827"}
    others = [name for name in LOGICS if name not in _FIXED and name not in found]
    for k, name in enumerate(others):
        found[name] = free[k % len(free)]
    return {**found, **_FIXED}


def shaded(colour: str, place: float) -> str:
    """Lighter at place 0, the colour itself at 0.5, darker at 1.

    >>> shaded("#808080", 0.5), shaded("#808080", 1.0)
    ('#808080', '#535353')
    """
    parts = [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
    towards, amount = (255, 1 - 2 * place) if place < 0.5 else (0, 0.7 * (2 * place - 1))
    mixed = [round(c + (towards - c) * amount * 0.5) for c in parts]
    return "#" + "".join(f"{c:02x}" for c in mixed)


def require(package: str, purpose: str) -> MissingExtra:
    return MissingExtra.of(package, "report", purpose)


def write(path: Path, content: bytes) -> Path:
    """The whole file or none of it, or a three-part error."""
    from qll.files import write_atomically

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except (OSError, RunError) as error:
        raise RunError(
            "the report cannot be written",
            where=str(path),
            expected="a folder that can be written and has room",
            found=error.found if isinstance(error, RunError) else error.strerror or str(error),
            fix="choose another folder with --out, or make room",
        ) from error
    return path
