"""Random quantities, formulas, specifications and points, built as the parser would build them."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import strategies as st
from naive import Point

from qll.formula import build
from qll.formula.nodes import (
    Compare,
    Connective,
    Constant,
    Definition,
    Entry,
    Formula,
    FormulaReference,
    Implies,
    Index,
    IndexBinder,
    IndexCondition,
    IndexSet,
    Label,
    NameDeclaration,
    Not,
    Number,
    Parameter,
    ParameterDeclaration,
    Quantified,
    Quantity,
    QuantityReference,
    SetDeclaration,
    Specification,
)

OUTPUTS, INPUTS = 3, 2
# Quarters make ties and exact zeros, which is where logics differ.
quarters = st.integers(-12, 12).map(lambda n: n / 4)
numbers = st.one_of(quarters, st.floats(-3, 3, allow_subnormal=False).map(lambda v: round(v, 6)))
factors = st.sampled_from([-2.0, -1.0, -0.5, 0.5, 1.0, 3.0])
hardnesses = st.one_of(st.none(), st.none(), st.sampled_from([0.5, 2.0, 7.25, math.inf]))

_PARAMETERS = (
    ParameterDeclaration("a", "number", 0.75),
    ParameterDeclaration("q", "probability", 0.7),
)
_NAMES = (
    NameDeclaration("outputs", ("cat", "big dog", "bird")),
    NameDeclaration("inputs", ("weight", "bird's age")),
)
_SETS = (
    SetDeclaration("pair", IndexSet(None, ((0,), ("bird",)))),
    SetDeclaration("edges", IndexSet(None, ((0, 1), (1, 2), (2, 0)))),
)


@st.composite
def index(draw, scope: tuple[str, ...], size: int) -> Index:
    if scope and size == OUTPUTS and draw(st.booleans()):
        return Index(draw(st.sampled_from(scope)))
    at = draw(st.integers(0, size - 1))
    if draw(st.integers(0, 3)) == 0:
        return Index(None, quoted=_NAMES[size == INPUTS].names[at])
    return Index(None, at)


@st.composite
def entry(draw, scope: tuple[str, ...]) -> Entry:
    source = draw(st.sampled_from(["y", "y", "y", "y0", "x", "x0"]))
    return Entry(source, (draw(index(scope, INPUTS if source[0] == "x" else OUTPUTS)),))


@st.composite
def quantity(draw, scope: tuple[str, ...], depth: int = 2, *, references: bool = True) -> Quantity:
    kinds = ["entry", "entry", "number", "parameter"] + (["slope"] if references else [])
    kinds += ["add", "negate", "multiply", "divide"] if depth else []
    match draw(st.sampled_from(kinds)):
        case "entry":
            return draw(entry(scope))
        case "number":
            return Number(draw(numbers))
        case "parameter":
            return Parameter(draw(st.sampled_from(["a", "q"])))
        case "slope":
            return QuantityReference("slope", (draw(index(scope, OUTPUTS)),))
        case "add":
            parts = st.lists(
                quantity(scope, depth - 1, references=references), min_size=2, max_size=3
            )
            return build.add(*draw(parts))
        case "negate":
            return build.negate(draw(quantity(scope, depth - 1, references=references)))
        case "multiply":
            factor = draw(st.one_of(factors.map(Number), st.just(Parameter("a"))))
            return build.multiply(factor, draw(quantity(scope, depth - 1, references=references)))
        case _:
            divisor = Number(draw(st.sampled_from([2.0, -4.0, 3.0])))
            return build.divide(draw(quantity(scope, depth - 1, references=references)), divisor)


@st.composite
def condition(draw, names: tuple[str, ...]) -> IndexCondition:
    left = Index(draw(st.sampled_from(names)), draw(st.integers(-1, 1)))
    if draw(st.booleans()):
        return IndexCondition(draw(st.sampled_from(["in", "not in"])), left, IndexSet("pair"))
    operator = draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]))
    return IndexCondition(operator, left, draw(index(names, OUTPUTS)))


@st.composite
def formula(
    draw,
    scope: tuple[str, ...] = (),
    depth: int = 3,
    *,
    linear: bool = True,
    constants: bool = True,
    labels: bool = True,
    positive: bool | None = True,
    references: bool = True,
) -> Formula:
    """``positive``: '==' may stand here (None: nowhere). ``linear``: with tensor, par and -o."""

    def inner(more: tuple[str, ...] = (), *, flip: bool = False, down: int = 1):
        return formula(
            (*scope, *more),
            depth - down,
            linear=linear,
            constants=constants,
            labels=labels,
            positive=None if positive is None else positive != flip,
            references=references,
        )

    kinds = ["compare"] * 3 + (["constant"] if constants else [])
    kinds += ["reference"] if references else []
    if depth:
        kinds += ["not", "and", "or", "and", "or", "material", "quantified", "quantified"]
        kinds += ["label"] if labels else []
        kinds += ["tensor", "par", "linear"] if linear else []
    match draw(st.sampled_from(kinds)):
        case "compare":
            operators = ["<=", ">=", "<", ">"] + (["=="] if positive else [])
            sides = quantity(scope, references=references)
            return Compare(draw(st.sampled_from(operators)), draw(sides), draw(sides))
        case "constant":
            if draw(st.booleans()):
                return Constant(draw(st.sampled_from(["top", "bottom", "unit"])))
            infinity = Number(draw(st.sampled_from([math.inf, -math.inf])))
            operator = draw(st.sampled_from(["<=", ">="]))
            return Compare(operator, draw(quantity(scope, references=references)), infinity)
        case "reference":
            return FormulaReference("near", (draw(index(scope, OUTPUTS)),))
        case "not":
            return Not(draw(inner(flip=True)))
        case "and" | "or" | "tensor" | "par" as kind:
            parts = tuple(draw(st.lists(inner(), min_size=2, max_size=3)))
            hardness = draw(hardnesses) if kind in ("and", "or") else None
            return Connective(kind, parts, hardness)
        case "material":
            return Implies("material", draw(inner(flip=True)), draw(inner()))
        case "linear":
            return Implies("linear", draw(inner(flip=True)), draw(inner()))
        case "label":
            label: Formula = Label(draw(index(scope, OUTPUTS)))
            if draw(st.booleans()):
                label = Not(label)
            match draw(st.sampled_from(["-o", "->", "and", "or"])):
                case "-o":
                    return Implies("linear", label, draw(inner()))
                case "->":
                    return Implies("material", label, draw(inner()))
                case kind:
                    return Connective(kind, (label, draw(inner())), draw(hardnesses))
        case _:
            fresh = f"i{len(scope)}", f"j{len(scope)}"
            if draw(st.integers(0, 3)) == 0:
                names, binders = fresh, (IndexBinder(fresh, IndexSet("edges")),)
            else:
                names = fresh[:1]
                domains = [IndexSet("outputs"), IndexSet("pair"), IndexSet(None, ((1,), (2,)))]
                binders = (IndexBinder(names, draw(st.sampled_from(domains))),)
            conditions = tuple(draw(st.lists(condition((*scope, *names)), max_size=1)))
            kind = draw(st.sampled_from(["forall", "exists"]))
            body = draw(inner(names, down=2 if depth > 1 else 1))
            return Quantified(kind, binders, body, conditions, draw(hardnesses))


@st.composite
def specification(
    draw, *, linear: bool = True, constants: bool = True, labels: bool = True
) -> Specification:
    definitions = (
        Definition("slope", ("k",), draw(quantity(("k",), 1, references=False))),
        Definition(
            "near",
            ("k",),
            draw(
                formula(
                    ("k",),
                    1,
                    linear=linear,
                    constants=False,
                    labels=labels,
                    positive=None,  # it may be used under a negation
                    references=False,
                )
            ),
        ),
    )
    body = draw(formula(linear=linear, constants=constants, labels=labels))
    return Specification(body, (), _PARAMETERS, _SETS, definitions, names=_NAMES)


@st.composite
def point(draw, *, multi_label: bool = False) -> Point:
    def vector(size: int) -> list[float]:
        return draw(st.lists(numbers, min_size=size, max_size=size))

    vectors = {
        source: vector(INPUTS if source[0] == "x" else OUTPUTS) for source in ("y", "y0", "x", "x0")
    }
    if multi_label:
        labels = draw(st.frozensets(st.integers(0, OUTPUTS - 1)))
    else:
        labels = frozenset({draw(st.integers(0, OUTPUTS - 1))})
    return Point(vectors, labels)


def renamed(node: Specification, name: str) -> Specification:
    return replace(node, name=name)
