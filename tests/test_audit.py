"""The checker itself: rigour of folds and bounds, claims, witnesses, independence, command line."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audit_cases import EDGES, SHAPE, Certified, certified, hashes, make_case, seal
from torch import nn
from typer.testing import CliRunner

import qll
from qll.audit import audit
from qll.audit.bounds import Bounder, Groups
from qll.audit.exact import ONE
from qll.audit.layout import CASE, CROWN, HALVE, unpack
from qll.audit.network import NotConfirmed, read_network
from qll.cli.main import build_app
from qll.formula.hard import Max, Min, affine
from qll.formula.rewrite import Shape
from qll.networks import load
from qll.properties import parse
from qll.verify.api import Problem
from qll.verify.backend import BACKENDS, Budget
from qll.verify.certificate import certify, confirm, write
from qll.verify.query import Query
from qll.verify.verdict import Reason, Status, Verdict

PACKAGE = Path(qll.__file__).parent / "audit"
RNG = np.random.default_rng(7)


def decide(query: Query) -> Verdict:
    return BACKENDS["bab"]().decide([query], Budget(seconds=5.0, proofs=True))[0]


# --- independence ---


def test_the_checker_loads_nothing_of_the_prover() -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'numba', 'scipy', 'onnxruntime'): sys.modules[name] = None\n"
        "import qll.audit.check\n"
        "ours = sorted(m for m in sys.modules if m.startswith('qll.'))\n"
        "print(' '.join(m for m in ours if m.split('.')[1] not in "
        "('audit', 'formula', 'errors', 'registry')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def test_the_checker_imports_only_what_it_may() -> None:
    allowed = {"numpy", "onnx", "qll"} | set(sys.stdlib_module_names)
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] in allowed, (path.name, name)
                if name.startswith("qll."):
                    assert name.split(".")[1] in ("audit", "formula", "errors"), (path.name, name)


def test_the_checker_is_small() -> None:
    """Lines of code, wherever they stand; what explains them is free."""
    most = 2900
    assert sum(map(code_lines, PACKAGE.rglob("*.py"))) < most
    page = Path(__file__).parents[1] / "docs/how.md"
    assert f"below {most:,} lines of code" in page.read_text(encoding="utf-8")


def code_lines(path: Path) -> int:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lines = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt | ast.expr | ast.arg | ast.keyword | ast.alias)
        for line in (node.lineno, node.end_lineno or node.lineno)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


# --- the network ---


@pytest.mark.parametrize("k", [0, 1, 2])
def test_each_weight_of_the_exact_fold_is_rounded_once(k: int) -> None:
    case = make_case(0)
    network = read_network(case.network.source, (0.4,), (0.3,))
    exact, (((source, weight, size),), bias) = network.maps[k], network.floats[k]
    assert source == k
    assert (size == np.abs(weight)).all()
    for i, (row, below) in enumerate(zip(exact.rows, exact.below, strict=True)):
        places = [*range(network.starts[k], network.starts[k] + weight.shape[1]), ONE]
        for j, found in zip(places, [*weight[i], bias[i]], strict=True):
            error = abs(Fraction(row.get(j, 0), below) - Fraction(found))
            assert error <= abs(Fraction(found)) / 2**53
    theirs = case.network.relu_form.layers[k]
    np.testing.assert_allclose(weight, _dense(theirs.terms[0][1]), atol=1e-12)
    np.testing.assert_allclose(bias, theirs.bias, atol=1e-12)


def _dense(weight: Any) -> Any:
    return weight if isinstance(weight, np.ndarray) else weight.toarray()


def test_both_readers_agree_exactly() -> None:
    for seed, text, *_ in EDGES[:3]:
        case = make_case(seed, text)
        network = read_network(case.network.source, (0.4,), (0.3,))
        for point in (case.x0, RNG.normal(size=36), np.zeros(36)):  # theirs is not folded
            assert network.exact(point.tolist()) == list(case.network.evaluate_exact(point))


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(36, 3), nn.ELU()),
        nn.Sequential(nn.MaxPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(9, 3)),
    ],
    ids=["elu", "max pool that rounds up"],
)
def test_what_is_not_understood_is_refused(module: nn.Module) -> None:
    import io

    buffer = io.BytesIO()
    torch.onnx.export(module, (torch.zeros(1, *SHAPE),), buffer, dynamo=False)
    with pytest.raises(NotConfirmed, match=r"not understood|of this form|cannot be read"):
        read_network(buffer.getvalue(), None, None)


# --- bounds ---


@pytest.mark.parametrize("hull", [True, False])
def test_any_multipliers_give_a_bound_that_holds(hull: bool) -> None:
    """Random, even infeasible, multipliers, against exact values at many points of the box."""
    case = make_case(3)
    network = read_network(case.network.source, (0.4,), (0.3,))
    groups = None
    if hull:
        from qll.bounds.groups import group_neurons

        form = case.network.relu_form
        found = group_neurons(form.layers[0].terms[0][1], 36)
        wide = int(np.diff(found.copy_starts).max())
        neuron = np.full((found.count, int(np.diff(found.neuron_starts).max())), 27)
        column = np.full((found.count, wide), 36)
        for g in range(found.count):
            rows = found.order[found.neuron_starts[g] : found.neuron_starts[g + 1]]
            reads = found.copy_input[found.copy_starts[g] : found.copy_starts[g + 1]]
            neuron[g, : rows.size], column[g, : reads.size] = rows, reads
        groups = Groups(network, neuron, column)
    bounder = Bounder(network, groups)
    lower, upper = np.clip(case.x0 - 0.1, 0, 1), np.clip(case.x0 + 0.1, 0, 1)
    area = bounder.area(lower, upper)
    points = RNG.uniform(lower, upper, (300, 36))
    points[:100] = np.where(RNG.random((100, 36)) < 0.5, lower, upper)
    outputs = case.network.relu_form.forward(points)
    for _ in range(30):
        b, direct = RNG.normal(size=(4, 3)), RNG.normal(size=(4, 36))
        bound = bounder.lower(
            area, 3, b, (direct, np.abs(direct)),
            alpha=RNG.normal(0.5, 1.0, (4, 33)),
            delta=RNG.normal(size=(4, groups.others.size)) if groups else None,
        )  # fmt: skip
        least = (outputs @ b.T + points @ direct.T).min(axis=0)
        assert (bound <= least).all()
        assert (bound > -1e6).all()


def test_the_bound_of_an_affine_function_is_tight() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    network = load(module, input_shape=SHAPE)
    bounder = Bounder(read_network(network.source, None, None))
    lower, upper = np.zeros(36), np.ones(36)
    bound = bounder.lower(bounder.area(lower, upper), 1, np.eye(3))
    weight = network.relu_form.layers[0].terms[0][1]
    exact = np.minimum(weight, 0).sum(axis=1) + network.relu_form.layers[0].bias
    assert (bound <= exact).all()
    np.testing.assert_allclose(bound, exact, atol=1e-11)


def test_a_tie_is_not_proved() -> None:
    """max(x, 0) >= 0 holds with equality: outward rounding must leave it open."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.ReLU(), nn.Linear(4, 3))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(0.25)
        module[3].bias.zero_()
    network = load(module, input_shape=SHAPE)
    form = affine([(("y", 0), -1.0)], 0.0)
    query = Query(network, np.full(36, -1.0), np.ones(36), form, tie_violates=True)
    verdict = decide(query)
    if verdict.status is Status.VERIFIED:
        assert not certify(query, verdict)[1].confirmed


# --- claims ---


def test_a_query_without_a_property_is_certified_by_its_own_text() -> None:
    c = certified()[0]
    query = c.case.query(c.epsilon)
    data, answer = certify(query, decide(query))
    assert answer.confirmed, answer
    assert "box(" in unpack(data)[0].text


def test_inputs_and_constraints_enter_the_claim() -> None:
    """Only the region's constraint makes the property true: both are atoms of one combination."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    network = load(module, input_shape=(4,))
    text = """
outputs 3
forall x in box(0, 1) and x[0] + x[1] <= 0.5:
  y[0] <= 10 and x[0] + x[1] <= 0.55
"""
    point = np.zeros((1, 4))
    (verdict,) = qll.verify(parse(text, outputs=3), network, point, certified=True, timeout=5.0)
    assert verdict.status is Status.VERIFIED, verdict
    assert "confirmed" in verdict.notes[0]
    loose = text.replace("0.5:", "0.6:")
    (verdict,) = qll.verify(parse(loose, outputs=3), network, point, certified=True, timeout=5.0)
    assert verdict.status is Status.FALSIFIED, verdict


def test_few_inputs_are_certified_by_halved_boxes() -> None:
    torch.manual_seed(1)
    module = nn.Sequential(
        nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 2)
    )
    network = load(module, input_shape=(3,))
    points = np.random.default_rng(0).uniform(-1, 1, (4000, 3))
    top = float(network.relu_form.forward(points)[:, 0].max())
    form = affine([(("y", 0), 1.0)], -top - 0.02)
    query = Query(network, np.full(3, -1.0), np.ones(3), form)
    verdict = decide(query)
    assert verdict.status is Status.VERIFIED and verdict.stage == "boxes"
    data, answer = certify(query, verdict)
    assert answer.confirmed, answer
    header, arrays = unpack(data)
    assert repr(top + 0.02) in header.text
    text = header.text.replace(repr(top + 0.02), repr(top - 0.05))
    changed = hashes(text, None, Shape(2, (3,)), query.lower, query.upper)
    answer = audit(seal({**asdict(header), "text": text, **changed}, arrays), network.source)
    assert not answer.confirmed and "not proved" in answer.reason


def test_the_outputs_at_the_data_point_are_exact_constants() -> None:
    case = make_case(5)
    text = """
outputs 3
parameter epsilon: input = 0.01
forall x in ball(x0, epsilon) and range(0, 1):
  forall i in outputs: y[i] - y0[i] <= 2 and y0[i] - y[i] <= 2
"""
    verdicts = qll.verify(
        parse(text, outputs=3),
        case.network,
        case.x0.reshape(1, *SHAPE),
        certified=True,
        timeout=5.0,
    )
    assert verdicts[0].status is Status.VERIFIED, verdicts[0]
    assert "confirmed" in verdicts[0].notes[0]


def halved(depth: int, level: int = 0) -> list[tuple[int, int]]:
    if level == depth:
        return [(CASE, 0), (CROWN, 0), (CROWN, 0)]  # both parts of the disjunction
    inner = halved(depth, level + 1)
    return [(HALVE, (5 * level + 14) % 36), *inner, *inner]


def test_halved_boxes_are_checked_by_crown() -> None:
    """A tree of boxes, written by hand: each leaf alone is provable, the whole is not at once."""
    c = certified()[2]
    header, arrays = c.parts()
    for depth in range(12):
        nodes = halved(depth)
        tree = {
            **arrays,
            "kinds": np.array([kind for kind, _ in nodes], dtype="u1"),
            "arguments": np.array([argument for _, argument in nodes], dtype="<u4"),
            "weights": np.ones(2 * 2**depth, dtype="<f4"),
            **{n: arrays[n][:0] for n in ("alpha", "delta", "delta_scale", "beta", "targets")},
            "groups": np.zeros(3, "<u4"),
            "group_neurons": arrays["group_neurons"][:0],
            "group_inputs": arrays["group_inputs"][:0],
        }
        answer = audit(seal(of_radius(c, header, c.epsilon * 0.9), tree), c.case.network.source)
        if answer.confirmed:
            break
    assert answer.confirmed, answer
    false = of_radius(c, header, c.false_epsilon)
    assert not audit(seal(false, tree), c.case.network.source).confirmed


def of_radius(c: Certified, header: dict[str, Any], epsilon: float) -> dict[str, Any]:
    text = header["text"].replace(f"= {c.epsilon!r}\n", f"= {epsilon!r}\n")
    lower, upper = np.clip(c.case.x0 - epsilon, 0, 1), np.clip(c.case.x0 + epsilon, 0, 1)
    labels = header["labels"]
    return {**header, "text": text, **hashes(text, labels, Shape(3, SHAPE), lower, upper)}


# --- witnesses ---


def test_witnesses_are_replayed() -> None:
    for c in certified():
        query, subject = c.case.query(c.false_epsilon), c.case.subject(c.false_epsilon)
        claimed = Verdict(Status.FALSIFIED, "attack", witness=c.witness)
        _, answer = certify(query, claimed, subject)
        assert answer.confirmed, answer
        outside = c.witness.copy()
        outside[0] = query.upper[0] + 1e-12
        for wrong, reason in (
            (outside, "outside"),
            (c.case.x0, "satisfies"),
            (c.witness[:-1], "another length"),
            (np.full(36, np.nan), "out of range"),
        ):
            _, answer = certify(query, replace(claimed, witness=wrong), subject)
            assert not answer.confirmed and reason in answer.reason


def test_a_witness_on_the_tie_is_a_violation_only_where_ties_count() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    network = load(module, input_shape=SHAPE)
    form = Min((affine([(("y", 0), 1.0)]), Max((affine([(("y", 1), 1.0)]),))))
    for tie in (False, True):
        query = Query(network, np.zeros(36), np.ones(36), form, tie_violates=tie)
        claimed = Verdict(Status.FALSIFIED, "attack", witness=np.full(36, 0.5))
        assert certify(query, claimed)[1].confirmed is tie


# --- around it ---


def test_confirm_downgrades_what_is_not_confirmed() -> None:
    c = certified()[0]
    query, subject = c.case.query(c.false_epsilon), c.case.subject(c.false_epsilon)
    verdict, data = confirm(query, Verdict(Status.VERIFIED, "root"), subject)
    assert verdict.status is Status.UNKNOWN and verdict.reason is Reason.UNCONFIRMED
    assert data is None and "was verified" in verdict.notes[-1]
    good = c.case.decide(c.epsilon)
    verdict, data = confirm(c.case.query(c.epsilon), good, c.case.subject(c.epsilon))
    assert verdict.status is Status.VERIFIED and data is not None
    assert verdict.notes == ("confirmed by the independent checker (proved)",)


def test_the_command_line_says_yes_and_no(tmp_path: Path) -> None:
    cases = certified()[:2]
    for index, c in enumerate(cases):
        write(tmp_path, f"{index:05d}", c.data, c.case.network.source)
    app, runner = build_app(), CliRunner()
    done = runner.invoke(app, ["audit", str(tmp_path), "--json", str(tmp_path / "a.json")])
    assert done.exit_code == 0, done.output
    assert "verified: 2 of 2 confirmed" in done.output
    assert "real arithmetic on the stored weights" in done.output
    other = tmp_path / "other.onnx"
    other.write_bytes(cases[1].case.network.source)
    done = runner.invoke(app, ["audit", str(tmp_path), "--network", str(other)])
    assert done.exit_code == 12
    assert "00000.qllcert: verified: NOT CONFIRMED: another network" in done.output
    (tmp_path / "00001.qllcert").write_bytes(cases[1].data[:-3])
    done = runner.invoke(app, ["audit", str(tmp_path)])
    assert done.exit_code == 12 and "checksum" in done.output


@pytest.mark.slow
def test_published_networks(shared: Path) -> None:
    """Every property of the corpus, at the root and with splits: proved, written, confirmed."""
    bench = Path(__file__).parents[1] / "bench"
    done = subprocess.run(
        [sys.executable, str(bench / "audit_corpus.py"), str(shared / "corpus"),
         "--rows", "/0/QLL_5/", "--count", "8"],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "verified confirmed 100.000 %" in done.stdout, done.stdout


def test_a_proof_without_a_hull_is_confirmed() -> None:
    """So small a region that no neuron of the first layer is open: no subset to try."""
    c = certified()[0]
    verdict = c.case.decide(0.001)
    assert verdict.status is Status.VERIFIED
    _, answer = certify(c.case.query(0.001), verdict, c.case.subject(0.001))
    assert answer.confirmed, answer


def test_the_normalisation_of_a_network_that_was_read_before_counts() -> None:
    """A handle, and its bytes with the same mean and deviation, are the same question."""
    c = certified()[0]
    x0 = c.case.x0.reshape(1, *SHAPE)
    problem = Problem.of(c.case.prop, c.case.network, x0, [c.case.label], timeout=5.0)
    assert (problem.mean, problem.std) == (0.4, 0.3)
    found = problem.handle.relu_form.forward(c.case.x0[None])
    expected = c.case.network.relu_form.forward(c.case.x0[None])
    np.testing.assert_allclose(found, expected, rtol=1e-12)
