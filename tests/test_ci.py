"""`.ci/run`, with a make that only pretends."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parent.parent / ".ci" / "run"
# A process that a test left behind keeps the output open.
MAKE = """#!/usr/bin/env bash
echo "CI=$CI shared=$QLL_SHARED asked=$*"
sleep 60 &
echo $! > left
echo "{closing}"
echo "make: *** something" >&2
exit {code}
"""


@pytest.mark.parametrize(
    ("closing", "code"),
    [
        ("3 passed, 2 deselected in 1.52s", 0),
        ("1 failed, 2 passed in 61.10s (0:01:01)", 2),
        ("1 error in 0.10s", 2),
    ],
)
def test_the_closing_line_comes_last_and_the_exit_code_is_kept(
    closing: str, code: int, tmp_path: Path
) -> None:
    clone, tools = tmp_path / "clone", tmp_path / "tools"
    for folder in (clone / ".ci", tools, tmp_path / "shared"):
        folder.mkdir(parents=True)
    shutil.copy(RUN, clone / ".ci" / "run")
    for name, text in (("make", MAKE.format(closing=closing, code=code)), ("chromium", "")):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    inherited = {k: v for k, v in os.environ.items() if k not in ("CI", "QLL_SHARED")}
    done = subprocess.run(
        ["bash", str(clone / ".ci" / "run")],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        env={**inherited, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"},
    )
    os.kill(int((clone / "left").read_text()), 9)
    lines = done.stdout.splitlines()
    assert done.returncode == code, done.stdout + done.stderr
    assert lines[-1] == closing
    asked = next(line for line in lines if line.startswith("CI="))
    assert asked.startswith(f"CI=1 shared={tmp_path / 'shared'} asked=") and "check" in asked
