"""What is given besides the rule: labels, shapes, and what is wrong with them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from qll.errors import InputError, NetworkError
from qll.networks import Network, load
from qll.property import Property
from qll.verify.condition import Array

Labels = tuple[tuple[int, ...], ...]


def declared(prop: Property) -> tuple[int, ...]:
    """The shape of the input that a property names."""
    for declared in prop.specification.names:
        if declared.kind == "inputs":
            return (len(declared.names),)
    raise InputError(
        "the number of inputs of the module is not known",
        expected="'inputs a, b, ...' in the property, or data points",
        found="neither",
        fix="name the inputs in the property, or pass qll.networks.load(module, input_shape=...)",
    )


def read_network(
    network: nn.Module | str | Path | bytes, prop: Property, points: Array | None, *scales: Any
) -> Network:
    """A module has the inputs that the points have, one row for each; without points, those that
    the property names."""
    mean, std = scales
    if not isinstance(network, nn.Module):
        return load(network, mean=mean, std=std)
    shape = declared(prop) if points is None else tuple(points.shape[1:])
    try:
        return load(network, input_shape=shape, mean=mean, std=std)
    except NetworkError as error:
        if points is None or not error.found.startswith(("(", "shape (")):
            raise
        # Its layers refuse the shape: the commonest reason is a single point without its axis.
        fix = f"pass one row for each point (x[None] for a single one), or {error.fix}"
        raise NetworkError(
            error.what, expected=error.expected, found=error.found, fix=fix, where=error.where
        ) from error


def needs_data(prop: Property) -> InputError:
    return InputError(
        f"property '{prop.name}' speaks of data points",
        expected="data points x: it has x0, y0 or labels in it",
        found="none",
        fix="pass --data or x=..., or bound the region by box(...) alone",
    )


def network_of_x2(prop: Property, network: Network, other: bytes | None) -> bytes | None:
    """None if it is that of x; a rule of one point has none."""
    if other is None or other == network.source:
        return None
    if all(binder.point != "x2" for binder in prop.binders):
        raise InputError(
            f"property '{prop.name}' is about one point, and two networks are given",
            expected="a rule over x and x2, the input of the second network",
            found="a rule over x alone",
            fix="write 'forall x in ..., x2 in ball(x, 0): ...', or leave out --against",
        )
    return other


def check_alike(network: Network, other: Network) -> Network:
    sizes = [(n.input_size, n.output_size) for n in (network, other)]
    if sizes[0] != sizes[1]:
        raise InputError(
            "the two networks do not fit together",
            expected=f"{sizes[0][0]} inputs and {sizes[0][1]} outputs",
            found=f"{sizes[1][0]} and {sizes[1][1]}",
            fix="compare networks of the same inputs and outputs",
        )
    return other


def no_labels() -> InputError:
    return InputError(
        "this property speaks of labels", expected="labels=...", found="none",
        fix="pass classes (count,) or multi-hot labels (count, outputs)",
    )  # fmt: skip


def patterns(labels: Any, count: int, outputs: int) -> Labels:
    if labels is None:
        raise no_labels()
    values = np.asarray(labels.detach().cpu() if isinstance(labels, Tensor) else labels)
    if values.shape == (count,):
        patterns: Labels = tuple((int(v),) for v in values)
    elif values.shape == (count, outputs):
        patterns = tuple(tuple(int(c) for c in np.flatnonzero(row)) for row in values)
    else:
        raise InputError(
            "labels do not fit the data points",
            expected=f"({count},) or ({count}, {outputs})",
            found=str(values.shape),
            fix="pass classes, or multi-hot labels",
        )
    for pattern in patterns:
        if any(not 0 <= c < outputs for c in pattern):
            raise InputError(
                "a label does not exist",
                expected=f"classes from 0 to {outputs - 1}",
                found=str(pattern),
                fix="check the labels against the network's outputs",
            )
    return patterns


def outputs_at(network: Network, x0: Array) -> list[Any]:
    """y0: fractions, as the checker has them, where the activations have rational values."""
    if network.relu_form.is_piecewise_linear:
        return list(network.evaluate_exact(x0))
    found: list[Any] = network.relu_form.forward(x0[None])[0].tolist()
    return found


def content_hash(values: Any) -> str:
    """Of numbers, whatever holds them: shape and every bit of every entry."""
    if values is None:
        return "none"
    array = np.ascontiguousarray(np.asarray(values, dtype=np.float64))
    return hashlib.sha256(repr(array.shape).encode() + array.tobytes()).hexdigest()


def plain(values: Array, shape: tuple[int, ...]) -> Any:
    """One number for all inputs, where that says it all."""
    return float(values[0]) if (values == values[0]).all() else values.reshape(shape)


def source_of(network: Network | str | Path | bytes) -> bytes:
    return (network if isinstance(network, Network) else load(network)).source
