"""From a property, a network and data points to verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qll.errors import InputError, RunError
from qll.formula.hard import Affine, HardForm
from qll.formula.parse import parse_specification
from qll.networks import Network
from qll.networks import load as load_network
from qll.property import Property
from qll.regions import Region
from qll.verify.backend import BACKENDS, Backend, Budget
from qll.verify.condition import Array, substitute
from qll.verify.query import Query
from qll.verify.verdict import Reason, Status, Verdict

# Queries that go to a worker together: enough to share the attack's batch, few enough to balance.
_CHUNK = 16

Labels = tuple[tuple[int, ...], ...]
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

    @classmethod
    def of(
        cls,
        prop: Property,
        network: Network | nn.Module | str | Path | bytes,
        x: Tensor | Array,
        labels: Any = None,
        **options: Any,
    ) -> Problem:
        mean, std = options.pop("mean", None), options.pop("std", None)
        points = np.asarray(x.detach().cpu() if isinstance(x, Tensor) else x, dtype=np.float64)
        handle = network
        if not isinstance(handle, Network):
            shape = tuple(points.shape[1:]) if isinstance(handle, nn.Module) else None
            handle = load_network(handle, input_shape=shape, mean=mean, std=std)
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
        return cls(
            prop.show(),
            prop.name,
            {p.name: prop.value_of(p.name) for p in prop.specification.parameters},
            handle.source,
            mean,
            std,
            points,
            _patterns(labels, len(points), handle.output_size) if prop.uses_labels else None,
            **options,
        )

    def __len__(self) -> int:
        return len(self.points)

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
    def _forms(self) -> dict[tuple[int, ...] | None, HardForm]:
        return {}

    def query(self, index: int) -> Query:
        """Region x network x formula for one data point."""
        prop, x0 = self.prop, self.points[index]
        if any(binder.point == "x2" for binder in prop.binders):
            raise InputError(
                f"property '{prop.name}' relates two points",
                expected="a property of one point",
                found="one that binds x2",
                fix="attack it instead: 'qll attack' searches for both points",
            )
        pattern = None if self.labels is None else self.labels[index]
        if pattern not in self._forms:
            self._forms[pattern] = prop.hard_form(
                pattern, outputs=self.handle.output_size, inputs=tuple(x0.shape)
            )
        form = self._forms[pattern]
        region = Region.of(prop, torch.from_numpy(x0[None]))
        values: dict[str, Array] = {"x0": x0.reshape(-1)}
        if "y0" in prop.sources:
            values["y0"] = self.handle.relu_form.forward(x0.reshape(1, -1))[0]
        constraints = tuple(substitute(c, values) for c in region.constraints)
        return Query(
            self.handle,
            region.lower[0].numpy().reshape(-1),
            region.upper[0].numpy().reshape(-1),
            substitute(form, values),
            tuple(c for c in constraints if isinstance(c, Affine)),
            name=f"{prop.name}[{index}]",
        )

    def decide(self, indices: Sequence[int]) -> list[Verdict]:
        queries = [self.query(i) for i in indices]
        budget = Budget(self.timeout, self.seed, self.certified or self.certificates is not None)
        verdicts = _backend(self.backend).decide(queries, budget)
        if self.cross_check is not None:
            others = _backend(self.cross_check).decide(queries, Budget(self.timeout, self.seed))
            for i, ours, theirs in zip(indices, verdicts, others, strict=True):
                if ours.contradicts(theirs):
                    raise RunError(
                        f"two verifiers contradict each other on {self.name}, point {i}",
                        expected=f"the same verdict from {self.backend} and {self.cross_check}",
                        found=f"{ours.status} and {theirs.status}",
                        fix="report it: one of them is wrong",
                    )
        notes = list(self.prop.notes)
        if "y0" in self.prop.sources:
            notes.append("the outputs y0 at the data point were computed in float64")
        finished = []
        for i, query, verdict in zip(indices, queries, verdicts, strict=True):
            named = replace(verdict, notes=(*verdict.notes, *notes)) if notes else verdict
            finished.append(self._finish(i, query, named))
        return finished

    def _finish(self, index: int, query: Query, verdict: Verdict) -> Verdict:
        """Certificates, if they were asked for; the proof itself stays in this process."""
        if not (self.certified or self.certificates is not None) or not verdict.decided:
            return replace(verdict, proof=None)
        from qll.verify import certificate

        pattern = None if self.labels is None else self.labels[index]
        subject = certificate.Subject.of(self.prop, self.points[index], pattern)
        confirmed, data = certificate.confirm(query, verdict, subject)
        if data is not None and self.certificates is not None:
            certificate.write(self.certificates, f"{index:05d}", data, self.network)
        return confirmed if self.certified else replace(verdict, proof=None)


def _backend(name: str) -> Backend:
    return BACKENDS[name]()


def _patterns(labels: Any, count: int, outputs: int) -> Labels:
    if labels is None:
        raise InputError(
            "this property speaks of labels", expected="labels=...", found="none",
            fix="pass classes (count,) or multi-hot labels (count, outputs)",
        )  # fmt: skip
    values = np.asarray(labels.detach().cpu() if isinstance(labels, Tensor) else labels)
    if values.shape == (count,):
        patterns: Labels = tuple((int(v),) for v in values)
    elif values.shape == (count, outputs):
        patterns = tuple(tuple(int(c) for c in np.flatnonzero(row)) for row in values)
    else:
        raise InputError(
            "labels do not fit the data points",
            expected=f"({count},) or ({count}, {outputs})",
            found=str(values.shape),
            fix="pass classes, or multi-hot labels",
        )
    for pattern in patterns:
        if any(not 0 <= c < outputs for c in pattern):
            raise InputError(
                "a label does not exist",
                expected=f"classes from 0 to {outputs - 1}",
                found=str(pattern),
                fix="check the labels against the network's outputs",
            )
    return patterns


# --- one process or several ---

_worker: Problem | None = None


def _start_worker(problem: Problem) -> None:
    global _worker
    torch.set_num_threads(1)
    _worker = problem


def _work(indices: Sequence[int]) -> list[Verdict]:
    if _worker is None:
        raise RuntimeError("the worker was not started")
    return _worker.decide(indices)


def decide_all(
    problem: Problem, indices: Sequence[int], *, jobs: int = 1
) -> Iterator[tuple[int, Verdict]]:
    """Verdicts as they come, in any order. A worker that dies (out of memory, killed) makes the
    queries it held ``unknown``; the rest goes on in a new pool."""
    # A first query here names bad input before any process starts.
    if indices:
        problem.query(indices[0])
    chunks = [indices[k : k + _CHUNK] for k in range(0, len(indices), _CHUNK)]
    if jobs <= 1 or len(chunks) <= 1:
        for chunk in chunks:
            yield from zip(chunk, problem.decide(chunk), strict=True)
        return
    while chunks:
        alive: set[int] = set(range(len(chunks)))
        with ProcessPoolExecutor(
            jobs, mp_context=get_context("spawn"), initializer=_start_worker, initargs=(problem,)
        ) as pool:
            waiting = {pool.submit(_work, chunk): k for k, chunk in enumerate(chunks)}
            try:
                for future in as_completed(waiting):
                    k = waiting[future]
                    verdicts = future.result()
                    alive.discard(k)
                    yield from zip(chunks[k], verdicts, strict=True)
            except BrokenProcessPool:
                pass
            except GeneratorExit:
                pool.shutdown(cancel_futures=True)
                raise
        left = [chunks[k] for k in sorted(alive)]
        if left and len(left) == len(chunks):  # no progress: do not try the same for ever
            dead, left = left[0], left[1:]
            lost = Verdict(
                Status.UNKNOWN, "worker", reason=Reason.MEMORY, backend=problem.backend,
                notes=("the worker process died, most likely for lack of memory",),
            )  # fmt: skip
            yield from ((i, lost) for i in dead)
        chunks = left


def verify(
    prop: Property,
    network: Network | nn.Module | str | Path | bytes,
    x: Tensor | Array,
    labels: Any = None,
    *,
    timeout: float = 10.0,
    jobs: int = 1,
    backend: str = "bab",
    cross_check: str | None = None,
    certified: bool = False,
    certificates: str | Path | None = None,
    mean: Any = None,
    std: Any = None,
    seed: int = 0,
    on_verdict: OnVerdict | None = None,
) -> list[Verdict]:
    """Prove or refute ``prop`` around every row of ``x`` (raw inputs), for an ONNX file or module.

    ``timeout`` is in seconds for each query. ``mean``/``std`` are for networks that take
    normalised input. ``certified`` believes only what the independent checker confirms;
    ``certificates`` names a folder to keep the evidence in.
    """
    if timeout <= 0:
        raise InputError(
            "the time-out is not positive", expected="seconds > 0", found=f"{timeout:g}",
            fix="pass timeout=10",
        )  # fmt: skip
    problem = Problem.of(
        prop,
        network,
        x,
        labels,
        timeout=float(timeout),
        backend=backend,
        cross_check=cross_check,
        certified=certified,
        certificates=None if certificates is None else Path(certificates),
        mean=mean,
        std=std,
        seed=seed,
    )
    found: dict[int, Verdict] = {}
    for index, verdict in decide_all(problem, range(len(problem)), jobs=jobs):
        found[index] = verdict
        if on_verdict is not None:
            on_verdict(index, verdict)
    return [found[i] for i in range(len(problem))]
