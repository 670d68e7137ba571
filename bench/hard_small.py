"""Small networks with hard combinatorics: what is found, what is proved, in how much CPU time.

    python bench/hard_small.py [--seconds S] [--backend NAME] [--certify] [--quick] [--json OUT]
    python bench/hard_small.py --write DIR        # the same as a competition folder

Two kinds. *Formulas*: a propositional formula in clauses as a network of one hidden layer over
[0, 1]^v (the reduction of Katz et al. 2017, *Reluplex*, that makes the problem NP-complete). A
clause is ``relu(1 - sum of its literals)``, 1 where it is false; ``x - relu(2 x - 1)`` is 0 at 0
and 1 alone. The first output is 1 less the sum of the clauses, the second one the sum over the
variables: ``y0 >= 1 and y1 <= 0`` exactly where x is an assignment that satisfies all clauses. So
the query is falsified iff the formula is satisfiable. *Dense*: random layers, and whether the
output stays below a little more, or a little less, than the largest value that HiGHS knows of.

The truth of a formula is planted, or found by a search of its own that knows nothing of networks.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from qll.formula.hard import HardForm, Min, affine
from qll.networks import load
from qll.networks.onnx_writer import onnx_bytes
from qll.verify.backend import BACKENDS, Budget
from qll.verify.certificate import confirm
from qll.verify.query import Query
from qll.verify.verdict import Evidence

Clauses = list[tuple[int, ...]]  # DIMACS: the variables are 1, 2, ..., a minus sign negates

# Variables and clauses of the formulas, each once with a planted assignment and once without.
SIZES = (
    (8, 38), (10, 50), (12, 60), (15, 70), (20, 90), (25, 112), (30, 135), (40, 175), (50, 220),
    (60, 262), (75, 330), (97, 425),
)  # fmt: skip
# Clauses of one to three literals: short ones make few of them contradict each other.
MIXED = ((33, 48), (50, 80), (65, 100), (86, 128), (97, 150))
QUICK_SIZES, QUICK_MIXED = ((8, 38), (12, 60)), ((20, 40),)
DENSE = ((12, 16, 16), (16, 20, 12), (20, 16, 16), (24, 24))
TRUTH_STEPS = 200_000  # of the search for the truth


@dataclass(frozen=True, eq=False)
class Instance:
    name: str
    kind: str
    model: nn.Module
    inputs: int
    lower: float
    violated: HardForm
    assertion: str  # of VNN-LIB, what is asked of the outputs
    holds: bool | None  # None where nobody knows

    def query(self) -> Query:
        network = load(onnx_bytes(self.model, input_shape=(self.inputs,)))
        lower, upper = np.full(self.inputs, self.lower), np.ones(self.inputs)
        return Query(network, lower, upper, self.violated, tie_violates=True, name=self.name)


def formula(
    rng: np.random.Generator, variables: int, clauses: int, *, planted: bool, mixed: bool
) -> Clauses:
    truth = rng.random(variables) < 0.5
    found: Clauses = []
    while len(found) < clauses:
        length = int(rng.choice((1, 2, 3), p=(0.05, 0.5, 0.45))) if mixed else 3
        chosen = rng.choice(variables, size=min(length, variables), replace=False)
        signs = rng.random(len(chosen)) < 0.5
        if not planted or (truth[chosen] == signs).any():
            found.append(tuple(int(v + 1 if s else -v - 1) for v, s in zip(chosen, signs)))
    return found


def network_of(clauses: Clauses, variables: int) -> nn.Module:
    first = nn.Linear(variables, len(clauses) + 2 * variables)
    last = nn.Linear(first.out_features, 2)
    with torch.no_grad():
        for parameter in (*first.parameters(), *last.parameters()):
            parameter.zero_()
        last.bias[0] = 1.0
        for row, clause in enumerate(clauses):
            first.bias[row] = 1.0 - sum(literal < 0 for literal in clause)
            for literal in clause:
                first.weight[row, abs(literal) - 1] = 1.0 if literal < 0 else -1.0
            last.weight[0, row] = -1.0
        for v in range(variables):
            whole, half = len(clauses) + v, len(clauses) + variables + v
            first.weight[whole, v], first.weight[half, v], first.bias[half] = 1.0, 2.0, -1.0
            last.weight[1, whole], last.weight[1, half] = 1.0, -1.0
    return nn.Sequential(first, nn.ReLU(), last)


def satisfiable(clauses: Clauses) -> bool | None:
    """By unit propagation and branching on the literal that short clauses have most often."""
    steps = 0

    def reduce(some: Clauses, literal: int) -> Clauses | None:
        left: Clauses = []
        for clause in some:
            if literal in clause:
                continue
            if -literal in clause:
                clause = tuple(other for other in clause if other != -literal)
                if not clause:
                    return None
            left.append(clause)
        return left

    def decide(some: Clauses | None) -> bool:
        nonlocal steps
        while some:
            steps += 1
            if steps > TRUTH_STEPS:
                raise TimeoutError
            unit = next((clause[0] for clause in some if len(clause) == 1), None)
            if unit is None:
                scores: dict[int, float] = {}
                for clause in some:
                    for literal in clause:
                        scores[literal] = scores.get(literal, 0.0) + 5.0 ** -len(clause)
                best = max(
                    {abs(k) for k in scores},
                    key=lambda v: (1e-3 + scores.get(v, 0.0)) * (1e-3 + scores.get(-v, 0.0)),
                )
                return decide(reduce(some, best)) or decide(reduce(some, -best))
            some = reduce(some, unit)
        return some is not None

    try:
        return decide(clauses)
    except TimeoutError:
        return None


def formulas(quick: bool, seed: int) -> Iterator[Instance]:
    rng = np.random.default_rng(seed)
    sizes = [(pair, False) for pair in (QUICK_SIZES if quick else SIZES)]
    sizes += [(pair, True) for pair in (QUICK_MIXED if quick else MIXED)]
    violated = Min(
        (affine(((("y", 0), Fraction(1)),), Fraction(-1)), affine(((("y", 1), Fraction(-1)),), 0))
    )
    for (variables, count), mixed in sizes:
        for planted in (True, False):
            for _ in range(20):  # without a plan, until there is no assignment
                clauses = formula(rng, variables, count, planted=planted, mixed=mixed)
                truth = True if planted else satisfiable(clauses)
                if truth is not True or planted:
                    break
            kind = ("mixed" if mixed else "3-sat") + (", planted" if planted else "")
            name = f"{kind.replace(', ', '-')}_v{variables}_c{count}"
            assertion = "(assert (>= Y_0 1.0))\n(assert (<= Y_1 0.0))\n"
            holds = None if truth is None else not truth
            model = network_of(clauses, variables)
            yield Instance(name, kind, model, variables, 0.0, violated, assertion, holds)


def dense(quick: bool, seed: int) -> Iterator[Instance]:
    """The largest value by HiGHS, and a hundredth of its size more, or less."""
    for number, widths in enumerate(DENSE[:1] if quick else DENSE):
        torch.manual_seed(100 * seed + number)
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Linear(widths[-1], 1))
        inputs = widths[0]
        box = np.full(inputs, -1.0), np.ones(inputs)
        network = load(onnx_bytes(model, input_shape=(inputs,)))
        form = affine(((("y", 0), Fraction(1)),), Fraction(0))
        largest = _largest(Query(network, *box, form))
        for share in (0.01, -0.01):
            limit = float(np.float32(largest + share * abs(largest)))
            violated = affine(((("y", 0), Fraction(1)),), -Fraction(limit))
            name = f"dense_{'x'.join(map(str, widths))}_{'above' if share > 0 else 'below'}"
            assertion = f"(assert (>= Y_0 {limit!r}))\n"
            yield Instance(name, "dense", model, inputs, -1.0, violated, assertion, bool(share > 0))


def _largest(query: Query) -> float:
    """A mixed-integer program of its own, so that the truth does not rest on what is measured."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    form = query.form
    widths = form.widths[:-1]
    starts = np.cumsum([0, *widths])
    hidden = int(starts[-1] - widths[0])
    columns = int(starts[-1]) + hidden  # inputs, activations, signs
    low, high = np.zeros(columns), np.ones(columns)
    low[: widths[0]], high[: widths[0]] = query.lower, query.upper
    rows, least, most = [], [], []
    ends = [(query.lower, query.upper)]
    for k, layer in enumerate(form.layers[:-1]):
        ((source, weight),) = layer.terms
        plus, minus = np.maximum(weight, 0), np.minimum(weight, 0)
        under = layer.bias + plus @ ends[source][0] + minus @ ends[source][1]
        over = layer.bias + plus @ ends[source][1] + minus @ ends[source][0]
        ends.append((np.maximum(under, 0), np.maximum(over, 0)))
        for i in range(layer.width):
            at = int(starts[k + 1]) + i
            sign = at - widths[0] + int(starts[-1])
            high[at] = max(over[i], 0.0)
            row = np.zeros(columns)
            row[starts[k] : starts[k + 1]], row[at] = -weight[i], 1.0
            rows.append(row.copy())  # a >= z
            least.append(layer.bias[i])
            most.append(np.inf)
            row[sign] = -min(under[i], 0.0)  # a <= z - l (1 - d)
            rows.append(row)
            least.append(-np.inf)
            most.append(layer.bias[i] - min(under[i], 0.0))
            off = np.zeros(columns)  # a <= u d
            off[at], off[sign] = 1.0, -high[at]
            rows.append(off)
            least.append(-np.inf)
            most.append(0.0)
    last = form.layers[-1]
    cost = np.zeros(columns)
    cost[starts[-2] : starts[-1]] = -np.asarray(last.terms[0][1])[0]
    whole = np.zeros(columns)
    whole[starts[-1] :] = 1
    found = milp(
        cost, constraints=LinearConstraint(np.array(rows), least, most),
        bounds=Bounds(low, high), integrality=whole,
    )  # fmt: skip
    if not found.success:
        raise RuntimeError(f"no largest value: {found.message}")
    return float(last.bias[0] - found.fun)


def run(instance: Instance, seconds: float, backend: str, certify: bool) -> dict[str, Any]:
    query = instance.query()
    began = time.process_time()
    budget = Budget(seconds=seconds, clock="cpu", proofs=certify)
    (verdict,) = BACKENDS[backend]().decide([query], budget)
    spent = time.process_time() - began
    status, evidence = str(verdict.status), ""
    if certify and verdict.decided:
        confirmed, data = confirm(query, verdict)
        evidence = f"{confirmed.evidence}, {len(data or b'') // 1000} kB"
        if confirmed.evidence is not Evidence.CHECKED:
            evidence = f"not confirmed ({evidence})"
    wrong = instance.holds is not None and (
        status == ("falsified" if instance.holds else "verified")
    )
    return {
        "name": instance.name, "kind": instance.kind, "holds": instance.holds, "status": status,
        "cpu": spent, "nodes": verdict.nodes, "stage": verdict.stage, "wrong": wrong,
        "evidence": evidence,
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| kind | falsified | of | proved | of | wrong | CPU s |", "|---" * 7 + "|"]
    for kind in dict.fromkeys(r["kind"] for r in rows):
        mine = [r for r in rows if r["kind"] == kind]
        bad, good = ([r for r in mine if r["holds"] is truth] for truth in (False, True))
        lines.append(
            f"| {kind} | {sum(r['status'] == 'falsified' for r in bad)} | {len(bad)} "
            f"| {sum(r['status'] == 'verified' for r in good)} | {len(good)} "
            f"| {sum(r['wrong'] for r in mine)} | {sum(r['cpu'] for r in mine):.1f} |"
        )
    return "\n".join(lines)


def write(folder: Path, instances: list[Instance]) -> None:
    """As bench/vnncomp.py reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["network,property,timeout,verdict"]
    for each in instances:
        data = onnx_bytes(each.model, input_shape=(each.inputs,))
        (folder / f"{each.name}.onnx").write_bytes(data)
        outputs = 1 + each.assertion.count("Y_1")
        names = [f"X_{i}" for i in range(each.inputs)] + [f"Y_{i}" for i in range(outputs)]
        text = "".join(f"(declare-const {name} Real)\n" for name in names)
        for i in range(each.inputs):
            text += f"(assert (>= X_{i} {each.lower}))\n(assert (<= X_{i} 1.0))\n"
        (folder / f"{each.name}.vnnlib").write_text(text + each.assertion)
        known = {True: "verified", False: "falsified", None: "open"}[each.holds]
        lines.append(f"{each.name}.onnx,{each.name}.vnnlib,100,{known}")
    (folder / "instances.csv").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of CPU for each")
    parser.add_argument("--backend", default="bab")
    parser.add_argument("--certify", action="store_true", help="proofs are checked as well")
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    some = [
        each
        for make in (formulas, dense)
        for each in make(arguments.quick, arguments.seed)
        if arguments.only in each.name
    ]
    if arguments.write:
        write(arguments.write, some)
        return
    BACKENDS[arguments.backend]().prepare()
    rows = []
    for each in some:
        rows.append(r := run(each, arguments.seconds, arguments.backend, arguments.certify))
        print(
            f"{r['name']:28} holds {r['holds']!s:5} {r['status']:9} {r['cpu']:7.2f} CPU s "
            f"{r['nodes']:7} nodes {r['stage']} {r['evidence']}",
            flush=True,
        )
    print(table(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
