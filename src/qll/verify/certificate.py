"""Certificates: what `qll.audit` needs to check a verdict without believing the prover.

A proof is written as the prover found it: the bounds proved at the root, the tree of splits with
the bounds proved on the way, and the multipliers of every leaf. Any multipliers give a valid bound,
so they are rounded as coarsely as the checker still confirms: 8 bits first, then half, then single
precision. Nothing here is trusted; a mistake makes a certificate that is not confirmed.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from qll.audit import Answer, audit
from qll.audit.layout import COLUMNS, FORMAT, MAGIC, Header, digest, names
from qll.files import write_atomically, write_error
from qll.formula.question import question
from qll.formula.rewrite import Shape
from qll.networks.joint import Joint
from qll.verify.joining import ByCases
from qll.verify.query import Query
from qll.verify.subject import Subject, explicit, short
from qll.verify.verdict import Evidence, Reason, Status, Verdict
from qll.verify.writer import Unwritable, Writer

PRECISIONS = (8, 16, 32)  # bits of alpha and delta, from coarse to fine

SUFFIX = ".qllcert"


def certify(
    query: Query,
    verdict: Verdict,
    subject: Subject | None = None,
    *,
    stop: Callable[[], bool] | None = None,
) -> tuple[bytes, Answer]:
    """The certificate of a decided verdict, and what the checker says to it, until ``stop``.

    A ``verified`` verdict needs the proof that `Budget(proofs=True)` keeps. Without a ``subject``
    the claim is about the query's own box and ground formula.
    """
    own, other = _networks(query)
    network, against = own.source, None if other is None else other.source
    subject = explicit(query) if subject is None else subject
    header = _header(query, verdict, subject)
    if verdict.status is Status.FALSIFIED:
        witness = verdict.witness
        if isinstance(query.network, Joint) and witness is not None:
            witness = query.network.stored(witness)
        data = pack(header, {"x0": subject.x0, "witness": witness})
        return data, audit(data, network, against=against, stop=stop)
    cases = query.cases
    proofs = verdict.proof.parts if isinstance(verdict.proof, ByCases) else (
        (cases[0] if len(cases) == 1 else query, verdict.proof),
    )  # fmt: skip
    writers = [Writer.of(case, proof) for case, proof in proofs]
    data, answer = b"", Answer("verified", False, "no precision is enough")
    for precision in PRECISIONS:
        arrays = {"x0": subject.x0}
        for number, writer in enumerate(writers):
            end = f".{number}" if number else ""
            arrays |= {name + end: v for name, v in writer.arrays(precision).items()}
        data = pack(replace(header, precision=precision), arrays)
        answer = audit(data, network, against=against, stop=stop)
        if answer.confirmed or answer.beyond:
            break
    return data, answer


def pack(header: Header, arrays: dict[str, Any]) -> bytes:
    """The file that `qll.audit.layout` reads, with the types that are declared there."""
    raw = {}
    count = sum(name.partition(".")[0] == "kinds" for name in arrays)
    for name in names(header.verdict, count):
        values = np.asarray(arrays[name]).ravel()
        raw[name] = values.astype(COLUMNS[name.partition(".")[0]].type(header.precision))
        if values.dtype.kind in "biu" and (raw[name] != values).any():
            raise ValueError(f"{name} does not fit its type")
    lengths = {name: values.size for name, values in raw.items()}
    head = json.dumps({**asdict(header), "arrays": lengths}, allow_nan=False).encode()
    parts = [len(head).to_bytes(4, "little"), head, *(a.tobytes() for a in raw.values())]
    # Level 9 takes ten times as long for files that are 2 % smaller.
    body = zlib.compress(b"".join(parts), 6)
    return MAGIC + hashlib.sha256(body).digest() + body


def confirm(
    query: Query,
    verdict: Verdict,
    subject: Subject | None = None,
    *,
    strict: bool = True,
    stop: Callable[[], bool] | None = None,
) -> tuple[Verdict, bytes | None]:
    """The verdict as far as the checker confirms it: otherwise ``unknown``, with its reason. What
    could not be asked (there is no proof, no time, no room) is ``unknown`` only if ``strict``: it
    says nothing against the prover's word, which then stands as that."""
    if not verdict.decided:
        return verdict, None
    try:
        data, answer = certify(query, verdict, subject, stop=stop)
    except Unwritable as error:
        data, answer = b"", Answer(str(verdict.status), False, str(error), beyond=True)
    if answer.beyond and not strict:
        return replace(verdict, proof=None, uncertified=answer.reason), None
    if answer.confirmed:
        note = f"confirmed by the independent checker ({answer.reason})"
        # The checker rounds outward: the prover's margin no longer weakens the claim.
        return (
            replace(verdict, notes=(note,), proof=None, evidence=Evidence.CHECKED),
            data,
        )
    return (
        replace(
            verdict, status=Status.UNKNOWN, witness=None, proof=None,
            reason=Reason.UNCONFIRMED if answer.beyond else Reason.REFUSED, detail=answer.reason,
            evidence=None, uncertified=answer.reason,
            notes=(*verdict.notes, f"was {verdict.status}, not confirmed: {answer.reason}"),
        ),
        None,
    )  # fmt: skip


def write(folder: Path, name: str, data: bytes, *networks: bytes) -> Path:
    """Store a certificate and, once, its networks; complete or not at all."""
    path = folder / f"{name}{SUFFIX}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(folder, error) from error
    for network in networks:
        stored = folder / f"{digest(network)}.onnx"
        if not stored.exists():
            write_atomically(stored, network)
    write_atomically(path, data)
    return path


def _header(query: Query, verdict: Verdict, subject: Subject) -> Header:
    network, other = _networks(query)
    mean, std = (None, None) if network.normalisation is None else network.normalisation
    shape = Shape(network.output_size, tuple(network.input_shape))
    asked = question(subject.text, subject.labels, shape)
    return Header(
        format=FORMAT,
        verdict=str(verdict.status),
        network=network.sha256,
        mean=short(mean, network.input_shape),
        std=short(std, network.input_shape),
        text=subject.text,
        labels=subject.labels,
        tie_violates=query.tie_violates,
        arithmetic=query.arithmetic or "real",
        ground=digest(repr((asked.form, asked.constraints)).encode()),
        region=digest(*(side.tobytes() for q in query.cases for side in (q.lower, q.upper))),
        precision=PRECISIONS[0],
        member=_member(query),
        point=None if verdict.exact is None else tuple(map(_fraction, verdict.exact)),
        against=None if other is None else other.sha256,
    )


def _member(query: Query) -> tuple[str, ...] | None:
    """A point of the region, where its constraints leave that open: a rule about no point at all
    says nothing."""
    if not any(case.constraints for case in query.cases):
        return None
    for case in query.cases:
        point = case.member.point
        if point is not None:
            return tuple(map(_fraction, point))
    return None


def _fraction(value: Fraction) -> str:
    return f"{value.numerator}/{value.denominator}"


def _networks(query: Query) -> tuple[Any, Any]:
    """The user's own, of which the checker makes the product itself: that of x, and that of x2 if
    it is another one."""
    network: Any = query.network
    if not isinstance(network, Joint):
        return network, None
    first, *rest = network.networks
    return first, next((other for other in rest if other.sha256 != first.sha256), None)
