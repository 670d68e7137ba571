"""Sparse matrices in torch, without torch's notices about them."""

from __future__ import annotations

import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

from qll.late import late

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = late("torch")


@cache
def _hear_notices() -> None:
    """torch says once a process that sparse CSR is in beta and that its invariants go unchecked.
    Neither is for the user of a verifier to act on: they are said here, about a small matrix."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = torch.eye(2).to_sparse_csr()
        torch.sparse_csr_tensor(small.crow_indices(), small.col_indices(), small.values())


def csr_tensor(matrix: Any, dtype: torch.dtype) -> Tensor:
    """A scipy CSR matrix as a torch tensor."""
    _hear_notices()
    return torch.sparse_csr_tensor(
        torch.as_tensor(matrix.indptr, dtype=torch.int64),
        torch.as_tensor(matrix.indices, dtype=torch.int64),
        torch.as_tensor(matrix.data, dtype=dtype),
        size=matrix.shape,
    )
