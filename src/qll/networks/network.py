"""The one handle on a network: its folded form, its stored weights and its run-time."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qll.errors import InputError, NetworkError
from qll.networks.exact import Enclosure, ExactReplay
from qll.networks.fold import fold
from qll.networks.graph import Graph
from qll.networks.layers import Normalise
from qll.networks.matrices import Array
from qll.networks.onnx_external import network_bytes
from qll.networks.onnx_reader import read_onnx
from qll.networks.program import Program
from qll.networks.relu_form import ReluForm, normalisation_vectors
from qll.networks.runtime import OnnxRuntime

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, eq=False, repr=False)
class Network:
    """``source`` are the ONNX bytes, with all weights; ``normalisation`` (flattened mean and
    deviation) is applied before them, so that every reading here takes raw input.

    The readings are computed on first use and kept. ``relu_form`` is the fold in float64, for
    search and bounds; ``enclose`` and ``evaluate_exact`` replay the stored weights, for judging.
    """

    name: str
    source: bytes
    graph: Graph
    normalisation: tuple[Array, Array] | None = None
    whole: Network | None = None  # of logits: the network that they belong to

    def __repr__(self) -> str:
        """What it is, not its megabytes."""
        shape = "x".join(map(str, self.input_shape))
        return f"<Network '{self.name}': {shape} to {self.output_size}, SHA-256 {self.sha256[:12]}>"

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.graph.input_shape

    @property
    def input_size(self) -> int:
        return math.prod(self.graph.input_shape)

    @property
    def output_size(self) -> int:
        return math.prod(self.graph.output_shape)  # the batch is of one

    @cached_property
    def sha256(self) -> str:
        """Of the ONNX bytes."""
        return hashlib.sha256(self.source).hexdigest()

    @cached_property
    def program(self) -> Program:
        """The stored weights, unfolded, normalisation first."""
        try:
            return self.graph.lower(self.normalisation)
        except NetworkError as error:
            raise _within(self.name, error) from error

    @property
    def raw_graph(self) -> Graph:
        """The layers, the normalisation first."""
        if self.normalisation is None:
            return self.graph
        mean, std = self.normalisation
        shape = self.graph.tensor_shape
        return self.graph.behind(Normalise(mean.reshape(shape), std.reshape(shape)))

    @cached_property
    def logits(self) -> Network | None:
        """The network before a last layer that keeps the order of its outputs (Softmax, Sigmoid),
        if it has one: the same file, of which outputs are compared alone."""
        node = self.graph.nodes[self.graph.output - 1] if self.graph.output else None
        if node is None or not node.layer.keeps_order(node.shape) or len(node.sources) != 1:
            return None
        (last,) = node.sources
        graph = replace(self.graph, nodes=self.graph.nodes[:last], output=last)
        return Network(self.name, self.source, graph, self.normalisation, self)

    @cached_property
    def relu_form(self) -> ReluForm:
        return fold(self.program)

    @cached_property
    def enclose(self) -> Enclosure:
        """``enclose(x)`` gives (lower, upper) float64 arrays around the exact outputs."""
        return Enclosure(self.program)

    @cached_property
    def evaluate_exact(self) -> ExactReplay:
        """``evaluate_exact(x)`` gives the outputs at one point as fractions."""
        return ExactReplay(self.program)

    @cached_property
    def runtime(self) -> OnnxRuntime:
        """``runtime(batch)`` is what ONNX Runtime answers."""
        return OnnxRuntime(
            self.source, normalisation=self.normalisation, input_shape=self.input_shape
        )

    def __getstate__(self) -> dict[str, Any]:
        """Without the readings: ONNX Runtime's state does not travel between processes."""
        fields = ("name", "source", "graph", "normalisation")
        return {name: self.__dict__[name] for name in fields}


def load(
    source: str | Path | bytes | nn.Module,
    *,
    input_shape: tuple[int, ...] | None = None,
    mean: Array | float | None = None,
    std: Array | float | None = None,
) -> Network:
    """Read an ONNX file (path or bytes) or a torch module.

    A module is exported first and its ONNX read back, so that what is judged is what is shipped; it
    needs ``input_shape`` (without the batch). Weights in a second file are read if it lies beside
    the first. ``mean`` and ``std`` are for a network that takes
    normalised input: scalars or one per channel.
    """
    name, data = _bytes(source, input_shape)
    try:
        graph = read_onnx(data, input_shape=input_shape)
    except NetworkError as error:
        raise _within(name, error) from error
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


def _bytes(
    source: str | Path | bytes | nn.Module, input_shape: tuple[int, ...] | None
) -> tuple[str, bytes]:
    if isinstance(source, (bytes, bytearray)):
        return "<bytes>", bytes(source)
    if isinstance(source, (str, Path)):
        return str(source), network_bytes(Path(source))
    from torch import nn

    if not isinstance(source, nn.Module):
        raise InputError(
            "this is not a network",
            expected="a path to an ONNX file, its bytes, or a torch.nn.Module",
            found=type(source).__name__,
            fix="pass one of these",
        )
    name = type(source).__name__
    if input_shape is None:
        raise InputError(
            f"the shape of the input of '{name}' is not known",
            expected="input_shape, the shape of one input without the batch",
            found="none",
            fix="pass input_shape=(1, 28, 28), say",
        )
    from qll.networks.onnx_writer import onnx_bytes

    return name, onnx_bytes(source, input_shape=input_shape)


def _within(name: str, error: NetworkError) -> NetworkError:
    place = name if error.where is None else f"{name}, {error.where}"
    return NetworkError(
        error.what, expected=error.expected, found=error.found, fix=error.fix, where=place
    )
