"""What readings of a plan share: which operands a connective has, and the logic's word for it."""

from __future__ import annotations

import torch
from torch import Tensor

from qll.formula.template import Reduce
from qll.logics.base import Logic


def present(template: Reduce, device: torch.device) -> Tensor | None:
    """(operands, *shape): which of them there are for each label pattern; None for all."""
    if all(group.present is None for group in template.groups):
        return None
    masks = [
        torch.tensor(group.present, device=device).reshape(group.count, *template.shape)
        if group.present is not None
        else torch.ones(group.count, *template.shape, dtype=torch.bool, device=device)
        for group in template.groups
    ]
    return torch.cat(masks)


def reduced(logic: Logic, template: Reduce, xs: Tensor, where: Tensor | None) -> Tensor:
    """The connective of the operands along the first axis, of those in ``where`` alone."""
    match template.kind:
        case "and":
            return logic.conj(xs, hardness=template.hardness, where=where)
        case "or":
            return logic.disj(xs, hardness=template.hardness, where=where)
        case "tensor":
            return logic.tensor(xs, where=where)
        case _:
            return logic.par(xs, where=where)
