"""The compiled attack: signed-gradient ascent of a formula's loss over boxes, on all cores.

``CompiledAttack`` joins a network plan and a formula tape; it takes and gives torch tensors. It is
exact mathematics in float32 (the formula in float64): against the torch reference the attacked
values agree within float noise, which ``tests/test_kernels_attack.py`` states in numbers.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qll.errors import InputError
from qll.kernels.formula import Tape
from qll.kernels.plan import NetworkPlan
from qll.kernels.schedule import Schedule
from qll.kernels.starts import run_keys
from qll.kernels.threads import submit, thread_count

Floats = NDArray[np.float32]
# Groups that one call attacks, at most; and how often each of several threads asks for more.
MOST_AT_ONCE, SHARES = 16, 4
# Any length; kernels ask for the length to know whether there is something.
_NO_KEYS = np.zeros(0, dtype=np.uint32)
_NO_POINTS = np.zeros((0, 0), dtype=np.float32)


@dataclass(eq=False)
class CompiledAttack:
    """Attacks a network's formula; call ``plan.refresh()`` after the weights have changed."""

    plan: NetworkPlan
    tape: Tape
    threads: int = 0  # 0: as many as torch uses
    _work: dict[int, tuple[Any, ...]] = field(default_factory=dict, repr=False)
    # The rooms in ``_work`` serve one run at a time.
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        if self.plan.outputs != self.tape.outputs:
            raise InputError(
                "a formula does not fit the network",
                expected=f"a formula over {self.plan.outputs} outputs",
                found=f"one over {self.tape.outputs}",
                fix="compile the formula for this network's outputs",
            )

    def run(
        self,
        lower: Tensor,
        upper: Tensor,
        patterns: Tensor,
        *,
        schedule: Schedule,
        valid: tuple[float, float] = (-np.inf, np.inf),
        width: float | None = None,
        restarts: int = 1,
        seed: int = 0,
        starts: Tensor | None = None,
        centre: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The worst points found in each box intersected with ``valid``, and their losses.

        ``lower``/``upper`` (samples, ...) are the box before that intersection: they set the size
        of a step, or ``width`` does where it is the same for all inputs. ``patterns`` (samples,)
        names each sample's formula on the tape. ``restarts`` runs start at random by ``seed``, or
        at ``starts`` (restarts, samples, ...). ``centre`` (samples, outputs) are the outputs
        ``y0``, where the formula speaks of them. The loss is NaN where the network's output at the
        first start is.
        """
        samples, shape = len(lower), lower.shape
        low, high = self._points(lower, samples), self._points(upper, samples)
        chosen = self._patterns(patterns, samples)
        outputs = _NO_POINTS if centre is None else _contiguous(centre).reshape(samples, -1)
        self._check_centre(outputs, samples)
        given = _NO_POINTS
        keys = _NO_KEYS
        if starts is not None:
            restarts = len(starts)
            given = self._points(starts, restarts * samples)
        else:
            keys = run_keys(seed, restarts * samples)
        if samples == 0 or restarts == 0:
            return lower.clone(), torch.full((samples,), -torch.inf, dtype=torch.float64)
        lanes = self._lanes()
        spread = restarts > 1 and samples * restarts < 2 * lanes * self._thread_count()
        if spread:  # too few samples to fill the lanes: each restart is a sample of its own
            low, high, chosen = (np.concatenate([a] * restarts) for a in (low, high, chosen))
            outputs = np.concatenate([outputs] * restarts) if outputs.size else outputs
        points = np.empty_like(low)
        values = np.empty(len(low))
        box = (low, high, np.float32(np.nan if width is None else width))
        # Lanes of one formula are judged without gathers; the samples do not know of one another.
        order = np.argsort(chosen, kind="stable")
        keys = keys.reshape(-1, len(order))[:, order].reshape(-1) if keys.size else keys
        outputs = outputs[order] if outputs.size else outputs
        formulas = (order, chosen[order], outputs, keys, given)
        data = (box, _range(valid), *formulas, _schedule_arrays(schedule))
        with self._lock:
            self._run_groups(len(low), data, (points, values))
        if spread:
            points, values = _best_of_restarts(points, values, restarts)
        return torch.from_numpy(points).reshape(shape), torch.from_numpy(values)

    def _run_groups(self, samples: int, data: tuple[Any, ...], out: tuple[Any, ...]) -> None:
        from qll.kernels.chunk import attack_groups

        plan = self.plan
        network = (
            plan.forward_steps,
            plan.backward_steps,
            plan.arrays(),
            plan.input_places,
            plan.output_row,
            plan.outputs,
        )
        box, valid, order, chosen, centre, keys, starts, schedule = data
        lanes, threads = self._lanes(), self._thread_count()
        size = _group_size(samples, lanes, threads)
        at_once = size * _groups_at_once(-(-samples // size), threads)
        counter = itertools.count()

        def work(thread: int) -> None:
            room = self._room(thread)
            while (first := next(counter) * at_once) < samples:
                attack_groups(
                    first,
                    min(first + at_once, samples),
                    size,
                    network,
                    self.tape.arrays(),
                    box,
                    valid,
                    order,
                    chosen,
                    centre,
                    keys,
                    starts,
                    schedule,
                    room,
                    out,
                )

        if threads == 1 or samples <= at_once:
            work(0)
            return
        submit(threads, work)

    def _lanes(self) -> int:
        from qll.kernels.simd import LANES

        return LANES

    def _thread_count(self) -> int:
        return self.threads or thread_count()

    def _room(self, thread: int) -> tuple[Any, ...]:
        from qll.kernels.moves import SECTIONS
        from qll.kernels.simd import LANES, TILE, aligned_floats

        if thread not in self._work:
            self._work[thread] = (
                aligned_floats(SECTIONS * self.plan.inputs * LANES),
                aligned_floats(self.plan.inputs * LANES),
                aligned_floats(self.plan.rows * LANES),
                aligned_floats(TILE * LANES),
                self.tape.room(LANES),
                (
                    aligned_floats(3 * LANES).reshape(3, LANES),
                    np.zeros((5, LANES)),
                    np.zeros((4, LANES), dtype=np.int64),
                    np.zeros((3, max(self.plan.inputs, LANES)), dtype=np.uint32),
                ),
            )
        return self._work[thread]

    def _points(self, tensor: Tensor, count: int) -> Floats:
        width = tensor.numel() // count if count else self.plan.inputs
        if width != self.plan.inputs:
            raise InputError(
                "points do not fit the network",
                expected=f"{self.plan.inputs} numbers a point",
                found=f"{width}",
                fix="pass points of the network's input shape",
            )
        return _contiguous(tensor).reshape(count, width)

    def _patterns(self, patterns: Tensor, samples: int) -> NDArray[np.int64]:
        chosen = patterns.detach().cpu().numpy().astype(np.int64).reshape(-1)
        known = len(self.tape.patterns)
        if len(chosen) != samples or (samples and not (0 <= chosen.min() <= chosen.max() < known)):
            raise InputError(
                "the samples' formulas are not on the tape",
                expected=f"{samples} numbers from 0 to {known - 1}",
                found=f"{len(chosen)} numbers",
                fix="compile a formula for each label pattern that occurs",
            )
        return chosen

    def _check_centre(self, centre: Floats, samples: int) -> None:
        wanted = (samples, self.plan.outputs)
        if self.tape.uses_centre and centre.shape != wanted:
            raise InputError(
                "the formula speaks of the outputs y0 at the centre",
                expected=f"centre outputs of shape {wanted}",
                found=str(centre.shape),
                fix="pass centre=network(x0)",
            )


def _group_size(samples: int, lanes: int, threads: int) -> int:
    """Full lanes; but when there are fewer groups than threads, all threads get some."""
    if samples >= lanes * threads:
        return lanes
    return max(1, min(lanes, -(-samples // threads)))


def _groups_at_once(groups: int, threads: int) -> int:
    """Few enough to share them out evenly, and to come back to the interpreter now and then."""
    even = groups if threads == 1 else groups // (SHARES * threads)
    return max(1, min(even, MOST_AT_ONCE))


def _best_of_restarts(
    points: Floats, values: NDArray[np.float64], restarts: int
) -> tuple[Floats, NDArray[np.float64]]:
    by_run = values.reshape(restarts, -1)
    best = np.argmax(by_run, axis=0)  # the first of equal ones; NaN counts as largest
    pick = np.arange(by_run.shape[1])
    return points.reshape(restarts, by_run.shape[1], -1)[best, pick], by_run[best, pick]


def _contiguous(tensor: Tensor) -> Floats:
    return tensor.detach().to("cpu", torch.float32).contiguous().numpy()


def _range(valid: tuple[float, float]) -> Floats:
    return np.array(valid, dtype=np.float32)


def _schedule_arrays(schedule: Schedule) -> tuple[Any, ...]:
    windows = np.array(schedule.windows, dtype=np.int64)
    return windows, float(schedule.step), float(schedule.alpha), bool(schedule.as_published)
