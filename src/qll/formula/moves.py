"""Images of a few parameters: checked, resolved for a shape, and evaluated in any arithmetic.

A vector (`vectors`) is affine in the parameters that move: for each of them, and for x where x2
depends on it, a vector of coefficients, and one vector more that stands alone. Prover and checker
evaluate it in rational numbers at the data point, attacks and training in tensors at a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, Protocol, TypeVar

from qll.errors import FormulaError
from qll.formula.hard import Affine, affine
from qll.formula.nodes import Index, Number, Quantity, Span
from qll.formula.vectors import (
    DIRECTIONS,
    Added,
    Axis,
    Image,
    Listed,
    Mean,
    Minus,
    Moving,
    Perturbed,
    Point,
    Product,
    Quotient,
    Same,
    Shifted,
    Vector,
    walk_vector,
)

V = TypeVar("V")
# Key of the coefficients of x, where x2 depends on it; no parameter is called so.
FIRST = "x"
# Pixels of a translation: a parameter for each of them in four directions.
MOST_PIXELS = 16


@dataclass(frozen=True)
class Move:
    """``body`` with every number resolved; ``smalls`` are the parameters that move, with their
    ends. ``choices``, of which one holds, fix some of them: ``((number, value), ...)``."""

    body: Vector
    smalls: tuple[tuple[str, float, float], ...]
    shape: tuple[int, ...]
    choices: tuple[tuple[tuple[int, float], ...], ...] = ((),)


# --- what can be wrong --------------------------------------------------------------------------


def check_image(image: Image, point: str, constant: Callable[[Quantity, str], None]) -> None:
    """``constant`` says what is wrong with a quantity that should be a number."""
    for small in image.smalls:
        for end in (small.lower, small.upper):
            constant(end, f"an end of '{small.name}'")
    used = set[str]()
    for node in walk_vector(image.body):
        match node:
            case Same(value):
                constant(value, "a coefficient")
            case Listed(values):
                for value in values:
                    constant(value, "a coefficient")
            case Moving(name):
                used.add(name)
            case Point(source) if source not in ("x0", "x") or source == point:
                raise _error(
                    f"{point} depends on itself",
                    "x0, or x for x2",
                    source,
                    "use x0",
                    node.span,
                )
    known = {small.name for small in image.smalls}
    if not used <= known:
        raise _error(
            f"'{min(used - known)}' moves another point already",
            "parameters that are bound before the point that they move",
            f"'{min(used - known)}' again",
            f"bind another one before {point} = ...",
            image.span,
        )
    if known - used:
        raise _error(
            f"parameter '{min(known - used)}' moves no point",
            f"that {point} depends on it",
            "that it does not",
            "leave it out",
            image.span,
        )
    _varies(image.body)


def _varies(vector: Vector) -> bool:
    """Whether it depends on what moves; a product of two that do is not affine."""
    match vector:
        case Moving() | Point("x"):
            return True
        case Product(left, right):
            both = _varies(left), _varies(right)
            if all(both):
                raise _error(
                    "this multiplies two parameters that move",
                    "a parameter times something of the data, or times numbers",
                    "a product of two that move: it is not affine",
                    "bound the product by a parameter of its own",
                    vector.span,
                )
            return any(both)
        case Added(parts):
            every = [_varies(part) for part in parts]  # all of them are looked at
            return any(every)
        case Quotient(body) | Minus(body):
            return _varies(body)
    return False


def _error(what: str, expected: str, found: str, fix: str, span: Span | None) -> FormulaError:
    where = None if span is None else str(span)
    return FormulaError(what, expected=expected, found=found, fix=fix, where=where)


# --- for a shape --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resolver:
    """``number`` and ``place`` are those of a `Grounder`: of a quantity, and of a named input."""

    number: Callable[[Quantity], float]
    place: Callable[[Index], int]
    shape: tuple[int, ...]

    def move(self, part: Image | Perturbed) -> Move:
        if isinstance(part, Perturbed):
            return self._named(part)
        smalls = []
        for small in part.smalls:
            low, high = self.number(small.lower), self.number(small.upper)
            if not (low <= high and max(abs(low), abs(high)) < float("inf")):
                raise _error(
                    f"the ends of '{small.name}' are no interval",
                    "the least number first, both finite",
                    f"[{low:g}, {high:g}]",
                    "check the ends",
                    small.span,
                )
            smalls.append((small.name, low, high))
        return Move(self._resolved(part.body), tuple(smalls), self.shape)

    def _named(self, part: Perturbed) -> Move:
        amount = self.number(part.amount)
        if not 0 <= amount < float("inf"):
            raise _error(
                f"the amount of {part.kind} is no size",
                "0 or more",
                f"{amount:g}",
                "check its sign",
                part.span,
            )
        here = Point(part.centre)
        if part.kind == "translation":
            return self._translation(part, amount)
        name = part.kind
        body: Vector = Added((here, Moving(name)))
        if part.kind == "contrast":
            away = Added((here, Minus(Mean())))
            body = Added((here, Product(Moving(name), away)))
        return Move(body, ((name, -amount, amount),), self.shape)

    def _translation(self, part: Perturbed, amount: float) -> Move:
        """Along a row or a column by up to ``amount`` pixels, each step interpolated linearly: for
        every whole pixel a parameter from 0 to 1, and in each case one that moves, those before it
        at 1 and the others at 0."""
        pixels = int(amount)
        if pixels != amount or not 1 <= pixels <= MOST_PIXELS:
            raise _error(
                "a translation is not by a number of pixels",
                f"a whole number from 1 to {MOST_PIXELS}",
                f"{amount:g}",
                "for a part of a pixel write t in [0, 0.5], x = x0 + t*(right(x0) - x0)",
                part.span,
            )
        smalls, choices = list[tuple[str, float, float]](), list[tuple[int, int]]()
        parts: list[Vector] = [Point("x0")]
        for direction in DIRECTIONS:
            first = len(smalls)
            for step in range(1, pixels + 1):
                name = f"{direction} {step}"
                before: Vector = Shifted(direction, step - 1) if step > 1 else Point("x0")
                after = Added((Shifted(direction, step), Minus(before)))
                parts.append(Product(Moving(name), after))
                smalls.append((name, 0.0, 1.0))
            for step in range(pixels):
                choices.append((first, first + step))
        fixed = []
        for first, moving in choices:
            values = ((k, 1.0 if first <= k < moving else 0.0) for k in range(len(smalls)))
            fixed.append(tuple((k, v) for k, v in values if k != moving))
        for node in parts:
            self._resolved(node)  # a picture it must be
        return Move(Added(tuple(parts)), tuple(smalls), self.shape, tuple(fixed))

    def _resolved(self, vector: Vector) -> Vector:
        match vector:
            case Same(value):
                return Same(Number(self.number(value)))
            case Listed(values, at):
                size = _size(self.shape)
                numbers = [self.number(value) for value in values]
                if at:
                    whole = [0.0] * size
                    for index, number in zip(at, numbers, strict=True):
                        whole[self.place(index)] = number
                    numbers = whole
                if len(numbers) != size:
                    raise _error(
                        "a list of numbers does not fit the input",
                        f"{size} numbers",
                        f"{len(numbers)}",
                        'give one for each input, or name some: {"age": 1}',
                        vector.span,
                    )
                return Listed(tuple(map(Number, numbers)))
            case Shifted() | Axis():
                _picture(self.shape, vector)
                return vector
            case Added(parts):
                return Added(tuple(map(self._resolved, parts)))
            case Product(left, right):
                return Product(self._resolved(left), self._resolved(right))
            case Quotient(body, divisor):
                return Quotient(self._resolved(body), divisor)
            case Minus(body):
                return Minus(self._resolved(body))
        return vector


def _size(shape: tuple[int, ...]) -> int:
    found = 1
    for length in shape:
        found *= length
    return found


def _picture(shape: tuple[int, ...], node: Vector) -> tuple[int, int]:
    if len(shape) not in (2, 3):
        raise _error(
            "rows and columns of an input that is no picture",
            "inputs of shape (height, width) or (channels, height, width)",
            f"{shape}",
            'move inputs by name: x = x0 + t*{"age": 1}',
            node.span,
        )
    return shape[-2], shape[-1]


# --- in any arithmetic --------------------------------------------------------------------------


class Arithmetic(Protocol[V]):
    """Vectors with an entry for each input, or one number for all."""

    def number(self, value: float) -> V: ...

    def listed(self, values: Sequence[float]) -> V: ...

    def data(self) -> V: ...

    def mean(self) -> V: ...

    def taken(self, places: Sequence[int]) -> V: ...

    def added(self, one: V, other: V) -> V: ...

    def times(self, one: V, other: V) -> V: ...

    def over(self, one: V, divisor: float) -> V: ...


class Evaluation(Generic[V]):
    def __init__(self, move: Move, arithmetic: Arithmetic[V]) -> None:
        self.move, self.arithmetic = move, arithmetic

    def run(self) -> dict[str | None, V]:
        """Coefficients by the parameter's name, of x by `FIRST`; None is what stands alone."""
        return self._of(self.move.body)

    def _of(self, vector: Vector) -> dict[str | None, V]:
        use = self.arithmetic
        match vector:
            case Same(value):
                return {None: use.number(value.value)}  # type: ignore[attr-defined]
            case Moving(name):
                return {name: use.number(1.0)}
            case Point("x"):
                return {FIRST: use.number(1.0)}
            case Point():
                return {None: use.data()}
            case Listed(values):
                return {None: use.listed([v.value for v in values])}  # type: ignore[attr-defined]
            case Mean():
                return {None: use.mean()}
            case Shifted():
                return {None: use.taken(shifted_places(self.move.shape, vector))}
            case Axis(axis):
                height, width = _picture(self.move.shape, vector)
                size = _size(self.move.shape)
                at = [(k // width % height) if axis == "row" else k % width for k in range(size)]
                return {None: use.listed([float(v) for v in at])}
            case Added(parts):
                total: dict[str | None, V] = {}
                for part in parts:
                    for key, more in self._of(part).items():
                        total[key] = use.added(total[key], more) if key in total else more
                return total
            case Product(left, right):
                one, other = self._of(left), self._of(right)
                if set(one) != {None}:
                    one, other = other, one
                (factor,) = one.values()
                return {key: use.times(factor, value) for key, value in other.items()}
            case Quotient(body, divisor):
                return {key: use.over(value, divisor) for key, value in self._of(body).items()}
            case Minus(body):
                minus = use.number(-1.0)
                return {key: use.times(minus, value) for key, value in self._of(body).items()}
        raise TypeError(f"no value for {type(vector).__name__}")


def shifted_places(shape: tuple[int, ...], node: Shifted) -> list[int]:
    """For each entry, which entry it takes its value from; -1: none."""
    height, width = _picture(shape, node)
    down, right = (step * node.pixels for step in DIRECTIONS[node.direction])
    found = []
    for k in range(_size(shape)):
        row, column = k // width % height - down, k % width - right
        inside = 0 <= row < height and 0 <= column < width
        found.append(k - down * width - right if inside else -1)
    return found


@dataclass(frozen=True)
class Rational:
    """Entries as fractions, at one data point."""

    x0: Sequence[float]

    def number(self, value: float) -> Any:
        return Fraction(value)

    def listed(self, values: Sequence[float]) -> Any:
        return [Fraction(v) for v in values]

    def data(self) -> Any:
        return [Fraction(float(v)) for v in self.x0]

    def mean(self) -> Any:
        return sum(self.data(), Fraction(0)) / len(self.x0)

    def taken(self, places: Sequence[int]) -> Any:
        data = self.data()
        return [data[k] if k >= 0 else Fraction(0) for k in places]

    def added(self, one: Any, other: Any) -> Any:
        return self._each(lambda a, b: a + b, one, other)

    def times(self, one: Any, other: Any) -> Any:
        return self._each(lambda a, b: a * b, one, other)

    def over(self, one: Any, divisor: float) -> Any:
        return self.times(one, 1 / Fraction(divisor))

    def _each(self, act: Any, one: Any, other: Any) -> Any:
        if not isinstance(one, list) and not isinstance(other, list):
            return act(one, other)
        size = len(self.x0)
        return list(map(act, self.spread(one, size), self.spread(other, size)))

    def spread(self, value: Any, size: int) -> list[Fraction]:
        return value if isinstance(value, list) else [value] * size


def rows_of(move: Move, x0: Sequence[float], first: int, x: Sequence[Affine]) -> list[Affine]:
    """Every entry as a function of variables ``("x", number)``: the parameters of the move are
    those from ``first`` on, and the entries of x are given."""
    use = Rational(x0)
    found = Evaluation(move, use).run()
    size = len(x0)
    numbers = {name: first + k for k, (name, _, _) in enumerate(move.smalls)}
    alone = use.spread(found.pop(None, Fraction(0)), size)
    spread = {key: use.spread(value, size) for key, value in found.items()}
    rows = []
    for k in range(size):
        terms, constant = [], alone[k]
        for key, values in spread.items():
            if key == FIRST:
                terms += [(slot, c * values[k]) for slot, c in x[k].terms]
                constant += values[k] * Fraction(x[k].constant)
            else:
                terms.append((("x", numbers[str(key)]), values[k]))
        rows.append(affine(terms, constant))
    return rows
