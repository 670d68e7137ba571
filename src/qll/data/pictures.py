"""PNG files of images: grids, and clean, attacked and difference side by side."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qll.errors import InputError, MissingExtra
from qll.files import write_atomically

Image = NDArray[Any]
"""(C, H, W) in raw units [0, 1], one channel (grey) or three (RGB)."""

_GAP = 6  # pixels between pictures
_LINE = 14  # height of a line of text
_INK, _PAPER = (20, 20, 20), (255, 255, 255)


def save_grid(
    path: str | Path,
    rows: Sequence[Sequence[Image]],
    *,
    scale: int = 6,
    headings: Sequence[str] | None = None,
    captions: Sequence[str] | None = None,
) -> Path:
    """Write ``rows`` of images, each pixel enlarged to ``scale`` x ``scale``. ``headings`` stand
    above the columns, ``captions`` below the rows."""
    try:
        from PIL import Image as Pillow
        from PIL import ImageDraw
    except ImportError as error:
        raise MissingExtra.of("pillow", "train", "writing pictures") from error
    tiles = [[enlarge(image, scale) for image in row] for row in rows]
    shapes = {tile.shape for row in tiles for tile in row}
    columns = max((len(row) for row in tiles), default=0)
    _check(len(shapes) == 1, "images of one size, at least one", f"sizes {sorted(shapes)}")
    for name, texts, wanted in (("headings", headings, columns), ("captions", captions, len(rows))):
        count = wanted if texts is None else len(texts)
        _check(count == wanted, f"{wanted} {name}", f"{count}")

    height, width, _ = shapes.pop()
    top = _LINE if headings else 0
    pitch_x, pitch_y = width + _GAP, height + _GAP + (_LINE if captions else 0)
    sheet = Pillow.new("RGB", (columns * pitch_x + _GAP, len(rows) * pitch_y + _GAP + top), _PAPER)
    pen = ImageDraw.Draw(sheet)
    for column, text in enumerate(headings or ()):
        pen.text((_GAP + column * pitch_x, 2), text, fill=_INK)
    for number, row in enumerate(tiles):
        y = top + _GAP + number * pitch_y
        for column, tile in enumerate(row):
            sheet.paste(Pillow.fromarray(tile), (_GAP + column * pitch_x, y))
        if captions:
            pen.text((_GAP, y + height + 1), captions[number], fill=_INK)
    content = io.BytesIO()
    sheet.save(content, format="PNG")
    write_atomically(Path(path), content.getvalue())
    return Path(path)


def save_comparison(
    path: str | Path,
    clean: Sequence[Image] | Image,
    attacked: Sequence[Image] | Image,
    *,
    scale: int = 6,
    captions: Sequence[str] | None = None,
) -> Path:
    """One row an image: clean, attacked, difference. In the difference mid-grey is no change, and
    white and black are the largest change of the whole sheet, which its heading states."""
    _check(len(clean) == len(attacked), f"{len(clean)} attacked images", f"{len(attacked)}")
    # Sized one by one, so that images of two shapes are refused by name, not by broadcasting.
    for before, after in zip(clean, attacked, strict=True):
        _check(before.shape == after.shape, f"attacked image of {before.shape}", f"{after.shape}")
    changes = [
        np.asarray(after, np.float64) - before
        for before, after in zip(clean, attacked, strict=True)
    ]
    peak = max((float(np.abs(change).max()) for change in changes), default=0.0)
    halves = [0.5 + change / (2 * peak) if peak else change + 0.5 for change in changes]
    rows = list(zip(clean, attacked, halves, strict=True))
    headings = ["clean", "attacked", f"change, up to {peak:.3g}"]
    return save_grid(path, rows, scale=scale, headings=headings, captions=captions)


def enlarge(image: Image, scale: int) -> NDArray[np.uint8]:
    """(C, H, W) raw units to (scale * H, scale * W, 3) bytes; every pixel becomes a square."""
    image = np.asarray(image)
    fits = image.ndim == 3 and image.shape[0] in (1, 3) and image.size > 0
    _check(fits, "an image of shape (1 or 3, height, width)", f"shape {image.shape}")
    _check(bool(np.isfinite(image).all()), "finite pixels", "NaN or infinity")
    _check(scale >= 1, "a scale of 1 or more", f"{scale}")
    colours = np.broadcast_to(image.transpose(1, 2, 0), (*image.shape[1:], 3))
    pixels: NDArray[np.uint8] = np.rint(np.clip(colours, 0, 1) * 255).astype(np.uint8)
    return pixels.repeat(scale, axis=0).repeat(scale, axis=1)


def _check(holds: bool, expected: str, found: str) -> None:
    if not holds:
        raise InputError(
            "cannot draw the pictures",
            expected=expected,
            found=found,
            fix="pass images in raw units, channels first, and one text a row or column",
        )
