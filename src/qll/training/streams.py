"""Random streams by name: a stream's seed is a function of the run's seed, its name and a place.

So no generator has a state that a checkpoint would have to keep, and a run that is resumed at an
epoch draws what an uninterrupted one draws there.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def stream_seed(seed: int, name: str, *place: int) -> int:
    """A number below 2^62 for the stream ``name`` at ``place`` (an epoch, a step).

    >>> stream_seed(0, "shuffle", 1) == stream_seed(0, "shuffle", 2)
    False
    """
    words = np.random.SeedSequence([seed, zlib.crc32(name.encode()), *place])
    high, low = (int(word) for word in words.generate_state(2, np.uint32))
    return (high << 30) ^ low


def generator(seed: int, name: str, *place: int) -> torch.Generator:
    return torch.Generator().manual_seed(stream_seed(seed, name, *place))


@contextmanager
def seeded(seed: int, name: str, *place: int) -> Iterator[None]:
    """Torch's own generator, for initialisation and dropout; the caller's state comes back."""
    with torch.random.fork_rng():
        torch.manual_seed(stream_seed(seed, name, *place))
        yield
