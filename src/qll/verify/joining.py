"""One verdict from those of a query's cases (`Query.cases`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from qll.verify.query import Query
from qll.verify.verdict import Evidence, Status, Verdict


@dataclass(frozen=True, eq=False)
class ByCases:
    """A proof of each case."""

    parts: tuple[tuple[Query, Any], ...]


def join(cases: Sequence[Query], verdicts: Sequence[Verdict]) -> Verdict:
    """``falsified`` if a case is, else ``unknown`` if one is, else ``verified``."""
    seconds = sum(v.seconds for v in verdicts)
    nodes = sum(v.nodes for v in verdicts)
    for status in (Status.FALSIFIED, Status.UNKNOWN):
        for verdict in verdicts:
            if verdict.status is status:
                return replace(verdict, seconds=seconds, nodes=nodes)
    notes = dict.fromkeys(note for v in verdicts for note in v.notes)
    told = [v for v in verdicts if not v.vacuous]
    if not told:
        return replace(verdicts[0], seconds=seconds, nodes=nodes)
    evidence = {v.evidence for v in told}
    proofs = tuple((q, v.proof) for q, v in zip(cases, verdicts, strict=True) if not v.vacuous)
    return replace(
        told[0],
        bound=min((v.bound for v in told if v.bound is not None), default=None),
        nodes=nodes,
        seconds=seconds,
        notes=tuple(notes),
        evidence=evidence.pop() if len(evidence) == 1 else Evidence.PROVER,
        proof=ByCases(proofs) if all(proof is not None for _, proof in proofs) else None,
    )
