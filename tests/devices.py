"""A stand-in for a GPU: torch's ``meta`` device, with the rules that a real one has.

A meta tensor has a device and a shape and no numbers. ``OneDevice`` fails where an operation has
tensors of two devices, as a GPU would (a single number of the host may join in), and answers
questions about numbers, which a GPU would answer, so that the code goes on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

META = torch.device("meta")
# What moves tensors between devices by its name.
_MOVES = ("aten._to_copy", "aten.copy_", "aten.set_")


def _devices(tensors: list[Tensor]) -> list[torch.device]:
    return [t.device for t in tensors]


class Generator:
    """In the place of ``torch.Generator``, which the meta device does not have."""

    _real = torch.Generator

    def __new__(cls, device: Any = "cpu") -> Any:
        return cls._real("cpu" if torch.device(device) == META else device)


class OneDevice(TorchDispatchMode):
    """``moved`` counts tensors that were brought to the device, ``asked`` numbers read back."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = self.asked = self.operations = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = str(func)
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        on_device = [t for t in tensors if t.device == META]
        if on_device and name.startswith("aten._local_scalar_dense"):
            self.asked += 1
            return True if on_device[0].dtype == torch.bool else 0
        if on_device and name.startswith("aten.equal"):
            self.asked += 1
            return True
        if on_device and name.startswith("aten.nonzero"):
            self.asked += 1
            return torch.empty(0, on_device[0].dim(), dtype=torch.long, device=META)
        if on_device and name.startswith("aten.index.Tensor"):
            args = (args[0], [self._chosen(index) for index in args[1]])
        if name.startswith("aten._to_copy") and on_device and kwargs.get("device", META) != META:
            # What is read back to the host: a GPU would give numbers, here they are zeros.
            self.asked += 1
            dtype = kwargs.get("dtype") or on_device[0].dtype
            return torch.zeros(on_device[0].shape, dtype=dtype, device=kwargs["device"])
        if kwargs.get("generator") is not None and META in (
            *_devices(tensors),
            kwargs.get("device"),
        ):
            kwargs = {**kwargs, "generator": None}  # there is none for this device
        if on_device and not name.startswith(_MOVES):
            strays = [t for t in tensors if t.device != META and t.dim() > 0]
            assert not strays, f"{name} has tensors of two devices: {[t.shape for t in tensors]}"
            self.operations += 1
        result = func(*args, **kwargs)
        if name.startswith(_MOVES) and not on_device:
            made = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
            self.moved += sum(t.device == META for t in made)
        return result

    def _chosen(self, index: Tensor | None) -> Tensor | None:
        """Of a mask nothing is chosen: how much it would be, only numbers tell."""
        if index is None or index.dtype != torch.bool or index.device != META:
            return index
        self.asked += 1
        return torch.empty(0, dtype=torch.long, device=META)
