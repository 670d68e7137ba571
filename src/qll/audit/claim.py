"""From a certificate to what has to be proved: boxes, and for each a tree of linear atoms.

The property's text is read by `qll.formula`, so that the claim rests on the text alone, which must
be the canonical one; hashes say that the prover meant the same box and formula. A claim that holds
whatever the network computes is refused: it is vacuous.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from qll.audit.bounds import Bounder
from qll.audit.exact import affine
from qll.audit.float32 import Errors, beyond
from qll.audit.layout import Header, digest
from qll.audit.network import Array, Network, require
from qll.audit.product import moved, product
from qll.audit.round import Ball
from qll.audit.slope import Pair
from qll.formula.asked import ask
from qll.formula.hard import Affine, HardForm, Max, compares_outputs, is_usable, negated, sources
from qll.formula.question import question
from qll.formula.rewrite import Shape
from qll.formula.rounds import Round

# How the property is violated: an atom's number (it is > 0), a constant, all parts or any part.
Tree: TypeAlias = "bool | int | tuple[str, tuple[Tree, ...]]"


class Claim:
    """What the text asks at the data point: cases, each a `Goal` to be proved, and the ``whole``,
    against which a witness is replayed. Vacuous cases claim nothing."""

    def __init__(
        self, header: Header, x0: Array, network: Network, against: Network | None = None
    ) -> None:
        shape, inputs = network.input_shape, network.widths[0]
        asked = question(header.text, header.labels, Shape(network.widths[-1], shape))
        form, constraints = asked.form, asked.constraints
        formula = repr((form, constraints)).encode()
        require(header.ground == digest(formula), "another formula")
        radii = [radius for place in asked.places for each in place.radii for radius in each]
        require(min(radii, default=0.0) >= 0.0, "a radius that is negative")
        given = "y0" in sources(Max((form, *constraints)))
        single = header.arithmetic == "float32"
        require(not (given and single), "outputs at the data point, in float32")
        plain = all(place.move is None for place in asked.places)
        require(plain or not single, "the image of an affine map, in float32")
        x, outputs = x0.tolist(), network.widths[-1]
        values = {"x0": x, "y0": network.exact(x) if given else []}
        require(_exists(Max((form, *constraints)), inputs, outputs), "an entry does not exist")
        found = self.asked = ask(asked, inputs, outputs, values)
        ends = [np.array(side) for side in (found.lower, found.upper)]
        require(np.isfinite(ends[1] - ends[0]).all(), "no bounded region")
        require((ends[0] <= ends[1]).all(), "vacuous: the region is empty")
        require(against is None or found.points == 2, "a network of x2, of which nothing is said")
        alone = found.points == 1 and found.ties.is_trivial and not single
        if alone and network.logits is not None and compares_outputs(found.form):
            network = network.logits  # y[i] > y[j] iff this holds of the logits
        self.network = network
        runs, count = [network, against or network][: found.points], found.ties.count
        if found.image is not None:
            self.network = moved(runs, found.image, count)
        elif found.points > 1 or not found.ties.is_trivial:
            self.network = product(runs, found.ties.home, count)
        is_pair = found.points == 2 and found.image is None and against is None
        self.pair = Pair(network, found.ties.home) if is_pair else None
        self.integers = np.zeros(found.ties.count, bool)
        self.integers[:] = found.integers or False
        tie = header.tie_violates
        cases = found.folded(tie_violates=tie)
        reason = "vacuous: it holds in all of the region, whatever the network computes"
        require(bool(cases), reason)
        boxes = [(np.array(case.lower), np.array(case.upper)) for case in cases]
        said = digest(*(side.tobytes() for box in boxes for side in box))
        require(header.region == said, "another region")
        goals = [
            Goal(self.network, box, case.form, case.constraints, self.integers, tie, single)
            for case, box in zip(cases, boxes, strict=True)
        ]
        self.goals = [goal for goal in goals if goal.is_possible]
        for goal in self.goals:
            goal.pair, goal.ball = self.pair, None if single else _ball(found.rounds)
        require(bool(self.goals), reason)
        self.member, self.point = header.member, header.point
        self.x0, self.ends, self.tie_violates, self.single = x0, (ends[0], ends[1]), tie, single

    @cached_property
    def whole(self) -> Goal:
        """The question as it was written: nothing is folded."""
        asked = self.asked
        args = asked.form, asked.constraints, self.integers, self.tie_violates, self.single
        return Goal(self.network, self.ends, *args)

    @property
    def region(self) -> tuple[Array, Array]:
        """The box of x, then that of x2."""
        place = list(self.asked.ties.home)
        return self.ends[0][place], self.ends[1][place]

    @property
    def inhabited(self) -> bool:
        """Whether some point of the region is known: one that the certificate names, the data
        point, a corner or the middle."""
        lower, upper = self.ends
        points: list[Any] = []
        if self.member is not None:
            require(len(self.member) == lower.size, "a point of another length")
            points.append(np.array([Fraction(v) for v in self.member], dtype=object))
        points += [lower, upper, np.floor(lower + (upper - lower) / 2), lower + (upper - lower) / 2]
        if self.x0.size == lower.size:
            points.append(self.x0)
        points += [side for goal in self.goals for side in goal.box]
        return any(self._allows(point) for point in points)

    def _allows(self, point: Any) -> bool:
        """Of a point of floats, or of fractions."""
        chosen = [all(_value(c, point) <= 0 for c in choice) for choice in self.asked.choices]
        values = [Fraction(v) for v in point]
        whole = all(values[k].denominator == 1 for k in np.flatnonzero(self.integers))
        single = not self.single or all(v == Fraction(float(np.float32(v))) for v in values)
        round_ = all(ball.holds(values) for ball in self.asked.rounds)
        return whole and single and round_ and any(chosen) and self.whole.allows(point)

    def replay(self, witness: Array) -> None:
        """The points are in the region and violate the property."""
        home = list(self.asked.ties.home)
        point: Any = np.zeros(self.asked.ties.count)
        if self.point is not None:  # the witness is what is shown of it
            require(len(self.point) == point.size and not self.single, "a point of another length")
            point = np.array([Fraction(v) for v in self.point], dtype=object)
            shown = [float(v) for v in point[home]]
            require(shown == witness.tolist(), "another point than the witness")
        else:
            point[home] = witness
            require((point[home] == witness).all(), "the witness breaks an equation of the region")
        self.whole.require_inside(point)
        require(self._allows(point), "the witness breaks a constraint of the region")
        self.whole.replay(point)


def _ball(rounds: tuple[Round, ...]) -> Ball | None:
    """The first that is one of variables themselves."""
    for each in rounds:
        if each.plain is not None:
            at, centre = each.plain
            return Ball(each.kind, np.array(at), np.array(centre), each.radius)
    return None


def _exists(form: HardForm, inputs: int, outputs: int) -> bool:
    """Whether every entry that is spoken of is there."""
    if isinstance(form, Affine):
        return all(0 <= k < (inputs if s[0] == "x" else outputs) for (s, k), _ in form.terms)
    return all(_exists(part, inputs, outputs) for part in form.parts)


def _value(form: Affine, point: Any) -> Fraction:
    """Of a constraint on the inputs, in rational arithmetic."""
    parts = [c * Fraction(point[k]) for (_, k), c in form.terms]
    return sum(parts, Fraction(form.constant))


class Goal:
    """No point of the box violates ``tree`` over atoms: the outputs of ``network``, here the given
    one with the atoms as its last layer, plus ``direct`` terms of the input (``inputs``: the same
    as floats). The last ``required`` atoms are >= 0 inside the region's constraints."""

    def __init__(
        self,
        network: Network,
        box: tuple[Array, Array],
        form: HardForm,
        constraints: tuple[Affine, ...],
        integers: Array,
        tie_violates: bool,
        in_float32: bool = False,
    ) -> None:
        self.widths, self.tie_violates = network.widths, tie_violates
        self.given, self.in_float32 = network, in_float32
        self.box, self.integers = box, integers
        self.pair: Pair | None = None  # two runs of one network
        self.ball: Ball | None = None  # that cuts the box
        self.lower, self.upper = box
        self.atoms: dict[Any, int] = {}  # terms and constant to the atom's number
        self.tree, self.required = self._tree(form), len(constraints)
        numbers = [self._atom(negated(c), i) for i, c in enumerate(constraints)]
        self.is_possible = all(map(self._possible, [*numbers, self.tree]))
        self.direct = [{k: c for (s, k), c in terms if s == "x"} for terms, _, _ in self.atoms]
        self.inputs = np.zeros((len(self.atoms), self.widths[0]))  # off by at most 2^-53
        for row, own in enumerate(self.direct):
            self.inputs[row, list(own)] = [float(c) for c in own.values()]
        rows = enumerate(self.atoms)
        outputs = {(i, k): c for i, (terms, _, _) in rows for (s, k), c in terms if s == "y"}
        self.outputs = np.zeros((len(self.atoms), self.widths[-1]))  # off by at most 2^-53
        for (i, k), c in outputs.items():
            self.outputs[i, k] = float(c)
        totals = [self._total(terms, total) for terms, total, _ in self.atoms]
        last = affine(outputs, list(outputs.values()), totals)
        self.network = replace(network, maps=(*network.maps[:-1], last.after(network.maps[-1])))

    def _total(self, terms: Any, total: Fraction) -> Fraction:
        """The constant of an atom. A float32 output that is beyond a number is at least the next
        float32 number: there the atom is 0."""
        if not self.in_float32 or len(terms) != 1 or terms[0][0][0] != "y":
            return total
        c = terms[0][1]
        sign = 1 if c > 0 else -1
        return Fraction(-sign * c * beyond(-sign * total / c, reached=self.tie_violates))

    def _tree(self, form: HardForm) -> Tree:
        if isinstance(form, Affine):
            return self._atom(form)
        absorbing = isinstance(form, Max)  # a maximum is violated as soon as one part is
        name, kept = "any" if absorbing else "all", list[Tree]()
        for part in [self._tree(part) for part in form.parts]:
            if part is absorbing:
                return absorbing
            if isinstance(part, tuple) and part[0] == name:
                kept.extend(part[1])
            elif not isinstance(part, bool) and part not in kept:
                kept.append(part)
        return (name, tuple(kept)) if len(kept) > 1 else kept[0] if kept else not absorbing

    def _atom(self, atom: Any, constraint: int = -1) -> Tree:
        """Its number. An atom that is constant is decided at once, unless it is a
        ``constraint``."""
        total, terms = Fraction(atom.constant), []
        for (source, index), c in atom.terms:
            require(source in ("x", "y"), f"{source}[{index}] does not exist")
            require(is_usable(c), "a number that is too large or too small")
            terms.append(((source, index), c))
        if not terms and constraint < 0:
            return total >= 0 if self.tie_violates else total > 0
        return self.atoms.setdefault((tuple(terms), total, constraint), len(self.atoms))

    def _possible(self, tree: Tree) -> bool:
        """False if what the tree says of the inputs alone rules it out in the box."""
        if isinstance(tree, tuple):
            return (any if tree[0] == "any" else all)(self._possible(part) for part in tree[1])
        if isinstance(tree, bool):
            return tree
        terms, total, constraint = list(self.atoms)[tree]
        if any(source == "y" for (source, _), _ in terms):
            return True
        ends = [(c, self.upper[k] if c > 0 else self.lower[k]) for (_, k), c in terms]
        most = total + sum(c * Fraction(end) for c, end in ends)
        return bool(most >= 0 if self.tie_violates or constraint >= 0 else most > 0)

    def allows(self, point: Any) -> bool:
        """Whether a point is in the box and meets the constraints, in rational arithmetic."""
        inside = bool((point >= self.lower).all() and (point <= self.upper).all())
        for terms, total, _ in list(self.atoms)[len(self.atoms) - self.required :]:
            value = total + sum(c * Fraction(point[k]) for (_, k), c in terms)
            inside = inside and value >= 0
        return inside

    def require_inside(self, point: Array) -> None:
        inside = (point >= self.lower).all() and (point <= self.upper).all()
        require(bool(inside), "the witness lies outside the region")

    def replay(self, witness: Array) -> None:
        """The point violates the property: in rational arithmetic, or by ends of its atoms that
        are rounded outward where an activation has no rational values. In float32 it is a float32
        point, and every evaluation violates the property there."""
        x = witness.tolist()
        if self.in_float32:
            single = (witness.astype(np.float32) == witness).all()
            require(bool(single), "the witness is not a float32 point")
        if self.in_float32:
            outputs = self._least(Errors(self.given), witness)
        elif self.network.is_exact:
            outputs = self.network.exact(x)
        else:
            require(witness.dtype == np.float64, "fractions, where nothing is exact")
            low = Bounder(self.network).area(witness, witness).last[0]
            # What is said of inputs alone has an exact value there, whatever the network is.
            outputs = [
                Fraction(v) if any(s == "y" for (s, _), _ in terms) else total
                for v, (terms, total, _) in zip(low, self.atoms, strict=True)
            ]
        violated = self._violated(self.tree, self._atoms_at(x, outputs))
        tie = "a violation is not proved for every float32 evaluation of the witness"
        require(violated, tie if self.in_float32 else "the witness satisfies the property")

    def _atoms_at(self, x: list[Any], outputs: list[Fraction]) -> list[Fraction]:
        direct = [sum(c * Fraction(x[k]) for k, c in own.items()) for own in self.direct]
        return [a + b for a, b in zip(outputs, direct, strict=True)]

    def _violated(self, tree: Tree, values: list[Fraction]) -> bool:
        if isinstance(tree, tuple):
            parts = (self._violated(part, values) for part in tree[1])
            return any(parts) if tree[0] == "any" else all(parts)
        value = Fraction(1 if tree else -1) if isinstance(tree, bool) else values[tree]
        return value >= 0 if self.tie_violates else value > 0

    def refute(self, point: Array) -> None:
        """The point breaks a constraint of the region or satisfies the property, exactly."""
        require(self.network.is_exact, "a point at which nothing is exact")
        x = point.tolist()
        values = self._atoms_at(x, self.network.exact(x))
        inside = all(v >= 0 for v in values[len(values) - self.required :])
        require(not (inside and self._violated(self.tree, values)), "a point that violates it")

    def _least(self, errors: Errors, x: Array) -> list[Fraction]:
        """Below every atom, its terms of the input aside, at a point in any float32 evaluation: by
        the ends of the outputs, and by its radius around what it is in real numbers."""
        low, high = errors.outputs(x)
        away = errors.at(x, self.outputs)
        require(all(np.isfinite(t).all() for t in (low, high, away)), "float32 may overflow")
        real = self.given.exact(x.tolist())
        found = []
        for (terms, total, _), radius in zip(self.atoms, away.tolist(), strict=True):
            own = [(k, c) for (s, k), c in terms if s == "y"]
            one = sum(c * Fraction((low if c > 0 else high)[k]) for k, c in own)
            found.append(total + max(one, sum(c * real[k] for k, c in own) - Fraction(radius)))
        return found
