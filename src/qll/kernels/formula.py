"""Ground formulas over the outputs as flat arrays, and what a logic states to be compiled.

What a logic states
-------------------
A logic's own file holds plain numpy functions, and the logic hands them over by its method::

    def kernel(self) -> tuple[Mapping[str, Callable[..., None]], tuple[float, ...]]:
        return {"leq": leq, "conj": conj, "disj": disj, "loss": loss, ...}, (parameters, ...)

Names: ``leq`` and ``loss`` are required; ``conj, disj, tensor, par, limp`` as far as the logic has
them (a formula that needs a missing one takes the autograd path). Everything is float64. A row
such as ``v[i]`` is the i-th operand of several samples at once: an array for numpy, a vector of
lanes when compiled. ``params`` holds the parameters that the method returned.

    def leq(a, b, n, params, v, da, db):
        # for i in range(n): v[i] = value of (a[i] <= b[i]); da[i], db[i] = its derivatives

    def conj(v, n, hardness, params, out, g):
        # out[0] = the n-ary conjunction of v[0..n), g[i] = its derivative by v[i]; n >= 1.
        # The same for disj, tensor, par; limp (n = 2, v[0] -o v[1]).
        # ``hardness`` is the node's own if annotated, otherwise NaN: the logic then takes its
        # own from ``params``. inf is the hard connective.

    def loss(v, params, out, g):
        # out[0] = the loss of the root's value v[0], g[0] = its derivative

Allowed on rows: ``+ - * /``, comparisons, ``& |``, and of numpy ``exp, log, maximum, minimum,
where, abs``; scalars mix in. Loops over ``range(n)`` and branches on ``n``, ``hardness`` or
``params`` (plain scalars) are fine; a branch on a row is not: use ``np.where``. No slices, no
allocation. Where the torch reading has a kink, take its choice of one-sided derivative.

How the float32 trap is avoided: values are float64; the derivatives by the two sides of one
comparison are added before anything else, so that ``y[c] <= y[c]`` contributes exactly nothing;
and the gradient over the outputs is scaled to 1 before it returns to float32, so that it does not
underflow where the formula holds by a wide margin. Signed steps do not see the scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qll.formula.ground import Atom
from qll.formula.hard import Affine
from qll.formula.nodes import Connective, Constant, Formula, Implies
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
    patterns: NDArray[np.int64]  # first node, nodes, first atom, atoms, structure
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

    def room(self, lanes: int) -> tuple[Any, ...]:
        """What the interpreter needs for so many lanes: scratch, passes and their tables."""
        from qll.kernels.interpreter import PASS_FIELDS, SECTIONS
        from qll.kernels.lanes import WIDTH

        nodes, atoms = (int(self.patterns[:, field].max(initial=1)) for field in (1, 3))
        ends = self.atoms[self.patterns[:, 2] + self.patterns[:, 3]]
        terms = int((ends - self.atoms[self.patterns[:, 2]]).max(initial=1))
        structures = len(set(self.patterns[:, 4].tolist()))
        passes = -(-lanes // WIDTH) * min(WIDTH, structures)
        return (
            np.zeros(SECTIONS * max(2 * self.outputs, nodes, atoms) * WIDTH),
            np.zeros((passes, PASS_FIELDS), dtype=np.int64),
            np.zeros(passes * terms * WIDTH, dtype=np.int32),
            np.zeros(2 * passes * terms * WIDTH),
            np.zeros(2 * passes * atoms * WIDTH),
            np.array([terms * WIDTH, atoms * WIDTH]),
        )


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
    firsts, sources, coefficients = builder.padded_terms()
    return Tape(
        outputs,
        np.array(builder.patterns, dtype=np.int64).reshape(-1, 5),
        np.array(builder.nodes, dtype=np.int32).reshape(-1, 4),
        np.array(builder.hardness, dtype=np.float64),
        np.array(firsts, dtype=np.int64),
        np.array(builder.offsets, dtype=np.float64).reshape(-1, 2),
        np.array(sources, dtype=np.int32),
        np.array(coefficients, dtype=np.float64).reshape(-1, 2),
        functions,
        np.array([*params, 0.0], dtype=np.float64),
        builder.uses_centre,
    )


# One term of an atom: the source, and its coefficients on the left and on the right.
Term = tuple[int, float, float]


class _TapeBuilder:
    def __init__(self, outputs: int, logic: Logic) -> None:
        self.outputs = outputs
        self.constants = {"top": logic.top, "unit": logic.unit, "bottom": logic.bottom}
        self.uses_centre = False
        self.patterns: list[tuple[int, int, int, int, int]] = []
        self.structures: dict[str, int] = {}
        self.nodes: list[tuple[int, int, int, int]] = []
        self.hardness: list[float] = []
        self.atoms: list[list[Term]] = []
        self.offsets: list[tuple[float, float]] = []

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
        # Kinds, children and hardness; as text, two NaN are the same.
        tree = repr((self.nodes[first_node:], self.hardness[first_node:]))
        structure = self.structures.setdefault(tree, len(self.structures))
        atoms = len(self.atoms) - first_atom
        self.patterns.append((first_node, len(queue), first_atom, atoms, structure))
        return len(queue) == 1 or not any(isinstance(node, Constant) for node in queue)

    def _atom(self, left: Affine, right: Affine) -> bool:
        of_left, of_right = dict(left.floats[0]), dict(right.floats[0])
        terms: list[Term] = []
        for slot in dict.fromkeys([*of_left, *of_right]):
            source, index = slot
            if source not in ("y", "y0"):
                return False
            self.uses_centre |= source == "y0"
            number = index if source == "y" else self.outputs + index
            terms.append((number, of_left.get(slot, 0.0), of_right.get(slot, 0.0)))
        self.atoms.append(terms)
        self.offsets.append((left.floats[1], right.floats[1]))
        return True

    def padded_terms(self) -> tuple[list[int], list[int], list[tuple[float, float]]]:
        """First term of each atom (and the end), sources and coefficients of all terms.

        Patterns of one structure get equally many terms atom by atom, so that their samples go
        together: ``y[c] <= y[c]`` has one term fewer than ``y[i] <= y[c]``. What is added has
        coefficient 0 and a source that the atom already has.
        """
        widths: dict[tuple[int, int], int] = {}
        for _, _, first, count, structure in self.patterns:
            for a in range(count):
                key = (structure, a)
                widths[key] = max(widths.get(key, 0), len(self.atoms[first + a]))
        firsts, sources, coefficients = [0], [], []
        for _, _, first, count, structure in self.patterns:
            for a in range(count):
                terms = self.atoms[first + a]
                spare = terms[0][0] if terms else 0
                missing = widths[structure, a] - len(terms)
                for source, on_left, on_right in [*terms, *[(spare, 0.0, 0.0)] * missing]:
                    sources.append(source)
                    coefficients.append((on_left, on_right))
                firsts.append(len(sources))
        return firsts, sources, coefficients


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


@cache  # holds the compiled function: its address stays valid
def _compile(function: Callable[..., None], signature: str) -> Any:
    from qll.kernels.pointers import compile_function

    return compile_function(function, signature)


def _address(function: Callable[..., None], signature: str) -> int:
    return int(_compile(function, signature).address)


def run_formulas(
    tape: Tape, patterns: NDArray[np.int64], y: NDArray[np.float32]
) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Losses and gradients, each scaled to 1, at outputs ``y`` (samples, outputs).

    The plain use of the kernel, for references and tests. With ``y0``: (samples, 2 * outputs).
    """
    from qll.kernels.interpreter import judge_lanes, lay_out_passes

    samples = len(y)
    centre = np.ascontiguousarray(y[:, tape.outputs :])
    rows = np.ascontiguousarray(y[:, : tape.outputs].T).reshape(-1)
    scratch, passes, sources, terms, offsets, widths = tape.room(samples)
    tables = (passes, sources, terms, offsets, widths)
    losses = np.zeros(samples)
    count = lay_out_passes(
        patterns,
        samples,
        *tables,
        tape.patterns,
        tape.atoms,
        tape.offsets,
        tape.sources,
        tape.coefficients,
    )
    judge_lanes(
        count,
        *tables,
        samples,
        samples,
        tape.outputs,
        centre if centre.size else centre[:0],
        rows,
        0,
        losses,
        scratch,
        tape.patterns,
        tape.nodes,
        tape.hardness,
        tape.atoms,
        tape.functions,
        tape.params,
    )
    return losses, rows.reshape(tape.outputs, samples).T
