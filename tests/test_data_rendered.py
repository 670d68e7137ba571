"""The rendered dice: exact labels, a physically possible die, and something a network can learn."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from qll.data import dice_rendered as rendered
from qll.data import load
from qll.data.dice_rendered import render


def test_deterministic_and_prefix() -> None:
    images, labels = render(40, seed=3)
    assert images.shape == (40, 28, 28, 3) and images.dtype == np.uint8
    assert labels.shape == (40, 6) and labels.dtype == np.int64
    for count in (40, 13):
        again, same = render(count, seed=3)
        np.testing.assert_array_equal(again, images[:count])
        np.testing.assert_array_equal(same, labels[:count])
    assert not np.array_equal(render(40, seed=4)[0], images)
    assert render(0, seed=3)[0].shape == (0, 28, 28, 3)


def test_labels_are_of_a_die() -> None:
    labels = render(600, seed=0)[1]
    assert (labels[:, :3] + labels[:, :2:-1] == 1).all()  # just one of each opposite pair
    assert len(np.unique(labels, axis=0)) == 8  # all eight corners occur
    assert (np.abs(labels.mean(0) - 0.5) < 0.1).all()


def test_the_24_poses() -> None:
    """Every pose is a rotation of one right-handed die, with its pips in one arrangement."""
    faces, pips = rendered._POSE_FACES, rendered._POSE_PIPS
    assert len({(*f, *p.ravel()) for f, p in zip(faces, pips, strict=True)}) == 24
    rounds = {tuple(np.roll(f, k)) for f in faces for k in range(3)}
    for corner in itertools.permutations(range(1, 7), 3):
        if len({min(f, 7 - f) for f in corner}) < 3:
            continue
        # From the corner of 1, 2, 3 each exchange of opposite faces mirrors the corner.
        pairs = [min(f, 7 - f) for f in corner]
        even = pairs in ([1, 2, 3], [2, 3, 1], [3, 1, 2])
        mirrored = sum(f > 3 for f in corner) % 2 == 1
        assert (corner in rounds) == (even != mirrored)
    for face, grid in zip(faces.ravel(), pips.reshape(-1, 3, 3), strict=True):
        assert grid.sum() == face  # as many pips as the face counts
        assert np.array_equal(grid, grid[::-1, ::-1])  # each face looks the same upside down
        assert grid[1, 1] == face % 2
        if face in (2, 3):
            assert grid[0, 0] != grid[0, 2]  # along one diagonal
        if face >= 4:
            assert grid[::2, ::2].all()  # the corners


def count_spots(mask: np.ndarray, least: int) -> int:
    """Connected regions of at least so many pixels, by flooding."""
    mask, spots = mask.copy(), 0
    for start in zip(*np.nonzero(mask), strict=True):
        if not mask[start]:
            continue
        size, stack = 0, [start]
        while stack:
            y, x = stack.pop()
            if 0 <= y < mask.shape[0] and 0 <= x < mask.shape[1] and mask[y, x]:
                mask[y, x], size = False, size + 1
                stack += [(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)]
        spots += size >= least
    return spots


def test_labels_are_what_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendered large, the pips on the die can be counted: they are the sum of its labels."""
    monkeypatch.setattr(rendered, "SIDE", 168)
    monkeypatch.setattr(rendered, "_RAYS", 1)
    images, labels = render(60, seed=9)
    checked = 0
    for image, label in zip(images.astype(float), labels, strict=True):
        colour = image.max(2) - image.min(2)
        body = np.median(colour[60:120, 60:120])
        if body < 90:
            continue  # a white die; its black pips cannot be told from a hole in the table
        # Colourless pixels with colour on all four sides are pips (or the grain of the table).
        coloured = colour > 45
        inside = np.ones_like(coloured)
        for axis in (0, 1):
            before = np.logical_or.accumulate(coloured, axis)
            after = np.flip(np.logical_or.accumulate(np.flip(coloured, axis), axis), axis)
            inside &= before & after
        pips = count_spots(inside & ~coloured, least=10)
        # A pip at the very edge of the outline may not be closed in by colour.
        expected = int((label * np.arange(1, 7)).sum())
        assert expected - 1 <= pips <= expected, (pips, expected)
        checked += pips == expected
    assert checked > 25


def test_data_set_streams() -> None:
    """Test images do not depend on the number of training images, nor occur among them."""
    small = load("dice-rendered", count_train=10, count_test=20)
    large = load("dice-rendered", count_train=30, count_test=20)
    np.testing.assert_array_equal(small.test.stored, large.test.stored)
    np.testing.assert_array_equal(small.train.stored, large.train.stored[:10])
    train = {image.tobytes() for image in large.train.stored}
    assert not train & {image.tobytes() for image in large.test.stored}
    other = load("dice-rendered", count_train=10, count_test=20, seed=1)
    assert not np.array_equal(other.test.stored, small.test.stored)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small tensors: two threads wait for each other more than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_learnable(one_thread: None) -> None:
    """The paper's network reads the faces of unseen dice after a few seconds of training."""
    data = load("dice-rendered")
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(4, 8, 3, 2, 1),
        nn.Flatten(),
        nn.Linear(392, 16),
        nn.ReLU(),
        nn.Linear(16, 6),
    )
    optimiser = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-4)
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (data.mean, data.std))
    generator = torch.Generator().manual_seed(0)
    for _ in range(25):
        for rows in torch.randperm(len(data.train), generator=generator).split(32):
            images, labels = data.train.batch(rows)
            outputs = net((images - mean) / std)
            loss = nn.functional.binary_cross_entropy_with_logits(outputs, labels.float())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    images, labels = data.test.batch(slice(None))
    with torch.no_grad():
        right = ((net((images - mean) / std) > 0) == labels.bool()).float().mean()
    assert right > 0.9
