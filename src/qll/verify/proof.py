"""What a proof is made of: effort, the way to a node, what was found, and the outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from qll.bounds.chain import Node
from qll.verify.condition import Array, Obligation
from qll.verify.verdict import Reason


@dataclass(frozen=True)
class Effort:
    """Dual steps in each place, measured on the corpus (bench/verify_corpus.py)."""

    quick: int = 12  # obligations at the root, before anything is tightened further
    quick_tighten: int = 6
    tighten: int = 40
    root: int = 100
    strong: int = 8
    refine: int = 60
    retighten: int = 20
    retighten_depth: int = 2


@dataclass(frozen=True, eq=False)
class Trail:
    """A step on the way from the root to a node, for certificates: neuron ``neuron`` (flat) was
    split to ``sign`` at ``point`` (None: at 0), or the bounds of ``tightened`` were proved."""

    parent: Trail | None
    neuron: int = -1
    sign: int = 0
    point: float | None = None
    tightened: tuple[Node, ...] = ()


@dataclass(eq=False)
class Trace:
    """What a certificate needs besides the leaves: domains found empty, obligations, which of them
    were taken apart (waiting disjunction, labels of its parts), bounds proved at the root by layer,
    neuron and sign, and which neurons interval arithmetic leaves open."""

    known: list[Obligation] = field(default_factory=list)
    cases: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    empty: list[Node] = field(default_factory=list)
    tightened: dict[tuple[int, int, int], Node] = field(default_factory=dict)
    loose: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    boxes: Boxes | None = None


@dataclass(eq=False)
class Boxes:
    """How a box was taken apart. Boxes are numbered from 0, the whole: ``halves`` names the input
    and the two halves (the lower one first), ``closed`` the weights of each conjunction's leaves
    with which CROWN closes a box, ``finished`` its ends and the proof by neurons; ``sloped`` says
    which conjunctions are closed as differences of two runs instead."""

    halves: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    closed: dict[int, list[Array]] = field(default_factory=dict)
    finished: dict[int, tuple[Array, Array, Outcome]] = field(default_factory=dict)
    sloped: dict[int, NDArray[np.bool_]] = field(default_factory=dict)


@dataclass(frozen=True)
class ByConstruction:
    """A proof that needs nothing but the last layer; see `qll.verify.construction`."""


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
    leaves: list[Node] = field(default_factory=list)
    trace: Trace = field(default_factory=Trace)
    dropped: str = ""  # why there is no proof to be written, though it was asked for

    def drop(self) -> None:
        """Forget a proof that has grown too large; the bounds stay proved."""
        self.dropped = "the proof outgrew the memory that is set aside for it"
        self.leaves.clear()
        self.trace = Trace(self.trace.known, self.trace.cases)

    def close(self, node: Node, *, keep: bool) -> None:
        """A domain that is refuted; ``keep`` it for a certificate."""
        self.least = min(self.least, node.bound)
        if keep:
            self.leaves.append(node)


# Given starting points (n, inputs), the leaves that must all be positive, and whether linear
# programmes may be used: a point that the judge calls a violation, or None.
Search = Callable[[Array, Sequence[int], bool], Array | None]
