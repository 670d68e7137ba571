"""Random numbers in lanes: ``starts.py`` states them."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from qll.kernels.simd import LANES, VECTOR, address_of, intrinsic, vector_type
from qll.kernels.starts import MIX_1, MIX_2, SCALE

_WORD = ir.IntType(32)
_WORDS = ir.VectorType(_WORD, LANES)


def _same(number: int) -> Any:
    return ir.Constant(_WORDS, [number] * LANES)


@intrinsic
def uniform(typingctx: Any, keys: Any, counter: Any) -> Any:
    """Number ``counter`` of the first ``LANES`` keys' sequences, in [0, 1)."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        first = address_of(context, builder, sig.args[0], args[0], ir.IntType(64)(0))
        loaded = builder.load(builder.bitcast(first, _WORDS.as_pointer()))
        loaded.align = 4
        undefined = ir.Constant(_WORDS, ir.Undefined)
        one = builder.insert_element(undefined, args[1], _WORD(0))
        x = builder.xor(builder.shuffle_vector(one, undefined, _same(0)), loaded)
        for shift, factor in ((16, MIX_1), (13, MIX_2)):
            x = builder.mul(builder.xor(x, builder.lshr(x, _same(shift))), _same(int(factor)))
        x = builder.xor(x, builder.lshr(x, _same(16)))
        number = builder.sitofp(builder.lshr(x, _same(8)), VECTOR)
        return builder.fmul(number, ir.Constant(VECTOR, [float(SCALE)] * LANES))

    return vector_type(keys, types.uint32), code
