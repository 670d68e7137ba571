"""The lab as a page: served, it asks Python; static, it carries what was computed beforehand."""

from __future__ import annotations

import base64
import struct
from importlib import resources
from pathlib import Path
from typing import Any

import qll
from qll.errors import QllError
from qll.properties import names
from qll.reports.lab import LabRequest, evaluate
from qll.reports.page import embed, render, template
from qll.reports.style import write

# Hardnesses that the static page holds; the served one takes any.
STATIC_HARDNESSES = (0.5, 1.0, 2.0, 5.0, 10.0, 50.0)

EXAMPLES: tuple[tuple[str, str], ...] = (
    ("both outputs at most 0", "outputs 2\ny[0] <= 0 and y[1] <= 0\n"),
    ("one of them at most 0", "outputs 2\ny[0] <= 0 or y[1] <= 0\n"),
    (
        "exactly one is predicted",
        "outputs 2\ndefine on(i) = y[i] >= 0\ndefine off(i) = y[i] <= 0\n\n"
        "(on(0) or on(1)) and (off(0) or off(1))\n",
    ),
    ("if y[0] then y[1]", "outputs 2\ny[0] >= 0 -> y[1] >= 0\n"),
    ("by degrees: y[0] -o y[1]", "outputs 2\ny[0] >= 0 -o y[1] >= 0\n"),
    ("a hard and in a soft or", "outputs 2\n(y[0] <= 0 and[inf] y[1] <= 0) or y[0] + y[1] >= 3\n"),
)


def examples() -> list[dict[str, Any]]:
    """The small formulas, and every shipped property: name, text and a telling pair of outputs."""
    found: list[dict[str, Any]] = [
        {"name": name, "text": text, "axes": [0, 1]} for name, text in EXAMPLES
    ]
    for name in names():
        file = resources.files("qll.properties").joinpath(f"{name}.qll")
        text = file.read_text(encoding="utf-8")
        found.append({"name": name, "text": text, "axes": _telling_axes(name)})
    return found


def _telling_axes(name: str) -> list[int]:
    """Opposite faces of a die, clothing and footwear; otherwise the first two."""
    return {"not-both": [0, 5], "exactly-one": [0, 5], "clothing-footwear": [0, 5]}.get(
        name, [0, 1]
    )


def served_page() -> str:
    return _page({"mode": "served", "examples": examples()})


def static_page() -> str:
    """Every example at every hardness of the list, in one file."""
    held = []
    for example in examples():
        replies: list[dict[str, Any]] = []
        for hardness in STATIC_HARDNESSES:
            request = LabRequest(
                text=example["text"],
                axes=(example["axes"][0], example["axes"][1]),
                hardness=hardness,
            )
            try:
                reply = evaluate(request, only_hardened=bool(replies))
            except QllError:  # it speaks of something that the lab does not draw
                break
            replies.append(_packed(reply, first=not replies))
        else:
            held.append({**example, "replies": replies})
    return _page({"mode": "static", "examples": held, "hardnesses": STATIC_HARDNESSES})


def write_static(path: Path) -> Path:
    return write(path, static_page().encode())


def _packed(reply: dict[str, Any], *, first: bool) -> dict[str, Any]:
    """Grids as bytes. What is the same at every hardness is in the first reply alone."""
    packed = {**reply, "margin": _bytes(reply["margin"]) if first else None, "logics": []}
    for panel in reply["logics"]:
        grids = {k: _bytes(panel[k]) for k in ("loss", "by_x", "by_y") if k in panel}
        packed["logics"].append({**panel, **grids})
    return packed


def _bytes(values: list[float | None]) -> str:
    numbers = [float("nan") if v is None else v for v in values]
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def _page(data: dict[str, Any]) -> str:
    context = {
        "mode": data["mode"],
        "version": qll.__version__,
        "style": template("lab.css"),
        "script": template("lab.js") + template("lab_draw.js"),
        "data": embed(data),
    }
    return render("lab.html", context)
