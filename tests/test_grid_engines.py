"""Engines, for real: local processes, a Dask scheduler with two workers, Ray. Workers are killed in
the middle; every run and verdict is there at the end, none twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from grid_cases import assert_complete, call, epochs_of, reproduce, start, write_grid

from qll.errors import InputError, MissingExtra, RunError
from qll.workers import Lost, Workers


def need(package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"'{package}' is not installed: pip install 'qll[dask,ray]' to test it")


def wait_for(condition: Callable[[], bool], seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


# --- functions that workers call: they must belong to a module ---


def double(item: int) -> int:
    return 2 * item


def process_of(item: int) -> int:
    return os.getpid()


def size_of(item: bytes) -> int:
    return len(item)


def refuse(item: int) -> int:
    if item == 2:
        raise InputError("two is refused", expected="another", found="2", fix="leave it out")
    return item


def die_always(item: int) -> int:
    if item == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def die_once(item: tuple[int, str]) -> int:
    number, mark = item
    if number == 1 and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


# --- local processes ---


def test_answers_come_with_their_numbers() -> None:
    items = [5, 6, 7, 8]
    for jobs in (1, 2):
        assert dict(Workers(jobs=jobs).run(double, items)) == {0: 10, 1: 12, 2: 14, 3: 16}
    assert dict(Workers(jobs=2).run(double, [])) == {}


def test_errors_of_a_call_are_raised_whole() -> None:
    for jobs in (1, 2):
        with pytest.raises(InputError, match="two is refused"):
            list(Workers(jobs=jobs).run(refuse, [1, 2, 3]))


def test_a_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    items = [(k, str(tmp_path / "mark")) for k in range(5)]
    found = list(Workers(jobs=2).run(die_once, items))
    assert sorted(found) == [(k, k) for k in range(5)]


def test_a_call_that_kills_its_worker_is_given_up_and_the_others_are_not() -> None:
    found = list(Workers(jobs=2).run(die_always, list(range(5))))
    assert len(found) == 5
    assert dict(found) == {0: 0, 1: Lost(), 2: 2, 3: 3, 4: 4}


@pytest.mark.slow
def test_a_grid_on_two_processes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = reproduce(write_grid(tmp_path), out, "--jobs", "2")
    assert result.exit_code == 0, result.output
    for run in out.iterdir():
        assert_complete(run, epochs=1)
    assert len(list(out.iterdir())) == 4


@pytest.mark.slow
def test_a_killed_process_of_a_grid_is_replaced(tmp_path: Path) -> None:
    grid, out = write_grid(tmp_path, epochs=8, images=32, logics=("qll:5",)), tmp_path / "out"
    process = start(
        "reproduce", "--grid", grid, "--out", out, "--count", "3", "--jobs", "2", "--seeds", "0-2"
    )
    victim = out / "not-both-dice-rendered-qll5-1"
    wait_for(lambda: (victim / "metrics.jsonl").exists() and len(epochs_of(victim)) >= 2)
    os.kill(int((victim / "grid.lock").read_text()), signal.SIGKILL)
    output, errors = process.communicate()
    assert process.returncode == 0, output + errors
    for seed in range(3):
        assert_complete(out / f"not-both-dice-rendered-qll5-{seed}", epochs=8)


def test_an_unknown_engine_and_a_scheduler_of_nothing() -> None:
    with pytest.raises(InputError, match="unknown engine 'das'"):
        Workers("das")
    with pytest.raises(InputError, match="local processes have no scheduler"):
        Workers("local", scheduler="tcp://127.0.0.1:1")


# --- Dask ---


class Cluster:
    """A scheduler and workers of one thread each, as their own processes."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        file = folder / "scheduler.json"
        self.scheduler = self._start(
            "scheduler", "--port", "0", "--no-dashboard", "--host", "127.0.0.1",
            "--scheduler-file", str(file),
        )  # fmt: skip
        wait_for(lambda: file.exists() and file.read_text().strip().endswith("}"))
        self.address = str(json.loads(file.read_text())["address"])
        self.workers = [self.add_worker() for _ in range(workers)]

    def add_worker(self, *more: str, nanny: bool = False) -> subprocess.Popen[bytes]:
        """With a nanny, as from the command line, the worker is replaced when it dies."""
        return self._start(
            "worker", self.address, "--nanny" if nanny else "--no-nanny", "--no-dashboard",
            "--nthreads", "1", "--death-timeout", "60", *more,
        )  # fmt: skip

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        here = str(Path(__file__).parent)
        path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
        with (self.folder / f"{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "distributed.cli.dask_" + arguments[0], *arguments[1:]],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": path},
            )
        self.processes.append(process)
        return process

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait(timeout=30)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    yield from _cluster(tmp_path / "dask", workers=2)


@pytest.fixture
def bare_scheduler(tmp_path: Path) -> Iterator[Cluster]:
    """Workers come later, if at all."""
    yield from _cluster(tmp_path / "dask", workers=0)


def _cluster(folder: Path, workers: int) -> Iterator[Cluster]:
    need("distributed")
    folder.mkdir()
    cluster = Cluster(folder, workers)
    yield cluster
    cluster.stop()


def test_one_worker_of_one_thread_does_all_the_work(bare_scheduler: Cluster) -> None:
    """None of it is done here: a call that kills its process would take the command with it."""
    bare_scheduler.add_worker(nanny=True)
    workers = Workers("dask", scheduler=bare_scheduler.address)
    found = dict(workers.run(process_of, [0, 1, 2]))
    assert len(found) == 3 and len(set(found.values())) == 1
    assert os.getpid() not in found.values()
    assert dict(workers.run(process_of, [0])) == {0: found[0]}
    with warnings.catch_warnings(action="error"):  # large networks are sent without a word
        assert dict(workers.run(size_of, [bytes(12 << 20)])) == {0: 12 << 20}
    assert dict(workers.run(die_always, [0, 1, 2])) == {0: 0, 1: Lost(), 2: 2}


def test_workers_may_come_late(
    bare_scheduler: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qll.workers.dask._PATIENCE", 0.0)
    workers = Workers("dask", scheduler=bare_scheduler.address)
    late = threading.Timer(2.0, bare_scheduler.add_worker)
    late.start()
    assert dict(workers.run(double, [3, 4])) == {0: 6, 1: 8}
    assert [r.getMessage() for r in caplog.records if "no worker" in r.getMessage()]
    late.join()


def test_workers_that_never_come_are_not_waited_for_for_ever(
    bare_scheduler: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qll.workers.dask._LONELY", 1.0)
    with pytest.raises(RunError, match="the cluster has no workers"):
        list(Workers("dask", scheduler=bare_scheduler.address).run(double, [1, 2]))


@pytest.mark.slow
def test_a_grid_on_a_cluster_one_of_whose_workers_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    grid, out = write_grid(tmp_path, epochs=8, images=32, logics=("qll:5",)), tmp_path / "out"
    process = start(
        "reproduce", "--grid", grid, "--out", out, "--count", "3", "--seeds", "0-2",
        "--engine", "dask", "--scheduler", cluster.address,
    )  # fmt: skip
    pids = {worker.pid for worker in cluster.workers}
    first = out / "not-both-dice-rendered-qll5-0"
    wait_for(lambda: (first / "metrics.jsonl").exists() and len(epochs_of(first)) >= 2)
    holder = int((first / "grid.lock").read_text())
    assert holder in pids, "the runs are done by the workers"
    os.kill(holder, signal.SIGKILL)
    output, errors = process.communicate()
    assert process.returncode == 0, output + errors
    assert "3 finished" in output
    for seed in range(3):
        assert_complete(out / f"not-both-dice-rendered-qll5-{seed}", epochs=8)
        assert output.count(f"qll5-{seed}: finished") == 1


@pytest.mark.slow
def test_verdicts_from_a_cluster_one_of_whose_workers_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    from qll.networks.models import create
    from qll.networks.onnx_writer import onnx_bytes

    model = create("paper-dice", in_channels=3, height=28, width=28, outputs=6, mean=(0.5,) * 3,
                   std=(0.5,) * 3)  # fmt: skip
    network = tmp_path / "net.onnx"
    network.write_bytes(onnx_bytes(model.eval(), input_shape=(3, 28, 28)))
    common = (
        "verify", "not-both", "--network", network, "--data", "dice-rendered", "--count", "16",
        "--epsilon", "0.01", "--timeout", "20",
    )  # fmt: skip
    process = start(
        *common, "--engine", "dask", "--scheduler", cluster.address, "--json", tmp_path / "a.json"
    )
    partial = tmp_path / "a.json.partial"
    wait_for(lambda: partial.exists() and partial.read_text().count("\n") >= 2)
    cluster.workers[0].kill()
    output, errors = process.communicate()
    assert process.returncode in (0, 10, 11), output + errors
    call(*common, "--jobs", "1", "--json", tmp_path / "b.json")
    there, here = (
        [(v["point"], v["status"]) for v in json.loads((tmp_path / name).read_text())["verdicts"]]
        for name in ("a.json", "b.json")
    )
    assert there == here and len(there) == 16


@pytest.mark.slow
def test_a_scheduler_that_goes_is_named_and_nothing_is_lost(
    cluster: Cluster, tmp_path: Path
) -> None:
    grid, out = write_grid(tmp_path, epochs=8, images=32, logics=("qll:5",)), tmp_path / "out"
    process = start(
        "reproduce", "--grid", grid, "--out", out, "--count", "3", "--seeds", "0-1",
        "--engine", "dask", "--scheduler", cluster.address,
    )  # fmt: skip
    first = out / "not-both-dice-rendered-qll5-0"
    wait_for(lambda: (first / "metrics.jsonl").exists() and len(epochs_of(first)) >= 2)
    cluster.scheduler.kill()
    output, errors = process.communicate()
    assert process.returncode == 2, output + errors
    assert "the scheduler is gone" in errors and "the same command" in errors
    assert "Traceback" not in errors
    cluster.stop()
    result = reproduce(grid, out, "--jobs", "1")
    assert result.exit_code == 0, result.output
    for seed in range(2):
        assert_complete(out / f"not-both-dice-rendered-qll5-{seed}", epochs=8)


def test_a_call_that_kills_its_workers_is_given_up_on_a_cluster(cluster: Cluster) -> None:
    cluster.add_worker()  # two die
    found = list(Workers("dask", jobs=1, scheduler=cluster.address).run(die_always, [0, 1, 2]))
    assert dict(found) == {0: 0, 1: Lost(), 2: 2} and len(found) == 3


def test_a_cluster_that_is_not_there_or_does_not_fit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qll.workers.dask._CONNECT", 1.0)
    with pytest.raises(InputError, match="needs a scheduler"):
        list(Workers("dask").run(double, [1, 2]))
    with pytest.raises(RunError, match="the scheduler does not answer"):
        list(Workers("dask", scheduler="tcp://127.0.0.1:9").run(double, [1, 2]))
    cluster.add_worker("--nthreads", "3")
    wait_for(lambda: 3 in _threads(cluster.address))
    with pytest.raises(InputError, match="3 threads in worker tcp"):
        list(Workers("dask", scheduler=cluster.address).run(double, [1, 2]))


def _threads(address: str) -> set[int]:
    from distributed import Client

    with Client(address, set_as_default=False) as client:
        return set(client.nthreads().values())


# --- Ray ---


ON_RAY = """
import json, os, sys
from pathlib import Path
from test_grid_engines import die_always, die_once, process_of, refuse
from qll.cli.main import run
from qll.errors import InputError
from qll.workers import Lost, Workers
workers = Workers("ray", jobs=1)
found = {"driver": os.getpid(), "pids": dict(workers.run(process_of, [0, 1]))}
lost = dict(workers.run(die_always, [0, 1, 2]))
found["lost"] = [k for k, result in lost.items() if isinstance(result, Lost)]
found["kept"] = {k: result for k, result in lost.items() if not isinstance(result, Lost)}
found["once"] = dict(workers.run(die_once, [(k, "mark") for k in range(3)]))
try:
    list(workers.run(refuse, [1, 2, 3]))
except InputError as error:
    found["error"] = str(error)
Path("found.json").write_text(json.dumps(found))
sys.argv[0] = "qll"
run()
"""


def test_calls_deaths_and_a_grid_on_ray(tmp_path: Path) -> None:
    """In one process, since the start of Ray is what takes long. One job: nothing is done here."""
    need("ray")
    path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    grid, out = write_grid(tmp_path), tmp_path / "out"
    command = ["reproduce", "--grid", grid, "--out", out, "--count", "3", "--engine", "ray"]
    done = subprocess.run(
        [sys.executable, "-c", ON_RAY, *map(str, command), "--jobs", "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        # Ray's workers give way to all others: on a busy machine they would not end in time.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "RAY_worker_niceness": "0"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found["pids"]) == 2 and found["driver"] not in found["pids"].values()
    assert found["lost"] == [1] and found["kept"] == {"0": 0, "2": 2}
    assert found["once"] == {"0": 0, "1": 1, "2": 2}
    assert found["error"].startswith("two is refused")
    assert "4 finished" in done.stdout
    for run in out.iterdir():
        assert_complete(run, epochs=1)


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_an_engine_that_is_not_installed_is_named(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, {"dask": "distributed", "ray": "ray"}[engine], None)
    with pytest.raises(MissingExtra, match=f"qll\\[{engine}\\]"):
        list(Workers(engine, scheduler="tcp://127.0.0.1:9").run(double, [1, 2]))
