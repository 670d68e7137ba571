"""What a notebook shows of a property, a verdict, a run: small HTML, made without any extra.

Colours are the notebook's own where they can be (``currentColor``), so that dark themes stay
readable; pictures are PNG or SVG inside the text.
"""

from __future__ import annotations

import base64
import math
import struct
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

COLOURS = {"verified": "#2e7d32", "falsified": "#c62828", "unknown": "#b26a00"}
_MOST_ROWS = 12  # of a witness that is a table
CURVES = {"pacc": "#1565c0", "prediction_loss": "#6a1b9a", "property_loss": "#c62828"}
_WIDTH, _HEIGHT, _EDGE = 360, 140, 28  # of a curve


def table(rows: Sequence[tuple[str, str]]) -> str:
    """Two columns; the cells are HTML already."""
    cells = "".join(
        f"<tr><td style='text-align:left;opacity:.7'>{name}</td>"
        f"<td style='text-align:left'>{value}</td></tr>"
        for name, value in rows
    )
    return f"<table>{cells}</table>"


def status(text: str, colour_of: str) -> str:
    return f"<b style='color:{COLOURS[colour_of]}'>{escape(text)}</b>"


def points(values: NDArray[Any]) -> str:
    """A picture of an input that is one (height and width, with one or three channels), else its
    first numbers."""
    shape = values.shape
    if len(shape) in (2, 3) and min(shape[-2:]) > 3 and (len(shape) == 2 or shape[0] in (1, 3)):
        return f"<img src='{png(values)}' width='140' style='image-rendering:pixelated'>"
    flat = values.ravel()
    shown = ", ".join(f"{value:.6g}" for value in flat[:_MOST_ROWS])
    more = f", ... ({flat.size} numbers)" if flat.size > _MOST_ROWS else ""
    return escape(shown + more)


def png(image: NDArray[Any]) -> str:
    """A data address: values from 0 to 1, (height, width) or (1 or 3, height, width)."""
    planes = image if image.ndim == 3 else image[None]
    kind = 2 if len(planes) == 3 else 0
    pixels = np.clip(np.rint(np.moveaxis(planes, 0, -1) * 255), 0, 255).astype(np.uint8)
    height, width = pixels.shape[:2]
    lines = b"".join(b"\0" + row.tobytes() for row in pixels)  # no filter
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    )
    content = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)
    return "data:image/png;base64," + base64.b64encode(content).decode()


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def curves(rows: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> str:
    """Lines by epoch, each over its own range: ``names`` are columns with their colours."""
    drawn = list[str]()
    for name, colour in names.items():
        held = [(k, row.get(name)) for k, row in enumerate(rows)]
        known = [(k, float(v)) for k, v in held if isinstance(v, int | float) and math.isfinite(v)]
        if known:
            drawn.append(_line(known, len(rows), name, colour, len(drawn)))
    return (
        f"<svg width='{_WIDTH}' height='{_HEIGHT}' font-size='10' fill='currentColor'>"
        f"{''.join(drawn)}</svg>"
    )


def run_html(run: Any) -> str:
    """A `qll.training.loop.TrainedRun`: its curves, then its figures."""
    config, held = run.config, run.evaluation
    asked = f"{config.property} on {config.data}, {config.logic}, {len(run.rows)} epochs"
    shares = {"PAcc": held.pacc, "CAcc": held.cacc, "CSec (QLL)": held.csec_qll}
    rows = [(name, f"{share.value:.1%}") for name, share in shares.items() if share is not None]
    rows += [(f"CSat at {text}", f"{share.value:.1%}") for text, share in held.csat.items()]
    return f"<b>{escape(asked)}</b><br>{curves(run.rows, CURVES)}{table(rows)}"


def _line(
    known: Sequence[tuple[int, float]], count: int, name: str, colour: str, number: int
) -> str:
    low, high = min(v for _, v in known), max(v for _, v in known)
    room = high - low or 1.0
    places = " ".join(
        f"{_EDGE + (_WIDTH - 2 * _EDGE) * k / max(1, count - 1):.1f},"
        f"{_HEIGHT - _EDGE - (_HEIGHT - 2 * _EDGE) * (v - low) / room:.1f}"
        for k, v in known
    )
    return (
        f"<polyline points='{places}' fill='none' stroke='{colour}' stroke-width='1.5'/>"
        f"<text x='{_EDGE}' y='{12 + 11 * number}' fill='{colour}'>"
        f"{escape(name)}: {known[0][1]:.4g} to {known[-1][1]:.4g}</text>"
    )


# --- while a long call runs ---


class Line:
    """A bar with a text beside it, replaced as the work goes on."""

    _EVERY = 0.3  # seconds between two of them

    def __init__(self, handle: Any, html: Any) -> None:
        self._handle, self._html = handle, html
        self._said = -math.inf

    def tell(self, text: str, share: float) -> None:
        now = time.monotonic()
        if share < 1 and now - self._said < self._EVERY:
            return
        self._said = now
        bar = f"<progress value='{min(max(share, 0.0), 1.0):.4f}' max='1'></progress>"
        self._handle.update(self._html(f"{bar} {escape(text)}"))


def in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this; IPython is not imported for it."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


@contextmanager
def live() -> Iterator[Line | None]:
    """A line of a notebook, which is gone when the work is done; None elsewhere."""
    if not in_notebook():
        yield None
        return
    from IPython.display import HTML, display

    handle = display(HTML(""), display_id=True)  # type: ignore[no-untyped-call, unused-ignore]
    try:
        yield Line(handle, HTML)
    finally:
        handle.update(HTML(""))  # type: ignore[no-untyped-call, union-attr, unused-ignore]
