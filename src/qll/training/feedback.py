"""What a verifier tells the next round of training: regions still open, and points that violate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from qll.attacks.problem import Points
from qll.data.base import DataSet
from qll.errors import RunError
from qll.files import write_atomically
from qll.logics.base import Logic
from qll.property import Property
from qll.regions import Region
from qll.regions.clauses import clauses
from qll.training.loss import PropertyTerm, property_term, together
from qll.training.pairs import in_steps, may_meet, spread
from qll.training.streams import generator

FILE = "feedback.safetensors"
# How often an open region's image comes in an epoch beside its own turn, and the most witnesses in
# a batch, as a share of it: enough to matter, not enough to drown the data.
REPEATS = 2
WITNESS_SHARE = 0.25
# Of the size of an input: what a witness may be off by.
_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class Feedback:
    """``rows`` of the training split that were not proved; ``witnesses`` (k, *input), violating
    points of the regions around the training rows ``sources`` (k,), and of a rule over two points
    the ``seconds`` (k, *input)."""

    rows: Tensor
    witnesses: Tensor
    sources: Tensor
    seconds: Tensor | None = None

    def order(self, rows: Tensor) -> Tensor:
        """The rows of an epoch, open regions more than once."""
        return torch.cat((rows, self.rows.repeat(REPEATS)))

    def term(
        self,
        model: nn.Module,
        prop: Property,
        logic: Logic,
        data: DataSet,
        *,
        batch: int,
        seed: int,
        place: tuple[int, int],
    ) -> PropertyTerm | None:
        """The property at some of the witnesses."""
        count = min(len(self.witnesses), max(int(batch * WITNESS_SHARE), 1))
        if not count:
            return None
        draw = generator(seed, "witness", *place)
        chosen = torch.randperm(len(self.witnesses), generator=draw)[:count]
        x0, labels = data.train.batch(self.sources[chosen])
        device = next(model.parameters()).device
        points = {"x": self.witnesses[chosen].to(device)}
        x0, labels = x0.to(device), labels.to(device)
        if self.seconds is not None:
            points["x2"] = self.seconds[chosen].to(device)
        found = []
        for rule in clauses(prop):
            at, near = _in_region(rule, prop, points, x0), rule
            if not len(at):
                continue
            own = {name: p[at] for name, p in points.items()}
            if may_meet(rule, x0):
                own, near = spread(rule, own, x0[at], draw), in_steps(rule, x0)
            found.append(property_term(model, near, own, x0=x0[at], labels=labels[at], logic=logic))
        return together(found, x0) if found else None

    def save(self, folder: Path) -> None:
        import safetensors.torch

        held = {"rows": self.rows, "witnesses": self.witnesses, "sources": self.sources}
        if self.seconds is not None:
            held["seconds"] = self.seconds
        write_atomically(
            folder / FILE, safetensors.torch.save({k: t.contiguous() for k, t in held.items()})
        )

    @classmethod
    def load(cls, folder: Path) -> Feedback | None:
        """None where a run has none."""
        import safetensors
        import safetensors.torch

        path = folder / FILE
        if not path.is_file():
            return None
        try:
            held = safetensors.torch.load(path.read_bytes())
            return cls(held["rows"], held["witnesses"], held["sources"], held.get("seconds"))
        except (safetensors.SafetensorError, KeyError, OSError) as error:
            raise RunError(
                "the feedback of this round is damaged",
                where=str(path),
                expected="rows, witnesses and sources as safetensors",
                found=str(error) or type(error).__name__,
                fix="delete the round's folder and resume: it is trained again",
            ) from error


def _in_region(rule: Property, prop: Property, points: Points, x0: Tensor) -> Tensor:
    """Witnesses that a rule speaks of: all of them, where it is the only one. A witness is rounded,
    and may lie on the edge of its region."""
    rows = torch.arange(len(x0), device=x0.device)
    if rule is prop:
        return rows
    region = Region.of(rule, x0)
    width = (region.upper - region.lower).flatten(1)
    room = _ROUNDING * float(torch.maximum(width, region.upper.flatten(1).abs()).max())
    return rows[region.contains(points, room)]
