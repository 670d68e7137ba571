"""Verdicts about float32: what no order of summation, fused or not, may contradict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from float32_cases import evaluations, growing, linear, losing, random_network, random_order
from torch import Tensor, nn
from typer.testing import CliRunner

import qll
from qll.audit import audit, read_claim
from qll.audit.float32 import Errors, beyond
from qll.audit.layout import unpack
from qll.audit.network import read_network
from qll.cli.main import build_app
from qll.errors import InputError
from qll.formula.parse import parse_specification
from qll.networks import load
from qll.networks.orders import Order, fused, replay
from qll.property import Property
from qll.verify.arithmetic import on_grid, outputs_at, radii
from qll.verify.backend import BACKENDS, Budget
from qll.verify.certificate import certify, pack
from qll.verify.query import Query
from qll.verify.verdict import Reason, Status, Verdict

BOTH = [
    (losing, "forall x in box(0.25, 0.9): y[0] >= -0.5", "verified", "falsified"),
    (growing, "forall x in box(0, 0.5): y[0] <= 16777216", "falsified", "verified"),
]


def prop_of(text: str) -> Property:
    return Property(parse_specification(text), {})


@pytest.mark.parametrize(("network", "text", "real", "single"), BOTH)
def test_real_and_float32_disagree_and_both_are_answered(
    network: Any, text: str, real: str, single: str, tmp_path: Path
) -> None:
    x = torch.tensor([[0.4]])
    for arithmetic, wanted in (("real", real), ("float32", single)):
        found = qll.verify(
            prop_of(text), network(), x, arithmetic=arithmetic, certificates=tmp_path / arithmetic,
            certified=True,
        )[0]  # fmt: skip
        assert str(found.status) == wanted
        (data,) = (p.read_bytes() for p in (tmp_path / arithmetic).glob("*.qllcert"))
        (file,) = (p.read_bytes() for p in (tmp_path / arithmetic).glob("*.onnx"))
        claim = read_claim(tmp_path / arithmetic / "claim.toml")
        answer = audit(data, file, claim)
        assert answer.confirmed and answer.claim is not None
        assert f"arithmetic: {arithmetic}" in answer.claim.shared
        other = read_claim(tmp_path / "real" / "claim.toml")
        if arithmetic == "float32":
            answer = audit(data, file, other)
            assert not answer.confirmed and "arithmetic is float32, not real" in answer.reason


def test_a_witness_of_one_arithmetic_is_none_of_the_other() -> None:
    """By default a witness has to count in both."""
    network, text = growing(), BOTH[1][1]
    found = qll.verify(prop_of(text), network, torch.tensor([[0.4]]))[0]
    assert found.reason is Reason.NEAR_TIE


def _case(rng: np.random.Generator) -> tuple[Any, Query]:
    """A query whose threshold is within a few thousand roundings of what the network reaches."""
    network, _ = random_network(rng)
    middle = rng.normal(size=network.input_size) * float(rng.choice([1.0, 10.0, 1e-3]))
    half = rng.random(network.input_size) * float(rng.choice([0.0, 0.01, 0.5]))
    lower, upper = middle - half, middle + half
    points = rng.uniform(lower, upper, size=(200, network.input_size))
    outputs = network.relu_form.forward(points)
    best, size = float(outputs[:, 0].max()), float(np.abs(outputs).max()) + 1e-30
    reach = best + float(rng.choice([-1e-6, 1e-7, 3e-6, 1e-4])) * size
    sign = ">=" if rng.random() < 0.2 else "<="
    text = f"forall x in box(0, 1): y[0] {sign} {reach!r}"
    if rng.random() < 0.4:
        gap = float((outputs[:, 0] - outputs[:, 1]).max()) + float(rng.choice([1e-6, 1e-4])) * size
        text = f"forall x in box(0, 1): y[0] - y[1] <= {gap!r}"
    form = prop_of(text).hard_form(None, outputs=2, inputs=(network.input_size,))
    return network, Query(network, lower, upper, form, arithmetic="float32")


def assert_not_contradicted(seed: int) -> tuple[Status, bool]:
    """The status, and whether the checker confirms it: what it does not is too near to tell."""
    rng = np.random.default_rng(seed)
    network, query = _case(rng)
    verdict = BACKENDS["bab"]().decide([query], Budget(0.25, proofs=True))[0]
    points = [query.clip(rng.uniform(query.lower, query.upper)) for _ in range(6)]
    points += [query.clip(np.where(rng.random(query.lower.size) < 0.5, query.lower, query.upper))]
    if verdict.status is Status.FALSIFIED:
        assert verdict.witness is not None
        points = [verdict.witness]
    for point in points:
        if verdict.status is Status.UNKNOWN or not query.contains(point):
            continue
        for answer in evaluations(network, point, rng, 5):
            value = query.compiled.exact_value([float(v) for v in answer], point)  # type: ignore[misc]
            assert (value > 0) == (verdict.status is Status.FALSIFIED), (seed, point)
    if not verdict.decided or verdict.vacuous:
        return verdict.status, True
    _, confirmed = certify(query, verdict)
    near = "not proved" in confirmed.reason or "satisfies the property" in confirmed.reason
    assert confirmed.confirmed or near, (seed, confirmed.reason)
    return verdict.status, confirmed.confirmed


def assert_no_contradictions(seeds: range) -> None:
    found = [assert_not_contradicted(seed) for seed in seeds]
    assert {Status.VERIFIED, Status.FALSIFIED} <= {status for status, _ in found}
    assert sum(confirmed for _, confirmed in found) >= 0.95 * len(found)


@pytest.mark.parametrize("first", [0, 60])
def test_no_order_contradicts_a_verdict(first: int) -> None:
    assert_no_contradictions(range(first, first + 60))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(120, 1000, 80))
def test_no_order_contradicts_a_verdict_at_length(first: int) -> None:
    assert_no_contradictions(range(first, first + 80))


@pytest.mark.parametrize("seed", range(40))
def test_every_evaluation_is_within_the_radii_of_prover_and_checker(seed: int) -> None:
    rng = np.random.default_rng(seed)
    network, _ = random_network(rng)
    lower = rng.normal(size=network.input_size) * float(rng.choice([1.0, 10.0, 1e-3]))
    upper = lower + rng.random(network.input_size) * float(rng.choice([0.0, 0.01, 1.0]))
    checker = Errors(read_network(network.source, None, None, True))
    area = checker.bounder.crown(checker.bounder.area(lower[None, None], upper[None, None]))
    ends = area.low[0, 0], area.high[0, 0]
    both = [
        radii(network, lower, upper, np.eye(2)),
        checker.radii((lower, upper), ends, np.eye(2)),
    ]
    for _ in range(3):
        point = rng.uniform(lower, upper).astype(np.float32).astype(np.float64)
        real = np.array([float(v) for v in network.evaluate_exact(point)])
        sides = [outputs_at(network, point, *network.enclose(point)), checker.outputs(point)]
        for answer in evaluations(network, point, rng, 5):
            for low, high in sides:
                assert (answer >= low).all() and (answer <= high).all()
            if (point >= lower).all() and (point <= upper).all():
                for radius in both:
                    assert (np.abs(answer - real) <= radius).all()


def test_layers_with_windows_and_normalisations_are_covered() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(3, 2, 2), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(2, 2),
    ).eval()  # fmt: skip
    bn = model[1]
    bn.running_mean.uniform_(-1, 1), bn.running_var.uniform_(0.1, 2), bn.weight.data.uniform_(-2, 2)
    mean, std = np.array([0.3, 0.5]), np.array([0.2, 0.7])
    network = load(model, input_shape=(2, 6, 6), mean=mean, std=std)
    scales = tuple(tuple(float(v) for v in part) for part in network.normalisation or ())
    checker = Errors(read_network(network.source, *scales, True))
    rng = np.random.default_rng(0)
    for half in (0.0, 0.05):
        lower = rng.random(72)
        upper = lower + half
        found = radii(network, lower, upper, np.eye(2))
        area = checker.bounder.crown(checker.bounder.area(lower[None, None], upper[None, None]))
        theirs = checker.radii((lower, upper), (area.low[0, 0], area.high[0, 0]), np.eye(2))
        assert (found < 1e-3).all() and (theirs <= 1.01 * found).all()
        for _ in range(5):
            point = rng.uniform(lower, upper).astype(np.float32).astype(np.float64)
            real = np.array([float(v) for v in network.evaluate_exact(point)])
            away = np.abs(np.asarray(network.runtime(point[None]), np.float64)[0] - real)
            if half:
                assert (away <= theirs).all()
            low, high = checker.outputs(point)
            assert (real + away >= low).all() and (low <= high).all()


class Extrema(nn.Module):
    """Maxima and minima of branches and of a constant, between sums that lose digits."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        bias = rng.normal(size=6) * float(rng.choice([1.0, 100.0, 2.0**20]))
        self.first = linear((rng.normal(size=(6, 3)) * 3).tolist(), bias.tolist())
        self.last = linear(rng.normal(size=(2, 3)).tolist(), (-rng.normal(size=2) * 50).tolist())

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        high = torch.maximum(h[:, :3], h[:, 3:] * 0.3)
        return self.last(torch.minimum(high, torch.maximum(h[:, 3:], torch.tensor(0.1))))

    def in_some_order(self, point: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The operators themselves: a maximum picks one of two numbers and rounds nothing."""

        def linear_map(layer: nn.Linear, x: np.ndarray) -> np.ndarray:
            terms = np.concatenate([(layer.weight.numpy() * x).T, layer.bias.numpy()[None]])
            rng.shuffle(terms)
            total = np.zeros(len(layer.weight), dtype=np.float32)
            for term in terms:
                total = total + term
            return total

        with torch.no_grad():
            h = linear_map(self.first, point.astype(np.float32))
            high = np.maximum(h[:3], h[3:] * np.float32(0.3))
            return linear_map(self.last, np.minimum(high, np.maximum(h[3:], np.float32(0.1))))


@pytest.mark.parametrize("seed", range(12))
def test_maxima_and_minima_round_nothing_of_their_own(seed: int) -> None:
    """Radii of prover and checker hold whatever the order."""
    rng, model = np.random.default_rng(seed), Extrema(seed).eval()
    network = load(model, input_shape=(3,))
    checker = Errors(read_network(network.source, None, None, True))
    lower = rng.normal(size=3)
    upper = lower + float(rng.choice([0.0, 0.01, 0.5]))
    area = checker.bounder.crown(checker.bounder.area(lower[None, None], upper[None, None]))
    both = [
        radii(network, lower, upper, np.eye(2)),
        checker.radii((lower, upper), (area.low[0, 0], area.high[0, 0]), np.eye(2)),
    ]
    for _ in range(5):
        point = rng.uniform(lower, upper).astype(np.float32).astype(np.float64)
        real = np.array([float(v) for v in network.evaluate_exact(point)])
        sides = [outputs_at(network, point, *network.enclose(point)), checker.outputs(point)]
        answers = [model.in_some_order(point, rng) for _ in range(6)]
        answers.append(np.asarray(network.runtime(point[None].astype(np.float32)))[0])
        for answer in answers:
            for low, high in sides:
                assert (answer >= low).all() and (answer <= high).all()
            if (point >= lower).all() and (point <= upper).all():
                for radius in both:
                    assert (np.abs(answer - real) <= radius).all()


def test_extrema_are_decided_and_certified_in_float32() -> None:
    model, x = Extrema(3).eval(), torch.tensor([[0.3, -0.2, 0.5]])
    with torch.no_grad():
        values = model(x + 0.02 * torch.rand(5000, 3) - 0.01)[:, 0]
    for shift, wanted in ((0.3, Status.VERIFIED), (-0.3, Status.FALSIFIED)):
        level = float(values.max() + shift * (values.max() - values.min()))
        rule = prop_of(f"forall x in ball(x0, 0.01): y[0] <= {level!r}")
        found = qll.verify(rule, model, x, arithmetic="float32", certified=True, timeout=20)[0]
        assert found.status is wanted


def test_a_proof_in_real_numbers_is_none_in_float32() -> None:
    """The header is changed, the tree is not: only what holds by the radius is confirmed."""
    network = load(losing(), input_shape=(1,))
    text = "forall x in box(0.25, 0.9): y[0] >= -0.5"
    form = prop_of(text).hard_form(None, outputs=1, inputs=(1,))
    query = Query(network, np.array([0.25]), np.array([0.9]), form)
    verdict = BACKENDS["bab"]().decide([query], Budget(5.0, proofs=True))[0]
    data, answer = certify(query, verdict)
    assert verdict.status is Status.VERIFIED and answer.confirmed
    header, arrays = unpack(data)
    forged = pack(_changed(header, arithmetic="float32"), arrays)
    answer = audit(forged, network.source)
    assert not answer.confirmed and "not proved" in answer.reason
    for wrong in ("float16", "", None):
        answer = audit(pack(_changed(header, arithmetic=wrong), arrays), network.source)
        assert not answer.confirmed and "arithmetic" in answer.reason


def _changed(header: Any, **fields: Any) -> Any:
    from dataclasses import replace

    return replace(header, **fields)


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        (0.5, "not proved for every float32 evaluation"),
        (0.1 + 1e-12, "breaks a constraint"),
        (0.75, "outside"),
    ],
)
def test_forged_witnesses_are_refused(point: float, reason: str) -> None:
    """0.5 violates in real numbers, and in no float32 evaluation."""
    network, text = load(growing(), input_shape=(1,)), BOTH[1][1]
    form = prop_of(text).hard_form(None, outputs=1, inputs=(1,))
    query = Query(network, np.array([0.0]), np.array([0.5]), form, arithmetic="float32")
    verdict = Verdict(Status.FALSIFIED, "forged", witness=np.array([point]))
    _, answer = certify(query, verdict)
    assert not answer.confirmed and reason in answer.reason


def test_the_next_float32_number() -> None:
    from fractions import Fraction

    one = Fraction(1)
    assert beyond(one, reached=True) == 1
    assert beyond(one, reached=False) == Fraction(float(np.nextafter(np.float32(1), np.float32(2))))
    assert beyond(Fraction(0), reached=False) == Fraction(1, 1 << 149)
    assert beyond(Fraction(-1, 1 << 200), reached=False) == 0
    rng = np.random.default_rng(0)
    for value in rng.normal(size=50) * 10.0 ** rng.integers(-40, 38, size=50):
        bound = Fraction(float(value))
        found = beyond(bound, reached=False)
        before = np.nextafter(np.float32(float(found)), np.float32(-np.inf))
        assert Fraction(float(np.float32(float(found)))) == found > bound
        assert Fraction(float(before)) <= bound
        leaf = prop_of(f"forall x in box(0, 1): y[0] <= {float(value)!r}").hard_form(
            None, outputs=1, inputs=(1,)
        )
        assert -on_grid(leaf, tie_violates=False).constant == found  # type: ignore[operator, arg-type]


def test_a_fused_product_is_rounded_once() -> None:
    a = np.array([1 + 2.0**-12], np.float32)
    c = -(a * a)
    assert fused(a, a, c)[0] == np.float32(2.0**-24)
    assert (a * a + c)[0] == 0.0
    network = load(nn.Sequential(linear([[1 + 2.0**-12]], [float(c[0])])), input_shape=(1,))
    answers = [
        replay(network.program, a.astype(float), Order(fused=f, bias_first=True))
        for f in (True, False)
    ]
    assert answers[0][0] == np.float32(2.0**-24) and answers[1][0] == 0.0
    assert random_order(np.random.default_rng(0)).sequence


@pytest.mark.parametrize("kind", ["sigmoid", "softmax", "square", "float64", "y0", "arithmetic"])
def test_what_float32_cannot_judge_is_refused_by_name(kind: str) -> None:
    model: nn.Module = nn.Sequential(nn.Linear(2, 2), nn.Sigmoid(), nn.Linear(2, 2))
    text, arithmetic, x = "forall x in box(0, 1): y[0] <= 5", "float32", torch.zeros(1, 2)
    if kind == "float64":
        model, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).double(), x.double()
    elif kind == "y0":
        model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        text = "forall x in ball(x0, 0.1): y[0] <= y0[0] + 1"
    elif kind == "arithmetic":
        arithmetic = "float16"
    elif kind == "softmax":
        model = nn.Sequential(nn.Linear(2, 2), nn.Softmax(1))
    elif kind == "square":
        model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    with pytest.raises(InputError) as caught:
        qll.verify(prop_of(text), model, x, arithmetic=arithmetic)
    wanted = {"sigmoid": "sigmoid", "softmax": "exp", "square": "square"}
    wanted |= {"float64": "not a float32 tensor", "y0": "y0"}
    assert wanted.get(kind, "float16") in str(caught.value)


def test_marabou_is_not_asked() -> None:
    network = load(growing(), input_shape=(1,))
    form = prop_of(BOTH[1][1]).hard_form(None, outputs=1, inputs=(1,))
    query = Query(network, np.array([0.0]), np.array([0.5]), form, arithmetic="float32")
    assert "float32" in (BACKENDS["marabou"]().refuses(query) or "")


def test_the_command_line(tmp_path: Path) -> None:
    from qll.data.idx import write_idx

    rng = np.random.default_rng(0)
    write_idx(tmp_path / "x.idx", rng.random((2, 2, 2)).astype(np.float32))
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    (tmp_path / "net.onnx").write_bytes(load(model, input_shape=(1, 2, 2)).source)
    (tmp_path / "p.qll").write_text("forall x in ball(x0, 0.01): y[0] <= 100\n")
    app, runner = build_app(), CliRunner()
    asked = ["verify", str(tmp_path / "p.qll"), "--network", str(tmp_path / "net.onnx")]
    asked += ["--images", str(tmp_path / "x.idx"), "--jobs", "1"]
    asked += ["--certificate", str(tmp_path / "proofs")]
    done = runner.invoke(app, [*asked, "--arithmetic", "float32"])
    assert done.exit_code == 0, done.output
    done = runner.invoke(app, ["audit", str(tmp_path / "proofs")])
    assert done.exit_code == 0 and "arithmetic: float32: every evaluation" in done.output
    done = runner.invoke(app, [*asked, "--arithmetic", "half"])
    assert done.exit_code != 0 and "no arithmetic 'half'" in str(done.exception)


QUERY = """(vnnlib-version <2.0>)
(declare-network f
  (declare-input X float32 [1,1])
  (declare-output Y float32 [1,1])
)
(assert (>= X[0,0] {low}))
(assert (<= X[0,0] {high}))
(assert ({sign} Y[0,0] {bound}))
"""


@pytest.mark.parametrize(
    ("network", "fields", "real", "single"),
    [
        (losing, {"low": 0.25, "high": 0.9, "sign": "<", "bound": -0.5}, "unsat", "sat"),
        (growing, {"low": 0.0, "high": 0.5, "sign": ">", "bound": 16777216.0}, "sat", "unsat"),
        (growing, {"low": 0.1, "high": 0.1, "sign": ">", "bound": 16777216.0}, "sat", "unsat"),
    ],
)
def test_a_query_of_float32_is_decided_in_it(
    network: Any, fields: dict[str, Any], real: str, single: str, tmp_path: Path
) -> None:
    """0.1 is no float32 number: an input that is fixed at it is the nearest one."""
    (tmp_path / "net.onnx").write_bytes(load(network(), input_shape=(1,)).source)
    from qll.cli.solver import build_solver

    for element, arithmetic, wanted in (
        ("float32", None, single), ("real", "float32", single), ("real", "real", real),
        ("float32", "real", "error"), ("float64", None, "error"),
    ):  # fmt: skip
        path = tmp_path / f"{element}.vnnlib"
        path.write_text(QUERY.format(**fields).replace("float32", element))
        asked = [str(path), "--network", f"f={tmp_path / 'net.onnx'}", "--timeout", "20"]
        asked += [] if arithmetic is None else ["--arithmetic", arithmetic]
        done = CliRunner().invoke(build_solver(), asked)
        if wanted == "error":
            assert isinstance(done.exception, InputError) and "sound" in str(done.exception)
        else:
            assert done.stdout.split("\n")[0] == wanted, (element, arithmetic, done.output)


@pytest.mark.parametrize(("least", "wanted"), [(-1, "falsified"), (1, "verified")])
def test_a_rule_that_reads_no_output_is_decided(least: int, wanted: str) -> None:
    prop = prop_of(f"forall x in box(0, 1): 0 * y[0] <= {least}")
    network = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    (verdict,) = qll.verify(prop, load(network, input_shape=(2,)), arithmetic="float32")
    assert verdict.status == wanted
