"""Whatever text comes in, only a FormulaError comes out, and soon."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qll
from qll.errors import FormulaError
from qll.formula.parse import MAX_CHARACTERS, parse_specification
from qll.formula.show import show_specification
from qll.properties import names

WORDS = [
    "forall",
    "exists",
    "in",
    "not",
    "and",
    "or",
    "tensor",
    "par",
    "-o",
    "->",
    "top",
    "bottom",
    "unit",
    "label",
    "ball",
    "box",
    "range",
    "inf",
    "x",
    "x0",
    "x2",
    "y",
    "y0",
    "y2",
    "<=",
    ">=",
    "<",
    ">",
    "==",
    "!=",
    "+",
    "-",
    "*",
    "/",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    ";",
    "..",
    "=",
    "outputs",
    "parameter",
    "set",
    "define",
    "where",
    "i",
    "j",
    "0",
    "1",
    "3",
    "2.5",
    "1e9",
    "∀",
    "∈",
    "≤",
    "𝟙",
    "#",
    "\n",
    "inputs",
    "probability",
    "a",
]


def assert_handled(text: str) -> None:
    try:
        spec = parse_specification(text)
    except FormulaError as error:
        assert str(error).count("\n") == 2
    else:
        assert parse_specification(show_specification(spec)) == spec


@settings(max_examples=60)
@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
    assert_handled(text)


@settings(max_examples=300)
@given(st.lists(st.sampled_from(WORDS), max_size=14))
def test_any_words(words: list[str]) -> None:
    assert_handled(" ".join(words))


@pytest.mark.parametrize("name", names())
def test_mutated_properties(name: str) -> None:
    text = qll.load(name).show()
    source = random.Random(name)
    for _ in range(25):
        at = source.randrange(len(text))
        match source.randrange(4):
            case 0:
                changed = text[:at] + text[at + source.randrange(1, 6) :]
            case 1:
                changed = text[:at] + source.choice(WORDS) + text[at:]
            case 2:
                changed = text[:at]
            case _:
                words = text.split(" ")
                first, second = source.randrange(len(words)), source.randrange(len(words))
                words[first], words[second] = words[second], words[first]
                changed = " ".join(words)
        assert_handled(changed)


LONG = {
    "parentheses": "(" * 40_000,
    "closed parentheses": "(" * 8_000 + "y[0] <= 0" + ")" * 8_000,
    "negations": "not " * 10_000 + "y[0] <= 0",
    "minus signs": "-" * 20_000 + "y[0] <= 0",
    "implications": "y[0] <= 0 -> " * 3_000 + "y[0] <= 0",
    "comparisons": "y[0] <= " * 6_000,
    "quantifiers": "forall i in outputs: " * 2_000 + "y[0] <= 0",
    "garbage": "@" * 150_000,
    "digits": "y[0] <= " + "9" * 100_000,
    "index digits": f"y[{'9' * 100_000}] <= 0",
    "exponent": "y[0] <= 1e" + "9" * 5_000,
    "one name": "a" * 150_000,
    "ranges": " and ".join(["(forall i in 0..900000: y[0] <= 1)"] * 1000),
    "products": "2*" * 12_000 + "y[0] <= 0",
    "nested sets": "set s0 = {0}\n"
    + "".join(f"set s{k + 1} = s{k}\n" for k in range(3_000))
    + "forall i in s3000: y[i] <= z",
    "too long": "y[0] <= 0 and " * (MAX_CHARACTERS // 10) + "y[0] <= 0",
}


@pytest.mark.parametrize("name", LONG)
def test_long_input_fails_soon(name: str) -> None:
    start = time.process_time()
    with pytest.raises(FormulaError):
        parse_specification(LONG[name])
    assert time.process_time() - start < 20  # seconds; most take a fraction of one


def test_long_input_that_is_right_is_read() -> None:
    spec = parse_specification(" and ".join(f"y[{k}] <= {k}" for k in range(2000)))
    assert len(spec.formula.parts) == 2000  # type: ignore[attr-defined]
