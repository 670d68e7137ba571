"""Monotone, or blind, by construction: the signs of weights are kept after every step.

The rule relates x and x2, of which it says input by input that they are equal, that x2 has more, or
that it has less. Every hidden unit is given a way to go along that step: up, down, or not at all.
A weight between two units that both go some way has the sign that fits, one from a unit that moves
to one that does not is 0, all others are free. So the output goes the way that the rule asks for,
whatever the input. Units that go down beside those that go up are what lets a network of ReLUs bend
both ways (Runje and Shankaranarayana, *Constrained monotonic neural networks*, 2023, have the same
by two activations); those that stand still may use the other inputs as they like.

An input of which the rule says nothing may move either way: the network is made blind to it. That
is fairness by construction, for a rule over two points that differ in a protected input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from qll.errors import InputError, NetworkError
from qll.formula.hard import Affine, HardForm, Max, affine, negated
from qll.networks.models import Normalize
from qll.property import Property
from qll.regions import Region
from qll.training.loss import PropertyTerm
from qll.training.methods.base import METHODS, Method, Setup, Step

# Of each hidden layer, the units that go up, down, and not at all: a third each.
_WAYS = (1.0, -1.0, 0.0)
_LOOKED_AT = 64  # pairs at which it is tried whether equal outputs obey
FREE = 2.0  # in a table of signs: no condition


@METHODS.register("signed")
class SignedMethod(Method):
    remark: ClassVar[str | None] = "the property holds by construction: signs of weights are kept"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        judged = setup.config.judged_property(setup.data.fits)
        x = torch.from_numpy(setup.data.train.inputs[:_LOOKED_AT])
        self.layers = _linear_layers(setup.model)
        moving = ways_of_inputs(judged, x)
        wanted = ways_of_outputs(judged, setup.data.outputs)
        if not any(moving) or 0.0 in wanted:  # blind to all that differs: the outputs are equal
            _check_equal(judged, x, setup.data.outputs)
        if not any(moving):
            wanted = [FREE] * setup.data.outputs
        self.signs = _signs(self.layers, moving, wanted)
        with torch.no_grad():
            for layer, sign in zip(self.layers, self.signs, strict=True):
                weight = layer.weight
                weight.copy_(torch.where(sign == FREE, weight, weight.abs() * sign))

    def term(self, step: Step) -> PropertyTerm:
        """Nothing to train: it holds."""
        nothing = 0.0 * step.outputs.sum(1)
        return PropertyTerm(nothing, nothing.detach(), {"x": step.x})

    @torch.no_grad()
    def after_step(self) -> None:
        for layer, sign in zip(self.layers, self.signs, strict=True):
            weight = layer.weight
            weight.copy_(torch.where(sign == FREE, weight, torch.relu(weight * sign) * sign))


def ways_of_inputs(prop: Property, x: Tensor) -> list[float | None]:
    """Of each input, the way from x to x2: 1 up, -1 down, 0 either, None where they are equal."""
    if len(prop.binders) < 2:
        raise _not_signed(prop, "a rule over two points, x and x2", "one over one point")
    region = Region.of(prop, x[:1])
    said = set(region.constraints2)
    found: list[float | None] = []
    for k in range(x[0].numel()):
        less = affine([(("x", k), 1.0), (("x2", k), -1.0)])  # x - x2 <= 0
        more = negated(less)
        if less in said and more in said:
            found.append(None)
        else:
            found.append(1.0 if less in said else -1.0 if more in said else 0.0)
    return found


def ways_of_outputs(prop: Property, outputs: int) -> list[float]:
    """Of each output, which way the rule lets it go from y to y2; FREE where it says nothing, 0
    where it is no rule of ways: then the output may not move."""
    leaves = _conjuncts(prop.hard_form(outputs=outputs, inputs=prop.inputs))
    found = [FREE] * outputs
    for leaf in leaves:
        terms = {} if not isinstance(leaf, Affine) else dict(leaf.floats[0])
        for k in range(outputs):
            rise = terms.pop(("y2", k), 0.0)
            way = FREE if rise == 0 else -1.0 if rise > 0 else 1.0
            if terms.pop(("y", k), 0.0) != -rise or (way != FREE and found[k] not in (FREE, way)):
                return [0.0] * outputs
            found[k] = way if way != FREE else found[k]
        if terms or not isinstance(leaf, Affine) or leaf.floats[1] > 0:
            return [0.0] * outputs
    return found


def _check_equal(prop: Property, x: Tensor, outputs: int) -> None:
    """The rule must hold where both points have the same outputs, whatever these are."""
    draw = torch.Generator().manual_seed(0)
    points = Region.of(prop, x).sample(draw)
    y = torch.randn(len(x), outputs, generator=draw)
    given = {**points, "x0": x, "y0": y, "y2": y}
    held = {name: t for name, t in given.items() if name in prop.sources}
    if prop.uses_labels or not bool(prop.holds(y, **held).all()):
        raise _not_signed(
            prop,
            "a rule that holds where both points have equal outputs",
            "one that asks for more",
        )


def _conjuncts(form: HardForm) -> list[HardForm]:
    if not isinstance(form, Max):
        return [form]
    return [leaf for part in form.parts for leaf in _conjuncts(part)]


def _signs(
    layers: Sequence[nn.Linear], moving: Sequence[float | None], wanted: Sequence[float]
) -> list[Tensor]:
    """Of each weight, 1, -1, 0 or FREE. A way that is to go nowhere (0) is left by every unit."""
    still = any(way == 0.0 for way in moving) and not any(moving)
    before = [0.0 if way is None else FREE if way == 0.0 else way for way in moving]
    found: list[Tensor] = []
    for k, layer in enumerate(layers):
        last = k == len(layers) - 1
        after = list(wanted) if last else [_WAYS[j % 3] for j in range(layer.out_features)]
        if still and not last:
            after = [0.0] * layer.out_features
        rows = [[_sign(a, b) for b in before] for a in after]
        found.append(torch.tensor(rows, device=layer.weight.device))
        before = after
    return found


def _sign(after: float, before: float) -> float:
    """Of a weight from a unit that goes one way to one that goes another; FREE as a source may go
    either way, as a target it may too."""
    if before == 0.0 or after == FREE:  # nothing moves here, or nobody minds
        return FREE
    return 0.0 if before == FREE else after * before


def _linear_layers(model: nn.Module) -> list[nn.Linear]:
    leaves = [m for m in model.modules() if not list(m.children())]
    known = nn.Linear, nn.ReLU, nn.Flatten, nn.Identity, Normalize
    other = [type(m).__name__ for m in leaves if not isinstance(m, known)]
    found = [m for m in leaves if isinstance(m, nn.Linear)]
    if other or not found:
        raise NetworkError(
            "the signs of this network's weights cannot be kept",
            expected="linear layers with ReLUs between them, such as mlp:16,16",
            found=", ".join(sorted(set(other))) or "no linear layer",
            fix="choose --network mlp:16,16, or --method small-box",
        )
    return found


def _not_signed(prop: Property, expected: str, found: str) -> InputError:
    return InputError(
        f"property '{prop.name}' cannot be had by signs of weights",
        expected=expected,
        found=found,
        fix="use --method attack, bound or small-box",
    )
