"""The network at two points at once, or of tied inputs, made by the checker from the user's file.

The state begins with the variables; every entry of x (and of x2) is one of them. Layer by layer the
neurons of the first run come first, then those of the second.
"""

from __future__ import annotations

from typing import Any

from qll.audit.exact import ONE, Affine, affine, identity
from qll.audit.network import Network


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
    """``networks``, of the same layers, at entries ``home`` of the variables."""
    inputs = networks[0].widths[0]
    starts = [0, variables]
    for widths in zip(*(network.widths[1:-1] for network in networks), strict=True):
        starts.append(starts[-1] + sum(widths))
    maps = []
    for layer in range(len(networks[0].maps)):
        rows, below = list[dict[int, int]](), list[int]()
        for number, network in enumerate(networks):
            place = _places(networks, number, home[number * inputs :], starts)
            for row in network.maps[layer].rows:
                moved: dict[int, int] = {}
                for column, value in row.items():
                    at = ONE if column == ONE else place[column]
                    moved[at] = moved.get(at, 0) + value
                rows.append(moved)
            below += network.maps[layer].below
        maps.append(Affine(rows, below))
    return Network((variables,), tuple(maps), networks[0].curves)


def _places(
    networks: list[Network], number: int, home: tuple[int, ...], starts: list[int]
) -> list[int]:
    """Where each entry of one run's state stands in the state of all."""
    found = list(home[: networks[number].widths[0]])
    for layer, width in enumerate(networks[number].widths[1:-1], start=1):
        first = starts[layer] + sum(n.widths[layer] for n in networks[:number])
        found += range(first, first + width)
    return found
