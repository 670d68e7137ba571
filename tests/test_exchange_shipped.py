"""Every shipped property in every format of others and back: the files, and what they say."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from exchange_cases import BOX1, HEAD1, layered
from typer.testing import CliRunner

import qll
from qll.cli.main import build_app
from qll.errors import InputError
from qll.exchange.document import Document
from qll.exchange.files import parse
from qll.exchange.files import read as read_file
from qll.exchange.marabou import files
from qll.exchange.rules import rule_of
from qll.exchange.vehicle import lines
from qll.exchange.writers import write
from qll.networks import Network, load
from qll.networks.joint import Joint
from qll.properties import names
from qll.verify.api import Problem
from qll.verify.exported import document_of
from qll.verify.query import Query

F = Fraction
GOLDENS = Path(__file__).parent / "goldens/exchange"
SUFFIX = {"vnnlib": "vnnlib", "vnnlib2": "v2.vnnlib", "vehicle": "vcl", "qll": "qll"}
TWO_POINTS = ("monotonicity",)


@dataclass(frozen=True)
class Case:
    name: str
    network: Network
    query: Query
    document: Document


def case_of(name: str, folder: Path) -> Case:
    """At a data point and with parameters that are short in binary, so that files are."""
    prop = qll.load(name)
    known = {p.name for p in prop.specification.parameters}
    short = {"epsilon": 0.125, "delta": 0.625, "step": 0.125, "L": 2.0}
    prop = prop.with_parameters(**{k: v for k, v in short.items() if k in known})
    outputs = prop.specification.outputs or 3
    weights = np.random.default_rng(1).integers(-8, 9, size=(outputs, 2)) / 4
    network = load(layered(folder / "net.onnx", (weights, np.zeros(outputs))))
    points = None if prop.is_closed else np.array([[0.5, 0.25]])
    labels = np.array([0]) if prop.uses_labels else None
    query = Problem.of(prop, network, points, labels, timeout=1.0).query(0)
    return Case(name, network, query, document_of(query))


def texts_of(case: Case) -> Iterator[tuple[str, str]]:
    """Name of the file and content, by format; a format that cannot say it is left out."""
    for form, suffix in SUFFIX.items():
        if form == "vnnlib" and case.name in TWO_POINTS:
            continue
        if form == "vehicle":
            content = lines(case.document)
        elif form == "qll":
            content = iter(rule_of(case.document).splitlines())
        else:
            content = write(case.document, 1 if form == "vnnlib" else 2)
        yield f"{case.name}.{suffix}", "\n".join(content) + "\n"
    if case.name not in TWO_POINTS:
        parts = ("\n".join(part) for part in files(case.document))
        yield f"{case.name}.marabou", "\n\n".join(parts) + "\n"


@pytest.mark.parametrize("name", names())
def test_the_files_are_as_before(
    name: str, tmp_path: Path, assert_golden: Callable[[str, str], None]
) -> None:
    for file, content in texts_of(case_of(name, tmp_path)):
        assert_golden(f"exchange/{file}", content)


def test_what_a_format_cannot_say_is_refused(tmp_path: Path) -> None:
    related = case_of("monotonicity", tmp_path)
    with pytest.raises(InputError, match="version 1 of VNN-LIB cannot say this"):
        list(write(related.document, 1))
    with pytest.raises(InputError, match="a Marabou property speaks of one network"):
        files(related.document)
    either = "(assert (or (<= Y_0 X_0) (<= Y_0 X_1)))" * 10  # of which Marabou would need all 1,024
    with pytest.raises(InputError, match="too many ways to hold"):
        files(parse(HEAD1 + BOX1 + either))


def point_of(query: Query, rng: np.random.Generator, k: int) -> tuple[np.ndarray, np.ndarray]:
    """An input, of ten nine in the region, and outputs near the network's or near 0."""
    x = rng.uniform(query.lower, query.upper)
    near = query.form.forward(x[None])[0] if k % 2 else np.zeros(query.form.output_size)
    near[0] += (0.0, 5.0)[k // 2 % 2]
    if k % 10 == 9:
        x[0] += (query.upper - query.lower)[0] * (1 if k % 20 == 9 else -1)
    return x, near + rng.normal(0, (0.01, 0.5, 3)[k % 3], near.size)


@pytest.mark.parametrize("name", names())
def test_what_is_read_back_says_the_same(name: str, tmp_path: Path) -> None:
    """Judged equal at random points, whatever the network might compute there."""
    case = case_of(name, tmp_path)
    query, rng = case.query, np.random.default_rng(1)
    texts = {file.removeprefix(f"{name}."): text for file, text in texts_of(case)}
    read = [parse(texts[suffix]) for suffix in ("vnnlib", "v2.vnnlib") if suffix in texts]
    rule = tmp_path / "rule.qll"
    rule.write_text(texts["qll"])
    ours = Problem.of(qll.load(rule), case.network, timeout=1.0).query(0)
    assert ours.lower.tolist() == query.lower.tolist()
    seen = set()
    for k in range(90):
        x, y = point_of(query, rng, k)
        exact = [F(v) for v in y.tolist()]
        violated = query.contains(x) and query.compiled.exact_value(exact, x) > 0
        declared = x if not isinstance(query.network, Joint) else query.network.expand(x).ravel()
        for document in read:
            assert document.holds([F(v) for v in declared.tolist()], exact) == violated
        assert (ours.contains(x) and ours.compiled.exact_value(exact, x) > 0) == violated
        assert vehicle_holds(texts["vcl"], declared, y) != violated
        if "marabou" in texts:
            parts = texts["marabou"].strip().split("\n\n")
            found = any(all(_holds(line, x, y) for line in p.splitlines()) for p in parts)
            assert found == violated
        seen.add(violated)
    assert seen == {False, True}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in names() if name not in TWO_POINTS])
def test_what_vehicle_makes_of_it_says_the_same(name: str, tmp_path: Path) -> None:
    """Its compiler turns our specification into queries of VNN-LIB: one of them holds where the
    property is violated."""
    command = shutil.which("vehicle", path=str(Path(sys.executable).parent)) or pytest.skip(
        "vehicle-lang is not installed"
    )
    case = case_of(name, tmp_path)
    query, rng, out = case.query, np.random.default_rng(2), tmp_path / "queries"
    spec = GOLDENS / f"{name}.vcl"
    call = [command, "compile", "queries", "--format", "VNNLibQueries", "--output", str(out)]
    network = ["--network", f"f:{tmp_path / 'net.onnx'}", "--specification", str(spec)]
    subprocess.run([*call, *network], check=True, capture_output=True, timeout=300)
    found = [read_file(path) for path in out.glob("*.txt")]
    seen = set()
    for k in range(60):
        x, y = point_of(query, rng, k)
        exact = [F(v) for v in x.tolist()], [F(v) for v in y.tolist()]
        violated = query.contains(x) and query.compiled.exact_value(exact[1], x) > 0
        assert any(document.holds(*exact) for document in found) == violated
        seen.add(violated)
    assert seen == {False, True}


def vehicle_holds(text: str, x: np.ndarray, y: np.ndarray) -> bool:
    """The property of a `.vcl` at one point (or two): its two definitions, as Python reads them
    once elements are written as Python has them. Numbers are exact."""
    points = re.findall(r"^region (.*) =$", text, re.MULTILINE)[0].split()
    each = {"x": x.reshape(len(points), -1), "y": y.reshape(len(points), -1)}
    values: dict[str, object] = {"F": F, "True": True, "False": False}
    for k, point in enumerate(points):
        values[point] = [F(v) for v in each["x"][k].tolist()]
        values[f"out_{point}"] = [F(v) for v in each["y"][k].tolist()]

    def truth(name: str) -> bool:
        found = re.search(rf"^{name} [^:]*=\n((?:  .*\n)+)", text, re.MULTILINE)
        assert found is not None
        body = found[1].replace("\n", " ").strip()
        body = re.sub(r"f\d* (x\d*) ! (\d+)", r"out_\1[\2]", body)
        body = re.sub(r"(x\d*) ! (\d+)", r"\1[\2]", body)
        body = re.sub(r"(?<![\w\[.])(\d+\.\d+)", r"F('\1')", body)
        return bool(eval(body, {"__builtins__": {}}, values))  # noqa: S307

    return not truth("region") or not truth("violated")


def _holds(line: str, x: np.ndarray, y: np.ndarray) -> bool:
    """A line of a Marabou file, read as Marabou's own parser does: terms, a sign, a number."""
    left, sign, right = re.fullmatch(r"(.*) ([<>]=) (\S+)", line).groups()  # type: ignore[union-attr]
    total = 0.0
    for term in left.split(" "):
        factor, source, index = re.fullmatch(r"([-+][\d.e-]+)?([xy])(\d+)", term).groups()  # type: ignore[union-attr]
        total += float(factor or 1) * (x if source == "x" else y)[int(index)]
    return total >= float(right) if sign == ">=" else total <= float(right)


def test_the_command_writes_them(tmp_path: Path) -> None:
    """What a user types, for a property of two points that needs no data."""
    net = layered(tmp_path / "net.onnx", (np.ones((1, 2)), np.zeros(1)))
    for form in ("vnnlib2", "vehicle", "qll"):
        out = tmp_path / f"out.{form}"
        options = ["--network", str(net), "--to", form, "--out", str(out)]
        done = CliRunner().invoke(build_app(), ["export", "monotonicity", *options])
        assert done.exit_code == 0, (done.output, done.exception)
        assert out.read_text()
