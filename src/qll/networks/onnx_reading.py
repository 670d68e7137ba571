"""What the ONNX operators are given: the walk so far, and a node of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from qll.errors import NetworkError
from qll.networks.graph import GraphBuilder
from qll.networks.layers import Constant, Layer, Shape
from qll.networks.matrices import Array


@dataclass(eq=False)
class Reading:
    """What is known while the nodes are walked in order: constants in their own types, and
    activations (by index of the graph), by name."""

    builder: GraphBuilder
    opset: int
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    activations: dict[str, int] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)  # constants that nothing computes or overrides

    def is_constant(self, name: str) -> bool:
        return name in self.constants

    def constant(self, name: str) -> np.ndarray:
        if name in self.constants:
            return self.constants[name]
        raise NetworkError(
            f"the tensor '{name}' depends on the input where a constant must stand",
            expected="a stored constant",
            found="a computed tensor",
            fix="export the network so that shapes and weights are constants",
        )

    def floats(self, name: str) -> Array:
        """A constant of the network's numbers, in float64."""
        array = self.constant(name)
        if array.dtype.kind != "f" or not array.size:
            raise NetworkError(
                f"the constant '{name}' has no numbers to compute with",
                expected="float32 or float64, at least one entry",
                found=f"{array.dtype} of shape {array.shape}",
                fix="export the network without this step",
            )
        return array.astype(np.float64)

    def integers(self, name: str) -> tuple[int, ...]:
        """A constant list of sizes or axes."""
        array = self.constant(name)
        if array.ndim != 1:
            raise NetworkError(
                f"the constant '{name}' is not a list",
                expected="one axis",
                found=f"shape {array.shape}",
                fix="export the network again",
            )
        return tuple(int(v) for v in array)

    def value(self, name: str) -> int:
        if name not in self.activations:
            self.activations[name] = self.builder.add(name, Constant(self.floats(name)), ())
        return self.activations[name]

    def shape(self, name: str) -> Shape:
        if name in self.constants:
            return self.constants[name].shape
        return self.builder.shape(self.activations[name])

    def add(self, name: str, layer: Layer, *operands: int) -> int:
        return self.builder.add(name, layer, operands)


@dataclass(frozen=True)
class Call:
    """One node with its attributes; an input that is left out has the name None."""

    kind: str
    name: str
    inputs: tuple[str, ...]
    given: dict[str, Any]

    def optional(self, position: int) -> str | None:
        return self.inputs[position] or None if position < len(self.inputs) else None


Result: TypeAlias = int | np.ndarray
Operator: TypeAlias = Callable[[Reading, Call], Result]
OPERATORS: dict[str, Operator] = {}


def operator(*names: str) -> Callable[[Operator], Operator]:
    def add(read: Operator) -> Operator:
        for name in names:
            OPERATORS[name] = read
        return read

    return add


def refuse(what: str, expected: str, found: object) -> NetworkError:
    return NetworkError(
        what, expected=expected, found=str(found), fix="export the network without it"
    )
