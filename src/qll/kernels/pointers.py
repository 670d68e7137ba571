"""Calling functions of logics and activations by address, so that the attack is compiled once for
all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from qll.kernels.cache import code_folder
from qll.kernels.dispatch import callback
from qll.kernels.lanes import rows, single_rows
from qll.kernels.simd import address_of, intrinsic

_params, _count = types.CPointer(types.float64), types.int64
_words, _indices = types.CPointer(types.int64), types.CPointer(types.int32)
_floats, _bits = types.CPointer(types.float32), types.CPointer(types.uint32)
_plan = (_indices, _indices, _floats, _floats, _words, _params)
SIGNATURES = {
    "leq": types.void(rows, rows, _count, _params, rows, rows, rows),
    "connective": types.void(rows, _count, types.float64, _params, rows, rows),
    "loss": types.void(rows, _params, rows, rows),
    "activation": types.void(single_rows, _count, _params, single_rows, single_rows),
    "step": types.void(_words, *_plan, _floats, _count, _floats),
    "move": types.void(
        _words, *_plan[:3], _floats, _floats, _floats, _count, _count, _floats, _count, _bits,
        _bits, types.uint64, types.uint64, _floats, _floats, types.boolean, _floats,
        types.float32,
    ),
}  # fmt: skip


def compile_function(function: Callable[..., None], signature: str) -> Any:
    # What it does with its rows is written in `lanes`, which it need not import.
    return callback(function, SIGNATURES[signature], code_folder(function.__module__, __name__))


def _call(context: Any, builder: Any, sig: Any, args: Any) -> Any:
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
    kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in passed])
    builder.call(builder.inttoptr(args[0], kind.as_pointer()), passed)
    return context.get_dummy_value()


_where = types.intp


@intrinsic
def call_leq(  # type: ignore[no-untyped-def]
    typingctx, address, a, at_a, b, at_b, n, params, at_p, v, at_v, da, at_da, db, at_db
):
    """``leq(a, b, n, params, v, da, db)``; each array with an offset."""
    arrays = (a, _where, b, _where, _count, params, _where, v, _where, da, _where, db, _where)
    return types.void(_count, *arrays), _call


@intrinsic
def call_connective(  # type: ignore[no-untyped-def]
    typingctx, address, v, at_v, n, hardness, params, at_p, out, at_out, g, at_g
):
    """``connective(v, n, hardness, params, out, g)``; each array with an offset."""
    arrays = (v, _where, _count, types.float64, params, _where, out, _where, g, _where)
    return types.void(_count, *arrays), _call


@intrinsic
def call_loss(  # type: ignore[no-untyped-def]
    typingctx, address, v, at_v, params, at_p, out, at_out, g, at_g
):
    """``loss(v, params, out, g)``; each array with an offset."""
    arrays = (v, _where, params, _where, out, _where, g, _where)
    return types.void(_count, *arrays), _call


@intrinsic
def call_activation(  # type: ignore[no-untyped-def]
    typingctx, address, z, at_z, n, params, at_p, value, at_v, slope, at_s
):
    """``activation(z, n, params, value, slope)``; each array with an offset."""
    arrays = (z, _where, _count, params, _where, value, _where, slope, _where)
    return types.void(_count, *arrays), _call


@intrinsic
def call_step(  # type: ignore[no-untyped-def]
    typingctx, address, step, at_s, blocks, at_b, taps, at_t, weights, at_w, biases, at_i,
    functions, at_f, params, at_p, source, at_o, base, target, at_g,
):  # fmt: skip
    """A step of a plan: its numbers, the plan's arrays, source, first row of it and target."""
    arrays = (step, blocks, taps, weights, biases, functions, params, source)
    pairs = (kind for array in arrays for kind in (array, _where))
    return types.void(_count, *pairs, _count, target, _where), _call


@intrinsic
def call_move(  # type: ignore[no-untyped-def]
    typingctx, address, step, at_s, blocks, at_b, taps, at_t, weights, at_w, source, at_o, room,
    at_r, points, at_p, rows, current, widths, at_i, varied, positive, at_u, negative, at_d,
    improved, reduced, better, at_k, back, at_l, signed, sizes, at_z, share,
):  # fmt: skip
    """The last step of a plan, with the move of the points (``moves.py``)."""
    arrays = (step, blocks, taps, weights, source, room, points)
    pairs = (kind for array in arrays for kind in (array, _where))
    return types.void(
        _count, *pairs, _count, _count, widths, _where, _count, positive, _where, negative, _where,
        types.uint64, types.uint64, better, _where, back, _where, types.boolean, sizes, _where,
        types.float32,
    ), _call  # fmt: skip
