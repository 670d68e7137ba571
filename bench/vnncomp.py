"""Competition folders through the front door: the command line, one process an instance.

    python bench/vnncomp.py DIR [--sets NAME ...] [--timeout-scale S] [--jobs N] [--json OUT]
                            [--validator DIR] [--journal FILE] [--minutes M] [--quick]
                            [--decided] [--every N] [--cpu SECONDS] [--in-process]

DIR has a folder for each set, or is one: `instances.csv` with `network, property, timeout` and, if
a first line names them, `verdict` and the answers of other tools; files may be compressed by gzip.
Start-up is included. A witness counts if the competition's own script (`counterexamples.py` in
--validator) finds it correct; the script is run as it is, but its reader of queries, which is not
part of it, is ours. Constraints on inputs besides boxes, which that script does not know, must hold
exactly. Their seconds are from their machines.

--decided leaves out what no tool decided, --every N takes the first of every N instances of what is
left of a set. On a machine that others use too, --cpu gives every instance so many CPU seconds of
the engine instead of its time-out (one region a file).

--in-process reads and decides all of them in this process, one after the other: their time-outs are
CPU seconds then, start-up and compiling are not counted, witnesses are not given to the script.

With --journal every finished instance is a line of FILE, and the same command goes on where it was
stopped; --minutes starts no instance after that many. The tables are of all that is there, as rows
of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import multiprocessing.pool
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

TOOLS = ("alpha_beta_crown", "nnenum", "neuralsat", "marabou", "pyrat")
VERDICTS = {"verified": "unsat", "falsified": "sat"}
GRACE = 30.0  # seconds after which a process that should have answered is ended
QUICK = 3  # instances of each set
SLOW = 30.0  # how many seconds a CPU second may take before a process is given up
# Once on a machine, as the competition's install script does it: no instance's time.
PREPARE = "from qll.verify.backend import BACKENDS; BACKENDS['bab']().prepare()"
PREPARE_SECONDS = 600.0
ANSWERS = ("sat", "unsat", "unknown", "timed-out")


# The engine alone, its budget in CPU seconds; a witness is written by the front door alone.
BY_CPU = """
import sys
from qll.exchange.files import read
from qll.networks import load
from qll.verify.backend import BACKENDS, Budget
from qll.verify.documents import queries
network, query, seconds = sys.argv[1:]
asked = list(queries(read(query), load(network)))
told = BACKENDS["bab"]().decide(asked, Budget(seconds=float(seconds), clock="cpu"))
statuses = {str(verdict.status) for verdict in told}
print("sat" if "falsified" in statuses else "unsat" if statuses == {"verified"} else "unknown")
"""


def run(
    folder: Path,
    row: dict[str, str],
    scale: float,
    validator: Path | None,
    cpu_seconds: float | None = None,
) -> dict[str, Any]:
    seconds = max(1.0, float(row["timeout"]) * scale)
    network, query = file_of(folder, row["network"]), file_of(folder, row["property"])
    command = [sys.executable, "-c", "from qll.cli.main import run; run()", "verify", str(query),
               "--network", str(network), "--timeout", f"{seconds:g}"]  # fmt: skip
    if cpu_seconds is not None:
        seconds = SLOW * cpu_seconds
        command = [sys.executable, "-c", BY_CPU, str(network), str(query), f"{cpu_seconds:g}"]
        validator = None
    start = time.monotonic()
    output, error, cpu = finish(command, seconds + GRACE)
    spent = time.monotonic() - start
    answer = output.split("\n", 1)[0]
    answer = answer if answer in ANSWERS else "error"
    witness = ""
    if answer == "sat":
        assignment = output.split("\n", 1)[1]
        witness = "not validated"
        if validator is not None:
            witness = validate(validator, network, query, assignment)
    return {
        "set": folder.name,
        **row,
        "answer": answer,
        "seconds": spent,
        "cpu": cpu,
        "witness": witness,
        "error": (error.strip().splitlines() or [""])[0][:200] if answer == "error" else "",
    }


def run_here(
    folder: Path, row: dict[str, str], scale: float, cpu_seconds: float | None = None
) -> dict[str, Any]:
    """In this process, by CPU time."""
    from qll.exchange.files import read
    from qll.networks import load
    from qll.verify import clock
    from qll.verify.documents import decide

    seconds = max(1.0, float(row["timeout"]) * scale) if cpu_seconds is None else cpu_seconds
    begun, error = time.monotonic(), ""
    with clock.counting("cpu"):
        start = clock.now()
        try:
            network = load(str(file_of(folder, row["network"])))
            found = decide(read(str(file_of(folder, row["property"]))), network, seconds=seconds)
            answer = str(found.answer)
            if answer == "unknown":  # with its reason
                error = "; ".join(note for note in found.notes if note.startswith("unknown"))
        except Exception as raised:  # the others are asked all the same
            answer, error = "error", f"{type(raised).__name__}: {raised}"[:200]
        cpu = clock.now() - start
    return {
        "set": folder.name, **row, "answer": answer, "seconds": time.monotonic() - begun,
        "cpu": cpu, "witness": "not validated" if answer == "sat" else "", "error": error,
    }  # fmt: skip


_running: set[int] = set()  # groups of processes, to be ended if this one is


def finish(command: Sequence[str], seconds: float) -> tuple[str, str, float]:
    """What a process printed, and its CPU seconds; after ``seconds`` it is ended."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as error:
        # A session of its own: what it has started ends with it.
        process = subprocess.Popen(command, stdout=output, stderr=error, start_new_session=True)
        _running.add(process.pid)
        end = time.monotonic() + seconds
        try:
            # Popen's own wait does not tell the CPU time of this child alone.
            found, _, used = os.wait4(process.pid, os.WNOHANG)
            while not found:
                if time.monotonic() > end:
                    os.killpg(process.pid, signal.SIGKILL)
                    _, _, used = os.wait4(process.pid, 0)
                    break
                time.sleep(0.02)
                found, _, used = os.wait4(process.pid, os.WNOHANG)
            process.returncode = 0  # it has been waited for
        finally:
            _running.discard(process.pid)
        for stream in (output, error):
            stream.seek(0)
        return output.read(), error.read(), used.ru_utime + used.ru_stime


def validate(folder: Path, network: Path, query: Path, witness: str) -> str:
    """What the competition's script says of the assignment."""
    script = _script(folder)
    witness = as_list(witness)
    _witness.text = witness
    with ExitStack() as files:
        stream = files.enter_context(tempfile.NamedTemporaryFile("w", suffix=".counterexample"))
        stream.write(witness)
        stream.flush()
        if network.suffix == ".gz":  # which the script does not unpack
            plain = files.enter_context(tempfile.NamedTemporaryFile(suffix=".onnx"))
            plain.write(gzip.decompress(network.read_bytes()))
            plain.flush()
            network = Path(plain.name)
        try:
            result, _ = script.get_ce_diff(str(network), str(query), stream.name, 1e-4, 1e-3)
        except Exception as error:  # whatever the script raises is its answer
            return f"{type(error).__name__}: {error}"[:80].splitlines()[0]
    return str(result)


_witness = (
    threading.local()
)  # what the script checks in this thread: .text, and .kind of its inputs
_loading = threading.Lock()


def as_list(assignment: str) -> str:
    """An assignment of version 2, of one input and one output, as the list of version 1 that the
    script reads; others as they are."""
    names: list[str] = []
    pairs: list[str] = []
    for line in assignment.split("\n"):
        if re.match(r"[A-Za-z]\S* \S+ \[[\d, ]*\]$", line):
            names.append(line)
            count = 0
        elif names and line.strip():
            pairs.append(f"({'XY'[len(names) - 1 :][:1]}_{count} {line.strip()})")
            count += 1
    return f"({' '.join(pairs)})\n" if len(names) == 2 else assignment


def _script(folder: Path) -> Any:
    """The script with what it imports: a cache and settings that it has no use for here."""
    with _loading:
        return sys.modules.get("counterexamples") or _load(folder)


def _load(folder: Path) -> Any:
    stand_ins: dict[str, dict[str, Any]] = {
        "vnnlib_v1": {"read_vnnlib_simple": read_simple, "get_io_nodes": io_nodes},
        "cachier": {"cachier": lambda **_: lambda function: function},
        "cex_checks": {"CPU_PROVIDER": "CPUExecutionProvider"},
        "settings": {"Settings": type("Settings", (), {})},
    }
    for name, members in stand_ins.items():
        module = types.ModuleType(name)
        vars(module).update(members)
        sys.modules[name] = module
    sys.path.insert(0, str(folder))
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)  # its warnings of old exporters hide the lines
    import counterexamples  # type: ignore[import-not-found]

    return counterexamples


def io_nodes(model: Any) -> tuple[Any, Any, Any]:
    stored = {tensor.name for tensor in model.graph.initializer}
    (entry,) = (i for i in model.graph.input if i.name not in stored)
    kind = np.float64 if entry.type.tensor_type.elem_type == 11 else np.float32
    _witness.kind = kind
    return entry, model.graph.output[0], kind


def read_simple(path: str, inputs: int, outputs: int) -> list[Any]:
    """Boxes, each with disjunctions of ``matrix @ y <= right side``. The script cannot say more, so
    all else that a query says of inputs is settled here, at the witness: a case whose constraints
    do not hold there is left out, and inputs in comparisons with outputs become numbers."""
    from qll.exchange.cases import cases, substitute
    from qll.exchange.files import read

    known = dict(enumerate(_inputs(_witness.text, _witness.kind)))
    found = []
    for case in cases(read(path)):
        constraints = [substitute(atom, known) for atom in case.constraints]
        if not all(_is_true(atom) for atom in constraints):
            continue
        box = []
        for k in range(inputs):
            low, high = case.side(k, "lower"), case.side(k, "upper")
            if low is None or high is None:
                raise ValueError(f"input {k} has no bounds")
            box.append((float(low.value), float(high.value)))
        specifications = []
        for way in _ways(substitute(case.condition, known)):
            matrix, right = np.zeros((len(way), outputs)), np.zeros(len(way))
            for row, atom in enumerate(way):
                right[row] = float(atom.constant)
                for (_, k), c in atom.terms:
                    matrix[row, k] = -float(c)
            specifications.append((matrix, right))
        found.append((box, specifications))
    return found


def _inputs(witness: str, kind: Any) -> list[Fraction]:
    """The inputs of an assignment, ``((X_0 0.5) ... (Y_0 1.0))``, as the network takes them."""
    pairs = [part.split() for part in witness.replace("(", " ").split(")") if part.strip()]
    return [Fraction(float(kind(value))) for name, value in pairs if name.startswith("X_")]


def _is_true(atom: Any) -> bool:
    return bool(atom.constant > 0 or (atom.constant == 0 and not atom.strict))


def _ways(node: Any) -> list[list[Any]]:
    from qll.exchange.document import All, Atom

    if isinstance(node, Atom):
        return [[node]]
    parts = [_ways(part) for part in node.parts]
    if isinstance(node, All):
        return [[atom for way in ways for atom in way] for ways in product(*parts)]
    return [way for ways in parts for way in ways]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    known = [r for r in rows if r["verdict"] in VERDICTS]
    decided = [r for r in rows if r["answer"] in ("sat", "unsat")]
    wrong = [r for r in known if r in decided and r["answer"] != VERDICTS[r["verdict"]]]
    return {
        "instances": len(rows),
        "decided": len(decided),
        "wrong": len(wrong),
        "errors": sum(r["answer"] == "error" for r in rows),
        "sat": sum(r["answer"] == "sat" for r in rows),
        "witnesses correct": sum(r["witness"] == "correct" for r in rows),
        "median": statistics.median(r["seconds"] for r in rows),
        "total": sum(r["seconds"] for r in rows),
        "median cpu": statistics.median(r["cpu"] for r in rows),
        "total cpu": sum(r["cpu"] for r in rows),
        "tools": {
            tool: (
                sum(r.get(tool) in ("sat", "unsat") for r in rows),
                statistics.median(seconds),
                sum(seconds),
            )
            for tool in TOOLS
            if (seconds := [float(r[f"{tool}_s"]) for r in rows if r.get(f"{tool}_s")])
        },
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Ours with every figure, then all tools side by side."""
    ours = [
        "| set | instances | decided | wrong | errors | sat, of them *correct* by the script "
        "| median s (CPU) | total s (CPU) |",
        "|---" * 8 + "|",
    ]
    theirs = [
        "| set | " + " | ".join(f"{t}: decided, median, total s" for t in ("qll", *TOOLS)) + " |",
        "|---" * (2 + len(TOOLS)) + "|",
    ]
    for name in sorted({r["set"] for r in rows}):
        s = summary([r for r in rows if r["set"] == name])
        ours.append(
            f"| {name} | {s['instances']} | {s['decided']} | {s['wrong']} | {s['errors']} "
            f"| {s['sat']}, {s['witnesses correct']} | {s['median']:.1f} ({s['median cpu']:.1f}) "
            f"| {s['total']:.0f} ({s['total cpu']:.0f}) |"
        )
        all_tools = {"qll": (s["decided"], s["median"], s["total"]), **s["tools"]}
        cells = [
            "{}, {:.1f}, {:.0f}".format(*all_tools[tool]) if tool in all_tools else ""
            for tool in ("qll", *TOOLS)
        ]
        theirs.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join((*ours, "", *theirs)) if rows else "nothing was run"


def key_of(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["set"], row["network"], row["property"]


def finished(journal: Path | None, scale: float) -> list[dict[str, Any]]:
    """What a journal holds for this scale of time; a line that a kill cut short is asked again."""
    found = dict[tuple[str, str, str], dict[str, Any]]()
    if journal is not None and journal.is_file():
        for line in journal.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and row.pop("scale", None) == scale:
                found[key_of(row)] = row
    return list(found.values())


def instances(folder: Path, sets: Sequence[str] | None) -> list[tuple[Path, dict[str, str]]]:
    """The folder itself, if it is a set, or those in it; a name that is none is an error."""
    found = {
        path.name: path
        for path in ([folder] if (folder / "instances.csv").is_file() else sorted(folder.iterdir()))
        if (path / "instances.csv").is_file()
    }
    if unknown := sorted(set(sets or ()) - set(found)):
        raise SystemExit(f"no set {', '.join(unknown)} in {folder}: it has {', '.join(found)}")
    jobs = []
    for name, path in found.items():
        if not sets or name in sets:
            with (path / "instances.csv").open(encoding="utf-8") as stream:
                jobs += [(path, row) for row in rows_of(stream)]
    return jobs


def sample(
    jobs: Sequence[tuple[Path, dict[str, str]]], *, decided: bool, every: int
) -> list[tuple[Path, dict[str, str]]]:
    """The first of ``every`` so many instances of each set, of those with a verdict if asked so."""
    found = []
    for folder in dict.fromkeys(folder for folder, _ in jobs):
        own = [job for job in jobs if job[0] == folder]
        known = [job for job in own if job[1]["verdict"] in VERDICTS] if decided else own
        found += known[::every]
    return found


def rows_of(stream: Iterable[str]) -> Iterator[dict[str, str]]:
    """With a first line of names, as ours have it, or without one, as the competition's own."""
    names = ["network", "property", "timeout"]
    for row in csv.reader(stream):
        if row and row[0] == "network":
            names = row
        elif row:
            yield {"timeout": "300", "verdict": "", **dict(zip(names, row, strict=False))}


def file_of(folder: Path, name: str) -> Path:
    """As it is named, or compressed."""
    path, packed = folder / name, folder / f"{name}.gz"
    return packed if packed.is_file() and not path.is_file() else path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="*")
    parser.add_argument("--timeout-scale", type=float, default=1.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--validator", type=Path, help="the folder of counterexamples.py")
    parser.add_argument("--journal", type=Path, help="finished instances, one a line")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} instances of each set")
    parser.add_argument("--decided", action="store_true", help="what some tool decided")
    parser.add_argument("--every", type=int, default=1, help="the first of every so many")
    parser.add_argument("--cpu", type=float, help="CPU seconds for each, whatever its time-out")
    parser.add_argument("--in-process", action="store_true", help="all in this one, by CPU time")
    arguments = parser.parse_args()
    if arguments.validator is not None:
        _script(arguments.validator)  # fails at once, not at the first witness
    asked = instances(arguments.folder, arguments.sets)
    if arguments.quick:
        asked = [job for k, job in enumerate(asked) if k < QUICK or asked[k - QUICK][0] != job[0]]
    asked = sample(asked, decided=arguments.decided, every=arguments.every)
    wanted = {key_of({"set": folder.name, **row}) for folder, row in asked}
    results = [r for r in finished(arguments.journal, arguments.timeout_scale)
               if key_of(r) in wanted]  # fmt: skip
    done = {key_of(r) for r in results}
    jobs = [job for job in asked if key_of({"set": job[0].name, **job[1]}) not in done]
    end = time.monotonic() + 60 * arguments.minutes

    def work(job: tuple[Path, dict[str, str]]) -> dict[str, Any] | None:
        if time.monotonic() > end:
            return None
        if arguments.in_process:
            return run_here(*job, arguments.timeout_scale, arguments.cpu)
        return run(*job, arguments.timeout_scale, arguments.validator, arguments.cpu)

    if arguments.in_process:
        from qll.verify.backend import BACKENDS

        arguments.jobs = 1
        BACKENDS["bab"]().prepare()
    elif jobs:
        finish([sys.executable, "-c", PREPARE], PREPARE_SECONDS)
    begun = time.monotonic()
    # Threads: each only waits for its process.
    with multiprocessing.pool.ThreadPool(max(1, arguments.jobs)) as pool:
        try:
            for r in pool.imap_unordered(work, jobs):
                if r is None:
                    continue
                results.append(r)
                if arguments.journal is not None:
                    with arguments.journal.open("a", encoding="utf-8") as stream:
                        stream.write(json.dumps({**r, "scale": arguments.timeout_scale}) + "\n")
                print(
                    f"{r['set']:22} {Path(r['property']).name:44.44} {r['answer']:9} "
                    f"{r['seconds']:7.1f} s {r['cpu']:7.1f} CPU s  known {r['verdict']:9} "
                    f"{r['witness']} {r['error']}",
                    flush=True,
                )
        finally:
            for group in list(_running):
                os.killpg(group, signal.SIGKILL)
    left = len(wanted) - len(results)
    if left:
        print(f"{left} instances are left: the same command goes on")
    passed = time.monotonic() - begun
    print(f"{len(results) - len(done)} instances now, in {passed:.0f} s with {arguments.jobs} jobs")
    print(table(results))
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
