"""Dice without photographs: images of a die, rendered here, in any number and without a download.

A die is a cube cut by a sphere, as real ones are. It lies on a table; the camera stands so that
exactly three faces show. Rays are cast through a perspective camera and the pips are read off the
point that a ray hits, so labels are exact. All of it is arithmetic on whole batches."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qll.data.base import DataSet, Progress, Split, data_sets
from qll.data.dice import BATCH_SIZE, FACES, JITTER, SIDE, channel_statistics
from qll.errors import DataError

Floats = NDArray[Any]
Vector = list[Floats]
"""Three arrays that broadcast to (images, rows of rays, rays of a row)."""

_RAYS = 3  # rays a pixel, each way
_CHUNK = 8  # images at a time: the arrays of a chunk stay in the cache

# In units of half an edge.
_ROUNDING = 1.42  # radius of the sphere that cuts the edges; an edge is at 1.414, a corner at 1.732
_PIP_STEP = 0.5  # distance between pips
_PIP_RADIUS = 0.19
_ONE_RADIUS = 0.25  # the single pip of the one is larger, as on the photographs

# Where the pips are on the 3 x 3 grid of a face.
_CORNERS = {(-1, -1), (-1, 1), (1, -1), (1, 1)}
_PIPS: dict[int, set[tuple[int, int]]] = {
    1: {(0, 0)},
    2: {(-1, -1), (1, 1)},
    3: {(-1, -1), (0, 0), (1, 1)},
    4: _CORNERS,
    5: _CORNERS | {(0, 0)},
    6: _CORNERS | {(-1, 0), (1, 0)},
}


def _face(axis: int, sign: int) -> int:
    """Opposite faces sum to seven; 1, 2, 3 lie on +x, +y, +z: counter-clockwise around their
    common corner, as on a right-handed (Western) die."""
    return axis + 1 if sign > 0 else 6 - axis


def _poses() -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The 24 ways in which a die can lie: (24, 3) the faces seen on +x, +y, +z, and
    (24, 3, 3, 3) whether face k has a pip at the grid place (i, j) along axes k + 1, k + 2."""
    faces, pips = [], []
    for axes in itertools.permutations(range(3)):
        for signs in itertools.product((1, -1), repeat=3):
            turn = np.zeros((3, 3), dtype=int)  # from the world's axes to the die's
            turn[axes, range(3)] = signs
            if round(np.linalg.det(turn)) != 1:
                continue  # a mirror image: that would be a left-handed die
            seen = np.zeros(3, dtype=np.int64)
            grid = np.zeros((3, 3, 3), dtype=bool)
            for k, i, j in itertools.product(range(3), (-1, 0, 1), (-1, 0, 1)):
                place = np.zeros(3, dtype=int)
                place[[k, (k + 1) % 3, (k + 2) % 3]] = 2, i, j
                place = turn @ place
                axis = int(np.abs(place).argmax())
                seen[k] = _face(axis, int(place[axis]))
                on_face = int(place[(axis + 1) % 3]), int(place[(axis + 2) % 3])
                grid[k, i + 1, j + 1] = on_face in _PIPS[int(seen[k])]
            faces.append(seen)
            pips.append(grid)
    return np.array(faces), np.array(pips)


_POSE_FACES, _POSE_PIPS = _poses()


def render(count: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """``count`` images (N, 28, 28, 3) and the visible faces (N, 6) as zeros and ones, column 0 for
    face 1. The first n images are the same for every ``count``."""
    scene_seed, noise_seed = np.random.SeedSequence(seed).spawn(2)
    scenes = _Scenes(np.random.Generator(np.random.PCG64(scene_seed)).random((count, _DRAWS)))
    noise = np.random.Generator(np.random.PCG64(noise_seed))
    images = np.empty((count, SIDE, SIDE, 3), dtype=np.uint8)
    for first in range(0, count, _CHUNK):
        rows = slice(first, min(first + _CHUNK, count))
        colours = scenes.trace(rows)
        grain = noise.standard_normal(colours.shape, dtype=np.float32)
        colours += grain * scenes.grain[rows, None, None, None]
        images[rows] = np.rint(colours.clip(0, 1) * 255).astype(np.uint8)
    labels = np.zeros((count, len(FACES)), dtype=np.int64)
    np.put_along_axis(labels, _POSE_FACES[scenes.pose] - 1, 1, axis=1)
    return images, labels


_DRAWS = 21  # random numbers that describe a scene


class _Scenes:
    """Camera, die, light and table of N scenes, from (N, 21) uniform numbers."""

    def __init__(self, uniform: Floats) -> None:
        draws = iter(uniform.T)

        def between(low: float, high: float) -> Floats:
            drawn: Floats = low + (high - low) * next(draws)
            return drawn

        self.pose = (next(draws) * len(_POSE_FACES)).astype(np.int64)
        azimuth, elevation = np.radians(between(31, 59)), np.radians(between(31, 43))
        roll, distance = np.radians(between(-5, 5)), between(7, 10)
        zoom, shift_x, shift_y = between(0.95, 1.05), between(-0.04, 0.04), between(-0.04, 0.04)
        self._place_camera(azimuth, elevation, roll, distance, zoom, shift_x, shift_y)

        # Light comes from the camera's side and from above.
        light_azimuth = azimuth + np.radians(between(-70, 70))
        light_height = np.radians(between(40, 70))
        self.light = _f32(_direction(light_azimuth, light_height))
        self.ambient, self.shine = _f32(between(0.45, 0.65)), _f32(between(0.05, 0.35))
        self.shadow, self.grain = _f32(between(0.15, 0.45)), _f32(between(0.006, 0.022))
        exposure, warmth = between(0.92, 1.08), between(-0.04, 0.04)
        tint = np.stack([1 + warmth, np.ones_like(warmth), 1 - warmth], -1) * exposure[:, None]
        table = np.stack([between(0.78, 0.93)] * 3, -1)
        self.body, self.pip = self._colours(*(next(draws) for _ in range(4)))
        self.table, self.body, self.pip = (_f32(c * tint) for c in (table, self.body, self.pip))

    def _place_camera(
        self,
        azimuth: Floats,
        elevation: Floats,
        roll: Floats,
        distance: Floats,
        zoom: Floats,
        shift_x: Floats,
        shift_y: Floats,
    ) -> None:
        """Position and ray directions: ``forward + x * right + y * down`` for x, y in [-1, 1]."""
        towards = _direction(azimuth, elevation)  # from the die to the camera
        right = np.stack([-np.sin(azimuth), np.cos(azimuth), np.zeros_like(azimuth)], -1)
        down = -np.cross(towards, right)
        cos, sin = np.cos(roll)[:, None], np.sin(roll)[:, None]
        right, down = cos * right + sin * down, cos * down - sin * right
        # At zoom 1 the sphere around the die fills 86 % of the picture.
        width = 1.5 / (0.86 * zoom * distance)
        self.eye = _f32(towards * distance[:, None])
        self.right, self.down = _f32(right * width[:, None]), _f32(down * width[:, None])
        offset = (shift_x * width)[:, None] * right + (shift_y * width)[:, None] * down
        self.forward = _f32(offset - towards)

    def _colours(
        self, kind: Floats, hue: Floats, saturation: Floats, value: Floats
    ) -> tuple[Floats, Floats]:
        """Most dice are coloured with white pips, some are white with black ones."""
        white = (kind < 0.2)[:, None]
        steps = (np.array([5, 3, 1]) + 6 * hue[:, None]) % 6  # HSV to RGB
        ramp = np.minimum(steps, 4 - steps).clip(0, 1)
        vivid = (1 - (0.75 + 0.25 * saturation)[:, None] * ramp) * (0.6 + 0.35 * value)[:, None]
        # Yellow and cyan would drown their white pips: darken whatever is too bright.
        brightness = vivid @ np.array([0.299, 0.587, 0.114])
        vivid = vivid * np.minimum(1, 0.5 / brightness)[:, None]
        ivory = np.stack([0.84 + 0.1 * value, 0.84 + 0.1 * value, 0.76 + 0.16 * value], -1)
        body = np.where(white, ivory, vivid)
        return body, np.where(white, 0.06, 0.97) * np.ones_like(body)

    def trace(self, rows: slice) -> NDArray[np.float32]:
        """(n, 28, 28, 3) colours of some scenes, averaged over the rays of each pixel."""
        fine = SIDE * _RAYS
        at = _f32((np.arange(fine) + 0.5) * (2 / fine) - 1)
        start = self.forward[rows, None] + at[:, None] * self.down[rows, None]  # (n, rows, 3)
        step = at[:, None] * self.right[rows, None]  # (n, columns, 3)
        ray = [start[:, :, None, k] + step[:, None, :, k] for k in range(3)]  # each (n, y, x)
        eye = [self.eye[rows, k, None, None] for k in range(3)]

        distance, hit, on_sphere = _strike(eye, ray)
        point = [o + distance * d for o, d in zip(eye, ray, strict=True)]
        light = [self.light[rows, k, None, None] for k in range(3)]
        table = self._shade_table(rows, eye, ray, light)
        pips = self._pips(rows, point)
        diffuse, gleam = self._light_on(rows, point, on_sphere, ray, light)

        colours = np.empty((len(table), SIDE, SIDE, 3), dtype=np.float32)
        for channel in range(3):
            plain = self.body[rows, channel, None, None]
            painted = self.pip[rows, channel, None, None]
            die = np.where(pips, painted, plain) * diffuse + gleam
            seen = np.where(hit, die, table * self.table[rows, channel, None, None])
            colours[..., channel] = _average(seen)
        return colours

    def _shade_table(self, rows: slice, eye: Vector, ray: Vector, light: Vector) -> Floats:
        """Brightness of the table, (n, y, x). The shadow is that of a ball, with a soft edge."""
        length = (-1 - eye[2]) / np.minimum(ray[2], np.float32(-1e-3))
        ground = [o + length * d for o, d in zip(eye, ray, strict=True)]
        along = _dot(ground, light)
        across = _dot(ground, ground) - along * along
        outer, inner = np.float32(1.7**2), np.float32(0.8**2)
        depth = ((outer - across) / (outer - inner)).clip(0, 1)
        brightness: Floats = 1 - self.shadow[rows, None, None] * depth
        return brightness

    def _pips(self, rows: slice, point: Vector) -> NDArray[np.bool_]:
        x, y, z = point
        face = np.where(x > y, np.where(x > z, 0, 2), np.where(y > z, 1, 2))
        first = np.where(face == 0, y, np.where(face == 1, z, x))  # along axis face + 1
        second = np.where(face == 0, z, np.where(face == 1, x, y))
        i = np.rint(first * np.float32(1 / _PIP_STEP)).clip(-1, 1)
        j = np.rint(second * np.float32(1 / _PIP_STEP)).clip(-1, 1)
        away = (first - i * np.float32(_PIP_STEP)) ** 2 + (second - j * np.float32(_PIP_STEP)) ** 2
        # (n, 27): squared radius of the pip at a place of a face, -1 where there is none.
        pose = self.pose[rows]
        is_one = (_POSE_FACES[pose] == 1)[:, :, None, None]
        radius = np.where(is_one, _ONE_RADIUS, _PIP_RADIUS) ** 2
        radii = _f32(np.where(_POSE_PIPS[pose], radius, -1)).reshape(-1)
        place = face * 9 + (i * 3 + j + 4).astype(np.int64)
        place += 27 * np.arange(len(pose))[:, None, None]
        within: NDArray[np.bool_] = away < radii[place]
        return within

    def _light_on(
        self,
        rows: slice,
        point: Vector,
        on_sphere: NDArray[np.bool_],
        ray: Vector,
        light: Vector,
    ) -> tuple[Floats, Floats]:
        """Diffuse factor and highlight: a flat face has its axis as normal, the rounding the
        direction from the centre."""
        x, y, z = point
        top = np.maximum(np.maximum(x, y), z)
        inverse = np.float32(1 / _ROUNDING)
        normal = [np.where(on_sphere, p * inverse, p == top) for p in point]
        facing = _dot(normal, light)
        # Mirror the ray at the surface and compare it with the light: Phong's highlight.
        back = _dot(normal, ray)
        mirrored = _dot(light, ray) - 2 * back * facing
        ambient = self.ambient[rows, None, None]
        gleam = mirrored.clip(0, 1) ** 2
        gleam = gleam * gleam
        gleam = gleam * gleam * self.shine[rows, None, None]
        return ambient + (1.06 - ambient) * facing.clip(0, None), gleam


def _strike(eye: Vector, ray: Vector) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
    """Where a ray meets the cube cut by the sphere: distance, whether it does, and whether on the
    sphere. The eye is outside of the faces on +x, +y, +z, so a ray can enter by these only."""
    enter: Any = np.float32(0)
    leave: Any = np.float32(np.inf)
    for o, d in zip(eye, ray, strict=True):
        inverse = 1 / np.where(np.abs(d) < 1e-6, np.float32(-1e-6), d)
        enter = np.maximum(enter, (1 - o) * inverse)
        leave = np.minimum(leave, (-1 - o) * inverse)
    a, b = _dot(ray, ray), _dot(eye, ray)
    c = _dot(eye, eye) - np.float32(_ROUNDING**2)
    inside = b * b - a * c
    root = np.sqrt(np.maximum(inside, 0))
    near, far = (-b - root) / a, (-b + root) / a
    distance = np.maximum(enter, near)
    hit = (inside > 0) & (distance < np.minimum(leave, far))
    return distance, hit, near > enter


def _dot(a: Vector, b: Vector) -> Floats:
    total: Floats = a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
    return total


def _average(fine: Floats) -> Floats:
    """Mean over the rays of each pixel; slices are several times faster here than reshape-sum."""
    rows: Floats = sum(fine[:, k::_RAYS] for k in range(1, _RAYS)) + fine[:, ::_RAYS]
    both: Floats = sum(rows[..., k::_RAYS] for k in range(1, _RAYS)) + rows[..., ::_RAYS]
    return both * np.float32(1 / _RAYS**2)


def _direction(azimuth: Floats, height: Floats) -> Floats:
    flat = np.cos(height)
    return np.stack([flat * np.cos(azimuth), flat * np.sin(azimuth), np.sin(height)], -1)


def _f32(values: Any) -> NDArray[np.float32]:
    return np.asarray(values, dtype=np.float32)


@data_sets.register("dice-rendered")
def load_dice_rendered(
    data_dir: Path | None = None,
    *,
    progress: Progress | None = None,
    count_train: int = 1600,
    count_test: int = 400,
    seed: int = 0,
) -> DataSet:
    """Rendered dice with three visible faces, 28 x 28 RGB, any number; needs no download."""
    for name, value, least in (
        ("count_train", count_train, 1),
        ("count_test", count_test, 1),
        ("seed", seed, 0),
    ):
        if value < least:
            raise DataError(
                f"option '{name}' is out of range",
                where="dice-rendered",
                expected=f"{least} or more",
                found=f"{value}",
                fix=f"pass {name}={least} or a larger number",
            )
    # Two streams, so that the test images do not depend on how many there are to train on.
    train, test = (
        _split(count, seed, part) for part, count in enumerate((count_train, count_test))
    )
    mean, std = channel_statistics(train.stored)
    return DataSet(
        name="dice-rendered",
        train=train,
        test=test,
        classes=FACES,
        task="multi-label",
        mean=mean,
        std=std,
        batch_size=BATCH_SIZE,
        augment=JITTER,
    )


def _split(count: int, seed: int, part: int) -> Split:
    images, labels = render(count, 2 * seed + part)
    return Split(np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels)
