"""What each ONNX operator does to a value: an exact affine map of the state and a shape.

Operators that only move entries are applied to an array of places; a place of -1 is a zero.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from qll.audit.exact import MOST_ENTRIES, ONE, Affine, Array, affine, diagonal
from qll.audit.onnx_file import Dims, require

UNDERFLOW = Fraction(1, 1 << 125)  # see `qll.audit.float32`
# Roundings of what is more than a sum of products: of a quotient, whose divisor may be rounded and
# inverted first; of a normalisation by a mean and a deviation; and if that is computed, too.
QUOTIENT, SCALED, NORMALISED = 2, 7, 8


class Rounded(NamedTuple):
    """For float32: the sum of sizes of all terms, as a map of the sizes of the state, and for each
    entry how often a term is rounded at most, and how many of these roundings are additions of the
    last sum."""

    size: Affine
    count: Any
    sums: Any

    def moved(self, places: Any) -> Rounded:
        flat = places.ravel()
        counts = (np.where(flat < 0, 0, t[flat]) for t in (self.count, self.sums))
        return Rounded(self.size.take(flat), *counts)

    def plus(self, other: Rounded, own: int) -> Rounded:
        count = np.maximum(self.count, other.count) + own
        return Rounded(self.size.plus(other.size), count, np.full_like(count, own))

    def after(self, step: Affine, own: int | None = None, size: Affine | None = None) -> Rounded:
        """Of ``step`` of this; a sum of products if ``own`` does not say how often it rounds, and
        of the sizes of its own entries if ``size`` is not given."""
        rows, below, counts, sums = [], [], [], []
        for row, under in zip(step.rows, step.below, strict=True):
            terms = {k: abs(n) for k, n in row.items() if n}
            factors = [n for k, n in terms.items() if k != ONE]
            multiplied = any(n != under for n in factors)
            lost = UNDERFLOW * len(factors) if multiplied or own is not None else Fraction(0)
            common = math.lcm(under, lost.denominator)
            found = {k: n * (common // under) for k, n in terms.items()}
            found[ONE] = found.get(ONE, 0) + int(lost * common)
            rows.append(found)
            below.append(common)
            before = max((int(self.count[k]) for k in terms if k != ONE), default=0)
            mine = max(len(terms) - 1, 0) + multiplied if own is None else own
            counts.append(before + mine)
            sums.append(max(len(terms) - 1, 0) if own is None else 0)
        widened = (Affine(rows, below) if size is None else size).after(self.size)
        return Rounded(widened, *(np.array(t, np.float64) for t in (counts, sums)))


class Value(NamedTuple):
    form: Affine
    shape: Dims
    rounded: Rounded | None = None

    def moved(self, places: Any) -> Value:
        rounded = None if self.rounded is None else self.rounded.moved(places)
        return Value(self.form.take(places.ravel()), tuple(places.shape), rounded)

    @property
    def places(self) -> Any:
        return np.arange(math.prod(self.shape)).reshape(self.shape)


def apply(kind: str, given: list[Any], options: dict[str, Any]) -> Value:
    """An affine operator on values and constants (arrays)."""
    values = [g for g in given if isinstance(g, Value)]
    if kind == "Concat":
        return _concat(given, options)
    if len(values) == 2:
        return _sum(kind, *values)
    at = next(i for i, g in enumerate(given) if isinstance(g, Value))
    (value,), others = values, [*given[:at], *given[at + 1 :]]
    require(at == 0 or kind in ("Add", "Sub", "Mul"), f"a constant that goes through {kind}")
    if kind in MOVES:
        moved: Value = MOVES[kind](value, others, options)
        return moved
    step, shape = _operator(kind, value.shape, others, at, options)
    rounded = value.rounded
    if rounded is not None:
        own = {"Div": QUOTIENT, "BatchNormalization": NORMALISED}.get(kind)
        size = _normalisation(value.shape, others, options, 1) if own == NORMALISED else None
        rounded = rounded.after(step, own, size)
    return Value(step.after(value.form), shape, rounded)


def spreads(small: Dims, large: Dims) -> bool:
    """Does a constant of the first shape, repeated, have the second?"""
    last = large[len(large) - len(small) :]
    return len(small) <= len(large) and all(s in (1, n) for s, n in zip(small, last, strict=True))


def _sum(kind: str, left: Value, right: Value) -> Value:
    require(kind in ("Add", "Sub"), f"a {kind} of two values")
    shape = left.shape if spreads(right.shape, left.shape) else right.shape
    require(all(spreads(v.shape, shape) for v in (left, right)), "a sum that does not fit")
    a, b = (v.moved(np.broadcast_to(v.places, shape)) for v in (left, right))
    rounded = a.rounded and b.rounded and a.rounded.plus(b.rounded, 1)
    return Value(a.form.plus(b.form, -1 if kind == "Sub" else 1), shape, rounded)


def reduced(value: Value, axes: list[int], keep: bool, divide: bool) -> Value:
    """Sums or means over axes."""
    rank = len(value.shape)
    fine = axes and all(-rank <= a < rank for a in axes) and all(a % rank for a in axes)
    require(fine and len({a % rank for a in axes}) == len(axes), "a mean of the batch, or such")
    require(value.rounded is None, "a mean in float32")
    last = {a % rank for a in axes}
    rest = [a for a in range(rank) if a not in last]
    shape = tuple(1 if a in last else value.shape[a] for a in range(rank) if keep or a not in last)
    taken = value.places.transpose([*rest, *sorted(last)]).reshape(math.prod(shape), -1)
    rows = np.repeat(np.arange(len(taken)), taken.shape[1])
    step = affine(zip(rows.tolist(), taken.ravel().tolist()), [1] * taken.size, [0] * len(taken))
    step = Affine(step.rows, [taken.shape[1] if divide else 1] * len(taken))
    return Value(step.after(value.form), shape)


def _concat(given: list[Any], options: dict[str, Any]) -> Value:
    require(all(isinstance(g, Value) for g in given), "a concatenation with constants")
    axis, rank = options["axis"], len(given[0].shape)
    fine = -rank <= axis < rank and all(len(g.shape) == rank for g in given) and axis % rank
    require(fine, "a concatenation of the batch, or of no fit")
    offsets = np.cumsum([0, *(len(g.form) for g in given)])
    places = [g.places + offset for g, offset in zip(given, offsets, strict=False)]
    fits = {p.shape[: axis % rank] + p.shape[axis % rank + 1 :] for p in places}
    require(len(fits) == 1, "a concatenation of no fit")
    form, rounded = given[0].form, given[0].rounded
    for other in given[1:]:
        form = form.joined(other.form)
        if rounded is not None:
            pairs = zip(rounded[1:], other.rounded[1:], strict=True)
            size = rounded.size.joined(other.rounded.size)
            rounded = Rounded(size, *(np.concatenate(pair) for pair in pairs))
    whole = Value(form, (1, len(form)), rounded)
    return whole.moved(np.concatenate(places, axis))


# Moves of entries.


def _flatten(value: Value, others: list[Any], options: dict[str, Any]) -> Value:
    require(options.get("axis", 1) == 1, "a flatten of the batch")
    return Value(value.form, (1, len(value.form)), value.rounded)


def _reshape(value: Value, others: list[Any], options: dict[str, Any]) -> Value:
    shape, given = value.shape, others[0]
    wanted = given.ravel().tolist()
    fine = given.ndim == 1 and min(wanted) >= -1 and wanted.count(-1) <= 1
    fine = fine and options.get("allowzero", 0) in ((0,) if 0 in wanted else (0, 1))
    require(fine and all(v or i < len(shape) for i, v in enumerate(wanted)), "such a reshape")
    sizes = [v or shape[i] for i, v in enumerate(wanted)]
    rest, odd = divmod(math.prod(shape), abs(math.prod(sizes)))
    require(not odd and (rest == 1 or -1 in sizes), "a reshape that does not fit")
    sizes = [rest if v == -1 else v for v in sizes]
    require(sizes[0] == 1, "a reshape of the batch")
    return Value(value.form, tuple(sizes), value.rounded)


def _transpose(value: Value, others: list[Any], options: dict[str, Any]) -> Value:
    order = options.get("perm", [*range(len(value.shape))][::-1])
    require(sorted(order) == [*range(len(value.shape))] and order[0] == 0, "such a transpose")
    return value.moved(value.places.transpose(order))


def _pad(value: Value, others: list[Any], options: dict[str, Any]) -> Value:
    rank = len(value.shape)
    fine = options.get("mode", b"constant") == b"constant" and len(others) in (1, 2)
    fine = fine and others[0].shape == (2 * rank,) and not (len(others) == 2 and others[1].any())
    require(fine, "a padding of this form")
    pads = others[0].tolist()
    grown = math.prod(n + pads[i] + pads[i + rank] for i, n in enumerate(value.shape))
    fine = min(pads) >= 0 and pads[0] == pads[rank] == 0 and grown <= MOST_ENTRIES
    require(fine, "a padding of this form")
    widths = [(pads[i], pads[i + rank]) for i in range(rank)]
    return value.moved(np.pad(value.places, widths, constant_values=-1))


def _slice(value: Value, others: list[Any], options: dict[str, Any]) -> Value:
    rank, (starts, ends, *rest) = len(value.shape), others
    count = starts.size
    axes = rest[0].tolist() if rest else [*range(count)]
    steps = rest[1].tolist() if len(rest) > 1 else [1] * count
    fine = all(v.shape == (count,) for v in others) and all(-rank <= a < rank for a in axes)
    fine = fine and len({a % rank for a in axes}) == count and all(a % rank for a in axes)
    require(fine and all(steps), "a slice of the batch, or of this form")
    places = value.places
    for start, end, axis, step in zip(starts.tolist(), ends.tolist(), axes, steps, strict=True):
        size = value.shape[axis]
        least, most = (0, size) if step > 0 else (-1, size - 1)
        first, last = (max(min(v + size * (v < 0), most), least) for v in (start, end))
        kept = [*range(max(first, 0), last, step)]
        require(kept, "an empty slice")
        places = places.take(kept, axis)
    return value.moved(places)


def _pool(value: Value, others: list[Any], options: dict[str, Any]) -> Value:
    """The mean of each window; padding counts only if the file says so."""
    taps, inside = windows(value.shape, options)
    counted = (taps >= (-1 if options.get("count_include_pad", 0) else 0)).sum(1)
    rows, slots = np.nonzero(taps >= 0)
    step = affine(zip(rows.tolist(), taps[rows, slots].tolist()), [1] * len(rows), [0] * len(taps))
    step, rounded = Affine(step.rows, [int(n) for n in counted]), value.rounded
    if rounded is not None:
        rounded = rounded.after(step, taps.shape[1] + QUOTIENT)
    return Value(step.after(value.form), inside, rounded)


def _global(value: Value, others: list[Any], options: dict[str, Any]) -> Value:
    return _pool(value, others, {"kernel_shape": [*value.shape[2:]]})


MOVES: dict[str, Any] = {
    "Identity": lambda value, others, options: value,
    "Dropout": lambda value, others, options: value,
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Pad": _pad,
    "Slice": _slice,
    "AveragePool": _pool,
    "GlobalAveragePool": _global,
}


def taps_of(sizes: Dims, kernel: Any, options: dict[str, Any]) -> tuple[Any, Dims]:
    """Flat places (windows, entries) that a window reads on axes of these sizes, -1 in the padding,
    and how many windows there are on each axis."""
    rank = len(sizes)
    strides, pads = options.get("strides", [1] * rank), options.get("pads", [0] * 2 * rank)
    dilations = options.get("dilations", [1] * rank)
    fine = len(kernel) == len(strides) == len(dilations) == rank and len(pads) == 2 * rank
    fine = fine and 1 <= rank <= 2 and min(*kernel, *strides, *dilations, min(pads) + 1) > 0
    fine = fine and max(*kernel, *strides, *dilations, *pads) < 1 << 20
    fine = fine and options.get("auto_pad", b"NOTSET") == b"NOTSET"
    fine = fine and not options.get("ceil_mode", 0) and not options.get("storage_order", 0)
    require(fine, "a window of this form")
    found, counts = np.zeros((1, 1), np.int64), []
    for axis, size in enumerate(sizes):
        reach = dilations[axis] * (kernel[axis] - 1) + 1
        room = size + pads[axis] + pads[axis + rank] - reach
        require(room >= 0, "a window that is larger than the image")
        counts.append(room // strides[axis] + 1)
        steps = np.arange(counts[-1])[:, None] * strides[axis] - pads[axis]
        here = steps + np.arange(kernel[axis]) * dilations[axis]  # (windows, entries)
        require(found.size * here.size <= MOST_ENTRIES, "windows that are too many")
        inside = (here >= 0) & (here < size)
        flat = np.where(
            (found[:, None, :, None] >= 0) & inside[None, :, None, :],
            found[:, None, :, None] * size + here[None, :, None, :],
            -1,
        )
        found = flat.reshape(len(found) * len(here), -1)
    return found, tuple(counts)


def windows(shape: Dims, options: dict[str, Any]) -> tuple[Any, Dims]:
    """The windows of a pooling: those of every channel, none of which lies in the padding alone."""
    plain = all(n == 1 for n in options.get("dilations", []))
    plain = plain and options.get("count_include_pad", 0) in (0, 1)
    require(len(shape) in (3, 4) and plain, "a pooling of this form")
    kernel = options["kernel_shape"]
    small = all(p < k for p, k in zip(options.get("pads", []), [*kernel, *kernel]))
    require(small, "a window that can lie in the padding")  # and that ONNX Runtime refuses
    taps, counts = taps_of(shape[2:], kernel, options)
    require((taps >= 0).any(1).all(), "a window that lies in the padding")
    require(taps.size * shape[1] <= MOST_ENTRIES, "windows that are too many")
    start = np.arange(shape[1])[:, None, None] * math.prod(shape[2:])
    whole = np.where(taps >= 0, taps + start, -1)
    return whole.reshape(-1, taps.shape[1]), (1, shape[1], *counts)


def _operator(kind: str, shape: Dims, given: Any, at: int, options: Any) -> tuple[Any, Dims]:
    """An operator with constants on a value of this shape, its input number ``at``."""
    size = math.prod(shape)
    one, zero = np.ones(size), np.zeros(size)
    if kind == "Neg":
        return diagonal(-one, zero, one), shape
    if kind in ("Add", "Sub", "Mul", "Div"):
        require(spreads(given[0].shape, shape), "a constant that does not fit")
        require(kind != "Div" or given[0].all(), "a division by zero")
        other = np.broadcast_to(given[0], shape).ravel()
        difference = (one, -other, one) if at == 0 else (-one, other, one)
        forms = {"Add": (one, other, one), "Sub": difference, "Mul": (other, zero, one)}
        return diagonal(*forms.get(kind, (one, zero, other))), shape
    if kind in ("MatMul", "Gemm"):
        plain = options.get("alpha", 1.0) == options.get("beta", 1.0) == 1.0
        plain = plain and options.get("transA", 0) == 0
        plain = plain and options.get("transB", 0) in (0, 1)
        require(plain and (kind == "MatMul" or len(shape) == 2), f"a {kind} of this form")
        weight = given[0] if options.get("transB", 0) else given[0].T
        require(weight.ndim == 2 and weight.shape[1] == shape[-1], "a matrix that does not fit")
        after = *shape[:-1], len(weight)
        require(all(spreads(b.shape, after) for b in given[1:]), "a bias that does not fit")
        bias = [np.broadcast_to(b, after).ravel() for b in given[1:]]
        bias = bias or [np.zeros(math.prod(after))]
        rows, columns = np.nonzero(weight)
        values, repeats = _list(weight[rows, columns]), size // shape[-1]
        require(len(values) * repeats <= MOST_ENTRIES, "a matrix product that is too large")
        places = [
            (r * len(weight) + i, r * shape[-1] + j)  # each row of the value alone
            for r in range(repeats)
            for i, j in zip(rows.tolist(), columns.tolist())
        ]
        return affine(places, values * repeats, _list(bias[0])), after
    if kind == "Conv":
        return _convolution(shape, given[0], given[1:], options)
    require(kind == "BatchNormalization", f"operator {kind} is not understood")
    return _normalisation(shape, given, options, -1), shape


def _normalisation(shape: Dims, given: Any, options: Any, sign: int) -> Affine:
    """``gain (x - mean) / deviation + shift``; with the ``sign`` 1 of the sizes of its terms."""
    size = math.prod(shape)
    one, zero = np.ones(size), np.zeros(size)
    fits = len(shape) > 1 and all(v.shape == (shape[1],) for v in given)
    fits = fits and options.get("training_mode", 0) == 0 and options.get("spatial", 1) == 1
    require(fits, "a normalisation that does not fit")
    variance = given[3].astype(np.float64) + options.get("epsilon", float(np.float32(1e-5)))
    require((variance > 0).all(), "a variance that is not positive")
    parts = (*given[:3], np.sqrt(variance))
    gain, shift, mean, deviation = (np.repeat(v, size // v.size) for v in parts)
    if sign > 0:
        gain, shift, mean = (np.abs(v) for v in (gain, shift, mean))
        # Products may underflow before and after the division.
        zero, shift = zero + 2.0**-124, shift + 2.0**-124
    scaled = diagonal(gain, zero, deviation).after(diagonal(one, sign * mean, one))
    return diagonal(one, shift, one).after(scaled)


def _list(values: Array) -> list[float]:
    return [float(v) for v in values]


def _convolution(shape: Dims, weight: Array, bias: list[Array], options: Any) -> tuple[Any, Dims]:
    groups = options.get("group", 1)
    fits = weight.ndim == len(shape) in (3, 4) and groups > 0 and len(weight) % groups == 0
    fits = fits and shape[1] == weight.shape[1] * groups
    fits = fits and options.get("kernel_shape", [*weight.shape[2:]]) == [*weight.shape[2:]]
    require(fits and not (bias and bias[0].shape != weight.shape[:1]), "a convolution of this form")
    taps, counts = taps_of(shape[2:], [*weight.shape[2:]], options)
    channels, taken = weight.shape[:2]
    full = channels, len(taps), taken, taps.shape[1]
    require(math.prod(full) <= MOST_ENTRIES, "a convolution that is too large")
    first = (np.arange(channels) // (channels // groups) * taken)[:, None] + np.arange(taken)
    columns = (first * math.prod(shape[2:]))[:, None, :, None] + taps[None, :, None, :]
    values = np.broadcast_to(weight.reshape(channels, 1, taken, -1), full)
    kept = np.broadcast_to(taps[None, :, None, :] >= 0, full) & (values != 0)
    rows = np.broadcast_to(np.arange(channels * len(taps)).reshape(channels, -1, 1, 1), full)
    shifts = np.repeat(bias[0] if bias else np.zeros(channels), len(taps))
    places = zip(rows[kept].tolist(), np.broadcast_to(columns, full)[kept].tolist())
    return affine(places, _list(values[kept]), _list(shifts)), (1, channels, *counts)
