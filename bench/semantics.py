"""Loss-and-gradient time of compiled formulas against hand-written torch, in one run.

For each of the paper's five properties and each logic: a formula read from its text file and
compiled by qll, and the same thing written by hand as one would in a training script. Both are
checked to agree, then timed interleaved; the figure is the ratio of the medians of CPU time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import qll

BATCH = 512
GOALS = {"qll": 1.3}
DEFAULT_GOAL = 1.5
PAIRS = torch.tensor([[0, 5], [1, 4], [2, 3]])
CLOTHING, FOOTWEAR = [0, 2, 3, 4, 6], [5, 7, 9]
DELTA = 0.8472978603872037


# --- one hand-written record for each logic: leq, conj, disj over the last axis ---


def _qll(p: float) -> tuple[Callable, Callable, Callable, Callable]:
    return (
        lambda a, b: a - b,
        lambda v: torch.logsumexp(p * v, -1) / p,
        lambda v: -torch.logsumexp(-p * v, -1) / p,
        lambda v: v,
    )


def _dl2() -> tuple[Callable, Callable, Callable, Callable]:
    return lambda a, b: torch.relu(a - b), lambda v: v.sum(-1), lambda v: v.prod(-1), lambda v: v


def _stl(nu: float) -> tuple[Callable, Callable, Callable, Callable]:
    def conj(v: Tensor) -> Tensor:
        low = v.amin(-1, keepdim=True)
        zero = low.abs() < 1e-12
        t = (v - low) / torch.where(zero, torch.ones_like(low), low)
        down = t.clamp(-80, 0)
        e = torch.where(low < 0, (nu * down).clamp(min=-80), (-nu * t).clamp(-80, 0)).exp()
        term = torch.where(low < 0, low * down.exp(), v)
        return torch.where(zero.squeeze(-1), low.squeeze(-1), (e * term).sum(-1) / e.sum(-1))

    return lambda a, b: b - a, conj, lambda v: -conj(-v), lambda v: -v


def _goedel() -> tuple[Callable, Callable, Callable, Callable]:
    def leq(a: Tensor, b: Tensor) -> Tensor:
        a, b = torch.sigmoid(a), torch.sigmoid(b)
        return torch.where(a <= b, torch.ones_like(a + b), b)

    return leq, lambda v: v.amin(-1), lambda v: v.amax(-1), lambda v: 1 - v


def _lukasiewicz() -> tuple[Callable, Callable, Callable, Callable]:
    return (
        lambda a, b: (1 - torch.sigmoid(a) + torch.sigmoid(b)).clamp(max=1),
        lambda v: (1 - (1 - v).sum(-1)).clamp(min=0),
        lambda v: v.sum(-1).clamp(max=1),
        lambda v: 1 - v,
    )


def _product() -> tuple[Callable, Callable, Callable, Callable]:
    def leq(a: Tensor, b: Tensor) -> Tensor:
        a, b = torch.sigmoid(a), torch.sigmoid(b)
        holds = a <= b
        return torch.where(
            holds, torch.ones_like(a + b), b / torch.where(holds, torch.ones_like(a), a)
        )

    return leq, lambda v: v.prod(-1), lambda v: 1 - (1 - v).prod(-1), lambda v: 1 - v


def _yager(r: float) -> tuple[Callable, Callable, Callable, Callable]:
    def root(u: Tensor) -> Tensor:
        good = u > 1e-12
        return torch.where(
            good, torch.where(good, u, torch.ones_like(u)).pow(1 / r), torch.zeros_like(u)
        )

    def leq(a: Tensor, b: Tensor) -> Tensor:
        na, nb = torch.sigmoid(-a), torch.sigmoid(-b)
        return torch.where(a <= b, torch.ones_like(na + nb), 1 - root(nb.pow(r) - na.pow(r)))

    return (
        leq,
        lambda v: (1 - root((1 - v).pow(r).sum(-1))).clamp(min=0),
        lambda v: root(v.pow(r).sum(-1)).clamp(max=1),
        lambda v: 1 - v,
    )


HAND = {
    "qll:5": _qll(5.0),
    "dl2": _dl2(),
    "stl:5": _stl(5.0),
    "goedel": _goedel(),
    "lukasiewicz": _lukasiewicz(),
    "product": _product(),
    "yager:2": _yager(2.0),
}


# --- the five properties by hand ---


def strong(rec: tuple, y: Tensor, c: Tensor) -> Tensor:
    leq, _, _, loss = rec
    return loss(leq(y.new_tensor(DELTA), y.gather(1, c[:, None]).squeeze(1)))


def _others(n: int) -> Tensor:
    return torch.tensor([[i for i in range(n) if i != c] for c in range(n)])


OTHERS = _others(10)


def robust(rec: tuple, y: Tensor, c: Tensor) -> Tensor:
    leq, conj, _, loss = rec
    return loss(conj(leq(y.gather(1, OTHERS[c]), y.gather(1, c[:, None]))))


IS_CLOTHING = torch.tensor([c in CLOTHING for c in range(10)])
IS_FOOTWEAR = torch.tensor([c in FOOTWEAR for c in range(10)])


def clothing(rec: tuple, y: Tensor, c: Tensor) -> Tensor:
    leq, conj, _, loss = rec
    own = y.gather(1, c[:, None])
    as_clothing = loss(conj(leq(y[:, FOOTWEAR], own)))
    as_footwear = loss(conj(leq(y[:, CLOTHING], own)))
    value = torch.where(IS_CLOTHING[c], as_clothing, as_footwear)
    return torch.where(IS_CLOTHING[c] | IS_FOOTWEAR[c], value, torch.zeros_like(value))


def not_both(rec: tuple, y: Tensor, c: Tensor) -> Tensor:
    leq, conj, disj, loss = rec
    return loss(conj(disj(leq(y[:, PAIRS], y.new_zeros(())))))


def exactly_one(rec: tuple, y: Tensor, c: Tensor) -> Tensor:
    leq, conj, disj, loss = rec
    pairs, zero = y[:, PAIRS], y.new_zeros(())
    off, on = disj(leq(pairs, zero)), disj(leq(zero, pairs))
    if rec is HAND["stl:5"]:  # not associative: the nested conjunction of the formula
        return loss(conj(conj(torch.stack([off, on], -1))))
    return loss(conj(torch.cat([off, on], -1)))


PROPERTIES: dict[str, tuple[Callable, int]] = {
    "strong-classification-robustness": (strong, 10),
    "classification-robustness": (robust, 10),
    "clothing-footwear": (clothing, 10),
    "not-both": (not_both, 6),
    "exactly-one": (exactly_one, 6),
}


def _seconds(call: Callable[[Tensor], Tensor], y: Tensor, repeat: int) -> float:
    start = time.thread_time()
    for _ in range(repeat):
        leaf = y.detach().requires_grad_()
        torch.autograd.grad(call(leaf).sum(), leaf)
    return (time.thread_time() - start) / repeat


def measure(name: str, spec: str, rounds: int, repeat: int) -> dict[str, object]:
    hand, outputs = PROPERTIES[name]
    torch.manual_seed(0)
    y, c = torch.randn(BATCH, outputs) * 3, torch.randint(0, outputs, (BATCH,))
    prop, record, by_hand = qll.load(name), qll.logic(spec), HAND[spec]
    labels = c if prop.uses_labels else None

    def ours(leaf: Tensor) -> Tensor:
        return prop.loss(leaf, labels=labels, logic=record)

    def theirs(leaf: Tensor) -> Tensor:
        value = hand(by_hand, leaf, c)
        # Goedel's y <= 0 has no slope: a training script has to keep it in the graph by hand
        return value if value.requires_grad else value + 0.0 * leaf[:, 0]

    torch.testing.assert_close(ours(y), theirs(y), rtol=1e-4, atol=1e-5)
    times: dict[str, list[float]] = {"ours": [], "hand": []}
    for _ in range(rounds):
        times["hand"].append(_seconds(theirs, y, repeat))
        times["ours"].append(_seconds(ours, y, repeat))
    ours_us, hand_us = (statistics.median(times[k]) * 1e6 for k in ("ours", "hand"))
    goal = GOALS.get(record.name, DEFAULT_GOAL)
    return {
        "property": name,
        "logic": spec,
        "microseconds": round(ours_us, 1),
        "hand_microseconds": round(hand_us, 1),
        "ratio": round(ours_us / hand_us, 2),
        "goal": goal,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--json", type=Path, metavar="OUT")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rounds, repeat = (5, 20) if arguments.quick else (21, 60)
    rows = []
    print(f"loss and gradient, batch {BATCH}, one thread, median of {rounds} interleaved rounds")
    print(f"{'property':34}{'logic':14}{'qll us':>9}{'hand us':>9}{'ratio':>7}{'goal':>6}")
    for name in PROPERTIES:
        for spec in HAND:
            row = measure(name, spec, rounds, repeat)
            rows.append(row)
            flag = "" if float(row["ratio"]) <= float(row["goal"]) else "  above goal"  # type: ignore[arg-type]
            print(
                f"{name:34}{spec:14}{row['microseconds']:9}{row['hand_microseconds']:9}"
                f"{row['ratio']:7}{row['goal']:6}{flag}"
            )
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
