"""A layer by its entries: of which entries of its operands each of its own is made, and how.

A handful of forms says it for every layer, so that whoever runs a network entry by entry (the
attack's kernels) knows these and no layer. Entries are numbered through all operands, one after the
other, each flattened; -1 is no entry. `Live` forms hold weights, which training changes; the others
depend on shapes alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qll.networks.activations import Activation
from qll.networks.matrices import Array
from qll.networks.windows import Window

Indices: TypeAlias = NDArray[np.int64]


class Form:
    """What a layer does to entries."""


class Live(Form):
    """With weights."""


@dataclass(frozen=True, eq=False)
class Same(Form):
    """The operand's entries, in their order."""


@dataclass(frozen=True, eq=False)
class Moved(Form):
    """Entry ``k`` is ``entries[k]``; without one, ``fill``."""

    entries: Indices
    fill: float = 0.0


@dataclass(frozen=True, eq=False)
class Combined(Form):
    """Entry ``k`` is the sum of ``factors[k] * entries[k]``, both (n, terms)."""

    entries: Indices
    factors: Array


@dataclass(frozen=True, eq=False)
class Largest(Form):
    """Entry ``k`` is the largest (``sign`` 1) or the least (-1) of ``entries[k]``, (n, terms)."""

    entries: Indices
    sign: int = 1


@dataclass(frozen=True, eq=False)
class Curved(Live):
    """An activation, entry by entry."""

    function: Activation


@dataclass(frozen=True, eq=False)
class Fixed(Live):
    """A constant."""

    value: Array


@dataclass(frozen=True, eq=False)
class Scaled(Live):
    """``operand * factor + shift``, broadcast to the layer's shape."""

    factor: Array
    shift: Array


@dataclass(frozen=True, eq=False)
class Leaky(Live):
    """``operand`` where it is positive, ``slope * operand`` elsewhere, broadcast."""

    slope: Array


@dataclass(frozen=True, eq=False)
class Windowed(Live):
    """A convolution, ``weight`` (out, in / groups, *kernel); without a window a linear map of the
    last axis, ``weight`` (out, in)."""

    weight: Array
    bias: Array
    window: Window | None = None
    groups: int = 1
