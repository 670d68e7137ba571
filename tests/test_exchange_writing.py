"""Queries as they are written: read back, they ask exactly the same."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from exchange_cases import BOX1, BOX2, HEAD1, HEAD2
from typer.testing import CliRunner

from qll.cli.main import build_app
from qll.errors import InputError
from qll.exchange.document import Document
from qll.exchange.files import parse, read
from qll.exchange.writers import write

F = Fraction
TAIL = (
    "(assert (or (and (< {x} 0.5) (>= {y} (* -2 {x}))) (!= {y} 1e-9)))"
    "(assert (== (+ {x} (* 0.125 {y})) 0.25))(assert (<= (* 3 {x}) 1))(assert (<= 0 1))"
)


def assert_same(one: Document, two: Document) -> None:
    assert list(one.bounds.atoms()) == list(two.bounds.atoms())
    assert one.assertions == two.assertions


@pytest.mark.parametrize(
    "text",
    [
        HEAD1 + BOX1 + TAIL.format(x="X_0", y="Y_0"),
        HEAD2 + BOX2 + TAIL.format(x="X[0,1]", y="Y[0]"),
    ],
)
def test_both_versions_and_back(text: str) -> None:
    document = parse(text)
    rng = np.random.default_rng(0)
    for version in (1, 2):
        again = parse("\n".join(write(document, version)))
        assert again.version[0] == version
        assert_same(document, again)
        for _ in range(200):
            point = [[F(int(v), 8) for v in rng.integers(-9, 9, n)] for n in (2, 1)]
            assert document.holds(*point) == again.holds(*point)


def test_the_standards_files_and_back(shared: Path) -> None:
    for path in sorted((shared / "standards/vnnlib-2/syntax/test").iterdir()):
        document = read(path)
        again = parse("\n".join(write(document, 2)))
        assert_same(document, again)
        assert again.networks == document.networks
        assert again.version == document.version
    with pytest.raises(InputError, match="cannot say this"):
        list(write(read(path.with_name("multiple_networks.vnnlib")), 1))


def test_consent_to_reals(tmp_path: Path) -> None:
    """What the solver advises for a query in float32 works."""
    source, target = tmp_path / "q.vnnlib", tmp_path / "real.vnnlib"
    source.write_text((HEAD2 + BOX2).replace("real", "float32") + "(assert (>= Y[0] 1.5))")
    options = ["export", str(source), "--to", "vnnlib2", "--element", "real", "--out", str(target)]
    done = CliRunner().invoke(build_app(), options)
    assert done.exit_code == 0, done.output
    found = read(target)
    assert_same(read(source), found)
    assert {t.element for t in found.tensors} == {"real"}
    with pytest.raises(InputError, match="--to marabu is not known"):
        CliRunner().invoke(
            build_app(), ["export", str(source), "--to", "marabu"], catch_exceptions=False
        )
