"""Some of a run's witnesses with the images that they were found around, as reports show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qll.files import write_arrays
from qll.networks import Network
from qll.property import Property

MOST = 8


def keep_witnesses(
    folder: Path,
    network: Network,
    prop: Property,
    x: Tensor,
    labels: Tensor,
    verdicts: Sequence[Mapping[str, Any]],
) -> None:
    """``witnesses.npz`` of the first falsified regions; none if there are none."""
    rows = [row for row in verdicts if row.get("witness") is not None][:MOST]
    if not rows:
        return
    index = np.array([int(row["point"]) for row in rows])
    clean = np.asarray(x, np.float64)[index]
    attacked = np.array([row["witness"] for row in rows]).reshape(clean.shape)
    outputs, before = network.runtime(attacked), network.runtime(clean)
    held = labels[torch.from_numpy(index)]
    known = {"x": attacked, "x0": clean, "y0": before}
    others = {name: torch.from_numpy(known[name]) for name in prop.sources - {"y"}}
    margin = prop.margin(
        torch.from_numpy(outputs), labels=held if prop.uses_labels else None, **others
    )
    write_arrays(
        folder / "witnesses.npz",
        {
            "index": index,
            "clean": clean.astype(np.float32),
            "attacked_x": attacked.astype(np.float32),
            "labels": held.numpy(),
            "outputs": outputs,
            "clean_outputs": before,
            "margin": margin.numpy(),
        },
    )
