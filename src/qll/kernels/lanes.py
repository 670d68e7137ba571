"""``WIDTH`` float64 numbers as one numba type that follows numpy's spelling.

A logic states its functions as numpy code on rows ``(n, samples)``. Here the same functions are
compiled with ``v[i]`` a vector instead of a row: arithmetic, comparisons, ``&``, ``|``, and of
numpy ``exp, log, maximum, minimum, where, abs``. There is no branch on a sample's value, so all
samples of a vector go the same way. exp and log are within 2 units in the last place.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.extending import (
    lower_builtin,
    lower_cast,
    overload,
    register_jitable,
    register_model,
)
from numba.core.typing.templates import AbstractTemplate, infer_global, signature

from qll.kernels.simd import address_of, intrinsic

WIDTH = 8


def spell(symbol: Any) -> Callable[[Callable[..., Any]], Any]:
    """What a numpy function or operator means on these types."""
    # Not strict: the annotations of the two signatures need not be the same.
    decorate: Callable[[Callable[..., Any]], Any] = overload(symbol, strict=False)
    return decorate


_DOUBLE = ir.DoubleType()
_NUMBERS = ir.VectorType(_DOUBLE, WIDTH)
_INDICES = ir.VectorType(ir.IntType(32), WIDTH)
_WORDS = ir.VectorType(ir.IntType(64), WIDTH)
_TRUTHS = ir.VectorType(ir.IntType(1), WIDTH)


class NumbersType(types.Type):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(name=f"float64x{WIDTH}")


class TruthsType(types.Type):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(name=f"truthx{WIDTH}")


class RowsType(types.Type):  # type: ignore[misc]
    """A pointer to rows of ``WIDTH`` numbers."""

    def __init__(self) -> None:
        super().__init__(name=f"rows_of_float64x{WIDTH}")


class SingleRowsType(types.Type):  # type: ignore[misc]
    """A pointer to rows of ``WIDTH`` float32 numbers, which are read and written as float64."""

    def __init__(self) -> None:
        super().__init__(name=f"rows_of_float32x{WIDTH}")


numbers, truths, rows = NumbersType(), TruthsType(), RowsType()
single_rows = SingleRowsType()


@register_model(NumbersType)
class _NumbersModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _NUMBERS)


@register_model(TruthsType)
class _TruthsModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _TRUTHS)


@register_model(RowsType)
class _RowsModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _DOUBLE.as_pointer())


@register_model(SingleRowsType)
class _SingleRowsModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, ir.FloatType().as_pointer())


def _splat(builder: Any, number: Any) -> Any:
    one = builder.insert_element(ir.Constant(_NUMBERS, ir.Undefined), number, ir.IntType(32)(0))
    order = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
    return builder.shuffle_vector(one, ir.Constant(_NUMBERS, ir.Undefined), order)


def _constant(kind: Any, value: Any) -> Any:
    return ir.Constant(kind, [value] * WIDTH)


@lower_cast(types.Float, NumbersType)  # type: ignore[untyped-decorator]
@lower_cast(types.Integer, NumbersType)  # type: ignore[untyped-decorator]
def _broadcast(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
    return _splat(builder, context.cast(builder, value, fromty, types.float64))


@intrinsic
def _read(typingctx: Any, source: Any, index: Any) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = builder.gep(args[0], [builder.mul(args[1], ir.IntType(64)(WIDTH))])
        loaded = builder.load(builder.bitcast(place, _NUMBERS.as_pointer()))
        loaded.align = 8
        return loaded

    return numbers(rows, types.int64), code


@intrinsic
def _write(typingctx: Any, target: Any, index: Any, value: Any) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = builder.gep(args[0], [builder.mul(args[1], ir.IntType(64)(WIDTH))])
        builder.store(args[2], builder.bitcast(place, _NUMBERS.as_pointer())).align = 8
        return context.get_dummy_value()

    return types.void(rows, types.int64, numbers), code


_SINGLES = ir.VectorType(ir.FloatType(), WIDTH)


@intrinsic
def _read_single(typingctx: Any, source: Any, index: Any) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = builder.gep(args[0], [builder.mul(args[1], ir.IntType(64)(WIDTH))])
        loaded = builder.load(builder.bitcast(place, _SINGLES.as_pointer()))
        loaded.align = 4
        return builder.fpext(loaded, _NUMBERS)

    return numbers(single_rows, types.int64), code


@intrinsic
def _write_single(typingctx: Any, target: Any, index: Any, value: Any) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = builder.gep(args[0], [builder.mul(args[1], ir.IntType(64)(WIDTH))])
        short = builder.fptrunc(args[2], _SINGLES)
        builder.store(short, builder.bitcast(place, _SINGLES.as_pointer())).align = 4
        return context.get_dummy_value()

    return types.void(single_rows, types.int64, numbers), code


def _place(context: Any, builder: Any, kind: Any, array: Any, offset: Any, element: Any) -> Any:
    return builder.bitcast(address_of(context, builder, kind, array, offset), element.as_pointer())


@intrinsic
def read_numbers(typingctx: Any, array: Any, offset: Any) -> Any:
    """``WIDTH`` numbers of a one-dimensional array."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = _place(context, builder, sig.args[0], args[0], args[1], _NUMBERS)
        loaded = builder.load(place)
        loaded.align = 8
        return loaded

    return numbers(array, types.intp), code


@intrinsic
def write_numbers(typingctx: Any, array: Any, offset: Any, value: Any) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = _place(context, builder, sig.args[0], args[0], args[1], _NUMBERS)
        builder.store(args[2], place).align = 8
        return context.get_dummy_value()

    return types.void(array, types.intp, numbers), code


def _elements(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """Pointers to ``array[offset + indices[at + k]]``, one a lane."""
    indices = _place(context, builder, sig.args[2], args[2], args[3], _INDICES)
    loaded = builder.load(indices)
    loaded.align = 4
    start = address_of(context, builder, sig.args[0], args[0], args[1])
    first = builder.insert_element(
        ir.Constant(_WORDS, ir.Undefined),
        builder.ptrtoint(start, ir.IntType(64)),
        ir.IntType(32)(0),
    )
    every = builder.shuffle_vector(first, ir.Constant(_WORDS, ir.Undefined), _constant(_INDICES, 0))
    steps = builder.shl(builder.sext(loaded, _WORDS), _constant(_WORDS, 3))
    return builder.inttoptr(builder.add(every, steps), ir.VectorType(_DOUBLE.as_pointer(), WIDTH))


@intrinsic
def gather(typingctx: Any, array: Any, offset: Any, indices: Any, at: Any) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        places = _elements(context, builder, sig, args)
        kind = ir.FunctionType(_NUMBERS, [places.type, ir.IntType(32), _TRUTHS, _NUMBERS])
        name = f"llvm.masked.gather.v{WIDTH}f64.v{WIDTH}p0"
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        every, none = _constant(_TRUTHS, 1), _constant(_NUMBERS, 0.0)
        return builder.call(function, [places, ir.IntType(32)(8), every, none])

    return numbers(array, types.intp, indices, types.intp), code


@intrinsic
def scatter(typingctx: Any, array: Any, offset: Any, indices: Any, at: Any, value: Any) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        places = _elements(context, builder, sig, args)
        kind = ir.FunctionType(ir.VoidType(), [_NUMBERS, places.type, ir.IntType(32), _TRUTHS])
        name = f"llvm.masked.scatter.v{WIDTH}f64.v{WIDTH}p0"
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        builder.call(function, [args[4], places, ir.IntType(32)(8), _constant(_TRUTHS, 1)])
        return context.get_dummy_value()

    return types.void(array, types.intp, indices, types.intp, numbers), code


@spell(operator.getitem)
def _getitem(source: Any, index: Any) -> Any:
    if source == rows:
        return lambda source, index: _read(source, index)
    if source == single_rows:
        return lambda source, index: _read_single(source, index)
    return None


@spell(operator.setitem)
def _setitem(target: Any, index: Any, value: Any) -> Any:
    if target == rows:
        return lambda target, index, value: _write(target, index, value)
    if target == single_rows:
        return lambda target, index, value: _write_single(target, index, value)
    return None


def _fits(args: Any, kind: Any) -> bool:
    """All vectors, or vectors and plain numbers, which are then broadcast."""
    return any(a == kind for a in args) and all(
        a == kind or (kind == numbers and isinstance(a, types.Number)) for a in args
    )


def _define(symbol: Any, operand: Any, result: Any, count: int, code: Any) -> None:
    @infer_global(symbol)
    class _Typing(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: Any, kws: Any) -> Any:
            if not kws and len(args) == count and _fits(args, operand):
                return signature(result, *[operand] * count)
            return None

    @lower_builtin(symbol, *[type(operand)] * count)  # type: ignore[untyped-decorator]
    def _lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return code(builder, *args)


def _arithmetic(instruction: str) -> Any:
    # No reassociation: exp and log below rely on the order of their roundings.
    return lambda builder, a, b: getattr(builder, instruction)(a, b, flags=("contract",))


def _comparison(relation: str) -> Any:
    return lambda builder, a, b: builder.fcmp_ordered(relation, a, b)


for _symbol, _name in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
    (operator.iadd, "fadd"),
    (operator.isub, "fsub"),
    (operator.imul, "fmul"),
    (operator.itruediv, "fdiv"),
):
    _define(_symbol, numbers, numbers, 2, _arithmetic(_name))
for _symbol, _name in (
    (operator.lt, "<"),
    (operator.le, "<="),
    (operator.gt, ">"),
    (operator.ge, ">="),
    (operator.eq, "=="),
):
    _define(_symbol, numbers, truths, 2, _comparison(_name))
_define(operator.ne, numbers, truths, 2, lambda b, x, y: b.fcmp_unordered("!=", x, y))
_define(operator.neg, numbers, numbers, 1, lambda b, x: b.fsub(_constant(_NUMBERS, -0.0), x))
_define(operator.and_, truths, truths, 2, lambda b, x, y: b.and_(x, y))
_define(operator.or_, truths, truths, 2, lambda b, x, y: b.or_(x, y))


@intrinsic
def _choose(typingctx: Any, mask: Any, a: Any, b: Any) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(*args)

    return numbers(truths, numbers, numbers), code


@spell(np.where)
def _where(condition: Any, x: Any, y: Any) -> Any:
    if condition == truths:
        return lambda condition, x, y: _choose(condition, x, y)
    return None


@spell(np.maximum)
def _maximum(x: Any, y: Any) -> Any:
    if _fits((x, y), numbers):
        return lambda x, y: _choose(x > y, x, y)
    return None


@spell(np.minimum)
def _minimum(x: Any, y: Any) -> Any:
    if _fits((x, y), numbers):
        return lambda x, y: _choose(x < y, x, y)
    return None


@spell(np.abs)
def _abs(x: Any) -> Any:
    if x == numbers:
        return lambda x: _choose(x < 0.0, -x, x)
    return None


@intrinsic
def _power_of_two(typingctx: Any, shifted: Any) -> Any:
    """``2 ** k`` for a number ``k + 1.5 * 2**52``: its lowest bits are k."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = builder.shl(builder.bitcast(args[0], _WORDS), _constant(_WORDS, 52))
        one = _constant(_WORDS, 0x3FF0000000000000)
        return builder.bitcast(builder.add(bits, one), _NUMBERS)

    return numbers(numbers), code


@intrinsic
def _exponent(typingctx: Any, x: Any) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = builder.lshr(builder.bitcast(args[0], _WORDS), _constant(_WORDS, 52))
        return builder.sitofp(builder.sub(bits, _constant(_WORDS, 1023)), _NUMBERS)

    return numbers(numbers), code


@intrinsic
def _mantissa(typingctx: Any, x: Any) -> Any:
    """The number scaled by a power of two into [1, 2)."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = builder.and_(builder.bitcast(args[0], _WORDS), _constant(_WORDS, (1 << 52) - 1))
        one = _constant(_WORDS, 0x3FF0000000000000)
        return builder.bitcast(builder.or_(bits, one), _NUMBERS)

    return numbers(numbers), code


LOG2_E, LN2 = 1.4426950408889634, 0.6931471805599453
# ln 2 in two parts: the first has so few digits that its product with an exponent is exact.
LN2_HIGH, LN2_LOW = 0.693145751953125, 1.4286068203094173e-06
ROUNDER = 1.5 * 2.0**52
SQRT_2 = 1.4142135623730951


@register_jitable
def _exp_impl(x: Any) -> Any:
    """exp(x) = 2**k exp(r) with |r| <= ln(2) / 2, and exp(r) by its Taylor sum to r**13."""
    inside = np.maximum(-708.0, np.minimum(709.0, x))
    shifted = inside * LOG2_E + ROUNDER
    k = shifted - ROUNDER
    r = inside - k * LN2_HIGH
    r = r - k * LN2_LOW
    s = r * (1.0 / 6227020800.0) + (1.0 / 479001600.0)
    s = s * r + (1.0 / 39916800.0)
    s = s * r + (1.0 / 3628800.0)
    s = s * r + (1.0 / 362880.0)
    s = s * r + (1.0 / 40320.0)
    s = s * r + (1.0 / 5040.0)
    s = s * r + (1.0 / 720.0)
    s = s * r + (1.0 / 120.0)
    s = s * r + (1.0 / 24.0)
    s = s * r + (1.0 / 6.0)
    s = s * r + 0.5
    s = s * r + 1.0
    s = s * r + 1.0
    result = s * _power_of_two(shifted)
    result = np.where(x < -708.0, 0.0, result)
    return np.where(x > 709.0, np.inf, result)


@register_jitable
def _log_impl(x: Any) -> Any:
    """log(x) = k ln 2 + 2 artanh(s), s = (m - 1) / (m + 1), m in [1/sqrt 2, sqrt 2)."""
    m, k = _mantissa(x), _exponent(x)
    large = m > SQRT_2
    m = np.where(large, m * 0.5, m)
    k = np.where(large, k + 1.0, k)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    t = z * (1.0 / 21.0) + (1.0 / 19.0)
    t = t * z + (1.0 / 17.0)
    t = t * z + (1.0 / 15.0)
    t = t * z + (1.0 / 13.0)
    t = t * z + (1.0 / 11.0)
    t = t * z + (1.0 / 9.0)
    t = t * z + (1.0 / 7.0)
    t = t * z + (1.0 / 5.0)
    t = t * z + (1.0 / 3.0)
    result = k * LN2_HIGH + (2.0 * s + (2.0 * s * z * t + k * LN2_LOW))
    result = np.where(x < 2.3e-308, -np.inf, result)
    result = np.where(x < 0.0, np.nan, result)
    return np.where(x < np.inf, result, x)  # inf and NaN are their own


@spell(np.exp)
def _exp(x: Any) -> Any:
    return (lambda x: _exp_impl(x)) if x == numbers else None


@spell(np.log)
def _log(x: Any) -> Any:
    return (lambda x: _log_impl(x)) if x == numbers else None
