"""A vector of ``LANES`` float32 numbers as a numba type, so that accumulators stay in registers.

numba's auto-vectoriser reaches a quarter of the machine on these loops; one explicit vector type
reaches nearly all of it and needs no compiler on the user's machine. Importing this module imports
numba: only kernels import it, and ``qll.kernels.available()`` says whether they can.

Inside a function decorated with ``@kernel`` (arrays are one-dimensional, contiguous float32; an
offset counts elements)::

    load(array, offset)              LANES numbers; store(array, offset, vector) puts them back
    broadcast(number)                the same number in every lane
    a + b, a - b, a * b, a / b       lane by lane
    fma(a, b, c)                     a * b + c, in one instruction where the machine has one
    minimum(a, b), maximum(a, b)     b where either is NaN (put the value that may be NaN second)
    absolute(a), square_root(a)
    copy_sign(a, b)                  the size of a with the sign of b
    less(a, b), less_equal(a, b)     a mask; false where either is NaN
    select(mask, a, b)               a where the mask is set
    to_bits(mask), to_mask(bits)     one bit a lane, in a uint64
    to_words(mask)                   all bits of a lane's number set, or none
    merge(words, a, b)               a where the words, read from memory, are set
    total(a)                         the sum over the lanes
    never_inline()                   in a large function, keeps compile times down
    always_inline()                  in a function that takes and gives tiles

A tile is a block of ``height`` accumulators; ``height`` must be a literal (a global or a closure's
integer)::

    tile_zero(height)
    tile_broadcast(height, array, offset)      height numbers, each in every lane
    tile_load(height, array, offset)           height vectors that lie one after the other
    tile_fma(tile, vector, array, offset)      tile[t] += vector * array[offset + t]
    tile_fma_part(tile, first, count, vector, array, offset)   that for some of its rows
    tile_fma_picked(tile, vector, winner, array, offset)
                                               tile[t] += vector * array[offset + 4 t + winner]
    tile_contest(tile)                         it, and for each of its numbers a winner, 0
    tile_larger(contest, tile, number)         where the tile is larger, or NaN, it and its number
    tile_store_contest(contest, array, offset, winners)        winners as the bits of integers
    tile_dot(tile, vector, array, offset)      vector + sum over t of tile[t] * array[offset + t]
    tile_store(tile, array, offset)
    tile_relu(tile)                            NaN stays NaN
    tile_gate(tile, array, offset)             0 where the vector at array is not positive
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils, extending
from numba.core.datamodel import models
from numba.core.extending import lower_builtin, register_model
from numba.core.typing.templates import AbstractTemplate, infer_global, signature

from qll.kernels.cache import compiled

# A kernel calls an intrinsic without its first argument, the typing context, which no static type
# can say: so the result is untyped.
intrinsic: Callable[[Callable[..., Any]], Any] = extending.intrinsic
literal_intrinsic: Callable[[Callable[..., Any]], Any] = extending.intrinsic(prefer_literal=True)

# Alignment of a cache line; numpy alone aligns to 16, which cost 9 to 28 %.
ALIGNMENT = 64


def machine_features() -> set[str]:
    """Instruction sets that numba will compile for, its own overrides included."""
    if config.CPU_FEATURES is not None:
        return {f[1:] for f in config.CPU_FEATURES.split(",") if f.startswith("+")}
    return {name for name, present in llvm.get_host_cpu_features().items() if present}


def choose_shape(features: set[str], word_bytes: int = struct.calcsize("P")) -> tuple[int, int]:
    """Lanes and tile height: as many accumulators as the registers hold beside their operands.

    >>> choose_shape({"avx512f", "avx2"})
    (32, 8)
    >>> choose_shape({"avx2"})
    (16, 4)
    """
    if "avx512f" in features and word_bytes == 8:
        return 32, 8  # 16 of 32 registers of 16 floats
    if "avx2" in features:
        return 16, 4  # 8 of 16 registers of 8 floats
    if "neon" in features:
        return 16, 4  # 16 of 32 registers of 4 floats
    return 8, 4  # 8 of 16 registers of 4 floats


LANES, TILE = choose_shape(machine_features())

# Where four numbers that are repeated in a register are picked from in one instruction: its name,
# and floats a register.
_PICKS = {
    (32, 8): ("llvm.x86.avx512.vpermilvar.ps.512", 16),
    (16, 4): ("llvm.x86.avx.vpermilvar.ps.256", 8),
}
_HAS_PICKS = "avx2" in machine_features()

# "nnan" and "ninf" stay out: they would make every test for NaN or infinity false.
FASTMATH = {"contract", "nsz", "reassoc"}


def kernel(function: Callable[..., Any]) -> Any:
    """Compile ``function``, with sums in any order and no division that raises. Its arrays are the
    caller's, and references to them are not counted: it neither makes nor returns one."""
    return compiled(fastmath=FASTMATH, _nrt=False)(function)


def part(function: Callable[..., Any]) -> Any:
    """A part of a kernel, compiled into it: no call, and its values stay in registers."""
    return compiled(fastmath=FASTMATH, forceinline=True, _nrt=False)(function)


def aligned_floats(count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """``count`` zeros that start on a cache line."""
    room = np.zeros(count * 4 + ALIGNMENT, dtype=np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + count * 4].view(np.float32)


class VectorType(types.Type):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(name=f"float32x{LANES}")


class MaskType(types.Type):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(name=f"maskx{LANES}")


class TileType(types.Type):  # type: ignore[misc]
    def __init__(self, height: int) -> None:
        self.height = height
        super().__init__(name=f"tile{height}xfloat32x{LANES}")


vector_type = VectorType()
mask_type = MaskType()
_FLOAT = ir.FloatType()
VECTOR = ir.VectorType(_FLOAT, LANES)
_MASK = ir.VectorType(ir.IntType(1), LANES)
_BITS = ir.IntType(LANES)
_WORDS = ir.VectorType(ir.IntType(32), LANES)
_INDEX = ir.IntType(32)


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, VECTOR)


@register_model(MaskType)
class _MaskModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _MASK)


@register_model(TileType)
class _TileModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, ir.ArrayType(VECTOR, fe_type.height))


def splat(builder: Any, number: Any) -> Any:
    one = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), number, _INDEX(0))
    order = ir.Constant(ir.VectorType(_INDEX, LANES), [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(VECTOR, ir.Undefined), order)


def zero_vector() -> Any:
    return ir.Constant(VECTOR, [0.0] * LANES)


def address_of(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    data = cgutils.create_struct_proxy(array_type)(context, builder, value=array).data
    return builder.gep(data, [offset])


def read_vector(builder: Any, address: Any) -> Any:
    loaded = builder.load(builder.bitcast(address, VECTOR.as_pointer()))
    loaded.align = 4  # an unaligned load of aligned memory costs nothing here
    return loaded


def write_vector(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.bitcast(address, VECTOR.as_pointer())).align = 4


def call_intrinsic(builder: Any, name: str, *arguments: Any) -> Any:
    kind = ir.FunctionType(VECTOR, [VECTOR] * len(arguments))
    function = cgutils.get_or_insert_function(builder.module, kind, f"{name}.v{LANES}f32")
    return builder.call(function, arguments, fastmath=("contract", "nsz", "reassoc"))


def _pick(builder: Any, four: Any, winner: Any) -> Any:
    """Of four numbers, in each lane the one that ``winner`` (0 to 3, as bits) says."""
    kind = _PICKS.get((LANES, TILE)) if _HAS_PICKS else None
    numbers = builder.bitcast(winner, _WORDS)
    if kind is None:
        parts = [splat(builder, builder.extract_element(four, _INDEX(k))) for k in range(4)]
        found = parts[0]
        for k in range(1, 4):
            own = builder.icmp_signed("==", numbers, ir.Constant(_WORDS, [k] * LANES))
            found = builder.select(own, parts[k], found)
        return found
    name, width = kind
    register, index = ir.VectorType(_FLOAT, width), ir.VectorType(_INDEX, width)
    order = ir.Constant(index, [k % 4 for k in range(width)])
    table = builder.shuffle_vector(four, ir.Constant(four.type, ir.Undefined), order)
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(register, [register, index]), name
    )
    halves = []
    for first in range(0, LANES, width):
        here = ir.Constant(index, list(range(first, first + width)))
        part = builder.shuffle_vector(numbers, ir.Constant(_WORDS, ir.Undefined), here)
        halves.append(builder.call(function, [table, part]))
    both = ir.Constant(ir.VectorType(_INDEX, LANES), list(range(LANES)))
    return builder.shuffle_vector(halves[0], halves[1], both)


def pick_of_four(builder: Any, address: Any, winner: Any) -> Any:
    four = builder.load(builder.bitcast(address, ir.VectorType(_FLOAT, 4).as_pointer()))
    four.align = 4
    return _pick(builder, four, winner)


def is_floats(array: Any) -> bool:
    return (
        isinstance(array, types.Array)
        and array.dtype == types.float32
        and array.ndim == 1
        and array.layout == "C"
    )


@intrinsic
def never_inline(typingctx: Any) -> Any:
    """Keep the function that calls this apart: large loops, inlined at every use and once more for
    every combination of their constant conditions, multiply the time to compile."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), code


@intrinsic
def always_inline(typingctx: Any) -> Any:
    """Make the function that calls this a part of its callers: a tile that is handed over by a call
    goes through memory."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.function.attributes.add("alwaysinline")
        return context.get_dummy_value()

    return types.void(), code


@intrinsic
def load(typingctx: Any, array: Any, offset: Any) -> Any:
    if not is_floats(array):
        return None

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return read_vector(builder, address_of(context, builder, sig.args[0], args[0], args[1]))

    return vector_type(array, types.intp), code


@intrinsic
def store(typingctx: Any, array: Any, offset: Any, value: Any) -> Any:
    if not is_floats(array):
        return None

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        write_vector(builder, args[2], address_of(context, builder, sig.args[0], args[0], args[1]))
        return context.get_dummy_value()

    return types.void(array, types.intp, vector_type), code


@intrinsic
def broadcast(typingctx: Any, number: Any) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return splat(builder, args[0])

    return vector_type(types.float32), code


@intrinsic
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return call_intrinsic(builder, "llvm.fmuladd", *args)

    return vector_type(vector_type, vector_type, vector_type), code


@intrinsic
def absolute(typingctx: Any, a: Any) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return call_intrinsic(builder, "llvm.fabs", *args)

    return vector_type(vector_type), code


@intrinsic
def copy_sign(typingctx: Any, a: Any, b: Any) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return call_intrinsic(builder, "llvm.copysign", *args)

    return vector_type(vector_type, vector_type), code


@intrinsic
def square_root(typingctx: Any, a: Any) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return call_intrinsic(builder, "llvm.sqrt", *args)

    return vector_type(vector_type), code


@intrinsic
def minimum(typingctx: Any, a: Any, b: Any) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", args[0], args[1]), args[0], args[1])

    return vector_type(vector_type, vector_type), code


@intrinsic
def maximum(typingctx: Any, a: Any, b: Any) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", args[0], args[1]), args[0], args[1])

    return vector_type(vector_type, vector_type), code


@intrinsic
def less(typingctx: Any, a: Any, b: Any) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fcmp_ordered("<", args[0], args[1])

    return mask_type(vector_type, vector_type), code


@intrinsic
def less_equal(typingctx: Any, a: Any, b: Any) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fcmp_ordered("<=", args[0], args[1])

    return mask_type(vector_type, vector_type), code


@intrinsic
def select(typingctx: Any, mask: Any, a: Any, b: Any) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(args[0], args[1], args[2])

    return vector_type(mask_type, vector_type, vector_type), code


@intrinsic
def to_bits(typingctx: Any, mask: Any) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.zext(builder.bitcast(args[0], _BITS), ir.IntType(64))

    return types.uint64(mask_type), code


@intrinsic
def to_mask(typingctx: Any, bits: Any) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(builder.trunc(args[0], _BITS), _MASK)

    return mask_type(types.uint64), code


@intrinsic
def to_words(typingctx: Any, mask: Any) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(builder.sext(args[0], _WORDS), VECTOR)

    return vector_type(mask_type), code


@intrinsic
def merge(typingctx: Any, words: Any, a: Any, b: Any) -> Any:
    """For what is stored where b was read: LLVM makes a masked store of a ``select``, which is
    several times slower than a store on Zen 3."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        words, a, b = (builder.bitcast(value, _WORDS) for value in args)
        return builder.bitcast(builder.xor(b, builder.and_(builder.xor(a, b), words)), VECTOR)

    return vector_type(vector_type, vector_type, vector_type), code


@intrinsic
def total(typingctx: Any, a: Any) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(_FLOAT, [_FLOAT, VECTOR])
        name = f"llvm.vector.reduce.fadd.v{LANES}f32"
        reduce = cgutils.get_or_insert_function(builder.module, kind, name)
        return builder.call(
            reduce, [ir.Constant(_FLOAT, -0.0), args[0]], fastmath=("reassoc", "nsz")
        )

    return types.float32(vector_type), code


def _define_operator(symbol: Any, instruction: str) -> None:
    @infer_global(symbol)
    class _Typing(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: Any, kws: Any) -> Any:
            if not kws and len(args) == 2 and all(a == vector_type for a in args):
                return signature(vector_type, vector_type, vector_type)
            return None

    @lower_builtin(symbol, VectorType, VectorType)  # type: ignore[untyped-decorator]
    def _lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        flags = ("contract", "nsz", "reassoc")
        return getattr(builder, instruction)(args[0], args[1], flags=flags)


for _symbol, _instruction in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _define_operator(_symbol, _instruction)
