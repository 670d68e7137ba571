"""Kills at random moments, full disks, folders that refuse, no memory, clocks that jump, two
writers: nothing lost, nothing twice, nothing damaged that is believed.

`make test` tries a few moments of training and verification; `make faults` 50 of every command.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audit_cases import ROBUST, SHAPE, make_case

import qll
from qll.data.idx import write_idx
from qll.errors import RunError
from qll.networks import load
from qll.properties import parse
from qll.verify import api, clock
from qll.verify.api import Problem, decide_all
from qll.verify.backend import BACKENDS
from qll.verify.journal import Journal
from qll.verify.verdict import Reason, Status
from qll.workers import Workers

POINTS = 40
KILLED = -signal.SIGKILL


# --- commands that can be killed ---


class Server:
    """Starts commands fast, see fault_server.py."""

    def __init__(self, folder: Path) -> None:
        script = Path(__file__).with_name("fault_server.py")
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        )
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def run(
        self, arguments: list[str], place: Path, *, kill_at: int | None = None,
        seconds: float | None = None,
    ) -> tuple[int, float, int]:  # fmt: skip
        """Exit code (-9: killed), seconds, and accesses to files under ``place``."""
        log = self.folder / "log.txt"
        request = {
            "arguments": arguments, "place": str(place), "kill_at": kill_at, "seconds": seconds,
            "log": str(log),
        }  # fmt: skip
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        found = json.loads(self._line())
        text = log.read_text(errors="replace")
        last = text.strip().rsplit("\n", 1)[-1]
        if found["code"] != KILLED:
            assert last.isdecimal(), text
        return found["code"], found["seconds"], int(last) if last.isdecimal() else 0

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    held = Server(tmp_path_factory.mktemp("server"))
    yield held
    held.close()


@dataclass(frozen=True)
class Command:
    """``arguments(inputs, out)`` of the command, what goes on with it, and what it must leave."""

    arguments: Callable[[Path, Path], list[str]]
    result: Callable[[Path], Any]
    resume: Callable[[Path, Path], list[str]] | None = None  # where another command goes on
    begun: str = ""  # the file with which it has begun


def train_arguments(inputs: Path, out: Path) -> list[str]:
    settings = ["batch_size=8", "steps=2", "restarts=0", 'engine="autograd"']
    settings.append("data_options={count_train=24, count_test=8}")
    options = [part for setting in settings for part in ("--set", setting)]
    base = ["train", "not-both", "--data", "dice-rendered", "--logic", "qll:5", "--epochs", "4"]
    return [*base, "--out", str(out / "run"), *options]


def train_resume(inputs: Path, out: Path) -> list[str]:
    return ["train", "--resume", "--out", str(out / "run")]


def train_result(out: Path) -> Any:
    run = out / "run"
    lines = (run / "metrics.jsonl").read_text().splitlines()
    rows = [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]
    whole = ("evaluation.json", "model.onnx", "config.json")
    last = sorted((run / "checkpoints").iterdir())[-1]
    return rows, [(run / name).read_bytes() for name in whole], last.read_bytes()


def verify_arguments(inputs: Path, out: Path) -> list[str]:
    return [
        "verify", str(inputs / "robust.qll"), "--network", str(inputs / "net.onnx"), "--images",
        str(inputs / "images.idx"), "--labels", str(inputs / "labels.idx"), "--mean", "0.4",
        "--std", "0.3", "--jobs", "1", "--count", "0", "--json", str(out / "verdicts.json"),
        "--certificate", str(out / "certificates"), "--timeout", "30",
    ]  # fmt: skip


def verify_result(out: Path) -> Any:
    from qll.audit import audit

    content = json.loads((out / "verdicts.json").read_text())
    verdicts = content["verdicts"]
    assert [v["point"] for v in verdicts] == list(range(POINTS))
    assert not (out / "verdicts.json.partial").exists()
    certificates = sorted((out / "certificates").glob("*.qllcert"))
    network = (out / "certificates" / f"{content['network_sha256']}.onnx").read_bytes()
    answers = {int(p.stem): audit(p.read_bytes(), network) for p in certificates}
    assert sorted(answers) == [v["point"] for v in verdicts if v["status"] != "unknown"]
    for v in verdicts:
        if v["point"] in answers:
            assert answers[v["point"]].confirmed and answers[v["point"]].verdict == v["status"]
    return [v["status"] for v in verdicts]


def reproduce_arguments(inputs: Path, out: Path) -> list[str]:
    base = ["reproduce", "--grid", str(inputs / "tiny.toml"), "--out", str(out / "grid")]
    return [*base, "--count", "3", "--jobs", "1"]


def reproduce_result(out: Path) -> Any:
    from grid_cases import assert_complete

    runs = sorted(path for path in (out / "grid").iterdir() if path.is_dir())
    assert len(runs) == 4
    for run in runs:
        assert_complete(run, epochs=2)
    names = ("model.onnx", "evaluation.json")
    return [(run.name, [(run / name).read_bytes() for name in names]) for run in runs]


def cycle_arguments(inputs: Path, out: Path) -> list[str]:
    settings = ["batch_size=8", "data_options={count_train=24, count_test=8}"]
    options = [part for setting in settings for part in ("--set", setting)]
    base = ["cycle", "not-both", "--data", "dice-rendered", "--epochs", "1", "--more-epochs", "1"]
    more = ["--count", "4", "--feedback", "4", "--jobs", "1", "--target", "0.5", "--budget", "1h"]
    return [*base, *more, "--out", str(out / "cycle"), *options]


def cycle_resume(inputs: Path, out: Path) -> list[str]:
    return [*cycle_arguments(inputs, out), "--resume"]


def cycle_result(out: Path) -> Any:
    verdicts = json.loads((out / "cycle" / "verdicts.json").read_text())["verdicts"]
    return (out / "cycle" / "model.onnx").read_bytes(), [v["status"] for v in verdicts]


COMMANDS = {
    "train": Command(train_arguments, train_result, train_resume, "run/config.json"),
    "verify": Command(verify_arguments, verify_result),
    "reproduce": Command(reproduce_arguments, reproduce_result),
    "cycle": Command(cycle_arguments, cycle_result, cycle_resume, "cycle/cycle.json"),
}
QUICK = ("train", "verify")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from grid_cases import write_grid

    folder = tmp_path_factory.mktemp("inputs")
    case, rng = make_case(0), np.random.default_rng(0)
    (folder / "net.onnx").write_bytes(case.network.source)
    (folder / "robust.qll").write_text(ROBUST)
    points = np.clip(case.x0 + rng.normal(0, 0.2, (POINTS, 36)), 0, 1).round(6)
    labels = case.network.relu_form.forward(points).argmax(axis=1).astype(np.uint8)
    write_idx(folder / "images.idx", points.reshape(POINTS, *SHAPE))
    write_idx(folder / "labels.idx", labels)
    write_grid(folder, epochs=2)
    return folder


def assert_survives(server: Server, command: Command, folder: Path, inputs: Path, moments: int):
    """Killed ``moments`` times, by turns at an access to a file and at any time, and gone on with
    each time: in the end there is what there would be if nothing had happened."""
    source = random.Random(moments)
    whole = folder / "whole"
    whole.mkdir()
    code, seconds, accesses = server.run(command.arguments(inputs, whole), whole)
    assert code in (0, 10, 11) and accesses > 5
    expected = command.result(whole)
    kills = attempts = 0
    while kills < moments:
        out = folder / f"killed-{attempts}"
        out.mkdir()
        for _ in range(moments + 1):
            attempts += 1
            goes_on = command.resume is not None and (out / command.begun).exists()
            make = command.resume if command.resume and goes_on else command.arguments
            at: dict[str, Any] = {}
            if kills < moments and kills % 2:
                at = {"seconds": source.uniform(0, seconds)}
            elif kills < moments:
                at = {"kill_at": source.randint(1, max(2, accesses // 2))}
            code, _, _ = server.run(make(inputs, out), out, **at)
            if code != KILLED:
                break
            kills += 1
        assert code in (0, 10, 11), (server.folder / "log.txt").read_text()
        assert command.result(out) == expected
    print(f"\n{kills} kills in {attempts} starts, all as if nothing had been")  # noqa: T201


@pytest.mark.parametrize("name", QUICK)
def test_killed_at_a_few_moments(name: str, server: Server, inputs: Path, tmp_path: Path) -> None:
    assert_survives(server, COMMANDS[name], tmp_path, inputs, 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_at_fifty_moments(name: str, server: Server, inputs: Path, tmp_path: Path) -> None:
    assert_survives(server, COMMANDS[name], tmp_path, inputs, 50)


# --- verdicts that cannot be written ---


def small_problem(count: int = 5, **options: Any) -> Problem:
    case = make_case(0)
    rng = np.random.default_rng(1)
    points = np.clip(case.x0 + rng.normal(0, 0.1, (count, 36)), 0, 1)
    prop = parse(ROBUST, outputs=3).with_parameters(epsilon=0.01)
    labels = np.full(count, case.label)
    return Problem.of(prop, case.network, points, labels, timeout=20.0, **options)


def decide_into(out: Path, problem: Problem) -> dict[int, Any]:
    with Journal(out, problem) as journal:
        left = [i for i in range(len(problem)) if i not in journal.known]
        for index, verdict in decide_all(problem, left):
            journal.add(index, verdict)
    journal.finish({})
    return journal.known


def mounted(folder: Path, options: str) -> bool:
    """A small file system of its own, where that is allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_full_disk_stops_with_a_message_and_loses_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    if not mounted(disk, "size=64k"):
        pytest.skip("only root mounts a file system; monkeypatched in test_training_runs.py")
    try:
        (disk / "filler").write_bytes(bytes(56 << 10))
        problem = small_problem(6, certificates=disk / "certificates")
        with pytest.raises(RunError, match="cannot be written") as caught:
            decide_into(disk / "verdicts.json", problem)
        assert str(caught.value).count("\n") == 2
        assert not (disk / "verdicts.json").exists()
        assert not list(disk.rglob("*.part"))
        (disk / "filler").unlink()
        known = decide_into(disk / "verdicts.json", problem)
        assert sorted(known) == list(range(6))
        assert len(list((disk / "certificates").glob("*.qllcert"))) == 6
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    if not mounted(disk, "size=64k,ro"):
        pytest.skip("only root mounts a file system")
    try:
        with pytest.raises(RunError, match="cannot be written"):
            decide_into(disk / "verdicts.json", small_problem(1))
        with pytest.raises(RunError, match="cannot be written"):
            decide_into(tmp_path / "v.json", small_problem(1, certificates=disk / "c"))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_two_writers_of_one_journal_are_refused(tmp_path: Path) -> None:
    out, problem = tmp_path / "verdicts.json", small_problem(3)
    with (
        Journal(out, problem) as first,
        pytest.raises(RunError, match="another process is writing"),
        Journal(out, problem),
    ):
        pytest.fail("two writers")
    assert first.known == {}
    assert sorted(decide_into(out, problem)) == [0, 1, 2]  # the lock went with its holder


@pytest.mark.parametrize("damage", ["cut", "another", "twice", "garbage", "out of range"])
def test_a_damaged_journal_is_taken_up_to_the_damage(damage: str, tmp_path: Path) -> None:
    out, problem = tmp_path / "verdicts.json", small_problem(4)
    partial = tmp_path / "verdicts.json.partial"
    whole = decide_into(out, problem)
    with Journal(out, problem) as journal:
        for index, verdict in decide_all(problem, range(3)):
            journal.add(index, verdict)
    lines = partial.read_bytes().splitlines(keepends=True)
    assert len(lines) == 4
    kept = {
        "cut": ([*lines[:3], lines[3][:20]], [0, 1]),
        "another": ([lines[0].replace(b'"count": 4', b'"count": 5'), *lines[1:]], []),
        "twice": ([*lines, lines[1]], [0, 1, 2]),
        "garbage": ([lines[0], b"\x00\xff\n", *lines[1:]], []),
        "out of range": ([*lines, lines[1].replace(b'"point": 0', b'"point": 99')], [0, 1, 2]),
    }
    content, expected = kept[damage]
    partial.write_bytes(b"".join(content))
    with Journal(out, problem) as journal:
        assert sorted(journal.known) == expected
    found = decide_into(out, problem)
    assert [found[i]["status"] for i in range(4)] == [whole[i]["status"] for i in range(4)]
    verdicts = json.loads(out.read_text())["verdicts"]
    assert [v["point"] for v in verdicts] == [0, 1, 2, 3]


# --- no memory ---


def test_a_query_without_memory_is_unknown_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = small_problem(5)
    backend = BACKENDS["bab"]
    real = backend.decide

    def decide(self: Any, queries: Any, budget: Any) -> Any:
        if any(query.name.endswith("[3]") for query in queries):
            raise MemoryError
        return real(self, queries, budget)

    monkeypatch.setattr(backend, "decide", decide)
    found = dict(decide_all(problem, range(5)))
    assert found[3].status is Status.UNKNOWN and found[3].reason is Reason.MEMORY
    assert all(found[i].status is Status.VERIFIED for i in (0, 1, 2, 4))


def _decide_or_die(part: Problem) -> Any:
    """A worker that the system kills when it comes to query 18, as for lack of memory."""
    if 18 in (part.numbers or ()):
        os.kill(os.getpid(), signal.SIGKILL)
    return REAL_DECIDE(part)


REAL_DECIDE = api._decide


@pytest.mark.slow  # every death costs the start of two processes
def test_a_killed_worker_takes_one_query_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = small_problem(20)
    monkeypatch.setattr(api, "_decide", _decide_or_die)
    found = dict(decide_all(problem, range(20), workers=Workers("local", 2)))
    assert sorted(found) == list(range(20))
    assert found[18].status is Status.UNKNOWN and found[18].reason is Reason.MEMORY
    assert "died" in found[18].detail
    assert all(found[i].status is Status.VERIFIED for i in range(20) if i != 18)


# --- clocks ---


def test_no_deadline_follows_the_calendar() -> None:
    """time.time jumps (a correction, daylight saving, a suspended machine): nothing counts it."""
    import ast

    used = []
    for path in Path(qll.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.time", "time"):
                used.append(f"{path.name}:{node.lineno}")
    assert not used


def test_a_clock_that_jumps_changes_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    jumps = iter(range(0, 10**9, 10**5))
    monkeypatch.setattr(time, "time", lambda: (-1) ** next(jumps) * 1e9 * next(jumps))
    before = clock.now()
    found = dict(decide_all(small_problem(3), range(3)))
    assert all(verdict.status is Status.VERIFIED for verdict in found.values())
    assert 0 <= clock.now() - before < 600


def test_networks_are_read_whole_or_not_at_all(tmp_path: Path) -> None:
    """What a kill leaves of a copied file is refused."""
    source = make_case(0).network.source
    for cut in range(1, len(source), max(1, len(source) // 40)):
        with pytest.raises(qll.QllError):
            load(source[:cut])
