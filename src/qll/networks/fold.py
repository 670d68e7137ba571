"""Folding every affine run of a program: a layer remains for each activation, and the output."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qll import limits
from qll.errors import NetworkError
from qll.networks.activations import RELU, Activation
from qll.networks.matrices import (
    Array,
    Matrix,
    add,
    check_total,
    entries,
    identity,
    multiply,
    scale_rows,
)
from qll.networks.program import Activate, AffineMap, Program
from qll.networks.relu_form import FormLayer, ReluForm


@dataclass(frozen=True, eq=False)
class _Expression:
    """A value as an affine function of the activations ``a_j``; None stands for the identity, so
    that the first product after an activation costs nothing."""

    blocks: dict[int, Matrix | None]
    bias: Array


def fold(program: Program) -> ReluForm:
    with np.errstate(over="ignore", invalid="ignore"):  # refused where a layer is made
        return _fold(program)


def _fold(program: Program) -> ReluForm:
    size = program.widths[0]
    values = [_Expression({0: None}, np.zeros(size))]
    layers: list[FormLayer] = []
    total = 0
    for step in program.steps:
        limits.check()
        if isinstance(step, Activate):
            layers.append(_layer(values[step.source], step.function))
            width = layers[-1].width
            values.append(_Expression({len(layers): None}, np.zeros(width)))
        else:
            values.append(_apply(step, values))
            blocks = values[-1].blocks.values()
            total += sum(entries(block).size for block in blocks if block is not None)
            check_total(total)
    layers.append(_layer(values[-1]))
    return ReluForm(program.input_shape, tuple(layers))


def _apply(step: AffineMap, values: list[_Expression]) -> _Expression:
    bias = step.bias.copy()
    blocks: dict[int, Matrix | None] = {}
    for source, matrix in step.terms:
        inner = values[source]
        bias += matrix @ inner.bias
        for index, block in inner.blocks.items():
            product = matrix if block is None else multiply(matrix, block)
            previous = blocks.get(index)
            blocks[index] = product if previous is None else add(previous, product)
    if step.divisor is not None:
        inverse = 1.0 / step.divisor
        bias = bias / step.divisor
        blocks = {index: scale_rows(inverse, block) for index, block in blocks.items()}
    return _Expression(blocks, bias)


def _layer(value: _Expression, activation: Activation = RELU) -> FormLayer:
    width = value.bias.shape[0]
    terms = []
    for index, block in sorted(value.blocks.items()):
        matrix = identity(width) if block is None else block
        if _is_zero(matrix) and len(value.blocks) > 1:
            continue
        terms.append((index, matrix))
    parts = [value.bias, *(entries(matrix) for _, matrix in terms)]
    if not all(np.all(np.isfinite(part)) for part in parts):
        raise NetworkError(
            "the network's weights overflow when its affine layers are folded",
            expected="products of weights below 1.8e308",
            found="infinity",
            fix="scale the weights down; the network has no meaning in floating point as it is",
        )
    return FormLayer(value.bias, tuple(terms), activation)


def _is_zero(matrix: Matrix) -> bool:
    return not np.any(entries(matrix))
