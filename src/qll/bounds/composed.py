"""Softmax and normalisation out of steps that have bounds: linear maps, curves and products.

Written once as torch code: what runs it, a `Box` or a `Carried` tensor, takes each step by its own
rule. Linear maps come first and whole, so that what cancels in them does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from qll.errors import NetworkError
from qll.networks.activations.power import Power


def softmax(x: Any, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    """``1 / (1 + sum over j != i of exp(x_j - x_i))``."""
    if dim is None or dtype is not None:
        raise NetworkError(
            "a softmax has no axis, or a type of its own",
            expected="a dim, and the type of its input",
            found=f"dim={dim}, dtype={dtype}",
            fix="pass dim=1, say",
        )
    last = x.transpose(dim, -1)
    shape, count = tuple(last.shape), last.shape[-1]
    own, other = (~torch.eye(count, dtype=torch.bool)).nonzero(as_tuple=True)
    identity = torch.eye(count, dtype=x.dtype, device=x.device)
    rivals = _mapped(x if x.ndim == 2 and dim % 2 else last, identity[other] - identity[own])
    total = torch.exp(rivals).reshape(*shape, count - 1).sum(-1) + 1.0
    return torch.reciprocal(total).transpose(dim, -1)


def matrix_product(a: Any, b: Any) -> Any:
    """A product for each row, column and term, and their sums."""
    return (a.unsqueeze(-2) * b.transpose(-1, -2).unsqueeze(-3)).sum(-1)


def layer_norm(
    x: Any,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    shape, count = tuple(x.shape), torch.Size(normalized_shape).numel()
    axes = len(tuple(normalized_shape))
    flat = x if axes == 1 else x.reshape(*shape[: len(shape) - axes], count)
    identity = torch.eye(count, dtype=x.dtype, device=x.device)
    centred = _mapped(flat, identity - 1.0 / count)
    variance = torch.square(centred).sum(-1, keepdim=True) * (1.0 / count) + eps
    scaled = (centred * torch.rsqrt(variance)).reshape(*shape)
    scaled = scaled if weight is None else scaled * weight
    return scaled if bias is None else scaled + bias


def _mapped(x: Any, matrix: Tensor) -> Any:
    """A linear map; of one that a box remembers, their product."""
    known = getattr(x, "linear", None)
    if known is None or known[0].ndim != 2:
        return functional.linear(x, matrix)
    inner, weight, bias = known
    return functional.linear(inner, matrix @ weight, None if bias is None else matrix @ bias)


class Root:
    """A power of what is above 0, for which an interval says how far."""

    def __init__(self, exponent: float) -> None:
        self.exponent = exponent

    def on(self, low: Tensor) -> Power:
        floor = float(low.detach().min())
        if not 0.0 < floor < float("inf"):
            raise NetworkError(
                "a divisor, or what a root is taken of, may be 0 on a box",
                expected="lower ends above 0",
                found=f"{floor:.3g}",
                fix="take smaller boxes, or add a constant to it",
            )
        return Power(self.exponent, floor)
