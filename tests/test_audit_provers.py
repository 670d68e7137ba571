"""Provers that are wrong on purpose: whatever they 'prove' about a false claim is rejected.

Each variant breaks one thing of the real prover (a weight, a bias, a relaxation, a split, the
query) and is run on claims that are known to be false. Those it claims to have proved are written
as certificates for the false claim, and the checker must refuse every one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from audit_cases import Certified, certified
from verify_cases import chain_prover

from qll.networks.relu_form import FormLayer, ReluForm
from qll.verify import clock
from qll.verify import prover as module
from qll.verify.certificate import certify
from qll.verify.proof import Outcome, Taken
from qll.verify.prover import NeuronProver
from qll.verify.query import Query
from qll.verify.verdict import Status, Verdict

SECONDS = 0.12
Prove = Callable[[Query], Outcome]


def run(prover: NeuronProver, query: Query) -> Outcome:
    return prover.prove(query, clock.now() + SECONDS, lambda *_: None)


def dense(weight: Any) -> Any:
    return weight if isinstance(weight, np.ndarray) else weight.toarray()


# --- a wrong network ---

WEIGHTS: dict[str, Callable[[Any], Any]] = {
    "a tenth": lambda w: 0.1 * w,
    "half": lambda w: 0.5 * w,
    "zero": lambda w: 0.0 * w,
    "negated": lambda w: -w,
    "absolute": np.abs,
    "positive part": lambda w: np.maximum(w, 0),
    "negative part": lambda w: np.minimum(w, 0),
    "rows reversed": lambda w: w[::-1],
    "rows shifted": lambda w: np.roll(w, 1, axis=0),
    "last row for all": lambda w: np.repeat(w[-1:], len(w), axis=0),
    "even columns only": lambda w: w * (np.arange(w.shape[1]) % 2 == 0),
}
BIASES: dict[str, Callable[[Any], Any]] = {
    "missing": lambda b: 0 * b,
    "negated": lambda b: -b,
    "raised": lambda b: b + 1.0,
    "lowered": lambda b: b - 1.0,
    "shifted": lambda b: np.roll(b, 1),
    "tenfold": lambda b: 10 * b,
}


def wrong_forms(form: ReluForm) -> Iterator[tuple[str, ReluForm]]:
    for k, layer in enumerate(form.layers):
        for name, change in WEIGHTS.items():
            weight = dense(layer.terms[0][1])
            changed = FormLayer(layer.bias, ((k, np.ascontiguousarray(change(weight))),))
            yield f"weights of layer {k}: {name}", _with(form, k, changed)
        for name, change in BIASES.items():
            yield (
                f"bias of layer {k}: {name}",
                _with(form, k, replace(layer, bias=change(layer.bias))),
            )


def _with(form: ReluForm, k: int, layer: FormLayer) -> ReluForm:
    layers = tuple(layer if i == k else old for i, old in enumerate(form.layers))
    return ReluForm(form.input_shape, layers)


# --- a wrong bound ---

NODES: dict[str, Callable[[Any], Any]] = {
    "lower bounds 0": lambda n: replace(n, low=np.maximum(n.low, 0)),
    "upper bounds 0": lambda n: replace(n, high=np.minimum(n.high, 0)),
    "bounds half as wide": lambda n: replace(n, low=n.low / 2, high=n.high / 2),
    "bounds a tenth as wide": lambda n: replace(n, low=n.low / 10, high=n.high / 10),
    "lower bound as upper": lambda n: replace(n, high=n.low),
    "upper bound as lower": lambda n: replace(n, low=n.high),
    "objective halved": lambda n: replace(n, objective=n.objective / 2),
    "objective missing": lambda n: replace(n, objective=0 * n.objective),
    "objective negated": lambda n: replace(n, objective=-n.objective),
    "offset missing": lambda n: replace(n, offset=0 * n.offset),
    "offset too high": lambda n: replace(n, offset=n.offset + 3),
}
VALUES: dict[str, Callable[[Any], Any]] = {
    "negated": lambda v: -v,
    "absolute": np.abs,
    "raised by 1": lambda v: v + 1,
    "raised by 100": lambda v: v + 100,
    "the best of all": lambda v: np.full_like(v, np.max(v, initial=-np.inf)),
}


def with_evaluation(form: ReluForm, change: Callable[..., Any]) -> NeuronProver:
    prover = chain_prover(form)
    bounder: Any = prover.bounder
    honest = bounder.evaluate

    def evaluate(domains: Any, sizes: Any, **options: Any) -> Any:
        return change(honest, domains, sizes, **options)

    bounder.evaluate = evaluate
    return prover


# --- wrong splits: methods of the run ---


def _swapped(self: Any, node: Any, neuron: int) -> Any:
    below, above = CHILDREN(self, node, neuron)
    for child in (below, above):
        child.last = Taken(child.last.before, child.last.split, not child.last.above)
    return below, above


def _without_off(self: Any, nodes: Any, steps: int, **options: Any) -> Any:
    kept = REFUTE(self, nodes, steps, **options)
    return [n for n in kept if not isinstance(n.last, Taken) or n.last.above]


def _nothing_stays(self: Any, nodes: Any, steps: int, **options: Any) -> Any:
    REFUTE(self, nodes, steps, **options)
    self.proof.refuted.extend(n for n in nodes if n not in self.proof.refuted)
    return []


def _half_stays(self: Any, nodes: Any, steps: int, **options: Any) -> Any:
    kept = REFUTE(self, nodes, steps, **options)
    self.proof.refuted.extend(kept[::2])
    return kept[1::2]


def _empty_if_split(self: Any, nodes: Any, steps: int, **options: Any) -> Any:
    kept = REFUTE(self, nodes, steps, **options)
    return [n for n in kept if n.last is None]


CHILDREN, REFUTE = module.Run.children, module.Run.refute
SPLITS: dict[str, tuple[str, Any]] = {
    "swapped split": ("children", _swapped),
    "the inactive side forgotten": ("refute", _without_off),
    "every open node closed": ("refute", _nothing_stays),
    "every other open node closed": ("refute", _half_stays),
    "split nodes forgotten": ("refute", _empty_if_split),
}


def provers(c: Certified, monkeypatch: Any) -> Iterator[tuple[str, Prove]]:
    form = c.case.network.relu_form
    for name, wrong in wrong_forms(form):
        yield name, lambda q, wrong=wrong: run(chain_prover(wrong), q)
    for name, change in NODES.items():

        def on_nodes(honest: Any, nodes: Any, sizes: Any, change: Any = change, **o: Any) -> Any:
            return honest([change(n) for n in nodes], sizes, **o)

        yield name, lambda q, f=on_nodes: run(with_evaluation(form, f), q)
    for name, change in VALUES.items():

        def on_values(honest: Any, nodes: Any, sizes: Any, change: Any = change, **o: Any) -> Any:
            return change(honest(nodes, sizes, **o))

        yield f"bounds {name}", lambda q, f=on_values: run(with_evaluation(form, f), q)
    for name, (method, wrong_method) in SPLITS.items():

        def patched(q: Query, method: str = method, wrong_method: Any = wrong_method) -> Any:
            with monkeypatch.context() as patch:
                patch.setattr(module.Run, method, wrong_method)
                return run(chain_prover(form), q)

        yield name, patched
    for share in (0.0, 0.1, 0.5, 0.8):
        small = c.case.query(c.epsilon * share)
        yield f"{share} of the region", lambda q, small=small: run(chain_prover(form), small)
    if c.case.label is not None:
        y = form.forward(c.case.x0[None])[0]
        plain = c.case.prop.hard_form(int(np.argmin(y)), outputs=3, inputs=(1, 6, 6))
        flipped = type(plain)(tuple(_negated(part) for part in plain.parts))
        yield (
            "another property",
            lambda q: run(chain_prover(form), replace(q, condition=flipped)),
        )


def _negated(atom: Any) -> Any:
    return replace(atom, terms=tuple((s, -c) for s, c in atom.terms), constant=-atom.constant - 50)


def test_fifty_unsound_provers_are_all_rejected(monkeypatch: Any) -> None:
    fooled: set[str] = set()
    for c in certified():
        radius = min(1.0, 1.3 * c.false_epsilon)  # false with room: nothing near a tie
        query, subject = c.case.query(radius), c.case.subject(radius)
        for name, prove in provers(c, monkeypatch):
            if name in fooled:
                continue
            outcome = prove(query)
            if not outcome.proved:
                continue
            claimed = Verdict(Status.VERIFIED, outcome.stage, proof=outcome.proof)
            _, answer = certify(query, claimed, subject)  # asks the checker, in each precision
            assert not answer.confirmed, (name, radius)
            fooled.add(name)
    assert len(fooled) >= 50, (len(fooled), sorted(fooled))


def test_the_honest_prover_of_this_test_is_confirmed() -> None:
    """The machinery above rejects because the provers are wrong, not because it writes nonsense."""
    for c in certified():
        query, subject = c.case.query(0.9 * c.epsilon), c.case.subject(0.9 * c.epsilon)
        outcome = run(chain_prover(c.case.network.relu_form), query)
        assert outcome.proved
        honest = Verdict(Status.VERIFIED, outcome.stage, proof=outcome.proof)
        assert certify(query, honest, subject)[1].confirmed
