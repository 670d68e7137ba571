"""The op graph that both readers build and everything else starts from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from qll.errors import NetworkError
from qll.networks.layers import Layer, Normalise, Shape
from qll.networks.layers.base import ANYTHING, Range
from qll.networks.matrices import Array
from qll.networks.program import Program, ProgramBuilder

MAX_TENSOR = 1 << 22  # entries of one activation; a proof over more is out of reach anyway


@dataclass(frozen=True, eq=False)
class Node:
    name: str
    layer: Layer
    sources: tuple[int, ...]  # 0 is the input, i the i-th node
    shape: Shape  # with the batch axis


@dataclass(frozen=True, eq=False)
class Graph:
    """``input_shape`` has no batch axis; ``tensor_shape`` is the input tensor as the layers see it,
    with one if the network has one."""

    input_shape: Shape
    tensor_shape: Shape
    nodes: tuple[Node, ...]
    output: int

    @property
    def output_shape(self) -> Shape:
        return self.nodes[self.output - 1].shape if self.output else self.tensor_shape

    def behind(self, layer: Layer) -> Graph:
        """The same network of what ``layer`` makes of its input."""
        first = Node("first", layer, (0,), layer.shape(self.tensor_shape))
        moved = (
            Node(node.name, node.layer, tuple(s + 1 for s in node.sources), node.shape)
            for node in self.nodes
        )
        return Graph(self.input_shape, self.tensor_shape, (first, *moved), self.output + 1)

    def flat(self) -> Graph:
        """The same network in which every layer is one step of its own."""
        nodes: list[Node] = []
        places = [0]
        for node in self.nodes:
            places.append(_unfold(node, [places[s] for s in node.sources], self, nodes))
        return Graph(self.input_shape, self.tensor_shape, tuple(nodes), places[self.output])

    @cached_property
    def program(self) -> Program:
        return self.lower(None)

    def lower(self, normalisation: tuple[Array, Array] | None) -> Program:
        """The primitive steps; with a normalisation, those of the network of raw input."""
        builder = ProgramBuilder(math.prod(self.input_shape))
        first = 0
        if normalisation is not None:
            mean, std = normalisation
            first = Normalise(mean, std).lower(builder, [0], [mean.shape])
        values = [first]
        shapes = [self.tensor_shape]
        for node in self.nodes:
            operands = [values[source] for source in node.sources]
            try:
                values.append(
                    node.layer.lower(builder, operands, [shapes[s] for s in node.sources])
                )
            except NetworkError as error:
                raise error.at(f"node '{node.name}'") from error
            if builder.widths[values[-1]] != math.prod(node.shape):
                raise NetworkError(
                    "a layer does not give the shape it states",
                    expected=f"{math.prod(node.shape)} entries",
                    found=f"{builder.widths[values[-1]]}",
                    fix="report this network; it is read wrongly",
                    where=f"node '{node.name}'",
                )
            shapes.append(node.shape)
        return builder.finish(self.input_shape, values[self.output])


def _unfold(node: Node, sources: list[int], graph: Graph, nodes: list[Node]) -> int:
    """The parts of a layer, and theirs, added to ``nodes``; the place of its value."""
    shapes = [nodes[s - 1].shape if s else graph.tensor_shape for s in sources]
    parts = node.layer.parts(shapes)
    if not parts:
        nodes.append(Node(node.name, node.layer, tuple(sources), node.shape))
        return len(nodes)
    places = list(sources)
    for layer, reads in parts:
        inside = [places[s] for s in reads]
        operands = [nodes[s - 1].shape if s else graph.tensor_shape for s in inside]
        part = Node(node.name, layer, (), layer.shape(*operands))
        places.append(_unfold(part, inside, graph, nodes))
    return places[-1]


class GraphBuilder:
    def __init__(self, input_shape: Shape, tensor_shape: Shape) -> None:
        check_tensor(tensor_shape, "input")
        self.input_shape = input_shape
        self.tensor_shape = tensor_shape
        self.nodes: list[Node] = []
        self._ranges: list[Range] = [ANYTHING]

    def shape(self, index: int) -> Shape:
        return self.nodes[index - 1].shape if index else self.tensor_shape

    def add(self, name: str, layer: Layer, sources: Sequence[int]) -> int:
        try:
            shape = layer.shape(*(self.shape(source) for source in sources))
            check_tensor(shape, name)
        except NetworkError as error:
            raise error.at(f"node '{name}'") from error
        self.nodes.append(Node(name, layer, tuple(sources), shape))
        return len(self.nodes)

    def range(self, index: int) -> Range:
        """Ends of a tensor's entries, whatever the input."""
        while len(self._ranges) <= index:
            node = self.nodes[len(self._ranges) - 1]
            operands = [self._ranges[s] for s in node.sources]
            shapes = [self.shape(s) for s in node.sources]
            self._ranges.append(node.layer.range(operands, shapes))
        return self._ranges[index]

    def finish(self, output: int) -> Graph:
        """Only what the output needs, in order, renumbered."""
        needed = {output}
        for index in range(output, 0, -1):
            if index in needed:
                needed.update(self.nodes[index - 1].sources)
        order = sorted(needed - {0})
        place = {0: 0, **{old: new + 1 for new, old in enumerate(order)}}
        nodes = [self.nodes[old - 1] for old in order]
        kept = tuple(
            Node(n.name, n.layer, tuple(place[source] for source in n.sources), n.shape)
            for n in nodes
        )
        return Graph(self.input_shape, self.tensor_shape, kept, place[output])


def check_tensor(shape: Shape, name: str) -> None:
    if any(size < 1 for size in shape) or math.prod(shape) > MAX_TENSOR:
        raise NetworkError(
            f"the tensor '{name}' has a size we do not take",
            expected=f"between 1 and {MAX_TENSOR:,} entries, every axis at least 1",
            found=f"shape {shape}",
            fix="check the network's input shape, or use a smaller network",
        )
