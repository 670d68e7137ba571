"""A network of the zoo seen for oneself: its certificates checked, a sample of regions re-proved.

Nothing of the card is believed: the claim that certificates are compared with is made of the
network's and the rule's own files, here. Where the rule depends on data points, these and their
labels are the archive's; a closed rule takes nothing from the archive but the evidence. Of regions
beyond the stored points there is a verdict and a hash and no evidence: how many is told.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qll.audit import Expected, audit
from qll.errors import InputError
from qll.formula.question import canonical
from qll.property import Property
from qll.zoo.against import compare_data, require_data_points
from qll.zoo.archive import (
    CLAIM,
    POINTS,
    SUFFIX,
    claim_of,
    damaged,
    read_hashes,
    read_network,
    unpack,
)
from qll.zoo.shelf import ProvedNetwork

if TYPE_CHECKING:
    from qll.data.base import DataSet

FIRST = 100  # regions whose evidence is stored at least, or all if there are fewer
# For a region that is decided anew: a card alone could forbid the proof, or never let it end.
LEAST_SECONDS, MOST_SECONDS = 10.0, 600.0


@dataclass
class Checked:
    """``failures`` is empty if everything that can be seen here is as the card says: the evidence
    of ``seen`` of the ``listed`` regions. ``vacuous`` is how many of the others are listed as
    verified because the rule says nothing of them, which only the data can show."""

    listed: int = 0
    seen: int = 0
    vacuous: int = 0
    confirmed: dict[str, int] = field(default_factory=dict)
    proved: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def check(
    entry: ProvedNetwork,
    *,
    data: DataSet | None = None,
    sample: int = 5,
    seed: int | None = None,
    timeout: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Checked:
    """Every certificate that is stored, and ``sample`` of these regions decided anew. ``seed``
    chooses the sample; without one it is another each time. With ``data``, those that the card
    names, points, labels and accuracy are compared with the test set, and the sample is of all
    regions. ``timeout`` is for each of them; without one it is the card's, within reason. A region
    that is listed as decided and cannot be decided here is a failure."""
    require_seconds(timeout)
    if data is not None:
        require_data_points(entry)
    found = Checked()
    network = read_network(entry)
    if sha256(network).hexdigest() != entry.card.network_sha256:
        found.failures.append("network.onnx is not the network that the card names")
        return found
    listed = read_hashes(entry)
    found.listed = len(listed)
    _compare_rule(entry, listed, found)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        unpack(entry, place)
        expected = _expected(entry, place)
        decided = _audit_all(place, network, expected, listed, found, progress)
    bare = [row for row, held in listed.items() if held == ("verified", "")]
    found.vacuous = sum(row >= len(expected.points) for row in bare)
    _compare_evidence(entry, expected, listed, decided, found)
    _compare_counts(entry, listed, found)
    chooser = np.random.default_rng(seed)
    if data is not None:
        found.failures += compare_data(entry, expected, len(listed), data)
        _compare_vacuous(entry, data, [row for row in bare if row >= len(expected.points)], found)
        decided = {row: listed[row][0] for row in range(min(len(listed), len(data.test)))}
    rows = sorted(chooser.permutation(sorted(decided))[:sample].tolist())
    if rows:
        points = _data(entry, expected, rows) if data is None else data.test.batch(np.array(rows))
        _prove_again(entry, points, {row: decided[row] for row in rows}, timeout, found)
    return found


def require_seconds(timeout: float | None) -> None:
    """None stands for the card's; no other value does."""
    if timeout is not None and not timeout > 0:  # NaN is not, either
        raise InputError(
            "the time-out is not positive",
            expected="seconds > 0",
            found=f"{timeout:g}",
            fix="pass --timeout 10 (timeout=10 in Python), or leave it out",
        )


def _compare_rule(entry: ProvedNetwork, listed: dict[int, tuple[str, str]], found: Checked) -> None:
    """What the card and the list of hashes say of the rule, against its text."""
    prop, card = entry.property, entry.card
    if card.name != entry.path.name:
        found.failures.append(f"the card is of '{card.name}'")
    own = parameters_of(prop)
    if own != card.parameters:
        found.failures.append(
            f"the card's parameters are {card.parameters}, those of rule.qll {own}"
        )
    if not _is_of_that_name(prop, card.rule):
        found.failures.append(f"the card says '{card.rule}', rule.qll is another rule")
    if prop.is_closed != card.closed:
        said = "a rule without data points" if card.closed else "a rule of data points"
        found.failures.append(f"the card says {said}, rule.qll is another")
    if prop.is_closed and set(listed) != {0}:
        found.failures.append(
            f"a rule without data points has one region, hashes.xz lists {len(listed)}"
        )


def _is_of_that_name(prop: Property, name: str) -> bool:
    """Where qll ships a rule of that name; what any other name stands for, rule.qll says."""
    from qll.properties import load, names

    if name not in names():
        return True
    shipped = load(name, outputs=prop.specification.outputs).specification
    own = parameters_of(prop)
    if {p.name for p in shipped.parameters} != set(own):
        return False
    return canonical(shipped, own) == canonical(prop.specification, own)


def parameters_of(prop: Property) -> dict[str, float]:
    """In the units that they are declared in, as certificates quote them."""
    return {p.name: prop.value_of(p.name) for p in prop.specification.parameters}


def _expected(entry: ProvedNetwork, place: Path) -> Expected:
    """The claim of this network and this rule and no other, about the stored points if the rule
    depends on any."""
    prop, network = entry.property, entry.card.network_sha256
    text = canonical(prop.specification, parameters_of(prop))
    if prop.is_closed:
        return Expected(text, network, np.zeros((1, 0)))
    held = claim_of(entry, place)
    if held.points.shape[1] != entry.network.input_size:  # no numbers at all: every point would do
        error = ValueError(f"points of {held.points.shape[1]} numbers")
        wanted = f"points of {entry.network.input_size} numbers"
        raise damaged(f"{entry.certificates}: {POINTS}", wanted, error)
    outputs = entry.network.output_size
    beyond = {label for row in held.labels or () for label in row if not 0 <= label < outputs}
    if beyond:
        error = ValueError(f"the label {min(beyond)}")
        wanted = f"labels of {outputs} outputs, counted from 0"
        raise damaged(f"{entry.certificates}: {CLAIM}", wanted, error)
    return Expected(text, network, held.points, held.labels)


def _audit_all(
    place: Path,
    network: bytes,
    expected: Expected,
    listed: dict[int, tuple[str, str]],
    found: Checked,
    progress: Callable[[int, int], None] | None,
) -> dict[int, str]:
    """The verdict of every region whose certificate is confirmed."""
    decided: dict[int, str] = {}
    paths = sorted(place.glob(f"*{SUFFIX}"))
    for count, path in enumerate(paths, start=1):
        data = path.read_bytes()
        answer = audit(data, network, expected)
        if not answer.confirmed or answer.claim is None:
            found.failures.append(f"{path.name}: NOT CONFIRMED: {answer.reason}")
        else:
            row = expected.compare(answer.claim)
            if row in decided:
                found.failures.append(f"{path.name}: a second certificate of region {row}")
            else:
                decided[row] = answer.verdict
                found.confirmed[answer.verdict] = found.confirmed.get(answer.verdict, 0) + 1
            if listed.get(row) != (answer.verdict, sha256(data).hexdigest()):
                found.failures.append(f"{path.name}: another certificate than hashes.xz lists")
        if progress is not None:
            progress(count, len(paths))
    for row in range(len(expected.points)):
        if row not in decided and listed.get(row, ("", ""))[1]:
            found.failures.append(f"region {row}: its certificate is missing")
    return decided


def _compare_evidence(
    entry: ProvedNetwork,
    expected: Expected,
    listed: dict[int, tuple[str, str]],
    decided: dict[int, str],
    found: Checked,
) -> None:
    """Nothing that should be seen is left out of the archive."""
    found.seen = len(expected.points)
    if not min(FIRST, len(listed)) <= found.seen <= len(listed):
        found.failures.append(
            f"the archive has {found.seen} of {len(listed)} regions, the first {FIRST} or all of "
            "fewer should be there"
        )
    if not decided:
        found.failures.append("no certificate is confirmed: nothing is proved here")
    if entry.property.is_closed:
        return
    bare = [row for row in range(found.seen) if listed.get(row) == ("verified", "")]
    if bare:
        found.failures += _unproved(entry, _data(entry, expected, bare), bare)


def _compare_vacuous(entry: ProvedNetwork, data: DataSet, rows: list[int], found: Checked) -> None:
    """Regions beyond the archive's that are called verified because nothing is said of them."""
    there = [row for row in rows if row < len(data.test)]
    if there:
        found.failures += _unproved(entry, data.test.batch(np.array(there)), there)
    found.vacuous -= len(there)


def _unproved(entry: ProvedNetwork, points: tuple[Any, Any], rows: list[int]) -> list[str]:
    return [
        f"region {row}: listed as verified without a certificate, but the rule says something of it"
        for row in regions_with_a_claim(entry, points, rows)
    ]


def regions_with_a_claim(
    entry: ProvedNetwork, points: tuple[Any, Any], rows: list[int]
) -> list[int]:
    """Those of which the rule says something, so that a proof is needed."""
    from qll.verify.api import Problem

    problem = Problem.of(entry.property, entry.network, *points, timeout=LEAST_SECONDS)
    queries = [problem.query(index) for index in range(len(problem))]
    return [
        row
        for row, query in zip(rows, queries, strict=True)
        if not all(case.vacuous for case in query.cases)
    ]


def _compare_counts(
    entry: ProvedNetwork, listed: dict[int, tuple[str, str]], found: Checked
) -> None:
    said = entry.card.proved
    for status in ("verified", "falsified", "unknown"):
        count = sum(held[0] == status for held in listed.values())
        if count != getattr(said, status):
            found.failures.append(
                f"the card says {getattr(said, status)} {status}, hashes.xz lists {count}"
            )
    bare = sum(held == ("verified", "") for held in listed.values())
    if bare != said.vacuous:  # a region of which the rule says nothing needs no certificate
        found.failures.append(
            f"{bare} verified regions have no certificate, the card says {said.vacuous} vacuous"
        )


def _prove_again(
    entry: ProvedNetwork,
    points: tuple[Any, Any],
    rows: dict[int, str],
    timeout: float | None,
    found: Checked,
) -> None:
    from qll.verify.api import verify

    usual = min(max(entry.card.timeout, LEAST_SECONDS), MOST_SECONDS)
    seconds = usual if timeout is None else timeout
    verdicts = verify(entry.property, entry.onnx, *points, timeout=seconds, certified=True)
    for (row, status), verdict in zip(rows.items(), verdicts, strict=True):
        found.proved[verdict.status] = found.proved.get(verdict.status, 0) + 1
        if status == "unknown" or verdict.status == status:
            continue
        said = f"region {row}: listed as {status}, now {verdict.status}"
        if verdict.status == "unknown":
            said += f" after {seconds:g} s; a larger --timeout may decide it"
        found.failures.append(said)


def _data(entry: ProvedNetwork, expected: Expected, rows: list[int]) -> tuple[Any, Any]:
    """Points and labels as ``verify`` takes them; None where the rule depends on none."""
    x: Any = None
    if not entry.property.is_closed:
        x = expected.points[rows].reshape(-1, *entry.network.input_shape[-3:])
    if expected.labels is None:
        return x, None
    return x, _labels([expected.labels[row] for row in rows], entry.network.output_size)


def _labels(rows: list[tuple[int, ...]], outputs: int) -> Any:
    if all(len(row) == 1 for row in rows):
        return np.array([row[0] for row in rows])
    several = np.zeros((len(rows), outputs), dtype=np.int64)
    for k, row in enumerate(rows):
        several[k, list(row)] = 1
    return several
