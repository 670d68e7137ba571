"""A folder of images by class: ``FOLDER/cat/1.png``; or ``FOLDER/train`` and ``FOLDER/test`` of
these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qll.data.formats import FORMATS, Arrays, Format, cannot_read
from qll.errors import DataError, MissingExtra

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")


def read_folder(path: Path, columns: tuple[str, ...] = (), labels: Path | None = None) -> Arrays:
    if (path / "train").is_dir() and (path / "test").is_dir():
        x, y, classes = _images(path / "train")
        x_test, y_test, known = _images(path / "test")
        if known != classes:
            raise DataError(
                "training and test images have other classes",
                where=str(path),
                expected=", ".join(classes),
                found=", ".join(known),
                fix="give both folders the same folders of classes",
            )
        return Arrays(x, y, str(path), test=(x_test, y_test), classes=classes)
    x, y, classes = _images(path)
    return Arrays(x, y, str(path), classes=classes)


def _images(path: Path) -> tuple[NDArray[Any], NDArray[np.int64], tuple[str, ...]]:
    """(N, C, H, W) bytes, their classes, and the names of these, in the order of the folders."""
    folders = sorted(folder for folder in path.iterdir() if folder.is_dir())
    files = [
        (place, file)
        for place, folder in enumerate(folders)
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in _SUFFIXES
    ]
    if len(folders) < 2 or not files:
        raise cannot_read(
            path, "a folder of images for each of at least two classes", f"{len(files)} images"
        )
    pixels = [_pixels(file) for _, file in files]
    for (_, file), picture in zip(files, pixels, strict=True):
        if picture.shape != pixels[0].shape:
            raise DataError(
                "the images differ in size",
                where=str(file),
                expected=_size(pixels[0]),
                found=_size(picture),
                fix="bring all images to one size, and all to grey or all to colour",
            )
    stack = np.stack(pixels).transpose(0, 3, 1, 2).copy()
    return stack, np.array([k for k, _ in files], np.int64), tuple(f.name for f in folders)


def _pixels(path: Path) -> NDArray[Any]:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra.of("pillow", "train", "reading images") from error
    try:
        with Image.open(path) as picture:
            grey = picture.mode in ("L", "1", "I", "I;16", "LA")
            held = np.asarray(picture.convert("L" if grey else "RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise cannot_read(path, "an image", str(error)) from error
    return held[:, :, None] if held.ndim == 2 else held


def _size(picture: NDArray[Any]) -> str:
    height, width, channels = picture.shape
    return f"{width} x {height}, {'grey' if channels == 1 else 'colour'}"


FORMATS.register("folder")(Format("a folder of images by class", Path.is_dir, read_folder))
