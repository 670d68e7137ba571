"""Which laws a logic obeys, found by trying: random, tied and extreme values, no stored answers.

``features`` recomputes the paper's comparison of seven logics, ``algebra`` its table of laws. Each
outcome carries its evidence: the point at which a law failed, or how many points it held at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from qll.errors import LogicError
from qll.logics.base import LOGICS, Logic, Negation

_TOLERANCE = 1e-9
_SAMPLES = 4000
# Soft connectives at moderate hardness: the laws are stated for every hardness, and large ones
# make shadow-lifting derivatives underflow.
_SOFT = 1.0
_HARD = 1e4
COMPARED = ("goedel", "lukasiewicz", "product", "yager", "dl2", "stl", "qll")


@dataclass(frozen=True)
class Outcome:
    """``holds`` is None where the logic does not have the operation."""

    holds: bool | None
    evidence: str

    @property
    def sign(self) -> str:
        return {True: "yes", False: "no", None: "n/a"}[self.holds]


@dataclass(frozen=True)
class Row:
    name: str
    outcomes: dict[str, Outcome]


def compared_logics() -> list[Logic]:
    """The paper's seven, at a moderate hardness."""
    records = [LOGICS[name]() for name in COMPARED]
    return [r if math.isnan(r.hardness) or r.name == "yager" else r.harden(_SOFT) for r in records]


# --- values to try ---


def _points(logic: Logic, arity: int, *, extreme: bool) -> Tensor:
    """``(arity, n)``: random interior values, ties and, if asked, the ends of the domain."""
    generator = torch.Generator().manual_seed(20)
    low, high = logic.domain
    noise = torch.rand(arity, _SAMPLES, generator=generator, dtype=torch.float64)
    if math.isinf(high):
        scale = torch.tensor([0.1, 1.0, 10.0], dtype=torch.float64)
        scale = scale[torch.randint(0, 3, (1, _SAMPLES), generator=generator)]
        values = (noise * 2 - 1) * 2 * scale if math.isinf(low) else noise * 4 * scale + 1e-3
    else:
        values = low + (high - low) * (0.02 + 0.96 * noise)
    values[1:, : _SAMPLES // 10] = values[:1, : _SAMPLES // 10]  # ties
    if not extreme:
        return values
    ends = torch.tensor([low, high, logic.unit, logic.top, logic.bottom], dtype=torch.float64)
    pick = torch.randint(0, len(ends), (arity, _SAMPLES // 4), generator=generator)
    mixed = values[:, : _SAMPLES // 4].clone()
    which = torch.rand(mixed.shape, generator=generator) < 0.6
    mixed[which] = ends[pick][which]
    return torch.cat([values, mixed], 1)


def _truth(logic: Logic, value: Tensor) -> Tensor:
    """Larger is truer, whatever the logic's own direction."""
    return value * logic.direction.value


def _same(left: Tensor, right: Tensor) -> Tensor:
    scale = 1.0 + torch.minimum(left.abs(), right.abs()).nan_to_num(posinf=0.0)
    return (left == right) | ((left - right).abs() <= _TOLERANCE * scale)


def _at_most(logic: Logic, left: Tensor, right: Tensor) -> Tensor:
    """Left is at most as true as right."""
    return (_truth(logic, left) <= _truth(logic, right)) | _same(left, right)


def _everywhere(good: Tensor, points: Tensor) -> Outcome:
    if bool(good.all()):
        return Outcome(True, f"held at {good.numel():,} points")
    finite = torch.isfinite(points).all(0)
    bad = torch.nonzero(~good & finite).flatten()
    where = bad if len(bad) else torch.nonzero(~good).flatten()
    at = ", ".join(f"{float(v):.4g}" for v in points[:, where[0]])
    return Outcome(False, f"fails at ({at})")


Operation = Callable[..., Tensor]


def _conj(logic: Logic) -> Operation:
    return lambda *xs: logic.conj(torch.stack(xs))


def _disj(logic: Logic) -> Operation:
    return lambda *xs: logic.disj(torch.stack(xs))


# --- the seven features ---


def distinct_connectives(logic: Logic) -> Outcome:
    points = _points(logic, 2, extreme=False)
    apart = ~_same(logic.meet(points), logic.tensor(points))
    apart &= ~_same(logic.join(points), logic.par(points))
    if bool(apart.any()):
        at = points[:, torch.nonzero(apart).flatten()[0]]
        return Outcome(True, f"and differs from tensor at ({at[0]:.4g}, {at[1]:.4g})")
    return Outcome(False, "and equals tensor at every point")


def has_negation(logic: Logic) -> Outcome:
    if logic.negation is Negation.PUSHED_INWARD:
        return Outcome(True, "on formulas only: pushed to the comparisons")
    a, b = _points(logic, 2, extreme=False)
    low, high = torch.where(_at_most(logic, a, b), a, b), torch.where(_at_most(logic, a, b), b, a)
    swaps = _same(logic.negate(_full(logic.top)), _full(logic.bottom)).all()
    good = _at_most(logic, logic.negate(high), logic.negate(low)) & swaps
    return _everywhere(good, torch.stack([low, high]))


def has_implication(logic: Logic) -> Outcome:
    """True (at least the unit) exactly where the conclusion is at least as true as the premise."""
    points = _points(logic, 2, extreme=False)
    value = logic.implies(points[0], points[1])
    holds = _at_most(logic, _full(logic.unit).expand_as(value), value)
    return _everywhere(holds == _at_most(logic, points[0], points[1]), points)


def good_algebra(logic: Logic) -> Outcome:
    for law in (associative, commutative, monotone, neutral):
        outcome = law(logic)
        if not outcome.holds:
            return Outcome(False, f"not {law.__name__}: {outcome.evidence}")
    return Outcome(True, "associative, commutative, monotone, with neutral elements")


def shadow_lifting(logic: Logic) -> Outcome:
    points = _points(logic, 3, extreme=False)[:, _SAMPLES // 10 :]
    if math.isinf(logic.domain[1]):
        points = points.clamp(-20.0, 20.0)  # e^-40 is still a positive number
    for name, operation in (("and", logic.conj), ("or", logic.disj)):
        slopes = _gradient(operation, points) * 1.0
        if bool((slopes <= 0).any()):
            bad = int(torch.nonzero((slopes <= 0).any(0)).flatten()[0])
            worst = float(slopes[:, bad].min())
            at = ", ".join(f"{float(v):.3g}" for v in points[:, bad])
            return Outcome(False, f"a derivative of '{name}' is {worst:.3g} at ({at})")
    return Outcome(True, f"derivatives positive at {points.shape[1]:,} points")


def converges(logic: Logic) -> Outcome:
    try:
        hard = logic.harden(_HARD)
    except LogicError:
        return Outcome(False, "no family of connectives to harden")
    points = _points(logic, 3, extreme=False)
    truth = _truth(logic, points)
    worst = 0.0
    for value, limit in (
        (hard.conj(points), truth.amin(0)),
        (hard.disj(points), truth.amax(0)),
    ):
        worst = max(worst, float((_truth(logic, value) - limit).abs().max()))
    return Outcome(worst < 5e-3, f"at hardness {_HARD:g}, off by at most {worst:.2g}")


def keeps_gradients(logic: Logic) -> Outcome:
    """The loss of ``a <= b and c <= d`` has a slope wherever the quantities are finite."""
    generator = torch.Generator().manual_seed(3)
    sides = torch.randn(4, _SAMPLES, generator=generator, dtype=torch.float64) * 4

    def loss(xs: Tensor) -> Tensor:
        return logic.loss(
            logic.conj(torch.stack([logic.leq(xs[0], xs[1]), logic.leq(xs[2], xs[3])]))
        )

    size = _gradient(loss, sides).abs().sum(0)
    if bool((size == 0).any()):
        bad = sides[:, int(torch.nonzero(size == 0).flatten()[0])]
        return Outcome(
            False, f"no slope at {bad[0]:.2g} <= {bad[1]:.2g}, {bad[2]:.2g} <= {bad[3]:.2g}"
        )
    return Outcome(True, f"a slope at all {len(size):,} points")


def _gradient(operation: Operation, points: Tensor) -> Tensor:
    leaf = points.clone().requires_grad_()
    total = operation(leaf).sum()
    if not total.requires_grad:
        return torch.zeros_like(points)
    return torch.autograd.grad(total, leaf)[0]


def _full(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


# --- laws of the connectives that are trained ---


def associative(logic: Logic) -> Outcome:
    a, b, c = points = _points(logic, 3, extreme=False)
    good = torch.ones_like(a, dtype=torch.bool)
    for op in (_conj(logic), _disj(logic)):
        good &= _same(op(op(a, b), c), op(a, op(b, c)))
        good &= _same(op(op(a, b), c), op(a, b, c))
    return _everywhere(good, points)


def commutative(logic: Logic) -> Outcome:
    a, b = points = _points(logic, 2, extreme=False)
    good = _same(_conj(logic)(a, b), _conj(logic)(b, a))
    return _everywhere(good & _same(_disj(logic)(a, b), _disj(logic)(b, a)), points)


def monotone(logic: Logic) -> Outcome:
    a, b, c = points = _points(logic, 3, extreme=False)
    ordered = _at_most(logic, b, c)
    low, high = torch.where(ordered, b, c), torch.where(ordered, c, b)
    good = _at_most(logic, _conj(logic)(a, low), _conj(logic)(a, high))
    return _everywhere(good & _at_most(logic, _disj(logic)(a, low), _disj(logic)(a, high)), points)


def neutral(logic: Logic) -> Outcome:
    """Top for ``and``, bottom for ``or`` (at the infinite ends: as their limit)."""
    (a,) = points = _points(logic, 1, extreme=False)
    top, bottom = (_full(v).clamp(-1e6, 1e6).expand_as(a) for v in (logic.top, logic.bottom))
    good = _same(_conj(logic)(a, top), a) & _same(_disj(logic)(a, bottom), a)
    return _everywhere(good, points)


def idempotent(logic: Logic) -> Outcome:
    (a,) = points = _points(logic, 1, extreme=False)
    gap = torch.maximum((_conj(logic)(a, a) - a).abs(), (_disj(logic)(a, a) - a).abs())
    outcome = _everywhere(_same(gap, torch.zeros_like(gap)), points)
    if not outcome.holds and float(gap.max() - gap.min()) < 1e-6:
        return Outcome(False, f"up to a constant: {float(gap.max()):.4f}")
    return outcome


FEATURES: dict[str, Callable[[Logic], Outcome]] = {
    "distinct non-linear/linear connectives": distinct_connectives,
    "negation": has_negation,
    "implication": has_implication,
    "good algebraic properties": good_algebra,
    "shadow-lifting connectives": shadow_lifting,
    "and, or converge to min, max": converges,
    "non-vanishing gradients": keeps_gradients,
}


# --- the table of algebraic laws ---

Law = Callable[[Logic, Tensor], Tensor]


def _tensor(logic: Logic, a: Tensor, b: Tensor) -> Tensor:
    return logic.tensor(torch.stack([a, b]))


def _identity(logic: Logic, p: Tensor) -> Tensor:
    return _at_most(logic, _full(logic.unit).expand_as(p[0]), logic.implies(p[0], p[0]))


def _modus_ponens(logic: Logic, p: Tensor) -> Tensor:
    a, b, c = p[:3]
    chained = _tensor(logic, logic.implies(a, b), logic.implies(b, c))
    return _at_most(logic, chained, logic.implies(a, c))


def _contraposition(logic: Logic, p: Tensor) -> Tensor:
    a, b = p[:2]
    return _same(logic.implies(a, b), logic.implies(logic.negate(b), logic.negate(a)))


def _residuation(logic: Logic, p: Tensor) -> Tensor:
    a, b, c = p[:3]
    return _same(logic.implies(_tensor(logic, a, b), c), logic.implies(a, logic.implies(b, c)))


def _mix(logic: Logic, p: Tensor) -> Tensor:
    a, b, c, d = p
    left = _tensor(logic, logic.implies(a, b), logic.implies(c, d))
    return _at_most(logic, left, logic.implies(_tensor(logic, a, c), _tensor(logic, b, d)))


def _prelinearity(logic: Logic, p: Tensor) -> Tensor:
    a, b = p[:2]
    return _same(logic.negate(logic.implies(a, b)), logic.implies(b, a))


def _isomix(logic: Logic, p: Tensor) -> Tensor:
    unit = _full(logic.unit).expand_as(p[0])
    return _same(logic.negate(unit), unit)


def _involutivity(logic: Logic, p: Tensor) -> Tensor:
    return _same(logic.negate(logic.negate(p[0])), p[0])


def _ex_falso(logic: Logic, p: Tensor) -> Tensor:
    bottom = _full(logic.bottom).expand_as(p[0])
    return _same(logic.implies(bottom, p[0]), _full(logic.top).expand_as(p[0]))


def _disjunction_left(logic: Logic, p: Tensor) -> Tensor:
    a, b, c = p[:3]
    both = logic.meet(torch.stack([logic.implies(a, c), logic.implies(b, c)]))
    return _at_most(logic, both, logic.implies(logic.join(torch.stack([a, b])), c))


def _disjunction_right(logic: Logic, p: Tensor) -> Tensor:
    a, b, c = p[:3]
    either = logic.join(torch.stack([logic.implies(c, a), logic.implies(c, b)]))
    return _at_most(logic, either, logic.implies(c, logic.join(torch.stack([a, b]))))


def _conjunction_right(logic: Logic, p: Tensor) -> Tensor:
    a, b, c = p[:3]
    both = logic.meet(torch.stack([logic.implies(c, a), logic.implies(c, b)]))
    return _at_most(logic, both, logic.implies(c, logic.meet(torch.stack([a, b]))))


def _conjunction_left(logic: Logic, p: Tensor) -> Tensor:
    a, b, c = p[:3]
    either = logic.join(torch.stack([logic.implies(a, c), logic.implies(b, c)]))
    return _at_most(logic, either, logic.implies(logic.meet(torch.stack([a, b])), c))


def _distribution(logic: Logic, p: Tensor) -> Tensor:
    a, b, c = p[:3]
    good = _same(
        _tensor(logic, a, logic.join(torch.stack([b, c]))),
        logic.join(torch.stack([_tensor(logic, a, b), _tensor(logic, a, c)])),
    )
    return good & _same(
        _tensor(logic, a, logic.meet(torch.stack([b, c]))),
        logic.meet(torch.stack([_tensor(logic, a, b), _tensor(logic, a, c)])),
    )


ALGEBRA: dict[str, Law] = {
    "identity: unit |- a -o a": _identity,
    "modus ponens: (a -o b) tensor (b -o c) |- a -o c": _modus_ponens,
    "contraposition: a -o b = not b -o not a": _contraposition,
    "residuation: a tensor b -o c = a -o (b -o c)": _residuation,
    "mix: (a -o b) tensor (c -o d) |- a tensor c -o b tensor d": _mix,
    "prelinearity: not (a -o b) = b -o a": _prelinearity,
    "isomix: not unit = unit": _isomix,
    "involutivity: not not a = a": _involutivity,
    "bottom: bottom -o a = top": _ex_falso,
    "or, left: (a -o c) and (b -o c) |- (a or b) -o c": _disjunction_left,
    "or, right: (c -o a) or (c -o b) |- c -o (a or b)": _disjunction_right,
    "and, right: (c -o a) and (c -o b) |- c -o (a and b)": _conjunction_right,
    "and, left: (a -o c) or (b -o c) |- (a and b) -o c": _conjunction_left,
    "tensor distributes over or, and": _distribution,
}
CONNECTIVES: dict[str, Callable[[Logic], Outcome]] = {
    "and, or associative": associative,
    "and, or commutative": commutative,
    "and, or monotone": monotone,
    "top, bottom neutral": neutral,
    "and, or idempotent": idempotent,
}


def _judge(law: Law, logic: Logic) -> Outcome:
    try:
        inner = _points(logic, 4, extreme=False)
        finite = _everywhere(law(logic, inner), inner)
        if not finite.holds:
            return finite
        points = _points(logic, 4, extreme=True)
        outcome = _everywhere(law(logic, points), points)
    except LogicError:
        return Outcome(None, "the logic lacks an operation of this law")
    if outcome.holds:
        return outcome
    return Outcome(True, f"at non-extremal values; {outcome.evidence}")


def features(logics: Iterable[Logic] | None = None) -> list[Row]:
    records = list(logics or compared_logics())
    return [Row(name, {r.name: test(r) for r in records}) for name, test in FEATURES.items()]


def algebra(logics: Iterable[Logic] | None = None) -> list[Row]:
    records = list(logics or compared_logics())
    rows = [Row(name, {r.name: _judge(law, r) for r in records}) for name, law in ALGEBRA.items()]
    return rows + [Row(n, {r.name: test(r) for r in records}) for n, test in CONNECTIVES.items()]


# --- the paper's table, to compare with ---

_PAPER = {
    "distinct non-linear/linear connectives": "goedel- lukasiewicz+ product+ yager+ dl2- stl- qll+",
    "negation": "goedel+ lukasiewicz+ product+ yager+ dl2+ stl+ qll+",
    "implication": "goedel+ lukasiewicz+ product+ yager+ dl2- stl+ qll+",
    "good algebraic properties": "goedel+ lukasiewicz+ product+ yager+ dl2- stl- qll+",
    "shadow-lifting connectives": "goedel- lukasiewicz- product+ yager- dl2+ stl+ qll+",
    "and, or converge to min, max": "goedel- lukasiewicz- product- yager+ dl2- stl+ qll+",
    "non-vanishing gradients": "goedel- lukasiewicz- product- yager- dl2- stl+ qll+",
}
# Why a computed entry may differ; shown only where it does.
_REASONS = {
    ("implication", "dl2"): "the truncated difference, which the paper uses for DL2's comparisons, "
    "is the residual of its sum, so we count it as an implication; the paper lists none",
    ("shadow-lifting connectives", "stl"): "the derivatives are positive where all operands are "
    "equal, which is Varnai and Dimarogonas' definition, but not at every point, which is what the "
    "paper proves for QLL: STL is not monotone",
}
SLIPS = (
    "bottom: the paper prints 'bottom -o a = +inf'; its definition a* +* b gives top (-inf) for "
    "every a, and that is what is computed",
    "prelinearity: an equality at finite values; at a = b = +-inf it holds as >=, not as the "
    "printed <=",
    "Yager: the disjunction is min((a^r + b^r)^(1/r), 1), the root is missing in print; the "
    "printed negation simplifies to (1 - a^r)^(1/r), the Yager complement, which is taken",
    "DL2: the rows of and, or mean phi and psi",
)


@dataclass(frozen=True)
class Difference:
    feature: str
    logic: str
    paper: bool
    computed: Outcome
    reason: str


def differences(rows: Iterable[Row]) -> list[Difference]:
    found = []
    for row in rows:
        for entry in _PAPER[row.name].split():
            name, printed = entry[:-1], entry[-1] == "+"
            outcome = row.outcomes[name]
            if outcome.holds != printed:
                reason = _REASONS.get((row.name, name), outcome.evidence)
                found.append(Difference(row.name, name, printed, outcome, reason))
    return found
