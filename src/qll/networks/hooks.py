"""Whether a torch module still computes what its class says."""

from __future__ import annotations

from torch import nn


def is_altered(module: nn.Module) -> bool:
    """It has a hook that may change its value, or a ``forward`` of its own: neither a trace nor a
    look at its class and weights would see that."""
    everywhere = nn.modules.module
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or "forward" in vars(module)
        or everywhere._global_forward_hooks
        or everywhere._global_forward_pre_hooks
    )
