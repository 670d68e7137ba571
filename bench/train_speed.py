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
from torch import Tensor, nn
from torch.nn import functional

import qll
from qll.attacks.apgd import AutoPGD
from qll.data.base import DataSet
from qll.data.source import load as load_data
from qll.kernels.network import plan_network
from qll.logics import Logic
from qll.logics import logic as read_logic
from qll.networks.models import create
from qll.training.config import TrainConfig, resolve

Loss = Callable[[Tensor, Tensor], Tensor]
LEARNING_RATE, WEIGHT_DECAY, ALPHA, MOST_LAMBDA = 1e-3, 1e-4, 0.5, 10.0
MNIST_SAMPLES, DICE_SAMPLES = 60_000, 272
# Products that stay in the second-level cache: the larger are slower where it is small.
PRODUCT_SIZES, PRODUCTS = (256, 384, 512), 3
OPPOSITE = ((0, 5), (1, 4), (2, 3))


# --- the losses, written out ---------------------------------------------------------------------


def robustness(logic: Logic) -> Loss:
    def loss(y: Tensor, labels: Tensor) -> Tensor:
        own = y.gather(1, labels[:, None])[:, 0]
        parts = [logic.leq(y[:, i], own) for i in range(10)]
        return logic.loss(logic.conj(torch.stack(parts)))

    return loss


def strong_robustness(logic: Logic) -> Loss:
    threshold = torch.tensor(0.7).logit()

    def loss(y: Tensor, labels: Tensor) -> Tensor:
        own = y.gather(1, labels[:, None])[:, 0]
        return logic.loss(logic.leq(threshold.expand_as(own), own))

    return loss


def clothing_footwear(logic: Logic) -> Loss:
    clothing, footwear = (0, 2, 3, 4, 6), (5, 7, 9)

    def loss(y: Tensor, labels: Tensor) -> Tensor:
        own = y.gather(1, labels[:, None])[:, 0]
        parts = []
        for rivals, members in ((footwear, clothing), (clothing, footwear)):
            applies = torch.isin(labels, torch.tensor(members))
            for i in rivals:
                parts.append(logic.leq(torch.where(applies, y[:, i], own), own))
        return logic.loss(logic.conj(torch.stack(parts)))

    return loss


def not_both(logic: Logic) -> Loss:
    def loss(y: Tensor, labels: Tensor) -> Tensor:
        zero = torch.zeros_like(y[:, 0])
        pairs = [
            logic.disj(torch.stack([logic.leq(y[:, i], zero), logic.leq(y[:, j], zero)]))
            for i, j in OPPOSITE
        ]
        return logic.loss(logic.conj(torch.stack(pairs)))

    return loss


def exactly_one(logic: Logic) -> Loss:
    def loss(y: Tensor, labels: Tensor) -> Tensor:
        margin = torch.full_like(y[:, 0], 0.1)
        parts = []
        for i, j in OPPOSITE:
            off = [logic.leq(y[:, k], -margin) for k in (i, j)]
            on = [logic.leq(margin, y[:, k]) for k in (i, j)]
            parts += [logic.disj(torch.stack(off)), logic.disj(torch.stack(on))]
        return logic.loss(logic.conj(torch.stack(parts)))

    return loss


LOSSES: dict[str, Callable[[Logic], Loss]] = {
    "classification-robustness": robustness,
    "strong-classification-robustness": strong_robustness,
    "clothing-footwear": clothing_footwear,
    "not-both": not_both,
    "exactly-one": exactly_one,
}


# --- the published recipe, plainly ---------------------------------------------------------------


@dataclass
class PlainRecipe:
    """Attack with restarts in turn, balance by the gradient norms of the last layer, AdamW."""

    model: nn.Module
    loss: Loss
    epsilon: float
    steps: int
    restarts: int
    multi_label: bool
    floor: float | None

    def __post_init__(self) -> None:
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY
        )

    def step(self, x: Tensor, labels: Tensor) -> None:
        adversarial = self.attack(x, labels)
        prediction = self.prediction(self.model(x), labels)
        values = self.loss(self.model(adversarial), labels)
        violation = (values if self.floor is None else values.clamp(min=self.floor)).mean()
        last = list(self.model[-1].parameters())
        norms = []
        for part in (prediction, violation):
            grads = torch.autograd.grad(part, last, retain_graph=True)
            norms.append(torch.cat([g.reshape(-1) for g in grads]).norm())
        weight = (ALPHA * norms[0] / (norms[1] + 1e-8)).clamp(max=MOST_LAMBDA)
        self.optimiser.zero_grad()
        (prediction + weight.detach() * violation).backward()
        self.optimiser.step()

    def prediction(self, y: Tensor, labels: Tensor) -> Tensor:
        if self.multi_label:
            return functional.binary_cross_entropy_with_logits(y, labels.float())
        return functional.cross_entropy(y, labels)

    def attack(self, x: Tensor, labels: Tensor) -> Tensor:
        best, best_value = x.clone(), torch.full((len(x),), -torch.inf)
        for _ in range(self.restarts + 1):
            found, value = self.attack_once(x, labels)
            better = value > best_value
            best[better], best_value[better] = found[better], value[better]
        return best

    def value_and_gradient(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        values = self.loss(self.model(x), labels)
        (gradient,) = torch.autograd.grad(values.sum(), x)
        return values.detach(), gradient

    def attack_once(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        low, high = x - self.epsilon, x + self.epsilon
        here = torch.clamp(low + torch.rand_like(x) * (high - low), 0.0, 1.0)
        value, gradient = self.value_and_gradient(here, labels)
        best, best_value, best_gradient = here.clone(), value.clone(), gradient.clone()
        step = torch.full((len(x), *(1,) * (x.dim() - 1)), 2 * self.epsilon)
        history = torch.zeros(max(self.steps, 1), len(x))
        before = here.clone()
        window = max(int(0.22 * self.steps), 1)
        for k in range(self.steps):
            with torch.no_grad():
                inertia = here - before
                before = here.clone()
                alpha = 0.75 if k > 0 else 1.0
                aim = here + step * torch.sign(gradient)
                aim = torch.clamp(torch.min(torch.max(aim, low), high), 0.0, 1.0)
                here = here + (aim - here) * alpha + inertia * (1 - alpha)
                here = torch.clamp(torch.min(torch.max(here, low), high), 0.0, 1.0)
            value, gradient = self.value_and_gradient(here, labels)
            with torch.no_grad():
                history[k] = value
                better = (value > best_value).nonzero().squeeze(1)
                best[better] = here[better].clone()
                best_gradient[better] = gradient[better].clone()
                best_value[better] = value[better].clone()
                if k + 1 == window:  # the published counter is never reset: one check
                    rises = torch.zeros(len(x))
                    for j in range(window):
                        rises += (history[k - j] > history[k - j - 1]).float()
                    stuck = (rises <= 0.75 * window).nonzero().squeeze(1)
                    step[stuck] /= 2
                    here[stuck] = best[stuck].clone()
                    gradient[stuck] = best_gradient[stuck].clone()
        return best, best_value


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
    ours = qll.PropertyLoss(
        config.trained_property(outputs),
        logic=logic,
        attack=AutoPGD(config.steps, config.restarts, as_published=True),
        task=data.task,
        floor=config.floor,
        learned=0.0,  # as published
        engine="compiled",
    )
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    chance = torch.Generator().manual_seed(seed)

    def batch(number: int) -> tuple[Tensor, Tensor]:
        size = config.batch_size
        first = number * size % (len(data.train) - size + 1)
        x, labels = data.train.batch(torch.arange(first, first + size))
        return data.augment(x, chance), labels

    def our_step(number: int) -> None:
        x, labels = batch(number)
        total = ours(model, x, labels)
        optimiser.zero_grad(set_to_none=True)
        total.backward()
        optimiser.step()

    def plain_step(number: int) -> None:
        plain.step(*batch(number))

    x, labels = batch(0)
    our_step(0)  # compiles, or reads what was compiled before
    plain_step(0)
    model.load_state_dict(plain.model.state_dict())
    times: dict[str, list[tuple[float, float]]] = {"plain": [], "ours": []}
    steps = -(-(MNIST_SAMPLES if case.data == "mnist" else DICE_SAMPLES) // config.batch_size)
    repeats = 4  # of ours for each of the reference: both medians over similar seconds
    peak = Peak()
    for turn in range(rounds):
        peak.measure()
        times["plain"].append(timed(plain_step, 1 + turn))
        times["ours"] += [timed(our_step, 1 + turn * repeats + k) for k in range(repeats)]
    model.load_state_dict(plain.model.state_dict())

    def find(_: int = 0) -> Tensor:
        return ours.attack.find(model, ours.prop, x, labels, logic=logic, engine="compiled")["x"]

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
        ours_reach = plain.loss(model(find()), labels).mean().item()
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
        print(f"{'':34} peak of a matrix product: {row.peak_gflops:.0f} GFLOP/s on one thread, "
              f"{row.peak_gflops_all_threads:.0f} on all; by wall time "
              f"{row.attack_of_peak_wall:.0%} and {row.step_of_peak_wall:.0%} of it")  # fmt: skip
        sys.stdout.flush()
    if options.json:
        record = {"threads": torch.get_num_threads(), "rows": [asdict(row) for row in rows]}
        Path(options.json).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
