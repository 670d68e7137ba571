"""From a certificate to what has to be proved: a box, and a tree of linear atoms.

The file is magic, the SHA-256 of the rest, then compressed: a JSON header, whose ``arrays`` lists
name, type and length of each array, and the bytes of these. Every length is checked before anything
is read, and nothing but numbers is ever built. The property's text is read by `qll.formula`, so
that the claim rests on the text alone; hashes say that the prover meant the same box and formula.
"""

import hashlib
import json
import zlib
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from qll.audit.network import Array, Network, NotConfirmed, affine, require
from qll.formula.hard import Affine, HardForm, Max, negated, sources
from qll.formula.question import question
from qll.formula.rewrite import Shape

MAGIC, MOST_BYTES = b"QLLCERT1", 1 << 28
TYPES = ("u1", "i1", "<u2", "<u4", "<f2", "<f4", "<f8")
# How the property is violated: an atom's number (it is > 0), a constant, all parts or any part.
Tree: TypeAlias = "bool | int | tuple[str, tuple[Tree, ...]]"


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and arrays. The checksum finds accidents; a forger's file has a fitting one."""
    start = len(MAGIC) + 32
    require(data.startswith(MAGIC) and len(data) > start, "not a certificate")
    intact = hashlib.sha256(data[start:]).digest() == data[len(MAGIC) : start]
    require(intact, "the file is damaged: its checksum differs")
    try:
        reader = zlib.decompressobj()
        raw = reader.decompress(data[start:], MOST_BYTES)
        require(reader.eof and not reader.unused_data, "the file is cut or too large")
        at = 4 + int.from_bytes(raw[:4], "little")
        require(at <= len(raw), "the header is cut")
        header, arrays = json.loads(raw[4:at]), dict[str, Any]()
        for name, kind, size in header["arrays"]:
            require(kind in TYPES and type(size) is int and size >= 0, "a bad array")
            end = at + size * np.dtype(kind).itemsize
            require(end <= len(raw) and name not in arrays, "an array is cut")
            arrays[str(name)] = np.frombuffer(raw[at:end], dtype=kind)
            at = end
        require(at == len(raw), "bytes are left over")
    except (zlib.error, ValueError, TypeError, KeyError, RecursionError) as error:
        raise NotConfirmed(f"the file is damaged: {error}") from error
    return header, arrays


class Claim:
    """No point of the box violates ``tree`` over atoms: the outputs of ``network``, here the given
    one with the atoms as its last layer, plus ``inputs @ x``. The last ``required`` atoms are >= 0
    inside the region's constraints."""

    def __init__(self, header: dict[str, Any], x0: Array, network: Network) -> None:
        pairs = tuple((str(k), float(v)) for k, v in header["parameters"].items())
        labels = None if header["labels"] is None else tuple(map(int, header["labels"]))
        self.widths, self.tie_violates = network.widths, bool(header["tie_violates"])
        shape = Shape(self.widths[-1], network.input_shape)
        ends, constraints, form = question(header["text"], pairs, labels, shape)
        require(x0.size == self.widths[0] and np.isfinite(x0).all(), "a data point of no fit")
        self.lower, self.upper = np.full_like(x0, -np.inf), np.full_like(x0, np.inf)
        for radius, low, high in ends:
            fits = len(low) in (0, 1, x0.size) and len(high) in (0, 1, x0.size)
            require(fits and radius >= 0, "a region of no fit")
            self.lower = np.maximum(self.lower, np.array(low) if low else x0 - radius)
            self.upper = np.minimum(self.upper, np.array(high) if high else x0 + radius)
        bounded = np.isfinite(self.upper - self.lower) & (self.lower <= self.upper)
        region, formula = self.lower.tobytes() + self.upper.tobytes(), repr((form, constraints))
        require(bounded.all(), "no bounded region")
        require(header["region"] == digest(region), "another region")
        require(header["ground"] == digest(formula.encode()), "another formula")
        asked = "y0" in sources(Max((form, *constraints)))
        self.points = {"x0": x0.tolist(), "y0": network.exact(x0.tolist()) if asked else []}
        self.atoms: dict[Any, int] = {}  # terms and constant to the atom's number
        self.tree, self.required = self._tree(form), len(constraints)
        for i, constraint in enumerate(constraints):
            self._atom(negated(constraint), i)
        outputs, self.direct = dict[tuple[int, int], Fraction](), list[dict[int, Fraction]]()
        for (terms, _, _), row in self.atoms.items():
            self.direct.append({index: c for (source, index), c in terms if source == "x"})
            outputs |= {(row, index): c for (source, index), c in terms if source == "y"}
        self.inputs = np.zeros((len(self.atoms), self.widths[0]))  # off by at most 2^-53
        for row, own in enumerate(self.direct):
            self.inputs[row, list(own)] = [float(c) for c in own.values()]
        totals = [total for _, total, _ in self.atoms]
        last = affine(outputs, list(outputs.values()), totals, self.widths[-1])
        self.network = replace(network, maps=(*network.maps[:-1], last.after(network.maps[-1])))

    def _tree(self, form: HardForm) -> Tree:
        if isinstance(form, Affine):
            return self._atom(form)
        absorbing = isinstance(form, Max)  # a maximum is violated as soon as one part is
        name, kept = "any" if absorbing else "all", list[Tree]()
        for part in [self._tree(part) for part in form.parts]:
            if part is absorbing:
                return absorbing
            if isinstance(part, tuple) and part[0] == name:
                kept.extend(part[1])
            elif not isinstance(part, bool) and part not in kept:
                kept.append(part)
        return (name, tuple(kept)) if len(kept) > 1 else kept[0] if kept else not absorbing

    def _atom(self, atom: Any, constraint: int = -1) -> Tree:
        """Its number, with x0 and y0, the network's outputs there, as exact constants. An atom that
        is constant is decided at once, unless it is a ``constraint``."""
        total, terms = Fraction(atom.constant), []
        for (source, index), c in atom.terms:
            size = {"y": self.widths[-1], "x": self.widths[0]}.get(source, 0)
            exists = 0 <= index < (size or len(self.points.get(source, ())))
            require(exists, f"{source}[{index}] does not exist")
            if size:
                terms.append(((source, index), c))
            else:
                total += Fraction(c) * Fraction(self.points[source][index])
        if not terms and constraint < 0:
            return total >= 0 if self.tie_violates else total > 0
        return self.atoms.setdefault((tuple(terms), total, constraint), len(self.atoms))

    def replay(self, witness: Array) -> None:
        """The point is in the region and violates the property, in rational arithmetic."""
        require(witness.shape == self.lower.shape, "a witness of another size")
        inside = (witness >= self.lower).all() and (witness <= self.upper).all()
        require(inside, "the witness lies outside the region")
        x = [Fraction(v) for v in witness.tolist()]
        direct = [sum(c * x[k] for k, c in own.items()) for own in self.direct]
        values = [a + b for a, b in zip(self.network.exact(x), direct, strict=True)]
        allowed = all(v >= 0 for v in values[len(values) - self.required :])
        require(allowed, "the witness breaks a constraint of the region")

        def violated(tree: Tree) -> bool:
            if isinstance(tree, tuple):
                return (any if tree[0] == "any" else all)(violated(part) for part in tree[1])
            value = Fraction(1 if tree else -1) if isinstance(tree, bool) else values[tree]
            return value >= 0 if self.tie_violates else value > 0

        require(violated(self.tree), "the witness satisfies the property")
