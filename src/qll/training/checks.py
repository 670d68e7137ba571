"""What is looked at before the first epoch, so that a run does not fail in its middle."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from qll.data.base import DataSet
from qll.errors import DataError, InputError, QllError, RunError
from qll.training.config import TrainConfig
from qll.training.run import RunFolder
from qll.training.stages import stages


def split_rows(count: int, validation: int) -> tuple[Tensor, Tensor]:
    """Training rows and validation rows; the same images for every seed of a study."""
    if validation >= count:
        raise InputError(
            "nothing is left to train on",
            expected=f"fewer validation images than the {count} training images",
            found=str(validation),
            fix="pass --set validation=0, or fewer",
        )
    order = torch.from_numpy(np.random.RandomState(0).permutation(count))
    if not validation:
        return torch.arange(count), order[:0]
    return order[validation:].sort().values, order[:validation].sort().values


def check_same(folder: RunFolder, config: TrainConfig) -> None:
    held = folder.config()
    if held == config:
        return
    ours, theirs = config.model_dump(), held.model_dump()
    first = next(key for key in ours if ours[key] != theirs[key])
    raise RunError(
        f"the run in this folder has another '{first}'",
        where=str(folder.path),
        expected=f"{first} = {theirs[first]!r}",
        found=f"{ours[first]!r}",
        fix="resume without changing settings, or start a new run with another --out",
    )


def check_device(device: str) -> None:
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"the device '{device}' cannot be used",
            expected="a device of this machine, such as cpu or cuda:0",
            found=str(error).splitlines()[0],
            fix="pass --device cpu",
        ) from error


def check_network(model: nn.Module, data: DataSet, device: str) -> None:
    """A network that does not fit the data is named before the first epoch."""
    x, _ = data.test.batch(slice(0, 2))
    was = model.training
    try:
        with torch.no_grad():
            shape = tuple(model.eval()(x.to(device)).shape)
    except (RuntimeError, ValueError, QllError) as error:
        raise InputError(
            f"the network does not take the {data.kind}",
            where=data.name,
            expected=f"inputs of shape {data.shape}",
            found=str(error).splitlines()[0],
            fix="choose another --network",
        ) from error
    finally:
        model.train(was)
    if shape[1:] != (data.outputs,):
        raise DataError(
            "the network does not fit the labels",
            where=data.name,
            expected=f"{data.outputs} outputs: {', '.join(data.classes[:12])}",
            found=f"outputs of shape {shape[1:]}",
            fix="give the network as many outputs as there are classes, or numbers to predict",
        )


def check_views(config: TrainConfig, data: DataSet) -> None:
    """Mirrors and shifts are of images."""
    if data.schema is None:
        return
    for part in (config, *(stage.config for stage in stages(config))):
        if part.views != type(part.views)():
            raise InputError(
                f"the {data.kind} have no views",
                where=data.name,
                expected="images, to be mirrored, moved or coloured",
                found=f"views = {part.views!r}",
                fix="leave views out, of every stage",
            )
