"""Calling a logic's functions by address, so that the attack is compiled once for all logics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import cfunc, types

from qll.kernels.cache import cached_in
from qll.kernels.simd import FASTMATH, address_of, intrinsic

_pointer = types.CPointer(types.float64)
_number, _count = types.float64, types.int64
SIGNATURES = {
    "leq": _number(_pointer, _pointer, _count, _pointer, _pointer, _pointer, _pointer),
    "connective": _number(_pointer, _count, _number, _pointer, _pointer),
    "loss": _number(_number, _pointer, _pointer),
}


def compile_function(function: Callable[..., float], signature: str) -> Any:
    with cached_in() as cache:
        options = {"cache": cache, "fastmath": FASTMATH, "error_model": "numpy"}
        return cfunc(SIGNATURES[signature], **options)(function)


_DOUBLE, _POINTER, _INTEGER = ir.DoubleType(), ir.DoubleType().as_pointer(), ir.IntType(64)


def _call_at(builder: Any, address: Any, arguments: list[Any]) -> Any:
    kind = ir.FunctionType(_DOUBLE, [argument.type for argument in arguments])
    return builder.call(builder.inttoptr(address, kind.as_pointer()), arguments)


def _pointers(context: Any, builder: Any, sig: Any, args: Any) -> list[Any]:
    """Arguments as C sees them: an array and the offset after it become one pointer."""
    passed: list[Any] = []
    position = 1
    while position < len(args):
        kind = sig.args[position]
        if isinstance(kind, types.Array):
            passed.append(address_of(context, builder, kind, args[position], args[position + 1]))
            position += 2
        else:
            passed.append(args[position])
            position += 1
    return passed


@intrinsic
def call_leq(  # type: ignore[no-untyped-def]
    typingctx, address, a, at_a, b, at_b, n, params, at_p, v, at_v, da, at_da, db, at_db
):
    """``leq(a, b, n, params, v, da, db)``; each array with an offset."""
    where = types.intp
    sig = types.float64(
        _count, a, where, b, where, _count, params, where, v, where, da, where, db, where
    )

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _call_at(builder, args[0], _pointers(context, builder, sig, args))

    return sig, code


@intrinsic
def call_connective(  # type: ignore[no-untyped-def]
    typingctx, address, v, at_v, n, hardness, params, at_p, g, at_g
):
    """``connective(v, n, hardness, params, g)``; each array with an offset."""
    where = types.intp
    sig = types.float64(_count, v, where, _count, _number, params, where, g, where)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _call_at(builder, args[0], _pointers(context, builder, sig, args))

    return sig, code


@intrinsic
def call_loss(typingctx, address, value, params, at_p, g, at_g):  # type: ignore[no-untyped-def]
    """``loss(value, params, g)``; each array with an offset."""
    where = types.intp
    sig = types.float64(_count, _number, params, where, g, where)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _call_at(builder, args[0], _pointers(context, builder, sig, args))

    return sig, code
