"""Damaged VNN-LIB: every cut and many changes are read, or refused at a line and a column."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from exchange_cases import BOX1, BOX2, HEAD1, HEAD2
from fuzz_cases import damaged
from hypothesis import HealthCheck, given, settings

from qll.errors import FormulaError
from qll.exchange.document import Document
from qll.exchange.files import parse
from qll.exchange.writers import write

EXAMPLES = int(os.environ.get("QLL_FUZZ", "0"))
GOLDENS = Path(__file__).parent / "goldens/exchange"
PLACE = re.compile(r"q\.vnnlib:(\d+):(\d+): ")
TAIL = "(assert (or (and (< {x} 0.5) (>= {y} (* -2 {x}))) (!= {y} 1e-9))) ; a comment\n"
SMALL = [
    HEAD1 + BOX1 + TAIL.format(x="X_0", y="Y_0"),
    HEAD2 + BOX2 + TAIL.format(x="X[0,1]", y="Y[0]"),
    (GOLDENS / "monotonicity.v2.vnnlib").read_text(),
]


def assert_read_or_refused(text: str) -> Document | None:
    try:
        return parse(text, "q.vnnlib")
    except FormulaError as error:
        place = PLACE.match(str(error))
        assert place is not None, str(error)
        line, column = map(int, place.groups())
        rows = text.split("\n")
        assert 1 <= line <= len(rows), (line, len(rows))
        assert 1 <= column <= len(rows[line - 1]) + 1
        assert "\nFix: " in str(error)
        return None


@pytest.mark.parametrize("text", SMALL)
def test_a_file_cut_anywhere(text: str) -> None:
    """Only a file that ends after a whole statement is one."""
    for end in range(len(text)):
        found = assert_read_or_refused(text[:end])
        if found is not None:
            after = text[:end].rstrip()
            assert after.endswith(")") or ";" in after.split("\n")[-1]


@settings(
    max_examples=EXAMPLES or 150,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(damaged([path.read_bytes() for path in sorted(GOLDENS.glob("*.vnnlib"))]))
def test_a_changed_file(files: tuple[bytes, bytes]) -> None:
    """What is still read can be written, and says the same when it is read again."""
    text = files[1].decode("utf-8", errors="replace").replace("\r", " ")
    found = assert_read_or_refused(text)
    if found is not None:
        again = parse("\n".join(write(found, 2)))
        assert list(again.bounds.atoms()) == list(found.bounds.atoms())
        assert again.assertions == found.assertions


@pytest.mark.slow
def test_a_file_of_hundreds_of_megabytes(tmp_path: Path) -> None:
    """250 MB of bounds, half of them said again: read in a third of its size."""
    path = tmp_path / "long.vnnlib"
    inputs, times = 1_500_000, 2
    with path.open("w") as stream:
        stream.writelines(f"(declare-const X_{k} Real)\n" for k in range(inputs))
        stream.write("(declare-const Y_0 Real)\n")
        for _ in range(times):
            stream.writelines(
                f"(assert (>= X_{k} -0.{k:07}7))\n(assert (<= X_{k} 0.{k:07}9))\n"
                for k in range(inputs)
            )
        stream.write("(assert (<= Y_0 0.0))\n")
    size = path.stat().st_size
    assert size > 240e6
    code = (
        "import resource\nfrom qll.exchange.files import read\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"assert read({str(path)!r}).inputs == {inputs}\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=1800
    )
    assert int(done.stdout) * 1024 < size / 3
