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
from qll.exchange.document import All, Assertion, Atom, Document
from qll.exchange.parts import Part, parts, surely, type_of
from qll.exchange.rounding import inexact_inputs, outward, within
from qll.networks import Network
from qll.networks.joint import Joint
from qll.verify import clock, parallel
from qll.verify.arithmetic import outputs_at
from qll.verify.attack import Plan, SearchNetwork, attack
from qll.verify.backend import BACKENDS, Budget
from qll.verify.condition import Array
from qll.verify.judge import Worth, judge
from qll.verify.moved import Moved, moved
from qll.verify.order import seen_through
from qll.verify.query import Query
from qll.verify.restricted import ROOM, raised
from qll.verify.ties import Box, Refuter
from qll.verify.verdict import Reason, Status, Verdict

CHUNK = 16  # cases that share an attack
QUICK = 1.0  # seconds for each of several cases, before any is worked on at length
ALONE = 5.0  # seconds for a query, before it is shared between processes
TIE_NOTE = "a point was found, but only where a comparison is a tie"
SOLVED_NOTE = "inputs that follow from an equation are printed as the floats nearest to them"
EXACT_NOTE = "a tie was decided in rational arithmetic"
NEAR_NOTE = "unknown: the network comes so near to a tie that no bound can tell"
# Seconds for rational arithmetic. A point at which a comparison is less than this from a tie, of
# its threshold, asks for that; one that is a tie by more is proved by nothing else, so that a share
# of the time is enough for the rest.
EXACT_SECONDS = 2.0
NEAR, TIE = 1e-6, 1e-12
TIE_SHARE, TIE_SECONDS = 0.2, 5.0
LOOK = Plan(starts=2, steps=12)
SCATTERED = 64  # points of a box
# Of float32 and of coarser grids: on these, sums and differences of inputs are floats again.
GRIDS = (24, 16, 8)


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
    """A case with its query; ``closed``: it takes ties that a strict comparison does not. The
    query may be about the inputs ``left`` alone (`qll.exchange.parts.Part`)."""

    case: Case
    query: Query
    closed: bool
    left: tuple[int, ...]
    network: Network | Joint  # the query's

    @property
    def is_solved(self) -> bool:
        return isinstance(self.network, Moved)

    def inputs(self, point: Array) -> Array:
        """All inputs of the document, each rounded once."""
        return self.network.expand(point).reshape(-1) if isinstance(self.network, Moved) else point

    def exact_inputs(self, values: list[Fraction]) -> list[Fraction]:
        if not isinstance(self.network, Moved):
            return values
        return [
            sum((c * values[k] for (_, k), c in row.terms), Fraction(row.constant))
            for row in self.network.image
        ]

    @property
    def box(self) -> Box:
        """Of the inputs that are left, with the file's own ends where it has some."""
        ends = []
        for at, index in enumerate(self.left):
            low, high = (self.case.side(index, side) for side in ("lower", "upper"))
            given = self.query.lower[at].item(), self.query.upper[at].item()
            ends.append(
                (
                    Fraction(given[0]) if low is None else low.value,
                    Fraction(given[1]) if high is None else high.value,
                )
            )
        return tuple(ends)

    @property
    def assertion(self) -> Assertion:
        """All that the case asks, but for closed ends of the box."""
        sides = []
        for index in range(self.case.document.inputs):
            for side, sign in (("lower", 1), ("upper", -1)):
                end = self.case.side(index, side)
                if end is not None and (end.strict or index not in self.left):
                    terms = ((("x", index), Fraction(sign)),)
                    sides.append(Atom(terms, -sign * end.value, end.strict))
        return All((*sides, *self.case.constraints, *self.case.conditions))

    def near(self, point: Array) -> Iterator[Array]:
        """Points beside it that may lie within the exact box: those that are written shortly
        first."""
        for dtype in (np.float32, np.float64):
            yield within(self.case, self.inputs(point), dtype)[list(self.left)]
        if self.is_solved:
            for bits in GRIDS:
                yield np.rint(point * 2.0**bits) / 2.0**bits
        yield point


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
    """The answer for the network from all inputs to all outputs, within ``seconds`` of the clock
    that is chosen (`qll.verify.clock`). In the ``arithmetic`` float32 (`qll.verify.arithmetic`)
    ``sat`` names float32 inputs at which every evaluation meets the assertions, ``unsat`` says that
    none does at any. What one process does not decide soon is shared between ``jobs`` of them
    (`qll.verify.parallel`)."""
    return _Decider(document, network, seconds, backend, seed, arithmetic, jobs).run()


def _now() -> float:
    """Whoever waits for an answer counts what compiling takes."""
    return clock.now() if clock.chosen() == "cpu" else time.monotonic()


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
        self.end = _now() + seconds
        self.engine = BACKENDS[backend]()
        self.seed = seed
        self.notes: dict[str, None] = {}
        self.proofs: dict[str, None] = {}  # notes of cases without a witness
        self.witness: Array | None = None
        self.given_up = False  # some case is unknown for another reason than time

    @property
    def left(self) -> float:
        return self.end - _now()

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
            return Decision(Answer.SAT, self.witness, tuple(self.notes))
        if out_of_time:
            answer = Answer.TIMED_OUT
        else:
            answer = Answer.UNKNOWN if self.given_up else Answer.UNSAT
        return Decision(answer, None, tuple(self.notes | self.proofs))

    def ask(self, asked: list[_Asked], seconds: float) -> list[_Asked]:
        """Those that need more time."""
        open_, rest = list[_Asked](), list[_Asked]()
        for item, distance in zip(asked, self.distances(asked), strict=True):
            if distance <= NEAR and self.refutes(item):
                continue
            if distance <= TIE:
                some = min(self.left, max(TIE_SECONDS, TIE_SHARE * seconds))
                if self.tell([item], some) and self.witness is None:
                    self.proofs[NEAR_NOTE] = None
                    self.given_up = True
            else:
                rest.append(item)
        if rest and self.witness is None:
            open_ += self.tell(rest, seconds)
        return open_

    def tell(self, asked: list[_Asked], seconds: float) -> list[_Asked]:
        """What the backend says of them; those that need more time."""
        open_ = []
        verdicts = self.verdicts([a.query for a in asked], Budget(seconds, self.seed))
        for item, verdict in zip(asked, verdicts, strict=True):
            self.proofs.update(dict.fromkeys(verdict.notes))
            if verdict.status is Status.FALSIFIED and self.witness is None:
                self.witness = self.confirmed(item, verdict)
                if self.witness is None:
                    self.witness = self.anywhere(item)
                if self.witness is not None or self.refutes(item):
                    continue
                if item.closed and self.left > 0:
                    beyond = replace(item.query, tie_violates=False)
                    budget = Budget(min(self.left, max(seconds, QUICK)), self.seed)
                    self.witness = self.confirmed(item, self.engine.decide([beyond], budget)[0])
                if self.witness is None:
                    self.proofs[TIE_NOTE] = None
                    self.given_up = True
            elif verdict.status is Status.UNKNOWN and self.witness is None:
                self.witness = self.anywhere(item)
                if self.witness is not None:
                    continue
                if verdict.reason is Reason.TIME:
                    open_.append(item)
                elif not self.refutes(item):
                    self.given_up = True
                    self.proofs[f"unknown: {verdict.reason}"] = None
        return open_

    def anywhere(self, item: _Asked) -> Array | None:
        """A point of the region, if nothing is asked of the outputs."""
        query = item.query
        if query.compiled.tree is not True:
            return None
        rng = np.random.default_rng(self.seed)
        points = list(rng.uniform(query.lower, query.upper, (SCATTERED, query.lower.size)))
        if query.member.point is not None:
            points.append(np.array([float(v) for v in query.member.point]))
        for point in points:
            if query.contains(query.clip(point)):
                found = Verdict(Status.FALSIFIED, "region", witness=query.clip(point))
                if (witness := self.confirmed(item, found)) is not None:
                    return witness
        return None

    def distances(self, asked: list[_Asked]) -> list[float]:
        """How far from a tie a short search ends that finds no violation, against the thresholds;
        infinite where that is of no use."""
        found = [np.inf] * len(asked)
        by_network: dict[int, list[int]] = {}
        for k, item in enumerate(asked):
            query = item.query
            known = query.vacuous or isinstance(query.search.tree, bool)
            if not known and self.may_refute(item):
                by_network.setdefault(id(item.network), []).append(k)
        for own in by_network.values():
            queries = [asked[k].query for k in own]
            reached = attack(SearchNetwork(queries[0].form), queries, LOOK)
            for k, query, best in zip(own, queries, reached, strict=True):
                judgement = judge(query, query.clip(best.point))
                if judgement.worth is Worth.VIOLATION or judgement.value is None:
                    continue
                scale = max(1.0, float(np.abs(query.compiled.constant).max(initial=0.0)))
                found[k] = max(map(abs, judgement.value)) / scale
        return found

    def may_refute(self, item: _Asked) -> bool:
        """Whether rational arithmetic is for the network; float32 has no part in it."""
        return self.arithmetic != "float32" and Refuter.fits(item.network.program)

    def refutes(self, item: _Asked) -> bool:
        if self.left <= 0 or not self.may_refute(item):
            return False
        image = item.network.image if isinstance(item.network, Moved) else None
        refuter = Refuter(item.network.program, image)
        found = refuter.refutes(item.box, item.assertion, min(EXACT_SECONDS, self.left))
        if found:
            self.proofs[EXACT_NOTE] = None
        return found

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
        """The witness or a neighbour of it, in single precision if that works as well, with floats
        that solve the equations if there are some near; all inputs of the document."""
        if verdict.status is not Status.FALSIFIED or verdict.witness is None:
            return None
        rounded: Array | None = None
        for candidate in asked.near(np.asarray(verdict.witness, dtype=np.float64).reshape(-1)):
            if judge(asked.query, candidate).worth is not Worth.VIOLATION:
                continue
            if self.holds(asked, candidate):
                if not asked.is_solved or _is_float(asked, candidate):
                    return asked.inputs(candidate)
                rounded = candidate if rounded is None else rounded
        if rounded is None:
            return None
        self.notes[SOLVED_NOTE] = None
        return asked.inputs(rounded)

    def holds(self, asked: _Asked, point: Array) -> bool:
        """Exactly, with every number as the file has it and strict comparisons strict."""
        case, network = asked.case, asked.network
        values = [Fraction(v) for v in point.tolist()]
        for index, value in inexact_inputs(case, type_of(self.arithmetic)).items():
            if index in asked.left:
                values[asked.left.index(index)] = value
        x = asked.exact_inputs(values)
        for index in range(len(x)):
            low, high = case.side(index, "lower"), case.side(index, "upper")
            if low is not None and (x[index] < low.value or (low.strict and x[index] == low.value)):
                return False
            if high is not None and (
                x[index] > high.value or (high.strict and x[index] == high.value)
            ):
                return False
        node = All((*case.constraints, *case.conditions))
        away = [float(v - Fraction(f)) for v, f in zip(values, point.tolist(), strict=True)]
        if self.arithmetic == "float32":
            low_ends, high_ends = network.enclose(point)
            low_ends, high_ends = outputs_at(network, point, low_ends, high_ends)
        else:  # at the decimals themselves, which floats may not have
            radius = np.abs(away)
            radius = np.where(radius > 0, np.nextafter(radius, np.inf), 0.0)
            low_ends, high_ends = network.enclose(point, radius)
        if np.isfinite(low_ends).all() and np.isfinite(high_ends).all():
            ends = [
                (Fraction(a), Fraction(b)) for a, b in zip(low_ends.tolist(), high_ends.tolist())
            ]
            if surely(node, x, ends):
                return True
        if self.arithmetic == "float32" or not network.relu_form.is_piecewise_linear:
            return False
        return surely(node, x, [(v, v) for v in network.evaluate_exact.at(values)])


def _is_float(asked: _Asked, point: Array) -> bool:
    """Whether floats have all inputs, not only those that were left."""
    exact = asked.exact_inputs([Fraction(v) for v in point.tolist()])
    return all(Fraction(float(v)) == v for v in exact)


def queries(document: Document, network: Network) -> Iterator[Query]:
    """The document's cases as queries; it is satisfiable iff one of them is falsified, but for
    strict comparisons, which are closed here unless all of them are strict."""
    return (asked.query for asked in _questions(document, network, {}))


def _questions(
    document: Document, network: Network, notes: dict[str, None], arithmetic: str | None = None
) -> Iterator[_Asked]:
    for part in parts(document, notes, arithmetic):
        # Of fewer inputs, and of logits, where that is the same.
        asked: Network | Joint = seen_through(network, part.condition, arithmetic)
        if part.image is not None:
            asked = moved([asked], part.image, len(part.left))
        if part.known and arithmetic != "float32":
            part = _around(part, asked)
        query = Query(
            asked,
            part.lower,
            part.upper,
            part.condition,
            part.constraints,
            tie_violates=part.tie_violates,
            name=document.source,
            arithmetic=arithmetic,
        )
        yield _Asked(part.case, query, part.closed, part.left, asked)


def _around(part: Part, network: Network | Joint) -> Part:
    """What is shown at the floats nearest to fixed inputs holds at the inputs themselves: an output
    is off by at most ``e = |W| e`` of what it reads, since ReLU enlarges no difference, and so the
    condition is raised. Of other activations the box holds the floats on both sides."""
    away = np.zeros(len(part.left))
    lower, upper = part.lower.copy(), part.upper.copy()
    for at, index in enumerate(part.left):
        if index in part.known:
            value = part.known[index]
            away[at] = np.nextafter(abs(float(value - Fraction(float(lower[at])))), np.inf)
            lower[at], upper[at] = outward(value, "lower"), outward(value, "upper")
    form = network.relu_form
    if not form.is_relu:
        return replace(part, lower=lower, upper=upper)
    errors = [away]
    for layer in form.layers:
        found = np.zeros(layer.width)
        for source, weight in layer.terms:
            found = found + abs(weight) @ errors[source]
        errors.append(found * ROOM)
    return replace(part, condition=raised(part.condition, errors[-1]))
