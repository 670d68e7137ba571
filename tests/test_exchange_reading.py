"""VNN-LIB as it is read: the standard's own files, twins of both versions, and what is refused."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest
from exchange_cases import BOX1, BOX2, HEAD1, HEAD2, REFUSED

from qll.errors import FormulaError
from qll.exchange.document import All, Atom, Document, Some
from qll.exchange.expressions import number
from qll.exchange.files import parse, read
from qll.exchange.recognition import is_query

F = Fraction


def content(document: Document) -> tuple[object, ...]:
    """What is asked, without names."""
    return (
        document.inputs,
        document.outputs,
        list(document.bounds.atoms()),
        document.assertions,
    )


STANDARD = (
    "acc", "cartpole", "drones", "dubinsrejoin", "initialized", "intermediate_nodes", "lunarlander",
    "mnist", "multiple_networks", "single_network", "test_linearise",
)  # fmt: skip


@pytest.mark.parametrize("name", STANDARD)
def test_files_of_the_standard(name: str, shared: Path) -> None:
    document = read(shared / "standards/vnnlib-2/syntax/test" / f"{name}.vnnlib")
    assert document.version[0] == 2
    assert document.assertions


def test_all_files_of_the_standard_are_listed(shared: Path) -> None:
    found = (shared / "standards/vnnlib-2/syntax/test").iterdir()
    assert {path.stem for path in found} == set(STANDARD)


def test_linear_terms_are_those_that_the_standard_expects(shared: Path) -> None:
    document = read(shared / "standards/vnnlib-2/syntax/test/test_linearise.vnnlib")
    x, y = (lambda k: ("x", k)), ("y", 0)
    bounds = document.bounds
    # (+ X[0] 5) <= 10, (- X[0]) <= 0, (- X[0] 5) <= 0, (- 5 X[0]) <= 0, (* X[0] 3.5) <= 7,
    # (* -2 X[0]) <= 0, (+ X[0] 5 X[0]) <= 10
    assert (bounds.get("lower", 0), bounds.get("upper", 0)) == (5, 2)
    forms = [a for a in document.assertions if isinstance(a, Atom)]
    assert Atom(((x(0), F(-1)), (x(1), F(1))), F(-3)) in forms
    assert Atom(((x(0), F(-1)), (x(1), F(1)), (x(2), F(1))), F(0)) in forms
    assert Atom(((x(0), F(1)), (x(1), F(1))), F(-5)) in forms
    assert Atom(((x(0), F(1)), (x(1), F(-1))), F(-3)) in forms
    assert Atom(((x(0), F(-1)), (x(1), F(-1)), (x(2), F(1))), F(10)) in forms
    assert Atom((), F(5)) in forms  # 2 * 3 * 2.5 <= 20
    below, above = Atom(((y, F(-1)),), F(-5)), Atom(((y, F(1)),), F(-5))
    assert document.assertions[-1] == Some((below, above))


@pytest.mark.parametrize("folder", ["ACC", "drones_1d_hovering", "rl_benchmarks"])
def test_twins_ask_the_same(folder: str, shared: Path) -> None:
    twins = sorted((shared / "standards/twins" / folder / "vnnlib/v1").glob("*/*.gz"))
    assert len(twins) == {"ACC": 5, "drones_1d_hovering": 16, "rl_benchmarks": 150}[folder]
    for first in twins:
        (second,) = (first.parents[2] / "v2" / first.parent.name).iterdir()
        one, two = read(first), read(second)
        assert content(one) == content(two), first.name
        assert one.version == (1, 0)
        assert two.version == (2, 0)


def test_both_versions_of_everything_linear() -> None:
    one = parse(
        HEAD1 + BOX1 + "(assert (or (and (< X_0 0.5) (>= Y_0 (* -2 X_1))) (!= Y_0 1e-1)))"
        "(assert (= (+ X_0 X_1) 0.25))"
    )
    two = parse(
        HEAD2 + BOX2 + "(assert (or (and (< X[0, 0] 0.5) (>= Y[0] (* -2 X[0,1]))) (!= Y[0] 0.1)))"
        "(assert (== (+ X[0,0] X[0,1]) 0.25))"
    )
    assert content(one) == content(two)
    y, x0, x1 = ("y", 0), ("x", 0), ("x", 1)
    assert one.assertions == (
        Some(
            (
                All(
                    (
                        Atom(((x0, F(-1)),), F(1, 2), strict=True),
                        Atom(((x1, F(2)), (y, F(1))), F(0)),
                    )
                ),
                Atom(((y, F(1)),), F(-1, 10), strict=True),
                Atom(((y, F(-1)),), F(1, 10), strict=True),
            )
        ),
        Atom(((x0, F(1)), (x1, F(1))), F(-1, 4)),
        Atom(((x0, F(-1)), (x1, F(-1))), F(1, 4)),
    )


def test_version_1_is_smt_lib() -> None:
    text = HEAD1.replace("declare-const X_0 Real", "declare-fun X_0 () Real") + BOX1
    plain = parse(text + "(assert (or (> X_0 0.5) (<= Y_0 (- 1.0))))")
    other = parse(
        "(set-logic QF_LRA)\n" + text + "(assert (=> (not (> X_0 0.5)) (<= Y_0 -1)))(check-sat)"
    )
    assert content(plain) == content(other)


def test_the_tightest_bound_counts_and_strictness_with_it() -> None:
    document = parse(
        HEAD1
        + "(assert (>= X_0 0.1))(assert (> X_0 0.1))(assert (>= X_0 0.0))"
        + "(assert (<= (* 3 X_0) 1))(assert (< X_1 2))(assert (<= X_1 1.0))(assert (<= Y_0 0.0))"
    )
    bounds = document.bounds
    assert bounds.get("lower", 0) == F(1, 10)
    assert bounds.get("upper", 0) == F(1, 3)
    assert bounds.get("lower", 1) is None
    assert bounds.get("upper", 1) == 1
    assert bounds.strict == {("lower", 0)}


def test_a_bound_said_again_is_the_tighter_one() -> None:
    """However it is written: as floats are, or not, strict or not, first or last."""
    forms = ("(assert ({0} X_0 {1}))", "(assert (and ({0} X_0 {1})))")
    ends = ("0.1", "0.10", "0.1000000000000000055511151231257827", "0.09999999999999999", "1e-1")
    for one, two in product(product(forms, ends), repeat=2):
        for sign, pick in ((">=", max), ("<=", min)):
            text = "".join(form.format(sign, end) for form, end in (one, two))
            found = parse(HEAD1 + text + "(assert (<= Y_0 0.0))").bounds
            side = "lower" if sign == ">=" else "upper"
            assert found.get(side, 0) == pick(F(one[1]), F(two[1]))
    strict = parse(HEAD1 + "(assert (> X_0 0.1))(assert (>= X_0 0.1))(assert (<= Y_0 0.0))").bounds
    assert strict.is_strict("lower", 0)


def test_several_tensors_share_x_and_y() -> None:
    document = parse(
        "(vnnlib-version <2.0>)"
        "(declare-network f (declare-input A real [2]) (declare-input B real [])"
        '(declare-hidden H real [1,2] "relu") (declare-output Y real [2]))'
        "(declare-network g (isomorphic-to f) (declare-input C real [2]) (declare-input D real [])"
        "(declare-output Z real [2]))"
        "(assert (<= (+ A[1] B C[0] D) (+ H[0,1] Y[0] Z[1])))"
    )
    (atom,) = document.assertions
    assert isinstance(atom, Atom)
    slots = {("x", 1), ("x", 2), ("x", 3), ("x", 5), ("y", 1), ("y", 2), ("y", 5)}
    assert {slot for slot, _ in atom.terms} == slots
    names = {document.name_of(slot) for slot in slots}
    assert names == {"A[1]", "B", "C[0]", "D", "H[0,1]", "Y[0]", "Z[1]"}
    assert document.networks[1].isomorphic_to == "f"


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_line_and_column(name: str, assert_golden: Callable[[str, str], None]) -> None:
    with pytest.raises(FormulaError) as caught:
        parse(REFUSED[name], "query.vnnlib")
    message = str(caught.value)
    assert message.startswith("query.vnnlib:")
    assert_golden(f"vnnlib/{name}.txt", message + "\n")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", F(1, 10)), ("-1.50", F(-3, 2)), ("4", F(4)), ("1e3", F(1000)), ("2.5E-2", F(1, 40)),
        (".5", F(1, 2)), ("5.", F(5)), ("+1", F(1)), ("-0.0", F(0)), ("", None), (".", None),
        ("1e", None), ("--1", None), ("0x10", None), ("inf", None), ("1_000", None), ("١", None),
        ("9" * 401, None), ("1e-400", None), ("0." + "0" * 350 + "1", None), ("1e309", None),
    ],
)  # fmt: skip
def test_numbers_are_exact(text: str, value: Fraction | None) -> None:
    assert number(text) == value


def test_places_do_not_depend_on_the_pieces_of_a_long_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qll.exchange import scanner

    text = HEAD1 + "; " + "long " * 900 + "\n" + BOX1 * 50 + "(assert\n  (<= Y_0 (* X_0 X_0)))"
    with pytest.raises(FormulaError) as whole:
        parse(text)
    monkeypatch.setattr(scanner, "PIECE", 17)
    monkeypatch.setattr(scanner, "MOST_TOKEN", 64)
    with pytest.raises(FormulaError) as pieces:
        parse(text)
    assert str(pieces.value) == str(whole.value)
    assert ":206:12:" in str(whole.value).splitlines()[0]
    assert content(parse(text.replace("(* X_0 X_0)", "X_0"))) == content(
        parse(HEAD1 + BOX1 + "(assert (<= Y_0 X_0))")
    )


def test_damaged_and_missing_files(tmp_path: Path) -> None:
    path = tmp_path / "q.vnnlib.gz"
    whole = gzip.compress((HEAD1 + BOX1 * 500 + "(assert (<= Y_0 0))").encode())
    path.write_bytes(whole)
    assert read(path).inputs == 2
    for data in (whole[:-9], whole[: len(whole) // 2], whole[:40] + b"\0" * 9 + whole[49:]):
        path.write_bytes(data)
        with pytest.raises(FormulaError, match=r"q\.vnnlib\.gz:\d+:\d+: "):
            read(path)
    for missing in (tmp_path / "none", tmp_path, Path("a\0b")):
        with pytest.raises(FormulaError, match="cannot be read"):
            read(missing)


def test_a_byte_order_mark_is_no_character(tmp_path: Path) -> None:
    text = "\ufeff" + HEAD2 + BOX2 + "(assert (<= Y[0] 0))"
    path = tmp_path / "query.txt"
    path.write_text(text, encoding="utf-8")
    assert is_query(str(path))
    assert content(read(path)) == content(parse(text)) == content(parse(text[1:]))


def test_a_long_file_takes_little_memory(tmp_path: Path) -> None:
    """20 MB of bounds in less memory than half the file, above what importing takes."""
    path = tmp_path / "long.vnnlib"
    with path.open("w") as stream:
        inputs = 180_000
        stream.writelines(f"(declare-const X_{k} Real)\n" for k in range(inputs))
        stream.write("(declare-const Y_0 Real)\n(assert (<= Y_0 0.0))\n")
        for k in range(inputs):
            stream.write(f"(assert (>= X_{k} -0.{k:06}7))\n(assert (<= X_{k} 0.{k:06}9))\n")
    size = path.stat().st_size
    assert size > 17e6
    code = (
        "import resource, sys\n"
        "from qll.exchange.files import read\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"assert read({str(path)!r}).inputs == {inputs}\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert int(done.stdout) * 1024 < size / 2
