"""What a proof is made of: effort, subproblems and the way to them, records of proofs, outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qll.bounds.bounder import Start
from qll.bounds.domain import Subdomain
from qll.bounds.groups import Groups
from qll.bounds.layout import Layout
from qll.bounds.splits import InputSplit, NeuronSplit
from qll.verify.condition import Array, Tree
from qll.verify.verdict import Reason


@dataclass(frozen=True)
class Effort:
    """Dual steps in each place, measured on the corpus (bench/verify_corpus.py)."""

    quick: int = 12  # obligations at the root, before anything is tightened further
    quick_tighten: int = 6
    tighten: int = 40
    round: int = 6  # of all neurons at the root, where that is done in rounds
    root: int = 100
    strong: int = 8
    refine: int = 60
    retighten: int = 20
    retighten_depth: int = 2
    violating: int = 20  # after a round of neurons where an obligation is violated


@dataclass(eq=False)
class NeuronBound:
    """The lower bound of a pre-activation, or the upper one (as a lower bound of its negative), as
    the domain's objective."""

    neuron: int  # flat
    lower: bool
    domain: Subdomain


@dataclass(frozen=True, eq=False)
class Taken:
    """On the way to a subproblem one side of a split was taken."""

    before: PathStep | None
    split: NeuronSplit
    above: bool


@dataclass(frozen=True, eq=False)
class Tightened:
    """On the way to a subproblem bounds of neurons were proved."""

    before: PathStep | None
    bounds: tuple[NeuronBound, ...]


PathStep: TypeAlias = Taken | Tightened


@dataclass(eq=False)
class Subproblem:
    """An obligation to be refuted on a domain, and how the domain came about."""

    obligation: int
    domain: Subdomain
    last: PathStep | None = None
    depth: int = 0  # splits
    narrowed: int = -1  # how deep its neurons were last bounded where it is violated

    @property
    def bound(self) -> float:
        return self.domain.bound

    @property
    def is_empty(self) -> bool:
        return self.domain.is_empty

    def side(self, split: NeuronSplit, *, above: bool) -> Subproblem:
        return Subproblem(
            self.obligation,
            self.domain.side(split, above=above),
            Taken(self.last, split, above),
            self.depth + 1,
            self.narrowed,
        )

    @property
    def way(self) -> list[PathStep]:
        """From the root."""
        steps: list[PathStep] = []
        step = self.last
        while step is not None:
            steps.append(step)
            step = step.before
        return steps[::-1]


@dataclass(eq=False)
class NeuronProof:
    """Domains made by splits of neurons; obligations are numbered as they came to be known."""

    tree: Tree  # of what a violation needs
    layout: Layout
    groups: Groups | None
    start: Start  # what the bounds of the neurons begin with
    loose: NDArray[np.bool_]  # (neurons,) unstable by these
    # obligations that were taken apart: which waiting disjunction, and the obligations of its parts
    cases: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    # the best bounds proved at the root, by neuron and whether they are lower ones
    bounds: dict[tuple[int, bool], NeuronBound] = field(default_factory=dict)
    refuted: list[Subproblem] = field(default_factory=list)
    empty: list[Subproblem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Halves:
    """The two parts of a box, by number."""

    split: InputSplit
    below: int
    above: int


@dataclass(eq=False)
class BoxProof:
    """How a box was taken apart. Boxes are numbered from 0, the whole: ``halves`` says how one was
    split, ``closed`` the weights of each conjunction's leaves with which CROWN closes it,
    ``finished`` its ends and the proof by neurons; ``sloped`` says which conjunctions are closed as
    differences of two runs instead; ``points`` are boxes of one point, which was judged exactly."""

    halves: dict[int, Halves] = field(default_factory=dict)
    closed: dict[int, list[Array]] = field(default_factory=dict)
    finished: dict[int, tuple[Array, Array, NeuronProof]] = field(default_factory=dict)
    sloped: dict[int, NDArray[np.bool_]] = field(default_factory=dict)
    points: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class ByConstruction:
    """A proof that needs nothing but the last layer; see `qll.verify.construction`."""


@dataclass(frozen=True)
class Dropped:
    """There was a proof, but none to be written down, though it was asked for."""

    reason: str


OUTGROWN = Dropped("the proof outgrew the memory that is set aside for it")
NO_TIME = Dropped("there was no time left for a proof that the checker can follow")

Proof: TypeAlias = NeuronProof | BoxProof | ByConstruction | Dropped


@dataclass(eq=False)
class Outcome:
    """``proved``, or a ``candidate`` point that ought to violate, or neither with a reason."""

    proved: bool = False
    candidate: Array | None = None
    reason: Reason | None = None
    bound: float = -np.inf
    root: float = -np.inf  # the bound before any split
    least: float = np.inf  # bound of what was closed
    nodes: int = 0
    stage: str = "root"
    proof: Proof | None = None  # if it was to be kept


# Given starting points (n, inputs), the leaves that must all be positive, and whether linear
# programmes may be used: a point that the judge calls a violation, or None.
Search = Callable[[Array, Sequence[int], bool], Array | None]
