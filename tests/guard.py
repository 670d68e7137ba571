"""A test run ends, whatever a test does.

Hangs: pytest-timeout raises in the test when its time is over (`timeout` in pyproject.toml) and
prints the stacks of all threads. Code that does not come back to the interpreter never sees that,
so a little later faulthandler, which needs no interpreter, prints them again and ends the process.

Deaths: pytest-xdist starts another worker for one that died, and under `--dist loadfile` waits for
ever when that one is left with a single test: a worker runs a test only when it knows the next one
or that there is none, and neither is ever said to it. Without replacements (--max-worker-restart=0)
the others still run all that is queued. So here they stop after the test that they are at, and are
ended if that takes long: the run is red within a minute, and says which test it was.

Skips: where everything is installed on purpose (CI is set) what is skipped is a failure.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LAST = 20.0  # seconds from the end of a test's time to the end of its process
GRACE = 30.0  # seconds from a worker's death to that of the others
_FOLDER = "qll_folder"  # where workers leave their process number, and are told to stop


class Limits:
    """In the processes that run tests."""

    def __init__(self) -> None:
        self._stderr = os.dup(2)  # capturing changes what 2 is

    @pytest.hookimpl(wrapper=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> Iterator[None]:
        if settings.timeout:
            limit = settings.timeout + LAST
            faulthandler.dump_traceback_later(limit, exit=True, file=self._stderr)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> Iterator[None]:
        faulthandler.cancel_dump_traceback_later()
        return (yield)


class NoSkips:
    """In CI: an engine, a backend, a browser or data that are not there are a failure."""

    # What the machine cannot do, whatever is installed.
    ALLOWED = ("only root mounts a file system", "this processor does not")

    def _refuse(self, report: Any) -> None:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if report.skipped and not any(allowed in reason for allowed in self.ALLOWED):
            report.outcome = "failed"
            report.longrepr = f"In CI nothing is left out. {reason}"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report = yield
        if not hasattr(report, "wasxfail"):
            self._refuse(report)
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self) -> Iterator[None]:
        report = yield
        self._refuse(report)
        return report


class Worker:
    """In a worker of pytest-xdist."""

    def __init__(self, folder: Path) -> None:
        self._stop = folder / "stop"
        self._here = folder / f"{os.getpid()}.worker"
        self._here.touch()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        found = yield
        if self._stop.exists():
            item.session.shouldstop = "another worker died"
        return found

    def pytest_unconfigure(self) -> None:
        self._here.unlink(missing_ok=True)


class Controller:
    """In the process that hands out the tests."""

    def __init__(self) -> None:
        self._held = tempfile.TemporaryDirectory(prefix="qll-tests-")
        self._folder = Path(self._held.name)
        self._lost: list[str] = []
        self._over = threading.Event()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[_FOLDER] = str(self._folder)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if error and not self._lost:
            (self._folder / "stop").touch()
            threading.Thread(target=self._end, daemon=True).start()
        if error:
            self._lost.append(node.gateway.id)

    def _end(self) -> None:
        """Those that do not stop by themselves: SIGABRT prints their stacks."""
        if self._over.wait(GRACE):
            return
        for number in (signal.SIGABRT, signal.SIGKILL):
            for worker in self._folder.glob("*.worker"):
                try:
                    os.kill(int(worker.stem), number)
                except ProcessLookupError:
                    worker.unlink(missing_ok=True)
            if self._over.wait(2):
                return

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._over.set()
        if self._lost and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self) -> None:
        self._held.cleanup()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for name in self._lost:
            terminalreporter.write_line(f"worker {name} died: the run is not complete", red=True)


def pytest_configure(config: pytest.Config) -> None:
    folder = getattr(config, "workerinput", {}).get(_FOLDER)
    guard = Controller() if folder is None else Worker(Path(folder))
    config.pluginmanager.register(Limits(), "qll-limits")
    config.pluginmanager.register(guard, "qll-guard")
    if os.environ.get("CI"):
        config.pluginmanager.register(NoSkips(), "qll-no-skips")
