"""A query: does the condition hold at every point of a box (cut by linear constraints)?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from qll.errors import InputError
from qll.formula.hard import Affine, HardForm, affine, negated
from qll.formula.normal import Folded, cases, demands, fold, is_axis
from qll.formula.rounds import Round
from qll.networks.relu_form import ReluForm
from qll.verify.arithmetic import check_arithmetic, float32_of, inside, on_grid, radii
from qll.verify.condition import Array, Condition, assume, both, compile_condition, unusable
from qll.verify.drawn import Drawn, Flat
from qll.verify.member import Member, find_member, least_of, settle

TIE = 1e-9  # what floats make of 0, of numbers about 1


class VerifiableNetwork(Protocol):
    """What a query needs of a network (see `qll.networks`)."""

    @property
    def relu_form(self) -> ReluForm: ...

    def enclose(self, x: Any) -> Any: ...

    def evaluate_exact(self, x: Any) -> Any: ...

    def runtime(self, batch: Any) -> Any: ...


@dataclass(frozen=True, eq=False)
class Query:
    """``falsified`` iff some ``x`` with ``lower <= x <= upper``, every constraint <= 0 and whole
    numbers where ``integers`` says so gives the condition a value > 0 (>= 0 where
    ``tie_violates``). The box is exact: its float64 ends are the region, however they were
    computed; what the constraints and premises of the condition say of single inputs is folded
    into it (`qll.formula.normal`), so that it holds every violation, and no more is searched.
    ``arithmetic`` says in which numbers the network computes (`qll.verify.arithmetic`); None is
    real, but a witness must violate at run time as well."""

    network: VerifiableNetwork
    lower: Array  # (input size,)
    upper: Array
    condition: HardForm
    constraints: tuple[Affine, ...] = ()  # over ("x", k) only; satisfied iff <= 0
    tie_violates: bool = False
    name: str = ""
    arithmetic: str | None = None
    error: Array | None = None  # radii of the leaves on this box, where better ones are known
    integers: NDArray[np.bool_] | None = None  # (input size,) inputs that are whole numbers
    # constraints more, of each choice of values that an input may have; one of them holds
    choices: tuple[tuple[Affine, ...], ...] = ((),)
    rounds: tuple[Round, ...] = ()  # balls in the norms l1 and l2
    _folded: Folded = field(init=False, repr=False)
    _inner: tuple[Array, Array] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        size = self.form.input_size
        for side in ("lower", "upper"):
            values = np.ascontiguousarray(getattr(self, side), dtype=np.float64).reshape(-1)
            if values.shape != (size,):
                raise InputError(
                    f"the region's {side} end does not fit the network",
                    expected=f"{size} numbers, one per input",
                    found=f"{values.size}",
                    fix="give a region of the network's input shape",
                )
            if not np.isfinite(values).all():
                raise InputError(
                    f"the region's {side} end is not finite",
                    expected="a bounded region",
                    found=f"{values[~np.isfinite(values)][0]}",
                    fix="bound every input, for example by the range of the data",
                )
            object.__setattr__(self, side, values)
        if (self.lower > self.upper).any():
            k = int(np.flatnonzero(self.lower > self.upper)[0])
            raise InputError(
                f"the region is empty at input {k}",
                expected="lower <= upper",
                found=f"lower {self.lower[k]}, upper {self.upper[k]}",
                fix="check the sign of epsilon and the range of the data",
            )
        _ = self.compiled  # so that a bad condition is named before any work
        self._fold()
        for layer in self.form.layers:
            finite = np.isfinite(layer.bias).all() and all(
                np.isfinite(w if isinstance(w, np.ndarray) else w.data).all()
                for _, w in layer.terms
            )
            if not finite:
                raise InputError(
                    "the network has a weight that is not finite",
                    expected="finite weights",
                    found="NaN or infinity",
                    fix="train or export the network again",
                )
        check_arithmetic(self.arithmetic)
        if self.in_float32:
            float32_of(self.network)

    def _fold(self) -> None:
        """The box as tight as the constraints and premises make it."""
        self._check_constraints()
        whole = None if self.integers is None else self.integers.tolist()
        # Thousands of pixels are not gone through one by one where nothing is said of them.
        said = self.constraints or whole or any(map(is_axis, demands(self.condition)))
        lower, upper = (self.lower.tolist(), self.upper.tolist()) if said else ([], [])
        found = fold(
            lower, upper, self.condition, self.constraints, whole, tie_violates=self.tie_violates
        )
        least, most = self.lower, self.upper
        if said and not found.is_empty:
            least, most = np.array(found.least), np.array(found.most)
            object.__setattr__(self, "lower", np.array(found.lower))
            object.__setattr__(self, "upper", np.array(found.upper))
        object.__setattr__(self, "_folded", found)
        object.__setattr__(self, "_inner", (least, most))

    @property
    def in_float32(self) -> bool:
        return self.arithmetic == "float32"

    @cached_property
    def judged(self) -> Condition:
        """The condition as a proof about real outputs needs it: in float32, on the numbers that
        there are, and `radii` added."""
        if not self.in_float32:
            return self.reduced
        exact = tuple(on_grid(e, tie_violates=self.tie_violates) for e in self.reduced.exact)
        constant = np.array([leaf.floats[1] for leaf in exact])
        return replace(self.reduced, constant=constant, exact=exact)

    @cached_property
    def radii(self) -> Array:
        """Of the leaves of `search` on the box: how far float32 may move them."""
        if self.error is not None:
            return self.error
        found = radii(self.network, self.lower, self.upper, self.reduced.outputs)
        return np.concatenate([found, np.zeros(len(self._folded.constraints))])

    def _check_constraints(self) -> None:
        for constraint in self.constraints:
            if not constraint.is_usable:
                raise unusable(constraint)
            for (source, index), _ in constraint.terms:
                if source != "x" or not 0 <= index < self.form.input_size:
                    raise InputError(
                        f"a constraint of the region speaks of {source}[{index}]",
                        expected=f"inputs x[0] to x[{self.form.input_size - 1}]",
                        found=f"{source}[{index}]",
                        fix="keep constraints on outputs in the property",
                    )

    @property
    def form(self) -> ReluForm:
        return self.network.relu_form

    @cached_property
    def compiled(self) -> Condition:
        """What a point is judged by."""
        return self._compile(self.condition)

    @property
    def folded(self) -> HardForm:
        """What is left of the condition in the folded box."""
        return self._folded.form

    @cached_property
    def reduced(self) -> Condition:
        folded = self.folded
        return self.compiled if folded is self.condition else self._compile(folded)

    def _compile(self, form: HardForm) -> Condition:
        return compile_condition(
            form,
            output_size=self.form.output_size,
            input_size=self.form.input_size,
            tie_violates=self.tie_violates,
        )

    @cached_property
    def region_rows(self) -> tuple[Array, Array]:
        """The constraints that the box does not say, as ``rows @ x + constant <= 0``."""
        kept = self._folded.constraints
        rows = np.zeros((len(kept), self.form.input_size))
        constant = np.zeros(len(kept))
        for r, constraint in enumerate(kept):
            terms, constant[r] = constraint.floats
            for (_, index), coefficient in terms:
                rows[r, index] = coefficient
        return rows, constant

    @cached_property
    def search(self) -> Condition:
        """What a search maximises and a proof bounds: the condition, and every constraint of the
        region as one more function that has to be >= 0. In float32 no less than what any evaluation
        gives: `judged` and the radii of the whole box."""
        if not self.in_float32:
            return self._with_region(self.reduced)
        found = self._with_region(self.judged)
        moved = np.nextafter(found.constant + self.radii, np.inf)
        return replace(found, constant=np.where(np.isnan(moved), np.inf, moved))

    @cached_property
    def hunted(self) -> Condition:
        """What an attack maximises: positive where a violation counts, in float32 in every
        evaluation."""
        found = self.search
        if self.in_float32:
            found = self.exact_search
            found = replace(found, constant=np.nan_to_num(found.constant - self.radii))
        if not self.equations:
            return found
        # What a search solves all the time is met there, however it is rounded.
        constant, reach = found.constant.copy(), np.maximum(np.abs(self.lower), np.abs(self.upper))
        for row, kept in enumerate(self._folded.constraints, start=self.reduced.leaves):
            if kept in self.equations and found.inputs is not None:
                constant[row] += 1.0 + np.abs(found.inputs[row]) @ reach + abs(constant[row])
        return replace(found, constant=constant)

    def is_near(self, value: float) -> bool:
        """Whether a point with this value of `hunted` is worth a judgement: in float32 some that
        no real number shows to be violations are."""
        if not self.in_float32:
            # On a constraint a point is in the region, though no function of it is positive there.
            tie = bool(self._folded.constraints) and value >= -TIE
            # Points are moved onto equations, and settled by `settled`.
            wanted = self.hunted if self.equations else self.search
            return tie or wanted.is_violated(value)
        if self.equations:
            return self.hunted.is_violated(value)
        return self.search.is_violated(value + 2 * float(self.radii.max(initial=0.0)))

    @cached_property
    def exact_search(self) -> Condition:
        """`search` without the radii, which differ from box to box."""
        return self._with_region(self.judged)

    def _with_region(self, inner: Condition) -> Condition:
        rows, constant = self.region_rows
        if not len(rows):
            return inner
        inputs = np.zeros((inner.leaves, rows.shape[1])) if inner.inputs is None else inner.inputs
        outputs = np.vstack([inner.outputs, np.zeros((len(rows), inner.outputs.shape[1]))])
        extra = tuple(range(inner.leaves, inner.leaves + len(rows)))
        tree = inner.tree if isinstance(inner.tree, bool) else both((inner.tree, *extra))
        return Condition(
            outputs,
            np.vstack([inputs, -rows]),
            np.concatenate([inner.constant, -constant]),
            tree,
            inner.tie_violates,
            (*inner.exact, *(negated(c) for c in self._folded.constraints)),  # type: ignore[arg-type]
        )

    @cached_property
    def vacuous(self) -> bool:
        """Nothing of the region can violate the condition, whatever the network computes: the data
        point's labels or coordinates make the premise false, or the region is empty. Exact."""
        if self.plainly_vacuous:
            return True
        several = len(self._folded.constraints) > 1  # one alone was just looked at
        return several and self.member.empty

    @cached_property
    def plainly_vacuous(self) -> bool:
        """So that every constraint and every comparison alone shows it: the checker looks no
        further, and asks for a proof of any other case."""
        if self._folded.is_empty:
            return True
        kept = self._folded.constraints
        if any(self._least(constraint) > 0 for constraint in kept):
            return True
        known: dict[int, bool] = {}
        for leaf, form in enumerate(self.reduced.exact):
            if all(source == "x" for (source, _), _ in form.terms):
                most = -self._least(affine([(s, -c) for s, c in form.terms], -form.constant))
                if not (most >= 0 if self.tie_violates else most > 0):
                    known[leaf] = False
        return assume(self.reduced.tree, known) is False

    def _least(self, form: Affine) -> Fraction:
        """The exact minimum of a function of the input over the box."""
        terms = {k: c for (_, k), c in form.terms}
        return least_of(terms, Fraction(form.constant), self.lower, self.upper)

    @cached_property
    def member(self) -> Member:
        """A point of the region, or that there is none (`qll.verify.member`)."""
        return find_member(self)

    def clip(self, points: Array) -> Array:
        """Points of the box in which a violation may be: beyond a premise, in balls, and whole
        numbers."""
        if self._flat is not None:
            points = self._flat.drawn_in(points, *self._inner)
        for ball in self._balls:
            points = ball.drawn_in(points)
        if self.integers is not None:
            points = np.where(self.integers, np.rint(points), points)
        if self.in_float32:
            return inside(points, *self._inner)
        return np.clip(points, *self._inner)

    @property
    def ball(self) -> tuple[str, list[int], list[float], float] | None:
        """Of which bounds make use: the norm, the variables in it, its centre and radius."""
        for each in self.rounds:
            if each.plain is not None and not self.in_float32:
                return each.kind, *each.plain, each.radius
        return None

    @cached_property
    def _flat(self) -> Flat | None:
        """The equations that a search has to solve; whole numbers are found otherwise."""
        if not self.equations or self.integers is not None or self.in_float32:
            return None
        return Flat.of(self.equations, self.lower.size)

    @cached_property
    def _balls(self) -> tuple[Drawn, ...]:
        return tuple(Drawn.of(ball, self.lower.size) for ball in self.rounds)

    @cached_property
    def equations(self) -> tuple[Affine, ...]:
        """Constraints of which the opposite is one too, unless the box says it: there a float is
        all that an input can be."""
        said = set(self.constraints)
        return tuple(c for c in self.constraints if negated(c) in said and not self._fixes(c))

    def _fixes(self, constraint: Affine) -> bool:
        if not is_axis(constraint):
            return False
        ((_, k), _) = constraint.terms[0]
        return bool(self.lower[k] == self.upper[k])

    def settled(self, x: Array) -> tuple[Fraction, ...] | None:
        """A point of the region next to ``x``, where it has equations: floats may not solve them.
        In float32 there are none but floats."""
        if not self.equations or self.in_float32 or not np.isfinite(x).all():
            return None
        point = settle(self, x, self.equations)
        if point is None or not any(_met(more, point) for more in self.choices):
            return None
        return point if all(ball.holds(point) for ball in self.rounds) else None

    @cached_property
    def cases(self) -> tuple[Query, ...]:
        """Queries of which one is falsified iff this one is: each with the premises on inputs of
        one disjunct folded into its box. Those without a violation are left out."""
        forms = cases(self.condition)
        if len(forms) == len(self.choices) == 1 and not self.choices[0]:
            return () if self._folded.is_empty else (self,)
        parts = [
            replace(self, condition=form, constraints=(*self.constraints, *more), choices=((),))
            for more in self.choices
            for form in forms
        ]
        return tuple(part for part in parts if not part._folded.is_empty)

    def contains(self, x: Sequence[float] | Array) -> bool:
        """Exact: comparisons of floats for the box, rational arithmetic for the constraints."""
        point = np.asarray(x, dtype=np.float64)
        if point.shape != self.lower.shape or not np.isfinite(point).all():
            return False
        if (point < self.lower).any() or (point > self.upper).any():
            return False
        if self.in_float32 and (point.astype(np.float32) != point).any():
            return False
        if self.integers is not None and (point != np.rint(point))[self.integers].any():
            return False
        met = _met(self.constraints, point) and any(_met(more, point) for more in self.choices)
        return met and all(ball.holds(point.tolist()) for ball in self.rounds)


def _met(constraints: Sequence[Affine], point: Sequence[Any] | Array) -> bool:
    return all(
        sum(
            (c * Fraction(point[k]) for (_, k), c in constraint.terms),
            Fraction(constraint.constant),
        )
        <= 0
        for constraint in constraints
    )
