"""A command whose output nobody reads any more, or that has none: no traceback, no false answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qll.cli.main import build_app
from qll.cli.pipes import EXIT_PIPE
from qll.cli.verify import _resumable

CALL = [sys.executable, "-m", "qll"]


# rich has an answer of its own to a pipe that breaks.
RICH = """
import sys
from rich.console import Console
from qll.cli.main import run
import qll.properties
qll.properties.purposes = lambda: Console().print("rules")
sys.argv = ["qll", "show"]
run()
"""


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("words", ["--help", "show", "show --json -", "rich"])
def test_a_reader_that_has_gone_ends_the_program_without_a_word(words: str, buffered: bool) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    environment |= {} if buffered else {"PYTHONUNBUFFERED": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", RICH] if words == "rich" else [*CALL, *words.split()],
            stdout=writer,
            stderr=subprocess.PIPE,
            env=environment,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (EXIT_PIPE, b"")


@pytest.mark.skipif(sys.platform == "win32", reason="the way of a POSIX shell")
def test_without_standard_output_a_command_does_its_work(tmp_path: Path) -> None:
    asked = [*CALL, "show", "--json", str(tmp_path / "said.json")]
    closed = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *asked]
    done = subprocess.run(closed, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "said.json").exists()


def test_another_pipe_that_breaks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> dict[str, str]:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("qll.properties.purposes", gone)
    result = CliRunner().invoke(build_app(), ["show"])
    assert "a process that this one was speaking to has ended" in str(result.exception)


STOPPED = """
import sys
from qll.cli.main import run
import qll.properties
def stop():
    raise KeyboardInterrupt
qll.properties.purposes = stop
sys.argv = ["qll", "show"]
run()
"""


def test_ctrl_c_is_said_and_has_its_own_exit_code() -> None:
    done = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"Interrupted.\n")


def test_an_interrupted_proof_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for begun, said in ((False, ""), (True, "the same command goes on from it")):
        if begun:
            (tmp_path / "v.json.partial").write_text("")
        with pytest.raises(KeyboardInterrupt), _resumable(tmp_path / "v.json"):
            raise KeyboardInterrupt
        assert said in capsys.readouterr().err
