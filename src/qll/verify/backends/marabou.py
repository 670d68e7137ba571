"""Marabou (Katz et al. 2019; Wu et al. 2024) as a second opinion: one query for each disjunct.

The network is given as the equations of its folded form and one ReLU constraint a neuron. Marabou
works with non-strict inequalities and its own tolerances, so its ``sat`` is only a candidate, which
the template judges, and its ``unsat`` rests on its arithmetic: the verdict says so. As it comes,
version 2.0.0 answers ``unsat`` to queries that have a solution, for two reasons:

* Its preprocessor takes a variable whose range is below 1e-5 as fixed, and bounds that contradict
  each other by less as none. So it is asked in units in which every range is about 1 (`_Scaled`),
  and to refute more than it has to: that the leaves come within ``ROOM`` of 0, ten times as much.
  Around a violation a box of that size then satisfies the query. Numbers that are large against
  their own range (see ``MOST_SIZE``) are refused.
* Told which variables are inputs and outputs, it guesses the layers of the network from the
  equations (its network-level reasoner) and bounds them symbolically: wrongly for about one in a
  hundred small random networks in which a layer reads more than the layer before it (residual and
  skip connections). Where a neuron reads nothing, its look-up fails (``map::at``). So only chains
  in which every neuron reads something are described to it as layers; for all others it is given
  the equations alone.

`tests/test_verify_marabou.py` holds it to exact enumeration.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from qll.errors import MissingExtra
from qll.networks.activations import RELU
from qll.networks.matrices import entries, rows_of
from qll.verify.attack import Plan, SearchNetwork, attack
from qll.verify.backend import BACKENDS, Backend, Budget
from qll.verify.condition import Array, Obligation, both, obligations
from qll.verify.judge import Worth, judge
from qll.verify.query import Query
from qll.verify.verdict import Reason, Status, Verdict

# From a point on the boundary to one beyond it: sign steps, and a query that asks for more than 0.
NEAR = Plan(starts=0, steps=10)
SLACK = 1e-4
LONGEST_WAIT = 1e6  # seconds: the system's own count of milliseconds ends at twice that
# What it refutes beyond the violation itself, in units of each leaf's range.
ROOM = 1e-4
NOTE = "by Marabou in floating point, strict inequalities made non-strict"
TIE_NOTE = "Marabou neither refutes it by more than its tolerances nor names a violation"
# More weights than this take Marabou minutes to read, and gigabytes.
MOST_WEIGHTS = 1 << 20
# A number may be this many times its own range: its tolerances are absolute, about 1e-9.
MOST_SIZE = 1e5

_REASONS = {"TIMEOUT": Reason.TIME, "MEMORY": Reason.MEMORY}


@BACKENDS.register("marabou")
@dataclass
class Marabou(Backend):
    name: ClassVar[str] = "marabou"

    def refuses(self, query: Query) -> str | None:
        if query.in_float32:
            return "Marabou proves nothing about float32: ask our own backend"
        layers = query.form.layers
        for k, layer in enumerate(layers[:-1], start=1):
            if layer.activation != RELU:
                return f"layer {k} is a {layer.activation.name}: Marabou is given ReLU networks"
        weights = sum(entries(w).size for layer in layers for _, w in layer.terms)
        if weights > MOST_WEIGHTS:
            return f"Marabou is given at most {MOST_WEIGHTS:,} weights, the network has {weights:,}"
        for k, (middle, half) in enumerate(_ranges(query)):
            if float((np.abs(middle) - MOST_SIZE * 2 * half)[half > 0].max(initial=0.0)) > 0:
                what = f"layer {k}" if k else "the region"
                return (
                    f"{what} has a number whose range is less than {1 / MOST_SIZE:g} of it: "
                    "Marabou's tolerances are absolute"
                )
        return None

    def run(self, queries: Sequence[Query], budget: Budget) -> list[Verdict]:
        if find_spec("maraboupy") is None:
            raise MissingExtra.of("maraboupy", "marabou", "the Marabou backend")
        return [self._decide(query, budget) for query in queries]

    def _decide(self, query: Query, budget: Budget) -> Verdict:
        start = time.monotonic()
        deadline = start + budget.seconds
        tree = query.search.tree
        if isinstance(tree, bool):  # True: what is False is the template's
            centre = query.clip((query.lower + query.upper) / 2)
            return Verdict(Status.FALSIFIED, "trivial", witness=centre, backend=self.name)
        waiting = obligations(tree)
        solved = 0

        def unknown(reason: Reason, note: str) -> Verdict:
            return Verdict(Status.UNKNOWN, "marabou", reason=reason, nodes=solved, notes=(note,),
                           seconds=time.monotonic() - start, backend=self.name)  # fmt: skip

        with _Process(query) as process:
            while waiting:
                obligation = waiting.pop()
                if not obligation.is_conjunction:
                    waiting.extend(obligation.expand())
                    continue
                answer, point, note = process.solve(obligation, deadline, slack=-ROOM)
                solved += 1
                if answer == "sat" and point is not None:
                    witness = self._strict(process, obligation, point, deadline)
                    if witness is None:
                        late = time.monotonic() >= deadline
                        return unknown(Reason.TIME if late else Reason.MARGIN, TIE_NOTE)
                    return Verdict(Status.FALSIFIED, "marabou", witness=witness, nodes=solved,
                                   seconds=time.monotonic() - start,
                                   backend=self.name)  # fmt: skip
                if answer != "unsat":
                    return unknown(_REASONS.get(answer, Reason.BACKEND), note)
        return Verdict(
            Status.VERIFIED,
            "marabou",
            nodes=solved,
            seconds=time.monotonic() - start,
            backend=self.name,
            notes=(NOTE,),
        )

    @staticmethod
    def _strict(
        process: _Process, obligation: Obligation, point: Array, deadline: float
    ) -> Array | None:
        """A point that violates, where Marabou's is near one or a tie: it solves for >= 0, and
        likes to answer with the boundary."""
        query = process.query
        tree = both(tuple(obligation.leaves))
        network = SearchNetwork(query.form)
        for slack in (SLACK, 0.0, None):
            found = attack(network, [query], NEAR, first_points=[point[None]], trees=[tree])[0]
            if found.value > 0:
                return found.point
            if judge(query, point).worth is Worth.VIOLATION:
                return point
            if slack is None:
                return None
            _, other, _ = process.solve(obligation, deadline, slack=slack)
            point = point if other is None else other
        return None


class _Process:
    """Marabou as a process that is ended when its time is over."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self._scaled = _Scaled.of(query)
        # A chain in which every neuron reads something: there its guess of the layers is right.
        rows = [row for layer in self._scaled.layers for row in layer["rows"]]
        self._layered = query.form.is_chain and all(rows)
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()  # SIGKILL: SIGTERM is ignored while it solves
            for pipe in (self._child.stdin, self._child.stdout):
                if pipe is not None:
                    pipe.close()
            self._child.wait()
            self._child = None

    def solve(
        self, obligation: Obligation, deadline: float, *, slack: float
    ) -> tuple[str, Array | None, str]:
        """Marabou's answer for one conjunction of leaves, all >= ``slack``; its point; a note."""
        answer, point, note = self._ask(obligation, deadline, slack, self._layered)
        if answer == "CRASH" and self._layered:
            # what it made of the layers: the equations alone need no such guess
            self._layered = False
            answer, point, note = self._ask(obligation, deadline, slack, False)
        return answer, point, note

    def _ask(
        self, obligation: Obligation, deadline: float, slack: float, layered: bool
    ) -> tuple[str, Array | None, str]:
        left = deadline - time.monotonic()
        if left <= 0:
            return "TIMEOUT", None, "no time was left"
        question = {
            "leaves": [self._scaled.leaf(self.query, leaf) for leaf in obligation.leaves],
            "slack": slack,
            "seconds": left,
            "layered": layered,
        }
        sent = b"" if self._child is not None else _line(self._scaled.network())
        reply = self._exchange(sent + _line(question), deadline)
        if reply is None:
            late = time.monotonic() >= deadline
            self._end()
            if late:
                return "TIMEOUT", None, "Marabou was ended when its time was over"
            return "CRASH", None, "Marabou's process ended without an answer"
        answer = str(reply["answer"])
        point = None
        if answer == "sat":
            point = self.query.clip(self._scaled.point(reply["point"]))
        return answer, point, str(reply.get("error", answer))

    def _exchange(self, data: bytes, deadline: float) -> dict[str, Any] | None:
        """Send ``data``, read one line; None if the process dies or the time is over first."""
        if self._child is None:
            script = Path(__file__).with_name("_marabou_process.py")
            self._child = subprocess.Popen(
                [sys.executable, str(script)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        send, receive = self._child.stdin, self._child.stdout
        if send is None or receive is None:
            return None
        found = bytearray()
        with selectors.DefaultSelector() as both_ways:
            for pipe, event in ((send, selectors.EVENT_WRITE), (receive, selectors.EVENT_READ)):
                os.set_blocking(pipe.fileno(), False)
                both_ways.register(pipe, event)
            while not found.endswith(b"\n"):
                left = deadline - time.monotonic()
                ready = both_ways.select(min(max(0.0, left), LONGEST_WAIT))
                if not ready and left <= LONGEST_WAIT:
                    return None
                for key, _ in ready:
                    if key.fileobj is send:
                        try:
                            data = data[os.write(send.fileno(), data) :]
                        except BrokenPipeError:
                            return None
                        if not data:
                            both_ways.unregister(send)
                    else:
                        part = os.read(receive.fileno(), 1 << 16)
                        if not part:
                            return None
                        found += part
        reply = json.loads(found)
        return reply if isinstance(reply, dict) else None


def _ranges(query: Query) -> list[tuple[Array, Array]]:
    """Middle and half width, by interval arithmetic, of the inputs and every pre-activation."""
    ends = [(query.lower, query.upper)]
    found = [((query.lower + query.upper) / 2, (query.upper - query.lower) / 2)]
    for layer in query.form.layers:
        middle, half = layer.bias, np.zeros_like(layer.bias)
        for source, weight in layer.terms:
            low, high = ends[source]
            middle = middle + weight @ ((low + high) / 2)
            half = half + abs(weight) @ ((high - low) / 2)
        found.append((middle, half))
        ends.append((np.maximum(middle - half, 0.0), np.maximum(middle + half, 0.0)))
    return found


@dataclass(frozen=True, eq=False)
class _Scaled:
    """The query in units in which every variable's range, by interval arithmetic, is about 1: input
    k is ``lower + width t``, t in [0, 1], a neuron is its value over its width. ReLU is positively
    homogeneous, so that nothing else changes; what has no range at all is a constant."""

    width: Array  # of the inputs; 0 for one that is fixed
    start: Array
    layers: list[dict[str, Any]]  # biases, and rows of (source, column, weight)
    outputs: Array  # units of the outputs
    leaves: Array  # and of the leaves

    @classmethod
    def of(cls, query: Query) -> _Scaled:
        condition = query.search
        ranges = _ranges(query)
        width = query.upper - query.lower
        units, starts = [width], [query.lower]
        layers = []
        for layer, (middle, half) in zip(query.form.layers, ranges[1:], strict=True):
            unit = np.where(half > 0, 2 * half, 1.0)
            bias = layer.bias.copy()
            rows: list[list[tuple[int, int, float]]] = [[] for _ in range(layer.width)]
            for source, weight in layer.terms:
                bias += weight @ starts[source]
                factors = units[source].tolist()
                for row, own, (columns, values) in zip(
                    rows, unit.tolist(), rows_of(weight), strict=True
                ):
                    row.extend(
                        (source, j, w * factors[j] / own)
                        for j, w in zip(columns, values, strict=True)
                        if w * factors[j] != 0.0
                    )
            layers.append({"bias": (bias / unit).tolist(), "rows": rows})
            # An activation without a range is a constant of the layers that read it.
            fixed = (half == 0) | (middle + half <= 0)
            units.append(np.where(fixed, 0.0, unit))
            starts.append(np.where(fixed, np.maximum(middle, 0.0) * (half == 0), 0.0))
        last = np.where(ranges[-1][1] > 0, 2 * ranges[-1][1], 1.0)
        reach = np.abs(condition.outputs) @ (2 * ranges[-1][1])
        if condition.inputs is not None:
            reach = reach + np.abs(condition.inputs) @ width
        leaves = np.where(reach > 0, reach, 1.0)
        return cls(width, query.lower, layers, last, leaves)

    def network(self) -> dict[str, Any]:
        free = self.width > 0
        return {
            "lower": [0.0] * len(free),
            "upper": free.astype(float).tolist(),
            "layers": self.layers,
            "bytes": None,
        }

    def leaf(self, query: Query, leaf: int) -> dict[str, Any]:
        condition, scale = query.search, float(self.leaves[leaf])
        row = condition.outputs[leaf] * self.outputs / scale
        constant, inputs = float(condition.constant[leaf]), np.zeros(0)
        if condition.inputs is not None:
            inputs = condition.inputs[leaf] * self.width / scale
            constant += float(condition.inputs[leaf] @ self.start)
        return {
            "outputs": [(int(i), float(row[i])) for i in np.flatnonzero(row)],
            "inputs": [(int(i), float(inputs[i])) for i in np.flatnonzero(inputs)],
            "constant": constant / scale,
        }

    def point(self, found: Any) -> Array:
        return np.asarray(self.start + self.width * np.array(found, dtype=np.float64))


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"
