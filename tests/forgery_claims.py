"""Small networks and claims about them that are false: each has a point that violates it, in exact
rational arithmetic that shares nothing with prover or checker."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from forgery_networks import (
    BENT,
    SMOOTH,
    Layers,
    Vector,
    below,
    evaluate,
    large_layers,
    largest,
    model_of,
    points_of,
    random_layers,
)

from qll.audit.bounds import Bounder
from qll.audit.claim import Claim, Goal
from qll.audit.layout import FORMAT, Header, digest
from qll.audit.network import Network, NotConfirmed, read_network
from qll.errors import QllError
from qll.formula.asked import ask
from qll.formula.parse import parse_specification
from qll.formula.question import canonical, question
from qll.formula.rewrite import Shape


@dataclass(frozen=True, eq=False)
class False_:
    """A false claim. ``witness`` is in its region and violates it."""

    layers: Layers
    text: str
    x0: Any
    lower: Any
    upper: Any
    witness: Vector
    tie_violates: bool = False
    labels: tuple[int, ...] | None = None
    bent: Sequence[str] = ()
    other: tuple[Layers, Sequence[str]] | None = None  # the network of x2, and its activations

    @cached_property
    def against(self) -> bytes | None:
        return None if self.other is None else model_of(*self.other)

    def outputs(self, points: Sequence[Vector]) -> Vector:
        """At x, then at x2."""
        second = (self.layers, self.bent) if self.other is None else self.other
        runs = zip(((self.layers, self.bent), second), points, strict=False)
        return [v for (layers, bent), x in runs for v in evaluate(layers, x, bent)]

    @cached_property
    def model(self) -> bytes:
        return model_of(self.layers, self.bent)

    @cached_property
    def curved(self) -> list[bool]:
        """Of each hidden neuron, whether its activation is not ReLU."""
        kinds, widths = self.network.curves, self.network.widths[1:-1]
        return [kind is not None for kind, n in zip(kinds, widths, strict=True) for _ in range(n)]

    @cached_property
    def network(self) -> Network:
        """Of the variables: of both points, where there are two."""
        return self.read.network

    @cached_property
    def shape(self) -> Shape:
        return Shape(len(self.layers[-1][1]), (len(self.layers[0][0][0]),))

    @cached_property
    def header(self) -> dict[str, Any]:
        return {
            "format": FORMAT, "verdict": "verified", "network": digest(self.model), "mean": None,
            "std": None, "text": self.text, "labels": self.labels, "precision": 32,
            "tie_violates": self.tie_violates, "arithmetic": "real",
            "against": None if self.against is None else digest(self.against),
            **self.hashes,
        }  # fmt: skip

    @cached_property
    def hashes(self) -> dict[str, str]:
        """What the text says, once it is in normal form."""
        asked = question(self.text, self.labels, self.shape)
        x0 = np.asarray(self.x0).tolist()
        cases = ask(asked, len(x0), self.shape.outputs, {"x0": x0}).folded(
            tie_violates=self.tie_violates
        )
        ends = [np.array(side).tobytes() for case in cases for side in (case.lower, case.upper)]
        formula = repr((asked.form, asked.constraints)).encode()
        return {"ground": digest(formula), "region": digest(*ends)}

    @cached_property
    def read(self) -> Claim:
        """As the checker reads it: an attacker may use what is published."""
        runs = [read_network(m, None, None) for m in (self.model, self.against) if m is not None]
        return Claim(Header(**self.header), self.x0, *runs)

    @cached_property
    def claim(self) -> Goal:
        return self.read.goals[0]

    @cached_property
    def entries(self) -> Vector:
        """The witness as all entries of x, and of x2."""
        asked = self.read.asked
        if asked.image is None:
            return [self.witness[k] for k in asked.ties.home]
        return [
            sum((c * self.witness[k] for (_, k), c in row.terms), Fraction(row.constant))
            for row in asked.image
        ]

    @cached_property
    def stored(self) -> Vector:
        """The witness as a certificate holds it."""
        return self.entries if self.read.asked.image is None else self.witness

    @property
    def neurons(self) -> int:
        return sum(self.network.widths[1:-1])


def canonical_of(region: str, body: str) -> str:
    return canonical(parse_specification(f"forall x in {region}: {body}"))


# --- what is said of them ---

GAPS = (0.0, 1e-300, 1e-17, 1e-15, 1e-12, 1e-6, 1e-2, 0.5, 4.0)
Quantity = Callable[[Vector, Vector], Fraction]


def quantities(outputs: int, inputs: int, rng: Any) -> list[tuple[str, Quantity]]:
    """Texts of quantities with their exact meaning at (x, y)."""
    i, j = int(rng.integers(outputs)), int(rng.integers(outputs))
    k, c = int(rng.integers(inputs)), float(rng.integers(-3, 4))
    found: list[tuple[str, Quantity]] = [
        (f"y[{i}]", lambda x, y: y[i]),
        (f"-2*y[{i}]", lambda x, y: -2 * y[i]),
        (f"y[{i}] + {c}*x[{k}]", lambda x, y: y[i] + Fraction(c) * x[k]),
        (f"y[{i}]/3", lambda x, y: y[i] / 3),
    ]
    if i != j:
        found.append((f"y[{i}] - y[{j}]", lambda x, y: y[i] - y[j]))
    return found


def false_claim(rng: Any) -> False_ | None:
    """A random one; None if no point was found that violates it, or it is no claim: vacuous, or of
    numbers that the checker does not take."""
    makers = [large_claim, bounded_claim, turning_claim, curved_claim, plain_claim]
    makers += [integer_claim, pair_claim, rising_claim]
    make = makers[int(rng.choice(5, p=[0.15, 0.1, 0.05, 0.2, 0.5]))]
    return checked(make(rng))


def checked(claim: False_ | None) -> False_ | None:
    try:
        return claim if claim is None or Bounder(claim.claim.network) else None
    except (NotConfirmed, QllError):
        return None


def curved_claim(rng: Any) -> False_ | None:
    """With other activations than ReLU."""
    names = list(BENT) + list(SMOOTH) * bool(rng.random() < 0.3)
    layers = random_layers(rng)
    return plain_claim(rng, layers, [str(rng.choice(names)) for _ in layers[1:]])


def plain_claim(rng: Any, layers: Layers | None = None, bent: Sequence[str] = ()) -> False_ | None:
    """Comparisons that one point violates, in every combination, among others that hold."""
    layers = random_layers(rng) if layers is None else layers
    smooth = any(name in SMOOTH for name in bent)
    inputs, outputs = len(layers[0][0][0]), len(layers[-1][1])
    x0 = rng.integers(-8, 9, inputs) / 4
    width = float(rng.choice([0.0, 2.0**-52, 2.0**-20, 0.25, 1.0, 4.0]))
    region, lower, upper = f"ball(x0, {width!r})", x0 - width, x0 + width
    if rng.random() < 0.3:
        lower, upper = np.full(inputs, -1.0), np.full(inputs, 1.5)
        region = "box(-1, 1.5)"
    points = list(points_of(lower, upper, rng))
    if rng.random() < 0.2:  # a constraint that half of them meet
        region += " and x[0] <= " + repr(float(x0[0]))
        points = [p for p in points if p[0] <= Fraction(float(x0[0]))]
    values = [(x, evaluate(layers, x, bent)) for x in points]
    if not values:
        return None
    chosen = [quantities(outputs, inputs, rng) for _ in range(int(rng.choice([1, 1, 2, 3])))]
    parts = [options[int(rng.integers(len(options)))] for options in chosen]
    x, y = values[int(np.argmax([float(parts[0][1](*v)) for v in values]))]
    if inputs == 1 and not bent and "and" not in region and rng.random() < 0.7:
        # The tightest of all: the exact maximum, wherever it is.
        row = [Fraction(int(k == 0)) for k in range(outputs)]
        at, _ = largest(layers, row, float(lower[0]), float(upper[0]))
        parts, x = [("y[0]", lambda x, y: y[0])], [at]
        y = evaluate(layers, x)
    tie = bool(rng.random() < 0.3)
    texts = []
    for text, meaning in parts:
        gap = float(rng.choice(GAPS[5:] if smooth else GAPS))  # beyond doubt, if not exact
        least, violated = threshold(meaning(x, y), gap, tie)
        if not violated:
            return None
        texts.append(f"({text} <= {least!r})")
    joiner = " and " if rng.random() < 0.5 else " or "
    body = joiner.join(texts)
    if len(texts) > 1 and rng.random() < 0.3:
        body = f"({body}) or {texts[0]}" if joiner == " and " else f"({body}) and {texts[0]}"
    if rng.random() < 0.4:
        others = [f"({body})", "(y[0] <= 1e6)"]
        body = " and ".join(others if rng.random() < 0.5 else reversed(others))
    return False_(layers, canonical_of(region, body), x0, lower, upper, x, tie, bent=bent)


def integer_claim(rng: Any) -> False_ | None:
    """Of whole numbers only, with a premise on one of them; false at one of them."""
    layers = random_layers(rng)
    inputs = len(layers[0][0][0])
    lower = rng.integers(-3, 2, inputs).astype(float)
    upper = lower + rng.integers(1, 4, inputs)
    points = list(itertools.product(*(range(int(a), int(b) + 1) for a, b in zip(lower, upper))))
    x = [Fraction(v) for v in points[int(rng.integers(len(points)))]]
    value, tie = evaluate(layers, x)[0], bool(rng.random() < 0.3)
    least, violated = threshold(value, float(rng.choice(GAPS)), tie)
    if not violated:
        return None
    # Shrunk and widened ends mean the same integers.
    slack = float(rng.choice([0.0, 0.25, 0.75]))
    region = f"box({(lower - slack).tolist()}, {(upper + slack).tolist()}) and integer(x)"
    body = f"y[0] <= {least!r}"
    if rng.random() < 0.4:
        body = f"x[0] >= {float(x[0]) - 0.5!r} -> {body}"
    zero = np.zeros(inputs)
    return False_(layers, canonical_of(region, body), zero, lower, upper, x, tie)


def pair_claim(rng: Any) -> False_ | None:
    """Of two points that differ in the first input: false by what the network itself does."""
    layers = random_layers(rng)
    inputs = len(layers[0][0][0])
    lower, upper = rng.integers(-4, 1, inputs) / 4, rng.integers(1, 5, inputs) / 4
    points = [x for x in points_of(lower, upper, rng) if all(float(v) == v for v in x)]
    best: Any = None
    for x in points:
        for first in (Fraction(float(lower[0])), Fraction(float(upper[0])), points[0][0]):
            moved = [first, *x[1:]]
            rise = evaluate(layers, moved)[0] - evaluate(layers, x)[0]
            if best is None or rise > best[0]:
                best = rise, [*x, first]
    tie = bool(rng.random() < 0.3)
    least, violated = threshold(best[0], float(rng.choice(GAPS)), tie)
    if not violated:
        return None
    box = f"box({lower.tolist()}, {upper.tolist()})"
    same = "" if inputs == 1 else " and (forall i in inputs where i != 0: x2[i] == x[i])"
    text = canonical(
        parse_specification(f"forall x in {box}, x2 in {box}{same}: y2[0] - y[0] <= {least!r}")
    )
    ends = [np.append(side, side[0]) for side in (lower, upper)]
    return False_(layers, text, np.zeros(inputs), *ends, best[1], tie)


def against_claim(rng: Any) -> False_ | None:
    """Of two networks at one point: the second a little changed, or one of other layers."""
    layers, bent = random_layers(rng), list[str]()
    inputs, outputs = len(layers[0][0][0]), len(layers[-1][1])
    changed = [(w + rng.integers(-1, 2, w.shape) / 8, b) for w, b in layers]
    if rng.random() < 0.5:
        changed = random_layers(rng)
        first, last = changed[0], changed[-1]
        changed[0] = rng.integers(-4, 5, (len(first[1]), inputs)) / 4, first[1]
        shape = outputs, len(changed[-1][0][0])
        changed[-1] = rng.integers(-4, 5, shape) / 4, np.resize(last[1], outputs)
        bent = [str(rng.choice(list(BENT))) for _ in changed[1:]]
    lower, upper = rng.integers(-4, 1, inputs) / 4, rng.integers(1, 5, inputs) / 4
    points = [x for x in points_of(lower, upper, rng) if all(float(v) == v for v in x)]
    best = max(
        ((evaluate(changed, x, bent)[0] - evaluate(layers, x)[0], x) for x in points),
        key=lambda each: each[0],
    )
    tie = bool(rng.random() < 0.3)
    least, violated = threshold(best[0], float(rng.choice(GAPS)), tie)
    if not violated:
        return None
    box = f"box({lower.tolist()}, {upper.tolist()})"
    same = "(forall i in inputs: x2[i] == x[i])"
    text = canonical(
        parse_specification(f"forall x in {box}, x2 in {box} and {same}: y2[0] - y[0] <= {least!r}")
    )
    zero = np.zeros(inputs)
    return False_(layers, text, zero, lower, upper, best[1], tie, other=(changed, bent))


def rising_claim(rng: Any) -> False_ | None:
    """That the output does not fall with the first input, of a network that somewhere lets it."""
    layers = random_layers(rng)
    inputs = len(layers[0][0][0])
    lower, upper = rng.integers(-4, 1, inputs) / 4, rng.integers(1, 5, inputs) / 4
    worst: Any = None
    for x in points_of(lower, upper, rng):
        for share in (Fraction(1), Fraction(1, 2), Fraction(1, 64)):
            first = x[0] + share * (Fraction(float(upper[0])) - x[0])
            fall = evaluate(layers, x)[0] - evaluate(layers, [first, *x[1:]])[0]
            if all(float(v) == v for v in (*x, first)) and (worst is None or fall > worst[0]):
                worst = fall, [*x, first]
    if worst is None or worst[0] <= 0:
        return None
    box = f"box({lower.tolist()}, {upper.tolist()})"
    same = "" if inputs == 1 else " and (forall i in inputs where i != 0: x2[i] == x[i])"
    region = f"forall x in {box}, x2 in {box}{same} and x2[0] >= x[0]"
    text = canonical(parse_specification(f"{region}: y2[0] >= y[0]"))
    ends = [np.append(side, side[0]) for side in (lower, upper)]
    return False_(layers, text, np.zeros(inputs), *ends, worst[1])


def image_claim(rng: Any) -> False_ | None:
    """Of inputs that a few parameters move; false at some of them. A box beside the map leaves the
    witness in."""
    layers = random_layers(rng)
    inputs, count = len(layers[0][0][0]), int(rng.integers(1, 4))
    x0 = rng.integers(-8, 9, inputs) / 4
    ways = rng.integers(-4, 5, (count, inputs)) / 4
    lower = rng.integers(-4, 1, count) / 4
    upper = lower + rng.integers(1, 5, count) / 4
    found = []
    for v in points_of(lower, upper, rng):
        x = [
            Fraction(float(a)) + sum(s * Fraction(float(d)) for s, d in zip(v, way, strict=True))
            for a, way in zip(x0, ways.T, strict=True)
        ]
        found.append((evaluate(layers, x)[0], v, x))
    value, v, x = max(found, key=lambda each: each[0])
    tie = bool(rng.random() < 0.3)
    least, violated = threshold(value, float(rng.choice(GAPS)), tie)
    if not violated:
        return None
    smalls = [f"t{k} in [{a!r}, {b!r}]" for k, (a, b) in
              enumerate(zip(lower.tolist(), upper.tolist(), strict=True))]  # fmt: skip
    body = " + ".join(f"t{k}*{way.tolist()}" for k, way in enumerate(ways))
    beside = ""
    if rng.random() < 0.3:
        beside = f" and x[0] <= {-below(-x[0])!r}"
    text = canonical(
        parse_specification(
            f"forall {', '.join(smalls)}, x = x0 + {body}{beside}: y[0] <= {least!r}"
        )
    )
    return False_(layers, text, x0, lower, upper, v, tie)


def round_claim(rng: Any) -> False_ | None:
    """Of a ball in the norm l1 or l2; false at a point in it, often next to its boundary."""
    layers = random_layers(rng)
    inputs = len(layers[0][0][0])
    x0 = rng.integers(-8, 9, inputs) / 4
    kind = str(rng.choice(["l1", "l2"]))
    found = []
    for _ in range(40):
        away = rng.integers(-8, 9, inputs) / 8
        x = [Fraction(float(v)) for v in x0 + away]
        far = math.fsum(np.abs(away)) if kind == "l1" else math.sqrt(math.fsum(away * away))
        found.append((evaluate(layers, x)[0] - Fraction(far), x, far))
    _, x, far = max(found, key=lambda each: each[0])
    radius = float(np.nextafter(far, np.inf)) * float(rng.choice([1.0, 1.0, 1.125])) + 2.0**-40
    tie = bool(rng.random() < 0.3)
    least, violated = threshold(evaluate(layers, x)[0], float(rng.choice(GAPS)), tie)
    if not violated:
        return None
    text = canonical_of(f"ball(x0, {radius!r}, {kind})", f"y[0] <= {least!r}")
    return False_(layers, text, x0, x0 - radius, x0 + radius, x, tie)


def large_claim(rng: Any) -> False_ | None:
    """False by less than the rounding of the numbers that are summed, at a point or next to it."""
    layers, size = large_layers(rng)
    x0 = rng.uniform(-1, 1, 1)
    width = float(rng.choice([0.0, 0.0, size * 2.0**-54, size * 2.0**-52]))
    x = [Fraction(float(x0[0]))]
    gap = size * 2.0**-53 * float(rng.choice([0.01, 0.1, 0.3, 1.0]))
    least, violated = threshold(evaluate(layers, x)[0], gap, False)
    text = canonical_of(f"ball(x0, {width!r})", f"y[0] <= {least!r}")
    return False_(layers, text, x0, x0 - width, x0 + width, x) if violated else None


def bounded_claim(rng: Any) -> False_ | None:
    """An output that is never positive but may be 0, which is a violation here; or that would not
    be positive, were its activations those of ReLUs."""
    layers, bent = random_layers(rng), []
    if rng.random() < 0.5:
        bent = ["relu"] * (len(layers) - 2) + [str(rng.choice(["leaky", "clip"]))]
    weight, bias = layers[-1]
    layers[-1] = -np.abs(weight), np.zeros(len(bias))
    lower, upper = np.full((2, len(layers[0][0][0])), [[-2.0], [2.0]])
    for x in points_of(lower, upper, rng):
        value = evaluate(layers, x, bent)[0]
        if value > 0 or (value == 0 and not bent):
            text = canonical_of("box(-2, 2)", "y[0] <= 0")
            return False_(layers, text, lower, lower, upper, x, value == 0, bent=bent)
    return None


def turning_claim(rng: Any) -> False_ | None:
    """A peak where an activation turns: ``relu(c - w |x|)`` is c at 0 and nothing at the ends."""
    peak, slope = int(rng.integers(1, 9)) / 4, int(rng.integers(4, 17)) / 4
    layers: Layers = [([[1.0]], [0.0]), ([[-slope]], [peak]), ([[1.0]], [0.0])]
    bent = [str(rng.choice(["abs", "falling"])), "relu"]
    lower, upper = np.full((2, 1), [[-4.0], [4.0]])
    text = canonical_of("box(-4, 4)", f"y[0] <= {peak / 2!r}")
    return False_(layers, text, lower, lower, upper, [Fraction(0)], bent=bent)


def threshold(value: Fraction, gap: float, tie: bool) -> tuple[float, bool]:
    """A float below a value by a gap or so, and whether the value then violates 'at most'."""
    least = below(value - Fraction(gap))
    return least, value >= Fraction(least) if tie else value > Fraction(least)


def true_claim(rng: Any) -> False_:
    """A property of a network of one input that holds, just so: ``witness`` is where it is nearest
    to being violated."""
    layers = random_layers(rng)
    layers[0] = layers[0][0][:, :1], layers[0][1]
    lower, upper = np.sort(rng.integers(-8, 9, 2) / 4)
    row = [Fraction(int(k == 0)) for k in range(len(layers[-1][1]))]
    at, value = largest(layers, row, float(lower), float(upper))
    tie = bool(rng.random() < 0.3)
    most = -below(-value)
    most = float(np.nextafter(most, np.inf)) if tie and most else most
    if tie and not most:
        most = 1e-300
    text = canonical_of(f"box({float(lower)!r}, {float(upper)!r})", f"y[0] <= {most!r}")
    x0 = np.array([lower])
    return False_(layers, text, x0, x0, np.array([upper]), [at], tie)
