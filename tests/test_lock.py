"""One writer at a time, across processes; whoever is refused is told who writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from qll.files import Locked, exclusive

HOLD = """
import sys, time
from pathlib import Path
from qll.files import exclusive
with exclusive(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_holder_is_named(tmp_path: Path) -> None:
    with (
        exclusive(tmp_path / "lock"),
        pytest.raises(Locked, match=f"process {os.getpid()}"),
        exclusive(tmp_path / "lock"),
    ):
        pytest.fail("two writers")
    with exclusive(tmp_path / "lock"):
        pass  # given back


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(Locked, match=f"process {other.pid}"), exclusive(lock):
            pytest.fail("two writers")
        other.kill()
        other.wait()
    with exclusive(lock):
        pass
