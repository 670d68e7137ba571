"""Every registered activation: its record against itself, sampling, mpmath and ONNX Runtime."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import nn

import qll
from qll.audit.curves import ERROR, curve
from qll.bounds.crown import Crown
from qll.bounds.dual import Domains
from qll.bounds.graph import GraphBounder
from qll.networks import load
from qll.networks.activations import ACTIVATIONS, RELU, Activation
from qll.networks.activations.clip import Clip
from qll.networks.activations.leaky_relu import LeakyRelu
from qll.networks.activations.power import Power
from qll.networks.relu_form import FormLayer, ReluForm
from qll.verify.backend import Budget
from qll.verify.backends.bab import BranchAndBound, choose_prover
from qll.verify.boxes import BoxProver
from qll.verify.prover import NeuronProver
from qll.verify.query import Query
from qll.verify.verdict import Status

RECORDS: dict[str, Activation] = {
    **{name: ACTIVATIONS[name]() for name in ACTIVATIONS},
    "leaky-relu falling": LeakyRelu(-0.5),
    "leaky-relu steep": LeakyRelu(1.5),
    "clip below": Clip(-0.25, np.inf),
    "clip above": Clip(-np.inf, 6.0),
    "root": Power(0.5, 0.25),
    "inverse root": Power(-0.5, 0.1),
}
SETTINGS: dict[str, tuple[float, ...]] = {
    "leaky-relu": (0.01,),
    "clip": (-1.0, 1.0),
    "power": (-1.0, 1.0),
    "root": (0.5, 0.25),
    "inverse root": (-0.5, 0.1),
}
CURVES = {"root": "power", "inverse root": "power"}  # by the checker's name, if another
MODULES = {
    "clip": nn.Hardtanh(),
    "gelu": nn.GELU(),
    "hardswish": nn.Hardswish(),
    "leaky-relu": nn.LeakyReLU(),
    "relu": nn.ReLU(),
    "sigmoid": nn.Sigmoid(),
    "silu": nn.SiLU(),
    "softplus": nn.Softplus(),
    "tanh": nn.Tanh(),
}
FUNCTIONS: dict[str, Any] = {
    "abs": torch.abs,
    "exp": torch.exp,
    "power": lambda z: 1.0 / (torch.sigmoid(z) + 1.0),
    "square": lambda z: z * z,
}

every_record = pytest.mark.parametrize("name", RECORDS)
every_name = pytest.mark.parametrize("name", list(ACTIVATIONS))


def intervals(seed: int, count: int = 2000) -> tuple[torch.Tensor, torch.Tensor]:
    """Of all widths, from a point to many times the bends' distance."""
    draw = torch.Generator().manual_seed(seed)
    middle = 3 * torch.randn(count, generator=draw, dtype=torch.float64)
    width = 6 * torch.rand(count, generator=draw, dtype=torch.float64) ** 4
    width[: count // 20] = 0.0
    return middle - width, middle + width


def samples(low: torch.Tensor, high: torch.Tensor, count: int = 201) -> torch.Tensor:
    share = torch.linspace(0, 1, count, dtype=torch.float64)[:, None]
    return (low + (high - low) * share).clamp(low, high)


@every_record
def test_a_derivative_is_that_of_its_value(name: str) -> None:
    z = torch.randn(500, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 3
    z.requires_grad_()
    (expected,) = torch.autograd.grad(RECORDS[name].apply(z).sum(), z)
    torch.testing.assert_close(RECORDS[name].derivative(z.detach()), expected)


@every_record
def test_a_derivative_rises_or_falls_between_bends(name: str) -> None:
    record = RECORDS[name]
    places = [-30.0, *record.bends, 30.0]
    for first, last in itertools.pairwise(places):
        inside = torch.linspace(first, last, 3001, dtype=torch.float64)[1:-1]
        steps = record.derivative(inside).diff()
        assert (steps >= -1e-15).all() or (steps <= 1e-15).all()


@every_record
def test_values_on_an_interval_are_enclosed(name: str) -> None:
    record, (low, high) = RECORDS[name], intervals(2)
    values = record.apply(samples(low, high)).numpy()
    least, most = record.enclose(low.numpy(), high.numpy())
    assert (values >= least).all() and (values <= most).all()


@every_record
@pytest.mark.parametrize("side", ["lower", "upper"])
def test_lines_stay_on_their_side_and_touch(name: str, side: str) -> None:
    record, (low, high) = RECORDS[name], intervals(3)
    alpha = torch.rand(len(low), dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    for parameter in (alpha, record.start(low, high), alpha.round()):
        line = record.lower_line if side == "lower" else record.upper_line
        slope, intercept = line(low, high, parameter)
        t = samples(low, high)
        gap = (record.apply(t) - slope * t - intercept) * (1 if side == "lower" else -1)
        size = 1 + record.apply(high).abs() + slope.abs() * (high.abs() + low.abs())
        assert (gap >= -1e-13 * size).all()
        assert (gap.amin(0) <= 2e-2 * size).all()  # of what is seen at 201 points


@every_record
def test_splits_lie_inside_and_end(name: str) -> None:
    record, (low, high) = RECORDS[name], intervals(5)
    linear = record.is_linear(low, high).numpy()
    point = record.split_point(low.numpy(), high.numpy())
    inside = (point > low.numpy()) & (point < high.numpy())
    assert inside[~linear].all()
    t = samples(low, high)
    straight = low + (high - low) * torch.linspace(0, 1, 201, dtype=torch.float64)[:, None]
    chord = record.apply(low) + record.chord(low, high) * (straight - low)
    assert (record.apply(t) - chord).abs()[:, linear].amax() < 1e-12


@every_record
def test_exact_values_are_the_values(name: str) -> None:
    record = RECORDS[name]
    points = np.random.default_rng(6).normal(size=200) * 3
    if not record.piecewise_linear:
        with pytest.raises(TypeError, match="irrational"):
            record.exact(Fraction(1))
        return
    found = [float(record.exact(Fraction(float(v)))) for v in points]
    np.testing.assert_allclose(record.value(points), found, rtol=1e-15, atol=0)


# The checker's own curves.

PRECISE = {
    "abs": abs,
    "clip": lambda z: max(mpmath.mpf(-1), min(mpmath.mpf(1), z)),
    "exp": mpmath.exp,
    "gelu": lambda z: z * mpmath.ncdf(z),
    "hardswish": lambda z: z * max(mpmath.mpf(0), min(mpmath.mpf(6), z + 3)) / 6,
    "leaky-relu": lambda z: z if z >= 0 else mpmath.mpf(0.01) * z,
    "power": lambda z: 1 / z if z >= 1 else 2 - z,
    "root": lambda z: mpmath.sqrt(z) if z >= 0.25 else z + mpmath.mpf(0.25),
    "inverse root": lambda z: (
        1 / mpmath.sqrt(z) if z >= 0.1 else (3 * mpmath.mpf(0.1) - z) / 2 / mpmath.mpf(0.1) ** 1.5
    ),
    "square": lambda z: z * z,
    "sigmoid": lambda z: 1 / (1 + mpmath.exp(-z)),
    "silu": lambda z: z / (1 + mpmath.exp(-z)),
    "softplus": lambda z: mpmath.log(1 + mpmath.exp(z)),
    "tanh": mpmath.tanh,
}


def curve_of(name: str) -> Any:
    return curve(CURVES.get(name, name), *SETTINGS.get(name, ()))


def test_the_checker_knows_every_activation() -> None:
    assert set(PRECISE) - set(CURVES) | {"relu"} == set(ACTIVATIONS)
    for name in PRECISE:
        curve_of(name)


@pytest.mark.parametrize("name", PRECISE)
def test_the_checkers_values_are_as_exact_as_it_says(name: str) -> None:
    mine, draw = curve_of(name), np.random.default_rng(7)
    z = np.concatenate([draw.normal(size=60) * s for s in (1e-6, 1.0, 3.0, 20.0, 200.0)])
    z = np.clip(z, -600, 600 if name != "exp" else 60)
    with mpmath.workdps(40):
        for place, value, slope in zip(z, mine.value(z), mine.slope(z), strict=True):
            point = mpmath.mpf(float(place))
            true = PRECISE[name](point)
            size = abs(true) if mine.relative else 1 + abs(place) + abs(true)
            assert abs(mpmath.mpf(float(value)) - true) <= ERROR / 4 * size
            if not mine.rough:
                rise = mpmath.diff(PRECISE[name], point, h=mpmath.mpf(10) ** -15)
                room = ERROR / 4 * (1 + abs(place) + abs(rise))
                assert abs(mpmath.mpf(float(slope)) - rise) <= room


@pytest.mark.parametrize("name", PRECISE)
def test_the_checkers_floor_is_below_and_near(name: str) -> None:
    mine, draw = curve_of(name), np.random.default_rng(8)
    low, high = (end.numpy() for end in intervals(9, 600))
    a, b = draw.normal(size=(2, 600))
    b = np.where(draw.random(600) < 0.5, a * draw.random(600), b)
    floor = mine.floor(a, b, low, high)
    t = samples(*(torch.from_numpy(end) for end in (low, high)), 1001).numpy()
    values = a * mine.value(t) - b * t
    assert (values >= floor).all()
    size = np.abs(a) * (1 + np.abs(mine.value(high)) + np.abs(high)) + np.abs(b * high)
    assert (values.min(0) - floor <= 1e-2 * (1 + size)).all()
    least, most = mine.ends(low, high)
    assert (mine.value(t) >= least).all() and (mine.value(t) <= most).all()


# Networks.


def network_of(record: Activation, seed: int, widths: tuple[int, ...]) -> ReluForm:
    """Two hidden layers, the last of which is skipped by a part of the first."""
    draw = np.random.default_rng(seed)
    layers = []
    for k, (fan, width) in enumerate(itertools.pairwise(widths)):
        terms = [(k, draw.normal(size=(width, fan)) * 1.5 / np.sqrt(fan))]
        if k == len(widths) - 2:
            terms.insert(0, (1, draw.normal(size=(width, widths[1])) / 4))
        layers.append(FormLayer(draw.normal(size=width) * 0.4, tuple(terms), record))
    return ReluForm((widths[0],), tuple(layers))


@every_record
def test_bounds_of_a_graph_hold_at_samples_and_under_any_multipliers(name: str) -> None:
    form = network_of(RECORDS[name], 10, (5, 9, 9, 2))
    draw, crown = np.random.default_rng(11), Crown(form)
    low = draw.normal(size=5) * 0.5
    lower, upper = crown.tensor(low)[None], crown.tensor(low + 0.7)[None]
    z = form.pre_activations(draw.uniform(low, low + 0.7, size=(4000, 5)))
    boxes = crown.pre_activations(lower, upper)
    for k in range(2):
        assert (z[k] >= boxes.low[k][0].numpy() - 1e-9).all()
        assert (z[k] <= boxes.high[k][0].numpy() + 1e-9).all()
    rows = torch.eye(2, dtype=torch.float64)[None]
    assert (z[2].min(0) >= crown.rows(boxes, 3, rows).value[0].numpy()).all()
    nothing = torch.zeros(1, 1, dtype=torch.float64)
    for trial in range(20):
        signs = [torch.from_numpy(draw.integers(-1, 2, t.shape)).double() for t in boxes.low]
        points = [lo + (hi - lo) * 0.5 for lo, hi in zip(boxes.low, boxes.high, strict=True)]
        cut_low = [torch.where(s > 0, p, t) for s, p, t in zip(signs, points, boxes.low)]
        cut_high = [torch.where(s < 0, p, t) for s, p, t in zip(signs, points, boxes.high)]
        domains = Domains(
            lower, upper, cut_low, cut_high, signs, rows[:, :1], nothing, None, points
        )
        start = crown.start(domains)
        wild = type(start)(
            [torch.from_numpy(draw.random(a.shape)) for a in start.alpha],
            [torch.from_numpy(draw.exponential(0.2, b.shape)) for b in start.beta],
            start.weight,
            start.delta,
        )
        bound = float(crown(domains, crown.project(wild, domains)).value)
        inside = np.ones(len(z[0]), dtype=bool)
        for k in range(2):
            inside &= (z[k] >= cut_low[k][0].numpy()).all(1)
            inside &= (z[k] <= cut_high[k][0].numpy()).all(1)
        if inside.any():
            assert bound <= z[2][inside, 0].min() + 1e-9, trial


@every_name
def test_a_network_is_read_as_onnx_runtime_runs_it(name: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)
            self.bend = MODULES[name] if name in MODULES else FUNCTIONS[name]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.bend(self.first(x)))

    torch.manual_seed(0)
    module = Net().eval()
    network = load(module, input_shape=(4,))
    form = network.relu_form
    assert type(form.layers[-2].activation) is ACTIVATIONS[name]
    x = np.random.default_rng(1).normal(size=(20, 4)).astype(np.float32)
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).double().numpy()
    np.testing.assert_allclose(form.forward(x), expected, atol=2e-5)
    np.testing.assert_allclose(network.runtime(x), expected, atol=2e-5)
    low, high = network.enclose(x.astype(np.float64))
    exact = form.forward(x)
    assert ((low <= exact + 1e-12) & (exact - 1e-12 <= high)).all()
    assert (high - low < 1e-9).all()


@every_record
@pytest.mark.parametrize("prover", [lambda form: NeuronProver(GraphBounder(form)), BoxProver])
def test_verdicts_agree_with_dense_samples(name: str, prover: type) -> None:
    """A threshold on each side of the sampled minimum: the nearer false claim is refuted by a
    point, the true one is proved, whatever splits it takes."""
    from verify_cases import FormNetwork

    from qll.formula.hard import Affine

    form = network_of(RECORDS[name], 12, (2, 5, 5, 1))
    low = np.array([-0.4, 0.1])
    side = np.linspace(0.0, 0.6, 401)
    grid = low + np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    least = form.forward(grid).min()
    spread = np.ptp(form.forward(grid))
    for shift, status in ((0.05, Status.VERIFIED), (-0.05, Status.FALSIFIED)):
        claim = Affine(((("y", 0), -1.0),), float(least - shift * spread))  # y >= least - shift
        query = Query(FormNetwork(form), low, low + 0.6, claim)
        verdict = BranchAndBound(choose=lambda q: prover(q.form)).run([query], Budget(20.0))[0]
        assert verdict.status is status, verdict


def test_few_free_inputs_are_split() -> None:
    from verify_cases import FormNetwork

    from qll.formula.hard import Affine

    form = network_of(RELU, 13, (30, 6, 6, 1))
    low = np.zeros(30)
    claim = Affine(((("y", 0), 1.0),), -1000.0)
    free = np.where(np.arange(30) < 3, 1.0, 0.0)
    assert isinstance(choose_prover(Query(FormNetwork(form), low, low + free, claim)), BoxProver)
    whole = choose_prover(Query(FormNetwork(form), low, low + 1.0, claim))
    assert not isinstance(whole, BoxProver)


def test_a_sigmoid_classifier_is_decided_from_the_front_door() -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(12, 16), nn.Sigmoid(), nn.Linear(16, 3))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(3.0)
    x = torch.rand(6, 12)
    labels = module(x).argmax(1)
    rule = qll.load("classification-robustness", epsilon=0.08, outputs=3)
    verdicts = qll.verify(rule, module, x, labels=labels, timeout=20)
    kinds = {verdict.status for verdict in verdicts}
    assert kinds <= {Status.VERIFIED, Status.FALSIFIED}
    for verdict, point, label in zip(verdicts, x, labels, strict=True):
        near = (point + 0.16 * torch.rand(4000, 12) - 0.08).clamp(0, 1)
        stays = bool((module(near).argmax(1) == label).all())
        assert stays or verdict.status is Status.FALSIFIED


@pytest.mark.parametrize("name", ["relu", "sigmoid"])
def test_inputs_that_cannot_move_change_no_bound(name: str, monkeypatch: Any) -> None:
    form = network_of(RECORDS[name], 14, (100, 8, 8, 2))
    lower = np.random.default_rng(15).normal(size=(3, 100)) * 0.0 + 0.25
    upper = lower + np.where(np.arange(100) < 4, np.linspace(0.1, 0.5, 3)[:, None], 0.0)
    rows, constant = np.eye(2), np.zeros(2)
    found = Crown(form).bound(lower, upper, rows, constant, [[0], [1], [0, 1]])
    monkeypatch.setattr(Crown, "_still", lambda self, boxes: None)
    expected = Crown(form).bound(lower, upper, rows, constant, [[0], [1], [0, 1]])
    np.testing.assert_allclose(found.value, expected.value, atol=1e-9)
    np.testing.assert_allclose(found.mixed, expected.mixed, atol=1e-9)
    np.testing.assert_allclose(found.linear[..., :4], expected.linear[..., :4], atol=1e-9)
