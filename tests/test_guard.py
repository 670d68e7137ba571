"""A run of the tests that meets a death or a hang ends, red, and says where. In real runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MINUTE = 60.0

CONFTEST = """
import guard
from guard import pytest_configure
guard.GRACE = guard.LAST = {grace}
"""
DEATHS = {
    "_exit": "import os\ndef test_dies(): os._exit(1)\n",
    "kill": "import os, signal\ndef test_dies(): os.kill(os.getpid(), signal.SIGKILL)\n",
    "at the start": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n",
}
# The second takes a lock twice that only C knows, and holds the interpreter's: no other thread
# runs, and no signal reaches Python.
HANGS = {
    "in Python": "def test_hangs():\n    while True: pass\n",
    "in C": "import ctypes\nC, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(64)\n"
    "def test_hangs():\n    C.pthread_mutex_lock(lock)\n    C.pthread_mutex_lock(lock)\n",
}
MORE = "import pytest\n@pytest.mark.parametrize('k', range(20))\ndef test_more(k): pass\n"
LONG = "import time\ndef test_is_long(): time.sleep(600)\n"


def run(
    folder: Path,
    files: dict[str, str],
    *options: str,
    grace: float = 3.0,
    conftest: str = CONFTEST,
    ci: bool = False,
) -> tuple[int, str, float]:
    """Of pytest, with the settings of the real runs; exit code, output and seconds."""
    (folder / "conftest.py").write_text(conftest.replace("{grace}", str(grace)))
    for name, text in files.items():
        (folder / name).write_text(text)
    config = ["-c", str(HERE.parent / "pyproject.toml"), "--rootdir", str(folder)]
    config += ["-p", "no:cacheprovider"]
    if conftest is CONFTEST:
        config += ["-p", "no:hypothesispytest"]
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *config, *options, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * MINUTE,
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "CI"))},
            **({"CI": "1"} if ci else {}),
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
        },
    )
    return done.returncode, done.stdout + done.stderr, time.monotonic() - begun


def make_options() -> list[str]:
    """As `make test` distributes the tests."""
    recipe = (HERE.parent / "Makefile").read_text()
    found = re.search(r"-m pytest (-n \d+ .*?)(?= -m | *\n)", recipe)
    assert found is not None
    return found[1].split()


@pytest.mark.parametrize("death", DEATHS)
def test_a_run_that_loses_a_worker_ends_red(death: str, tmp_path: Path) -> None:
    """One test is left for a replacement, were there one; the other worker is at a long test."""
    files = {"test_a.py": DEATHS[death], "test_b.py": LONG, "test_c.py": MORE}
    code, output, seconds = run(tmp_path, files, *make_options())
    assert code != 0, output
    assert seconds < MINUTE, output
    assert "died: the run is not complete" in output
    if death != "at the start":
        assert "test_a.py::test_dies" in output


def test_the_others_stop_by_themselves_after_a_death(tmp_path: Path) -> None:
    """After the test that they are at, not after all that they were given."""
    dies = DEATHS["kill"] + MORE
    many = MORE.replace("20", "800").replace("pass", "time.sleep(0.1)")
    files = {"test_a.py": dies, "test_b.py": "import time\n" + many}
    code, output, seconds = run(tmp_path, files, *make_options(), grace=40.0)
    assert code != 0 and seconds < MINUTE, output
    assert "test_a.py::test_dies" in output and "Fatal Python error" not in output


@pytest.mark.parametrize("hang", HANGS)
def test_a_test_that_hangs_ends_with_its_stacks(hang: str, tmp_path: Path) -> None:
    files = {"test_a.py": HANGS[hang], "test_b.py": MORE}
    code, output, seconds = run(tmp_path, files, "--timeout", "2")
    assert code != 0 and seconds < MINUTE, output
    assert "test_hangs" in output and "test_a.py" in output
    if hang == "in Python":  # the others are run
        assert "1 failed, 20 passed" in output
    else:
        assert "Timeout (0:00:05)!" in output


SKIPS = """
import pytest
def test_engine(): pytest.skip("an engine is not installed")
def test_mount(): pytest.skip("only root mounts a file system")
@pytest.mark.xfail
def test_known(): assert False
"""


@pytest.mark.parametrize("ci", [False, True])
def test_a_skip_is_a_failure_in_ci(ci: bool, tmp_path: Path) -> None:
    files = {"test_a.py": SKIPS, "test_b.py": "import pytest\npytest.importorskip('nothing')\n"}
    code, output, _ = run(tmp_path, files, "--continue-on-collection-errors", ci=ci)
    if ci:
        assert code == 1 and "1 failed, 1 skipped, 1 xfailed, 1 error" in output
        assert "In CI nothing is left out. Skipped: an engine is not installed" in output
    else:
        assert code == 0 and "3 skipped, 1 xfailed" in output


EXAMPLES = """
from hypothesis import given, strategies
def drawn():
    found = []
    given(strategies.integers())(lambda x: found.append(x))()
    return found
def test_same(): assert drawn() == drawn()
@given(strategies.integers(min_value=0))
def test_small(x): assert x < 1000
"""


@pytest.mark.parametrize("ci", [False, True])
def test_examples_are_new_at_home_and_the_same_in_ci(ci: bool, tmp_path: Path) -> None:
    """With the real settings; what fails is printed with the line that repeats it."""
    real = (HERE / "conftest.py").read_text()
    code, output, _ = run(tmp_path, {"test_a.py": EXAMPLES}, conftest=real, ci=ci)
    assert code == 1 and "x=1000," in output and "@reproduce_failure(" in output
    assert ("FAILED" in output and "test_a.py::test_same" in output) is not ci


def test_every_test_has_a_limit(request: pytest.FixtureRequest) -> None:
    assert 0 < float(request.config.getini("timeout")) <= 600
    guards = request.config.pluginmanager
    assert guards.has_plugin("qll-limits") and guards.has_plugin("qll-guard")
