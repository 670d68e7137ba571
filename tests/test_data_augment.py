"""Augmentations against Pillow, which the published runs used, and against colorsys."""

from __future__ import annotations

import colorsys
import itertools

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from qll.data.augment import (
    ColourJitter,
    Rotation,
    Views,
    change_brightness,
    change_contrast,
    change_saturation,
    rotate,
    shift_hue,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("shape", [(28, 28), (17, 30)])
def test_rotation_is_pillows(shape: tuple[int, int]) -> None:
    images = torch.randint(256, (300, 1, *shape), generator=generator(), dtype=torch.uint8)
    degrees = torch.empty(300, dtype=torch.float64).uniform_(-180, 180, generator=generator())
    degrees[:4] = torch.tensor([0.0, 7.5, -10.0, 10.0])
    rotated = rotate(images, degrees)
    for image, angle, ours in zip(images, degrees, rotated, strict=True):
        theirs = np.asarray(Image.fromarray(image[0].numpy()).rotate(float(angle)))
        np.testing.assert_array_equal(ours[0].numpy(), theirs)


def test_rotation_keeps_channels_together() -> None:
    grey = torch.rand(600, 1, 9, 9, generator=generator())
    rotated = Rotation(40)(grey.expand(-1, 3, -1, -1), generator(1))
    assert torch.equal(rotated[:, :1].expand(-1, 3, -1, -1), rotated)
    assert torch.equal(rotated[:, :1], Rotation(40)(grey, generator(1)))


def test_angles_are_uniform_and_seeded() -> None:
    images = torch.zeros(4000, 1, 21, 21)
    images[:, :, 9:12, 16:19] = 1  # a spot to the right of the centre: its direction is the angle
    moved = Rotation(60)(images, generator(3))
    assert torch.equal(moved, Rotation(60)(images, generator(3)))
    assert not torch.equal(moved, Rotation(60)(images, generator(4)))
    weight, place = moved[:, 0].double(), torch.arange(21) - 10.0
    up, right = -(weight.sum(2) @ place.double()), weight.sum(1) @ place.double()
    angle = torch.atan2(up, right).rad2deg()
    assert 57 < angle.abs().max() < 65 and abs(angle.mean()) < 3
    assert 33 < angle.std() < 36.5  # 60 / sqrt(3) = 34.6


@pytest.fixture
def photographs() -> torch.Tensor:
    return torch.rand(12, 3, 28, 28, generator=generator(5)) ** 2


@pytest.mark.parametrize(
    ("change", "pillow"),
    [
        (change_brightness, ImageEnhance.Brightness),
        (change_contrast, ImageEnhance.Contrast),
        (change_saturation, ImageEnhance.Color),
    ],
)
def test_blends_are_pillows(photographs: torch.Tensor, change, pillow) -> None:  # type: ignore[no-untyped-def]
    factors = torch.linspace(0.5, 1.5, len(photographs))
    changed = change(photographs, factors)
    for image, factor, ours in zip(photographs, factors, changed, strict=True):
        pixels = (image * 255).round().byte().permute(1, 2, 0).numpy()
        theirs = np.asarray(pillow(Image.fromarray(pixels)).enhance(float(factor)))
        # Pillow computes in bytes: rounding of the input, of the grey and of the result.
        assert np.abs(ours.permute(1, 2, 0).numpy() * 255 - theirs).max() < 2.5


def test_hue_is_colorsys(photographs: torch.Tensor) -> None:
    photographs[0] = 0.4  # grey: hue is undefined and nothing may change
    photographs[1, 1] = photographs[1, 0]  # ties for the largest channel
    turns = torch.linspace(-0.5, 0.5, len(photographs))
    shifted = shift_hue(photographs, turns)
    for image, turn, ours in zip(photographs, turns, shifted, strict=True):
        pixels = image.permute(1, 2, 0).reshape(-1, 3).double().tolist()
        theirs = []
        for red, green, blue in pixels:
            hue, saturation, value = colorsys.rgb_to_hsv(red, green, blue)
            theirs.append(colorsys.hsv_to_rgb((hue + float(turn)) % 1, saturation, value))
        np.testing.assert_allclose(ours.permute(1, 2, 0).reshape(-1, 3), theirs, atol=2e-6)


def test_jitter_applies_each_change_once_in_a_random_order(photographs: torch.Tensor) -> None:
    """Each image equals one of the 24 orders applied with that image's own draws."""
    import itertools

    jitter = ColourJitter(brightness=0.6, contrast=0.6, saturation=0.6, hue=0.3)
    jittered = jitter(photographs, generator(7))
    draws = torch.rand(len(photographs), 8, generator=generator(7))
    swing = 2 * draws[:, 4:] - 1
    amounts = torch.cat([1 + 0.6 * swing[:, :3], 0.3 * swing[:, 3:]], 1)
    changes = [change_brightness, change_contrast, change_saturation, shift_hue]
    orders = set()
    for number, image in enumerate(photographs):
        found = []
        for order in itertools.permutations(range(4)):
            expected = image[None]
            for kind in order:
                expected = changes[kind](expected, amounts[number, kind][None])
            if torch.allclose(expected[0], jittered[number], atol=1e-6):
                found.append(order)
        assert found, f"image {number} is the result of no order"
        orders.add(found[0])
    assert len(orders) > 5


def test_jitter_is_seeded_stays_in_range_and_spares_its_input(photographs: torch.Tensor) -> None:
    before = photographs.clone()
    jitter = ColourJitter(brightness=0.2, contrast=0.2, saturation=0.2, hue=0.03)
    first = jitter(photographs, generator(1))
    assert torch.equal(photographs, before)
    assert torch.equal(first, jitter(photographs, generator(1)))
    assert not torch.equal(first, jitter(photographs, generator(2)))
    assert first.min() >= 0 and first.max() <= 1
    assert jitter(photographs[:0], generator()).shape == (0, 3, 28, 28)
    still = ColourJitter(brightness=0, contrast=0, saturation=0, hue=0)
    torch.testing.assert_close(still(photographs, generator()), photographs, atol=1e-6, rtol=0)


def test_views_are_mirrored_moved_and_recoloured() -> None:
    images = torch.rand(400, 3, 6, 5, generator=generator(7))
    assert torch.equal(Views()(images, generator()), images)
    mirrored = Views(mirror=True)(images, generator(1))
    turned = (mirrored == images.flip(3)).all(3).all(2).all(1)
    assert 150 < turned.sum() < 250
    assert torch.equal(mirrored[~turned], images[~turned])
    coloured = Views(colours=True)(images, generator(2))
    seen = {
        order
        for ours, theirs in zip(coloured, images, strict=True)
        for order in itertools.permutations(range(3))
        if torch.equal(ours, theirs[list(order)])
    }
    assert len(seen) == 6
    assert torch.equal(coloured.sort(1).values, images.sort(1).values)


def test_a_shift_moves_whole_images_and_repeats_their_border() -> None:
    row, column = torch.meshgrid(torch.arange(6.0), torch.arange(5.0), indexing="ij")
    images = torch.stack([row, column])[None].expand(300, -1, -1, -1)
    moved = Views(shift=2)(images, generator(3))
    down = moved[:, 0, 2, 0] - 2
    right = moved[:, 1, 0, 2] - 2
    assert set(down.tolist()) == set(right.tolist()) == {-2.0, -1.0, 0.0, 1.0, 2.0}
    for image, i, j in zip(moved, down, right, strict=True):
        assert torch.equal(image[0], (row + i).clamp(0, 5))
        assert torch.equal(image[1], (column + j).clamp(0, 4))
    assert torch.equal(moved, Views(shift=2)(images, generator(3)))
