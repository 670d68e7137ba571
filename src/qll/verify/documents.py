"""Deciding what a VNN-LIB file asks: its cases as queries, and one answer from their verdicts.

``sat`` names a point that was judged exactly: the decimals of the file, strict comparisons strict,
the network's stored weights, and ONNX Runtime. ``unsat`` was proved for boxes around the exact
ones, with strict comparisons closed. What lies between is ``unknown``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from itertools import islice

import numpy as np

from qll.exchange.cases import Case
from qll.exchange.document import All, Document
from qll.exchange.parts import parts, surely, type_of
from qll.exchange.rounding import inexact_inputs, within
from qll.networks import Network
from qll.verify import parallel
from qll.verify.arithmetic import outputs_at
from qll.verify.backend import BACKENDS, Budget
from qll.verify.condition import Array
from qll.verify.judge import Worth, judge
from qll.verify.query import Query
from qll.verify.verdict import Reason, Status, Verdict

CHUNK = 16  # cases that share an attack
QUICK = 1.0  # seconds for each of several cases, before any is worked on at length
ALONE = 5.0  # seconds for a query, before it is shared between processes
TIE_NOTE = "a point was found, but only where a comparison is a tie"


class Answer(StrEnum):
    SAT = "sat"
    UNSAT = "unsat"
    UNKNOWN = "unknown"
    TIMED_OUT = "timed-out"


@dataclass(frozen=True, eq=False)
class Decision:
    answer: Answer
    witness: Array | None = None  # all inputs, in the order of the document
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class _Asked:
    """A case with its query; ``closed``: it takes ties that a strict comparison does not."""

    case: Case
    query: Query
    closed: bool


def decide(
    document: Document,
    network: Network,
    *,
    seconds: float,
    backend: str = "bab",
    seed: int = 0,
    arithmetic: str | None = None,
    jobs: int = 1,
) -> Decision:
    """The answer for the network from all inputs to all outputs, within ``seconds``. In the
    ``arithmetic`` float32 (`qll.verify.arithmetic`) ``sat`` names float32 inputs at which every
    evaluation meets the assertions, ``unsat`` says that none does at any. What one process does
    not decide soon is shared between ``jobs`` of them (`qll.verify.parallel`)."""
    return _Decider(document, network, seconds, backend, seed, arithmetic, jobs).run()


class _Decider:
    def __init__(
        self,
        document: Document,
        network: Network,
        seconds: float,
        backend: str,
        seed: int,
        arithmetic: str | None,
        jobs: int,
    ) -> None:
        self.document = document
        self.backend, self.jobs = backend, jobs
        self.arithmetic = arithmetic
        self.network = network
        self.end = time.monotonic() + seconds
        self.engine = BACKENDS[backend]()
        self.seed = seed
        self.notes: dict[str, None] = {}
        self.witness: Array | None = None
        self.given_up = False  # some case is unknown for another reason than time

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    def run(self) -> Decision:
        waiting = _questions(self.document, self.network, self.notes, self.arithmetic)
        first = list(islice(waiting, CHUNK))
        if len(first) == 1:
            open_ = self.ask(first, self.left)
            return self.finish(bool(open_))
        open_ = []
        while first and self.witness is None:
            if self.left <= 0:
                return self.finish(True)
            open_ += self.ask(first, min(QUICK, self.left))
            first = list(islice(waiting, CHUNK))
        share = QUICK
        while open_ and self.witness is None and self.left > 0:
            share *= 4
            asked, open_ = open_, []
            for k, item in enumerate(asked):
                if self.left <= 0 or self.witness is not None:
                    open_ += asked[k:]
                    break
                open_ += self.ask([item], self.left if len(asked) == 1 else min(share, self.left))
        return self.finish(bool(open_))

    def finish(self, out_of_time: bool) -> Decision:
        if self.witness is not None:
            answer = Answer.SAT
        elif out_of_time:
            answer = Answer.TIMED_OUT
        else:
            answer = Answer.UNKNOWN if self.given_up else Answer.UNSAT
        return Decision(answer, self.witness, tuple(self.notes))

    def ask(self, asked: list[_Asked], seconds: float) -> list[_Asked]:
        """Those that need more time."""
        open_ = []
        verdicts = self.verdicts([a.query for a in asked], Budget(seconds, self.seed))
        for item, verdict in zip(asked, verdicts, strict=True):
            self.notes.update(dict.fromkeys(verdict.notes))
            if verdict.status is Status.FALSIFIED and self.witness is None:
                self.witness = self.confirmed(item, verdict)
                if self.witness is None and item.closed and self.left > 0:
                    beyond = replace(item.query, tie_violates=False)
                    again = self.engine.decide([beyond], Budget(self.left, self.seed))[0]
                    self.witness = self.confirmed(item, again)
                if self.witness is None:
                    self.notes[TIE_NOTE] = None
                    self.given_up = True
            elif verdict.status is Status.UNKNOWN:
                if verdict.reason is Reason.TIME:
                    open_.append(item)
                else:
                    self.given_up = True
                    self.notes[f"unknown: {verdict.reason}"] = None
        return open_

    def verdicts(self, asked: list[Query], budget: Budget) -> list[Verdict]:
        alone = replace(budget, seconds=min(budget.seconds, ALONE))
        if self.jobs < 2 or len(asked) > 1 or not parallel.fits(asked[0]):
            return self.engine.decide(asked, budget)
        start = time.monotonic()
        found = self.engine.decide(asked, alone)
        left = budget.seconds - (time.monotonic() - start)
        if found[0].reason is not Reason.TIME or left <= 0:
            return found
        rest = replace(budget, seconds=left)
        return [parallel.decide(asked[0], rest, jobs=self.jobs, backend=self.backend)]

    def confirmed(self, asked: _Asked, verdict: Verdict) -> Array | None:
        """The witness or a neighbour of it, in single precision if that works as well."""
        if verdict.status is not Status.FALSIFIED or verdict.witness is None:
            return None
        point = np.asarray(verdict.witness, dtype=np.float64).reshape(-1)
        near = (within(asked.case, point, np.float32), within(asked.case, point, np.float64), point)
        for candidate in near:
            if judge(asked.query, candidate).worth is Worth.VIOLATION and self.holds(
                asked.case, candidate
            ):
                return candidate
        return None

    def holds(self, case: Case, point: Array) -> bool:
        """Exactly, with every number as the file has it and strict comparisons strict."""
        x = [Fraction(v) for v in point.tolist()]
        for index, value in inexact_inputs(case, type_of(self.arithmetic)).items():
            x[index] = value
        for index in range(len(x)):
            low, high = case.side(index, "lower"), case.side(index, "upper")
            if low is not None and (x[index] < low.value or (low.strict and x[index] == low.value)):
                return False
            if high is not None and (
                x[index] > high.value or (high.strict and x[index] == high.value)
            ):
                return False
        node = All((*case.constraints, *case.conditions))
        radius = np.abs([float(v - Fraction(f)) for v, f in zip(x, point.tolist(), strict=True)])
        if self.arithmetic == "float32":
            low_ends, high_ends = self.network.enclose(point)
            low_ends, high_ends = outputs_at(self.network, point, low_ends, high_ends)
        else:  # at the decimals themselves, which floats may not have
            radius = np.where(radius > 0, np.nextafter(radius, np.inf), 0.0)
            low_ends, high_ends = self.network.enclose(point, radius)
        if np.isfinite(low_ends).all() and np.isfinite(high_ends).all():
            ends = [
                (Fraction(a), Fraction(b)) for a, b in zip(low_ends.tolist(), high_ends.tolist())
            ]
            if surely(node, x, ends):
                return True
        if self.arithmetic == "float32" or not self.network.relu_form.is_piecewise_linear:
            return False
        return surely(node, x, [(v, v) for v in self.network.evaluate_exact.at(x)])


def queries(document: Document, network: Network) -> Iterator[Query]:
    """The document's cases as queries; it is satisfiable iff one of them is falsified, but for
    strict comparisons, which are closed here unless all of them are strict."""
    return (asked.query for asked in _questions(document, network, {}))


def _questions(
    document: Document, network: Network, notes: dict[str, None], arithmetic: str | None = None
) -> Iterator[_Asked]:
    for part in parts(document, notes, arithmetic):
        query = Query(
            network,
            part.lower,
            part.upper,
            part.condition,
            part.constraints,
            tie_violates=part.tie_violates,
            name=document.source,
            arithmetic=arithmetic,
        )
        yield _Asked(part.case, query, part.closed)
