"""VNN-LIB 2: declared networks with tensors of any shape, then assertions over their elements.

Read as the grammar of version 2.1 says, and a little more that its benchmarks write: exponents,
element type ``Real``, ``=`` for ``==``, ``-`` in names, and vectors that are declared with size 0
and then element by element (``(declare-fun X[3] () Real)``).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Literal

from qll.errors import FormulaError
from qll.exchange.assertions import Gathered
from qll.exchange.document import MOST_ELEMENTS, REAL, Bounds, Declaration, Document, Tensor
from qll.exchange.expressions import Place, Reader
from qll.exchange.scanner import Scanner, described
from qll.formula.hard import Slot

VERSIONS = ("2.0", "2.1")
# ONNX, IR.md: tensor element types; and the standard's own 'real'.
ELEMENTS = (
    "float64", "float32", "float16", "bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2",
    "float8e5m2fnuz", "float4e2m1", "int64", "int32", "int16", "int8", "int4", "uint64", "uint32",
    "uint16", "uint8", "uint4", "bool", "string", "complex64", "complex128", REAL,
)  # fmt: skip
_VERSION = re.compile(r"<(\d{1,4})\.(\d{1,4})>$", re.ASCII)
_NAME = re.compile(r"[A-Za-z][\w\-]*$", re.ASCII)
_INDEXED = re.compile(r"([A-Za-z][\w\-]*)(?:\[([\d,\s]*)\])?$", re.ASCII)
_KINDS: dict[str, Literal["input", "hidden", "output"]] = {
    "declare-input": "input",
    "declare-hidden": "hidden",
    "declare-output": "output",
}


@dataclass(frozen=True)
class _Element:
    """A tensor with what its elements' names are read by."""

    tensor: Tensor
    strides: tuple[int, ...]


class _Version2:
    def __init__(self, scanner: Scanner) -> None:
        self.scanner = scanner
        self.networks: list[Declaration] = []
        self.places: dict[str, Place] = {}  # of all names, for uniqueness
        self.elements: dict[str, _Element] = {}
        self.listed: dict[str, set[int]] = {}  # tensors of size 0: their elements, one by one
        self.reader = Reader(scanner, self.resolve, smt=False)
        self.gathered = Gathered(self.reader, Bounds())
        self.version = (2, 0)

    def read(self) -> Document:
        self.read_version()
        token = self.scanner.token()
        while token:
            if token != "(":  # noqa: S105
                raise self.error(
                    "a statement does not begin with a bracket", "'('", described(token)
                )
            self.statement(self.scanner.token())
            if self.elements:
                self.gathered.read_simple()
            token = self.scanner.token()
        self.settle()
        return Document(
            self.version,
            tuple(self.networks),
            self.gathered.bounds,
            self.gathered.finish(),
            self.scanner.source,
        )

    def read_version(self) -> None:
        token = self.scanner.token()
        found = _VERSION.match(token)
        if found is None or token[1:-1] not in VERSIONS:
            raise self.error(
                "this version of VNN-LIB is not one we read", "<2.0> or <2.1>", described(token)
            )
        self.version = (2, int(found.group(2)))
        self.reader.expect(")", "the version")

    def statement(self, command: str) -> None:
        if command == "assert":
            if not self.elements:
                self.settle()
            self.gathered.add(self.reader.assertion())
        elif command == "declare-network" and not self.elements:
            self.network()
            return
        elif command == "declare-fun" and not self.elements:
            self.element()
        else:
            known = "assert" if self.elements else "declare-network or assert"
            late = command.startswith("declare-")
            what = "a declaration after an assertion" if late else "not a statement of VNN-LIB 2"
            raise self.error(f"this is {what}", known, described(command))
        self.reader.expect(")", f"'{command}'")

    # --- declarations ---

    def network(self) -> None:
        name = self.name("network")
        relation: dict[str, str] = {}
        tensors: list[Tensor] = []
        place = self.scanner.place()
        while (token := self.scanner.token()) == "(":
            command = self.scanner.token()
            if command in ("equal-to", "isomorphic-to"):
                if relation or tensors:
                    raise self.error(
                        "a network has one relation, before its tensors", "none here", command
                    )
                relation[command] = self.known_network()
                self.reader.expect(")", f"'{command}'")
            elif command in _KINDS:
                self.ordered(tensors, command)
                tensors.append(self.tensor(_KINDS[command]))
            else:
                known = ", ".join(_KINDS)
                raise self.error("this is not part of a network", known, described(command))
        if token != ")":  # noqa: S105
            raise self.error("the network is not complete", "'(' or ')'", described(token))
        network = Declaration(
            name, tuple(tensors), relation.get("equal-to"), relation.get("isomorphic-to")
        )
        for kind in ("input", "output"):
            if not network.of_kind(kind):
                raise self.error(
                    f"network '{name}' has no {kind}", f"a declare-{kind}", "none", at=place
                )
        self.related(network, place)
        self.networks.append(network)

    def ordered(self, tensors: list[Tensor], command: str) -> None:
        ranks = list(_KINDS.values())
        if tensors and ranks.index(tensors[-1].kind) > ranks.index(_KINDS[command]):
            raise self.error(
                "the tensors are not in order", "inputs, hidden nodes, outputs", described(command)
            )

    def tensor(self, kind: Literal["input", "hidden", "output"]) -> Tensor:
        name = self.name(kind)
        place = self.scanner.place()
        element = self.scanner.token()
        if element not in ELEMENTS and element.lower() != REAL:
            raise self.error(
                "this element type is not known", "real, or a type of ONNX", described(element)
            )
        shape = self.shape(name)
        node, initialized = None, False
        token = self.scanner.token()
        if kind == "hidden":
            if not token.startswith('"'):
                raise self.error(
                    "a hidden node needs its name in the ONNX file", 'a "string"', described(token)
                )
            node = re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), token[1:-1])
            token = self.scanner.token()
        elif kind == "input" and token == "initialized":  # noqa: S105
            initialized = True
            token = self.scanner.token()
        elif token.startswith('"'):  # an ONNX name, as drafts of version 2 had it
            token = self.scanner.token()
        if token != ")":  # noqa: S105
            raise self.error(
                f"the declaration of '{name}' is not complete", "')'", described(token)
            )
        where = f"{self.scanner.source}:{place[0]}:{place[1]}"
        return Tensor(name, kind, element, shape, 0, node, initialized, where)

    def shape(self, name: str) -> tuple[int, ...]:
        token = self.scanner.token()
        inner = token[1:-1].replace(",", " ").split()
        if not token.startswith("["):
            raise self.error(f"'{name}' has no shape", "[1,3,32,32], say", described(token))
        sizes = tuple(int(size[:12]) for size in inner)
        if any(len(size) > 9 for size in inner) or math.prod(sizes) > MOST_ELEMENTS:
            raise self.error(f"'{name}' is too large", f"at most {MOST_ELEMENTS:,} elements", token)
        if 0 in sizes:
            if sizes != (0,):
                raise self.error(f"'{name}' has an axis of size 0", "sizes of 1 or more", token)
            self.listed[name] = set()
        return sizes

    def name(self, kind: str) -> str:
        name = self.scanner.token()
        place = self.scanner.place()
        if not _NAME.match(name):
            raise self.error(
                f"this is not a name of a {kind}", "letters, digits and _", described(name)
            )
        if name in self.places:
            line, column = self.places[name]
            raise self.error(
                f"the name '{name}' is declared twice", "unique names", f"one at {line}:{column}"
            )
        self.places[name] = place
        return name

    def known_network(self) -> str:
        name = self.scanner.token()
        if not any(network.name == name for network in self.networks):
            raise self.error(
                "this network is not declared before", "an earlier network", described(name)
            )
        return name

    def related(self, network: Declaration, place: Place) -> None:
        """``equal-to`` and ``isomorphic-to``: the same shapes; equal networks also the same types;
        and never a chain of them."""
        target = network.equal_to or network.isomorphic_to
        if target is None:
            return
        other = next(n for n in self.networks if n.name == target)
        if other.equal_to or other.isomorphic_to:
            raise self.error(
                f"'{target}' itself is related to another network",
                "a network without equal-to or isomorphic-to", f"'{target}'", at=place,
            )  # fmt: skip
        for kind in ("input", "output"):
            ours, theirs = network.of_kind(kind), other.of_kind(kind)
            same = [t.shape for t in ours] == [t.shape for t in theirs]
            if network.equal_to:
                types = [[t.element.lower() for t in side] for side in (ours, theirs)]
                same = same and types[0] == types[1]
            if not same:
                raise self.error(
                    f"the {kind}s of '{network.name}' are not those of '{target}'",
                    ", ".join(_described(t) for t in theirs),
                    ", ".join(_described(t) for t in ours),
                    at=place,
                )

    def element(self) -> None:
        """``(declare-fun X[3] () Real)``: an element of a vector that was declared with size 0."""
        token = self.scanner.token()
        found = _INDEXED.match(token)
        if (
            found is None
            or found.group(1) not in self.listed
            or not (found.group(2) or "").isdigit()
        ):
            raise self.error(
                "this is not an element that needs a declaration",
                "elements of a vector declared with size 0",
                described(token),
            )
        index = int(found.group(2)[:12])
        if index >= MOST_ELEMENTS:
            raise self.error("the index is too large", f"below {MOST_ELEMENTS:,}", token)
        self.listed[found.group(1)].add(index)
        self.reader.expect("(", "the declaration")
        self.reader.expect(")", "the declaration")
        kind = self.scanner.token()
        if kind.lower() != REAL and kind not in ELEMENTS:
            raise self.error("this element type is not known", "Real", described(kind))

    def settle(self) -> None:
        """All declarations are read: every element gets its place in x or y."""
        if not self.networks:
            raise self.error("no network is declared", "declare-network", "none")
        offsets = {"x": 0, "y": 0}
        for k, network in enumerate(self.networks):
            tensors = []
            for tensor in network.tensors:
                if tensor.name in self.listed:
                    tensor = replace(tensor, shape=(self.count(tensor),))
                tensor = replace(tensor, offset=offsets[tensor.source])
                offsets[tensor.source] += tensor.size
                strides = tuple(math.prod(tensor.shape[i + 1 :]) for i in range(len(tensor.shape)))
                self.elements[tensor.name] = _Element(tensor, strides)
                tensors.append(tensor)
            self.networks[k] = replace(network, tensors=tuple(tensors))
        if sum(offsets.values()) > MOST_ELEMENTS:
            raise self.error(
                "the tensors are too large together",
                f"at most {MOST_ELEMENTS:,} elements",
                f"{sum(offsets.values()):,}",
            )
        self.gathered.bounds.grow(offsets["x"])

    def count(self, tensor: Tensor) -> int:
        listed = self.listed[tensor.name]
        if not listed or len(listed) != max(listed) + 1:
            raise FormulaError(
                f"'{tensor.name}' is declared with size 0",
                expected="a size of 1 or more, or its elements declared one by one",
                found=f"{len(listed)} declared elements" if listed else "none",
                fix="write its shape",
                where=tensor.place,
            )
        return len(listed)

    # --- names in assertions ---

    def resolve(self, name: str) -> tuple[Slot, str]:
        found = _INDEXED.match(name)
        entry = None if found is None else self.elements.get(found.group(1))
        if found is None or entry is None:
            raise self.scanner.undeclared(name, self.declared())
        tensor = entry.tensor
        indices = (found.group(2) or "").replace(",", " ").split()
        if len(indices) != len(tensor.shape):
            raise self.error(
                "the number of indices is not the tensor's", _described(tensor), described(name)
            )
        flat = tensor.offset
        for text, size, stride in zip(indices, tensor.shape, entry.strides, strict=True):
            if len(text) > 9 or int(text) >= size:
                raise self.error(
                    "an index is outside the tensor", _described(tensor), described(name)
                )
            flat += int(text) * stride
        return (tensor.source, flat), tensor.element.lower()

    def declared(self) -> str:
        names = list(self.elements)
        return "one of " + ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")

    def error(
        self, what: str, expected: str, found: str, *, at: Place | None = None
    ) -> FormulaError:
        return self.scanner.error(what, expected, found, at=at)


def _described(tensor: Tensor) -> str:
    return f"{tensor.name} {tensor.element} [{','.join(map(str, tensor.shape))}]"


def read_version2(scanner: Scanner) -> Document:
    """The first two tokens, ``(vnnlib-version``, have been read."""
    return _Version2(scanner).read()
