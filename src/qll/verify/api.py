"""From a property, a network and data points to verdicts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qll import limits
from qll.errors import InputError, RunError
from qll.formula.asked import ask
from qll.formula.parse import parse_specification
from qll.formula.question import canonical, question
from qll.formula.rewrite import Shape
from qll.networks import Network
from qll.networks import load as load_network
from qll.notebook import live
from qll.property import Property, check_property
from qll.regions import Region
from qll.verify import certificate, clock, evidence
from qll.verify.asked import Products, network_of, shaped
from qll.verify.backend import BACKENDS, Budget
from qll.verify.broken import broken
from qll.verify.condition import Array
from qll.verify.given import (
    Labels,
    check_alike,
    content_hash,
    needs_data,
    network_of_x2,
    no_labels,
    outputs_at,
    patterns,
    plain,
    read_network,
    source_of,
)
from qll.verify.query import Query
from qll.verify.subject import Subject, write_claim
from qll.verify.verdict import Evidence, Reason, Status, Verdict
from qll.workers import Lost, Workers

# Queries that go to a worker together: enough to share the attack's batch, few enough to balance.
_CHUNK = 16

# What a problem computes on first use and another one about the same network may take over.
_READINGS = ("handle", "other", "prop", "_text", "_products", "reading", "_unasked")

OnVerdict = Callable[[int, Verdict], None]


@dataclass(frozen=True, eq=False)
class Problem:
    """One property, one network, many data points; what a worker process is given."""

    text: str
    name: str
    parameters: dict[str, float]
    network: bytes
    mean: Any
    std: Any
    points: Array  # (count, *input shape)
    labels: Labels | None
    timeout: float
    backend: str = "bab"
    cross_check: str | None = None
    seed: int = 0
    certified: bool = False
    certificates: Path | None = None
    fast: bool = True  # without --certified: the prover's word is enough
    numbers: tuple[int, ...] | None = None  # of the points, where they are a part of others
    memory: float | None = None  # bytes for one process; by default a share of those that are free
    spent: float = 0.0  # seconds that reading the network took, of the first queries' time
    arithmetic: str | None = None  # see `qll.verify.arithmetic`
    against: bytes | None = None  # the network of x2, where it is another one

    @classmethod
    def of(
        cls,
        prop: Property,
        network: Network | nn.Module | str | Path | bytes,
        x: Tensor | Array | None = None,
        labels: Any = None,
        **options: Any,
    ) -> Problem:
        """Without ``x`` the property is closed: it is asked once, whatever the data are."""
        start = clock.now()
        mean, std = options.pop("mean", None), options.pop("std", None)
        own = mean is None and std is None
        points = np.zeros((1, 0))
        if x is not None:
            points = np.asarray(x.detach().cpu() if isinstance(x, Tensor) else x, dtype=np.float64)
        elif not prop.is_closed:
            raise needs_data(prop)
        handle = network
        if not isinstance(handle, Network):
            handle, own = read_network(handle, prop, None if x is None else points, mean, std), True
        elif mean is None and std is None and handle.normalisation is not None:
            mean, std = (plain(v, handle.input_shape) for v in handle.normalisation)
        if x is None:
            points = np.zeros((1, *handle.input_shape))
        options["against"] = network_of_x2(prop, handle, options.get("against"))
        if points.ndim < 2 or int(np.prod(points.shape[1:])) != handle.input_size:
            raise InputError(
                "the data points do not fit the network",
                expected=f"(count, {', '.join(map(str, handle.input_shape))})",
                found=str(points.shape),
                fix="pass raw inputs, one row for each point",
            )
        if not np.isfinite(points).all():
            raise InputError(
                "a data point is not finite", expected="finite numbers", found="NaN or infinity",
                fix="remove the point",
            )  # fmt: skip
        found = cls(
            prop.show(),
            prop.name,
            {p.name: prop.value_of(p.name) for p in prop.specification.parameters},
            handle.source,
            mean,
            std,
            points,
            patterns(labels, len(points), handle.output_size) if prop.uses_labels else None,
            **options,
        )
        if own:
            vars(found)["handle"] = handle
        return found._after(clock.now() - start)

    def __len__(self) -> int:
        return len(self.points)

    def paid(self) -> Problem:
        """The same problem, once somebody's time has paid for reading it."""
        return self._after(0.0)

    def _after(self, spent: float) -> Problem:
        found = replace(self, spent=spent)
        vars(found).update({k: v for k, v in vars(self).items() if k in _READINGS})
        return found

    def part(self, indices: Sequence[int]) -> Problem:
        """Some of the points, with their numbers: what a worker process is given."""
        return replace(
            self,
            points=self.points[list(indices)],
            labels=None if self.labels is None else tuple(self.labels[i] for i in indices),
            numbers=tuple(self.number(i) for i in indices),
            # workers may have another current folder
            certificates=None if self.certificates is None else self.certificates.resolve(),
        )

    def number(self, index: int) -> int:
        return index if self.numbers is None else self.numbers[index]

    def take_over(self, other: Problem) -> None:
        """The network as ``other`` has read it, and the formulas, if they are the same."""
        if self.reading == other.reading:
            vars(self).update({k: v for k, v in vars(other).items() if k in _READINGS})

    @cached_property
    def reading(self) -> str:
        """Content hash of all that `_READINGS` depend on. Printed arrays leave out digits."""
        said = [self.text, self.parameters, self.name, self.backend, self.arithmetic]
        scales = [content_hash(values).encode() for values in (self.mean, self.std)]
        parts = [json.dumps(said).encode(), self.network, self.against or b"", *scales]
        found = hashlib.sha256()
        for part in parts:
            found.update(len(part).to_bytes(8, "little") + part)
        return found.hexdigest()

    @cached_property
    def handle(self) -> Network:
        return load_network(self.network, mean=self.mean, std=self.std)

    @cached_property
    def prop(self) -> Property:
        specification = parse_specification(
            self.text, name=self.name, outputs=self.handle.output_size
        )
        return Property(specification, self.parameters, self.handle.output_size)

    @cached_property
    def _text(self) -> str:
        """What prover and checker read."""
        prop = self.prop
        values = {p.name: prop.value_of(p.name) for p in prop.specification.parameters}
        return canonical(prop.specification, values)

    @cached_property
    def _products(self) -> Products:
        return {}

    def query(self, index: int, *, solved: bool = True) -> Query:
        """Region x network x formula for one data point; not ``solved``, equations between inputs
        stay constraints, as other formats have them."""
        prop, x0, handle = self.prop, self.points[index], self.handle
        Region.of(prop, torch.from_numpy(x0[None]))  # names what is wrong with it
        pattern = None if self.labels is None else tuple(sorted(set(self.labels[index])))
        shape = Shape(handle.output_size, tuple(x0.shape))
        if prop.uses_labels and pattern is None:
            raise no_labels()
        values: dict[str, Any] = {"x0": x0.reshape(-1).tolist()}
        if "y0" in prop.sources and self.arithmetic == "float32":
            raise InputError(
                f"property '{prop.name}' cannot be judged in float32",
                expected="a property of outputs at x",
                found="one that speaks of y0, the outputs at the data point",
                fix="leave out --arithmetic float32 for a verdict in real arithmetic",
            )
        if "y0" in prop.sources:
            values["y0"] = outputs_at(handle, x0.reshape(-1))
        posed = question(self._text, pattern, shape)
        asked = ask(posed, x0.size, handle.output_size, values, solved=solved)
        return Query(
            network_of(asked, self._runs, self._products, self.arithmetic),
            np.array(asked.lower),
            np.array(asked.upper),
            asked.form,
            asked.constraints,
            name=f"{prop.name}[{self.number(index)}]",
            arithmetic=self.arithmetic,
            integers=None if asked.integers is None else np.array(asked.integers),
            choices=asked.choices,
            rounds=asked.rounds,
        )

    @cached_property
    def other(self) -> Network | None:
        """The network of x2, where it is another one."""
        if self.against is None:
            return None
        return check_alike(self.handle, load_network(self.against, mean=self.mean, std=self.std))

    def _runs(self, points: int) -> list[Network]:
        return [self.handle, self.other or self.handle][:points]

    def decide(self, indices: Sequence[int]) -> list[Verdict]:
        """Together, since they share the network and the attack; if memory does not suffice, one by
        one."""
        memory = limits.default_memory() if self.memory is None else self.memory
        try:
            with limits.limited(memory=memory):
                return self._decide(indices)
        except limits.OutOfTime:
            return [_given_up(self, Reason.TIME, "reading")] * len(indices)
        except limits.OutOfMemory as error:  # what is read is the same for each of them
            return [_given_up(self, Reason.MEMORY, "reading", str(error))] * len(indices)
        except MemoryError:
            if len(indices) == 1:
                return [_given_up(self, Reason.MEMORY, "worker", "the system gave no more")]
        return [verdict for i in indices for verdict in self.decide([i])]

    def first_query(self) -> Problem:
        """Reads the network and the formula, within the time of all points: what is wrong with them
        is named before any work. The same problem, which knows what that took."""
        if not len(self):
            return self
        start = clock.now()
        with suppress(limits.OutOfTime, limits.OutOfMemory):  # said of each query, when it is asked
            memory = limits.default_memory() if self.memory is None else self.memory
            deadline = start + self.timeout * len(self)
            with clock.within(deadline, memory):
                self.query(0)
        return self._after(self.spent + clock.now() - start)

    def _decide(self, indices: Sequence[int]) -> list[Verdict]:
        start, count = clock.now() - self.spent, len(indices)
        with clock.within(start + self.timeout * count):
            queries = [self.query(i) for i in indices]
            proofs = self._told or (not self.fast and self._unasked is None)
            limits.check()
        share = (clock.now() - start) / count  # of reading and folding, which they have in common
        budget = Budget(
            self.timeout - share, self.seed, proofs, welcome=not self._told, memory=self.memory
        )
        verdicts = [
            replace(verdict, seconds=verdict.seconds + share)
            for verdict in BACKENDS[self.backend]().decide(queries, budget)
        ]
        if self.cross_check is not None:
            others = BACKENDS[self.cross_check]().decide(queries, replace(budget, proofs=False))
            for i, ours, theirs in zip(indices, verdicts, others, strict=True):
                if ours.contradicts(theirs):
                    raise RunError(
                        f"two verifiers contradict each other on {self.name}, "
                        f"point {self.number(i)}",
                        expected=f"the same verdict from {self.backend} and {self.cross_check}",
                        found=f"{ours.status} and {theirs.status}",
                        fix="report it: one of them is wrong",
                    )
        notes = list(self.prop.notes)
        if "y0" in self.prop.sources and not self.handle.relu_form.is_piecewise_linear:
            notes.append("the outputs y0 at the data point were computed in float64")
        finished = []
        # Checking is paid by all of them as well.
        end = clock.now() + sum(max(0.0, self.timeout - v.seconds) for v in verdicts)
        if self._told and any(verdict.decided for verdict in verdicts):
            evidence.obstacles(self._networks, self.arithmetic)  # the checker reads them, once
            end = clock.now() + self.timeout * count  # what was asked for has as much time again
        for i, query, verdict in zip(indices, queries, verdicts, strict=True):
            named = replace(verdict, notes=(*verdict.notes, *notes)) if notes else verdict
            start = clock.now()
            found = self._finish(i, query, named, end)
            found = replace(found, seconds=found.seconds + clock.now() - start)
            if found.witness is not None:
                found = replace(found, detail=broken(query, found.witness, self.prop))
            finished.append(shaped(query, found, self.points.shape[1:]))
        return finished

    @property
    def _told(self) -> bool:
        """Whether certificates were asked for, whatever they cost."""
        return self.certified or self.certificates is not None

    @cached_property
    def _unasked(self) -> str | None:
        """Why the checker is not asked of its own accord."""
        if not BACKENDS[self.backend].keeps_proofs:
            return f"the backend {self.backend} keeps no proofs"
        return evidence.unasked(self._networks, self.arithmetic)

    @property
    def _networks(self) -> list[Network]:
        return [self.handle] if self.other is None else [self.handle, self.other]

    def write_claim(self) -> None:
        """What is asked, into the folder of the certificates."""
        if self.certificates is not None:
            write_claim(
                self.certificates, self.prop, self.handle, self.points,
                labels=self.labels, arithmetic=self.arithmetic, against=self.other,
            )  # fmt: skip

    def _finish(self, index: int, query: Query, verdict: Verdict, end: float) -> Verdict:
        """What the checker says to it by ``end``; the proof itself stays in this process."""
        # A vacuous verdict claims nothing of the network: there is nothing to certify.
        if not verdict.decided or verdict.vacuous:
            return replace(verdict, proof=None)
        if not self._told:
            # Witnesses were replayed exactly, and what holds by construction was checked.
            if self.fast or verdict.evidence is not Evidence.PROVER:
                return replace(verdict, proof=None)
            if self._unasked is not None:
                return replace(verdict, proof=None, uncertified=self._unasked)
        pattern = None if self.labels is None else self.labels[index]
        subject = Subject.of(self.prop, self.points[index], pattern)
        confirmed, data = certificate.confirm(
            query, verdict, subject, strict=self.certified, stop=lambda: clock.now() > end
        )
        if data is None:
            return confirmed
        name = ""
        if self.certificates is not None:
            number = f"{self.number(index):05d}"
            networks = (network.source for network in self._networks)
            name = certificate.write(self.certificates, number, data, *networks).name
        return replace(confirmed, certificate=name)


# --- one process or several ---

_last: Problem | None = None


def _decide(part: Problem) -> list[Verdict]:
    """In a worker process, which keeps the network between parts of one problem."""
    global _last
    torch.set_num_threads(1)
    if _last is not None:
        part.take_over(_last)
    _last = part
    return part.decide(range(len(part)))


def decide_all(
    problem: Problem, indices: Sequence[int], *, jobs: int = 1, workers: Workers | None = None
) -> Iterator[tuple[int, Verdict]]:
    """Verdicts as they come, in any order, from ``jobs`` processes or from ``workers``. A worker
    that dies (out of memory, killed) is replaced; queries that kill theirs when they are alone with
    it are ``unknown``."""
    problem = problem.first_query()
    chunks = [indices[k : k + _CHUNK] for k in range(0, len(indices), _CHUNK)]
    workers = workers or Workers(jobs=max(jobs, 1))
    if workers.is_local and (workers.count == 1 or len(chunks) <= 1):
        for chunk in chunks:
            yield from zip(chunk, problem.decide(chunk), strict=True)
            problem = problem.paid()
        return
    if problem.memory is None and workers.is_local:
        problem = replace(problem, memory=limits.default_memory(workers.count))
    problem = problem.paid()  # each worker reads it again
    while chunks:
        lost: list[Sequence[int]] = []
        for k, found in workers.run(_decide, [problem.part(chunk) for chunk in chunks]):
            if not isinstance(found, Lost):
                yield from zip(chunks[k], found, strict=True)
            elif len(chunks[k]) == 1:
                yield chunks[k][0], _given_up(problem, Reason.MEMORY, "worker", found.reason)
            else:
                lost.append(chunks[k])
        # One query took the others of its chunk with it: each is asked alone.
        chunks = [[i] for chunk in lost for i in chunk]


def _given_up(problem: Problem, reason: Reason, stage: str, detail: str = "") -> Verdict:
    return Verdict(Status.UNKNOWN, stage, reason=reason, backend=problem.backend, detail=detail)


def verify(
    prop: Property,
    network: Network | nn.Module | str | Path | bytes,
    x: Tensor | Array | None = None,
    labels: Any = None,
    *,
    against: Network | str | Path | bytes | None = None,
    timeout: float = 10.0,
    jobs: int = 1,
    backend: str = "bab",
    cross_check: str | None = None,
    fast: bool = False,
    certified: bool = False,
    certificates: str | Path | None = None,
    mean: Any = None,
    std: Any = None,
    seed: int = 0,
    memory: float | None = None,
    arithmetic: str | None = None,
    on_verdict: OnVerdict | None = None,
) -> list[Verdict]:
    """Prove or refute ``prop`` around every row of ``x`` (raw inputs), for an ONNX file or module.

    One `Verdict` for each row: ``verified``, ``falsified`` with a ``witness`` of the row's shape
    (and ``witness2``, where the property binds x2), or ``unknown`` with a reason. A property that
    depends on no data point is closed: without ``x`` the list holds its one verdict. ``against`` is
    the network of x2, where it is another one. ``timeout`` is in seconds for each query, all that
    is done for it included: what rows have in common (reading the network, say) is paid by all of
    them. ``memory`` is in GB for each process, by default half of what is free; beyond it the
    answer is ``unknown``. ``mean``/``std`` are for networks that take normalised input.

    The independent checker is asked to confirm every proof where that is cheap, and a proof that it
    does not confirm is ``unknown``; `Verdict.evidence` says what a verdict rests on. ``fast`` takes
    the prover's word; ``certified`` believes only what the checker confirms, at any cost;
    ``certificates`` names a folder to keep the evidence in.

    ``arithmetic="float32"`` asks about every evaluation in float32, whatever the order of its sums;
    ``"real"`` about the real function alone. None is real, with witnesses that violate the property
    at run time too.
    """
    check_property(prop)
    if not timeout > 0:
        raise InputError(
            "the time-out is not positive", expected="seconds > 0", found=f"{timeout:g}",
            fix="pass timeout=10",
        )  # fmt: skip
    if memory is not None and memory <= 0:
        raise InputError(
            "the limit of memory is not positive", expected="gigabytes > 0", found=f"{memory:g}",
            fix="pass memory=4, or leave it out for half of what is free",
        )  # fmt: skip
    problem = Problem.of(
        prop,
        network,
        x,
        labels,
        memory=None if memory is None else memory * 1e9,
        timeout=float(timeout),
        backend=backend,
        cross_check=cross_check,
        fast=fast,
        certified=certified,
        certificates=None if certificates is None else Path(certificates),
        mean=mean,
        std=std,
        seed=seed,
        arithmetic=arithmetic,
        against=None if against is None else source_of(against),
    )
    if problem.certificates is not None and len(problem):
        problem.write_claim()
    found: dict[int, Verdict] = {}
    with live() as line:
        for index, verdict in decide_all(problem, range(len(problem)), jobs=jobs):
            found[index] = verdict
            if on_verdict is not None:
                on_verdict(index, verdict)
            if line is not None:
                said = f"{len(found)} of {len(problem)} regions decided"
                line.tell(said, len(found) / len(problem))
    return [found[i] for i in range(len(problem))]
