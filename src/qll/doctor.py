"""What is here: versions, machine, extras, data, compiled code, and a self-test of seconds.

The self-test takes one rule round the whole circle on a network small enough to be right by
inspection: satisfied and violated points, an attack, a proof that the checker confirms, a
refutation whose witness is replayed.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import torch

from qll.errors import QllError

# What each extra is for, and the module that says whether it is there.
EXTRAS = {
    "fast": ("compiled training and attacks", ("numba", "scipy")),
    "onnx": ("ONNX files", ("onnx", "onnxruntime")),
    "train": ("run folders", ("safetensors", "PIL")),
    "verify": ("the complete verifier", ("highspy", "numba", "onnx")),
    "marabou": ("Marabou as a second verifier", ("maraboupy",)),
    "report": ("pages, figures", ("plotly", "matplotlib", "jinja2")),
    "tables": ("Parquet files", ("pyarrow",)),
    "tune": ("qll tune", ("optuna",)),
    "dask": ("grids on a Dask cluster", ("distributed",)),
    "ray": ("grids on a Ray cluster", ("ray",)),
    "docs": ("the site of this documentation", ("mkdocs", "mkdocstrings")),
    "vehicle": ("Vehicle specifications", ("vehicle_lang",)),
    "lightning": ("a callback for Lightning", ("lightning",)),
    "transformers": ("a callback for Hugging Face's Trainer", ("transformers", "accelerate")),
    "tensorboard": ("curves in TensorBoard", ("tensorboard",)),
}
OF_ALL = ("fast", "onnx", "train", "verify", "report", "tables")  # what README's install brings
_FLAGS = ("avx512f", "avx2", "fma", "neon", "asimd")


@dataclass(frozen=True)
class Finding:
    """``state`` is ok, missing (of ``qll[all]``), optional (for some purpose), note (worth
    knowing) or wrong."""

    topic: str
    said: str
    state: str = "ok"
    fix: str = ""


def examine(*, self_test: bool = True) -> Iterator[Finding]:
    """Finding by finding, the quick ones first."""
    yield Finding("qll", metadata.version("qll"))
    yield Finding("Python", f"{sys.version.split()[0]} on {platform.platform()}")
    yield _torch()
    yield Finding("machine", _machine())
    yield from _extras()
    yield from _data()
    yield _kernels()
    if self_test:
        yield _self_test()


def _torch() -> Finding:
    device = "a GPU" if torch.cuda.is_available() else "CPU"
    return Finding("torch", f"{torch.__version__}, {device}, threads: {torch.get_num_threads()}")


def _machine() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    values = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    flags = values.get("flags", values.get("Features", "")).split()
    known = ", ".join(flag for flag in _FLAGS if flag in flags) or "no vector instructions known"
    name = values.get("model name", platform.machine())
    return f"{name}, {os.cpu_count()} cores, {known}"


def _extras() -> Iterator[Finding]:
    for extra, (purpose, modules) in EXTRAS.items():
        absent = [name for name in modules if find_spec(name) is None]
        if absent:
            yield Finding(
                f"extra {extra}",
                f"{purpose}: without {', '.join(absent)}",
                "missing" if extra in OF_ALL else "optional",
                f"pip install 'qll[{extra}]'",
            )
        else:
            yield Finding(f"extra {extra}", purpose)


def _data() -> Iterator[Finding]:
    from qll.data.files import cache_dir

    root = cache_dir()
    for name in ("mnist", "fashion", "dice"):
        held = root / name
        if held.is_dir() and any(held.iterdir()):
            yield Finding(f"data {name}", str(held))
        else:
            yield Finding(
                f"data {name}",
                f"downloaded to {root} on first use",
                "optional",
                "or pass --data-dir, or set QLL_DATA_DIR",
            )


def _kernels() -> Finding:
    from qll.kernels import available

    if not available():
        return Finding(
            "kernels", "training and proofs run in torch", "missing", "pip install 'qll[fast]'"
        )
    from qll.folders import user_cache

    root = user_cache()
    files = list(root.glob("*/**/*.nbc")) if root.is_dir() else []
    if not files:
        said = f"none compiled yet in {root}: the first use takes about a minute of CPU"
        return Finding("kernels", said, "note")
    size = sum(path.stat().st_size for path in files) / 2**20
    return Finding("kernels", f"{len(files)} compiled in {root} ({size:.0f} MB)")


def _self_test() -> Finding:
    begun = time.perf_counter()
    try:
        wrong = _round_trip()
    except QllError as error:
        missing = "pip install 'qll[verify]'" in str(error) or "qll[onnx]" in str(error)
        return Finding("self-test", str(error), "missing" if missing else "wrong")
    except Exception as error:  # whatever it is, it is what one came to see
        return Finding("self-test", f"{type(error).__name__}: {error}", "wrong", "report it")
    seconds = time.perf_counter() - begun
    if wrong:
        return Finding("self-test", wrong, "wrong", "report it, with this output")
    return Finding("self-test", f"judged, attacked, proved and checked in {seconds:.1f} s")


def _round_trip() -> str:
    """What went wrong; nothing if all is right. The network is y = (|x|, 1) for one input."""
    from torch import nn

    from qll.properties import parse
    from qll.verbs import attack
    from qll.verify.api import verify

    first, last = nn.Linear(1, 2), nn.Linear(2, 2)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        first.bias.zero_()
        last.weight.copy_(torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
        last.bias.copy_(torch.tensor([0.0, 1.0]))
    model = nn.Sequential(first, nn.ReLU(), last)
    text = "outputs 2\nparameter epsilon: input = {}\nforall x in ball(x0, epsilon): y[0] <= y[1]"
    holds, breaks = (parse(text.format(radius)) for radius in (0.5, 2.0))
    x = torch.tensor([[0.25]])
    if not bool(holds.holds(model(x)).all()):
        return "a satisfied point was called violated"
    found = attack(breaks, model, x)
    if not bool(found.falsified.all()):
        return "an attack overlooked a violation"
    (proved,) = verify(holds, model, x, certified=True, timeout=30.0)
    if proved.status != "verified":
        return f"a rule that holds was {proved.status} ({proved.reason})"
    (refuted,) = verify(breaks, model, x, certified=True, timeout=30.0)
    if refuted.status != "falsified":
        return f"a rule that is broken was {refuted.status} ({refuted.reason})"
    return ""
