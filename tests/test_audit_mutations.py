"""Damaged certificates. Damage to the claim, the tree or the bytes must be rejected, every time.

Damage to multipliers need not be: any multipliers prove what they prove, and a checker that
recomputes bounds may find that the changed ones still suffice. Those are counted apart, and each
must still be a proof of the *original*, true claim.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from audit_cases import Certified, certified, hashes, seal

from qll.audit import audit
from qll.audit.layout import BOUND, CASE, EMPTY, MAGIC, SPLIT, TIGHTEN
from qll.formula.rewrite import Shape
from qll.networks import load

Parts = tuple[dict[str, Any], dict[str, Any]]


def restated(c: Certified, header: dict[str, Any]) -> None:
    """Hashes that fit the changed claim, so that only the proof is left to find it out."""
    epsilon = float(header["text"].split("input = ")[1].split()[0].rstrip(";"))
    lower, upper = np.clip(c.case.x0 - epsilon, 0, 1), np.clip(c.case.x0 + epsilon, 0, 1)
    labels = header["labels"] if header["labels"] is None else tuple(header["labels"])
    header.update(hashes(header["text"], labels, Shape(3, (1, 6, 6)), lower, upper))


def enlarged(c: Certified, text: str, epsilon: float) -> str:
    assert f"input = {c.epsilon!r}\n" in text
    return text.replace(f"input = {c.epsilon!r}\n", f"input = {epsilon!r}\n")


def false_claims(c: Certified, rng: Any) -> Iterator[tuple[str, Parts]]:
    """The same proof offered for something that is not true."""
    for factor in (1.0, 1.02, 1.1, 1.5, 2.5):
        header, arrays = c.parts()
        header["text"] = enlarged(c, header["text"], c.false_epsilon * factor)
        restated(c, header)
        yield "epsilon enlarged", (header, arrays)
    header, arrays = c.parts()
    header["text"] = enlarged(c, header["text"], c.false_epsilon)
    yield "epsilon enlarged, old hashes", (header, arrays)
    if c.case.label is not None:
        for label in {0, 1, 2} - {c.case.label}:
            header, arrays = c.parts()
            header["labels"] = [label]
            restated(c, header)
            yield "label changed", (header, arrays)
    for old, new in ((">=", "<="), ("y[c]", "-y[c]"), ("y[0] >=", "y[0] >= 99 +")):
        header, arrays = c.parts()
        if old in header["text"]:
            header["text"] = header["text"].replace(old, new)
            restated(c, header)
            yield "property changed", (header, arrays)
    header, arrays = c.parts()
    header["text"] = header["text"].replace("outputs 3", "outputs 4")
    yield "outputs changed", (header, arrays)
    header, arrays = c.parts()
    arrays["x0"] = c.witness.copy()
    yield "data point changed", (header, arrays)


def broken_trees(c: Certified, rng: Any) -> Iterator[tuple[str, Parts]]:
    header, arrays = c.parts()
    kinds = arrays["kinds"]
    for at in range(len(kinds)):
        header, arrays = c.parts()
        for name in ("kinds", "arguments"):
            arrays[name] = np.delete(arrays[name], at)
        yield "node dropped", (header, arrays)
        header, arrays = c.parts()
        for name in ("kinds", "arguments"):
            arrays[name] = np.insert(arrays[name], at, arrays[name][at])
        yield "node doubled", (header, arrays)
        if kinds[at] == BOUND:
            header, arrays = c.parts()
            arrays["kinds"][at] = EMPTY
            yield "leaf called empty", (header, arrays)
        if kinds[at] in (SPLIT, TIGHTEN):
            header, arrays = c.parts()
            arrays["kinds"][at] = BOUND
            yield "inner node called a leaf", (header, arrays)
        if kinds[at] == CASE:
            header, arrays = c.parts()
            arrays["arguments"][at] = 7
            yield "another disjunction", (header, arrays)
        if kinds[at] == SPLIT:
            header, arrays = c.parts()
            arrays["arguments"][at] = 10_000
            yield "split of no neuron", (header, arrays)
        if kinds[at] == TIGHTEN:
            header, arrays = c.parts()
            arrays["arguments"][at] -= 1
            yield "bound dropped", (header, arrays)
    for name in ("alpha", "delta", "delta_scale", "weights", "targets", "kinds", "x0", "beta"):
        header, arrays = c.parts()
        if arrays[name].size:
            arrays[name] = arrays[name][:-1]
            yield "array cut", (header, arrays)
        header, arrays = c.parts()
        del arrays[name]
        yield "array missing", (header, arrays)
    for at in range(min(4, arrays["weights"].size if "weights" in arrays else 0)):
        header, arrays = c.parts()
        arrays["weights"][at] *= -1
        yield "weight negated", (header, arrays)
        header, arrays = c.parts()
        arrays["weights"][at] = np.nan
        yield "weight not a number", (header, arrays)
        header, arrays = c.parts()
        arrays["weights"][at] = np.inf
        yield "weight infinite", (header, arrays)
    header, arrays = c.parts()
    arrays["weights"][:] = 0
    yield "weights 0", (header, arrays)
    header, arrays = c.parts()
    arrays["group_neurons"][0] = arrays["group_neurons"][1]
    yield "a neuron in two groups", (header, arrays)
    header, arrays = c.parts()
    arrays["group_inputs"] = np.roll(arrays["group_inputs"], 1)
    yield "groups of other inputs", (header, arrays)


def damaged_files(c: Certified, rng: Any) -> Iterator[tuple[str, bytes]]:
    for at in rng.permutation(len(c.data))[:25].tolist():
        data = bytearray(c.data)
        data[at] ^= 1 << int(rng.integers(8))
        yield "bit flipped", bytes(data)
    for length in (0, 1, 7, 8, 40, len(c.data) // 2, len(c.data) - 1):
        yield "file cut", c.data[:length]


def changed_multipliers(c: Certified, rng: Any) -> Iterator[tuple[str, Parts]]:
    header, arrays = c.parts()
    for name in ("alpha", "delta", "beta", "delta_scale"):
        size = arrays[name].size
        for at in rng.permutation(size)[:10]:
            header, changed = c.parts()
            changed[name][at] = ~changed[name][at] if name in ("alpha", "delta") else 0
            yield f"{name} changed", (header, changed)
        if size:
            header, changed = c.parts()
            changed[name][:] = rng.permutation(changed[name])
            yield f"{name} shuffled", (header, changed)
            header, changed = c.parts()
            changed[name][:] = 0
            yield f"{name} 0", (header, changed)
    for at in np.flatnonzero(arrays["kinds"] == SPLIT):
        header, changed = c.parts()
        changed["arguments"][at] = (changed["arguments"][at] + 1) % 33
        yield "split changed", (header, changed)
    for at in range(min(6, arrays["targets"].size)):
        header, changed = c.parts()
        changed["targets"][at] ^= 1
        yield "bound of the other side", (header, changed)
    header, changed = c.parts()
    for name, factor in (("delta_scale", 1e6), ("beta", 1e6), ("delta_scale", 1e30)):
        header, changed = c.parts()
        changed[name] = (changed[name] * np.float32(factor)).astype("<f4")
        yield f"{name} huge", (header, changed)


def test_five_hundred_damaged_certificates_are_all_rejected() -> None:
    rng = np.random.default_rng(0)
    rejected: Counter[str] = Counter()
    for c in certified():
        assert audit(c.data, c.case.network.source).confirmed
        for source in (false_claims, broken_trees):
            for name, (header, arrays) in source(c, rng):
                answer = audit(seal(header, arrays), c.case.network.source)
                assert not answer.confirmed, (name, c.epsilon)
                rejected[name] += 1
        for name, data in damaged_files(c, rng):
            assert not audit(data, c.case.network.source).confirmed, (name, c.epsilon)
            rejected[name] += 1
    assert sum(rejected.values()) >= 500, rejected
    assert len(rejected) >= 20, rejected


def test_changed_multipliers_prove_the_true_claim_or_nothing() -> None:
    rng = np.random.default_rng(1)
    rejected, survived = 0, 0
    for c in certified():
        original = c.parts()[0]
        for name, (header, arrays) in changed_multipliers(c, rng):
            answer = audit(seal(header, arrays), c.case.network.source)
            if answer.confirmed:
                assert header == original, name  # a true claim, proved with other numbers
                survived += 1
            else:
                rejected += 1
    assert rejected >= 50, (rejected, survived)
    assert survived > 0  # the checker recomputes; it does not compare with stored bounds


def test_another_network_is_rejected() -> None:
    cases = certified()
    count = 0
    for c in cases:
        for other in cases:
            if other.case.network.sha256 == c.case.network.sha256:
                continue
            assert not audit(c.data, other.case.network.source).confirmed
            header, arrays = c.parts()
            header["network"] = other.case.network.sha256  # the hash fits, the proof does not
            y = other.case.network.relu_form.forward(c.case.x0[None])[0]
            if c.case.label is None or int(y.argmax()) == c.case.label:
                continue  # the claim may be true of the other network as well
            assert not audit(seal(header, arrays), other.case.network.source).confirmed
            count += 1
    assert count >= 4


def test_another_normalisation_is_rejected() -> None:
    """Where it changes the class of the data point itself, so that the claim becomes false."""
    count = 0
    for c in certified():
        if c.case.label is None:
            continue
        for mean in (-20.0, -5.0, -2.0, 2.0, 5.0, 20.0):
            header, arrays = c.parts()
            header["mean"] = [mean]
            other = load(c.case.network.source, mean=np.array(mean), std=np.array(0.3))
            if int(other.relu_form.forward(c.case.x0[None])[0].argmax()) != c.case.label:
                assert not audit(seal(header, arrays), c.case.network.source).confirmed
                count += 1
    assert count >= 4


def assert_true(c: Certified, header: dict[str, Any]) -> None:
    """Another normalisation is another network, of which the claim may hold as well: the label
    stays on top at the data point and around it."""
    scales = (np.array(header[key]) for key in ("mean", "std"))
    network = load(c.case.network.source, mean=next(scales), std=next(scales))
    spread = np.random.default_rng(0).uniform(-c.epsilon, c.epsilon, (500, c.case.x0.size))
    outputs = network.relu_form.forward(np.clip(c.case.x0 + spread, 0, 1))
    assert header["verdict"] == "verified" and (outputs.argmax(axis=1) == c.case.label).all()


def test_flipped_bytes_behind_a_fresh_checksum_prove_the_same_claim_or_nothing() -> None:
    """The parser must not rely on the checksum, whose author may be the forger."""
    rng = np.random.default_rng(3)
    rejected = 0
    for c in certified():
        raw = zlib.decompress(c.data[len(MAGIC) + 32 :])
        original = c.parts()[0]
        for at in rng.permutation(len(raw))[:60].tolist():
            changed = bytearray(raw)
            changed[at] ^= 1 << int(rng.integers(8))
            body = zlib.compress(bytes(changed))
            data = MAGIC + hashlib.sha256(body).digest() + body
            answer = audit(data, c.case.network.source)
            if not answer.confirmed:
                rejected += 1
                continue
            found = Certified(c.case, c.epsilon, 0.0, None, data).parts()[0]
            # Free text (a comment, a name) may change; what is claimed may not.
            claim = ("verdict", "network", "region", "ground", "tie_violates")
            assert all(found[key] == original[key] for key in claim)
            if any(found[key] != original[key] for key in ("mean", "std")):
                assert_true(c, found)
        for _ in range(20):  # compressed bytes
            body = bytearray(c.data[len(MAGIC) + 32 :])
            body[int(rng.integers(len(body)))] ^= 1 << int(rng.integers(8))
            data = MAGIC + hashlib.sha256(body).digest() + bytes(body)
            audit(data, c.case.network.source)  # answers, whatever it says
    assert rejected >= 100
