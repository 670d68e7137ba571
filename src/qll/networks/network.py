"""The one handle on a network: its folded form, its stored weights and its run-time."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from qll.errors import InputError, NetworkError
from qll.networks.fold import fold
from qll.networks.graph import Graph
from qll.networks.matrices import Array
from qll.networks.onnx_reader import read_onnx
from qll.networks.onnx_tensors import read_bytes
from qll.networks.program import Program
from qll.networks.relu_form import ReluForm, normalisation_vectors


@dataclass(frozen=True, eq=False)
class Network:
    """``source`` are the ONNX bytes; ``normalisation`` is applied before them, so that every
    reading here takes raw input."""

    name: str
    source: bytes
    graph: Graph
    normalisation: tuple[Array, Array] | None = None

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.graph.input_shape

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.source).hexdigest()

    @cached_property
    def program(self) -> Program:
        """The stored weights, unfolded, normalisation first."""
        return self.graph.lower(self.normalisation)

    @cached_property
    def relu_form(self) -> ReluForm:
        return fold(self.program)

    @property
    def input_size(self) -> int:
        return self.program.widths[0]

    @property
    def output_size(self) -> int:
        return self.program.widths[-1]


def load(
    source: str | Path | bytes,
    *,
    input_shape: tuple[int, ...] | None = None,
    mean: Array | float | None = None,
    std: Array | float | None = None,
) -> Network:
    """Read an ONNX file (path or bytes).

    ``mean`` and ``std`` are for a network that takes normalised input: scalars or one per channel.
    """
    name = "<bytes>" if isinstance(source, bytes) else str(source)
    data = source if isinstance(source, bytes) else read_bytes(Path(source))
    try:
        graph = read_onnx(data, input_shape=input_shape)
    except NetworkError as error:
        place = name if error.where is None else f"{name}, {error.where}"
        raise error.at(place) from error
    if (mean is None) != (std is None):
        raise InputError(
            "a normalisation is half given",
            expected="both mean and std, or neither",
            found="only mean" if std is None else "only std",
            fix="pass both",
        )
    normalisation = None
    if mean is not None and std is not None:
        normalisation = normalisation_vectors(graph.input_shape, mean, std)
    return Network(name, data, graph, normalisation)
