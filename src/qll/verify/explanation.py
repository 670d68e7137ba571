"""A verdict in words: what is claimed, in which numbers, on what that rests, what a witness did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qll.property import Property

CLAIMS = {
    "verified": "no point of the region breaks the rule",
    "falsified": "the witness lies in the region and breaks the rule",
    "unknown": "nothing is claimed",
}
VACUOUS = "there is nothing to break: the premise is false, whatever the network computes"
ARITHMETIC = {
    None: "real numbers, on the weights as they are stored; a witness also breaks the rule as ONNX "
    "Runtime runs the network, in float32",
    "real": "real numbers alone, on the weights as they are stored",
    "float32": "IEEE float32: every evaluation, whatever the order of its sums, at every float32 "
    "input",
}
# By the texts of `qll.verify.verdict.Evidence`, which asks for these words.
EVIDENCE = {
    "confirmed by the checker": "the independent checker, which shares no bound with the prover, "
    "has confirmed the evidence",
    "a witness, replayed exactly": "the witness was replayed in exact fractions on the stored "
    "weights",
    "the prover's word": "the prover's word: float64 bounds, less what rounding can have added",
    "nothing to prove": "nothing had to be proved",
}
# By the texts of `qll.verify.verdict.Reason`.
ADVICE = {
    "out of time": "give it more time (--timeout, timeout=), a smaller region, or train on the "
    "rule's bounds (--method small-box): such networks are decided many times faster",
    "out of nodes": "give it more time, or train on the rule",
    "out of memory": "raise the limit (--memory), or leave more for each process (--jobs 1)",
    "near-tie": "real and float32 arithmetic differ on the witness: ask about one of them "
    "(--arithmetic real or float32), or with a margin, y[0] >= y[1] + 1e-6",
    "bound within the margin of rounding": "the best bound is 0 as far as float64 can tell: ask "
    "with a margin, y[0] >= y[1] + 1e-6",
    "nothing left to split": "the relaxation is exact and still undecided, a tie: ask with a "
    "margin",
    "not supported by this backend": "use --backend bab, or see the table of layers",
    "the backend failed": "use --backend bab, or look at the backend's message",
    "not confirmed": "without --certified the prover's word would count; the reason says what "
    "the checker could not do",
    "refused by the checker": "one of prover and checker is wrong: report it, with network, "
    "rule and point",
}
MOST_MOVES = 8  # entries that are listed


@dataclass(frozen=True)
class Move:
    """One entry of the input, at the data point and at the witness."""

    name: str
    before: float
    after: float

    def __str__(self) -> str:
        step = self.after - self.before
        return f"{self.name}: {self.before:.6g} -> {self.after:.6g} ({step:+.4g})"


def input_names(shape: Sequence[int], prop: Property | None = None) -> list[str]:
    """What the rule calls its inputs, else ``x[c, h, w]``, as one would write it in a rule."""
    size = int(np.prod(tuple(shape), dtype=np.int64))
    for declared in () if prop is None else prop.specification.names:
        if declared.kind == "inputs" and len(declared.names) == size:
            return list(declared.names)
    return [f"x[{', '.join(map(str, place))}]" for place in np.ndindex(*shape)]


def moves(before: Any, after: Any, names: Sequence[str]) -> list[Move]:
    """The entries that differ, the largest difference first."""
    old, new = (np.asarray(v, dtype=np.float64).reshape(-1) for v in (before, after))
    step = np.abs(new - old)
    order = np.argsort(-step, kind="stable")[: int(np.count_nonzero(step))]
    return [Move(names[k], float(old[k]), float(new[k])) for k in order.tolist()]


def moved_lines(before: Any, after: Any, names: Sequence[str]) -> list[str]:
    """How much moved in all, and the largest moves."""
    found = moves(before, after, names)
    if not found:
        return ["nothing moved: the data point itself breaks the rule"]
    steps = [abs(move.after - move.before) for move in found]
    said = f"{len(found)} of {len(names)} inputs moved, by {np.mean(steps):.3g} on average and "
    said += f"{steps[0]:.3g} at most"
    return [said, *_listed(found)]


def _listed(found: Sequence[Move]) -> list[str]:
    lines = [f"  {move}" for move in found[:MOST_MOVES]]
    more = len(found) - MOST_MOVES
    return [*lines, f"  and {more} more"] if more > 0 else lines


def entries(
    names: Sequence[str], *points: Any, digits: int = 6
) -> list[tuple[str, tuple[str, ...]]]:
    """The entries of points as one says them: of a category, which has an input for each of its
    values, the value that is 1.

    >>> entries(["size", "kind=flat", "kind=loft"], [50.0, 0.0, 1.0], [51.5, 1.0, 0.0])
    [('size', ('50', '51.5')), ('kind', ('loft', 'flat'))]
    """
    values = [np.asarray(point, dtype=np.float64).reshape(-1) for point in points]
    found: list[tuple[str, tuple[str, ...]]] = []
    numbered = enumerate(name.rpartition("=") for name in names)
    for category, members in groupby(numbered, key=lambda item: item[1][0]):
        places, parts = zip(*members, strict=True)
        chosen = [at[list(places)] for at in values]
        if category and all(sorted(at) == [0.0] * (len(at) - 1) + [1.0] for at in chosen):
            found.append((category, tuple(parts[int(at.argmax())][2] for at in chosen)))
        else:
            found += [(names[k], tuple(f"{at[k]:.{digits}g}" for at in values)) for k in places]
    return found


def point_lines(point: Any, names: Sequence[str]) -> list[str]:
    """A point by the names of its entries."""
    pairs = [f"{name} = {value}" for name, (value,) in entries(names, point)]
    more = len(pairs) - 2 * MOST_MOVES
    said = ", ".join(pairs[: 2 * MOST_MOVES]) + (f", and {more} more" if more > 0 else "")
    return [f"the witness: {said}"]


def describe(
    row: Mapping[str, Any],
    *,
    before: NDArray[Any] | Sequence[float] | None = None,
    names: Sequence[str] | None = None,
    moved: str = "",
) -> list[str]:
    """One verdict, as `qll verify --json` keeps it. ``before`` is the data point, None for a rule
    without one; ``moved`` says better what moved than numbers can, where the data have a schema."""
    status = str(row["status"])
    claim = VACUOUS if row.get("vacuous") else CLAIMS[status]
    lines = [f"{status}: {claim}"]
    if status == "unknown":
        lines += _unknown(row)
    if row.get("detail") and status == "falsified":
        lines.append(f"broken: {row['detail']}")
    witness = row.get("witness")
    if witness is not None:
        known = names or [f"x[{k}]" for k in range(np.size(witness))]
        if moved:
            lines.append(f"moved: {moved}")
        elif before is not None:
            lines += moved_lines(before, witness, known)
        if before is None:
            lines += point_lines(witness, known)
        if row.get("witness2") is not None:
            found = moves(witness, row["witness2"], known)
            lines.append(f"x2 differs from it in {len(found)} of {len(known)} inputs")
            lines += _listed(found)
    lines += _basis(row)
    return [lines[0], *(f"  {line}" for line in lines[1:])]


def _unknown(row: Mapping[str, Any]) -> list[str]:
    detail = f" ({row['detail']})" if row.get("detail") else ""
    lines = [f"why: {row.get('reason')}{detail}"]
    bound = row.get("bound")
    if bound is not None and bound <= 0:
        lines.append(f"the best bound of what breaks the rule is {bound:.4g}; above 0 is a proof")
    advice = ADVICE.get(str(row.get("reason")))
    return [*lines, f"Fix: {advice}"] if advice else lines


def _basis(row: Mapping[str, Any]) -> list[str]:
    lines = []
    said = EVIDENCE.get(str(row.get("evidence")))
    if said is not None:
        where = f" ({row['certificate']})" if row.get("certificate") else ""
        lines.append(f"rests on: {said}{where}")
    if row.get("uncertified"):
        lines.append(f"the checker: {row['uncertified']}")
    bound = row.get("bound")
    if row["status"] == "verified" and bound is not None and bound > 0 and not row.get("vacuous"):
        lines.append(f"margin: whatever would break the rule is refuted by at least {bound:.4g}")
    lines += [f"note: {note}" for note in row.get("notes") or ()]
    if row.get("backend"):
        seconds, nodes = float(row.get("seconds") or 0.0), int(row.get("nodes") or 0)
        lines.append(f"found by {row['backend']} in {seconds:.3g} s, {nodes} nodes")
    return lines
