"""How bounds scale: CPU time and memory against width, depth, inputs, instances and split depth.

    python bench/scaling.py [--quick] [--json OUT]

One row a setting; one number varies from the base, which is marked. What is measured is an ascent
of STEPS steps on the bound of one output of a random ReLU chain, from the same pre-activation
bounds: by the compiled lanes of the verifier (slopes, split multipliers, joint hulls), and by plain
alpha-CROWN in eager torch (slopes alone, autograd and Adam, float32, all domains in one batch; Xu
et al. 2021). Both turn about in this process, one thread each; medians of CPU seconds, and by how
much the resident memory rose above what it was before (Linux only).

*Instances* are boxes of one network, *split depth* d means the 2^d domains of one box that fix the
signs of d neurons. ``bound`` is the mean of what each found: larger is better.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qll.bounds.crown import Crown
from qll.bounds.domain import Subdomain
from qll.bounds.lanes import ChainBounder
from qll.bounds.rounding import Rounding, Sizes
from qll.bounds.splits import SignSplit
from qll.networks.relu_form import FormLayer, ReluForm

STEPS = 20
RATE = 0.1  # of torch's Adam
RADIUS = 0.2  # of the boxes: enough neurons are unstable


@dataclass(frozen=True)
class Setting:
    width: int = 64
    depth: int = 3  # hidden layers
    inputs: int = 16
    instances: int = 8
    split_depth: int = 0


AXES: dict[str, tuple[int, ...]] = {
    "width": (16, 128, 256, 512),
    "depth": (1, 6, 10),
    "inputs": (4, 128, 784),
    "instances": (1, 32, 128),
    "split_depth": (2, 5, 8),
}


@dataclass(frozen=True, eq=False)
class Box:
    """One instance: its box, bounds of its hidden layers, and the domains of its splits."""

    sizes: Sizes
    low: list[np.ndarray[Any, Any]]
    high: list[np.ndarray[Any, Any]]
    splits: list[tuple[tuple[int, int, bool], ...]]  # of each domain: (layer, neuron, above)


def network(setting: Setting, seed: int = 0) -> ReluForm:
    rng = np.random.default_rng(seed)
    widths = [setting.inputs, *[setting.width] * setting.depth, 1]
    layers = tuple(
        FormLayer(
            0.1 * rng.standard_normal(b), ((k, rng.standard_normal((b, a)) * np.sqrt(2 / a)),)
        )
        for k, (a, b) in enumerate(itertools.pairwise(widths))
    )
    return ReluForm((setting.inputs,), layers)


def boxes(form: ReluForm, setting: Setting) -> list[Box]:
    rng, found = np.random.default_rng(1), []
    stand_in: Any = SimpleNamespace(relu_form=form)
    rounding, crown = Rounding(stand_in, form), Crown(form)
    for _ in range(setting.instances):
        centre = rng.standard_normal(setting.inputs)
        sizes = Sizes(rounding, centre - RADIUS, centre + RADIUS)
        with torch.no_grad():
            known = crown.root(sizes)
        low, high = ([t[0].numpy() for t in side] for side in (known.low, known.high))
        open_ = [
            (k, int(i))
            for k in range(len(low))
            for i in np.flatnonzero((low[k] < 0) & (high[k] > 0))
        ][: setting.split_depth]
        ways = itertools.product((False, True), repeat=len(open_))
        splits = [
            tuple((k, i, side) for (k, i), side in zip(open_, way, strict=True)) for way in ways
        ]
        found.append(Box(sizes, low, high, splits))
    return found


def compiled(bounder: ChainBounder, some: Sequence[Box]) -> float:
    """The mean bound by the verifier's lanes, one box after the other."""
    layout, found = bounder.layout, []
    for box in some:
        low, high = (
            np.concatenate([layout.spread(k, v, -1.0) for k, v in enumerate(side)])
            for side in (box.low, box.high)
        )
        objective, offset = bounder.output(0, 1)
        root = bounder.domain(low, high, objective, offset, np.ones(1))
        place = {int(n): at for at, n in enumerate(layout.numbers) if n >= 0}
        starts = np.cumsum([0, *layout.counts])
        domains: list[Subdomain] = []
        for way in box.splits:
            domain = root
            for k, i, above in way:
                split = SignSplit(place[int(starts[k]) + i])
                domain = domain.side(split, above=above)
            domains.append(replace(domain))
        bounder.ascend(domains, box.sizes, STEPS, stop=lambda: False)
        found += [domain.bound for domain in domains]
    return float(np.mean(found))


def alpha_crown(form: ReluForm, some: Sequence[Box]) -> float:
    """The mean bound by optimised slopes, all domains of all boxes in one batch."""
    weights = [torch.tensor(layer.terms[0][1]).float() for layer in form.layers]
    biases = [torch.tensor(layer.bias).float() for layer in form.layers]
    ends: list[list[list[Any]]] = [[[], []] for _ in weights[:-1]]
    lower, upper = [], []
    for box in some:
        for way in box.splits:
            low, high = [v.copy() for v in box.low], [v.copy() for v in box.high]
            for k, i, above in way:
                (low if above else high)[k][i] = 0.0
            for k, pair in enumerate(ends):
                pair[0].append(low[k])
                pair[1].append(high[k])
            lower.append(box.sizes.lower)
            upper.append(box.sizes.upper)
    sides = [[torch.tensor(np.stack(s)).float() for s in pair] for pair in ends]
    x_low, x_high = (torch.tensor(np.stack(s)).float() for s in (lower, upper))
    slopes = [(high > -low).float().requires_grad_() for low, high in sides]
    optimiser = torch.optim.Adam(slopes, lr=RATE, maximize=True)

    def bound() -> Tensor:
        coefficient = weights[-1].expand(len(x_low), -1)
        value = biases[-1].expand(len(x_low)).clone()
        for k in range(len(slopes) - 1, -1, -1):
            low, high = sides[k]
            on, off = low >= 0, high <= 0
            chord = high / (high - low).clamp(min=1e-12)
            line = torch.where(on, 1.0, torch.where(off, 0.0, slopes[k].clamp(0, 1)))
            upper_slope = torch.where(on, 1.0, torch.where(off, 0.0, chord))
            rise = torch.where(on | off, 0.0, -chord * low)
            negative = coefficient.clamp(max=0)
            value = value + (negative * rise).sum(1)
            coefficient = coefficient.clamp(min=0) * line + negative * upper_slope
            value = value + coefficient @ biases[k]
            coefficient = coefficient @ weights[k]
        middle, radius = (x_low + x_high) / 2, (x_high - x_low) / 2
        return value + (coefficient * middle).sum(1) - (coefficient.abs() * radius).sum(1)

    best = bound().detach()
    for _ in range(STEPS):
        optimiser.zero_grad()
        bound().sum().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        best = torch.maximum(best, bound().detach())
    return float(best.mean())


def memory(name: str) -> int | None:
    """Of this process, in bytes: VmRSS is what it holds, VmHWM the most since it was reset."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(s.split()[1]) for s in lines if s.startswith(name)), None)


def measured(work: Callable[[], float]) -> tuple[float, int | None, float]:
    """CPU seconds, bytes above what was held before, and the result."""
    reset = True
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        reset = False
    before = memory("VmRSS")
    start = time.process_time()
    found = work()
    spent = time.process_time() - start
    peak = memory("VmHWM")
    rise = max(0, peak - before) if reset and before is not None and peak is not None else None
    return spent, rise, found


def row(axis: str, setting: Setting, repeats: int) -> dict[str, Any]:
    form = network(setting)
    some = boxes(form, setting)
    bounder = ChainBounder(form)
    engines: dict[str, Callable[[], float]] = {
        "ours": lambda: compiled(bounder, some),
        "torch": lambda: alpha_crown(form, some),
    }
    results: dict[str, list[tuple[float, int | None, float]]] = {name: [] for name in engines}
    for _ in range(repeats):
        for name, work in engines.items():
            results[name].append(measured(work))
    found: dict[str, Any] = {"axis": axis, **asdict(setting)}
    for name, each in results.items():
        found[f"{name}_seconds"] = statistics.median(seconds for seconds, _, _ in each)
        # of the first run: later ones find their buffers where the first left them
        found[f"{name}_bytes"] = each[0][1]
        found[f"{name}_bound"] = each[-1][2]
    found["ratio"] = found["torch_seconds"] / max(found["ours_seconds"], 1e-9)
    return found


def table(rows: list[dict[str, Any]]) -> str:
    def megabytes(count: int | None) -> str:
        return "" if count is None else f"{count / 1e6:.1f}"

    lines = [
        "| axis | width | depth | inputs | instances | split depth | ours, CPU s | torch, CPU s "
        "| ratio | ours, MB | torch, MB | ours, bound | torch, bound |",
        "|---" * 13 + "|",
    ]
    for r in rows:
        numbers = " | ".join(str(r[name]) for name in asdict(Setting()))
        lines.append(
            f"| {r['axis']} | {numbers} | {r['ours_seconds']:.4f} | {r['torch_seconds']:.4f} "
            f"| {r['ratio']:.1f} | {megabytes(r['ours_bytes'])} | {megabytes(r['torch_bytes'])} "
            f"| {r['ours_bound']:.3f} | {r['torch_bound']:.3f} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one setting beside the base an axis")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    base = Setting()
    ChainBounder(network(base)).prepare()
    # What torch loads at its first step is nobody's time; of a network so small that it leaves no
    # buffers to the first row.
    small = Setting(width=4, depth=1, inputs=2, instances=1)
    alpha_crown(network(small), boxes(network(small), small))
    settings = [("base", base)]
    for axis, values in AXES.items():
        chosen = values[:1] if given.quick else values
        settings += [(axis, replace(base, **{axis: value})) for value in chosen]
    rows = [row(axis, setting, 2 if given.quick else 5) for axis, setting in settings]
    print(table(rows))
    if given.json:
        given.json.write_text(json.dumps({"steps": STEPS, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
