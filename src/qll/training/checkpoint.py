"""The state of a run after an epoch, as one safetensors file that checks itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qll.errors import MissingExtra, RunError
from qll.files import write_atomically

_FORMAT = "qll-checkpoint-1"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """``epoch`` epochs are done. ``optimiser`` is torch's state dictionary."""

    epoch: int
    model: dict[str, Tensor]
    optimiser: dict[str, Any]

    @classmethod
    def of(cls, epoch: int, model: nn.Module, optimiser: torch.optim.Optimizer) -> Checkpoint:
        weights = {name: t.detach().cpu().clone() for name, t in model.state_dict().items()}
        return cls(epoch, weights, optimiser.state_dict())

    def restore(self, model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        try:
            model.load_state_dict(self.model)
            optimiser.load_state_dict(self.optimiser)
        except (RuntimeError, ValueError, KeyError) as error:
            raise RunError(
                "a checkpoint does not fit the network",
                expected="the weights and optimiser state of this network",
                found=str(error).splitlines()[0],
                fix="resume with the configuration and code that the run was started with",
            ) from error


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    tensors = {f"model.{name}": t.contiguous() for name, t in checkpoint.model.items()}
    plain: dict[str, dict[str, Any]] = {}
    for key, state in checkpoint.optimiser["state"].items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimiser.{key}.{name}"] = value.detach().cpu().contiguous()
            else:
                plain.setdefault(str(key), {})[name] = value
    about = {
        "format": _FORMAT,
        "epoch": checkpoint.epoch,
        "groups": checkpoint.optimiser["param_groups"],
        "plain": plain,
    }
    about["sha256"] = _digest(tensors, about)
    # One key only: safetensors writes several in any order, and equal runs give equal files.
    metadata = {"qll": json.dumps(about, sort_keys=True)}
    write_atomically(path, _safetensors().save(tensors, metadata))


def load_checkpoint(path: Path) -> Checkpoint:
    try:
        content = path.read_bytes()
        tensors = _safetensors().load(content)
        about = json.loads(_metadata(content)["qll"])
        stated = about.pop("sha256")
        if about["format"] != _FORMAT or stated != _digest(tensors, about):
            raise ValueError("the checksum does not fit")
        return _assemble(about, tensors)
    except MissingExtra:
        raise
    except OSError as error:
        raise _damaged(path, error.strerror or str(error)) from error
    except Exception as error:  # safetensors has an exception of its own, without a public base
        raise _damaged(path, str(error) or type(error).__name__) from error


def load_weights(path: Path) -> dict[str, Tensor]:
    return load_checkpoint(path).model


def _assemble(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Checkpoint:
    model: dict[str, Tensor] = {}
    state: dict[int, dict[str, Any]] = {int(k): dict(v) for k, v in about["plain"].items()}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        if part == "model":
            model[rest] = tensor
        else:
            key, _, field = rest.partition(".")
            state.setdefault(int(key), {})[field] = tensor
    optimiser = {"state": state, "param_groups": about["groups"]}
    return Checkpoint(int(about["epoch"]), model, optimiser)


def _digest(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _metadata(content: bytes) -> dict[str, str]:
    """The free part of a safetensors header: eight bytes of length, then JSON."""
    length = int.from_bytes(content[:8], "little")
    found = json.loads(content[8 : 8 + length])["__metadata__"]
    return {str(key): str(value) for key, value in found.items()}


def _damaged(path: Path, problem: str) -> RunError:
    return RunError(
        "a checkpoint is damaged",
        where=str(path),
        expected="a checkpoint as qll writes it",
        found=problem,
        fix="resume from the one before, or train again",
    )


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise MissingExtra.of("safetensors", "train", "writing checkpoints") from error
    return safetensors.torch
