"""What is claimed is what is shown, nothing vacuous is confirmed, a claim of one's own decides."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audit_cases import Certified, certified, hashes, make_case, seal, sealed
from torch import nn
from typer.testing import CliRunner

import qll
from qll.audit import audit, read_claim
from qll.audit.layout import COLUMNS, OF_VERDICT, digest, unpack
from qll.cli.main import build_app
from qll.errors import QllError
from qll.formula.parse import parse_specification
from qll.formula.question import canonical, question
from qll.formula.rewrite import Shape
from qll.networks import load
from qll.properties import parse
from qll.verify.certificate import pack, write

SHAPE = Shape(3, (1, 6, 6))


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(build_app(), ["audit", *map(str, arguments)])


def folder_of(tmp_path: Path, *cases: Certified) -> Path:
    for index, c in enumerate(cases):
        write(tmp_path / "proofs", f"{index:05d}", c.data, c.case.network.source)
    return tmp_path / "proofs"


# --- canonical text ---


def test_the_canonical_text_is_read_back_and_is_its_own() -> None:
    for path in sorted((Path(qll.__file__).parent / "properties").glob("*.qll")):
        specification = parse_specification(path.read_text(encoding="utf-8"))
        values = {p.name: p.default / 3 for p in specification.parameters}
        text = canonical(specification, values)
        again = parse_specification(text)
        assert canonical(again) == text and text.isascii() and "#" not in text
        assert {p.name: p.default for p in again.parameters} == values
        assert again.formula == specification.formula


HIDING = {
    "after many spaces": lambda text: text.rstrip("\n") + " " * 2100 + "or top\n",
    "a comment": lambda text: text + "# harmless\n",
    "a comment with a line separator": lambda text: text + "# harmless\u2028  y[0] >= y[1]\n",
    "a sign": lambda text: text.replace(">=", "≥"),
    "other digits": lambda text: text.replace("outputs 3", "outputs \u0663"),
    "an empty line": lambda text: "\n" + text,
    "two statements in a line": lambda text: text.replace("\nparameter", " parameter"),
    "another number": lambda text: text.replace("outputs 3", "outputs 03"),
}


@pytest.mark.parametrize("how", HIDING)
def test_only_the_canonical_text_is_taken(how: str, tmp_path: Path) -> None:
    c = certified()[0]
    header, arrays = c.parts()
    text = HIDING[how](header["text"])
    assert text != header["text"]
    with pytest.raises(QllError, match="canonical"):
        question(text, header["labels"], SHAPE)
    data = seal({**header, "text": text}, arrays)
    answer = audit(data, c.case.network.source)
    assert not answer.confirmed and "canonical" in answer.reason
    folder = folder_of(tmp_path, c)
    (folder / "00000.qllcert").write_bytes(data)
    done = run(folder)
    assert done.exit_code == 12 and "NOT CONFIRMED" in done.output
    assert done.output.isascii() and "\u2028" not in done.output
    assert ascii(text) in done.output  # shown whole, as it is


def test_the_whole_claim_is_shown(tmp_path: Path) -> None:
    c = certified()[0]
    done = run(folder_of(tmp_path, c))
    assert done.exit_code == 0, done.output
    header = unpack(c.data)[0]
    for line in header.text.strip().split("\n"):
        assert line in done.output
    for shown in (
        f"parameter epsilon: input = {c.epsilon!r}",
        f"network: sha256 {c.case.network.sha256}, inputs (1, 6, 6), outputs 3",
        "mean [0.4], std [0.3]",
        "a tie: satisfies the property",
        f"labels {{{c.case.label}}}",
        digest(c.case.x0.tobytes()),
        header.region,
        "--claim FILE",
    ):
        assert shown in done.output, shown


NAMES = ("caf\u00e9", "c\u0430t", "it'''s", "a b", "y[0] <= 1")


@pytest.mark.parametrize("name", NAMES)
def test_names_are_shown_by_their_signs(name: str, tmp_path: Path) -> None:
    """Names of outputs may have any printable sign; their claims are written and compared too."""
    text = f'outputs "{name}", dog\nforall x in box(0, 1): y["{name}"] <= 100'
    module = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2))
    (verdict,) = qll.verify(
        parse(text), load(module, input_shape=(1,)), np.zeros((1, 1)), certificates=tmp_path
    )
    assert verdict.status == "verified"
    done = run(tmp_path, "--claim", tmp_path / "claim.toml")
    assert done.exit_code == 0, done.output
    assert done.output.isascii() and done.output.replace("\n", "").isprintable()
    assert f'outputs "{ascii(name)[1:-1]}"' in done.output


def test_what_a_tie_is_is_shown() -> None:
    c = certified()[0]
    header, arrays = c.parts()
    answer = audit(seal({**header, "tie_violates": True}, arrays), c.case.network.source)
    assert answer.claim is not None and "a tie: violates the property" in answer.claim.shared


# --- vacuous ---


def vacuous(c: Certified, text: str, labels: tuple[int, ...] | None, epsilon: float) -> str:
    """The reason against a certificate of this claim, its hashes fitting, its proof empty."""
    header, arrays = c.parts()
    lower, upper = np.clip(c.case.x0 - epsilon, 0, 1), np.clip(c.case.x0 + epsilon, 0, 1)
    with suppress(QllError):  # the checker must find it out as well
        header.update(hashes(text, labels, SHAPE, lower, upper))
    empty = {n: a if n in ("x0", "loose") else a[:0] for n, a in arrays.items()}
    empty["groups"] = np.zeros(3, "<u4")
    data = seal({**header, "text": text, "labels": labels}, empty)
    answer = audit(data, c.case.network.source)
    assert not answer.confirmed
    return answer.reason


@pytest.mark.parametrize("labels", [(99,), (-1,), (0, 0), (1, 0), (3,)])
def test_labels_that_do_not_exist_are_refused(labels: tuple[int, ...]) -> None:
    c = certified()[0]
    assert "label" in vacuous(c, unpack(c.data)[0].text, labels, c.epsilon)


def test_labels_where_there_are_none_and_none_where_there_are_some() -> None:
    c, other = certified()[0], certified()[4]
    assert "labels" in vacuous(c, unpack(c.data)[0].text, None, c.epsilon)
    assert "labels" in vacuous(other, unpack(other.data)[0].text, (0,), other.epsilon)


@pytest.mark.parametrize(
    "body",
    [
        "label(7) -> y[0] >= y[1]",
        "label(0) -> top",
        "y[0] <= y[1] or top",
        "y[0] <= inf",
        "y[0] - y[0] <= 0",
        "y[0] >= y[1] or x[0] <= 2",
        "x[0] >= 2 -> y[0] >= y[1]",
    ],
)
def test_what_holds_whatever_the_network_computes_is_vacuous(body: str) -> None:
    c = certified()[0]
    text = f"forall x in ball(x0, {c.epsilon!r}) and range(0, 1): {body}"
    outputs = 8 if "label(7)" in body else 3
    text = canonical(parse_specification(text, outputs=outputs)).replace("label(7)", "label(2)")
    labels = (0,) if "label" in text else None
    assert vacuous(c, text, labels, c.epsilon).startswith("vacuous")


@pytest.mark.parametrize("part", ["box(2, 3)", "x[0] >= 2", "x[0] + x[1] <= -1", "1 <= 0"])
def test_an_empty_region_is_vacuous(part: str) -> None:
    c = certified()[0]
    text = f"forall x in ball(x0, {c.epsilon!r}) and range(0, 1) and {part}: y[0] >= y[1]"
    text = canonical(parse_specification(text, outputs=3))
    assert vacuous(c, text, None, c.epsilon).startswith("vacuous")


def test_a_region_of_which_no_point_is_known_is_called_so(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    network = load(module, input_shape=(2,))
    # only points near (0.25, 0.75) meet all three
    text = "x[1] - x[0] >= 0.49 and x[0] + x[1] >= 0.99 and x[0] + x[1] <= 1.01"
    prop = parse(f"forall x in box(0, 1) and {text}: y[0] <= 100", outputs=1)
    for x0 in ([0.25, 0.75], [0.0, 0.0]):  # a point of the region is found, and written down
        (verdict,) = qll.verify(prop, network, np.array([x0]), certificates=tmp_path, timeout=5.0)
        assert verdict.status == "verified", verdict
        done = run(tmp_path)
        assert done.exit_code == 0 and "may be empty" not in done.output
    (file,) = tmp_path.glob("*.qllcert")
    header, arrays = unpack(file.read_bytes())
    # without one, or with one that is outside by a hair, the claim says so
    for member in (
        None,
        ("1/4", "3/4"),
        ("1/4", "74/100"),
        ("1/4", "7399999999999999/10000000000000000"),
        ("1/4",),
    ):
        data = pack(replace(header, member=member), arrays)
        answer = audit(data, network.source)
        if member == ("1/4",):
            assert not answer.confirmed and answer.reason == "a point of another length"
            continue
        assert answer.confirmed and answer.claim is not None
        inside = member in (("1/4", "3/4"), ("1/4", "74/100"))
        assert ("may be empty" in answer.claim.own) is not inside


# --- the header ---


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", 1), ("format", 2.0), ("format", True), ("verdict", "unknown"), ("verdict", None),
        ("network", "a" * 63), ("network", 7), ("labels", [0.0]), ("labels", [True]),
        ("labels", [10**400]), ("labels", "0"), ("labels", {}), ("tie_violates", 0),
        ("tie_violates", None), ("mean", [1]), ("mean", [True]), ("mean", []), ("mean", 0.4),
        ("mean", None), ("std", [1e400]), ("text", None), ("text", ["y"]), ("precision", 8.0),
        ("precision", 64), ("precision", True), ("region", None), ("more", 1),
    ],
)  # fmt: skip
def test_every_field_has_one_type(field: str, value: Any) -> None:
    c = certified()[0]
    header, arrays = c.parts()
    assert audit(seal(header, arrays), c.case.network.source).confirmed
    header[field] = value
    answer = audit(seal(header, arrays), c.case.network.source)
    assert not answer.confirmed


def test_a_field_that_stands_twice_is_refused() -> None:
    c = certified()[0]
    header, arrays = c.parts()
    head = json.dumps({**header, "arrays": {n: a.size for n, a in arrays.items()}})
    raw = b"".join(a.tobytes() for a in arrays.values())
    assert audit(sealed(head.encode(), raw), c.case.network.source).confirmed
    for again in ('"labels": [0], ', '"tie_violates": true, ', '"format": 2, '):
        answer = audit(sealed(("{" + again + head[1:]).encode(), raw), c.case.network.source)
        assert not answer.confirmed and "twice" in answer.reason


def test_old_certificates_are_refused_clearly() -> None:
    c = certified()[0]
    answer = audit(b"QLLCERT1" + c.data[8:], c.case.network.source)
    assert not answer.confirmed and "version" in answer.reason and "again" in answer.reason


@pytest.mark.parametrize("verdict", OF_VERDICT)
def test_arrays_are_those_of_the_verdict_in_their_order(verdict: str) -> None:
    c = certified()[0]
    header, arrays = c.parts()
    for change in (
        {**arrays, "witness": arrays["x0"]},
        dict(reversed(arrays.items())),
        {**arrays, "more": arrays["x0"]},
        {n: a for n, a in arrays.items() if n != "beta"},
    ):
        answer = audit(seal({**header, "verdict": verdict}, change), c.case.network.source)
        assert not answer.confirmed


@pytest.mark.parametrize("name", [n for n in COLUMNS if n != "witness"])
def test_every_array_is_held_to_its_length_and_range(name: str) -> None:
    """One number more or fewer, and each number that is beyond the range or not finite."""
    c = max(certified(), key=lambda c: unpack(c.data)[1]["beta"].size)
    header, arrays = c.parts()
    source, array = c.case.network.source, arrays[name]
    assert array.size or name == "points", name  # where curves are split: here are none
    for changed in (array[:-1], np.append(array, np.zeros(1, array.dtype)))[not array.size :]:
        assert not audit(seal(header, {**arrays, name: changed}), source).confirmed
    beyond: list[float] = [np.nan, np.inf, -np.inf] if array.dtype.kind == "f" else []
    beyond += {"kinds": [9, 255], "arguments": [2**32 - 1], "targets": [66, 2**32 - 1],
               "group_neurons": [28, 2**32 - 1], "group_inputs": [37, 2**32 - 1],
               "delta": [0] if array.dtype == np.uint8 else [1.001], "beta": [-1.0],
               "weights": [-1.0], "delta_scale": [-1.0]}.get(name, [])  # fmt: skip
    if name == "loose":
        beyond = [255]  # the bits after the last neuron
    for value in beyond if array.size else []:
        changed = array.copy()
        changed[-1] = value
        answer = audit(seal(header, {**arrays, name: changed}), source)
        assert not answer.confirmed, (name, value)
        if name not in ("groups",):
            assert "out of range" in answer.reason or "length" in answer.reason, answer.reason


# --- a claim of one's own ---


def claim_of(c: Certified, folder: Path, **changes: Any) -> Path:
    header = unpack(c.data)[0]
    np.save(folder / "mine.npy", c.case.x0[None])
    (folder / "net.onnx").write_bytes(c.case.network.source)
    given = {
        "property": header.text, "network": "net.onnx", "points": "mine.npy",
        "labels": None if header.labels is None else [list(header.labels)],
        "mean": 0.4, "std": 0.3, "ties": "satisfy", **changes,
    }  # fmt: skip
    lines = [f"{k} = {json.dumps(v)}" for k, v in given.items() if v is not None]
    path = folder / "mine.toml"
    path.write_text("\n".join(re.sub(r'\{"(\w+)": ', r"{\1 = ", line) for line in lines))
    return path


def test_a_claim_that_agrees(tmp_path: Path) -> None:
    c = certified()[0]
    folder = folder_of(tmp_path, c)
    done = run(folder, "--claim", claim_of(c, tmp_path))
    assert done.exit_code == 0, done.output
    answer = audit(c.data, c.case.network.source, read_claim(claim_of(c, tmp_path)))
    assert answer.confirmed, answer
    # said in other words
    text = "outputs 3\nparameter epsilon: input = 1\n" + "".join(
        line + "  # as I mean it\n" for line in unpack(c.data)[0].text.splitlines()[2:]
    )
    other = {
        "property": text, "parameters": {"epsilon": c.epsilon}, "verdict": "verified",
        "network": f"sha256:{c.case.network.sha256}", "points": [c.case.x0.tolist()],
        "labels": [c.case.label], "mean": [0.4] * 36, "std": [0.3],
    }  # fmt: skip
    done = run(folder, "--claim", claim_of(c, tmp_path, **other))
    assert done.exit_code == 0, done.output


DIFFERENCES: dict[str, tuple[dict[str, Any], str]] = {
    "radius": ({"parameters": {"epsilon": 0.5}}, "line 2 of the property is"),
    "label": ({"labels": [2]}, "labels are"),
    "ties": ({"ties": "violate"}, "a tie satisfies the property"),
    "mean": ({"mean": 0.5}, "mean is (0.4,), not (0.5,)"),
    "std": ({"std": [0.3] * 35 + [0.31]}, "deviation is"),
    "no normalisation": ({"mean": None, "std": None}, "deviation is (0.3,), not None"),
    "network": ({"network": "sha256:" + "0" * 64}, "the network is"),
    "verdict": ({"verdict": "falsified"}, "the verdict is verified"),
    "point": ({"points": [[0.5] * 36]}, "the data point is none of the claim's 1"),
    "size": ({"points": [[0.5] * 35]}, "the data point is none of the claim's 1"),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_every_difference_is_named(what: str, tmp_path: Path) -> None:
    c = next(c for c in certified() if c.case.label not in (2, None))
    changes, said = DIFFERENCES[what]
    done = run(folder_of(tmp_path, c), "--claim", claim_of(c, tmp_path, **changes))
    assert done.exit_code == 12, done.output
    assert "NOT CONFIRMED: not what the claim says: " in done.output and said in done.output


def test_a_point_without_a_certificate_is_missing(tmp_path: Path) -> None:
    c = certified()[0]
    points = np.stack([c.case.x0 * 0.5, c.case.x0, c.case.x0])
    np.save(tmp_path / "three.npy", points)
    claim = claim_of(c, tmp_path, points="three.npy", labels=[[0], [c.case.label], [c.case.label]])
    done = run(folder_of(tmp_path, c), "--claim", claim, "--json", tmp_path / "answers.json")
    assert done.exit_code == 12
    assert "2 of 3 points of the claim are not confirmed: 0, 2" in done.output
    assert json.loads((tmp_path / "answers.json").read_text())["missing"] == [0, 2]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"colour": "red"}, "colour"), ({"points": None}, "property, network, points"),
        ({"ties": "maybe"}, "tie"), ({"verdict": "yes"}, "verdict"), ({"mean": None}, "half"),
        ({"mean": "x"}, "mean"), ({"labels": [[0], [1]]}, "labels"), ({"labels": ["a"]}, "label"),
        ({"labels": [[True]]}, "label"), ({"labels": None}, "labels"),
        ({"points": "no.npy"}, "no.npy"), ({"points": ["a"]}, "points"),
        ({"points": [[1.0, 2.0], [1.0]]}, "points"), ({"points": []}, "points"),
        ({"network": "no.onnx"}, "no.onnx"), ({"network": "sha256:7"}, "hash"),
        ({"property": "no-such.qll"}, "no-such.qll"), ({"property": "y[0] <= "}, "the text ends"),
        ({"parameters": {"epsilon": "many"}}, "epsilon"), ({"parameters": {"delta": 1.0}}, "delta"),
        ({"outputs": "3"}, "outputs"), ({"property": 3}, "property"),
    ],
)  # fmt: skip
def test_a_claim_that_cannot_be_read_is_refused_in_three_parts(
    changes: dict[str, Any], word: str, tmp_path: Path
) -> None:
    c = certified()[0]
    with pytest.raises(QllError) as caught:
        read_claim(claim_of(c, tmp_path, **changes))
    text = str(caught.value)
    assert word in text and "Expected" in text and "Fix:" in text, text


def test_verify_writes_a_claim_as_a_start(tmp_path: Path) -> None:
    case = make_case(0)
    points = np.stack([case.x0, case.x0 * 0.999]).reshape(2, 1, 6, 6)
    prop = case.prop.with_parameters(epsilon=0.001)
    folder = tmp_path / "proofs"
    verdicts = qll.verify(prop, case.network, points, [case.label] * 2, certificates=folder)
    assert [v.status for v in verdicts] == ["verified"] * 2
    assert "Whoever wrote them wrote this file as well" in (folder / "claim.toml").read_text()
    done = run(folder, "--claim", folder / "claim.toml")
    assert done.exit_code == 0, done.output
    expected = read_claim(folder / "claim.toml")
    assert (expected.points == points.reshape(2, -1)).all() and expected.mean == (0.4,)
    assert expected.labels == ((case.label,),) * 2
    assert asdict(unpack((folder / "00000.qllcert").read_bytes())[0])["text"] == expected.text


def test_a_shipped_property_is_named(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
    network, x0 = load(module, input_shape=(1, 2, 2)), np.full((1, 1, 2, 2), 0.5)
    prop = qll.load("label-robustness", outputs=6, epsilon=1e-6)
    y = network.relu_form.forward(x0.reshape(1, -1))[0]
    hot = (y > 0).astype(int)[None]
    folder = tmp_path / "proofs"
    (verdict,) = qll.verify(prop, network, x0, hot, certificates=folder)
    assert verdict.status == "verified"
    lines = [
        'property = "label-robustness"', 'parameters = {epsilon = "1/1000000"}',
        f'network = "sha256:{network.sha256}"', f"points = {[x0.ravel().tolist()]}",
        f"labels = {[np.flatnonzero(hot[0]).tolist()]}",
    ]  # fmt: skip
    (tmp_path / "mine.toml").write_text("\n".join(lines))
    done = run(folder, "--claim", tmp_path / "mine.toml")
    assert done.exit_code == 0, done.output


def test_a_premise_that_one_float_meets_is_judged_exactly_whatever_the_network_is() -> None:
    """Sigmoids are enclosed; what is said of inputs alone is not."""
    least = 0.3
    most = np.nextafter(least, 1.0)
    prop = qll.parse(
        f"forall x in box([0, 0], [{float(most)!r}, 1]): x[0] >= {least!r} -> y[0] <= 0", outputs=1
    )
    net = nn.Sequential(nn.Linear(2, 3), nn.Sigmoid(), nn.Linear(3, 1))
    with torch.no_grad():
        for weight in net.parameters():
            weight.fill_(0.5)
    (verdict,) = qll.verify(prop, load(net, input_shape=(2,)), certified=True, timeout=5)
    assert verdict.status == "falsified", verdict
    assert verdict.witness[0] == most
