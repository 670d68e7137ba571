"""However a set of inputs is written, it is one query: closed rules, premises, equations, cases."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audit_cases import seal
from torch import nn
from typer.testing import CliRunner

import qll
from qll.audit import audit
from qll.audit.layout import unpack
from qll.cli.main import build_app
from qll.errors import QllError
from qll.networks import Network, load
from qll.regions import Region
from qll.verify.verdict import Evidence


@pytest.fixture(scope="module")
def network() -> Network:
    torch.manual_seed(0)
    layers = nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)
    return load(nn.Sequential(*layers), input_shape=(7,))


def largest(network: Network, lower: list[float]) -> float:
    points = np.random.default_rng(0).uniform(lower, 1.0, (20_000, 7))
    return float(network.relu_form.forward(points).max())


LOWER = [0.0, 0.0, 0.0, 0.0, 0.8, 0.8, 0.0]


@pytest.mark.parametrize("slack", [0.05, -0.01])
def test_three_spellings_are_one_query(network: Network, slack: float) -> None:
    most = largest(network, LOWER) + slack
    texts = [
        f"forall x in box({LOWER}, 1): y[0] <= {most}",
        f"forall x in box(0, 1) and x[4] >= 0.8 and x[5] >= 0.8: y[0] <= {most}",
        f"forall x in box(0, 1): (x[4] >= 0.8 and x[5] >= 0.8) -> y[0] <= {most}",
    ]
    found = [qll.verify(qll.parse(t, outputs=1), network, certified=True)[0] for t in texts]
    assert {v.status for v in found} == {"verified" if slack > 0 else "falsified"}
    assert len({v.nodes for v in found}) == 1
    assert all(v.evidence is Evidence.CHECKED for v in found)


def test_a_fixed_input_is_a_constant(network: Network) -> None:
    """The data point itself is a witness: that is seen at once."""
    prop = qll.parse("forall x in ball(x0, 0.02) and x[3] == x0[3]: y[0] <= -5", outputs=1)
    x = np.full((1, 7), 0.3)
    (verdict,) = qll.verify(prop, network, x, timeout=5)
    assert verdict.status == "falsified" and verdict.stage == "attack"
    assert verdict.witness is not None and verdict.witness[3] == 0.3


def test_tied_inputs_are_one_variable(network: Network) -> None:
    prop = qll.parse("forall x in box(0, 1) and x[0] == x[1]: y[0] <= -5", outputs=1)
    (verdict,) = qll.verify(prop, network, certified=True)
    assert verdict.witness is not None and verdict.witness[0] == verdict.witness[1]
    assert verdict.evidence is Evidence.CHECKED


def test_disjunctions_of_premises_are_cases(network: Network) -> None:
    most = largest(network, [0.0] * 7) + 0.3
    text = "forall x in box(0, 1): (x[0] <= 0.2 or x[0] >= 0.9) -> y[0] <= {}"
    (good,) = qll.verify(qll.parse(text.format(most), outputs=1), network, certified=True)
    assert good.status == "verified" and good.evidence is Evidence.CHECKED
    (bad,) = qll.verify(qll.parse(text.format(-5), outputs=1), network, certified=True)
    assert bad.status == "falsified" and bad.witness is not None
    assert bad.witness[0] < 0.2 or bad.witness[0] > 0.9


def test_rules_with_regions_of_their_own_are_cases(network: Network) -> None:
    """The second one alone is violated, beyond its premise: at 0.5 itself nothing is asked."""
    text = "forall x in box(0, 1): (x[0] >= 2 -> y[0] <= -5) and (x[1] >= 0.5 -> y[0] <= -5)"
    (verdict,) = qll.verify(qll.parse(text, outputs=1), network)
    assert verdict.witness is not None and verdict.witness[1] > 0.5
    (empty,) = qll.verify(qll.parse("forall x in box(0, 1): x[0] >= 2 -> y[0] <= -5"), network)
    assert empty.vacuous


def test_a_certificate_of_cases_lacks_none(network: Network, tmp_path: Path) -> None:
    most = largest(network, [0.0] * 7) + 0.3
    text = f"forall x in box(0, 1): (x[0] <= 0.2 or x[0] >= 0.9) -> y[0] <= {most}"
    qll.verify(qll.parse(text, outputs=1), network, certificates=tmp_path)
    data = (tmp_path / "00000.qllcert").read_bytes()
    header, arrays = unpack(data)
    assert "kinds.1" in arrays
    again = seal(asdict(header), {n: v for n, v in arrays.items() if not n.endswith(".1")})
    assert audit(data, network.source).confirmed
    answer = audit(again, network.source)
    assert not answer.confirmed and "number of cases" in answer.reason


def test_closed_rules_need_no_data(network: Network, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(network.source)
    (tmp_path / "rule.qll").write_text("forall x in box(0, 1): y[0] <= 5\n")
    names = "inputs a, b, c, d, e, f, g\n"
    (tmp_path / "bad.qll").write_text(names + "forall x in box(0, 1): y[0] <= -5\n")
    (tmp_path / "claim.toml").write_text('property = "rule.qll"\nnetwork = "net.onnx"\n')

    def run(*words: str) -> Any:
        return CliRunner().invoke(build_app(), [*words])

    net = str(tmp_path / "net.onnx")
    proofs = str(tmp_path / "proofs")
    good = run("verify", str(tmp_path / "rule.qll"), "--network", net, "--certificate", proofs)
    assert good.exit_code == 0 and good.output.startswith("verified"), good.output
    checked = run("audit", proofs, "--claim", str(tmp_path / "claim.toml"))
    assert checked.exit_code == 0 and "1 of 1 confirmed" in checked.output, checked.output
    bad = run("verify", str(tmp_path / "bad.qll"), "--network", net)
    assert bad.exit_code == 10 and "  a = " in bad.output and "y[0]:" in bad.output


def test_a_rule_about_data_points_asks_for_them(network: Network) -> None:
    prop = qll.parse("forall x in ball(x0, 0.1): y[0] <= 5", outputs=1)
    with pytest.raises(QllError, match=r"speaks of data points[\s\S]*Fix: pass --data"):
        qll.verify(prop, network)


def test_regions_are_cut_by_what_is_said_of_one_input() -> None:
    text = "forall x in ball(x0, 0.5) and x[0] >= 0 and x[1] == x0[1]: x[2] <= 0.25 -> y[0] <= 0"
    x0 = torch.tensor([[0.1, 0.7, 0.2]])
    found = Region.of(qll.parse(text, outputs=1), x0)
    assert not found.constraints
    assert found.lower.tolist()[0][0] == 0 and found.lower[0, 1] == found.upper[0, 1] == x0[0, 1]
    assert found.upper[0, 2] == 0.25  # the premise: beyond it nothing is asked
    assert bool(found.contains(found.sample()).all())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("forall x in box(0, 1e17) and integer(x): y[0] <= 1", "2\\^53"),
        ("forall x in box(0, 1): y2[0] <= 1", "second point that is not bound"),
        ("forall x in box(0, 1), x2 in x2[0] >= x[0]: y2[0] <= 1", "region of x2 is unbounded"),
        ("inputs a, b, c, d, e, f, g\nforall x in box(0, 1) and integer(x[\"h\"]): y[0] <= 1",
         "unknown name 'h'"),
        ("forall x in box(0, 1) and x[0] in {y[0]}: y[0] <= 1", "is not constant"),
    ],
)  # fmt: skip
def test_bad_rules_are_refused_in_three_parts(network: Network, text: str, words: str) -> None:
    with pytest.raises(QllError, match=rf"[\s\S]*{words}[\s\S]*") as error:
        qll.verify(qll.parse(text, outputs=1), network)
    assert "Expected" in str(error.value) and "Fix:" in str(error.value)


def test_two_networks_are_compared(network: Network) -> None:
    """The same weights differ nowhere; others do. A network of another structure is one as well."""
    text = "forall x in box(0, 1), x2 in (forall i in inputs: x2[i] == x[i]): y2[0] - y[0] <= {}"
    torch.manual_seed(1)
    other = load(nn.Sequential(nn.Linear(7, 4), nn.ReLU(), nn.Linear(4, 1)), input_shape=(7,))
    for most, wanted in ((5, "verified"), (-5, "falsified")):
        prop = qll.parse(text.format(most), outputs=1)
        (verdict,) = qll.verify(prop, network, against=other, timeout=20)
        assert verdict.status == wanted
    assert verdict.witness is not None and (verdict.witness == verdict.witness2).all()
    small = load(nn.Sequential(nn.Linear(3, 1)), input_shape=(3,))
    with pytest.raises(QllError, match="do not fit together"):
        qll.verify(qll.parse(text.format(1), outputs=1), network, against=small)


def test_differences_of_a_network_of_zeros() -> None:
    """Matrices that are mostly zeros are stored without them."""
    first, last = nn.Linear(12, 12), nn.Linear(12, 1)
    with torch.no_grad():
        first.weight.copy_(torch.eye(12))
        last.weight.zero_()[0, 0] = 1.0
    network = load(nn.Sequential(first, nn.ReLU(), last), input_shape=(12,))
    same = "(forall i in inputs where i != 0: x2[i] == x[i])"
    text = f"forall x in box(0, 1), x2 in box(0, 1) and {same} and x2[0] >= x[0]: y2[0] >= y[0]"
    (verdict,) = qll.verify(qll.parse(text, outputs=1), network, certified=True)
    assert verdict.status == "verified" and verdict.evidence is Evidence.CHECKED


@pytest.mark.parametrize(
    "region",
    [
        "box(0, 1) and integer(x) and x[1] == 0 and x[0] >= x[1]",
        "box(0, 1) and x[1] == 0 and x[0] <= x[1]",
        "box(0, 1) and x[1] <= 0 and x[0] <= x[1]",
        "box(0, 1) and x[1] == 0.1 and x[0] <= x[1]",
    ],
)
def test_a_fixed_input_beside_a_constraint_that_is_tight(region: str) -> None:
    """y = 1 - x[0], violated by far at a corner in which the constraint is a tie."""
    model = nn.Sequential(nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 1)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[-1.0, 0.0]]))
        model[0].bias.fill_(1.0)
        model[2].weight.fill_(1.0)
        model[2].bias.zero_()
    prop = qll.parse(f"forall x in {region}: y[0] <= 0.75", outputs=1)
    (verdict,) = qll.verify(prop, model, torch.zeros(1, 2), timeout=5)
    assert verdict.status == "falsified"
