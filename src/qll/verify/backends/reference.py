"""The same search on the torch reference bounds: on a GPU where there is one, and a second opinion
that shares no kernel with `qll.verify.backends.bab`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from qll.bounds.graph import GraphBounder
from qll.verify.backend import BACKENDS, Budget
from qll.verify.backends.bab import BranchAndBound, Prover, splits_boxes
from qll.verify.boxes import BoxProver
from qll.verify.prover import NeuronProver
from qll.verify.query import Query
from qll.verify.verdict import Verdict


def choose_reference(query: Query) -> Prover:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if splits_boxes(query):
        return BoxProver(query.form, device=device, compiled=False)
    return NeuronProver(GraphBounder(query.form, device=device))


@BACKENDS.register("torch")
@dataclass
class TorchBranchAndBound(BranchAndBound):
    name: ClassVar[str] = "torch"
    choose: Callable[[Query], Prover] | None = choose_reference

    def run(self, queries: Sequence[Query], budget: Budget) -> list[Verdict]:
        return [replace(verdict, backend=self.name) for verdict in super().run(queries, budget)]
