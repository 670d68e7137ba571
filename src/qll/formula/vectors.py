"""Vectors of inputs that depend on a few small parameters: ``x0 + c*(x0 - mean(x0)) + b``.

They stand after ``x =`` in the quantifier over points, and say that the region is the image of the
parameters' box under an affine map. Entries are numbers: a number stands for itself at every input,
so that ``x0 + b`` moves all of them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from qll.formula.nodes import Index, Number, Quantity, RegionPart, Span, Text

DIRECTIONS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
AXES = ("row", "column")
PERTURBATIONS = ("brightness", "contrast", "translation")


def _span() -> Span | None:
    return field(default=None, compare=False, repr=False, kw_only=True)


class Vector(Text):
    __slots__ = ()
    span: Span | None


@dataclass(frozen=True, repr=False)
class Same(Vector):
    """A number or a parameter of the property, at every input."""

    value: Quantity
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Moving(Vector):
    """A small parameter, at every input."""

    name: str
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Point(Vector):
    """``x0``, or for x2 also ``x``."""

    source: Literal["x0", "x"]
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Listed(Vector):
    """A number for each input, or for those ``at`` which it is given and 0 for the others."""

    values: tuple[Quantity, ...]
    at: tuple[Index, ...] = ()
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Mean(Vector):
    """The mean of the data point's inputs."""

    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Shifted(Vector):
    """The data point as a picture, moved by whole pixels; what comes in is 0."""

    direction: str
    pixels: int = 1
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Axis(Vector):
    """The number of each pixel's row, or of its column, from 0."""

    axis: str
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Added(Vector):
    parts: tuple[Vector, ...]
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Product(Vector):
    """Entry by entry; one of the two depends on no parameter that moves."""

    left: Vector
    right: Vector
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Quotient(Vector):
    body: Vector
    divisor: float
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Minus(Vector):
    body: Vector
    span: Span | None = _span()


def parts_of(vector: Vector) -> tuple[Vector, ...]:
    match vector:
        case Added(parts):
            return parts
        case Product(left, right):
            return (left, right)
        case Quotient(body) | Minus(body):
            return (body,)
    return ()


def walk_vector(vector: Vector) -> Iterator[Vector]:
    yield vector
    for part in parts_of(vector):
        yield from walk_vector(part)


# --- regions ------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Small(Text):
    """``b in [-0.1, 0.1]``: a parameter that moves, and its ends."""

    name: str
    lower: Quantity
    upper: Quantity
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Image(RegionPart):
    """``b in [-0.1, 0.1], x = x0 + b``: the image of the parameters' box."""

    body: Vector
    smalls: tuple[Small, ...]
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Perturbed(RegionPart):
    """``brightness(x0, 0.1)``: a change of a picture that has a name."""

    kind: str
    centre: Literal["x0", "x"]
    amount: Quantity
    span: Span | None = _span()


# --- as text ------------------------------------------------------------------------------------

_SUM, _PRODUCT, _ATOM = range(3)


@dataclass(frozen=True)
class Signs:
    """How quantities, indices and points are printed, and the sign of a product."""

    quantity: Callable[[Quantity], str]
    index: Callable[[Index], str]
    point: Callable[[str], str]
    times: str = "*"
    braces: tuple[str, str] = ("{", "}")


def vector_text(vector: Vector, signs: Signs) -> str:
    return _text(vector, signs)[0]


def _text(vector: Vector, signs: Signs) -> tuple[str, int]:
    show = signs.quantity

    def inner(part: Vector, level: int) -> str:
        text, own = _text(part, signs)
        return text if own >= level else f"({text})"

    match vector:
        case Same(value):
            return show(value), _ATOM
        case Moving(name) | Axis(name):
            return name, _ATOM
        case Point(source):
            return signs.point(source), _ATOM
        case Listed(values, at):
            if at:
                pairs = zip(at, values, strict=True)
                inside = ", ".join(f"{signs.index(k)}: {show(v)}" for k, v in pairs)
                return signs.braces[0] + inside + signs.braces[1], _ATOM
            return f"[{', '.join(map(show, values))}]", _ATOM
        case Mean():
            return f"mean({signs.point('x0')})", _ATOM
        case Shifted(direction, pixels):
            more = f", {pixels}" if pixels != 1 else ""
            return f"{direction}({signs.point('x0')}{more})", _ATOM
        case Product(left, right):
            return f"{inner(left, _PRODUCT)}{signs.times}{inner(right, _ATOM)}", _PRODUCT
        case Quotient(body, divisor):
            return f"{inner(body, _PRODUCT)}/{show(Number(divisor))}", _PRODUCT
        case Minus(body):
            return f"-{inner(body, _ATOM)}", _PRODUCT
        case Added(parts):
            text = inner(parts[0], _PRODUCT)
            for part in parts[1:]:
                if isinstance(part, Minus):
                    text += f" - {inner(part.body, _ATOM)}"
                else:
                    text += f" + {inner(part, _PRODUCT)}"
            return text, _SUM
    raise TypeError(f"no printer for {type(vector).__name__}")
