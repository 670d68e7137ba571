"""Marabou in a process of its own, which its parent can end: run as a script, it answers questions.

Marabou looks at its own clock now and then, ignores SIGTERM, prints, and aborts on some queries. So
it lives here. The first line on standard input is the network, every further one a question; each
is answered by one line on standard output, all in JSON. This file imports nothing of qll.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

# Seconds beyond the question's own after which the system ends this process, parent or not.
GRACE = 2.0


def main() -> None:
    # What Marabou prints must not end up among the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    network = json.loads(sys.stdin.readline())
    _limit_memory(network["bytes"])
    for line in sys.stdin:
        question = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, question["seconds"] + GRACE)
        try:
            answer, point = _solve(network, question)
            reply = {"answer": answer, "point": point}
        except MemoryError:
            reply = {"answer": "MEMORY"}
        except Exception as error:  # whatever C++ threw: the parent makes a verdict of it
            reply = {"answer": "CRASH", "error": f"{type(error).__name__}: {error}"}
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


def _limit_memory(limit: int | None) -> None:
    if limit is None:
        return
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    except (ImportError, ValueError, OSError):
        return


def _solve(network: dict[str, Any], question: dict[str, Any]) -> tuple[str, list[float] | None]:
    """Marabou's answer for a conjunction of leaves, all >= slack, and its point."""
    import numpy as np
    from maraboupy import MarabouCore, MarabouNetwork, MarabouUtils

    query = MarabouNetwork.MarabouNetwork()

    def equation(kind: Any, terms: list[tuple[int, float]], scalar: float) -> None:
        made = MarabouUtils.Equation(kind)
        for variable, coefficient in terms:
            made.addAddend(coefficient, variable)
        made.setScalar(scalar)
        query.addEquation(made)

    equal, at_least = MarabouCore.Equation.EQ, MarabouCore.Equation.GE
    inputs = [query.getNewVariable() for _ in network["lower"]]
    for variable, low, high in zip(inputs, network["lower"], network["upper"], strict=True):
        query.setLowerBound(variable, low)
        query.setUpperBound(variable, high)
    activations = [inputs]
    outputs: list[int] = []
    for layer in network["layers"]:
        if outputs:
            rectified = [query.getNewVariable() for _ in outputs]
            for before, after in zip(outputs, rectified, strict=True):
                query.addRelu(before, after)
                query.setLowerBound(after, 0.0)
            activations.append(rectified)
        outputs = [query.getNewVariable() for _ in layer["bias"]]
        for variable, bias, row in zip(outputs, layer["bias"], layer["rows"], strict=True):
            terms = [(activations[source][column], value) for source, column, value in row]
            equation(equal, [*terms, (variable, -1.0)], -bias)
    for leaf in question["leaves"]:
        terms = [(outputs[i], c) for i, c in leaf["outputs"]]
        terms += [(inputs[i], c) for i, c in leaf["inputs"]]
        equation(at_least, terms, question["slack"] - leaf["constant"])
    if question["layered"]:
        query.inputVars = [np.array(inputs)]
        query.outputVars = [np.array(outputs)]
    options = MarabouCore.Options()
    options._verbosity = 0
    options._timeoutInSeconds = max(1, int(np.ceil(question["seconds"])))
    answer, values, _ = query.solve(filename="", verbose=False, options=options)
    point = [float(values[v]) for v in inputs] if answer == "sat" else None
    return str(answer), point


if __name__ == "__main__":
    main()
