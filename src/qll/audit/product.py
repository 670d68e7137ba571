"""The network at two points at once, or of tied inputs, made by the checker from the user's file.

The state begins with the variables; every entry of x (and of x2) is one of them. Layer by layer the
neurons of the first run come first, then those of the second: beside each other, where the two
networks have the same activations, otherwise in layers of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qll.audit.exact import ONE, Affine, affine, identity
from qll.audit.network import Network
from qll.audit.operators import Rounded


def moved(networks: list[Network], image: Any, variables: int) -> Network:
    """``networks`` at entries that are affine in the variables: ``image`` holds a function of
    ``("x", variable)`` (`qll.formula.hard.Affine`) for each of them, x first, then x2."""
    entries = len(image)
    whole = networks[0]
    if len(networks) > 1:
        whole = product(networks, tuple(range(entries)), entries)
    terms = [((row, k), c) for row, form in enumerate(image) for (_, k), c in form.terms]
    constants = [form.constant for form in image]
    first = affine([place for place, _ in terms], [c for _, c in terms], constants)
    # Neurons keep their places in the state, after the variables in place of the entries.
    state = first.joined(identity(variables, sum(whole.widths[1:-1])))
    return Network((variables,), tuple(layer.after(state) for layer in whole.maps), whole.curves)


def product(networks: list[Network], home: tuple[int, ...], variables: int) -> Network:
    """``networks`` at entries ``home`` of the variables."""
    inputs, hidden = networks[0].widths[0], [len(network.curves) for network in networks]
    runs, depth = range(len(networks)), max(hidden)
    # Which layers of which runs stand beside each other: those of the same number, or each alone.
    groups = [[(n, k) for n in runs] for k in range(depth)]
    if any(network.curves != networks[0].curves for network in networks):
        groups = [[(n, k)] for k in range(depth) for n in runs if k < hidden[n]]
    places = [list(home[n * inputs :][:inputs]) for n in runs]  # of each run's state in that of all
    size = variables
    for group in groups:
        for n, k in group:
            width = networks[n].widths[k + 1]
            places[n] += range(size, size + width)
            size += width
    groups.append(list(enumerate(hidden)))  # the outputs
    maps = tuple(_beside([(networks[n].maps[k], places[n]) for n, k in group]) for group in groups)
    curves = tuple(networks[group[0][0]].curves[group[0][1]] for group in groups[:-1])
    return Network((variables,), maps, curves, _roundings(networks, places, groups))


def _beside(maps: Sequence[tuple[Affine, list[int]]]) -> Affine:
    """One map of each run, on the state of all."""
    rows, below = list[dict[int, int]](), list[int]()
    for each, place in maps:
        for row in each.rows:
            moved: dict[int, int] = {}
            for column, value in row.items():
                at = ONE if column == ONE else place[column]
                moved[at] = moved.get(at, 0) + value
            rows.append(moved)
        below += each.below
    return Affine(rows, below)


def _roundings(
    networks: list[Network], places: list[list[int]], groups: list[list[tuple[int, int]]]
) -> tuple[Rounded, ...] | None:
    """Each run rounds on its own, in whatever order. Of tied inputs the sizes are summed, as the
    terms are that they belong to: what cancels in the map does not cancel in a sum."""
    each = [network.roundings for network in networks if network.roundings is not None]
    if len(each) < len(networks):
        return None
    found = []
    for group in groups:
        some = [each[n][k] for n, k in group]
        counts = (np.concatenate([getattr(r, name) for r in some]) for name in ("count", "sums"))
        size = _beside([(each[n][k].size, places[n]) for n, k in group])
        found.append(Rounded(size, *counts))
    return tuple(found)
