"""What a verifier tells the next round of training: regions still open, and points that violate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from qll.data.base import DataSet
from qll.errors import RunError
from qll.files import write_atomically
from qll.logics.base import Logic
from qll.property import Property
from qll.training.loss import PropertyTerm, property_term
from qll.training.pairs import in_steps, may_meet, spread
from qll.training.streams import generator

FILE = "feedback.safetensors"
# How often an open region's image comes in an epoch beside its own turn, and the most witnesses in
# a batch, as a share of it: enough to matter, not enough to drown the data.
REPEATS = 2
WITNESS_SHARE = 0.25


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
        x0 = x0.to(device)
        if self.seconds is not None:
            points["x2"] = self.seconds[chosen].to(device)
            if may_meet(prop, x0):
                points, prop = spread(prop, points, x0, draw), in_steps(prop, x0)
        return property_term(model, prop, points, x0=x0, labels=labels.to(device), logic=logic)

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
