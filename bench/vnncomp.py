"""Competition folders through the front door: the command line, one process an instance.

    python bench/vnncomp.py DIR [--sets NAME ...] [--timeout-scale S] [--jobs N] [--json OUT]
                            [--validator DIR] [--journal FILE] [--minutes M] [--quick]

DIR has a folder for each set, or is one: `instances.csv` with `network, property, timeout, verdict`
and the answers of other tools. Start-up is included. A witness counts if the competition's own
script (`counterexamples.py` in --validator) finds it correct; the script is run as it is, but its
reader of queries, which is not part of it, is ours. Their seconds are from their machines.

With --journal every finished instance is a line of FILE, and the same command goes on where it was
stopped; --minutes ends it after that many, at the next instance. The table is of all that is there.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing.pool
import statistics
import subprocess
import sys
import tempfile
import time
import types
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

TOOLS = ("alpha_beta_crown", "nnenum", "neuralsat", "marabou", "pyrat")
VERDICTS = {"verified": "unsat", "falsified": "sat"}
GRACE = 30.0  # seconds after which a process that should have answered is ended
QUICK = 3  # instances of each set
ANSWERS = ("sat", "unsat", "unknown", "timed-out")


def run(folder: Path, row: dict[str, str], scale: float, validator: Path | None) -> dict[str, Any]:
    seconds = max(1.0, float(row["timeout"]) * scale)
    network, query = folder / row["network"], folder / row["property"]
    command = [sys.executable, "-c", "from qll.cli.main import run; run()", "verify", str(query),
               "--network", str(network), "--timeout", f"{seconds:g}"]  # fmt: skip
    start = time.monotonic()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=seconds + GRACE
        )
        output, error = done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        output, error = "no answer\n", ""
    spent = time.monotonic() - start
    answer = output.split("\n", 1)[0]
    answer = answer if answer in ANSWERS else "error"
    witness = ""
    if answer == "sat":
        witness = "not validated" if validator is None else validate(
            validator, network, query, output.split("\n", 1)[1]
        )  # fmt: skip
    return {
        "set": folder.name,
        **row,
        "answer": answer,
        "seconds": spent,
        "witness": witness,
        "error": error.strip().splitlines()[0][:200] if answer == "error" and error else "",
    }


def validate(folder: Path, network: Path, query: Path, witness: str) -> str:
    """What the competition's script says of the assignment."""
    script = _script(folder)
    with tempfile.NamedTemporaryFile("w", suffix=".counterexample") as stream:
        stream.write(witness)
        stream.flush()
        try:
            result, _ = script.get_ce_diff(str(network), str(query), stream.name, 1e-4, 1e-3)
        except NotImplementedError as error:
            return f"not validated: {error}"
    return str(result)


def _script(folder: Path) -> Any:
    """The script with what it imports: a cache and settings that it has no use for here."""
    if "counterexamples" in sys.modules:
        return sys.modules["counterexamples"]
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
    import counterexamples  # type: ignore[import-not-found]

    return counterexamples


def io_nodes(model: Any) -> tuple[Any, Any, Any]:
    stored = {tensor.name for tensor in model.graph.initializer}
    (entry,) = (i for i in model.graph.input if i.name not in stored)
    kind = np.float64 if entry.type.tensor_type.elem_type == 11 else np.float32
    return entry, model.graph.output[0], kind


def read_simple(path: str, inputs: int, outputs: int) -> list[Any]:
    """Boxes, each with disjunctions of ``matrix @ y <= right side``."""
    from qll.exchange.cases import cases
    from qll.exchange.files import read

    found = []
    for case in cases(read(path)):
        if case.constraints:
            raise NotImplementedError("constraints on inputs besides boxes")
        box = []
        for k in range(inputs):
            low, high = case.side(k, "lower"), case.side(k, "upper")
            if low is None or high is None:
                raise NotImplementedError("an input without bounds")
            box.append((float(low.value), float(high.value)))
        specifications = []
        for way in _ways(case.condition):
            matrix, right = np.zeros((len(way), outputs)), np.zeros(len(way))
            for row, atom in enumerate(way):
                right[row] = float(atom.constant)
                for (source, k), c in atom.terms:
                    if source == "x":
                        raise NotImplementedError("comparisons of outputs with inputs")
                    matrix[row, k] = -float(c)
            specifications.append((matrix, right))
        found.append((box, specifications))
    return found


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
        "median": statistics.median(r["seconds"] for r in rows) if rows else 0.0,
        "total": sum(r["seconds"] for r in rows),
        "tools": {
            tool: (
                sum(r.get(tool) in ("sat", "unsat") for r in rows),
                sum(float(r.get(f"{tool}_s") or 0) for r in rows),
            )
            for tool in TOOLS
        },
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| set | instances | decided | wrong | errors | sat, of them correct by the script "
        "| median s | total s | " + " | ".join(f"{t}: decided, s" for t in TOOLS) + " |",
        "|---" * (8 + len(TOOLS)) + "|",
    ]
    for name in sorted({r["set"] for r in rows}):
        s = summary([r for r in rows if r["set"] == name])
        tools = " | ".join(f"{n}, {t:.0f}" for n, t in s["tools"].values())
        lines.append(
            f"| {name} | {s['instances']} | {s['decided']} | {s['wrong']} | {s['errors']} "
            f"| {s['sat']}, {s['witnesses correct']} | {s['median']:.1f} | {s['total']:.0f} "
            f"| {tools} |"
        )
    return "\n".join(lines)


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
            if row.pop("scale", None) == scale:
                found[key_of(row)] = row
    return list(found.values())


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
    arguments = parser.parse_args()
    alone = (arguments.folder / "instances.csv").is_file()
    folders = [arguments.folder] if alone else sorted(arguments.folder.iterdir())
    jobs = []
    for folder in folders:
        if not (folder / "instances.csv").is_file():
            continue
        if arguments.sets and folder.name not in arguments.sets:
            continue
        with (folder / "instances.csv").open() as stream:
            rows = list(csv.DictReader(stream))
        jobs += [(folder, row) for row in (rows[:QUICK] if arguments.quick else rows)]
    results = finished(arguments.journal, arguments.timeout_scale)
    done = {key_of(r) for r in results}
    jobs = [
        (folder, row) for folder, row in jobs if key_of({"set": folder.name, **row}) not in done
    ]
    end = time.monotonic() + 60 * arguments.minutes

    def work(folder: Path, row: dict[str, str]) -> dict[str, Any] | None:
        if time.monotonic() > end:
            return None
        return run(folder, row, arguments.timeout_scale, arguments.validator)

    # Threads: each only waits for its process.
    with multiprocessing.pool.ThreadPool(arguments.jobs) as pool:
        waiting = [pool.apply_async(work, job) for job in jobs]
        for item in waiting:
            if (r := item.get()) is None:
                continue
            results.append(r)
            if arguments.journal is not None:
                with arguments.journal.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps({**r, "scale": arguments.timeout_scale}) + "\n")
            print(
                f"{r['set']:22} {Path(r['property']).name:44.44} {r['answer']:9} "
                f"{r['seconds']:7.1f} s  known {r['verdict']:9} {r['witness']} {r['error']}",
                flush=True,
            )
    left = len(jobs) - (len(results) - len(done))
    if left:
        print(f"{left} instances are left: the same command goes on")
    print(table(results))
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
