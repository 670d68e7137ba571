"""Grids of pictures as PNG files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qll.data.pictures import enlarge, save_comparison, save_grid
from qll.errors import InputError, RunError


def test_enlarge_repeats_pixels() -> None:
    image = np.array([[[0.0, 0.5], [1.0, 2.0]]])
    big = enlarge(image, 3)
    assert big.shape == (6, 6, 3)
    np.testing.assert_array_equal(big[1, :, 0], [0, 0, 0, 128, 128, 128])
    np.testing.assert_array_equal(big[4, :, 2], [255] * 6)  # clipped to the raw units


def test_grid_holds_every_image(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.random((2, 3, 3, 5, 7)).astype(np.float32)
    path = save_grid(tmp_path / "a.png", list(images), scale=4)
    sheet = np.asarray(Image.open(path))
    assert sheet.shape == (2 * 26 + 6, 3 * 34 + 6, 3)
    for row in range(2):
        for column in range(3):
            tile = sheet[6 + 26 * row :, 6 + 34 * column :][:20, :28]
            np.testing.assert_array_equal(tile, enlarge(images[row, column], 4))
    assert list(tmp_path.iterdir()) == [path]


def test_comparison(tmp_path: Path) -> None:
    clean = np.full((2, 1, 4, 4), 0.5, np.float32)
    attacked = clean.copy()
    attacked[0, 0, 0, 0], attacked[1, 0, 3, 3] = 0.6, 0.45
    path = save_comparison(tmp_path / "a.png", clean, attacked, scale=10, captions=["3", "5"])
    sheet = np.asarray(Image.open(path))[14 + 6 :]
    change = [sheet[row * (40 + 6 + 14) :, 6 + 2 * 46 :][:40, :40, 0] for row in range(2)]
    assert (change[0][0, 0], change[0][20, 20]) == (255, 128)  # the largest change is white
    assert abs(int(change[1][39, 39]) - 64) <= 1  # half as large, downwards
    save_comparison(tmp_path / "b.png", clean, clean)  # no change at all divides by nothing


def test_bad_input(tmp_path: Path) -> None:
    image = np.zeros((1, 4, 4))
    for rows in ([], [[]], [[image, np.zeros((1, 4, 5))]], [[image[0]]], [[image * np.nan]]):
        with pytest.raises(InputError, match="cannot draw"):
            save_grid(tmp_path / "a.png", rows)
    with pytest.raises(InputError, match="2 headings"):
        save_grid(tmp_path / "a.png", [[image, image]], headings=["one"])
    with pytest.raises(InputError, match="2 captions"):
        save_grid(tmp_path / "a.png", [[image], [image]], captions=["one"])
    with pytest.raises(InputError, match="scale of 1"):
        save_grid(tmp_path / "a.png", [[image]], scale=0)
    with pytest.raises(InputError, match="attacked image"):
        save_comparison(tmp_path / "a.png", [image], [np.zeros((3, 4, 4))])
    with pytest.raises(RunError, match="cannot be written"):
        save_grid(tmp_path / "none" / "a.png", [[image]])
    assert not list(tmp_path.iterdir())
