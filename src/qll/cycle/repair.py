"""Repair: an existing network that violates a property, moved as little as it takes to prove it.

Rounds of fine-tuning and proof. The loss is the distance to the original's outputs where the
original obeys and, where there are some, at your data, plus the property at attacked points and at
every witness that the verifier found, as a hinge: what is satisfied by a margin pulls no more. When
the proof succeeds, the way back to the original weights is halved, again and again, for the least
move that is still proved.

out/
  repair.json       what was asked, every round, what it cost
  model.onnx        the proved network
  certificates/     its evidence
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from qll.attacks.apgd import AutoPGD
from qll.attacks.problem import Points, held_still, other_points
from qll.audit import audit
from qll.cycle.anchor import Anchor, Kept
from qll.cycle.budget import Budget
from qll.data.base import DataSet
from qll.errors import InputError, RunError
from qll.files import owned, write_atomically, write_json
from qll.formula.normal import substitute
from qll.logics.base import Logic
from qll.logics.base import logic as read_logic
from qll.networks import Network
from qll.networks.trainable import to_module
from qll.property import Property
from qll.regions import Region
from qll.training.loss import property_term
from qll.training.streams import generator, stream_seed
from qll.verify.api import Problem, decide_all
from qll.verify.certificate import SUFFIX
from qll.verify.possible import possible
from qll.verify.verdict import Status, Verdict

Parameters = dict[str, Tensor]
# Witnesses in a step, and the points at which agreement is measured.
_WITNESSES = 64
# Checking may take this many times the proof's own time (measured on ACAS Xu: about 5).
_CHECKING = 6.0
_JUDGED = 100_000
# Points of the box at which it is asked whether any outputs satisfy the property.
_LOOKED_AT = 200
# Spread of a single output, relative to its size, below which it is one number.
_FLAT = 1e-4
# Hardness of the property's loss, in units of the outputs' own spread.
_HARDNESS = 20.0


class Repair(BaseModel):
    """``samples`` of the property's own box serve as data; ``decision`` says how the outputs are
    read (ACAS Xu: the least). ``margin`` and ``anchor`` are in units of the outputs' spread and of
    the weights' norm. ``keep`` is the weight of your data, where there are some, and ``learn`` that
    of their labels beside the original's outputs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    budget: float = Field(default=1800.0, gt=0)
    timeout: float = Field(default=300.0, gt=0)
    samples: int = Field(default=20_000, ge=100)
    steps: int = Field(default=300, ge=1)
    batch: int = Field(default=256, ge=8)
    learning_rate: float = Field(default=1e-3, gt=0)
    margin: float = Field(default=0.3, ge=0)
    weight: float = Field(default=3.0, gt=0)
    anchor: float = Field(default=0.1, ge=0)
    keep: float = Field(default=2.0, ge=0)
    learn: float = Field(default=0.5, ge=0)
    halvings: int = Field(default=4, ge=0)
    most_rounds: int = Field(default=20, ge=1)
    decision: Literal["max", "min"] = "max"
    jobs: int = Field(default=1, ge=1)
    seed: int = Field(default=0, ge=0)


class RepairResult(BaseModel):
    """``moved`` is the distance of the weights relative to their norm, ``agreement`` the share of
    equal decisions where the original obeys the property, ``violated_before`` the share of sampled
    points at which it did not. ``checker`` says whether the independent checker confirmed the
    proof, refused it (then the status is ``unknown``), or was not asked for want of time. ``kept``
    has the figures on your data."""

    status: str
    checker: Literal["confirmed", "refused", "not asked"]
    rounds: int
    step_back: float
    moved: float
    agreement: float | None  # None: the original obeys at no sampled point
    output_change: float | None
    violated_before: float
    violated_after: float
    seconds: float
    history: tuple[dict[str, Any], ...]
    kept: Kept | None = None
    constant: str | None = None  # what the network always answers, and the original did not

    @property
    def is_success(self) -> bool:
        """Proved, and still a network that decides something."""
        return self.status == "verified" and self.constant is None


@dataclass(frozen=True, eq=False)
class _Data:
    """Samples of the region, the original's outputs there, and where it obeys."""

    points: Points
    outputs: Tensor
    obeys: Tensor
    scale: float

    @property
    def x(self) -> Tensor:
        return self.points["x"]


def repair(
    prop: Property,
    network: Network,
    config: Repair | None = None,
    out: str | Path | None = None,
    *,
    data: DataSet | None = None,
    on_round: Callable[[dict[str, Any]], None] | None = None,
) -> tuple[RepairResult, bytes]:
    """The result, and the ONNX of the network: proved iff ``status`` is ``verified``. ``data`` are
    what it should go on to predict."""
    config = config or Repair()
    _check_box(prop)
    if out is not None:
        _check_new(Path(out))
    work = _Repair(prop, network, config, None if out is None else Path(out), on_round, data)
    work.check_possible()
    if out is None:
        return work.run()
    Path(out).mkdir(parents=True, exist_ok=True)
    with owned(Path(out)):
        return work.run()


def _check_new(folder: Path) -> None:
    """Evidence of another network beside this one's would be read as this one's."""
    for name in ("repair.json", "cycle.json", "certificates"):
        if (folder / name).exists():
            raise RunError(
                "this folder holds results already",
                where=str(folder),
                expected="a new folder: a repair is not resumed",
                found=name,
                fix="choose another folder with --out",
            )


def _check_box(prop: Property) -> None:
    if prop.uses_labels or prop.sources & {"x0", "y0"} or "x0" in _region_sources(prop):
        raise InputError(
            f"property '{prop.name}' speaks of data points",
            expected="a property of one box, such as 'forall x in box([...], [...]): ...'",
            found="labels, or a ball around a data point",
            fix="state it for a box of inputs; with labels or a ball, train it with --data NAME",
        )


def _region_sources(prop: Property) -> set[str]:
    from qll.formula.nodes import Ball

    parts = [part for binder in prop.binders for part in binder.parts]
    balls = [part for part in parts if isinstance(part, Ball) and part.centre == "x0"]
    return {"x0"} if balls else set()


class _Repair:
    def __init__(
        self,
        prop: Property,
        network: Network,
        config: Repair,
        out: Path | None,
        on_round: Callable[[dict[str, Any]], None] | None,
        data: DataSet | None,
    ) -> None:
        self.prop, self.network, self.config, self.out = prop, network, config, out
        self.on_round = on_round
        self.original = to_module(network).eval()
        self.model = to_module(network).eval()
        self.start = _parameters(self.original)
        self.norm = math.sqrt(sum(float((p**2).sum()) for p in self.start.values()))
        self.budget = Budget(config.budget)
        self.data = self._sample(config.samples, "samples")
        self.logic: Logic = read_logic("qll").harden(_HARDNESS / self.data.scale)
        self.anchor = None if data is None else Anchor(data, self.original, network)
        self.witnesses: list[Points] = []
        self.history: list[dict[str, Any]] = []
        self.proofs = 0
        self.proof_seconds = 0.0
        self.evidence: Path | None = None  # of the last network that was proved
        self.proved: tuple[bytes, Parameters] | None = None

    # --- data ---

    def _sample(self, count: int, stream: str) -> _Data:
        shape = self.network.input_shape
        region = Region.of(self.prop, torch.zeros(count, *shape))
        draw = generator(self.config.seed, stream)
        points = region.sample(draw)
        with torch.no_grad():
            y = self.original(points["x"])
            obeys = self.prop.holds(y, **self._others(self.original, points))
        scale = float(y.std(0).mean()) or 1.0
        return _Data(points, y, obeys, scale)

    def _others(self, model: nn.Module, points: Points) -> Points:
        return other_points(model, self.prop, points, x0=points["x"], y0=None)

    def check_possible(self) -> None:
        """What no network can satisfy at some point of the box is named, not trained for."""
        if "y2" in self.prop.sources:  # two runs of one network: no outputs alone decide it
            return
        shape, outputs = self.network.input_shape, self.network.output_size
        form = self.prop.hard_form(None, outputs=outputs, inputs=tuple(shape))
        points = self.data.x[: _LOOKED_AT if "x" in self.prop.sources else 1]
        for point in points.double().flatten(1).numpy():
            if not possible(substitute(form, {"x": point}), outputs):
                raise RunError(
                    "this property cannot be met",
                    where=self.prop.name,
                    expected="outputs that satisfy it at every point of the box",
                    found="a contradiction: no outputs satisfy it"
                    + (" at " + np.array2string(point, precision=4) if len(points) > 1 else ""),
                    fix="look at the formula with 'qll show'",
                )

    # --- the rounds ---

    def run(self) -> tuple[RepairResult, bytes]:
        verdict = self._verify(self._export())
        self._note(0, verdict)
        number = 0
        while verdict.status is not Status.VERIFIED and number < self.config.most_rounds:
            if self.budget.left <= 0:
                break
            if verdict.witness is not None:
                self.witnesses.append(self._witness(verdict))
            number += 1
            self._tune(number)
            verdict = self._verify(self._export())
            self._note(number, verdict)
        share = 1.0
        if verdict.status is Status.VERIFIED and number:
            share = self._step_back()
        return self._finish(verdict, number, share)

    def _witness(self, verdict: Verdict) -> Points:
        found = {"x": verdict.witness, "x2": getattr(verdict, "witness2", None)}
        shape = (1, *self.network.input_shape)
        return {
            name: torch.from_numpy(point).float().reshape(shape)
            for name, point in found.items()
            if point is not None
        }

    def _tune(self, number: int) -> None:
        config, data = self.config, self.data
        attack = AutoPGD(steps=12, restarts=0)
        optimiser = torch.optim.Adam(self.model.parameters(), lr=config.learning_rate)
        draw = generator(config.seed, "batches", number)
        named = dict(self.model.named_parameters())
        for step in range(config.steps):
            if self.budget.left <= 0:
                break
            for group in optimiser.param_groups:  # to rest at the end of each round
                group["lr"] = config.learning_rate * (1 - step / config.steps)
            rows = torch.randint(len(data.x), (config.batch,), generator=draw)
            x = data.x[rows]
            points = attack.find(
                self.model, self.prop, x, None, logic=self.logic,
                seed=stream_seed(config.seed, "attack", number, step),
            )  # fmt: skip
            points = self._with_witnesses(points, draw)
            term = property_term(
                self.model, self.prop, points, x0=points["x"], labels=None, logic=self.logic
            )
            hinge = torch.relu(term.losses / data.scale + config.margin).mean()
            kept = data.obeys[rows]
            change = (self.model(x) - data.outputs[rows])[kept] / data.scale
            imitation = (change**2).mean() if bool(kept.any()) else change.sum()
            moved = sum(((named[k] - p) ** 2).sum() for k, p in self.start.items()) / self.norm**2
            loss = imitation + config.weight * hinge + config.anchor * moved
            if self.anchor is not None:
                kept_data = self.anchor.loss(self.model, config.batch, draw, config.learn)
                loss = loss + config.keep * kept_data
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()

    def _with_witnesses(self, points: Points, draw: torch.Generator) -> Points:
        if not self.witnesses:
            return points
        count = len(self.witnesses)
        rows = torch.randint(count, (min(_WITNESSES, 8 * count),), generator=draw)
        return {
            name: torch.cat((point, torch.cat([w[name] for w in self.witnesses])[rows]))
            for name, point in points.items()
        }

    # --- proof ---

    def _export(self) -> bytes:
        from qll.networks.onnx_writer import onnx_bytes

        return onnx_bytes(self.model.eval(), input_shape=self.network.input_shape)

    def _verify(self, source: bytes) -> Verdict:
        """The verdict; the evidence of the last proof is kept beside it."""
        self.proofs += 1
        folder = None if self.out is None else self.out / f"proof-{self.proofs:02d}"
        verdict = self._decide(source, folder)
        stale: Path | None = folder
        if verdict.status is Status.VERIFIED:
            # The very bytes and weights: computed again, they may differ in their last bits.
            self.proved = source, _parameters(self.model)
            self.proof_seconds = verdict.seconds
            stale, self.evidence = self.evidence, folder
        if stale is not None:
            shutil.rmtree(stale, ignore_errors=True)
        return verdict

    def _decide(self, source: bytes, certificates: Path | None) -> Verdict:
        problem = Problem.of(
            self.prop,
            source,
            np.zeros((1, *self.network.input_shape)),
            timeout=max(min(self.config.timeout, self.budget.left), 1.0),
            certificates=certificates,
            seed=self.config.seed,
        )
        return next(iter(decide_all(problem, [0], jobs=1)))[1]

    def _step_back(self) -> float:
        """The least part of the way from the original weights that is still proved."""
        end = _parameters(self.model)
        proved, refuted = 1.0, 0.0
        for _ in range(self.config.halvings):
            # A proof near the edge is dearer than the last one; half the rest is left for others.
            if self.budget.left < 2.0:
                break
            middle = (proved + refuted) / 2
            self._place(end, middle)
            if self._verify(self._export()).status is Status.VERIFIED:
                proved = middle
            else:
                refuted = middle
        return proved

    @torch.no_grad()
    def _place(self, end: Parameters, share: float) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.copy_(self.start[name] + share * (end[name] - self.start[name]))

    # --- records ---

    def _note(self, number: int, verdict: Verdict) -> None:
        row = {
            "round": number,
            "status": str(verdict.status),
            "stage": verdict.stage,
            "nodes": verdict.nodes,
            "proof_seconds": round(verdict.seconds, 3),
            "moved": self._moved(),
            "witnesses": len(self.witnesses),
            "seconds": round(self.budget.used, 3),
        }
        self.history.append(row)
        if self.on_round is not None:
            self.on_round(row)

    @torch.no_grad()
    def _moved(self) -> float:
        named = dict(self.model.named_parameters())
        total = sum(float(((named[k] - p) ** 2).sum()) for k, p in self.start.items())
        return math.sqrt(total) / self.norm

    def _check(self, source: bytes) -> Literal["confirmed", "refused", "not asked"]:
        """The prover is not believed, where there is time: checking a deep tree takes longer than
        finding it."""
        paths = [] if self.evidence is None else sorted(self.evidence.glob(f"*{SUFFIX}"))
        if not paths or self.budget.left < _CHECKING * self.proof_seconds:
            return "not asked"
        good = all(audit(path.read_bytes(), source).confirmed for path in paths)
        return "confirmed" if good else "refused"

    def _decisions(self, y: Tensor) -> Tensor:
        """The output that wins; of a single logit, its sign."""
        if y.shape[1] == 1:
            return y[:, 0] > 0
        return y.argmax(1) if self.config.decision == "max" else y.argmin(1)

    def _agreement(self, same: Tensor, before: Tensor) -> float | None:
        """None where there was nothing to agree with, or an output that is no decision."""
        single = self.network.output_size == 1
        if not len(same) or (single and bool((before == before[0]).all())):
            return None
        return float(same.float().mean())

    @torch.no_grad()
    def _finish(self, verdict: Verdict, rounds: int, share: float) -> tuple[RepairResult, bytes]:
        source = self._export()
        if self.proved is not None:
            source, weights = self.proved
            for name, parameter in self.model.named_parameters():
                parameter.copy_(weights[name])
        if self.out is not None and self.evidence is not None:
            self.evidence = self.evidence.rename(self.out / "certificates")
        checker = self._check(source)
        fresh = self._sample(_JUDGED, "agreement")
        with held_still(self.model):
            y = self.model(fresh.x)
        before, decided = self._decisions(fresh.outputs), self._decisions(y)
        same = (before == decided)[fresh.obeys]
        change = (y - fresh.outputs)[fresh.obeys].abs()
        after = self.prop.holds(y, **self._others(self.model, fresh.points))
        kept = None if self.anchor is None else self.anchor.kept(self.model)
        constant = None if kept is None else kept.constant
        # One answer is no collapse where the rule asks for just that: the original gave one, too,
        # wherever it obeyed.
        own = fresh.obeys if bool(fresh.obeys.any()) else torch.ones_like(fresh.obeys)
        varied = not _is_flat(fresh.outputs[own], before[own])
        if constant is None and varied and _is_flat(y, decided):
            constant = "it answers the same at all sampled points of the region"
        result = RepairResult(
            status="unknown" if checker == "refused" else str(verdict.status),
            checker=checker,
            rounds=rounds,
            step_back=share,
            moved=self._moved(),
            agreement=self._agreement(same, before),
            output_change=float(change.mean() / fresh.scale) if len(same) else None,
            violated_before=float((~fresh.obeys).float().mean()),
            violated_after=float((~after).float().mean()),
            seconds=self.budget.used,
            history=tuple(self.history),
            kept=kept,
            constant=constant,
        )
        if self.out is not None:
            write_atomically(self.out / "model.onnx", source)
            write_json(
                self.out / "repair.json",
                {
                    "asked": self.config.model_dump(mode="json"),
                    "property": self.prop.name,
                    "network_sha256": self.network.sha256,
                    "result": result.model_dump(mode="json"),
                    "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                },
            )
        return result, source


def _is_flat(y: Tensor, decisions: Tensor) -> bool:
    """One answer everywhere: the same decision, or, of one output, hardly any spread."""
    if y.shape[1] == 1:
        return bool(y.std() <= _FLAT * y.abs().mean())
    return bool((decisions == decisions[0]).all())


def _parameters(model: nn.Module) -> Parameters:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def check_proved(result: RepairResult) -> None:
    """For scripts: a network that is not proved is not a repaired one."""
    if not result.is_success:
        raise RunError(
            "the network is not repaired",
            expected="a proof of the property, of a network that decides something",
            found=result.constant or f"{result.status} after {result.rounds} rounds",
            fix="raise --budget or --timeout"
            if result.constant is None
            else "pass --data: what the network should go on to predict",
        )
