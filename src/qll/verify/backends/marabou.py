"""Marabou (Katz et al. 2019; Wu et al. 2024) as a second opinion: one query for each disjunct.

The network is given as the equations of its folded form and one ReLU constraint a neuron. Marabou
works with non-strict inequalities and its own tolerances, so its ``sat`` is only a candidate, which
the template judges, and its ``unsat`` rests on its arithmetic: the verdict says so.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from qll.errors import MissingExtra
from qll.networks.matrices import rows_of
from qll.verify.attack import Plan, SearchNetwork, attack
from qll.verify.backend import BACKENDS, Backend, Budget
from qll.verify.condition import Array, Obligation, both, obligations
from qll.verify.query import Query
from qll.verify.verdict import Reason, Status, Verdict

# From a point on the boundary to one beyond it: sign steps, and a query that asks for more than 0.
NEAR = Plan(starts=0, steps=10)
SLACK = 1e-4
NOTE = "by Marabou in floating point, strict inequalities made non-strict"


@BACKENDS.register("marabou")
@dataclass
class Marabou(Backend):
    name: ClassVar[str] = "marabou"

    def run(self, queries: Sequence[Query], budget: Budget) -> list[Verdict]:
        return [self._decide(query, budget) for query in queries]

    def _decide(self, query: Query, budget: Budget) -> Verdict:
        start = time.monotonic()
        tree = query.search.tree
        if isinstance(tree, bool):
            centre = query.clip((query.lower + query.upper) / 2)
            status = Status.FALSIFIED if tree else Status.VERIFIED
            return Verdict(status, "trivial", witness=centre if tree else None, backend=self.name)
        waiting = obligations(tree)
        solved = 0
        while waiting:
            obligation = waiting.pop()
            if not obligation.is_conjunction:
                waiting.extend(obligation.expand())
                continue
            left = budget.seconds - (time.monotonic() - start)
            answer = "TIMEOUT" if left <= 0 else None
            point: Array | None = None
            if answer is None:
                answer, point = _solve(query, obligation, left)
            if answer == "sat" and point is not None:
                point = self._strict(query, obligation, point, deadline=start + budget.seconds)
            solved += 1
            spent = time.monotonic() - start
            if answer == "sat":
                return Verdict(Status.FALSIFIED, "marabou", witness=point, nodes=solved,
                               seconds=spent, backend=self.name)  # fmt: skip
            if answer != "unsat":
                reason = Reason.TIME if answer == "TIMEOUT" else Reason.BACKEND
                return Verdict(Status.UNKNOWN, "marabou", reason=reason, nodes=solved,
                               seconds=spent, backend=self.name, notes=(str(answer),))  # fmt: skip
        return Verdict(
            Status.VERIFIED,
            "marabou",
            nodes=solved,
            seconds=time.monotonic() - start,
            backend=self.name,
            notes=(NOTE,),
        )

    @staticmethod
    def _strict(query: Query, obligation: Obligation, point: Array, deadline: float) -> Array:
        """A point that violates, where Marabou's is only a tie: it solves for >= 0, and likes to
        answer with the boundary."""
        tree = both(tuple(obligation.leaves))
        network = SearchNetwork(query.form)
        found = attack(network, [query], NEAR, first_points=[point[None]], trees=[tree])[0]
        left = deadline - time.monotonic()
        if found.value > 0 or left <= 0:
            return found.point if found.value > 0 else point
        _, other = _solve(query, obligation, left, SLACK)
        return point if other is None else other


def _solve(
    query: Query, obligation: Obligation, seconds: float, slack: float = 0.0
) -> tuple[str, Array | None]:
    """Marabou's answer for one conjunction of leaves, all >= slack, and its point."""
    modules = _modules()
    core, network_module = modules
    network = network_module.MarabouNetwork()
    inputs = [network.getNewVariable() for _ in range(query.form.input_size)]
    for variable, low, high in zip(inputs, query.lower, query.upper, strict=True):
        network.setLowerBound(variable, float(low))
        network.setUpperBound(variable, float(high))
    activations: list[list[int]] = [inputs]
    for k, layer in enumerate(query.form.layers):
        z = [network.getNewVariable() for _ in range(layer.width)]
        blocks = [(source, rows_of(weight)) for source, weight in layer.terms]
        for i, variable in enumerate(z):
            terms = [
                (activations[source][column], value)
                for source, rows in blocks
                for column, value in zip(*rows[i], strict=True)
                if value != 0.0
            ]
            _equation(core, network, [*terms, (variable, -1.0)], -float(layer.bias[i]))
        if k == len(query.form.layers) - 1:
            outputs = z
            break
        a = [network.getNewVariable() for _ in range(layer.width)]
        for before, after in zip(z, a, strict=True):
            network.addRelu(before, after)
            network.setLowerBound(after, 0.0)
        activations.append(a)
    condition = query.search
    for leaf in obligation.leaves:
        terms = [(outputs[i], float(c)) for i, c in enumerate(condition.outputs[leaf]) if c]
        if condition.inputs is not None:
            terms += [(inputs[i], float(c)) for i, c in enumerate(condition.inputs[leaf]) if c]
        _equation(core, network, terms, slack - float(condition.constant[leaf]), at_least=True)
    network.inputVars = [np.array(inputs)]
    network.outputVars = [np.array(outputs)]
    options = core.Options()
    options._verbosity = 0
    options._timeoutInSeconds = max(1, int(np.ceil(seconds)))
    answer, values, _ = network.solve(filename="", verbose=False, options=options)
    point = None
    if answer == "sat":
        point = query.clip(np.array([values[v] for v in inputs]))
    return str(answer), point


def _equation(
    core: Any,
    network: Any,
    terms: Sequence[tuple[int, float]],
    scalar: float,
    *,
    at_least: bool = False,
) -> None:
    """``sum coefficient * variable = scalar``, or ``>=``."""
    from maraboupy import MarabouUtils

    kind = core.Equation.GE if at_least else core.Equation.EQ
    equation = MarabouUtils.Equation(kind)
    for variable, coefficient in terms:
        equation.addAddend(coefficient, variable)
    equation.setScalar(scalar)
    network.addEquation(equation)


def _modules() -> tuple[Any, Any]:
    try:
        from maraboupy import MarabouCore, MarabouNetwork
    except ImportError as error:
        raise MissingExtra.of("maraboupy", "marabou", "the Marabou backend") from error
    return MarabouCore, MarabouNetwork
