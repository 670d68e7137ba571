"""What a file of verdicts, a certificate or kept counterexamples say, for whoever finds them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qll.errors import InputError, QllError
from qll.reports.explain_query import explain_answer
from qll.verify.explanation import (
    ARITHMETIC,
    CLAIMS,
    EVIDENCE,
    describe,
    input_names,
    moved_lines,
    moves,
)

if TYPE_CHECKING:
    from qll.data import DataSet
    from qll.networks import Network
    from qll.property import Property

CERTIFICATE = ".qllcert"
MOST_LISTED = 12  # numbers of points, or spans of them


@dataclass(frozen=True, eq=False)
class Item:
    """One data point: its verdict, in words and as plain data. ``pictures`` are the point and the
    witness, where both are images."""

    point: int
    status: str
    lines: tuple[str, ...]
    content: Mapping[str, Any]
    pictures: tuple[NDArray[Any], NDArray[Any]] | None = None


@dataclass(frozen=True, eq=False)
class Explanation:
    heading: tuple[str, ...]
    items: tuple[Item, ...]
    content: Mapping[str, Any] = field(default_factory=dict)
    once: bool = False  # of a rule without a data point

    def groups(self) -> list[str]:
        """How many points have which verdict, and on what these rest."""
        if self.once:
            return []
        lines = []
        for status, claim in CLAIMS.items():
            found = [item for item in self.items if item.status == status]
            if not found:
                continue
            vacuous = [item for item in found if item.content.get("vacuous")]
            lines.append(f"{len(found)} {status}: {claim}")
            if status == "unknown":
                lines += _by(found, "reason", lambda text: text)
            else:
                real = [item for item in found if not item.content.get("vacuous")]
                lines += _by(real, "evidence", lambda text: EVIDENCE.get(text, text))
            if vacuous:
                lines.append(
                    f"  {len(vacuous)} of them vacuously: the premise is false there, whatever the "
                    f"network computes (points {_numbers(vacuous)})"
                )
        return lines

    def as_json(self) -> dict[str, Any]:
        points = [
            {"point": item.point, **item.content, "said": list(item.lines)} for item in self.items
        ]
        return {**self.content, "points": points}


def _by(items: Sequence[Item], key: str, words: Callable[[str], str]) -> list[str]:
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(str(item.content.get(key) or "not known"), []).append(item)
    return [
        f"  {len(group)} (points {_numbers(group)}): {words(text)}" for text, group in found.items()
    ]


def _numbers(items: Sequence[Item]) -> str:
    return spans([item.point for item in items])


def spans(numbers: Sequence[int]) -> str:
    """Of rising numbers, those that follow each other as one.

    >>> spans([0, 1, 2, 4, 6, 7])
    '0 to 2, 4, 6, 7'
    """
    ends: list[list[int]] = []
    for number in numbers:
        if ends and number == ends[-1][1] + 1:
            ends[-1][1] = number
        else:
            ends.append([number, number])
    said: list[str] = []
    for first, last in ends:
        said += [f"{first} to {last}"] if last > first + 1 else map(str, range(first, last + 1))
    return ", ".join(said[:MOST_LISTED]) + (", ..." if len(said) > MOST_LISTED else "")


@dataclass(frozen=True, eq=False)
class Helpers:
    """What the reader has besides the file: the network (outputs), the data (names, units)."""

    network: Network | None = None
    data: DataSet | None = None

    def moved(self, before: Any, after: Any) -> str:
        if self.data is None or self.data.schema is None or before is None:
            return ""
        from qll.reports.moved import describe_move

        flat = [np.asarray(v, dtype=np.float64).reshape(-1).tolist() for v in (before, after)]
        return describe_move(self.data.schema, *flat)

    def outputs(self, names: Sequence[str], *points: tuple[str, Any]) -> list[str]:
        """What the network answers at the point and at the witness."""
        if self.network is None:
            return []
        shape = self.network.input_shape
        given = [(said, np.asarray(p, float)) for said, p in points if p is not None]
        rows = np.stack([p.reshape(shape) for _, p in given])
        values = np.asarray(self.network.runtime(rows)).reshape(len(given), -1)
        called = names or [f"y[{k}]" for k in range(values.shape[1])]
        return [
            f"  outputs at {said}: "
            + ", ".join(f"{name} {v:.4g}" for name, v in zip(called, row, strict=True))
            for (said, _), row in zip(given, values.tolist(), strict=True)
        ]


def explain(
    path: str | Path, *, network: str | Path | None = None, data: DataSet | None = None
) -> Explanation:
    """A file of ``qll verify --json``, of a rule or of a query, a certificate or a folder of them,
    or what ``qll attack --out`` kept. ``network`` adds outputs (and checks a certificate whose
    network is elsewhere); ``data`` the names and units of features."""
    path = Path(path)
    if path.is_dir() and not any(path.glob(f"*{CERTIFICATE}")):
        kept = (path / "counterexamples.npz", path / "verdicts.json", path / "certificates")
        path = next((place for place in kept if place.exists()), kept[1])
    unfinished = path.with_name(f"{path.name}.partial")
    if not path.exists() and unfinished.exists():
        path = unfinished
    if not path.exists():
        raise InputError(
            f"there is nothing to explain in {path}",
            expected="a file of 'qll verify --json', a certificate or a folder of them, or what "
            "'qll attack --out' kept",
            found="no such file",
            fix="write one: qll verify RULE --network NET.onnx --json verdicts.json",
        )
    helpers = Helpers(None if network is None else _network(network), data)
    if path.is_dir() or path.suffix == CERTIFICATE:
        return _certificates(path, network, helpers)
    if path.suffix == ".npz":
        return _counterexamples(path, helpers)
    return _verdicts(path, helpers)


def _network(path: str | Path) -> Network:
    from qll.networks import load

    return load(path)


# --- verdicts of qll verify --json ---


def _verdicts(path: Path, helpers: Helpers) -> Explanation:
    question, rows = _read_verdicts(path)
    if rows is None:
        heading, content = explain_answer(path, question)
        return Explanation(tuple(heading), (), content, once=True)
    _check_network(path, question, helpers)
    rule = _rule(question)
    shape = question.get("input_shape")
    known = _points(question, helpers)
    asked = int(question.get("count", len(rows)))
    once = rule is not None and rule.is_closed
    heading = [
        f"rule {question.get('property', '')}, asked "
        + ("once: it depends on no data point" if once else f"of {asked} points")
        + f", {float(question.get('timeout', 0.0)):g} s{'' if once else ' each'}, "
        f"by {question.get('backend', 'bab')}",
        *(f"    {line}" for line in str(question["text"]).strip().splitlines()),
        f"network: sha256 {question['network_sha256']}"
        + (", which takes normalised input" if question.get("mean") is not None else ""),
        f"in {ARITHMETIC.get(question.get('arithmetic'), str(question.get('arithmetic')))}",
    ]
    if len(rows) < asked:
        heading.append(f"not finished: {len(rows)} of {asked} are decided so far")
    items = [_verdict(row, rule, shape, known, helpers) for row in rows]
    content = {key: question[key] for key in ("property", "text", "network_sha256")}
    content |= {"kind": "verdicts", "arithmetic": question.get("arithmetic"), "count": asked}
    return Explanation(tuple(heading), tuple(items), content, once)


def _verdict(
    row: Mapping[str, Any],
    rule: Property | None,
    shape: Sequence[int] | None,
    known: NDArray[Any] | None,
    helpers: Helpers,
) -> Item:
    number, witness = int(row["point"]), row.get("witness")
    before = row.get("x0")
    if before is None and known is not None:
        before = known[number].reshape(-1)
    if witness is None:
        return Item(number, row["status"], tuple(describe(row)), dict(row))
    size = int(np.size(witness))
    form = tuple(shape) if shape is not None else (size,)
    names = input_names(form, rule)
    lines = describe(row, before=before, names=names, moved=helpers.moved(before, witness))
    lines += helpers.outputs(
        _output_names(rule), ("the data point", before), ("the witness", witness),
        ("the second point", row.get("witness2")),
    )  # fmt: skip
    if before is None and rule is not None and not rule.is_closed:
        lines.append("  what moved is not said in this file: pass --data")
    content = {k: v for k, v in row.items() if k not in ("witness", "witness2", "x0", "point")}
    if before is not None:
        content["moved"] = [vars(move) for move in moves(before, witness, names)]
    return Item(number, row["status"], tuple(lines), content, _pictures(before, witness, form))


def _read_verdicts(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]] | None]:
    """The question, and the verdicts by point; a file that is being written too. The answer to a
    VNN-LIB query has no points."""
    from qll.files import read_json, read_lines

    if path.name.endswith(".partial"):
        found = read_lines(path, to_damage=True)
        question, rows = (found[0] if found else {}), found[1:]
    elif path.read_bytes()[:1] != b"{":
        question, rows = {}, []
    else:
        question = read_json(path, "verdicts", fix="give a file of 'qll verify --json'")
        rows = question.pop("verdicts", None)
    if isinstance(question.get("answer"), str) and isinstance(question.get("query"), str):
        return question, None
    wanted = {"text": str, "network_sha256": str}
    fits = all(isinstance(question.get(key), kind) for key, kind in wanted.items())
    if not fits or not isinstance(rows, list) or not all(map(_is_verdict, rows)):
        raise InputError(
            f"{path} holds no verdicts",
            expected="a file that 'qll verify --json FILE' wrote",
            found=f"fields {', '.join(sorted(question)[:8])}" if question else "another file",
            fix="give that file, a certificate, or the folder of 'qll attack --out'",
        )
    return question, sorted(rows, key=lambda row: int(row["point"]))


def _is_verdict(row: Any) -> bool:
    return isinstance(row, dict) and type(row.get("point")) is int and row.get("status") in CLAIMS


def _rule(question: Mapping[str, Any]) -> Property | None:
    """For names of inputs and outputs; what cannot be read any more is shown as text all the
    same."""
    from qll.properties import parse

    try:
        return parse(str(question["text"]), name=str(question.get("property", "rule")))
    except QllError:
        return None


def _output_names(rule: Property | None) -> list[str]:
    for declared in () if rule is None else rule.specification.names:
        if declared.kind == "outputs":
            return list(declared.names)
    return []


def _check_network(path: Path, question: Mapping[str, Any], helpers: Helpers) -> None:
    if helpers.network is not None and helpers.network.sha256 != question["network_sha256"]:
        raise InputError(
            f"{path} is about another network",
            expected=f"sha256 {question['network_sha256']}",
            found=f"sha256 {helpers.network.sha256}",
            fix="pass the network that was verified, or leave --network out",
        )


def _points(question: Mapping[str, Any], helpers: Helpers) -> NDArray[Any] | None:
    """The data points, if the data given are those that were asked about."""
    if helpers.data is None:
        return None
    x, _ = helpers.data.test.batch(slice(0, int(question.get("count", 0)) or None))
    points = np.asarray(x, dtype=np.float64)
    if hashlib.sha256(points.tobytes()).hexdigest() != question.get("points_sha256"):
        return None
    return points


def _pictures(
    before: Any, after: Any, shape: Sequence[int]
) -> tuple[NDArray[Any], NDArray[Any]] | None:
    if before is None or len(shape) != 3 or shape[0] not in (1, 3):
        return None
    old, new = (np.asarray(v, dtype=np.float64).reshape(tuple(shape)) for v in (before, after))
    return old, new


# --- certificates ---


def _certificates(path: Path, network: str | Path | None, helpers: Helpers) -> Explanation:
    files = sorted(path.glob(f"*{CERTIFICATE}")) if path.is_dir() else [path]
    heading: list[str] = []
    items = []
    for place, file in enumerate(files):
        number = int(file.stem) if file.stem.isdecimal() else place
        item, shared = _certificate(number, file, network, helpers)
        items.append(item)
        if shared and shared not in heading:
            heading.append(shared)
    lines = [line for text in heading for line in text.splitlines()]
    return Explanation(tuple(lines), tuple(items), {"kind": "certificates"})


def _certificate(
    number: int, file: Path, network: str | Path | None, helpers: Helpers
) -> tuple[Item, str]:
    """Checked here and now, with the network that lies beside it or that is given."""
    from qll.audit import audit
    from qll.audit.layout import unpack
    from qll.audit.network import NotConfirmed
    from qll.audit.statement import plain

    try:
        header, arrays = unpack(file.read_bytes())
        held = Path(network) if network is not None else file.parent / f"{header.network}.onnx"
        source = held.read_bytes()
    except (NotConfirmed, OSError) as error:
        said = f"{file.name}: not confirmed: {plain(str(error))}"
        return Item(number, "unknown", (said,), {"certificate": file.name}), ""
    answer = audit(file.read_bytes(), source)
    status = answer.verdict if answer.confirmed else "unknown"
    evidence = "confirmed by the checker" if answer.confirmed else None
    word = "confirmed" if answer.confirmed else "NOT CONFIRMED"
    lines = [f"{file.name}: {answer.verdict}: {word}: {plain(answer.reason)}"]
    content: dict[str, Any] = {
        "certificate": file.name, "status": status, "evidence": evidence, "reason": answer.reason,
    }  # fmt: skip
    pictures = None
    if answer.claim is not None:
        lines.append(f"  {answer.claim.own}")
        if answer.confirmed and header.verdict == "verified":
            lines.append(f"  the proof: {_tree(arrays)}")
        elif answer.confirmed:
            more, moved, pictures = _witness(header, arrays, source, answer.claim, helpers)
            lines += [f"  {line}" for line in more]
            content["moved"] = moved
    shared = "" if answer.claim is None else answer.claim.shared
    return Item(number, status, tuple(lines), content, pictures), shared


# Kinds of nodes, by their numbers in `qll.audit.layout`, as one speaks of them.
_NODES = {
    "leaves that a bound refutes": ("BOUND", "CROWN", "SLOPE", "ALWAYS"),
    "empty leaves": ("EMPTY",),
    "splits of neurons": ("SPLIT",),
    "halved inputs": ("HALVE",),
    "case distinctions of the rule": ("CASE",),
    "layers with tightened bounds": ("TIGHTEN", "OPEN"),
}


def _tree(arrays: Mapping[str, Any]) -> str:
    from qll.audit import layout

    kinds = np.concatenate([v for name, v in arrays.items() if name.split(".")[0] == "kinds"])
    parts = []
    for said, names in _NODES.items():
        count = int(np.isin(kinds, [getattr(layout, name) for name in names]).sum())
        if count:
            parts.append(f"{count} {said}")
    nodes = "one node" if kinds.size == 1 else f"{kinds.size} nodes"
    return f"a tree of {nodes}: {', '.join(parts)}"


def _witness(
    header: Any, arrays: Mapping[str, Any], source: bytes, claim: Any, helpers: Helpers
) -> tuple[list[str], list[Any], tuple[NDArray[Any], NDArray[Any]] | None]:
    """What moved, and what broke; the certificate has the points, the rule and the network."""
    from qll.networks.joint import Joint
    from qll.properties import parse
    from qll.verify.api import Problem
    from qll.verify.broken import broken
    from qll.verify.moved import Moved

    x0, entries = np.array(arrays["x0"]), np.array(arrays["witness"])  # the file's are read-only
    first = entries[: x0.size]
    rule = parse(header.text, name="rule")
    shape = claim.input_shape or (x0.size,)
    names = input_names(shape, rule)
    row = {"status": "falsified", "witness": first}
    if entries.size > x0.size:
        row["witness2"] = entries[x0.size :]
    labels = None if header.labels is None else np.zeros((1, claim.outputs))
    if labels is not None:
        labels[0, list(header.labels)] = 1
    before = None if rule.is_closed else x0
    try:
        problem = Problem.of(
            rule, source, x0.reshape(1, *shape), labels, timeout=10.0,
            mean=header.mean, std=header.std, arithmetic=header.arithmetic,
        )  # fmt: skip
        query = problem.query(0)
        point = first
        if isinstance(query.network, Moved):  # the certificate has what moves the points
            point, both = entries, query.network.expand(entries)
            first = row["witness"] = both[0]
            row.pop("witness2", None)
            row |= {"witness2": both[1]} if len(both) > 1 else {}
        elif isinstance(query.network, Joint):
            point = np.zeros(query.network.variables)
            point[list(query.network.home)] = entries
        row["detail"] = broken(query, point, rule)
    except QllError:  # the checker reads what the prover does not: the move is told all the same
        pass
    lines = describe(row, before=before, names=names, moved=helpers.moved(before, first))[1:]
    lines = [line.removeprefix("  ") for line in lines]
    found = [] if before is None else [vars(move) for move in moves(x0, first, names)]
    return lines, found, _pictures(before, first, shape)


# --- counterexamples of qll attack --out ---


def _counterexamples(path: Path, helpers: Helpers) -> Explanation:
    from qll.reports.witnesses import read_arrays

    arrays = read_arrays(path)
    items = []
    for k, number in enumerate(arrays["index"].tolist()):
        clean, attacked = arrays["clean"][k], arrays["attacked_x"][k]
        names = input_names(clean.shape)
        said = helpers.moved(clean, attacked)
        lines = ["falsified: an attack found a point of the region that breaks the rule"]
        margin = float(arrays["margin"][k])
        lines.append(f"  by {-margin:.4g}, as ONNX Runtime runs the network")
        moved = [f"moved: {said}"] if said else moved_lines(clean, attacked, names)
        lines += [f"  {line}" for line in moved]
        shown = ", ".join(f"y[{j}] {v:.4g}" for j, v in enumerate(arrays["outputs"][k].tolist()))
        lines.append(f"  outputs at the witness: {shown}")
        content = {
            "status": "falsified", "evidence": "found by an attack", "margin": margin,
            "moved": [vars(move) for move in moves(clean, attacked, names)],
        }  # fmt: skip
        pictures = _pictures(clean, attacked, clean.shape)
        items.append(Item(int(number), "falsified", tuple(lines), content, pictures))
    heading = ("counterexamples of an attack: regions that are not here are not proved by that",)
    return Explanation(heading, tuple(items), {"kind": "counterexamples"})


def save_pictures(items: Iterable[Item], path: Path, *, most: int = 16) -> int:
    """Data point, witness and difference, a row each; how many there were."""
    from qll.data.pictures import save_comparison

    shown = [item for item in items if item.pictures is not None][:most]
    if not shown:
        raise InputError(
            "there is no witness to draw",
            expected="a witness of an image, with its data point",
            found="none",
            fix="leave --picture out, or pass --data if the file does not hold the data points",
        )
    pairs = [item.pictures for item in shown if item.pictures is not None]
    save_comparison(
        path,
        [before for before, _ in pairs],
        [after for _, after in pairs],
        captions=[f"point {item.point}" for item in shown],
    )
    return len(shown)
