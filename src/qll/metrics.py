"""The paper's figures of a network and a property: PAcc, CAcc, CSec and, from a verifier, CSat.

PAcc is the share of right predictions; CAcc the share of uniform samples of the regions that
satisfy the property; CSec the share of regions in which an attack finds no violation; CSat the
share of regions that are proved. CSat <= the true share <= CSec.

A data point of which the property says nothing (``label(7) -> ...`` at a three) satisfies it
whatever the network computes. Such points are *vacuous*: counted beside every share, never in it.
The published figures have them in it: ``Share.with_vacuous``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from qll.attacks.base import Attack
from qll.attacks.problem import Engine, held_still, other_points, run_model, search_box
from qll.errors import InputError
from qll.logics.base import Logic
from qll.prediction import correct_predictions
from qll.property import Property
from qll.regions import Region
from qll.regions.clauses import clauses, turns

# Relative spread of predictions below which they are one number.
_CONSTANT = 1e-4
# Points at which an attack is tried at half of epsilon too.
_FEW = 512
# Samples at a time: memory stays flat, and the kernels still fill all cores.
BATCH = 1024


@dataclass(frozen=True)
class Share:
    """``good`` of ``total``; ``vacuous`` more hold whatever the network computes.

    >>> str(Share(3, 4)), str(Share(0, 1, vacuous=9).with_vacuous)
    ('75.0 %', '90.0 %')
    """

    good: int
    total: int
    vacuous: int = 0

    @property
    def value(self) -> float:
        return self.good / self.total if self.total else float("nan")

    @property
    def with_vacuous(self) -> Share:
        """As the paper counts: what holds vacuously is good."""
        return Share(self.good + self.vacuous, self.total + self.vacuous)

    def __add__(self, other: Share) -> Share:
        return Share(self.good + other.good, self.total + other.total, self.vacuous + other.vacuous)

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} %"


Watch = Callable[[str, int, int], None]
"""Called with the figure that is worked on, and how much of how many is done."""


def unwatched(figure: str, done: int, total: int) -> None: ...


Satisfaction = Callable[[nn.Module], Mapping[str, Share]]
"""Asks a verifier about a network: the proved share by epsilon."""


@dataclass(frozen=True)
class Evaluation:
    """All figures of one network; ``rmse`` takes the place of PAcc in a regression. ``csat`` maps
    epsilon to the proved share: the verifier fills it. ``chance`` is the PAcc of the best constant
    answer on the same data; None in records from before it was kept. ``r2`` is the share of the
    variance that a regression explains: 0 for the best constant answer, 1 at most. ``missed``: of
    the first regions that CSec (QLL) counts, those that it missed (`missed_regions`)."""

    pacc: Share | None
    cacc: Share
    csec_self: Share | None
    csec_qll: Share
    rmse: float | None = None
    csat: Mapping[str, Share] = field(default_factory=dict)
    chance: Share | None = None
    r2: float | None = None
    missed: Share | None = None

    def to_json(self) -> dict[str, Any]:
        shares = {
            "pacc": self.pacc,
            "cacc": self.cacc,
            "csec_self": self.csec_self,
            "csec_qll": self.csec_qll,
        }
        found: dict[str, Any] = {name: _to_json(share) for name, share in shares.items()}
        found["chance"] = _to_json(self.chance)
        found["rmse"], found["r2"] = self.rmse, self.r2
        found["missed"] = _to_json(self.missed)
        found["csat"] = {epsilon: _to_json(share) for epsilon, share in self.csat.items()}
        return found

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Evaluation:
        try:
            cacc, csec_qll = _from_json(values["cacc"]), _from_json(values["csec_qll"])
            if cacc is None or csec_qll is None:
                raise KeyError("cacc")
            csat = {str(e): _from_json(share) for e, share in values.get("csat", {}).items()}
            return cls(
                _from_json(values["pacc"]),
                cacc,
                _from_json(values["csec_self"]),
                csec_qll,
                values.get("rmse"),
                {e: share for e, share in csat.items() if share is not None},
                _from_json(values.get("chance")),
                values.get("r2"),
                _from_json(values.get("missed")),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                "these are not figures of a network",
                expected="pacc, cacc, csec_self and csec_qll with good and total",
                found=str(error) or "something else",
                fix="run qll evaluate again",
            ) from error


def _to_json(share: Share | None) -> dict[str, float | int | None] | None:
    if share is None:
        return None
    found: dict[str, float | int | None] = {
        "good": share.good,
        "total": share.total,
        "share": share.value if share.total else None,
    }
    return {**found, "vacuous": share.vacuous} if share.vacuous else found


def _from_json(value: Any) -> Share | None:
    if value is None:
        return None
    return Share(int(value["good"]), int(value["total"]), int(value.get("vacuous", 0)))


def chance_accuracy(labels: Tensor, *, task: str = "single-label") -> Share:
    """PAcc of the best answer that looks at no image: the commonest class; of multi-label images,
    for every label what is commoner, to have it or not.

    >>> str(chance_accuracy(torch.tensor([3, 3, 1, 0])))
    '50.0 %'
    """
    if task == "single-label":
        counts = torch.bincount(labels.long()) if len(labels) else labels.new_zeros(1)
        return Share(int(counts.max()), len(labels))
    ones = labels.bool().sum(0)
    return Share(int(torch.maximum(ones, len(labels) - ones).sum()), labels.numel())


def prediction_accuracy(
    model: nn.Module, x: Tensor, labels: Tensor, *, task: str = "single-label"
) -> Share:
    """PAcc: images classified right; of multi-label images, labels that are right (Hamming)."""
    total = Share(0, 0)
    with held_still(model), torch.no_grad():
        for rows in _batches(len(x)):
            y = run_model(model, x[rows])
            total += Share(*correct_predictions(y, labels[rows], task))
    return total


def regression_errors(model: nn.Module, x: Tensor, targets: Tensor) -> tuple[float, float]:
    """RMSE in the units of the targets, and R2: the mean over the targets of the share of their
    variance that is explained (NaN for targets that do not vary)."""
    wanted = targets.reshape(len(targets), -1).double()
    with held_still(model), torch.no_grad():
        parts = [run_model(model, x[rows]).double() - wanted[rows] for rows in _batches(len(x))]
    errors = torch.cat(parts) if parts else wanted
    if not len(errors):
        return math.nan, math.nan
    squares = (errors**2).mean(0)
    return float(squares.mean().sqrt()), float((1 - squares / wanted.var(0, correction=0)).mean())


def score(model: nn.Module, x: Tensor, labels: Tensor, *, task: str) -> float:
    """How well a network predicts, in one number of at most 1: PAcc, or R2 of a regression."""
    if task == "regression":
        return regression_errors(model, x, labels)[1]
    return prediction_accuracy(model, x, labels, task=task).value


def outputs_of(model: nn.Module, x: Tensor) -> Tensor:
    """All outputs, ``(count, outputs)``."""
    with held_still(model), torch.no_grad():
        parts = [run_model(model, x[rows]) for rows in _batches(len(x))]
    return torch.cat(parts) if parts else x.new_zeros(0, 1)


def constant_answer(y: Tensor, *, task: str) -> str | None:
    """What a network with outputs ``y`` always answers, whatever the input: a sentence, or None if
    it does not. A network that decides nothing obeys almost any rule."""
    if len(y) < 2:
        return None
    if task == "regression":
        spread = (y.amax(0) - y.amin(0)) / y.abs().amax(0).clamp(min=1e-12)
        if bool((spread > _CONSTANT).any()):
            return None
        return "it predicts " + ", ".join(f"{v:.4g}" for v in y.mean(0).tolist())
    decisions = y.argmax(1, keepdim=True) if task == "single-label" else y > 0
    if bool((decisions != decisions[0]).any()):
        return None
    if task == "single-label":
        return f"it answers class {int(decisions[0])}"
    return "it answers " + ", ".join("yes" if d else "no" for d in decisions[0].tolist())


def constraint_accuracy(
    model: nn.Module,
    prop: Property,
    x: Tensor,
    labels: Tensor | None,
    *,
    samples: int = 1,
    seed: int = 0,
) -> Share:
    """CAcc: points of the regions that satisfy the property, ``samples`` for each: uniform in the
    ball, then moved into the valid range, so that half of the pixels that are 0 stay 0."""
    generator = torch.Generator(device=x.device).manual_seed(seed)
    good = vacuous = 0
    with held_still(model), torch.no_grad():
        for _ in range(samples):
            for rows in _batches(len(x)):
                x0, own = x[rows], None if labels is None else labels[rows]
                margins = x0.new_full((len(x0),), math.inf)
                for rule, at in turns(prop, x0):
                    part = None if own is None else own[at]
                    margins[at] = _sampled_margins(model, rule, x0[at], part, generator)
                nothing = int(_vacuous(margins).sum())
                good += int((margins >= 0).sum()) - nothing
                vacuous += nothing
    return Share(good, samples * len(x) - vacuous, vacuous)


def _sampled_margins(
    model: nn.Module,
    prop: Property,
    x0: Tensor,
    labels: Tensor | None,
    generator: torch.Generator,
) -> Tensor:
    region = Region.of(prop, x0)
    points = region.sample(generator, search_box(prop, region, own=True).ends)
    y0 = run_model(model, x0) if "y0" in prop.sources else None
    others = other_points(model, prop, points, x0=x0, y0=y0)
    return prop.margin(run_model(model, points["x"]), labels=labels, **others)


def _vacuous(margins: Tensor) -> Tensor:
    """Outputs are finite, so only a formula that the labels made true has a margin without end."""
    return margins == torch.inf


def vacuous_labels(prop: Property, labels: Tensor, outputs: int, shape: tuple[int, ...]) -> Tensor:
    """Data points (count,) of which the property says nothing, by their labels alone."""
    if not prop.uses_labels:
        return torch.zeros(len(labels), dtype=torch.bool)
    patterns, place = torch.unique(labels, dim=0, return_inverse=True)
    count = len(patterns)
    at = {name: torch.zeros(count, *shape) for name in prop.sources & {"x", "x0", "x2"}}
    at |= {name: torch.zeros(count, outputs) for name in prop.sources & {"y0", "y2"}}
    return _vacuous(prop.margin(torch.zeros(count, outputs), labels=patterns, **at))[place]


def is_vacuous(verdict: Mapping[str, Any]) -> bool:
    """By a verdict's record; those from before vacuity was kept name the stage that saw it."""
    trivial = verdict.get("stage") == "trivial" and verdict.get("status") == "verified"
    return bool(verdict.get("vacuous", trivial))


def tally(verdicts: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many of each status; ``vacuous`` are among the verified."""
    rows = list(verdicts)
    statuses = [str(row["status"]) for row in rows]
    counts = {status: statuses.count(status) for status in ("verified", "falsified", "unknown")}
    return {**counts, "vacuous": sum(map(is_vacuous, rows))}


def proved_share(verdicts: Iterable[Mapping[str, Any]]) -> Share:
    """CSat of recorded verdicts."""
    rows = list(verdicts)
    found = tally(rows)
    vacuous = found["vacuous"]
    return Share(found["verified"] - vacuous, len(rows) - vacuous, vacuous)


def constraint_security(
    model: nn.Module,
    prop: Property,
    x: Tensor,
    labels: Tensor | None,
    *,
    logic: Logic | str,
    attack: Attack,
    judge: Property | None = None,
    seed: int = 0,
    engine: Engine = "auto",
    on_part: Callable[[int], None] = lambda done: None,
) -> Share:
    """CSec: regions in which the attack, led by ``prop`` in ``logic``, finds no violation of
    ``judge`` (default: ``prop``)."""
    falsified = vacuous = 0
    for number, rows in enumerate(_batches(len(x))):
        own = None if labels is None else labels[rows]
        found = attack(
            model,
            prop,
            x[rows],
            own,
            logic=logic,
            judge=judge,
            seed=seed + number,
            engine=engine,
        )
        falsified += int(found.falsified.sum())
        vacuous += int(_vacuous(found.margins).sum())
        on_part(rows.stop)
    return Share(len(x) - falsified - vacuous, len(x) - vacuous, vacuous)


def missed_regions(
    model: nn.Module,
    prop: Property,
    x: Tensor,
    labels: Tensor | None,
    *,
    logic: Logic | str,
    attack: Attack,
    judge: Property | None = None,
    seed: int = 0,
    engine: Engine = "auto",
) -> Share | None:
    """Of the regions that the attack leaves, those in which it finds a violation once it is kept to
    half of epsilon: there the network misleads it, and CSec is too high by as much at least. None
    for a property of several clauses or without an epsilon."""
    judge = prop if judge is None else judge
    sized = all("epsilon" in {p.name for p in r.specification.parameters} for r in (prop, judge))
    if not sized or clauses(judge) != (judge,) or not len(x):
        return None
    options: dict[str, Any] = {"logic": logic, "seed": seed, "engine": engine}
    found = attack(model, prop, x, labels, judge=judge, **options)
    near = prop.with_parameters(epsilon=prop.value_of("epsilon") / 2)
    points = attack.find(model, near, x, labels, **options)
    with held_still(model), torch.no_grad():
        y0 = run_model(model, x) if "y0" in judge.sources else None
        others = other_points(model, judge, points, x0=x, y0=y0)
        margins = judge.margin(run_model(model, points["x"]), labels=labels, **others)
    violated = (margins < 0) & Region.of(judge, x).contains(points)
    left = ~found.falsified & ~_vacuous(found.margins)
    return Share(int((violated & left).sum()), int(left.sum()))


def evaluate(
    model: nn.Module,
    prop: Property,
    x: Tensor,
    labels: Tensor,
    *,
    attack: Attack,
    logic: Logic | str | None,
    oracle: Logic | str = "qll:5",
    attacked: Property | None = None,
    task: str = "single-label",
    samples: int = 1,
    seed: int = 0,
    engine: Engine = "auto",
    csat: Satisfaction | None = None,
    watch: Watch = unwatched,
) -> Evaluation:
    """All figures. ``logic`` is the run's own (None: a baseline, which has no self oracle);
    ``attacked`` the form of the formula that leads the attacks, judged by ``prop``; ``csat`` asks a
    verifier."""
    leading = prop if attacked is None else attacked

    def security(led_by: Logic | str, figure: str) -> Share:
        watch(figure, 0, len(x))
        return constraint_security(
            model,
            leading,
            x,
            labels,
            logic=led_by,
            attack=attack,
            judge=prop,
            seed=seed,
            engine=engine,
            on_part=lambda done: watch(figure, done, len(x)),
        )

    few = slice(0, _FEW)
    some = None if labels is None else labels[few]
    missed = missed_regions(
        model, leading, x[few], some, logic=oracle, attack=attack, judge=prop, seed=seed,
        engine=engine,
    )  # fmt: skip
    regression = task == "regression"
    rmse, r2 = regression_errors(model, x, labels) if regression else (None, None)
    return Evaluation(
        pacc=None if regression else prediction_accuracy(model, x, labels, task=task),
        cacc=constraint_accuracy(model, prop, x, labels, samples=samples, seed=seed),
        csec_self=None if logic is None else security(logic, "CSec (self)"),
        csec_qll=security(oracle, "CSec (QLL)"),
        rmse=rmse,
        r2=r2,
        csat={} if csat is None else csat(model),
        chance=None if regression else chance_accuracy(labels, task=task),
        missed=missed,
    )


def constraint_satisfaction(
    prop: Property,
    x: Tensor,
    labels: Tensor,
    *,
    timeout: float = 10.0,
    jobs: int = 1,
    watch: Watch = unwatched,
) -> Satisfaction:
    """CSat at the property's epsilon and at half of it: regions that are proved and whose proof the
    independent checker confirms. What stays undecided counts as not proved."""

    def ask(model: nn.Module) -> Mapping[str, Share]:
        from qll.verify.api import verify

        epsilon = prop.value_of("epsilon")
        found = {}
        for size in (epsilon, epsilon / 2):
            figure, done = f"CSat at {size:.3g}", count()
            watch(figure, 0, len(x))
            verdicts = verify(
                prop.with_parameters(epsilon=size),
                model.eval(),
                x,
                labels,
                certified=True,
                timeout=timeout,
                jobs=jobs,
                on_verdict=lambda *_, figure=figure, done=done: watch(
                    figure, next(done) + 1, len(x)
                ),
            )
            found[f"{size:g}"] = proved_share(verdict.as_json() for verdict in verdicts)
        return found

    return ask


def _batches(count: int) -> Iterator[slice]:
    for first in range(0, count, BATCH):
        yield slice(first, min(first + BATCH, count))
