"""The pictures of docs/how.md, drawn from the program's own relaxations and a proof it made.

    python bench/how_figures.py [--out docs/figures] [--quick] [--json OUT]

relaxation.png: the lines of `qll.networks.activations` over an interval, before and after a split.
tree.png: the tree of a certificate that `qll.verify` wrote for a small random network.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import qll
from qll.audit.layout import BOUND, CROWN, EMPTY, HALVE, SPLIT, TIGHTEN, unpack
from qll.networks.activations.base import ACTIVATIONS, Activation

_KINDS = ("relu", "sigmoid", "abs", "gelu")
_LEAF, _INNER = "#cfe8cf", "#d5def5"
_NAMES = {
    BOUND: ("bound < 0", _LEAF),
    CROWN: ("bound < 0", _LEAF),
    EMPTY: ("empty", _LEAF),
    SPLIT: ("split a neuron", _INNER),
    TIGHTEN: ("better bounds", _INNER),
    HALVE: ("halve an input", _INNER),
}
_CHILDREN = {BOUND: 0, CROWN: 0, EMPTY: 0, SPLIT: 2, TIGHTEN: 1, HALVE: 2}


def relaxations(path: Path) -> None:
    figure, axes = plt.subplots(2, len(_KINDS), figsize=(11, 5), sharex=True)
    for column, name in enumerate(_KINDS):
        activation = ACTIVATIONS[name]()
        whole = (-2.0, 3.0)
        for row, parts in enumerate([[whole], [(whole[0], 0.0), (0.0, whole[1])]]):
            _draw(axes[row][column], activation, parts)
        axes[0][column].set_title(name)
    axes[0][0].set_ylabel("one interval")
    axes[1][0].set_ylabel("after a split at 0")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw(axis: Any, activation: Activation, parts: list[tuple[float, float]]) -> None:
    for low, high in parts:
        z = torch.linspace(low, high, 200, dtype=torch.float64)
        ends = torch.tensor([low], dtype=torch.float64), torch.tensor([high], dtype=torch.float64)
        alpha = activation.start(*ends)
        lower, upper = activation.lower_line(*ends, alpha), activation.upper_line(*ends, alpha)
        bottom, top = (float(line[0]) * z + float(line[1]) for line in (lower, upper))
        axis.fill_between(z.numpy(), bottom.numpy(), top.numpy(), alpha=0.2, color="tab:blue")
        axis.plot(z.numpy(), bottom.numpy(), z.numpy(), top.numpy(), color="tab:blue", linewidth=1)
        axis.plot(z.numpy(), activation.apply(z).numpy(), color="black", linewidth=2)
    axis.grid(alpha=0.3)


def proof() -> list[int]:
    """The kinds of nodes, in preorder, of a proof small enough to be drawn."""
    for seed in range(100):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)
        )
        reached = model(2 * torch.rand(20000, 3) - 1).max().item()
        rule = qll.parse(f"forall x in box(-1, 1): y[0] <= {reached + 0.02:.3f}", outputs=1)
        with tempfile.TemporaryDirectory() as folder:
            (found,) = qll.verify(
                rule, model, torch.zeros(1, 3), certified=True, certificates=folder
            )
            files = list(Path(folder).glob("*.qllcert"))
            if found.status == "verified" and files:
                kinds: list[int] = np.asarray(unpack(files[0].read_bytes())[1]["kinds"]).tolist()
                if 7 <= len(kinds) <= 30 and set(kinds) <= set(_CHILDREN):
                    return kinds
    raise SystemExit("no small proof was found")


def tree(kinds: list[int], path: Path) -> None:
    figure, axis = plt.subplots(figsize=(9, 4))
    leaves = 0

    def place(number: int, depth: int) -> tuple[int, float]:
        """The number of the node after this subtree, and where this node stands."""
        nonlocal leaves
        following, found = number + 1, list[tuple[int, float]]()
        for _ in range(_CHILDREN[kinds[number]]):
            child = following
            following, at = place(child, depth + 1)
            found.append((child, at))
        if found:
            across = sum(at for _, at in found) / len(found)
        else:
            across, leaves = float(leaves), leaves + 1
        for _, at in found:
            axis.plot([across, at], [-depth, -depth - 1], color="grey", linewidth=1, zorder=1)
        name, colour = _NAMES[kinds[number]]
        axis.text(
            across, -depth, name, ha="center", va="center", fontsize=8, zorder=2,
            bbox={"boxstyle": "round", "facecolor": colour, "edgecolor": "none"},
        )  # fmt: skip
        return following, across

    place(0, 0)
    axis.set_axis_off()
    figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    relaxations(options.out / "relaxation.png")
    kinds = proof()
    tree(kinds, options.out / "tree.png")
    if options.json is not None:
        options.json.write_text(
            json.dumps({"figures": ["relaxation.png", "tree.png"], "nodes": len(kinds)}),
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
