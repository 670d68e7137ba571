"""A block of accumulators as one numba type: see ``qll.kernels.simd`` for what there is."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from qll.kernels.simd import (
    LANES,
    VECTOR,
    TileType,
    address_of,
    call_intrinsic,
    intrinsic,
    is_floats,
    literal_intrinsic,
    pick_of_four,
    read_vector,
    splat,
    write_vector,
    zero_vector,
)


def _height(literal: Any) -> int | None:
    return literal.literal_value if isinstance(literal, types.IntegerLiteral) else None


def _index(number: int) -> Any:
    return ir.Constant(ir.IntType(64), number)


def _gather(builder: Any, vectors: list[Any]) -> Any:
    tile = ir.Constant(ir.ArrayType(VECTOR, len(vectors)), ir.Undefined)
    for position, vector in enumerate(vectors):
        tile = builder.insert_value(tile, vector, position)
    return tile


@literal_intrinsic
def tile_zero(typingctx: Any, height: Any) -> Any:
    rows = _height(height)
    if rows is None:
        return None

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _gather(builder, [zero_vector()] * rows)

    return TileType(rows)(height), code


@literal_intrinsic
def tile_broadcast(typingctx: Any, height: Any, array: Any, offset: Any) -> Any:
    rows = _height(height)
    if rows is None or not is_floats(array):
        return None

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        first = address_of(context, builder, sig.args[1], args[1], args[2])
        numbers = (builder.load(builder.gep(first, [_index(t)])) for t in range(rows))
        return _gather(builder, [splat(builder, number) for number in numbers])

    return TileType(rows)(height, array, types.intp), code


@literal_intrinsic
def tile_load(typingctx: Any, height: Any, array: Any, offset: Any) -> Any:
    rows = _height(height)
    if rows is None or not is_floats(array):
        return None

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        first = address_of(context, builder, sig.args[1], args[1], args[2])
        places = (builder.gep(first, [_index(t * LANES)]) for t in range(rows))
        return _gather(builder, [read_vector(builder, place) for place in places])

    return TileType(rows)(height, array, types.intp), code


@intrinsic
def tile_fma(typingctx: Any, tile: Any, vector: Any, array: Any, offset: Any) -> Any:
    if not isinstance(tile, TileType) or not is_floats(array):
        return None

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        first = address_of(context, builder, sig.args[2], args[2], args[3])
        rows = []
        for t in range(tile.height):
            weight = splat(builder, builder.load(builder.gep(first, [_index(t)])))
            row = builder.extract_value(args[0], t)
            rows.append(call_intrinsic(builder, "llvm.fmuladd", weight, args[1], row))
        return _gather(builder, rows)

    return tile(tile, vector, array, types.intp), code


@literal_intrinsic
def tile_fma_part(
    typingctx: Any, tile: Any, begin: Any, count: Any, vector: Any, array: Any, offset: Any
) -> Any:
    first, rows = _height(begin), _height(count)
    if not isinstance(tile, TileType) or first is None or rows is None or not is_floats(array):
        return None

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        start = address_of(context, builder, sig.args[4], args[4], args[5])
        result = args[0]
        for t in range(rows):
            weight = splat(builder, builder.load(builder.gep(start, [_index(t)])))
            row = builder.extract_value(args[0], first + t)
            row = call_intrinsic(builder, "llvm.fmuladd", weight, args[3], row)
            result = builder.insert_value(result, row, first + t)
        return result

    return tile(tile, begin, count, vector, array, types.intp), code


@intrinsic
def tile_fma_picked(
    typingctx: Any, tile: Any, vector: Any, winner: Any, array: Any, offset: Any
) -> Any:
    if not isinstance(tile, TileType) or not is_floats(array):
        return None

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        first = address_of(context, builder, sig.args[3], args[3], args[4])
        rows = []
        for t in range(tile.height):
            weight = pick_of_four(builder, builder.gep(first, [_index(4 * t)]), args[2])
            row = builder.extract_value(args[0], t)
            rows.append(call_intrinsic(builder, "llvm.fmuladd", weight, args[1], row))
        return _gather(builder, rows)

    return tile(tile, vector, winner, array, types.intp), code


@intrinsic
def tile_dot(typingctx: Any, tile: Any, vector: Any, array: Any, offset: Any) -> Any:
    if not isinstance(tile, TileType) or not is_floats(array):
        return None

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        first = address_of(context, builder, sig.args[2], args[2], args[3])
        found = args[1]
        for t in range(tile.height):
            weight = splat(builder, builder.load(builder.gep(first, [_index(t)])))
            row = builder.extract_value(args[0], t)
            found = call_intrinsic(builder, "llvm.fmuladd", weight, row, found)
        return found

    return vector(tile, vector, array, types.intp), code


@intrinsic
def tile_store(typingctx: Any, tile: Any, array: Any, offset: Any) -> Any:
    if not isinstance(tile, TileType) or not is_floats(array):
        return None

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        first = address_of(context, builder, sig.args[1], args[1], args[2])
        for t in range(tile.height):
            row = builder.extract_value(args[0], t)
            write_vector(builder, row, builder.gep(first, [_index(t * LANES)]))
        return context.get_dummy_value()

    return types.void(tile, array, types.intp), code


@intrinsic
def tile_relu(typingctx: Any, tile: Any) -> Any:
    if not isinstance(tile, TileType):
        return None

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        rows = []
        for t in range(tile.height):
            row = builder.extract_value(args[0], t)
            negative = builder.fcmp_ordered("<", row, zero_vector())
            rows.append(builder.select(negative, zero_vector(), row))
        return _gather(builder, rows)

    return tile(tile), code


@intrinsic
def tile_gate(typingctx: Any, tile: Any, array: Any, offset: Any) -> Any:
    if not isinstance(tile, TileType) or not is_floats(array):
        return None

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        first = address_of(context, builder, sig.args[1], args[1], args[2])
        rows = []
        for t in range(tile.height):
            gate = read_vector(builder, builder.gep(first, [_index(t * LANES)]))
            row = builder.extract_value(args[0], t)
            rows.append(
                builder.select(builder.fcmp_ordered(">", gate, zero_vector()), row, zero_vector())
            )
        return _gather(builder, rows)

    return tile(tile, array, types.intp), code


@intrinsic
def tile_contest(typingctx: Any, tile: Any) -> Any:
    if not isinstance(tile, TileType):
        return None

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        rows = [builder.extract_value(args[0], t) for t in range(tile.height)]
        return _gather(builder, rows + [zero_vector()] * tile.height)

    return TileType(2 * tile.height)(tile), code


@intrinsic
def tile_larger(typingctx: Any, contest: Any, tile: Any, number: Any) -> Any:
    if not isinstance(tile, TileType) or not isinstance(contest, TileType):
        return None

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        number = builder.bitcast(builder.trunc(args[2], ir.IntType(32)), ir.FloatType())
        own, values, winners = splat(builder, number), [], []
        for t in range(tile.height):
            row = builder.extract_value(args[1], t)
            best = builder.extract_value(args[0], t)
            larger = builder.fcmp_ordered(">", row, best)
            larger = builder.or_(larger, builder.fcmp_unordered("uno", row, row))
            values.append(builder.select(larger, row, best))
            known = builder.extract_value(args[0], tile.height + t)
            winners.append(builder.select(larger, own, known))
        return _gather(builder, values + winners)

    return contest(contest, tile, types.intp), code


@intrinsic
def tile_store_contest(typingctx: Any, contest: Any, array: Any, offset: Any, winners: Any) -> Any:
    if not isinstance(contest, TileType) or not is_floats(array):
        return None

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        half = contest.height // 2
        for t in range(contest.height):
            first = address_of(context, builder, sig.args[1], args[1], args[2 + t // half])
            row = builder.extract_value(args[0], t)
            write_vector(builder, row, builder.gep(first, [_index(t % half * LANES)]))
        return context.get_dummy_value()

    return types.void(contest, array, types.intp, types.intp), code
