"""The compiled form of a network: tables of steps, blocks and taps, and packed weights.

Layouts: ``layers.py`` and ``rows.py``. ``chain.py`` makes the plan of a chain of affine layers and
ReLUs, ``graph.py`` that of any other network.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


@dataclass(eq=False)
class NetworkPlan(ABC):
    """The compiled form of a network. ``refresh`` after the weights have changed."""

    inputs: int
    outputs: int
    input_order: Ints  # row -> flat index of the input
    output_row: int
    output_rows: NDArray[np.int64]  # flat index of the output -> row, relative to the first
    rows: int
    forward_steps: NDArray[np.int64]
    backward_steps: NDArray[np.int64]  # the last gives the gradient by the input
    blocks: Ints
    taps: Ints
    weights: Floats
    biases: Floats
    multiplications: int
    # Activations: address and first parameter of each.
    functions: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    params: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    @cached_property
    def input_places(self) -> Ints:
        """Flat index of the input -> row."""
        return np.argsort(self.input_order).astype(np.int32)

    @abstractmethod
    def refresh(self) -> None:
        """Read the module's weights anew."""

    @cached_property
    def _attack_runners(self) -> NDArray[np.int64]:
        from qll.kernels.runners import attack_addresses

        return attack_addresses(self.forward_steps, self.backward_steps)

    @cached_property
    def _step_runners(self) -> NDArray[np.int64]:
        from qll.kernels.runners import step_addresses

        return step_addresses(np.concatenate([self.forward_steps, self.backward_steps]))

    @cached_property
    def _forward_runners(self) -> NDArray[np.int64]:
        from qll.kernels.runners import step_addresses

        return step_addresses(self.forward_steps)

    def arrays(self, use: str = "attack") -> tuple[Any, ...]:
        """For the kernels: for an ``attack``, the ``forward`` steps, or each single ``step``."""
        runners = getattr(self, f"_{use}_runners")
        return (
            self.blocks, self.taps, self.weights, self.biases, self.functions, self.params,
            runners,
        )  # fmt: skip


def run_network(
    plan: NetworkPlan, points: Floats, cotangent: Floats | None = None
) -> tuple[Floats, Floats | None]:
    """Outputs of ``points`` (samples, inputs) and, for a cotangent, the gradient by the input.

    The plain use of the kernels, for references and tests: attacks run theirs fused.
    """
    from qll.kernels.layers import run_backward, run_forward, run_input_gradient
    from qll.kernels.simd import LANES, aligned_floats

    count = len(points)
    outputs = np.empty((count, plan.outputs), dtype=np.float32)
    gradient = None if cotangent is None else np.empty((count, plan.inputs), dtype=np.float32)
    lanes, rows = aligned_floats(plan.inputs * LANES), aligned_floats(plan.rows * LANES)
    table: Any = plan.arrays("step")
    last = slice(plan.output_row * LANES, (plan.output_row + plan.outputs) * LANES)
    for begin in range(0, count, LANES):
        part = slice(begin, min(begin + LANES, count))
        used = part.stop - begin
        lanes.reshape(-1, LANES)[:, :used] = points[part][:, plan.input_order].T
        run_forward(plan.forward_steps, table, lanes, 0, rows)
        outputs[part] = rows[last].reshape(-1, LANES)[:, :used].T
        if cotangent is not None and gradient is not None:
            rows[last].reshape(-1, LANES)[:, :used] = cotangent[part].T
            run_backward(plan.backward_steps, table, rows)
            run_input_gradient(plan.backward_steps, table, rows, lanes)
            gradient[part.start : part.stop, plan.input_order] = lanes.reshape(-1, LANES)[
                :, :used
            ].T
    return outputs, gradient
