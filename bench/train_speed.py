"""Seconds an epoch: the published recipe written plainly in eager torch, against ours.

    python bench/train_speed.py [--quick] [--json OUT] [--data-dir FOLDER] [--only TEXT]
                                [--threads N]

Both train in this process, turn about, on the same batches, from the same weights, with the same
augmentation; a row is the median of the steps, times the steps of an epoch. The reference runs its
restarts one after the other and differentiates by autograd, as the published code does. What the
attacks reach is compared too, at equal weights: ``gap`` is the difference of the mean attacked
losses (ours less the reference's; starting points differ, so it is not zero). ``cpu`` is the ratio
of processor seconds, ``attack`` the attack's share of our step, ``MB`` the most memory that a step
takes beyond what the process holds between steps, the reference's and ours.

``of peak`` lets figures of different machines be compared: the floating-point operations of the
attack, and of the whole step, for each processor second, as a share of what a matrix product of
torch's reaches on one thread, measured turn about with the steps. What is counted is the folded
network: two operations a multiplication, one pass forward and one back for a gradient, three passes
for a batch that the weights learn of. Updates, formulas and folding count as nothing.

``corrected`` is our step with an attack of fewer gradients: 12 steps and one restart of Algorithm 1
of Croce and Hein, which finds what the published attack finds on networks that were trained on QLL
(``bench/attack_strength.py``) because its step is halved when it should be. Its ratios, and its own
gap, stand in the second line of a row.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from published_recipe import LEARNING_RATE, LOSSES, WEIGHT_DECAY, PlainRecipe
from torch import Tensor

import qll
from qll.attacks.apgd import AutoPGD
from qll.data.base import DataSet
from qll.data.source import load as load_data
from qll.kernels.network import plan_network
from qll.logics import logic as read_logic
from qll.networks.models import create
from qll.training.config import TrainConfig, resolve

MNIST_SAMPLES, DICE_SAMPLES = 60_000, 272
# Products that stay in the second-level cache: the larger are slower where it is small.
PRODUCT_SIZES, PRODUCTS = (256, 384, 512), 3
CORRECTED = AutoPGD(12, 1)


# --- the machine's peak --------------------------------------------------------------------------


@dataclass
class Peak:
    """The best GFLOP/s of products: one thread by processor and by wall time, all threads."""

    cpu: float = 0.0
    one: float = 0.0
    every: float = 0.0

    def measure(self) -> None:
        threads = torch.get_num_threads()
        for size in PRODUCT_SIZES:
            a, b, out = (torch.rand(size, size) for _ in range(3))
            count = PRODUCTS * (512 // size) ** 3  # milliseconds: clocks are coarse

            def products(
                _: int, operands: tuple[Tensor, ...] = (a, b, out), n: int = count
            ) -> None:
                for _ in range(n):
                    torch.mm(operands[0], operands[1], out=operands[2])

            work = 2e-9 * size**3 * count
            torch.set_num_threads(1)
            wall, cpu = timed(products, 0)
            self.cpu, self.one = max(self.cpu, work / max(cpu, 1e-9)), max(self.one, work / wall)
            torch.set_num_threads(threads)
            self.every = max(self.every, work / timed(products, 0)[0])


# --- the comparison ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    property: str
    logic: str
    data: str
    network: str = "paper-mnist"

    @property
    def name(self) -> str:
        suffix = "" if self.network.startswith("paper") else f" ({self.network})"
        return self.property + suffix


@dataclass(frozen=True)
class Row:
    property: str
    logic: str
    reference_seconds: float
    seconds: float
    ratio: float
    reference_cpu_seconds: float
    cpu_seconds: float
    attack_share: float
    attack_of_peak: float
    step_of_peak: float
    attack_of_peak_wall: float
    step_of_peak_wall: float
    peak_gflops: float
    peak_gflops_all_threads: float
    reference_loss: float
    gap: float
    corrected_ratio: float
    corrected_cpu_ratio: float
    corrected_gap: float
    reference_megabytes: float
    megabytes: float


CASES = [
    Case("classification-robustness", "qll:5", "mnist"),
    Case("classification-robustness", "stl:5", "mnist"),
    Case("classification-robustness", "dl2", "mnist"),
    *(
        Case(prop, logic, "mnist")
        for prop in ("strong-classification-robustness", "clothing-footwear")
        for logic in ("qll:5", "stl:5", "dl2")
    ),
    *(
        Case(prop, logic, "dice-rendered", "paper-dice")
        for prop in ("not-both", "exactly-one")
        for logic in ("qll:5", "stl:5", "dl2")
    ),
    Case("classification-robustness", "qll:5", "mnist", "wide"),
]


def data_folder(option: str | None, name: str) -> str | None:
    """--data-dir, or the shared data folder, with or without a folder for each data set."""
    shared = os.environ.get("QLL_SHARED")
    chosen = Path(option) if option else Path(shared) / "data" if shared else None
    if chosen is None or name == "dice-rendered":
        return None
    return str(chosen / name if (chosen / name).is_dir() else chosen)


def measure(case: Case, data: DataSet, rounds: int, seed: int = 0) -> Row:
    config: TrainConfig = resolve(case.property, case.data, options={"logic": case.logic})
    outputs = len(data.classes)
    torch.manual_seed(seed)
    channels, height, width = data.shape
    model = create(
        case.network,
        in_channels=channels,
        height=height,
        width=width,
        outputs=outputs,
        mean=data.mean,
        std=data.std,
    )
    logic = read_logic(case.logic)
    epsilon = config.parameters["epsilon"]
    multi_label = data.task == "multi-label"
    plain = PlainRecipe(
        deepcopy(model),
        LOSSES[case.property](logic),
        epsilon,
        config.steps,
        config.restarts,
        multi_label,
        config.floor,
    )
    as_published = AutoPGD(config.steps, config.restarts, as_published=True)
    ours, corrected = (
        qll.PropertyLoss(
            config.trained_property(outputs),
            logic=logic,
            attack=attack,
            task=data.task,
            floor=config.floor,
            learned=0.0,  # as published
            engine="compiled",
        )
        for attack in (as_published, CORRECTED)
    )
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    chance = torch.Generator().manual_seed(seed)

    def batch(number: int) -> tuple[Tensor, Tensor]:
        size = config.batch_size
        first = number * size % (len(data.train) - size + 1)
        x, labels = data.train.batch(torch.arange(first, first + size))
        return data.augment(x, chance), labels

    def our_step(number: int, loss: qll.PropertyLoss = ours) -> None:
        x, labels = batch(number)
        total = loss(model, x, labels)
        optimiser.zero_grad(set_to_none=True)
        total.backward()
        optimiser.step()

    def corrected_step(number: int) -> None:
        our_step(number, corrected)

    def plain_step(number: int) -> None:
        plain.step(*batch(number))

    x, labels = batch(0)
    our_step(0)  # compiles, or reads what was compiled before
    plain_step(0)
    model.load_state_dict(plain.model.state_dict())
    times: dict[str, list[tuple[float, float]]] = {"plain": [], "ours": [], "corrected": []}
    steps = -(-(MNIST_SAMPLES if case.data == "mnist" else DICE_SAMPLES) // config.batch_size)
    repeats = 4  # of ours for each of the reference: both medians over similar seconds
    peak = Peak()
    for turn in range(rounds):
        peak.measure()
        times["plain"].append(timed(plain_step, 1 + turn))
        for k in range(1 + turn * repeats, 1 + (turn + 1) * repeats):
            times["ours"].append(timed(our_step, k))
            times["corrected"].append(timed(corrected_step, k))
    model.load_state_dict(plain.model.state_dict())

    def find(_: int = 0, attack: AutoPGD = as_published) -> Tensor:
        return attack.find(model, ours.prop, x, labels, logic=logic, engine="compiled")["x"]

    attacks = [timed(find, 0) for _ in range(5)]
    attack_wall, attack_cpu = (statistics.median(times) for times in zip(*attacks, strict=True))
    peak.measure()
    plan = plan_network(model, data.shape)
    if isinstance(plan, str):
        raise SystemExit(f"{case.network} is not attacked in compiled code: {plan}")
    a_pass = 2e-9 * plan.multiplications * config.batch_size
    attack_work = a_pass * (config.restarts + 1) * (2 * config.steps + 1)
    step_work = attack_work + 2 * 3 * a_pass  # the clean batch and the attacked one
    with torch.no_grad():
        ours_reach, corrected_reach = (
            plain.loss(model(find(attack=attack)), labels).mean().item()
            for attack in (as_published, CORRECTED)
        )
    plain_reach = plain.loss(model(plain.attack(x, labels)), labels).mean().item()
    megabytes = peak_growth(plain_step), peak_growth(our_step)
    wall = {name: statistics.median(t for t, _ in pairs) for name, pairs in times.items()}
    cpu = {name: statistics.median(t for _, t in pairs) for name, pairs in times.items()}
    return Row(
        case.name,
        case.logic,
        wall["plain"] * steps,
        wall["ours"] * steps,
        wall["plain"] / wall["ours"],
        cpu["plain"] * steps,
        cpu["ours"] * steps,
        attack_wall / wall["ours"],
        attack_work / attack_cpu / peak.cpu,
        step_work / cpu["ours"] / peak.cpu,
        attack_work / attack_wall / peak.every,
        step_work / wall["ours"] / peak.every,
        peak.one,
        peak.every,
        plain_reach,
        ours_reach - plain_reach,
        wall["plain"] / wall["corrected"],
        cpu["plain"] / cpu["corrected"],
        corrected_reach - plain_reach,
        *megabytes,
    )


def timed(action: Callable[[int], object], number: int) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    action(number)
    return time.perf_counter() - wall, time.process_time() - cpu


def peak_growth(action: Callable[[int], object]) -> float:
    """MB by which the process grows at most during an action; NaN where Linux does not tell."""
    status, peak_reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    try:
        peak_reset.write_text("5")  # the peak counts from here
        before = _kilobytes(status, "VmRSS")
        action(0)
        return (_kilobytes(status, "VmHWM") - before) / 1024
    except (OSError, StopIteration):
        return float("nan")


def _kilobytes(status: Path, name: str) -> int:
    lines = status.read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the paper's recipe and few steps")
    parser.add_argument("--json", metavar="OUT", help="write the rows there")
    parser.add_argument("--data-dir", help="folder that holds the MNIST files")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--threads", type=int, help="threads of torch and of the kernels")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    cases = [c for c in CASES if options.only in f"{c.name} {c.logic}"]
    if options.quick:
        cases = [
            c
            for c in cases
            if c.logic == "qll:5" and c.name in ("classification-robustness", "not-both")
        ]
    sets: dict[str, DataSet] = {}
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"{'property':34} {'logic':6} {'plain s':>9} {'ours s':>8} {'ratio':>6} "
          f"{'cpu':>6} {'attack':>7} {'of peak':>9} {'plain loss':>11} {'gap':>9} "
          f"{'MB':>9}")  # fmt: skip
    rows = []
    for case in cases:
        if case.data not in sets:
            sets[case.data] = load_data(case.data, data_folder(options.data_dir, case.data))
        rounds = (3 if options.quick else 9) if case.network != "wide" else 2
        row = measure(case, sets[case.data], rounds)
        rows.append(row)
        print(f"{row.property:34} {row.logic:6} {row.reference_seconds:9.1f} {row.seconds:8.2f} "
              f"{row.ratio:6.1f} {row.reference_cpu_seconds / row.cpu_seconds:6.1f} "
              f"{row.attack_share:6.0%} {row.attack_of_peak:4.0%}/{row.step_of_peak:4.0%} "
              f"{row.reference_loss:11.4f} {row.gap:+9.4f} "
              f"{row.reference_megabytes:4.0f}/{row.megabytes:.0f}")  # fmt: skip
        print(f"{'':34} corrected: ratio {row.corrected_ratio:.1f}, "
              f"cpu {row.corrected_cpu_ratio:.1f}, gap {row.corrected_gap:+.4f}")  # fmt: skip
        print(f"{'':34} peak of a matrix product: {row.peak_gflops:.0f} GFLOP/s on one thread, "
              f"{row.peak_gflops_all_threads:.0f} on all; by wall time "
              f"{row.attack_of_peak_wall:.0%} and {row.step_of_peak_wall:.0%} of it")  # fmt: skip
        sys.stdout.flush()
    if options.json:
        record = {"threads": torch.get_num_threads(), "rows": [asdict(row) for row in rows]}
        Path(options.json).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
