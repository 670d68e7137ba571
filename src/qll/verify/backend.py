"""Backends: who decides queries. The final template re-judges whatever a backend answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import numpy as np

from qll.limits import default_memory, limited
from qll.registry import Registry
from qll.verify import clock
from qll.verify.joining import join
from qll.verify.judge import Worth, judge
from qll.verify.query import Query
from qll.verify.verdict import ROUNDED_NOTE, VACUOUS_NOTE, Evidence, Reason, Status, Verdict

BACKENDS: Registry[type[Backend]] = Registry("verifier backend", "qll.verify.backends")


@dataclass(frozen=True)
class Budget:
    """``seconds`` for each query, by the ``clock`` (``wall``, or ``cpu`` on a busy machine;
    by default the process's own); ``proofs`` keeps what certificates are made of; ``welcome``: but
    not at the cost of a verdict. ``memory``: bytes that may be taken, by default a share of those
    that are free."""

    seconds: float = 10.0
    seed: int = 0
    proofs: bool = False
    welcome: bool = False
    clock: str = field(default_factory=clock.chosen)
    memory: float | None = None


class Backend(ABC):
    """``run`` answers; `decide` is what callers use, and believes no witness."""

    name: ClassVar[str]
    keeps_proofs: ClassVar[bool] = False  # that a certificate can be made of

    def refuses(self, query: Query) -> str | None:
        """Why this backend cannot take the query, or None."""
        return None

    def prepare(self, query: Query | None = None) -> None:
        """Compile what a query will need for certain, or all that there is, once on a machine."""
        return

    @abstractmethod
    def run(self, queries: Sequence[Query], budget: Budget) -> list[Verdict]:
        """One verdict per query; the queries share one network."""

    @final
    def decide(self, queries: Sequence[Query], budget: Budget) -> list[Verdict]:
        with clock.counting(budget.clock):
            return self._answered(queries, budget)

    def _answered(self, queries: Sequence[Query], budget: Budget) -> list[Verdict]:
        asked = [query.cases for query in queries]
        most = max(map(len, asked), default=1)
        share = replace(budget, seconds=budget.seconds / max(most, 1))
        skipped = [skip for cases in asked for skip in _skipped(cases)]
        flat = iter(self._each([case for cases in asked for case in cases], skipped, share))
        found = []
        for cases in asked:
            parts = [next(flat) for _ in cases]
            if len(parts) == 1:
                found += parts
            else:
                found.append(join(cases, parts) if parts else _vacuous(self.name))
        return found

    def _run(self, queries: Sequence[Query], budget: Budget) -> Iterator[Verdict]:
        """Networks one after the other: queries of tied inputs may be about others."""
        found: dict[int, Verdict] = {}
        for network in {id(query.network) for query in queries}:
            own = [k for k, query in enumerate(queries) if id(query.network) == network]
            found.update(zip(own, self.run([queries[k] for k in own], budget), strict=True))
        return (found[k] for k in range(len(queries)))

    def _each(
        self, queries: Sequence[Query], skipped: Sequence[bool], budget: Budget
    ) -> list[Verdict]:
        asked = [q for q, skip in zip(queries, skipped, strict=True) if not skip]
        accepted = [q for q in asked if self.refuses(q) is None]
        memory = default_memory() if budget.memory is None else budget.memory
        with limited(memory=memory):
            answers = iter(self._run(accepted, budget))
        verdicts = []
        for query, skip in zip(queries, skipped, strict=True):
            if skip:
                verdicts.append(_vacuous(self.name))
                continue
            reason = self.refuses(query)
            if reason is None:
                verdict = _rejudge(query, next(answers))
                is_open = verdict.status is Status.UNKNOWN and query.vacuous
                verdicts.append(_vacuous(self.name) if is_open else verdict)
            else:
                verdicts.append(
                    Verdict(
                        Status.UNKNOWN,
                        "accept",
                        reason=Reason.UNSUPPORTED,
                        backend=self.name,
                        notes=(reason,),
                    )
                )
        return verdicts


def _skipped(cases: Sequence[Query]) -> list[bool]:
    """Which cases nothing is asked about. One of several that is empty for more than one reason
    is proved like the others, as the checker wants it."""
    if all(case.vacuous for case in cases):
        return [True] * len(cases)
    return [case.vacuous if len(cases) == 1 else case.plainly_vacuous for case in cases]


def _vacuous(name: str) -> Verdict:
    """No network can violate it here, so none is asked."""
    return Verdict(
        Status.VERIFIED, "vacuous", bound=np.inf, backend=name, vacuous=True, notes=(VACUOUS_NOTE,),
        evidence=Evidence.VACUOUS,
    )  # fmt: skip


def _rejudge(query: Query, verdict: Verdict) -> Verdict:
    if verdict.status is Status.VERIFIED and verdict.evidence is None:
        return replace(verdict, evidence=Evidence.PROVER)
    if verdict.status is not Status.FALSIFIED:
        return verdict
    if verdict.witness is None:
        return replace(verdict, status=Status.UNKNOWN, reason=Reason.BACKEND,
                       notes=(*verdict.notes, "the backend named no witness"))  # fmt: skip
    judgement = judge(query, verdict.witness, final=True)
    if judgement.worth is Worth.VIOLATION:
        exact, witness = judgement.exact, np.array(verdict.witness)
        if exact is not None:
            witness = np.array([float(v) for v in exact])
            verdict = replace(verdict, notes=(*verdict.notes, ROUNDED_NOTE))
        return replace(
            verdict,
            value=judgement.value,
            witness=witness,
            exact=exact,
            evidence=Evidence.WITNESS,
        )
    reason = Reason.NEAR_TIE if judgement.worth is Worth.NEAR_TIE else Reason.BACKEND
    note = f"the backend's witness was not confirmed: {judgement.note}"
    return replace(
        verdict,
        status=Status.UNKNOWN,
        reason=reason,
        value=judgement.value,
        notes=(*verdict.notes, note),
    )
