"""The network that a question is about, and its witnesses as points of the inputs' shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from qll.formula.asked import Asked
from qll.networks import Network
from qll.networks.joint import Joint
from qll.verify.moved import Moved, moved
from qll.verify.order import seen_through
from qll.verify.query import Query
from qll.verify.verdict import Verdict

Products = dict[tuple[int, ...], Joint]


def network_of(
    asked: Asked,
    runs: Callable[[int], Sequence[Network]],
    known: Products,
    arithmetic: str | None,
) -> Network | Joint:
    """Of the variables: the network itself, if they are its inputs. ``runs`` gives so many
    networks, one for each point; what does not depend on the data point is ``known`` afterwards."""
    home = asked.ties.home
    networks = runs(asked.points) if asked.image is not None or home not in known else ()
    if asked.points == 1 and asked.ties.is_trivial:
        networks = [seen_through(networks[0], asked.form, arithmetic)]
    if asked.image is not None:
        return moved(networks, asked.image, asked.ties.count, asked.names)
    if asked.points == 1 and asked.ties.is_trivial:
        return networks[0]
    if home not in known:
        known[home] = Joint(tuple(networks), home, asked.ties.count)
    return known[home]


def shaped(query: Query, verdict: Verdict, shape: tuple[int, ...]) -> Verdict:
    """Provers work on flat vectors of variables; whoever asked gave points of another shape."""
    network: Any = query.network
    if verdict.witness is None:
        return verdict
    if not isinstance(network, Joint):
        return replace(verdict, witness=verdict.witness.reshape(shape))
    first, *rest = network.expand(verdict.witness)
    second = rest[0].reshape(shape) if rest else None
    notes = verdict.notes
    if isinstance(network, Moved):
        moving = zip(network.names, verdict.witness.tolist(), strict=True)
        said = [f"{name} = {value:.6g}" for name, value in moving if "[" not in name]
        if said:
            notes = (*notes, f"the witness is the image of {', '.join(said)}")
    return replace(verdict, witness=first.reshape(shape), witness2=second, notes=notes)
