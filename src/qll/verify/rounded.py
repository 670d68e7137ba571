"""Splits of neurons where a ball cuts the box: every query has bounds of its own ball."""

from __future__ import annotations

from typing import Any

from qll.bounds.graph import GraphBounder
from qll.bounds.round import RoundBounder, RoundCrown
from qll.networks.relu_form import ReluForm
from qll.verify.proof import Outcome, Search
from qll.verify.prover import NeuronProver
from qll.verify.query import Query


class RoundProver(NeuronProver):
    def __init__(self, form: ReluForm) -> None:
        self.plain = GraphBounder(form)
        super().__init__(self.plain)

    def prove(self, query: Query, deadline: float, search: Search, **limits: Any) -> Outcome:
        self.bounder, ball = self.plain, query.ball
        if ball is not None:
            self.bounder = RoundBounder(RoundCrown.of(self.plain.crown, ball))
        return super().prove(query, deadline, search, **limits)
