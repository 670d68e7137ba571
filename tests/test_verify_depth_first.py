"""Depth first by linear programs: proofs of formulas are checked, propagation loses nothing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from verify_cases import random_condition, random_network

from qll import networks
from qll.bounds.lanes import ChainBounder
from qll.bounds.rows import Rows
from qll.networks.models import create
from qll.verify import clock, depth_first
from qll.verify.backend import Budget
from qll.verify.backends.bab import BranchAndBound
from qll.verify.certificate import confirm
from qll.verify.implications import Implications
from qll.verify.prover import NeuronProver
from qll.verify.query import Query
from qll.verify.simplex import Relaxation
from qll.verify.verdict import Evidence, Status

pytest.importorskip("numba")
pytest.importorskip("highspy")


def bench() -> Any:
    path = Path(__file__).parent.parent / "bench" / "hard_small.py"
    spec = importlib.util.spec_from_file_location("bench_hard_small", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def alone(query: Query) -> NeuronProver:
    return NeuronProver(ChainBounder(query.form), turn=0.0)


def test_formulas_are_decided_and_their_proofs_confirmed() -> None:
    """Neither intervals nor linear relaxations say anything of them at the root."""
    for instance in bench().formulas(True, 0):
        query = instance.query()
        backend = BranchAndBound(choose=alone)
        (verdict,) = backend.decide([query], Budget(seconds=60, proofs=True))
        wanted = Status.VERIFIED if instance.holds else Status.FALSIFIED
        assert verdict.status is wanted, instance.name
        assert verdict.nodes < 200
        assert confirm(query, verdict)[0].evidence is Evidence.CHECKED


class GivesUp:
    """HiGHS, but after every third program none is solved, until it begins afresh."""

    def __init__(self, solver: Any) -> None:
        self.solver, self.runs, self.given_up = solver, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.solver, name)

    def clearSolver(self) -> Any:
        self.runs = 0
        return self.solver.clearSolver()

    def run(self) -> Any:
        self.runs += 1
        self.given_up += self.runs > 3
        return self.solver.run()

    def getModelStatus(self) -> Any:
        import highspy

        gone = highspy.HighsModelStatus.kUnknown
        return gone if self.runs > 3 else self.solver.getModelStatus()


def test_programs_that_are_given_up_do_not_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    load, solvers = Relaxation._load, []

    def failing(self: Relaxation, box: Any) -> Any:
        solvers.append(GivesUp(load(self, box)))
        return solvers[-1]

    monkeypatch.setattr(Relaxation, "_load", failing)
    for instance in bench().formulas(True, 0):
        query = instance.query()
        (verdict,) = BranchAndBound(choose=alone).decide([query], Budget(seconds=60, proofs=True))
        assert verdict.status is (Status.VERIFIED if instance.holds else Status.FALSIFIED)
        assert confirm(query, verdict)[0].evidence is Evidence.CHECKED
    assert sum(solver.given_up for solver in solvers) > 20


class Slow(GivesUp):
    """HiGHS, every first and second run of a program stopped by its own clock."""

    def clearSolver(self) -> Any:
        raise AssertionError("what was reached so far is thrown away")

    def getModelStatus(self) -> Any:
        import highspy

        late = highspy.HighsModelStatus.kTimeLimit
        return late if self.runs % 3 else self.solver.getModelStatus()


def test_a_program_that_is_stopped_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The solver's limit is wall time; a deadline may count the processor's."""
    load = Relaxation._load
    monkeypatch.setattr(Relaxation, "_load", lambda self, box: Slow(load(self, box)))
    monkeypatch.setattr(Relaxation, "values", lambda self, at, _: np.full((len(at), 2), -np.inf))
    (instance,) = (i for i in bench().formulas(True, 0) if i.name == "3-sat_v12_c60")
    query = instance.query()
    (verdict,) = BranchAndBound(choose=alone).decide([query], Budget(seconds=60, proofs=True))
    assert verdict.status is Status.VERIFIED


def test_the_papers_networks_are_searched_by_programs() -> None:
    network = networks.load(create("paper-mnist"), input_shape=(1, 28, 28))
    assert depth_first.fits(network.relu_form)


def test_searches_that_take_turns_go_on_where_they_were() -> None:
    (instance,) = (i for i in bench().formulas(True, 0) if i.name == "3-sat_v12_c60")
    query = instance.query()
    prover = NeuronProver(ChainBounder(query.form), turn=1e-3)
    assert prover.prove(query, clock.now() + 60.0, lambda *_: None).proved


def test_propagation_keeps_every_violation() -> None:
    """Points that violate lie within what a violation is said to imply."""
    kept = shrunk = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        network = random_network(rng, skips=seed % 2 == 0)
        form = network.relu_form
        centre, radius = rng.standard_normal(form.input_size), 1.0
        query = Query(
            network, centre - radius, centre + radius,
            random_condition(rng, 3, form.input_size, 0),
        )  # fmt: skip
        points = rng.uniform(query.lower, query.upper, (400, form.input_size))
        condition = query.search
        values = condition.leaf_values(form.forward(points), points)
        rows = Rows.of(form)
        inputs = None if condition.inputs is None else -condition.inputs
        objectives, constants = rows.objectives(
            form, -condition.outputs, -condition.constant, inputs
        )
        z = np.concatenate(form.pre_activations(points)[:-1], axis=1)
        columns = np.concatenate([points, np.maximum(z, 0.0)], axis=1)
        assert np.allclose(columns @ objectives.T + constants, -values)
        ends = [z.min(axis=0) - 1.0, z.max(axis=0) + 1.0]
        box = query.lower, query.upper
        implied = Implications(rows, box, (ends[0], ends[1]), objectives, constants)
        violating = (values >= 0).all(axis=1)
        if not implied.possible:
            assert not violating.any(), seed
            shrunk += 1
            continue
        low, high, zlow, zhigh = implied.root
        slack = 1e-6 * (1.0 + np.abs(columns).max())
        assert (columns[violating] >= low - slack).all(), seed
        assert (columns[violating] <= high + slack).all(), seed
        assert (z[violating] >= zlow - slack).all() and (z[violating] <= zhigh + slack).all(), seed
        kept += int(violating.sum())
        shrunk += bool((high - low)[: form.input_size].sum() < 1.9 * form.input_size)
    assert kept > 1000 and shrunk > 20
