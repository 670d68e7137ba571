"""In which numbers a network is computed: real ones, or IEEE float32.

``real`` proves about the real function of the stored weights. ``float32`` proves about every
evaluation in float32 (`qll.bounds.float32` says which those are) at every float32 input of the
region; a witness is then a float32 input at which every evaluation violates the property.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from qll.bounds.float32 import Float32, above
from qll.bounds.rounding import Rounding, Sizes
from qll.errors import InputError
from qll.formula.hard import Affine, affine
from qll.networks.joint import Joint
from qll.networks.matrices import Array

ARITHMETICS = ("real", "float32")

# Operators of which the roundings are counted as they are computed; moves of entries have none.
COUNTED = {
    "Abs", "Add", "AveragePool", "BatchNormalization", "Cast", "Clip", "Concat", "Constant",
    "ConstantOfShape", "Conv", "Div", "Dropout", "Flatten", "Gather", "Gemm", "GlobalAveragePool",
    "GlobalMaxPool", "Identity", "LeakyRelu", "MatMul", "Max", "MaxPool", "Min", "Mul", "Neg",
    "PRelu", "Pad", "ReduceMean", "ReduceSum", "Relu", "Reshape", "Shape", "Slice", "Split",
    "Squeeze", "Sub", "Sum", "Transpose", "Unsqueeze",
}  # fmt: skip
FLOAT = 1  # of onnx.TensorProto

_known: WeakKeyDictionary[Any, Float32] = WeakKeyDictionary()


def check_arithmetic(name: str | None) -> str | None:
    if name is None or name in ARITHMETICS:
        return name
    raise InputError(
        f"there is no arithmetic '{name}'",
        expected=" or ".join(ARITHMETICS),
        found=name,
        fix="pass float32 for verdicts about every evaluation in float32",
    )


def float32_of(network: Any) -> Float32:
    """The radii of a network that is computed in float32; any other is refused by name."""
    if network not in _known:
        _refuse(network)
        _known[network] = Float32(Rounding(network))
    return _known[network]


def _refuse(network: Any) -> None:
    if type(network) is Joint:  # entries are copied from variables, which rounds nothing
        for single in dict.fromkeys(network.networks):
            _refuse(single)
        return
    if isinstance(network, Joint):
        what = "a rule that moves inputs by a map"
        raise _refusal(what, "it is proved in real numbers only")
    for layer in network.relu_form.layers[:-1]:
        if not layer.activation.piecewise_linear:
            name = layer.activation.name
            raise _refusal(f"the activation {name}", "no bound of its float32 error is known")
    source = getattr(network, "source", None)
    if source is None:
        return
    import onnx

    model = onnx.ModelProto.FromString(source)
    for node in model.graph.node:
        place = f"layer '{node.name or node.output[0]}', a {node.op_type}"
        if node.op_type not in COUNTED:
            raise _refusal(place, "its roundings are not counted")
        to = [a.i for a in node.attribute if node.op_type == "Cast" and a.name == "to"]
        if any(kind == onnx.TensorProto.DOUBLE for kind in to):
            raise _refusal(place, "it computes in float64")
    types = {entry.type.tensor_type.elem_type for entry in model.graph.input}
    if types - {FLOAT, onnx.TensorProto.INT64}:
        raise _refusal("the network's input", "it is not a float32 tensor")


def _refusal(what: str, why: str) -> InputError:
    return InputError(
        f"{what} cannot be judged in float32: {why}",
        expected="a float32 network of sums, products by constants and piecewise linear functions",
        found=what,
        fix="leave out --arithmetic float32 for a verdict in real arithmetic",
    )


def radii(network: Any, lower: Array, upper: Array, outputs: Array) -> Array:
    """(m,): how far rows of outputs may be off over one box, by interval arithmetic."""
    found = float32_of(network)
    hidden = Sizes(found.rounding, lower, upper).interval()[:-1]
    low, high = ([side[None] for side in sides] for sides in zip(*hidden)) if hidden else ([], [])
    return np.asarray(found.radii(lower[None], upper[None], low, high, outputs)[0])


def outputs_at(network: Any, point: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Ends of what any float32 evaluation gives at a point whose real outputs are within ``low``
    and ``high``."""
    first, last = float32_of(network).enclose(point)
    error = radii(network, point, point, np.eye(low.size))
    with np.errstate(invalid="ignore"):
        return (
            np.maximum(first, above(np.nextafter(low - error, -np.inf))),
            np.minimum(last, -above(-np.nextafter(high + error, np.inf))),
        )


def on_grid(leaf: Affine, *, tie_violates: bool) -> Affine:
    """The leaf, positive or 0 exactly where float32 numbers violate the given one: an output that
    is beyond a number is at least the next float32 number."""
    if len(leaf.terms) != 1 or leaf.terms[0][0][0] != "y":
        return leaf
    ((slot, c),) = leaf.terms
    sign = 1 if c > 0 else -1
    bound = sign * -Fraction(leaf.constant) / c  # violated where sign y > bound
    if abs(bound) >= 2**127:
        return leaf
    grid = np.float32(float(bound))
    beyond = np.float32(np.inf)
    while Fraction(float(grid)) < bound or (Fraction(float(grid)) == bound and not tie_violates):
        grid = np.nextafter(grid, beyond)
    while True:
        before = np.nextafter(grid, -beyond)
        if Fraction(float(before)) < bound or (
            Fraction(float(before)) == bound and not tie_violates
        ):
            break
        grid = before
    return affine([(slot, c)], -c * sign * Fraction(float(grid)))


def inside(points: Array, lower: Array, upper: Array) -> Array:
    """Points moved to float32 numbers of the box, where it has any."""
    near = np.clip(points, lower, upper).astype(np.float32)
    wide = near.astype(np.float64)
    down = np.nextafter(near, np.float32(-np.inf)).astype(np.float64)
    up = np.nextafter(near, np.float32(np.inf)).astype(np.float64)
    return np.where(wide > upper, down, np.where(wide < lower, up, wide))
