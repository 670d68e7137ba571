"""The canonical form of a feed-forward network: affine maps and activations, affine runs folded.

With ``a_0`` the flattened input and ``a_k = f_k(z_k)``, ``f_k`` the layer's activation,

    z_k = bias_k + sum_j W[k][j] a_j,   j < k,   k = 1 .. L,

and ``z_L`` is the output. ``layers[k - 1]`` holds ``z_k``. A plain network is a chain (only
``j = k - 1``); residual, skip and concatenated branches are further blocks ``W[k][j]``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from qll.errors import InputError, NetworkError
from qll.networks.activations import RELU, Activation
from qll.networks.matrices import Array, Matrix, scale_columns


@dataclass(frozen=True, eq=False)
class FormLayer:
    """One pre-activation ``z = bias + sum_j W_j a_j``; ``terms`` holds ``(j, W_j)`` by rising j.
    ``activation`` makes ``a`` of it; the last layer's is not used."""

    bias: Array  # (n,)
    terms: tuple[tuple[int, Matrix], ...]  # (source index, (n, width of the source))
    activation: Activation = RELU

    @property
    def width(self) -> int:
        return int(self.bias.shape[0])


@dataclass(frozen=True, eq=False)
class ReluForm:
    """See the module's docstring. Shapes are checked once, here, so that readers of the form need
    not: a source index lies below its layer's own and each block fits its source."""

    input_shape: tuple[int, ...]
    layers: tuple[FormLayer, ...]

    def __post_init__(self) -> None:
        if not self.layers:
            raise NetworkError(
                "the network has no layer",
                expected="at least one affine layer",
                found="none",
                fix="check that the file holds the whole network",
            )
        for k, layer in enumerate(self.layers, start=1):
            for source, weight in layer.terms:
                fits = 0 <= source < k and weight.shape == (layer.width, self.widths[source])
                if not fits:
                    raise NetworkError(
                        f"layer {k} has a block from layer {source} of shape {weight.shape}",
                        expected=f"a source below {k} and its width by {layer.width} rows",
                        found=f"widths {self.widths}",
                        fix="build the form with the readers of qll.networks",
                    )

    @property
    def input_size(self) -> int:
        return math.prod(self.input_shape)

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """``widths[j]`` is the width of ``a_j``: the input first, the output last."""
        return (self.input_size, *(layer.width for layer in self.layers))

    @property
    def output_size(self) -> int:
        return self.layers[-1].width

    @property
    def relu_count(self) -> int:
        return sum(layer.width for layer in self.layers[:-1])

    @cached_property
    def is_chain(self) -> bool:
        """Whether every layer reads the one before it, and nothing else."""
        return all(
            tuple(source for source, _ in layer.terms) == (k,)
            for k, layer in enumerate(self.layers)
        )

    @cached_property
    def is_relu(self) -> bool:
        return all(layer.activation == RELU for layer in self.layers[:-1])

    @property
    def is_relu_chain(self) -> bool:
        """What the compiled kernels take."""
        return self.is_chain and self.is_relu

    @cached_property
    def is_piecewise_linear(self) -> bool:
        return all(layer.activation.piecewise_linear for layer in self.layers[:-1])

    def pre_activations(self, x: Array) -> list[Array]:
        """``[z_1, ..., z_L]``, each (B, n), for points ``x`` (B, input size)."""
        points = np.asarray(x, dtype=np.float64)
        if points.ndim != 2 or points.shape[1] != self.input_size:
            raise InputError(
                "the points do not fit the network",
                expected=f"an array of shape (points, {self.input_size})",
                found=f"shape {points.shape}",
                fix="flatten each point, one per row",
            )
        # Columns are points, because CSR times dense wants the batch on the right.
        activations = [points.T]
        result: list[Array] = []
        for layer in self.layers:
            z = np.repeat(layer.bias[:, None], points.shape[0], axis=1)
            for source, weight in layer.terms:
                z += weight @ activations[source]
            result.append(z.T)
            activations.append(layer.activation.value(z))
        return result

    def forward(self, x: Array) -> Array:
        """(B, input size) -> (B, output size), in float64."""
        return self.pre_activations(x)[-1]

    def prepend_normalisation(self, mean: Array | float, std: Array | float) -> ReluForm:
        """The network of raw input ``x``, where this one takes ``(x - mean) / std``."""
        centre, width = normalisation_vectors(self.input_shape, mean, std)
        layers = []
        for layer in self.layers:
            bias = layer.bias
            terms: list[tuple[int, Matrix]] = []
            for source, weight in layer.terms:
                if source == 0:
                    terms.append((0, scale_columns(weight, 1.0 / width)))
                    bias = bias - weight @ (centre / width)
                else:
                    terms.append((source, weight))
            layers.append(FormLayer(bias, tuple(terms), layer.activation))
        return ReluForm(self.input_shape, tuple(layers))


def nonzeros(form: ReluForm) -> int:
    """Weights that are not 0."""
    return sum(
        int(np.count_nonzero(w)) if isinstance(w, np.ndarray) else int(w.nnz)
        for layer in form.layers
        for _, w in layer.terms
    )


def normalisation_vectors(
    shape: tuple[int, ...], mean: Array | float, std: Array | float
) -> tuple[Array, Array]:
    """Mean and deviation spread over the flattened input: from a scalar, one value per channel (the
    first axis), or one per entry."""
    return (
        _spread(shape, mean, "mean", positive=False),
        _spread(shape, std, "std", positive=True),
    )


def _spread(shape: tuple[int, ...], value: Array | float, name: str, *, positive: bool) -> Array:
    try:
        given = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        given = np.full(1, np.nan)
    if not np.all(np.isfinite(given)) or (positive and not np.all(given > 0)):
        raise InputError(
            f"the normalisation's {name} is not usable",
            expected="finite numbers above 0" if positive else "finite numbers",
            found=str(value),
            fix=f"pass the {name} of the training images, one per channel or one for all",
        )
    if given.size == 1:
        return np.full(math.prod(shape), float(given.reshape(())))
    if given.shape == shape:
        return given.reshape(-1)
    if given.ndim == 1 and len(shape) >= 1 and given.size == shape[0]:
        return np.repeat(given, math.prod(shape[1:]))
    raise InputError(
        f"the normalisation's {name} does not fit the network's input",
        expected=f"1 value, {shape[0] if shape else 1} (one per channel) or shape {shape}",
        found=f"shape {given.shape}",
        fix=f"pass one {name} for all channels or one per channel",
    )
