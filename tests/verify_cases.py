"""Tiny networks and conditions whose exact worst value is found by enumeration."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from scipy.optimize import linprog

from qll.bounds.graph import GraphBounder
from qll.bounds.lanes import ChainBounder
from qll.bounds.rounding import Rounding, Sizes
from qll.formula.hard import Affine, HardForm, Max, Min, affine
from qll.networks.relu_form import FormLayer, ReluForm
from qll.verify.prover import NeuronProver
from qll.verify.query import Query


@dataclass(frozen=True, eq=False)
class FormNetwork:
    """A network given by its form alone; its exact value is that of the float64 weights."""

    relu_form: ReluForm

    def evaluate_exact(self, x: Any) -> tuple[Fraction, ...]:
        values = [[Fraction(float(v)) for v in x]]
        for k, layer in enumerate(self.relu_form.layers):
            z = [Fraction(float(b)) for b in layer.bias]
            for source, weight in layer.terms:
                for i, row in enumerate(np.asarray(weight).tolist()):
                    z[i] += sum(Fraction(w) * v for w, v in zip(row, values[source], strict=True))
            last = k == len(self.relu_form.layers) - 1
            values.append(z if last else [layer.activation.exact(v) for v in z])
        return tuple(values[-1])

    def enclose(self, x: Any) -> tuple[Any, Any]:
        if not self.relu_form.is_piecewise_linear:
            value = self.relu_form.forward(np.asarray(x)[None])[0]
            return value - 1e-9, value + 1e-9
        exact = np.array([float(v) for v in self.evaluate_exact(x)])
        return np.nextafter(exact, -np.inf), np.nextafter(exact, np.inf)

    def runtime(self, batch: Any) -> Any:
        return self.relu_form.forward(np.asarray(batch))


def chain_prover(form: ReluForm) -> NeuronProver:
    """Splits of neurons on the compiled bounds."""
    return NeuronProver(ChainBounder(form))


def graph_prover(form: ReluForm) -> NeuronProver:
    """Splits of neurons on the torch reference bounds."""
    return NeuronProver(GraphBounder(form))


def sizes_of(form: ReluForm, lower: Any, upper: Any) -> Sizes:
    """Of a network that is given by its form, over a box, or over the hull of several."""
    box = np.atleast_2d(lower).min(axis=0), np.atleast_2d(upper).max(axis=0)
    sizes = Sizes(Rounding(FormNetwork(form)), *box, leaves=8)
    sizes.interval()
    return sizes


def chain(*layers: tuple[Any, Any]) -> FormNetwork:
    """From pairs (weight, bias)."""
    built = tuple(
        FormLayer(np.asarray(b, dtype=np.float64), ((k, np.asarray(w, dtype=np.float64)),))
        for k, (w, b) in enumerate(layers)
    )
    return FormNetwork(ReluForm((np.asarray(layers[0][0]).shape[1],), built))


def random_network(rng: np.random.Generator, *, skips: bool = False) -> FormNetwork:
    inputs = int(rng.integers(1, 4))
    widths = [inputs, *rng.integers(1, 4, size=int(rng.integers(1, 3))).tolist(), 3]
    scale = 10.0 ** rng.uniform(-2, 2)
    layers = []
    for k in range(1, len(widths)):
        terms = []
        for source in range(k):
            if source == k - 1 or (skips and rng.random() < 0.5):
                weight = rng.standard_normal((widths[k], widths[source]))
                kind = rng.random()
                if kind < 0.2:
                    weight[rng.random(weight.shape) < 0.5] = 0.0
                elif kind < 0.3 and widths[k] > 1:
                    weight[1] = weight[0]  # duplicate neurons
                terms.append((source, weight))
        bias = rng.standard_normal(widths[k]) * 0.5
        if rng.random() < 0.2:
            bias[0] = rng.choice([-50.0, 50.0])  # dead or always on
        if k == 1:
            terms = [(s, w * scale) for s, w in terms]
            bias = bias * scale
        layers.append(FormLayer(bias, tuple(terms)))
    return FormNetwork(ReluForm((inputs,), tuple(layers)))


def random_condition(
    rng: np.random.Generator, outputs: int, inputs: int, depth: int = 2
) -> HardForm:
    if depth == 0 or rng.random() < 0.3:
        terms = [(("y", i), float(rng.standard_normal())) for i in range(outputs)]
        if rng.random() < 0.3:
            terms.append((("x", int(rng.integers(inputs))), float(rng.standard_normal())))
        return affine(terms, float(rng.standard_normal()))
    kind = Max if rng.random() < 0.5 else Min
    count = int(rng.integers(2, 4))
    return kind(tuple(random_condition(rng, outputs, inputs, depth - 1) for _ in range(count)))


def worst_value(query: Query) -> float:
    """The exact maximum of the condition over the box, by one linear programme for each activation
    pattern and each way to violate. Shares no code with the verifier."""
    form = query.form
    hidden = [layer.width for layer in form.layers[:-1]]
    clauses = _clauses(query.condition)
    best = -np.inf
    for signs in itertools.product((0.0, 1.0), repeat=sum(hidden)):
        maps = [(np.eye(form.input_size), np.zeros(form.input_size))]
        rows, ends = [], []
        at = 0
        for k, layer in enumerate(form.layers):
            matrix = np.zeros((layer.width, form.input_size))
            bias = layer.bias.copy()
            for source, weight in layer.terms:
                matrix = matrix + weight @ maps[source][0]
                bias = bias + weight @ maps[source][1]
            if k == len(form.layers) - 1:
                break
            on = np.array(signs[at : at + layer.width])
            at += layer.width
            side = 2 * on - 1  # side * (matrix x + bias) >= 0
            rows.append(-side[:, None] * matrix)
            ends.append(side * bias)
            maps.append((on[:, None] * matrix, on * bias))
        pattern = np.vstack(rows) if rows else np.zeros((0, form.input_size))
        corner = np.where(pattern > 0, query.lower, query.upper)
        if ((pattern * corner).sum(axis=1) > np.concatenate([*ends, []]) + 1e-12).any():
            continue  # a neuron cannot take this sign anywhere in the box
        for clause in clauses:
            # maximise t with leaf(x) >= t
            leaf_rows, leaf_ends = [], []
            for leaf in clause:
                coefficient, constant = np.zeros(form.input_size), leaf.constant
                for (source, index), c in leaf.terms:
                    if source == "x":
                        coefficient[index] += c
                    else:
                        coefficient = coefficient + c * matrix[index]
                        constant += c * bias[index]
                leaf_rows.append(np.append(-coefficient, 1.0))
                leaf_ends.append(constant)
            a = np.vstack([np.hstack([pattern, np.zeros((len(pattern), 1))]), *leaf_rows])
            b = np.concatenate([*ends, leaf_ends])
            bounds = [*zip(query.lower, query.upper, strict=True), (None, None)]
            cost = np.zeros(form.input_size + 1)
            cost[-1] = -1.0
            solved = linprog(cost, A_ub=a, b_ub=b, bounds=bounds, method="highs")
            if solved.status == 2:
                break  # no point has this pattern, whatever the clause
            if solved.status == 0:
                best = max(best, -solved.fun)
    return best


def _clauses(form: HardForm) -> list[list[Affine]]:
    match form:
        case Affine():
            return [[form]]
        case Max(parts):
            return [clause for part in parts for clause in _clauses(part)]
        case Min(parts):
            choices = itertools.product(*(_clauses(part) for part in parts))
            return [[leaf for clause in choice for leaf in clause] for choice in choices]
