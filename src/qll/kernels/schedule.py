"""The plan of a signed-gradient attack in numbers: steps, momentum, when step sizes are checked.

AutoPGD after Croce and Hein 2020 (Algorithm 1): ``x_1 = P(x_0 + eta sign g)``, then
``z = P(x_k + eta sign g)`` and ``x_{k+1} = P(x_k + alpha (z - x_k) + (1 - alpha)(x_k - x_{k-1}))``,
with ``eta = 2 epsilon`` at first. At checkpoint ``w_j`` a sample halves its step and returns to its
best point if (1) fewer than ``rho (w_j - w_{j-1})`` of the steps since ``w_{j-1}`` raised its
value, or (2) neither its step nor its best value has changed since ``w_{j-1}``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from qll.errors import InputError

RHO = 0.75
MOMENTUM = 0.75


@dataclass(frozen=True)
class Schedule:
    """``windows[i]`` is the length of the window that ends with step ``i``; 0: no check there.

    ``as_published`` repeats the published attack, whose counter of steps since the last check is
    never reset: one check only; there, exactly ``rho`` of the window also counts as too few, the
    second condition never applies, and the first step is compared with 0 instead of the start.
    """

    windows: tuple[int, ...]
    step: float  # first step, as a fraction of the region's width
    alpha: float  # share of the new direction; 1 is without momentum
    as_published: bool = False

    @property
    def steps(self) -> int:
        return len(self.windows)


def checkpoints(steps: int) -> list[int]:
    """``w_1 < w_2 < ...``: the fractions 0.22, then shrinking by 0.03 down to 0.06, of ``steps``.

    >>> checkpoints(100)
    [22, 41, 57, 70, 80, 87, 93, 99]
    """
    before, here = 0.0, 0.22
    found: list[int] = []
    while here <= 1.0:
        mark = math.ceil(here * steps - 1e-9)
        if 0 < mark <= steps and mark not in found:
            found.append(mark)
        before, here = here, here + max(here - before - 0.03, 0.06)
    return found


def autopgd(steps: int, *, as_published: bool = False) -> Schedule:
    _check_steps(steps)
    if as_published:
        window = max(int(0.22 * steps), 1)
        windows = [window if i + 1 == window else 0 for i in range(steps)]
        return Schedule(tuple(windows), 1.0, MOMENTUM, as_published=True)
    windows, last = [0] * steps, 0
    for mark in checkpoints(steps):
        windows[mark - 1] = mark - last
        last = mark
    return Schedule(tuple(windows), 1.0, MOMENTUM)


def pgd(steps: int, step: float) -> Schedule:
    """Plain projected gradient; ``step`` as a fraction of the region's width (2 epsilon)."""
    _check_steps(steps)
    if not (math.isfinite(step) and step > 0):
        raise InputError(
            "the step of an attack is not usable",
            expected="a fraction of the region's width above 0",
            found=f"{step}",
            fix="pass step=0.05, say",
        )
    return Schedule((0,) * steps, step, 1.0)


def _check_steps(steps: int) -> None:
    if steps < 0:
        raise InputError(
            "the number of attack steps is negative",
            expected="0 (only the starting points) or more",
            found=str(steps),
            fix="pass steps=20, say",
        )
