"""Ground formulas over the outputs as flat arrays, and what a logic states to be compiled.

What a logic states
-------------------
A logic's own file holds plain Python functions (no numba import; ``math`` and arithmetic only),
and the logic hands them over by its method::

    def kernel(self) -> tuple[Mapping[str, Callable[..., float]], tuple[float, ...]]:
        return {"leq": leq, "conj": conj, "disj": disj, "loss": loss, ...}, (parameters, ...)

Names: ``leq`` and ``loss`` are required; ``conj, disj, tensor, par, limp`` as far as the logic has
them (a formula that needs a missing one takes the autograd path). Everything is float64.
``params`` holds the parameters that the method returned. The arrays ``v, g, ...`` are pointers to
the first of ``n`` numbers: index them with ``v[i]``, do not slice, do not ask for their length.

    def leq(a, b, n, params, v, da, db) -> float:
        # for i in range(n): v[i] = value of (a[i] <= b[i]); da[i], db[i] = its derivatives.
        # Returns 0.0 (the result is not used). All comparisons of a formula in one call.

    def conj(v, n, hardness, params, g) -> float:
        # returns the n-ary conjunction of v[0..n) and writes g[i] = its derivative by v[i].
        # The same for disj, tensor, par; limp (n = 2, v[0] -o v[1]).
        # ``hardness`` is the node's own if annotated, otherwise NaN: the logic then takes its
        # own from ``params``. inf is the hard connective.

    def loss(value, params, g) -> float:
        # returns the loss of the root's value and writes g[0] = its derivative.

They must not raise, allocate or print; ``x / 0.0`` gives inf or NaN as in C. Where the torch
reading has a kink, any choice of one-sided derivative will do, but take the torch reading's.

How the float32 trap is avoided: values are float64; the derivatives by the two sides of one
comparison are added before anything else, so that ``y[c] <= y[c]`` contributes exactly nothing;
and the gradient over the outputs is scaled to 1 before it returns to float32, so that it does not
underflow where the formula holds by a wide margin. Signed steps do not see the scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qll.formula.hard import Affine
from qll.formula.nodes import Connective, Constant, Formula, Implies
from qll.formula.rewrite import Atom
from qll.logics.base import Logic

KINDS = ("atom", "constant", "and", "or", "tensor", "par", "limp")
NAMES = {"and": "conj", "or": "disj", "tensor": "tensor", "par": "par", "limp": "limp"}
_NODE, _CHILDREN, _COUNT, _ATOM = range(4)


@dataclass(frozen=True, eq=False)
class Tape:
    """One formula a label pattern, each a tree whose children lie one after the other, root first.

    Sources are numbered: the outputs ``y``, then the outputs ``y0`` at the region's centre.
    """

    outputs: int
    patterns: NDArray[np.int64]  # first node, nodes, first atom, atoms
    nodes: NDArray[np.int32]  # kind, first child, children, atom: all relative to the pattern
    hardness: NDArray[np.float64]  # of a connective; the value of a constant
    atoms: NDArray[np.int64]  # first term of each, and the end of the last
    offsets: NDArray[np.float64]  # constants of the left and right side
    sources: NDArray[np.int32]  # of each term
    coefficients: NDArray[np.float64]  # of each term, left and right side
    functions: NDArray[np.int64]  # addresses: leq, loss, then by kind
    params: NDArray[np.float64]
    uses_centre: bool

    def arrays(self) -> tuple[Any, ...]:
        return (
            self.patterns,
            self.nodes,
            self.hardness,
            self.atoms,
            self.offsets,
            self.sources,
            self.coefficients,
            self.functions,
            self.params,
        )

    def scratch(self) -> NDArray[np.float64]:
        """Room for one evaluation."""
        from qll.kernels.interpreter import SCRATCH_ROWS

        widest = max(2 * self.outputs, int(self.patterns[:, [1, 3]].max(initial=1)))
        return np.zeros(SCRATCH_ROWS * widest)


def compile_formulas(formulas: Sequence[Formula], logic: Logic, outputs: int) -> Tape | None:
    """The tape of ground formulas, one for each label pattern.

    None if one speaks of inputs, or needs a connective that the logic has not stated.
    """
    compiled = compiled_functions(logic)
    if compiled is None:
        return None
    functions, params = compiled
    builder = _TapeBuilder(outputs, logic)
    for formula in formulas:
        if not builder.add(logic.prepare(formula)):
            return None
    needed = {KINDS[node[_NODE]] for node in builder.nodes} - {"atom", "constant"}
    if any(functions[KINDS.index(kind)] == 0 for kind in needed):
        return None
    return Tape(
        outputs,
        np.array(builder.patterns, dtype=np.int64).reshape(-1, 4),
        np.array(builder.nodes, dtype=np.int32).reshape(-1, 4),
        np.array(builder.hardness, dtype=np.float64),
        np.array([*builder.atoms, len(builder.sources)], dtype=np.int64),
        np.array(builder.offsets, dtype=np.float64).reshape(-1, 2),
        np.array(builder.sources, dtype=np.int32),
        np.array(builder.coefficients, dtype=np.float64).reshape(-1, 2),
        functions,
        np.array([*params, 0.0], dtype=np.float64),
        builder.uses_centre,
    )


class _TapeBuilder:
    def __init__(self, outputs: int, logic: Logic) -> None:
        self.outputs = outputs
        self.constants = {"top": logic.top, "unit": logic.unit, "bottom": logic.bottom}
        self.uses_centre = False
        self.patterns: list[tuple[int, int, int, int]] = []
        self.nodes: list[tuple[int, int, int, int]] = []
        self.hardness: list[float] = []
        self.atoms: list[int] = []
        self.offsets: list[tuple[float, float]] = []
        self.sources: list[int] = []
        self.coefficients: list[tuple[float, float]] = []

    def add(self, root: Formula) -> bool:
        """Breadth first, so that the children of a node are neighbours and follow it."""
        first_node, first_atom = len(self.nodes), len(self.atoms)
        queue: list[Formula] = [root]
        for node in queue:  # grows while it is read
            kind, hardness, atom = "atom", float("nan"), -1
            parts: tuple[Formula, ...] = ()
            match node:
                case Atom(left, right):
                    atom = len(self.atoms) - first_atom
                    if not self._atom(left, right):
                        return False
                case Constant(which):
                    kind = "constant"
                    hardness = self.constants[which]
                case Connective(connective, parts, annotated):
                    kind = connective
                    hardness = hardness if annotated is None else annotated
                case Implies("linear", premise, conclusion):
                    kind, parts = "limp", (premise, conclusion)
                case _:
                    return False
            self.nodes.append((KINDS.index(kind), len(queue), len(parts), atom))
            self.hardness.append(hardness)
            queue.extend(parts)
        self.patterns.append((first_node, len(queue), first_atom, len(self.atoms) - first_atom))
        return len(queue) == 1 or not any(isinstance(node, Constant) for node in queue)

    def _atom(self, left: Affine, right: Affine) -> bool:
        sides = dict.fromkeys(slot for slot, _ in (*left.terms, *right.terms))
        of_left, of_right = dict(left.terms), dict(right.terms)
        self.atoms.append(len(self.sources))
        for source, index in sides:
            if source not in ("y", "y0"):
                return False
            self.uses_centre |= source == "y0"
            self.sources.append(index if source == "y" else self.outputs + index)
            slot = (source, index)
            self.coefficients.append((of_left.get(slot, 0.0), of_right.get(slot, 0.0)))
        self.offsets.append((left.constant, right.constant))
        return True


def compiled_functions(
    logic: Logic,
) -> tuple[NDArray[np.int64], tuple[float, ...]] | None:
    """Addresses of the logic's compiled functions (leq, loss, then by kind; 0 if it has none)."""
    stated = logic.kernel()
    if stated is None:
        return None
    functions, params = stated
    addresses = np.zeros(len(KINDS), dtype=np.int64)
    addresses[0] = _address(functions["leq"], "leq")
    addresses[1] = _address(functions["loss"], "loss")
    for kind, name in NAMES.items():
        if name in functions:
            addresses[KINDS.index(kind)] = _address(functions[name], "connective")
    return addresses, params


@lru_cache(maxsize=256)  # holds the compiled function: its address stays valid
def _compile(function: Callable[..., float], signature: str) -> Any:
    from qll.kernels.pointers import compile_function

    return compile_function(function, signature)


def _address(function: Callable[..., float], signature: str) -> int:
    return int(_compile(function, signature).address)
