"""The structure of an ONNX graph, without names, weights and their types: what isomorphic networks
have in common."""

from __future__ import annotations

from typing import Any


class Structures:
    """Numbers for structures: equal ones have the same, whichever file they are from."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}

    def of(self, proto: Any) -> tuple[int, ...]:
        """One number for each output: of the operators, with their attributes and all that they
        read, down to the inputs by their place and the weights by their shape."""
        graph = proto.graph
        values: dict[str, int] = {}
        for tensor in graph.initializer:
            values[tensor.name] = self._number(("weight", tuple(tensor.dims)))
        inputs = [entry.name for entry in graph.input if entry.name not in values]
        for place, name in enumerate(inputs):
            values[name] = self._number(("input", place))
        for node in graph.node:  # in an order in which what is read comes first
            read = tuple(values.get(name, -1) for name in node.input)
            structure = (node.domain, node.op_type, _attributes(node), read)
            for place, name in enumerate(node.output):
                values[name] = self._number((*structure, place))
        return tuple(values.get(entry.name, -1) for entry in graph.output)

    def _number(self, structure: Any) -> int:
        return self._known.setdefault(structure, len(self._known))


def _attributes(node: Any) -> tuple[Any, ...]:
    """Of a tensor the shape alone: it is a weight."""
    found = []
    for attribute in sorted(node.attribute, key=lambda each: str(each.name)):
        if attribute.HasField("t"):
            found.append((attribute.name, tuple(attribute.t.dims)))
        elif not (node.op_type == "Cast" and attribute.name == "to"):  # of other types
            found.append((attribute.name, attribute.SerializeToString(deterministic=True)))
    return tuple(found)
