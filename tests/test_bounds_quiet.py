"""No notice of another library reaches a user."""

from __future__ import annotations

import subprocess
import sys

# Large enough that a layer stays a sparse matrix in torch; bounds of it as the verifier asks them.
SCRIPT = """
import torch
from torch import nn
from qll.bounds.crown import Crown
from qll.networks import load

torch.manual_seed(0)
first, second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1, stride=2)
rest = nn.Flatten(), nn.Linear(16 * 14 * 14, 2)
module = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), *rest)
crown = Crown(load(module, input_shape=(1, 28, 28)).relu_form)
layouts = {matrix.layout for terms in crown.terms for _, matrix in terms}
assert torch.sparse_csr in layouts, layouts
for radius in (0.0, 0.001):  # without and with neurons whose sign is open
    x = torch.full((1, 784), 0.5).double()
    boxes = crown.pre_activations(x - radius, x + radius)
    open_signs = sum(int(((l < 0) & (h > 0)).sum()) for l, h in zip(boxes.low, boxes.high))
    assert (open_signs > 0) == (radius > 0), open_signs
"""


def test_sparse_layers_are_bounded_without_a_notice() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
