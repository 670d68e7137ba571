"""The plan of any network that can be read: a graph of layers as rows and steps.

The layers are known by what they do to entries (``qll.networks.entries``). A layer that scales the
channels of a convolution or a linear layer before it is folded into its weights, an activation
follows the operation that it is applied to, and what only moves entries costs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

import numpy as np

from qll.errors import NetworkError
from qll.kernels.graph_operations import LargestOf, Sums, Tiles
from qll.kernels.graph_pooled import PooledTiles, pooled_cells
from qll.kernels.graph_rows import Indices, Operation, Rows
from qll.kernels.plan import NetworkPlan
from qll.kernels.steps import FROM_ZERO, PLAIN
from qll.networks.activations import RELU
from qll.networks.entries import (
    Combined,
    Curved,
    Fixed,
    Form,
    Largest,
    Leaky,
    Live,
    Moved,
    Same,
    Scaled,
    Windowed,
)
from qll.networks.graph import Graph
from qll.networks.matrices import Array
from qll.networks.windows import Window

Shape = tuple[int, ...]
# Each takes 128 bytes a thread and its share of tables: beyond, torch's large products win anyway.
MOST_VALUES = 1 << 20
Read = Callable[[Form | None], tuple[Array, Array]]


@dataclass(eq=False)
class GraphPlan(NetworkPlan):
    """``source`` gives the network with the weights that it has now."""

    source: Callable[[], Graph] = field(kw_only=True)
    operations: list[Operation] = field(default_factory=list)
    live: list[int] = field(default_factory=list)

    def refresh(self) -> None:
        graph = self.source().flat()
        forms = {number: _form(graph, number) for number in self.live}
        place = 0
        for operation in self.operations:
            operation.refresh(forms, self.weights, self.biases)
            for parameter in operation.parameters(forms):
                self.params[place] = parameter
                place += 1


def _form(graph: Graph, number: int) -> Form:
    node = graph.nodes[number - 1]
    shapes = [graph.nodes[s - 1].shape if s else graph.tensor_shape for s in node.sources]
    return node.layer.form(shapes)


def plan_graph(source: Callable[[], Graph]) -> GraphPlan:
    """The plan of a network, with the weights read. A network that it does not take is a
    `NetworkError`."""
    from qll.kernels.pointers import compile_function
    from qll.kernels.simd import TILE, aligned_floats

    graph = source().flat()
    values = sum(prod(node.shape) for node in graph.nodes)
    if values > MOST_VALUES:
        raise NetworkError(
            "the network has more values than compiled code keeps at hand",
            expected=f"at most {MOST_VALUES:,} in all layers",
            found=f"{values:,} values",
            fix="let torch run it",
        )
    if any(not np.isfinite(fill) for fill in _fills(graph)):
        raise NetworkError(
            "a padding with infinities has no compiled form",
            expected="a finite fill",
            found="an infinite one",
            fix="pad with zeros",
        )
    builder = _Builder(graph, TILE)
    rows, operations = builder.rows, builder.operations
    activated = [op for op in operations if op.activation is not None and not op.out.relu]
    functions, params = [], 0
    for number, operation in enumerate(activated):
        if operation.activation is None:
            continue
        function, parameters = operation.activation.kernel()
        operation.function = number
        functions.append((compile_function(function, "activation").address, params))
        params += len(parameters)
    for operation in operations:
        operation.forward(rows)
    forward, rows.tables.steps = np.array(rows.tables.steps, dtype=np.int64), []
    rows.place_gradients(operations)
    for operation in reversed(operations):
        rows.end_gradient(operation.out)
        operation.backward(rows)
    extra = builder.end_in_input_gradient()
    tables = rows.tables
    plan = GraphPlan(
        inputs=prod(graph.tensor_shape),
        outputs=prod(graph.output_shape),
        input_order=builder.input_order,
        output_row=operations[-1].out.first,
        output_rows=np.arange(prod(graph.output_shape)),
        rows=rows.rows,
        forward_steps=forward,
        backward_steps=np.array(tables.steps, dtype=np.int64),
        blocks=np.array(tables.blocks, dtype=np.int32).reshape(-1),
        taps=np.array(tables.taps, dtype=np.int32).reshape(-1),
        weights=aligned_floats(tables.weights),
        biases=aligned_floats(rows.biases),
        multiplications=sum(op.multiplications for op in operations),
        functions=np.array(functions, dtype=np.int64).reshape(-1),
        params=np.zeros(params),
        source=source,
        operations=operations,
        live=builder.live,
    )
    if extra is not None:
        plan.weights[extra] = 1.0
    plan.refresh()
    return plan


def _fills(graph: Graph) -> list[float]:
    forms = (_form(graph, number + 1) for number in range(len(graph.nodes)))
    return [form.fill for form in forms if isinstance(form, Moved)]


def _identity(form: Form | None) -> tuple[Array, Array]:
    return np.ones(1), np.zeros(1)


class _Builder:
    """Operations and views of a graph's layers, in order."""

    def __init__(self, graph: Graph, tallest: int) -> None:
        self.graph, self.rows = graph, Rows(tallest)
        self.operations: list[Operation] = []
        self.live: list[int] = []
        self.uses = Counter(source for node in graph.nodes for source in node.sources)
        self.uses[graph.output] += 1
        # Of each layer: where its entries lie, and the operation whose own value it is.
        self.views: list[Indices] = []
        self.made_by: dict[int, Operation] = {}
        self.rectified: dict[int, Operation] = {}  # or whose value it is behind a ReLU
        self._input()
        for number, node in enumerate(graph.nodes, start=1):
            form = _form(graph, number)
            if isinstance(form, Live):
                self.live.append(number)
            operands = [self.views[source] for source in node.sources]
            view = self._add(number, form, operands, node.sources, node.shape)
            self.views.append(view.reshape(node.shape))
        self._output()
        self._read_points()

    def _input(self) -> None:
        shape = self.graph.tensor_shape
        count = prod(shape)
        places = _image_places(shape)
        self.input_order = np.empty(count, dtype=np.int32)
        self.input_order[places] = np.arange(count)
        copy = self._sums(places[:, None], places, _identity, numbers=0, reads_input=True)
        self.views.append(copy.reshape(shape))

    def _output(self) -> None:
        """The outputs lie one after the other, in order, in a value that nothing else reads."""
        view = self.views[self.graph.output].reshape(-1)
        made = self.made_by.get(self.graph.output)
        alone = made is not None and self.uses[self.graph.output] == 1 and made.activation is None
        if made is not None and alone and made is self.operations[-1]:
            ordered = np.array_equal(view, made.out.first + np.arange(len(view)))
            if ordered and not isinstance(made, LargestOf):
                return
        self._sums(view[:, None], np.arange(len(view)), _identity, numbers=0)

    def _read_points(self) -> None:
        """One convolution or linear map that alone reads the input reads the points themselves."""
        readers = [op for op in self.operations if (self.rows.owners(op.reads()) == 0).any()]
        (only,) = readers if len(readers) == 1 else (None,)
        if isinstance(only, Tiles) and (self.rows.owners(only.reads()) == 0).all():
            only.reads_input = True
            del self.operations[0]

    def end_in_input_gradient(self) -> int | None:
        """The last step is a tile that gives the gradient by the input, for which there are sign
        kernels; if another kind ends there, a copy follows. Its one weight is returned."""
        value, tables = self.rows.values[0], self.rows.tables
        readers = [op for op in self.operations if (self.rows.owners(op.reads()) == 0).any()]
        last = tables.steps[-1] if tables.steps else None
        if last is not None and last[0] > 0 and len(readers) == 1 and last[3] == FROM_ZERO:
            return None
        if not value.started:
            self.rows.clear(value)
        weight = tables.reserve(np.zeros(1, dtype=np.int64)).first
        block = len(tables.blocks)
        for row in range(value.rows):
            tables.block(row, [(value.gradient + row, weight, 1)], 1, 0)
        self.rows.step(1, block, FROM_ZERO, PLAIN)
        return weight

    def _sums(
        self,
        entries: Indices,
        places: Indices,
        read: Read,
        *,
        node: int | None = None,
        numbers: Indices | int | None = None,
        reads_input: bool = False,
    ) -> Indices:
        given = None if numbers is None else np.broadcast_to(numbers, entries.shape)
        operation = Sums(
            self.rows, entries, places, read, node=node, numbers=given, reads_input=reads_input
        )
        self.operations.append(operation)
        return operation.places

    def _add(
        self, number: int, form: Form, operands: list[Indices], sources: Shape, shape: Shape
    ) -> Indices:
        flat = np.concatenate([view.reshape(-1) for view in operands]) if operands else None
        match form:
            case Fixed(value):
                none = np.zeros((value.size, 0), dtype=np.int64)
                return self._own(
                    number, self._sums(none, np.arange(value.size), _constant, node=number)
                )
            case _ if flat is None:
                raise NetworkError(
                    "a layer without operands has no compiled form",
                    expected="a constant",
                    found=type(form).__name__,
                    fix="replace the layer",
                )
            case Same():
                if self.uses[sources[0]] == 1 and sources[0] in self.made_by:
                    self.made_by[number] = self.made_by[sources[0]]
                return flat
            case Moved(entries, fill):
                filler = -1 if fill == 0.0 else self._filler(fill)
                return np.where(entries >= 0, flat[np.maximum(entries, 0)], filler)
            case Combined(entries, factors):
                return self._own(
                    number, self._sums(_pick(flat, entries), _image_places(shape), _static(factors))
                )
            case Largest(entries, sign):
                view = self._pooled(number, sources[0], _pick(flat, entries), sign)
                if view is not None:
                    return view
                if (flat < 0).any():  # a zero that was padded on is one of the values
                    flat = np.where(flat < 0, self._filler(0.0), flat)
                operation = LargestOf(self.rows, _pick(flat, entries), _image_places(shape), sign)
                self.operations.append(operation)
                return operation.places
            case Scaled():
                return self._scaled(number, form, operands[0], sources[0], shape)
            case Curved(function):
                made = self.made_by.get(sources[0])
                if made is None or self.uses[sources[0]] != 1 or made.activation is not None:
                    self._sums(flat[:, None], _ranks(flat), _identity, numbers=0)
                    made = self.operations[-1]
                    flat = made.places if isinstance(made, Sums) else flat
                made.activate(number, function)
                if function == RELU:
                    self.rectified[number] = made
                return flat
            case Leaky():
                return self._leaky(number, flat, shape)
            case Windowed(weight, _, window, groups):
                return self._windowed(number, weight, window, groups, operands[0], shape)
        raise NetworkError(
            "a layer has no compiled form",
            expected="a form that the kernels know",
            found=type(form).__name__,
            fix="replace the layer",
        )

    def _pooled(self, number: int, source: int, rows: Indices, sign: int) -> Indices | None:
        """With the convolution before it as one operation, where there are kernels for it."""
        made = self.made_by.get(source) or self.rectified.get(source)
        last = self.operations[-1] if self.operations else None
        if type(made) is not Tiles or made is not last or self.uses[source] != 1 or sign < 0:
            return None
        cells = pooled_cells(made, rows, self.rows.tallest)
        if cells is None:
            return None
        self.rows.withdraw(made.out)
        operation = PooledTiles(self.rows, made, cells)
        self.operations[-1] = operation
        self.made_by[number] = operation
        return operation.out_rows()

    def _own(self, number: int, view: Indices) -> Indices:
        self.made_by[number] = self.operations[-1]
        return view

    def _filler(self, fill: float) -> int:
        """The row of a constant."""
        none = np.zeros((1, 0), dtype=np.int64)
        return int(self._sums(none, np.zeros(1, dtype=np.int64), _filling(fill))[0])

    def _scaled(
        self, number: int, form: Scaled, operand: Indices, source: int, shape: Shape
    ) -> Indices:
        made = self.made_by.get(source)
        if type(made) is Tiles and self.uses[source] == 1 and made.activation is None:
            parts = (form.factor, form.shift)
            if operand.shape == shape and all(made.is_by_channel(p.shape, shape) for p in parts):
                made.absorbed.append(number)
                self.made_by[number] = made
                return operand
        spread = np.broadcast_to(operand, shape).reshape(-1)
        return self._own(
            number, self._sums(spread[:, None], _image_places(shape), _scaling(shape), node=number)
        )

    def _leaky(self, number: int, flat: Indices, shape: Shape) -> Indices:
        """``slope * x + (1 - slope) * relu(x)``."""
        positive = self._sums(flat[:, None], _ranks(flat), _identity, numbers=0)
        self.operations[-1].activate(number, RELU)
        both = np.stack([flat, positive], axis=1)
        return self._own(number, self._sums(both, _ranks(flat), _leaking(shape), node=number))

    def _windowed(
        self,
        number: int,
        weight: Array,
        window: Window | None,
        groups: int,
        operand: Indices,
        shape: Shape,
    ) -> Indices:
        if window is None:
            source = operand.reshape(-1, operand.shape[-1]).T
            taps, order = np.arange(source.shape[1])[:, None], [0]
        else:
            source = operand.reshape(operand.shape[1], -1)
            taps, order = window.taps(operand.shape[2:]), _kernel_order(window)
        operation = Tiles(
            self.rows, number, source, taps,
            channels=len(weight), groups=groups, order=order, last_axis=window is None,
        )  # fmt: skip
        self.operations.append(operation)
        self.made_by[number] = operation
        view = operation.out_rows()
        return view.T if window is None else view


def _pick(flat: Indices, entries: Indices) -> Indices:
    return np.where(entries >= 0, flat[np.maximum(entries, 0)], -1)


def _image_places(shape: Shape) -> Indices:
    """Channels of one pixel one after the other, as windows read them."""
    count = prod(shape)
    if len(shape) < 3 or shape[0] != 1:
        return np.arange(count)
    return np.arange(count).reshape(-1, shape[1]).T.reshape(-1)


def _ranks(rows: Indices) -> Indices:
    """In the order of what is read, so that it is read in one run."""
    if len(np.unique(rows)) != len(rows):
        return np.arange(len(rows))
    ranks = np.empty(len(rows), dtype=np.int64)
    ranks[np.argsort(rows)] = np.arange(len(rows))
    return ranks


def _kernel_order(window: Window) -> list[int]:
    """For each residue of the stride, descending: so the outputs that read a pixel ascend."""

    def key(entry: int) -> tuple[list[int], int]:
        places = np.unravel_index(entry, window.kernel)
        return [int(p) % s for p, s in zip(places, window.stride, strict=True)], -entry

    return sorted(range(window.size), key=key)


def _constant(form: Form | None) -> tuple[Array, Array]:
    if not isinstance(form, Fixed):
        raise TypeError("not a constant")
    return np.zeros(0), form.value


def _filling(fill: float) -> Read:
    return lambda form: (np.zeros(0), np.full(1, fill))


def _static(factors: Array) -> Read:
    return lambda form: (factors, np.zeros(1))


def _scaling(shape: Shape) -> Read:
    def read(form: Form | None) -> tuple[Array, Array]:
        if not isinstance(form, Scaled):
            raise TypeError("not a scaling")
        return np.broadcast_to(form.factor, shape), np.broadcast_to(form.shift, shape)

    return read


def _leaking(shape: Shape) -> Read:
    def read(form: Form | None) -> tuple[Array, Array]:
        if not isinstance(form, Leaky):
            raise TypeError("not a leaky ReLU")
        slope = np.broadcast_to(form.slope, shape).reshape(-1)
        return np.stack([slope, 1.0 - slope], axis=1), np.zeros(slope.size)

    return read
