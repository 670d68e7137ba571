"""What a verifier answers, and on what the answer rests."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from qll.property import Property


class Status(StrEnum):
    VERIFIED = "verified"
    FALSIFIED = "falsified"
    UNKNOWN = "unknown"


class Reason(StrEnum):
    """Why an answer is ``unknown``."""

    TIME = "out of time"
    NODES = "out of nodes"
    MEMORY = "out of memory"
    NEAR_TIE = "near-tie"
    MARGIN = "bound within the margin of rounding"
    SPLITS = "nothing left to split"
    UNSUPPORTED = "not supported by this backend"
    BACKEND = "the backend failed"
    UNCONFIRMED = "not confirmed"  # the checker could not be asked, and only it is believed
    REFUSED = "refused by the checker"  # prover or checker is wrong


class Evidence(StrEnum):
    """What stands behind a verdict, from the strongest down."""

    CHECKED = "confirmed by the checker"
    WITNESS = "a witness, replayed exactly"
    PROVER = "the prover's word"
    VACUOUS = "nothing to prove"


# What every 'verified' of our own provers rests on.
PROVER_NOTE = "bounds computed in float64, less what rounding can have added to them"
ROUNDED_NOTE = "the witness is rounded: it was judged, and is certified, in fractions"
VACUOUS_NOTE = "holds whatever the network computes: no point of the region meets its premise"


@dataclass(frozen=True, eq=False)
class Verdict:
    """``verified``: no point of the region violates the property. ``falsified``: ``witness`` does.

    ``bound`` is the least proved margin by which every violation is refuted (positive when
    verified; for ``unknown`` the worst open one). ``notes`` lists all that weakens the claim.
    ``vacuous``: verified, but whatever the network computes, because the data point makes the
    premise false (``label(7) -> ...`` at a three). It says nothing of the network: count it apart.
    ``evidence`` is what the verdict rests on; ``certificate`` the name of the file that holds it,
    and ``uncertified`` why the independent checker has not confirmed it. ``detail`` goes with it:
    which comparison the witness breaks and by how much, what was near a tie, how much memory was
    missing.
    """

    status: Status
    stage: str
    reason: Reason | None = None
    witness: NDArray[np.float64] | None = None
    value: tuple[float, float] | None = None
    bound: float | None = None
    nodes: int = 0
    seconds: float = 0.0
    backend: str = "bab"
    witness2: Any = None  # the second point, of a property that binds x2
    # The variables of the query at the witness, where an equation is solved by no floats.
    exact: tuple[Fraction, ...] | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    vacuous: bool = False
    evidence: Evidence | None = None
    certificate: str = ""
    uncertified: str = ""
    detail: str = ""
    proof: Any = field(default=None, repr=False)

    @property
    def decided(self) -> bool:
        return self.status is not Status.UNKNOWN

    def contradicts(self, other: Verdict) -> bool:
        return self.decided and other.decided and self.status is not other.status

    def as_json(self) -> dict[str, Any]:
        """Plain data; the witness stays apart, because it can be large."""
        return {
            "status": str(self.status),
            "reason": None if self.reason is None else str(self.reason),
            "stage": self.stage,
            "bound": None if self.bound is None or not math.isfinite(self.bound) else self.bound,
            "nodes": self.nodes,
            "seconds": round(self.seconds, 6),
            "backend": self.backend,
            "vacuous": self.vacuous,
            "evidence": None if self.evidence is None else str(self.evidence),
            "certificate": self.certificate or None,
            "uncertified": self.uncertified or None,
            "detail": self.detail or None,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        if self.vacuous:
            return f"{self.status}, vacuously"
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.status}: {self.reason}{detail}" if self.reason else str(self.status)

    def explain(self, x0: Any = None, *, prop: Property | None = None) -> str:
        """In words: what is claimed, on what it rests, what to do about an ``unknown``; of a
        witness which inputs moved from the data point ``x0``, and which part of the rule broke.
        ``prop`` says what the inputs are called."""
        from qll.verify.explanation import describe, input_names

        row = {**self.as_json(), "witness": self.witness, "witness2": self.witness2}
        names = None if self.witness is None else input_names(self.witness.shape, prop)
        before = None if x0 is None else np.asarray(x0, dtype=np.float64)
        return "\n".join(describe(row, before=before, names=names))

    def _repr_html_(self) -> str:
        from html import escape

        from qll.notebook import points, status, table

        rows = [("verdict", status(str(self), str(self.status)))]
        if self.evidence is not None:
            rows.append(("rests on", escape(str(self.evidence))))
        if self.bound is not None and math.isfinite(self.bound):
            rows.append(("margin", f"{self.bound:.6g}"))
        if self.witness is not None:
            rows.append(("witness", points(self.witness)))
        rows += [("note", escape(note)) for note in self.notes]
        rows.append(("time", f"{self.seconds:.3g} s, {self.nodes} nodes, {escape(self.backend)}"))
        return table(rows)
