"""A network at two points at once, or of fewer variables than it has inputs: one network again.

Its input are the variables; every entry of x (and of x2) is one of them. The steps of the two runs
stand side by side, so that a chain of layers stays one. Two networks of different structure take
turns instead, activation by activation, so that neurons stand in the same order either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from qll.networks.exact import Enclosure, ExactReplay
from qll.networks.fold import fold
from qll.networks.matrices import Array, Matrix, sparse
from qll.networks.network import Network
from qll.networks.program import Activate, AffineMap, Program, Step
from qll.networks.relu_form import ReluForm

# Blocks of up to this many entries are stored with their zeros.
DENSE_ENTRIES = 1 << 22


@dataclass(frozen=True, eq=False)
class Joint:
    """``networks``, one for each point, at entries ``home`` of the variables (`normal.Ties`)."""

    networks: tuple[Network, ...]
    home: tuple[int, ...]
    variables: int

    @property
    def input_size(self) -> int:
        return self.variables

    @property
    def output_size(self) -> int:
        return self.program.widths[-1]

    @property
    def points(self) -> int:
        return len(self.networks)

    def expand(self, point: Array) -> Array:
        """(points, inputs) of the variables' values."""
        return np.asarray(point)[..., list(self.home)].reshape(self.points, -1)

    def stored(self, witness: Array) -> Array:
        """What a certificate holds of a witness: all entries."""
        return self.expand(witness)

    def entrance(self) -> list[AffineMap]:
        """Steps from the variables to all entries."""
        place = np.array(self.home)
        count = len(place)
        ones = np.ones(count)
        chosen = sparse().csr_matrix(
            (ones, (np.arange(count), place)), shape=(count, self.variables)
        )
        return [AffineMap(((0, _stored(chosen)),), np.zeros(count))]

    @cached_property
    def program(self) -> Program:
        programs = [network.program for network in self.networks]
        steps: list[Step] = [*self.entrance()]
        widths = [self.variables, *(step.width for step in self.entrance())]
        start = len(steps)
        if _alike(programs):
            for number in range(len(programs[0].steps)):
                steps.append(_beside([p.steps[number] for p in programs], start))
                widths.append(sum(p.widths[number + 1] for p in programs))
        else:
            _in_turns(programs, steps, widths)
        return Program((self.variables,), tuple(widths), tuple(steps))

    @cached_property
    def relu_form(self) -> ReluForm:
        return fold(self.program)

    @cached_property
    def enclose(self) -> Enclosure:
        return Enclosure(self.program)

    @cached_property
    def evaluate_exact(self) -> ExactReplay:
        return ExactReplay(self.program)

    def runtime(self, batch: Any) -> Any:
        """What ONNX Runtime answers at each of the points."""
        given = np.asarray(batch, dtype=np.float64)
        points = np.stack([self.expand(row) for row in given])  # (batch, points, inputs)
        found = [
            np.asarray(network.runtime(points[:, k]), dtype=np.float64).reshape(len(given), -1)
            for k, network in enumerate(self.networks)
        ]
        return np.concatenate(found, axis=1)


def _alike(programs: Sequence[Program]) -> bool:
    """Whether the steps can stand side by side."""

    def structure(program: Program) -> list[Any]:
        return [
            (step.source, step.function)
            if isinstance(step, Activate)
            else ([source for source, _ in step.terms], step.divisor is None)
            for step in program.steps
        ]

    return all(structure(program) == structure(programs[0]) for program in programs)


def _beside(steps: Sequence[Any], start: int) -> Step:
    first = steps[0]
    if isinstance(first, Activate):
        return Activate(first.source + start, first.function)
    terms = tuple(
        (source + start, _blocks([step.terms[at][1] for step in steps]))
        for at, (source, _) in enumerate(first.terms)
    )
    divisor = None
    if first.divisor is not None:
        divisor = np.concatenate([step.divisor for step in steps])
    return AffineMap(terms, np.concatenate([step.bias for step in steps]), divisor)


def _in_turns(programs: Sequence[Program], steps: list[Step], widths: list[int]) -> None:
    """Each network's steps up to its next activation, in turns, then their outputs together."""
    start, entries = 0, len(steps)
    places: list[list[int]] = []  # of each network's values
    for program in programs:
        size, count = program.widths[0], widths[entries]
        rows = sparse().csr_matrix(
            (np.ones(size), (np.arange(size), np.arange(start, start + size))), shape=(size, count)
        )
        steps.append(AffineMap(((entries, _stored(rows)),), np.zeros(size)))
        widths.append(size)
        places.append([len(steps)])
        start += size
    left = [list(program.steps) for program in programs]
    while any(left):
        for program, mine, place in zip(programs, left, places, strict=True):
            while mine:
                step = mine.pop(0)
                widths.append(program.widths[len(place)])
                if isinstance(step, Activate):
                    steps.append(Activate(place[step.source], step.function))
                else:
                    terms = tuple((place[source], matrix) for source, matrix in step.terms)
                    steps.append(AffineMap(terms, step.bias, step.divisor))
                place.append(len(steps))
                if isinstance(step, Activate):
                    break
    sizes = [program.widths[-1] for program in programs]
    total, at, terms_ = sum(sizes), 0, []
    for place, size in zip(places, sizes, strict=True):
        rows = sparse().csr_matrix(
            (np.ones(size), (np.arange(at, at + size), np.arange(size))), shape=(total, size)
        )
        terms_.append((place[-1], _stored(rows)))
        at += size
    steps.append(AffineMap(tuple(terms_), np.zeros(total)))
    widths.append(total)


def _blocks(matrices: Sequence[Matrix]) -> Matrix:
    if len(matrices) == 1:
        return matrices[0]
    return _stored(sparse().block_diag([sparse().csr_matrix(m) for m in matrices], format="csr"))


def _stored(matrix: Any) -> Matrix:
    small = matrix.shape[0] * matrix.shape[1] <= DENSE_ENTRIES
    return np.asarray(matrix.toarray()) if small else matrix.tocsr()
