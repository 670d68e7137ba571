"""Forged proofs of false claims: none is confirmed. And they are not toothless: each hole that is
cut into a copy of the checker lets some of them through."""

from __future__ import annotations

import importlib
import itertools
import os
import secrets
import sys
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audit_cases import seal
from forgeries import FAMILIES, forged_witnesses, forgeries
from forgery_claims import (
    GAPS,
    False_,
    against_claim,
    bounded_claim,
    canonical_of,
    checked,
    curved_claim,
    false_claim,
    image_claim,
    integer_claim,
    large_claim,
    pair_claim,
    plain_claim,
    rising_claim,
    round_claim,
    turning_claim,
)
from forgery_drafts import TINY, Draft
from forgery_networks import evaluate, largest, random_layers

import qll
from qll.audit import audit
from qll.audit.layout import ALWAYS, BOUND, EMPTY, SPLIT

PACKAGE = Path(qll.__file__).parent / "audit"
QUICK, ASKED = 300, os.environ.get("QLL_FORGERIES")  # make fuzz asks for new ones


REGION_CLAIMS = (
    integer_claim, pair_claim, rising_claim, image_claim, round_claim, against_claim,
)  # fmt: skip


def assert_none_confirmed(make: Any, seed: int, count: int) -> Counter[str]:
    tried: Counter[str] = Counter()
    for name, claim, data in itertools.islice(make(seed), count):
        answer = audit(data, claim.model, against=claim.against)
        assert not answer.confirmed, (name, claim.text, claim.layers, seed)
        tried[name] += 1
    return tried


def test_forged_proofs_are_not_confirmed() -> None:
    tried = assert_none_confirmed(forgeries, 0, QUICK)
    assert set(FAMILIES) <= set(tried), tried


def test_forged_witnesses_are_not_confirmed() -> None:
    assert_none_confirmed(forged_witnesses, 0, 120)


@pytest.mark.parametrize("maker", [image_claim, round_claim, against_claim])
def test_forged_proofs_about_other_regions_are_not_confirmed(maker: Any) -> None:
    def make(seed: int) -> Any:
        return forgeries(seed, make=lambda rng: checked(maker(rng)))

    assert_none_confirmed(make, 4, QUICK // 2)


@pytest.mark.slow
@pytest.mark.parametrize("maker", [image_claim, round_claim, against_claim])
def test_thousands_of_forged_proofs_about_other_regions(maker: Any) -> None:
    def make(seed: int) -> Any:
        return forgeries(seed, make=lambda rng: checked(maker(rng)))

    assert_none_confirmed(make, 5, 3000)


@pytest.mark.slow
def test_ten_thousand_forged_proofs_are_not_confirmed() -> None:
    """With ``-s`` it says how many of each kind."""
    seed, count = (1, 10_000) if ASKED is None else (secrets.randbits(31), int(ASKED))
    tried = assert_none_confirmed(forgeries, seed, count)
    tried += assert_none_confirmed(forged_witnesses, seed, count // 20)
    print(f"seed {seed}: {tried.total()}, none confirmed: {dict(tried)}")  # noqa: T201


def test_the_claims_are_false_beyond_doubt() -> None:
    """The witness is in the region, and what is said to be at most a number is more there."""
    rng = np.random.default_rng(5)
    found = [claim for claim in (false_claim(rng) for _ in range(150)) if claim is not None]
    assert len(found) > 60
    for make in REGION_CLAIMS:
        more = [claim for claim in (checked(make(rng)) for _ in range(30)) if claim is not None]
        assert len(more) > 10, make
        found += more
    assert any(claim.tie_violates for claim in found)
    for claim in found:
        ends = zip(claim.lower, claim.witness, claim.upper, strict=True)  # of the variables
        assert all(Fraction(float(a)) <= x <= Fraction(float(b)) for a, x, b in ends)
        size = len(claim.x0)
        points = [claim.entries[at : at + size] for at in range(0, len(claim.entries), size)]
        y = claim.outputs(points)
        if claim.network.is_exact:
            assert y == claim.network.exact(claim.witness)
        if all(float(x) == x for x in claim.witness):  # then the checker can say so itself
            arrays = {"x0": claim.x0, "witness": np.array([float(x) for x in claim.stored])}
            header = {**claim.header, "verdict": "falsified"}
            answer = audit(seal(header, arrays), claim.model, against=claim.against)
            assert answer.confirmed, (answer, claim.text)
    assert len(GAPS) > 5


def test_the_largest_value_is_found_by_enumeration() -> None:
    rng = np.random.default_rng(6)
    for _ in range(40):
        layers = random_layers(rng)
        layers[0] = layers[0][0][:, :1], layers[0][1]
        row = [Fraction(int(k == 0)) for k in range(len(layers[-1][1]))]
        at, value = largest(layers, row, -2.0, 1.5)
        assert -2 <= at <= Fraction(3, 2) and evaluate(layers, [at])[0] == value
        for step in range(57):
            assert evaluate(layers, [Fraction(step, 16) - 2])[0] <= value


# --- those that were confirmed once ---


def point_claim(layers: Any, body: str, at: float = 1.0, **options: Any) -> False_:
    x0 = np.full(len(layers[0][0][0]), at)
    text = canonical_of(f"box({at!r}, {at!r})", body)
    return False_(layers, text, x0, x0, x0, [Fraction(at)] * len(x0), **options)


def test_a_negative_target_stores_no_bound() -> None:
    """A bound of an input was stored as that of a hidden neuron, which then had none."""
    layers = [([[1.0, 1.0, 1.0]], [2.0]), ([[1.0], [0.0]], [0.0, 0.0])]
    x0 = np.full(3, 1.0)
    text = canonical_of("box(1, 1.3)", "y[0] <= y[1]")
    claim = False_(layers, text, x0, x0, np.full(3, 1.3), [Fraction(1)] * 3)
    for target in range(-8, 0):
        draft = Draft(claim, np.random.default_rng(0))
        draft.tighten([target])
        draft.node(EMPTY)
        answer = audit(seal(*draft.finish()), claim.model)
        assert not answer.confirmed and "targets out of range" in answer.reason


def test_groups_without_neurons_make_no_longer_sums() -> None:
    """Sixty thousand copies of an input, whose multipliers sum to 0 but not in floats."""
    claim = point_claim([([[1.0]], [0.0])] * 3, "y[0] <= 0.5")
    many = 60_000
    draft = Draft(claim, np.random.default_rng(0), scale=2.0**56, beta=0.0, alpha=np.ones(2))
    draft.groups = np.append(0, np.ones(many, int))[:, None], np.zeros((many + 1, 1), int)
    draft.delta = np.full(many, -(2.0**-56))
    draft.delta[0], draft.delta[-1] = 1.0, -1.0
    draft.node(SPLIT, 1)
    for _ in range(2):
        draft.cases(draft.root(), BOUND, splits=1, weights=1.0)
    answer = audit(seal(*draft.finish()), claim.model)
    assert not answer.confirmed and "without neurons" in answer.reason


def test_an_input_that_underflows_is_still_an_input() -> None:
    """2^-149 times 2^-1000 is 0 in floats: the combination seemed to speak of activations alone."""
    layers = [([[0.0]], [0.0]), ([[1.0]], [0.0])]
    claim = point_claim(layers, f"{2.0**-1000!r}*x[0] - y[0] <= 0")
    draft = Draft(claim, np.random.default_rng(0))
    draft.cases(draft.root(), ALWAYS, weights=TINY)
    answer = audit(seal(*draft.finish()), claim.model)
    assert not answer.confirmed and "can be positive" in answer.reason


# --- holes ---

Change = tuple[str, str, str]  # file, what stands there, what stands there instead
HOLES: dict[str, list[Change]] = {
    "negative targets": [
        ("layout.py", '"targets": Column("<u4", lambda s: s.targets(), '
         "most=lambda s: 2 * s.neurons - 1)", '"targets": Column("<i4", lambda s: s.targets())'),
    ],
    "negative weights": [
        ("layout.py", '"weights": Column("<f4", _no_limit, lambda s: 0)',
         '"weights": Column("<f4", _no_limit)'),
    ],
    "beta of the wrong sign": [
        ("layout.py", '"beta": Column("<f4", _no_limit, lambda s: 0)',
         '"beta": Column("<f4", _no_limit)'),
    ],
    "the split's other sign": [
        ("check.py", "{**domain.sign, argument: sign}", "{**domain.sign, argument: -sign}"),
    ],
    "one child of a split": [
        ("check.py", 'in ((1, {"low": on}), (-1, {"high": off})):', 'in ((1, {"low": on}),):'),
    ],
    "the other child of a split": [
        ("check.py", 'in ((1, {"low": on}), (-1, {"high": off})):', 'in ((-1, {"high": off}),):'),
    ],
    "one half of a box": [
        ("check.py", "for box in ((right, upper), (lower, left)):",
         "for box in ((right, upper),):"),
    ],
    "a part of a disjunction": [
        ("check.py", "for part in reversed(parts)]", "for part in reversed(parts[1:])]"),
    ],
    "slopes beyond 1": [
        ("layout.py", 'lambda s: {8: 255}.get(s.precision, 1),\n    ),\n    "delta"',
         'lambda s: np.inf,\n    ),\n    "delta"'),
        ("bounds.py", "np.maximum(a, 0.0) * np.clip(slope, 0, 1)", "np.maximum(a, 0.0) * slope"),
    ],
    "no slack for rounding": [
        ("bounds.py", "np.nextafter(value - (slack * (1 + g) + TINY), -np.inf)", "value"),
    ],
    "domains that are not empty": [
        ("check.py", "(area.low > area.high).any()", "(area.low > area.high - 0.5).any()"),
    ],
    "groups without neurons": [("bounds.py", "(neuron < n).any(axis=1).all()", "True")],
    "groups without some inputs": [("bounds.py", "(again[:n, :m] == whole).all()", "True")],
    "groups without some neurons": [
        ("bounds.py", "require(once.all()", "require(True"),
        ("bounds.py", "(again[:n, :m] == whole).all()", "True"),
    ],
    "an input twice in a group": [
        ("bounds.py", "require(not again.any()", "require(True"),
        ("bounds.py", "(again[:n, :m] == whole).all()", "True"),
    ],
    "ties in a combination": [("check.py", "constant <= -bool(strict)", "constant <= 0")],
    "inputs in a combination": [("check.py", "and len(network.maps) > 1 and not direct", "")],
    "positive coefficients in a combination": [
        ("check.py", "(n < 0 and k in signed)", "k in signed"),
    ],
    "activations that may be negative in a combination": [
        ("check.py", "(n < 0 and k in signed)", "n < 0"),
    ],
    "what a line leaves of a curve": [
        ("bounds.py", "return b, bent.floor(a, b, low, high)", "return b, np.zeros(1) * b"),
    ],
    "ends of a curve that turns": [
        ("curves.py", "if self.turn is not None:", "if False:"),
    ],
    "curves split at 0": [
        ("check.py", "max(on[argument], at), min(off[argument], at)",
         "max(on[argument], 0.0), min(off[argument], at)"),
    ],
    "boxes that are mixed up": [("check.py", "leaves[0][0].box is not domain.box", "False")],
    "bounds that are not proved": [
        ("check.py", "np.isfinite(bound).all() and (bound > 0).all()",
         "np.isfinite(bound).all() and (bound > 0).any()"),
    ],
    "numbers that are not finite": [
        ("layout.py", "require(inside.all(), ", "require(True, "),
        ("check.py", "np.isfinite(bound).all() and (bound > 0).all()", "not (bound <= 0).any()"),
    ],
    "bounds of neurons that are too good": [
        ("check.py", "np.maximum.at(low, at[sign > 0], bound[sign > 0])",
         "np.maximum.at(low, at, bound * sign)"),
    ],
    "copies of inputs that need not agree": [
        ("bounds.py", "tied[groups.home] = -groups.totals(tied)", "pass"),
    ],
    "a chord that is too low": [
        ("bounds.py", "np.minimum(b * -least, (below - b) * most)", "0 * b"),
    ],
    "leaves without weight": [
        ("check.py", "weight.max(initial=0.0) > 0", "True"),
        ("check.py", "(bound > 0).all()", "(bound > -1e-100).all()"),
    ],
    "a witness outside": [
        ("claim.py", 'require(bool(inside), "the witness lies outside the region")', ""),
        ("claim.py", "require(self._allows(point)", "require(True"),
    ],
    "integers that are cut": [
        ("check.py", "right[argument] = left[argument] + 1",
         "right[argument] = left[argument] + 2"),
    ],
    "halves between integers": [
        ("check.py", "if self.claim.integers[argument]:", "if True:"),
    ],
    "a box that is one point": [
        ("check.py", "require(bool(one) and self.errors is None", "require(True"),
    ],
    "a point that violates": [
        ("claim.py", "require(not (inside and self._violated(self.tree, values))", "require(True"),
    ],
    "slopes at one end": [
        ("slope.py", "for s in (least, most) for e in (low, high)]",
         "for s in (most,) for e in (high,)]"),
    ],
    "slopes of one direction": [
        ("slope.py", "for sign, some in ((1.0, last[k] > 0), (-1.0, first[k] < 0)):",
         "for sign, some in ((1.0, True),):"),
    ],
    "steps of any length with a constant": [
        ("slope.py", "not proved and strict and constant <= 0", "not proved and strict"),
    ],
    "a second point that is the first": [
        ("product.py", "home[n * inputs :]", "home"),
    ],
    "a second network that is the first": [
        ("claim.py", "[network, against or network]", "[network, network]"),
    ],
    "two networks in the wrong order": [
        ("claim.py", "[network, against or network]", "[against or network, network]"),
    ],
    "layers of another network": [
        ("product.py", "places[n]) for n, k in group]) for group in groups)",
         "places[0]) for n, k in group]) for group in groups)"),
    ],
    "slopes of two networks": [
        ("claim.py", " and found.image is None and against is None", " and found.image is None"),
    ],
    "a map without its constants": [
        ("product.py", "[form.constant for form in image]", "[0 for _ in image]"),
    ],
    "a map that is turned": [("product.py", "((row, k), c)", "((row, k), abs(c))")],
    "a ball that is too small": [
        ("claim.py", "np.array(centre), each.radius)", "np.array(centre), each.radius * 0.75)"),
    ],
    "a ball somewhere else": [("claim.py", "np.array(centre), each", "np.array(centre) + 1, each")],
    "a ball of the other norm": [
        ("round.py", 'return np.asarray(q * at + push * at * at)',
         'return np.asarray(q * at + 2 * push * at * at)'),
    ],
    "a tie that counts": [
        ("claim.py", "return value >= 0 if self.tie_violates else value > 0", "return value >= 0"),
    ],
}  # fmt: skip
# Where most of what a hole lets through is to be found, so that the search is short.
HINTS: dict[str, str] = {
    "activations that may be negative in a combination": "weights",
    "what a line leaves of a curve": "several boxes", "ends of a curve that turns": "tricked boxes",
    "curves split at 0": "one side",
    "negative targets": "wrapped targets", "negative weights": "weights",
    "beta of the wrong sign": "stable splits", "the split's other sign": "stable splits",
    "one child of a split": "one side", "the other child of a split": "one side",
    "one half of a box": "one half", "a part of a disjunction": "skipped cases",
    "slopes beyond 1": "multipliers", "domains that are not empty": "tightened",
    "groups without neurons": "lost copies", "groups without some inputs": "groups",
    "groups without some neurons": "groups", "an input twice in a group": "groups",
    "ties in a combination": "weights", "inputs in a combination": "weights",
    "positive coefficients in a combination": "weights", "boxes that are mixed up": "several boxes",
    "no slack for rounding": "several boxes", "a chord that is too low": "several boxes",
    "bounds of neurons that are too good": "tightened", "leaves without weight": "weights",
    "copies of inputs that need not agree": "random trees", "a witness outside": "witnesses",
    "a tie that counts": "witnesses", "integers that are cut": "gaps",
    "halves between integers": "gaps", "slopes at one end": "slopes",
    "a box that is one point": "points", "a point that violates": "points",
    "slopes of one direction": "slopes",
    "steps of any length with a constant": "slopes",
    "a second point that is the first": "several boxes",
    "a second network that is the first": "several boxes",
    "two networks in the wrong order": "several boxes",
    "layers of another network": "several boxes", "slopes of two networks": "slopes",
    "a map without its constants": "several boxes", "a map that is turned": "several boxes",
    "a ball that is too small": "several boxes", "a ball somewhere else": "several boxes",
    "a ball of the other norm": "several boxes",
}  # fmt: skip


MAKERS = {
    "what a line leaves of a curve": curved_claim, "curves split at 0": curved_claim,
    "ends of a curve that turns": turning_claim, "ties in a combination": bounded_claim,
    "activations that may be negative in a combination": bounded_claim,
    "integers that are cut": integer_claim, "a second point that is the first": pair_claim,
    "halves between integers": plain_claim, "slopes at one end": rising_claim,
    "slopes of one direction": pair_claim,     "steps of any length with a constant": pair_claim,
    "inputs in a combination": plain_claim, "no slack for rounding": large_claim,
    "a second network that is the first": against_claim,
    "two networks in the wrong order": against_claim, "layers of another network": against_claim,
    "slopes of two networks": against_claim,
    "slopes beyond 1": plain_claim, "a map without its constants": image_claim,
    "a map that is turned": image_claim, "a ball that is too small": round_claim,
    "a ball somewhere else": round_claim, "a ball of the other norm": round_claim,
}  # fmt: skip


@pytest.fixture
def holed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """The checker, copied, with a hole in it."""

    def build(hole: str) -> Any:
        name = f"holed_{abs(hash(hole))}"
        (tmp_path / name).mkdir()
        for path in PACKAGE.glob("*.py"):
            text = path.read_text(encoding="utf-8")
            for file, old, new in HOLES[hole]:
                if file == path.name:
                    assert text.count(old) == 1, (hole, old, "the checker has changed: cut anew")
                    text = text.replace(old, new)
            (tmp_path / name / path.name).write_text(text.replace("qll.audit", name))
        monkeypatch.syspath_prepend(tmp_path)
        module = importlib.import_module(name)
        for loaded in [m for m in sys.modules if m.startswith(name)]:
            monkeypatch.delitem(sys.modules, loaded, raising=False)
        return module.audit

    return build


@pytest.mark.parametrize("hole", HOLES)
def test_a_hole_lets_forgeries_through(hole: str, holed: Callable[[str], Any]) -> None:
    check, hint = holed(hole), HINTS.get(hole)
    make = MAKERS.get(hole, false_claim)
    found = forgeries(3, [hint] if hint else None, lambda rng: checked(make(rng)))
    if hint == "witnesses":
        found = forged_witnesses(3)
    for _, claim, data in itertools.islice(found, 3000):
        if check(data, claim.model, against=claim.against).confirmed:
            assert not audit(data, claim.model, against=claim.against).confirmed
            return
    raise AssertionError(f"no forgery makes use of it: {hole}")
