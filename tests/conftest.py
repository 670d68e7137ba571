"""What all tests share: the path of the shared data, the flag that updates goldens, one thread."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import guard
import pytest
import torch
from hypothesis import settings

from qll.verify import clock

GOLDENS = Path(__file__).parent / "goldens"

# Two workers share two cores: more threads only wait for each other. Processes that tests start
# inherit it, since sums depend on the number of threads in their last bit.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

# Wall-clock deadlines fail on a loaded machine and say nothing about the code. In CI the examples
# are the same every time; elsewhere new ones are tried on every run, and one that fails is printed
# with the line that repeats it.
_FIXED = bool(os.environ.get("CI"))
settings.register_profile("qll", deadline=None, print_blob=True, derandomize=_FIXED)
settings.load_profile("qll")


pytest_configure = guard.pytest_configure


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-goldens", action="store_true", help="write what the tests find to tests/goldens"
    )


SLOW = 3600  # seconds for a test that is marked as slow


# Each file is run by one worker: those that take longest come first, lest one of them be left over
# at the end while the other workers have nothing to do.
FIRST = (
    "test_grid_engines.py", "test_grid.py", "test_cycle.py", "test_guard.py", "test_attacks.py",
    "test_verify_soundness.py", "test_audit.py", "test_training_runs.py", "test_faults.py",
    "test_reports_browser.py", "test_training_certified.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(item.path.name, len(FIRST)))
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW))


@pytest.fixture(autouse=True)
def budgets_count_own_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time-outs of queries count the CPU time of this process: neighbours change no verdict."""
    monkeypatch.setitem(clock._CLOCKS, "wall", time.process_time)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The directory of shared data (networks, data sets), from the environment."""
    path = os.environ.get("QLL_SHARED")
    if path and Path(path).is_dir():
        return Path(path)
    pytest.skip("QLL_SHARED does not name a directory: set it to that of the shared data")


@pytest.fixture
def assert_golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``assert_golden("errors/empty-set.txt", text)``: as written, or rewritten by the flag."""

    def check(name: str, found: str) -> None:
        path = GOLDENS / name
        if request.config.getoption("--update-goldens"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(found, encoding="utf-8")
        assert path.is_file(), f"no golden {name}: run pytest --update-goldens and read the result"
        assert found == path.read_text(encoding="utf-8")

    return check
