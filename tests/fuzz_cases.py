"""Readers of files, valid files for them, and ways to damage those."""

from __future__ import annotations

import gzip
import io
import json
import resource
import signal
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import qll
from qll.errors import QllError

MEMORY = 1 << 30  # bytes that a reader may ask for beyond what the process has
SECONDS = 20


@dataclass(frozen=True)
class Reader:
    """``read`` gets a damaged file; ``valid`` are good ones. Where ``checked`` the format has a
    checksum: what is read from changed bytes must be what was read from the good ones."""

    valid: Callable[[], list[bytes]]
    read: Callable[[Path], Any]
    suffix: str
    checked: bool = False


# --- what valid files look like ---


def properties() -> list[bytes]:
    return [qll.load(name).show().encode() for name in qll.properties.names()]


@cache
def networks() -> list[bytes]:
    import torch
    from audit_cases import make_case
    from torch import nn

    from qll.networks.onnx_writer import onnx_bytes

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    pooled = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 2)
    )
    return [
        onnx_bytes(plain, input_shape=(3,)),
        onnx_bytes(pooled, input_shape=(1, 4, 4)),
        make_case(0).network.source,
    ]


def idx_files() -> list[bytes]:
    values = np.arange(24, dtype=">i2").reshape(2, 3, 4)
    plain = struct.pack(">BBBB3I", 0, 0, 0x0B, 3, 2, 3, 4) + values.tobytes()
    return [plain, struct.pack(">BBBBI", 0, 0, 0x08, 1, 5) + bytes(range(5))]


def zipped_idx_files() -> list[bytes]:
    return [gzip.compress(content, mtime=0) for content in idx_files()]


def pictures() -> list[bytes]:
    from PIL import Image

    content = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (28, 28, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(content, "PNG")
    return [content.getvalue()]


def label_tables() -> list[bytes]:
    return [b"filename,f1,f2,f3,f4,f5,f6\n1.png,1,0,1,0,1,0\n2.png,0,1,0,1,0,1\n"]


def configurations() -> list[bytes]:
    return [
        b'logic = "qll:5"\nepochs = 3\nbatch_size = 16\n[parameters]\nepsilon = 0.1\n',
        b'method = "bound"\nlearning_rate = 0.001\nseed = 7\nalpha = 0.5\nsteps = 5\n',
    ]


def grids() -> list[bytes]:
    return [
        b'name = "g"\nseeds = [0, 1]\n[settings]\nepochs = 1\n[[rows]]\nproperty = "not-both"\n'
        b'data = "dice"\nlogics = ["qll:5", "baseline"]\nlabel = "a"\n'
    ]


@cache
def checkpoints() -> list[bytes]:
    import torch
    from torch import nn

    from qll.training.checkpoint import Checkpoint, save_checkpoint

    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    optimiser = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimiser.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c"
        save_checkpoint(path, Checkpoint.of(3, model, optimiser))
        return [path.read_bytes()]


@cache
def run_files() -> dict[str, bytes]:
    from synthetic_runs import write_run

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        write_run(path, "not-both", "dice", "qll:5", 0, epochs=2)
        return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}


def vnnlib_texts() -> list[bytes]:
    return [
        b"(declare-const X_0 Real)\n(declare-const X_1 Real)\n(declare-const Y_0 Real)\n"
        b"(assert (<= X_0 0.5))\n(assert (>= X_0 -0.5))\n(assert (<= X_1 1))\n"
        b"(assert (>= X_1 0))\n(assert (or (and (>= Y_0 (+ X_0 (* 2 X_1)))) (<= Y_0 -1e3)))\n",
        b"(vnnlib-version <2.1>)\n(declare-network f\n  (declare-input X real [2,2])\n"
        b'  (declare-hidden H real [3] "Relu_0")\n  (declare-output Y float32 [])\n)\n'
        b"(declare-network g (equal-to f) (declare-input A real [2,2])\n"
        b"  (declare-output B float32 []))\n"
        b"; two copies\n(assert (== X[0,1] A[0,1]))\n(assert (or (< Y -0.5) (!= (- B) (* 2 B))))\n"
        b"(assert (or (and (<= X[0,0] 0.25) (>= X[0,0] 0)) (and (<= X[0,0] 3) (>= X[0,0] 2.5))))\n",
    ]


@cache
def certificates() -> list[bytes]:
    from audit_cases import certified

    return [certified()[0].data, certified()[4].data]


# --- how they are read ---


def read_property(path: Path) -> Any:
    from qll.formula.hard import HardForm

    prop = qll.load(str(path))
    form: HardForm = prop.hard_form(
        (0,), outputs=prop.specification.outputs or 10, inputs=(1, 2, 2)
    )
    return form


def read_network(path: Path) -> Any:
    from qll.networks import load

    network = load(path)
    return network.relu_form.input_shape


def read_configuration(path: Path) -> Any:
    from qll.training.config import resolve

    return resolve("not-both", "dice", file=path).model_dump_json()


def read_grid(path: Path) -> Any:
    from qll.grid.plan import read_grid as read

    return read(path)


def read_checkpoint(path: Path) -> Any:
    from qll.training.checkpoint import load_checkpoint

    found = load_checkpoint(path)
    model = {name: tensor.tolist() for name, tensor in found.model.items()}
    state = {
        (key, name): repr(value)
        for key, held in found.optimiser["state"].items()
        for name, value in held.items()
    }
    return found.epoch, model, state, found.optimiser["param_groups"]


def read_run_with(name: str) -> Callable[[Path], Any]:
    """A run of which one file is the damaged one."""

    def read(path: Path) -> Any:
        from qll.reports.records import read_run
        from qll.reports.witnesses import read_witnesses

        folder = path.parent / "run"
        folder.mkdir(exist_ok=True)
        for other, content in run_files().items():
            (folder / other).write_bytes(content)
        (folder / name).write_bytes(path.read_bytes())
        run = read_run(folder)
        shown = read_witnesses(run, most=2) if name.endswith(".npz") else None
        return run.figures, run.seconds, run.state, shown

    return read


def read_journal(path: Path) -> Any:
    from qll.verify.journal import Journal

    out = path.parent / "out.json"
    out.with_name("out.json.partial").write_bytes(path.read_bytes())
    with Journal(out, journal_problem()) as journal:
        known = dict(journal.known)
    assert all(0 <= point < 3 for point in known)
    return known


def read_finished(path: Path) -> Any:
    from qll.verify.journal import Journal

    return Journal(path, journal_problem()).finished()


def read_certificate(path: Path) -> Any:
    """The checker answers, whatever it is given, and yes only to the claim that is true."""
    from audit_cases import certified

    from qll.audit import audit
    from qll.audit.layout import unpack

    data, cases = path.read_bytes(), certified()
    answer = audit(data, cases[0].case.network.source)
    if not answer.confirmed:
        raise Refused
    return unpack(data)[0]


def claims() -> list[bytes]:
    text = f"""
property = "classification-robustness"
parameters = {{epsilon = "1/10"}}
network = "sha256:{"0123456789abcdef" * 4}"
points = [[0.0, 0.25, 1.0], [1.0, 0.5, 0.0]]
labels = [7, [1, 2]]
mean = [0.5]
std = 0.25
ties = "violate"
"""
    return [text.encode(), text.replace("ties", "outputs = 8\nties").encode()]


def read_written_claim(path: Path) -> Any:
    from qll.audit import read_claim

    found = read_claim(path)
    assert np.isfinite(found.points).all() and len(found.network) == 64
    return found.text, found.labels


class Refused(Exception):
    """The checker's way to say no."""


@cache
def journal_problem() -> Any:
    from qll.properties import parse
    from qll.verify.api import Problem

    text = "outputs 2\nforall x in ball(x0, 0.1): y[0] <= 5\n"
    return Problem.of(parse(text, outputs=2), networks()[0], np.zeros((3, 3)), timeout=1.0)


def journals() -> list[bytes]:
    from qll.verify.journal import question

    row = {"status": "verified", "reason": None, "stage": "root", "seconds": 0.1, "notes": []}
    lines = [question(journal_problem()), {"point": 0, **row}, {"point": 2, **row}]
    return ["".join(json.dumps(line) + "\n" for line in lines).encode()]


def finished_journals() -> list[bytes]:
    from qll.verify.journal import question

    verdicts = [{"point": 0, "status": "verified"}]
    return [json.dumps({**question(journal_problem()), "verdicts": verdicts}).encode()]


def read_idx_file(path: Path) -> Any:
    from qll.data.idx import read_idx

    return read_idx(path).tolist()


def read_picture(path: Path) -> Any:
    from qll.data.dice import decode

    return decode(path.read_bytes(), str(path)).tolist()


def read_label_table(path: Path) -> Any:
    from qll.data.dice import parse_labels

    names, labels = parse_labels(path.read_bytes(), str(path))
    assert all("/" not in name and name != ".." for name in names)
    return names, labels.tolist()


def read_vnnlib_text(path: Path) -> Any:
    from qll.exchange.cases import cases
    from qll.exchange.files import read

    document = read(path)
    found = [(case.sides, case.constraints, case.conditions) for case in islice(cases(document), 9)]
    return document.networks, list(islice(document.bounds.atoms(), 99)), found


def files_of_a_run(name: str) -> Callable[[], list[bytes]]:
    return lambda: [run_files()[name]]


RUN_FILES = (
    "config.json",
    "environment.json",
    "metrics.jsonl",
    "evaluation.json",
    "verdicts-full.json",
)

READERS: dict[str, Reader] = {
    "property": Reader(properties, read_property, ".qll"),
    "network": Reader(networks, read_network, ".onnx"),
    "idx": Reader(idx_files, read_idx_file, ".idx"),
    "gzipped idx": Reader(zipped_idx_files, read_idx_file, ".gz", checked=True),
    "picture": Reader(pictures, read_picture, ".png", checked=True),
    "label table": Reader(label_tables, read_label_table, ".csv"),
    "configuration": Reader(configurations, read_configuration, ".toml"),
    "grid": Reader(grids, read_grid, ".toml"),
    "checkpoint": Reader(checkpoints, read_checkpoint, ".safetensors", checked=True),
    "vnnlib": Reader(vnnlib_texts, read_vnnlib_text, ".vnnlib"),
    "journal": Reader(journals, read_journal, ".lines"),
    "finished journal": Reader(finished_journals, read_finished, ".json"),
    "certificate": Reader(certificates, read_certificate, ".qllcert", checked=True),
    "claim": Reader(claims, read_written_claim, ".toml"),
    **{name: Reader(files_of_a_run(name), read_run_with(name), ".json") for name in RUN_FILES},
    "witnesses": Reader(
        files_of_a_run("counterexamples.npz"), read_run_with("counterexamples.npz"), ".npz"
    ),
}

# --- how they are damaged ---

HUGE = (0, 1, 127, 255, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)
TOKENS = (
    b"1e999", b"-1", b"99999999999999999999", b"9" * 5000, b"nan", b"null", b"true", b'""', b"\x00",
    b"[]", b"{}", b"../../etc/passwd", b"\xff\xfe", b"0", b"1e-400", "\u2200".encode(), b"\n", b'"',
)  # fmt: skip
NESTS = (b"(", b"[", b"{", b'{"a":', b"[[", b"(and ", b"not ", b"a=[", b"-", b"(- ")


@st.composite
def damaged(draw: st.DrawFn, valid: list[bytes]) -> tuple[bytes, bytes]:
    """(The good file, the same with one to four changes.)"""
    good = draw(st.sampled_from(valid))
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.integers(0, 8))
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << draw(st.integers(0, 7))
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            del data[at : at + draw(st.integers(1, 16))]
        elif kind == 3:  # a number of a header
            width, order = draw(st.sampled_from((1, 2, 4, 8))), draw(st.sampled_from(("<", ">")))
            value = draw(st.sampled_from(HUGE)) % (1 << 8 * width)
            data[at : at + width] = struct.pack(f"{order}{'BHIQ'[width.bit_length() - 1]}", value)
        elif kind == 4:
            data[at:at] = draw(st.sampled_from(TOKENS))
        elif kind == 5:
            data[at : at + draw(st.integers(1, 8))] = draw(st.sampled_from(TOKENS))
        elif kind == 6:
            data[at:at] = draw(st.sampled_from(NESTS)) * draw(st.sampled_from((1, 50, 3000)))
        elif kind == 7 and data:  # a part again
            start = draw(st.integers(0, len(data) - 1))
            data[at:at] = data[start : start + draw(st.integers(1, 200))]
        else:
            data[at:at] = draw(st.binary(min_size=1, max_size=8))
    return good, bytes(data)


@contextmanager
def limited() -> Iterator[None]:
    """An error instead of a hang or of a machine without memory."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not done after {SECONDS} s")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    # Of this process's own time: another's load is no hang of ours.
    before = signal.signal(signal.SIGPROF, stop)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def outcome(reader: Reader, data: bytes, folder: Path) -> Any:
    """What is read, or None where it is refused with a proper message."""
    path = folder / f"input{reader.suffix}"
    path.write_bytes(data)
    began = time.process_time()
    try:
        with limited():
            found = reader.read(path)
    except QllError as error:
        assert len(str(error).split("\n")) >= 3 and "\nFix: " in str(error), str(error)
        assert len(str(error)) < 20_000, "a message that nobody reads"
        return None
    except Refused:
        return None
    finally:
        assert time.process_time() - began < SECONDS
    return found
