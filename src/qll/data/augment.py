"""Training augmentations, batched: those of the published runs, and views that a recipe may add.
Each is a record that maps images in raw units to images in raw units; all randomness comes from the
generator it is given."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_ROTATION_CHUNK = 256  # images whose index arrays (28 x 28 x 8 bytes each) stay in the cache


@dataclass(frozen=True)
class Rotation:
    """Rotate each image about its centre by an angle drawn uniformly from ``[-degrees, degrees]``;
    nearest neighbour, same size, zeros from outside."""

    degrees: float

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        angles = torch.empty(len(images), dtype=torch.float64, device=generator.device)
        angles.uniform_(-self.degrees, self.degrees, generator=generator)
        return rotate(images, angles)


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate image n of (N, C, H, W) counter-clockwise by ``degrees[n]``.

    The source pixel of each pixel is found in 16.16 fixed point exactly as Pillow finds it (which
    the published runs used), so the result equals Pillow's bit for bit.
    """
    count, channels, height, width = images.shape
    # Room for the corners, which swing out of the frame: then no index needs a test.
    margin = math.ceil((math.hypot(height, width) - min(height, width)) / 2) + 1
    wide = width + 2 * margin
    angle = -torch.deg2rad(degrees.to(images.device, torch.float64))
    cos, sin = angle.cos(), angle.sin()
    centre_x, centre_y = width / 2, height / 2
    start_x = _fixed(centre_x - cos * centre_x - sin * centre_y + (cos + sin) * 0.5)
    start_y = _fixed(centre_y + sin * centre_x - cos * centre_y + (cos - sin) * 0.5)
    cos, sin_x, sin_y = _fixed(cos), _fixed(sin), _fixed(-sin)
    across = torch.arange(width, dtype=torch.int32, device=images.device)[None, None, :]
    down = torch.arange(height, dtype=torch.int32, device=images.device)[None, :, None]

    def each(values: Tensor, rows: slice) -> Tensor:
        return values[rows, None, None]

    rotated = torch.empty_like(images)
    for first in range(0, count, _ROTATION_CHUNK):
        rows = slice(first, min(first + _ROTATION_CHUNK, count))
        # (n, H, W): fixed-point source column and row, stepping as Pillow does.
        column = (each(start_x, rows) + each(sin_x, rows) * down) + each(cos, rows) * across
        row = (each(start_y, rows) + each(cos, rows) * down) + each(sin_y, rows) * across
        column.bitwise_right_shift_(16)
        source = row.bitwise_right_shift_(16).add_(margin).mul_(wide).add_(column).add_(margin)
        padded = torch.nn.functional.pad(images[rows], (margin,) * 4).flatten(2)
        at = source.flatten(1)[:, None].long().expand(-1, channels, -1)
        rotated[rows] = padded.gather(2, at).view(-1, channels, height, width)
    return rotated


def _fixed(values: Tensor) -> Tensor:
    return (values * 65536 + 0.5).floor().to(torch.int32)


@dataclass(frozen=True)
class ColourJitter:
    """Change brightness, contrast, saturation and hue of each RGB image, in an order drawn for
    that image: the factors uniform in ``1 +- amount`` and the hue shift in ``+- hue`` turns."""

    brightness: float
    contrast: float
    saturation: float
    hue: float

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        draws = torch.rand(len(images), 8, generator=generator, device=generator.device)
        draws = draws.to(images.device, images.dtype)
        order = draws[:, :4].argsort(1)  # (N, 4): which change comes first, second, ...
        swing = 2 * draws[:, 4:] - 1
        factors = 1 + swing[:, :3] * swing.new_tensor(
            [self.brightness, self.contrast, self.saturation]
        )
        turns = self.hue * swing[:, 3]
        for place in range(4):
            change = order[:, place]
            images = _jitter_once(images, change, factors, turns)
        return images


def _jitter_once(images: Tensor, change: Tensor, factors: Tensor, turns: Tensor) -> Tensor:
    """Apply change 0 (brightness), 1 (contrast), 2 (saturation) or 3 (hue), one an image.

    The first three blend with black, with the mean grey and with the grey image: one formula for
    all images, in which a factor of 1 leaves the image exactly as it was.
    """
    shade = grey(images)
    mean = shade.mean((1, 2, 3), keepdim=True)
    kind = change[:, None, None, None]
    other = torch.where(kind == 2, shade, torch.where(kind == 1, mean, 0))
    is_hue = change == 3
    factor = factors.gather(1, change.clamp(max=2)[:, None])[:, 0]
    blended = _blend(images, other, torch.where(is_hue, 1, factor))
    rows = is_hue.nonzero()[:, 0]
    blended[rows] = shift_hue(images[rows], turns[rows])
    return blended


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return other.lerp(images, factor[:, None, None, None]).clamp_(0, 1)


def grey(images: Tensor) -> Tensor:
    """(N, 3, H, W) to (N, 1, H, W): luma of ITU-R BT.601."""
    red, green, blue = images.unbind(1)
    return (0.2989 * red + 0.587 * green + 0.114 * blue)[:, None]


def change_brightness(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(images, torch.zeros_like(images), factor)


def change_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Away from, or towards, the mean grey of the whole image."""
    mean = grey(images).mean((1, 2, 3), keepdim=True)
    return _blend(images, mean, factor)


def change_saturation(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(images, grey(images), factor)


def shift_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Rotate the hue; value and saturation (HSV) stay."""
    value, lead = images.max(1)
    least = images.amin(1)
    spread = value - least
    safe = torch.where(spread > 0, spread, 1)
    red, green, blue = images.unbind(1)
    sixths = torch.where(
        lead == 0,
        (green - blue) / safe,
        torch.where(lead == 1, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sixths = sixths + 6 * turns[:, None, None]
    # HSV to RGB in closed form: channel = value - spread * clip(min(k, 4 - k), 0, 1),
    # k = (n + hue in sixths) mod 6 with n = 5, 3, 1 for red, green, blue.
    steps = [(n + sixths) % 6 for n in (5, 3, 1)]
    channels = [value - spread * torch.minimum(k, 4 - k).clamp(0, 1) for k in steps]
    return torch.stack(channels, 1)


@dataclass(frozen=True)
class Views:
    """What else may be seen without another label: half of the images mirrored left to right, each
    moved by up to ``shift`` pixels (the border is repeated), its colours in any order."""

    mirror: bool = False
    shift: int = 0
    colours: bool = False

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        count, channels = images.shape[:2]
        if self.mirror:
            turned = torch.rand(count, generator=generator, device=generator.device) < 0.5
            images = torch.where(
                turned[:, None, None, None].to(images.device), images.flip(3), images
            )
        if self.colours:
            draws = torch.rand(count, channels, generator=generator, device=generator.device)
            order = draws.argsort(1).to(images.device)
            images = images.gather(1, order[:, :, None, None].expand_as(images))
        if self.shift:
            images = self._moved(images, generator)
        return images

    def _moved(self, images: Tensor, generator: torch.Generator) -> Tensor:
        count, channels, height, width = images.shape
        wide = torch.nn.functional.pad(images, (self.shift,) * 4, mode="replicate")
        places = torch.randint(
            2 * self.shift + 1, (count, 2), generator=generator, device=generator.device
        ).to(images.device)
        rows = places[:, :1] + torch.arange(height, device=images.device)  # (N, H)
        columns = places[:, 1:] + torch.arange(width, device=images.device)
        wide = wide.gather(
            2, rows[:, None, :, None].expand(-1, channels, -1, width + 2 * self.shift)
        )
        return wide.gather(3, columns[:, None, None, :].expand(-1, channels, height, -1))
