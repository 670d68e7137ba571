"""From a certificate to what has to be proved: a box, and a tree of linear atoms.

The property's text is read by `qll.formula`, so that the claim rests on the text alone, which must
be the canonical one; hashes say that the prover meant the same box and formula. A claim that holds
whatever the network computes is refused: it is vacuous.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from qll.audit.bounds import Bounder
from qll.audit.exact import affine
from qll.audit.float32 import Errors, beyond
from qll.audit.layout import Header, digest
from qll.audit.network import Array, Network, require
from qll.formula.hard import Affine, HardForm, Max, is_usable, negated, sources
from qll.formula.question import question
from qll.formula.rewrite import Shape

# How the property is violated: an atom's number (it is > 0), a constant, all parts or any part.
Tree: TypeAlias = "bool | int | tuple[str, tuple[Tree, ...]]"


class Claim:
    """No point of the box violates ``tree`` over atoms: the outputs of ``network``, here the given
    one with the atoms as its last layer, plus ``direct`` terms of the input (``inputs``: the same
    as floats). The last ``required`` atoms are >= 0 inside the region's constraints."""

    def __init__(self, header: Header, x0: Array, network: Network) -> None:
        self.widths, self.tie_violates = network.widths, header.tie_violates
        self.given, self.in_float32 = network, header.arithmetic == "float32"
        asked = question(header.text, header.labels, Shape(self.widths[-1], network.input_shape))
        self.lower, self.upper = np.full_like(x0, -np.inf), np.full_like(x0, np.inf)
        ends = [(x0 - radius, x0 + radius) for radius in asked.radii]
        for low, high in ends + [(np.array(low), np.array(high)) for low, high in asked.boxes]:
            require({low.size, high.size} <= {1, x0.size}, "a region that does not fit")
            self.lower, self.upper = np.maximum(self.lower, low), np.minimum(self.upper, high)
        require(min(asked.radii, default=0.0) >= 0.0, "a radius that is negative")
        require(np.isfinite(self.upper - self.lower).all(), "no bounded region")
        require((self.lower <= self.upper).all(), "vacuous: the region is empty")
        region = self.lower.tobytes() + self.upper.tobytes()
        require(header.region == digest(region), "another region")
        form, constraints = asked.form, asked.constraints
        formula = repr((form, constraints)).encode()
        require(header.ground == digest(formula), "another formula")
        given = "y0" in sources(Max((form, *constraints)))
        require(not (given and self.in_float32), "outputs at the data point, in float32")
        self.points = {"x0": x0.tolist(), "y0": network.exact(x0.tolist()) if given else []}
        self.atoms: dict[Any, int] = {}  # terms and constant to the atom's number
        self.tree, self.required = self._tree(form), len(constraints)
        for i, constraint in enumerate(constraints):
            number = self._atom(negated(constraint), i)
            require(self._possible(number), "vacuous: no point meets a constraint of the region")
        reason = "vacuous: it holds in all of the region, whatever the network computes"
        require(self._possible(self.tree), reason)
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
        """Its number, with x0 and y0, the network's outputs there, as exact constants. An atom that
        is constant is decided at once, unless it is a ``constraint``."""
        total, terms = Fraction(atom.constant), []
        for (source, index), c in atom.terms:
            size = {"y": self.widths[-1], "x": self.widths[0]}.get(source, 0)
            exists = 0 <= index < (size or len(self.points.get(source, ())))
            require(exists, f"{source}[{index}] does not exist")
            if size:
                require(is_usable(c), "a number that is too large or too small")
                terms.append(((source, index), c))
            else:
                total += c * Fraction(self.points[source][index])
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

    @property
    def inhabited(self) -> bool:
        """Whether some point of the region is known: the data point, a corner or the middle."""
        middle = self.lower + (self.upper - self.lower) / 2
        points = np.array(self.points["x0"]), self.lower, self.upper, middle
        return any(self._allows(point) for point in points)

    def _allows(self, point: Array) -> bool:
        """Whether a point is in the region, in rational arithmetic."""
        inside = bool((point >= self.lower).all() and (point <= self.upper).all())
        for terms, total, _ in list(self.atoms)[len(self.atoms) - self.required :]:
            value = total + sum(c * Fraction(point[k]) for (_, k), c in terms)
            inside = inside and value >= 0
        return inside

    def replay(self, witness: Array) -> None:
        """The point is in the region and violates the property: in rational arithmetic, or by ends
        of its atoms that are rounded outward where an activation has no rational values. In float32
        it is a float32 point, and every evaluation violates the property there."""
        inside = (witness >= self.lower).all() and (witness <= self.upper).all()
        require(inside, "the witness lies outside the region")
        require(self._allows(witness), "the witness breaks a constraint of the region")
        x = witness.tolist()
        single = (witness.astype(np.float32) == witness).all()
        require(single or not self.in_float32, "the witness is not a float32 point")
        direct = [sum(c * Fraction(x[k]) for k, c in own.items()) for own in self.direct]
        if self.in_float32:
            outputs = self._least(*Errors(self.given).outputs(witness))
        elif self.network.is_exact:
            outputs = self.network.exact(x)
        else:
            outputs = [Fraction(v) for v in Bounder(self.network).area(witness, witness).last[0]]
        values = [a + b for a, b in zip(outputs, direct, strict=True)]

        def violated(tree: Tree) -> bool:
            if isinstance(tree, tuple):
                return (any if tree[0] == "any" else all)(violated(part) for part in tree[1])
            value = Fraction(1 if tree else -1) if isinstance(tree, bool) else values[tree]
            return value >= 0 if self.tie_violates else value > 0

        require(violated(self.tree), "the witness satisfies the property")

    def _least(self, low: Array, high: Array) -> list[Fraction]:
        """The least value of each atom, its terms of the input aside, for outputs between ends."""
        require(np.isfinite(low).all() and np.isfinite(high).all(), "float32 may overflow")
        return [
            total
            + sum(c * Fraction((low if c > 0 else high)[k]) for (s, k), c in terms if s == "y")
            for terms, total, _ in self.atoms
        ]
