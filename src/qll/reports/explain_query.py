"""The answer to a VNN-LIB query in words: what was asked, what the answer claims and on what that
rests, and of an assignment which constraints it meets, and by how much."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from qll.errors import QllError
from qll.exchange.document import All, Assertion, Atom, Document, Some, fulfilled
from qll.exchange.files import read

ARITHMETIC = {
    None: "real numbers, on the weights as they are stored",
    "float32": "IEEE float32: every evaluation, whatever the order of its sums",
}
MOST_INPUTS = 12  # inputs that are listed one by one
MOST_LINES = 24  # constraints
CLAIMS = {
    "sat": "there is such an input; this one was judged in exact arithmetic and in ONNX Runtime",
    "unsat": "there is none: it was proved for every input of the region: the prover's word",
    "unknown": "nothing is claimed",
    "timed-out": "nothing is claimed: more time (--timeout) may decide it",
}


def explain_answer(path: Path, answer: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The lines, and what they say as plain data."""
    given = str(answer["answer"])
    lines = [f"query {answer['query']}, answered {given}" + _time(answer)]
    content: dict[str, Any] = {"kind": "answer", "query": answer["query"], "answer": given}
    networks = answer.get("networks")
    files = []
    for name, held in networks.items() if isinstance(networks, dict) else ():
        if isinstance(held, dict):
            files.append(str(held.get("file")))
            lines.append(f"network {name}: {files[-1]}, sha256 {held.get('sha256')}")
            lines[-1] = lines[-1].replace("network :", "network:")  # version 1 has no names
    numbers = answer.get("arithmetic")
    lines.append(f"in {ARITHMETIC.get(numbers, str(numbers))}")
    document, missing = _query(path, answer)
    if document is None:
        lines.append(missing)
    else:
        lines += ["asked: is there an input with", *_indented(_asked(document))]
    lines += ["", f"{given}: {_claim(given, numbers)}"]
    x, y = _numbers(answer.get("inputs")), _numbers(answer.get("outputs"))
    if document is not None and len(x) == document.inputs and len(y) == document.outputs:
        met = list(_met(document, x, y))
        lines += _indented([*_values(document, "x", x), *_values(document, "y", y)])
        lines += _indented([f"meets {said}" for said in met])
        content["meets"] = met
    elif x:
        lines += _indented([f"{len(x)} inputs and {len(y)} outputs are in the file"])
    notes = answer.get("notes")
    lines += _indented([f"note: {note}" for note in (notes if isinstance(notes, list) else ())])
    if given == "unsat" and len(files) == 1:
        query = answer.get("file") or answer["query"]
        lines += [
            "  evidence that qll audit checks: make a rule of it and verify that,",
            f"    qll export {query} --network {files[0]} --to qll --out rule.qll",
            f"    qll verify rule.qll --network {files[0]} --certificate proofs",
        ]
    return lines, content


def _claim(given: str, numbers: Any) -> str:
    if (given, numbers) == ("sat", "float32"):
        return "there is such an input; at this one every order of summation meets what is asked"
    return CLAIMS.get(given, "not an answer of the standard")


def _time(answer: Mapping[str, Any]) -> str:
    seconds = answer.get("seconds")
    return f" after {seconds:.3g} s" if isinstance(seconds, int | float) else ""


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _numbers(values: Any) -> list[Fraction]:
    if not isinstance(values, list) or not all(isinstance(v, int | float) for v in values):
        return []
    return [Fraction(v) for v in values if math.isfinite(v)]


def _query(path: Path, answer: Mapping[str, Any]) -> tuple[Document | None, str]:
    """The file that was asked, if it is still the same: where it was, or beside the answer."""
    named = str(answer.get("file") or answer["query"])
    for place in (Path(named), path.parent / Path(named).name):
        try:
            content = place.read_bytes()
            if answer.get("sha256") in (None, hashlib.sha256(content).hexdigest()):
                return read(place), ""
        except (OSError, QllError):
            continue
    return None, f"the query is not at {named} any more: what it asks cannot be told"


# --- what is asked ---


def _asked(document: Document) -> list[str]:
    lines = _region(document)
    rest = [said for part in document.assertions for said in _spelt(document, part)]
    lines += rest[:MOST_LINES]
    if len(rest) > MOST_LINES:
        lines.append(f"and {len(rest) - MOST_LINES} lines more")
    return lines


def _region(document: Document) -> list[str]:
    ends = []
    for k in range(document.inputs):
        low, high = document.bounds.get("lower", k), document.bounds.get("upper", k)
        ends.append((low, high))
    if len(ends) <= MOST_INPUTS:
        return [
            f"{document.name_of(('x', k))} "
            + (
                f"= {_text(low)}"
                if low is not None and low == high
                else f"in {_interval(low, high)}"
            )
            for k, (low, high) in enumerate(ends)
        ]
    known = [(low, high) for low, high in ends if low is not None and high is not None]
    fixed = sum(low == high for low, high in known)
    lines = [
        f"{len(ends)} inputs, {document.name_of(('x', 0))} to "
        f"{document.name_of(('x', len(ends) - 1))}, {fixed} of them fixed"
    ]
    if len(known) > fixed:
        widths = [high - low for low, high in known if low != high]
        lines[0] += f", the others in intervals {_text(min(widths))} to {_text(max(widths))} wide"
    if len(known) < len(ends):
        lines[0] += f"; {len(ends) - len(known)} bounded by constraints alone or not at all"
    return lines


def _interval(low: Fraction | None, high: Fraction | None) -> str:
    return f"[{'-inf' if low is None else _text(low)}, {'inf' if high is None else _text(high)}]"


def _spelt(document: Document, part: Assertion) -> Iterator[str]:
    match part:
        case Atom():
            yield _atom(document, part)
        case All(parts):
            for inner in parts:
                yield from _spelt(document, inner)
        case Some(parts):
            yield f"one of {len(parts)}:" if parts else "something that no input meets"
            for inner in parts:
                said = list(_spelt(document, inner))
                if all(isinstance(p, Atom) for p in getattr(inner, "parts", ())):
                    said = [" and ".join(said)]
                yield from (f"{'- ' if k == 0 else '  '}{line}" for k, line in enumerate(said))


def _atom(document: Document, atom: Atom) -> str:
    """With positive coefficients on both sides, as one would write it."""
    left = [(slot, c) for slot, c in atom.terms if c > 0]
    right = [(slot, -c) for slot, c in atom.terms if c < 0]
    sides = [_sum(document, left, max(atom.constant, Fraction(0)))]
    sides.append(_sum(document, right, max(-atom.constant, Fraction(0))))
    sign = ">" if atom.strict else ">="
    if not left:  # 3 >= Y is read as Y <= 3
        sides.reverse()
        sign = sign.replace(">", "<")
    return f"{sides[0]} {sign} {sides[1]}"


def _sum(document: Document, terms: list[tuple[Any, Fraction]], constant: Fraction) -> str:
    said = [("" if c == 1 else f"{_text(c)} ") + document.name_of(slot) for slot, c in terms[:8]]
    if len(terms) > len(said):
        said.append(f"{len(terms) - len(said)} terms more")
    if constant or not said:
        said.append(_text(constant))
    return " + ".join(said)


def _text(value: Fraction) -> str:
    return f"{float(value):.10g}"


# --- what an assignment does ---


def _values(document: Document, source: str, values: list[Fraction]) -> list[str]:
    shown = [
        f"{document.name_of((source, k))} = {_text(v)}" for k, v in enumerate(values[:MOST_INPUTS])
    ]
    more = len(values) - len(shown)
    return [", ".join(shown) + (f" and {more} more, in the file" if more else "")]


def _met(document: Document, x: list[Fraction], y: list[Fraction]) -> Iterator[str]:
    """The constraints beside the bounds, with their slack; of alternatives, those that hold."""
    told = 0
    for part in document.assertions:
        for said in _reasons(document, part, x, y):
            told += 1
            if told <= MOST_LINES:
                yield said


def _reasons(
    document: Document, part: Assertion, x: list[Fraction], y: list[Fraction]
) -> Iterator[str]:
    match part:
        case Atom(terms, constant, _):
            slack = constant + sum(c * (x if s == "x" else y)[k] for (s, k), c in terms)
            # What is written is rounded: a slack of a hair may be lost.
            by = f", by {float(slack):.4g}" if slack > 0 else ", as an equality to the last digit"
            yield f"{_atom(document, part)}{by}"
        case All(parts):
            for inner in parts:
                yield from _reasons(document, inner, x, y)
        case Some(parts):
            holding = [k for k, inner in enumerate(parts) if fulfilled(inner, x, y)]
            if holding:
                said = list(_reasons(document, parts[holding[0]], x, y))
                yield f"alternative {holding[0] + 1} of {len(parts)}: {' and '.join(said)}"
