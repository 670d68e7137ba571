"""Matrices that are dense or CSR, whichever is smaller, behind a handful of functions.

A convolution as a matrix is nearly all zeros, a fully connected layer is not, and a product of the
two is somewhere between: the choice is made by density, in one place.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qll import limits
from qll.errors import MissingExtra, NetworkError

Array: TypeAlias = NDArray[np.float64]
Matrix: TypeAlias = Any  # NDArray[np.float64] or scipy.sparse.csr_matrix; scipy has no types here

DENSE_FROM = 0.2  # share of non-zeros above which a dense product is both smaller and faster
MAX_ENTRIES = 1 << 26  # half a GiB of float64: more is a mistake or an attack

MAX_TOTAL = 1 << 27  # entries of all matrices of one network together
# Multiplications between two looks at the clock, some tenths of a second.
PIECE_DENSE, PIECE_SPARSE = 1 << 31, 1 << 25
# Bytes of an entry while a matrix is built: value, row, column, and a copy.
BUILDING = 32


def sparse() -> Any:
    try:
        import scipy.sparse
    except ImportError as error:
        raise MissingExtra.of("scipy", "fast", "reading a network into matrices") from error
    return scipy.sparse


def is_sparse(matrix: Matrix) -> bool:
    return not isinstance(matrix, np.ndarray)


def check_entries(entries: int, what: str) -> None:
    """Refuse before the memory is taken, not after."""
    if entries > MAX_ENTRIES:
        raise NetworkError(
            f"{what} needs a matrix that is too large",
            expected=f"at most {MAX_ENTRIES:,} entries",
            found=f"{entries:,}",
            fix="use a smaller network or input",
        )
    limits.check()
    limits.need(BUILDING * entries, what)


def check_total(entries: int) -> None:
    if entries > MAX_TOTAL:
        raise NetworkError(
            "the network's matrices are too large together",
            expected=f"at most {MAX_TOTAL:,} entries",
            found=f"more than {entries:,}",
            fix="use a smaller network or input",
        )


def csr(data: Array, rows: Any, columns: Any, shape: tuple[int, int]) -> Matrix:
    matrix = sparse().csr_matrix((data, (rows, columns)), shape=shape)
    matrix.sum_duplicates()
    return matrix


def csr_by_rows(data: Array, columns: Any, counts: Any, width: int) -> Matrix:
    """From rows of ``counts`` entries, columns rising: without the detour through triples."""
    starts = np.concatenate([[0], np.cumsum(counts)])
    return sparse().csr_matrix((data, columns, starts), shape=(len(counts), width))


def identity(size: int) -> Matrix:
    return sparse().identity(size, dtype=np.float64, format="csr")


def diagonal(values: Array) -> Matrix:
    return sparse().diags(values, format="csr", dtype=np.float64)


def selection(indices: NDArray[np.int64], width: int) -> Matrix:
    """Row ``i`` picks entry ``indices[i]`` of a vector of ``width``; a negative one, none."""
    rows = np.flatnonzero(indices >= 0)
    return csr(np.ones(rows.size), rows, indices[rows], (indices.size, width))


def compact(matrix: Matrix) -> Matrix:
    """The same matrix, dense or CSR by density."""
    rows, columns = matrix.shape
    size = rows * columns
    if is_sparse(matrix):
        if size and matrix.nnz >= DENSE_FROM * size:
            return np.ascontiguousarray(matrix.toarray())
        return matrix.tocsr()
    if size and np.count_nonzero(matrix) < DENSE_FROM * size:
        return sparse().csr_matrix(matrix)
    return np.ascontiguousarray(matrix)


def multiply(left: Matrix, right: Matrix) -> Matrix:
    """``left @ right``, compacted; the size of the result is bounded before it is computed."""
    what = "folding two affine layers"
    if is_sparse(left) and is_sparse(right):
        work = np.diff(right.indptr)[left.indices]
        check_entries(int(work.sum()), what)
        parts = [left[rows] @ right for rows in _pieces(left, int(work.sum()), PIECE_SPARSE)]
        return compact(parts[0] if len(parts) == 1 else sparse().vstack(parts, format="csr"))
    check_entries(left.shape[0] * right.shape[1], what)
    fast = not is_sparse(left) and not is_sparse(right)
    if is_sparse(right):
        total = left.shape[0] * entries(right).size
    else:
        total = entries(left).size * right.shape[1]
    most = PIECE_DENSE if fast else PIECE_SPARSE
    parts = [np.asarray(left[rows] @ right) for rows in _pieces(left, total, most)]
    return compact(parts[0] if len(parts) == 1 else np.concatenate(parts))


def _pieces(left: Matrix, work: int, most: int) -> Iterator[Any]:
    """Rows of ``left``, so few that no piece of a product of ``work`` operations is long."""
    rows = left.shape[0]
    step = max(1, rows * most // max(work, 1))
    if step >= rows:
        yield slice(None)
        return
    for start in range(0, rows, step):
        limits.check()
        yield slice(start, start + step)


def add(left: Matrix, right: Matrix) -> Matrix:
    total = left + right
    return compact(np.asarray(total) if not is_sparse(left) or not is_sparse(right) else total)


def scale_rows(factor: Array, matrix: Matrix) -> Matrix:
    if is_sparse(matrix):
        return (diagonal(factor) @ matrix).tocsr()
    return factor[:, None] * matrix


def scale_columns(matrix: Matrix, factor: Array) -> Matrix:
    if is_sparse(matrix):
        return (matrix @ diagonal(factor)).tocsr()
    return matrix * factor[None, :]


def absolute(matrix: Matrix) -> Matrix:
    return abs(matrix)


def entries(matrix: Matrix) -> Array:
    """The stored entries, zeros left out where the matrix is sparse."""
    stored: Array = matrix.data if is_sparse(matrix) else matrix
    return stored


def longest_row(matrix: Matrix) -> int:
    """The most non-zeros in one row: the length of the longest sum in a product."""
    if not matrix.shape[0]:
        return 0
    return int(np.diff(matrix.indptr).max()) if is_sparse(matrix) else int(matrix.shape[1])


def rows_of(matrix: Matrix) -> list[tuple[list[int], list[float]]]:
    """Every row as (columns, values), for exact arithmetic in plain Python."""
    if not is_sparse(matrix):
        columns = list(range(matrix.shape[1]))
        return [(columns, row) for row in matrix.tolist()]
    starts, indices, data = matrix.indptr.tolist(), matrix.indices.tolist(), matrix.data.tolist()
    return [(indices[a:b], data[a:b]) for a, b in itertools.pairwise(starts)]


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise NetworkError(
            "two tensors of the network do not fit together",
            expected="shapes that broadcast",
            found=" and ".join(str(shape) for shape in shapes),
            fix="check the shapes of the network's layers",
        ) from error
