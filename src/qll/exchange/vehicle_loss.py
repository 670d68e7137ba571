"""Losses that Vehicle compiles from a specification: where they are looked at.

Vehicle's own sampler walks towards violations from several starts and takes the largest value of
``not P`` it ended at. In a logic in which lower is truer, as QLL, that is the point where ``P`` is
violated *least*. `WorstPoint` takes the one where it is violated most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

FIRST_STEP, LAST_STEP = 0.5, 0.02  # in widths of the box


class WorstPoint:
    """A sampler for ``load_specification(..., samplers={"x": WorstPoint()})``, for a logic in which
    lower is truer: sign steps down the value of the quantified formula, narrower and narrower."""

    def __init__(self, starts: int = 8, steps: int = 10, seed: int | None = None) -> None:
        self.starts, self.steps = starts, steps
        self._random = torch.Generator()
        if seed is not None:
            self._random.manual_seed(seed)

    def get_loss(
        self,
        dims: Sequence[int],
        lower_bound: Tensor,
        upper_bound: Tensor,
        search_lambda: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """(1,) the least value that was met, with its gradient to the network."""
        width = upper_bound - lower_bound
        least, at = torch.inf, (lower_bound + upper_bound) / 2
        for start in range(self.starts):
            share = torch.rand(tuple(dims), generator=self._random, dtype=width.dtype)
            x = at if start == 0 else lower_bound + share * width
            for step in range(self.steps + 1):
                x = x.detach().requires_grad_(True)
                with torch.enable_grad():
                    value = search_lambda(x)
                    # Of the point alone: the network's own gradients are left as they are.
                    (slope,) = torch.autograd.grad(value, x, materialize_grads=True)
                if float(value.detach()) < least:
                    least, at = float(value.detach()), x.detach()
                size = FIRST_STEP * (LAST_STEP / FIRST_STEP) ** (step / max(self.steps, 1))
                x = (x - size * width * slope.nan_to_num().sign()).clamp(lower_bound, upper_bound)
        return search_lambda(at).reshape(1)
