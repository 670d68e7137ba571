"""Random graphs, half of them spoiled, through ONNX Runtime and both readers of ONNX files.

`make test` tries the same few hundred graphs every time; `make fuzz` QLL_FUZZ new ones, or those
from QLL_FUZZ_SEED on. That the comparison sees errors is tested too: each attribute of each
operator is overlooked in turn, and other mistakes are made, and each must be found.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import onnx
import pytest
from graph_compare import (
    Case,
    checker_difference,
    compare,
    describe,
    reader_difference,
    shrink,
)
from graph_mutations import SPOILERS, spoil_by
from graph_runtime import Runtime
from graph_steps import one_step_model, random_model

import qll.networks  # noqa: F401 (before its parts)
from qll.audit import network as checker
from qll.audit import onnx_file, operators
from qll.networks import onnx_checks, onnx_constants, onnx_operators, onnx_reader, windows
from qll.networks.onnx_reader import OPERATORS

QUICK, ONE_STEP, MOST, SPOILED = 400, 2000, 12_000, 16
COUNT = int(os.environ.get("QLL_FUZZ", "0")) or QUICK
FRESH = random.SystemRandom().randrange(1 << 40) if "QLL_FUZZ" in os.environ else 0
FIRST = int(os.environ.get("QLL_FUZZ_SEED", FRESH))
Graphs: TypeAlias = Iterable[tuple[onnx.ModelProto, Case]]


class OneStep:
    """Graphs of one operator each, made and run when they are asked for, and kept."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.models: list[onnx.ModelProto] = []
        self.cases: dict[int, Case] = {}

    def graphs(self, kind: str | None = None, most: int = MOST) -> Graphs:
        for seed in range(most):
            if seed == len(self.models):
                self.models.append(one_step_model(seed))
            model = self.models[seed]
            if kind is None or any(node.op_type == kind for node in model.graph.node):
                if seed not in self.cases:
                    data = model.SerializeToString()
                    self.cases[seed] = Case.of(data, seed, self.runtime)
                yield model, self.cases[seed]


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime() as started:
        yield started


@pytest.fixture(scope="module")
def one_step(runtime: Runtime) -> OneStep:
    return OneStep(runtime)


@pytest.fixture(scope="module")
def spoiled(runtime: Runtime) -> Graphs:
    """In each way, some of them."""
    found = []
    for seed in range(SPOILED * len(SPOILERS)):
        model = random_model(2 * seed, spoiled=False)  # chains, which both readers take
        spoil_by(model, random.Random(seed), SPOILERS[seed % len(SPOILERS)])
        found.append((model, Case.of(model.SerializeToString(), seed, runtime)))
    return found


@pytest.mark.timeout(0)  # QLL_FUZZ may be as large as one likes
def test_what_is_read_is_what_runs(
    runtime: Runtime, record_property: Callable[[str, object], None]
) -> None:
    counts: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + COUNT):
        model = random_model(seed)
        report = compare(model.SerializeToString(), seed, runtime)
        for name in ("ran", "read", "checked"):
            counts[name] += getattr(report, name)
        if report.differences:
            pytest.fail(explain(seed, model, runtime))
    record_property("graphs", f"{COUNT} from {FIRST}: {dict(counts)}, {runtime.deaths} crashes")
    if "QLL_FUZZ" in os.environ:
        sys.stderr.write(f"\n{COUNT} graphs from {FIRST}: {dict(counts)}\n")
    assert 0.5 * COUNT < counts["ran"] < 0.8 * COUNT  # neither all sound nor all spoiled
    assert counts["read"] > 0.35 * COUNT
    assert counts["checked"] > 0.12 * COUNT


def explain(seed: int, model: onnx.ModelProto, runtime: Runtime) -> str:
    def differences(smaller: onnx.ModelProto) -> tuple[str, ...]:
        return compare(smaller.SerializeToString(), seed, runtime).differences

    smallest = shrink(model, lambda smaller: bool(differences(smaller)))
    found = "\n".join(differences(smallest))
    again = f"QLL_FUZZ=1 QLL_FUZZ_SEED={seed} pytest tests/test_fuzz_graphs.py -k what_runs"
    return f"{again}\n{describe(smallest)}\n{found}"


def test_one_operator_is_read_as_it_runs(one_step: OneStep) -> None:
    read: Counter[str] = Counter()
    checked: Counter[str] = Counter()
    for model, case in one_step.graphs(most=ONE_STEP):
        report = case.report()
        assert not report.differences, (describe(model), report)
        kinds = {node.op_type for node in model.graph.node}
        read.update(kinds if report.ran and report.read else ())
        checked.update(kinds if report.ran and report.checked else ())
    assert set(read) == set(OPERATORS)
    assert set(checked) == set(onnx_file.OPERATORS)
    assert min(read.values()) >= 3 and min(checked.values()) >= 3


# --- is a mistake found? ---

# Attributes that mean nothing for the outputs, or without which a node does not fit its operands.
HARMLESS = {
    ("MaxPool", "storage_order"), ("BatchNormalization", "momentum"), ("Dropout", "ratio"),
    ("Dropout", "seed"), ("Conv", "kernel_shape"), ("Cast", "saturate"), ("Cast", "round_mode"),
    ("Conv", "group"), ("Gather", "axis"), ("Gemm", "transA"), ("Slice", "axes"),
    ("LayerNormalization", "axis"), ("LayerNormalization", "stash_type"),
}  # fmt: skip


def attributes() -> list[tuple[str, str]]:
    """What an operator may have in some opset, and can be left out."""
    found = set()
    for kind in OPERATORS:
        for opset in onnx_checks.OPSETS:
            schema = onnx_checks._schema(kind, opset)
            if schema is not None:
                given = schema.attributes.items()
                found |= {(kind, name) for name, formal in given if not formal.required}
    return sorted(pair for pair in found - HARMLESS if pair[0] != "Constant")


def overlooked(patch: pytest.MonkeyPatch, kind: str, name: str) -> None:
    real = OPERATORS[kind]

    def read(reading: Any, call: Any) -> Any:
        given = {key: value for key, value in call.given.items() if key != name}
        return real(reading, replace(call, given=given))

    patch.setitem(OPERATORS, kind, read)


def finds(graphs: Graphs, difference: Callable[[Case], tuple[bool, str | None]]) -> bool:
    """Is there a graph that is now read wrongly?"""
    checker.read_network.cache_clear()
    try:
        return any(wrong(difference, case) for _, case in graphs)
    finally:
        checker.read_network.cache_clear()


def wrong(difference: Callable[[Case], tuple[bool, str | None]], case: Case) -> bool:
    try:
        return difference(case)[1] is not None
    except (ValueError, LookupError, TypeError, AttributeError):
        return False  # a crash is not a wrong answer: other graphs must show the mistake


@pytest.mark.parametrize(("kind", "name"), attributes(), ids=str)
def test_an_overlooked_attribute_is_found(
    kind: str, name: str, one_step: OneStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlooked(monkeypatch, kind, name)
    assert finds(one_step.graphs(kind), reader_difference)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("Conv", "strides"), ("Conv", "pads"), ("Conv", "auto_pad"), ("Conv", "dilations"),
     ("Gemm", "transB"), ("Gemm", "alpha"), ("Gemm", "beta"),
     ("BatchNormalization", "training_mode")],
)  # fmt: skip
def test_an_attribute_that_the_checker_overlooks_is_found(
    kind: str, name: str, one_step: OneStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = operators._operator

    def operator(kind: str, shape: Any, given: Any, at: int, options: Any) -> Any:
        return real(kind, shape, given, at, {k: v for k, v in options.items() if k != name})

    monkeypatch.setattr(operators, "_operator", operator)
    assert finds(one_step.graphs(kind), checker_difference)


def instead(kind: str, other: str) -> Callable[[pytest.MonkeyPatch], None]:
    """An operator is read as another."""

    def mistake(patch: pytest.MonkeyPatch) -> None:
        real = OPERATORS[other]
        patch.setitem(
            OPERATORS, kind, lambda reading, call: real(reading, replace(call, kind=other))
        )

    return mistake


def reversed_inputs(kind: str) -> Callable[[pytest.MonkeyPatch], None]:
    def mistake(patch: pytest.MonkeyPatch) -> None:
        real = OPERATORS[kind]

        def read(reading: Any, call: Any) -> Any:
            return real(reading, replace(call, inputs=call.inputs[::-1]))

        patch.setitem(OPERATORS, kind, read)

    return mistake


def without_last_input(kind: str, most: int) -> Callable[[pytest.MonkeyPatch], None]:
    def mistake(patch: pytest.MonkeyPatch) -> None:
        real = OPERATORS[kind]

        def read(reading: Any, call: Any) -> Any:
            return real(reading, replace(call, inputs=call.inputs[:most]))

        patch.setitem(OPERATORS, kind, read)

    return mistake


def floor_division(patch: pytest.MonkeyPatch) -> None:
    real = onnx_constants._compute

    def compute(kind: str, first: int, *rest: int) -> int:
        return first // rest[0] if kind == "Div" else real(kind, first, *rest)

    patch.setattr(onnx_constants, "_compute", compute)


def slices_from_the_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(onnx_operators, "_clamped", lambda start, end, pace, size: (0, end, pace))


def padding_at_the_other_end(patch: pytest.MonkeyPatch) -> None:
    real = windows.same_padding
    patch.setattr(
        onnx_operators,
        "same_padding",
        lambda spatial, w, *, upper: real(spatial, w, upper=not upper),
    )


MISTAKES: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "sub-as-add": ("Sub", instead("Sub", "Add")),
    "add-as-sub": ("Add", instead("Add", "Sub")),
    "div-as-mul": ("Div", instead("Div", "Mul")),
    "max-as-min": ("Max", instead("Max", "Min")),
    "min-as-max": ("Min", instead("Min", "Max")),
    "sum-as-max": ("Sum", instead("Sum", "Max")),
    "mean-as-sum": ("ReduceMean", instead("ReduceMean", "ReduceSum")),
    "average-as-max": ("AveragePool", instead("AveragePool", "MaxPool")),
    "global-max-as-average": ("GlobalMaxPool", instead("GlobalMaxPool", "GlobalAveragePool")),
    "relu-as-identity": ("Relu", instead("Relu", "Identity")),
    "neg-as-identity": ("Neg", instead("Neg", "Identity")),
    "slope-as-relu": ("PRelu", instead("PRelu", "Relu")),
    "sub-turned": ("Sub", reversed_inputs("Sub")),
    "concat-turned": ("Concat", reversed_inputs("Concat")),
    "conv-without-bias": ("Conv", without_last_input("Conv", 2)),
    "gemm-without-bias": ("Gemm", without_last_input("Gemm", 2)),
    "pad-without-fill": ("Pad", without_last_input("Pad", 2)),
    "clip-without-upper-end": ("Clip", without_last_input("Clip", 2)),
    "slice-without-steps": ("Slice", without_last_input("Slice", 4)),
    "squeeze-without-axes": ("Squeeze", without_last_input("Squeeze", 1)),
    "floor-division": ("Div", floor_division),
    "slices-from-the-start": ("Slice", slices_from_the_start),
    "padding-at-the-other-end": ("Conv", padding_at_the_other_end),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_the_reader_is_found(
    name: str, one_step: OneStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, mistake = MISTAKES[name]
    mistake(monkeypatch)
    assert finds(one_step.graphs(kind), reader_difference)


def ignore(*args: Any) -> None:
    return None


LEFT_OUT: dict[str, tuple[Any, str, Any]] = {
    "names": (onnx_checks, "_check_names", ignore),
    "fields": (onnx_checks, "_refuse_fields", ignore),
    "statements": (onnx_reader, "check_stated", ignore),
    "opset": (onnx_checks, "_opset", lambda model: model.opset_import[0].version),
    "types": (
        onnx_reader,
        "check_types",
        lambda node, opset, types: types.get(node.input[0]) if node.input else None,
    ),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_check_that_the_reader_leaves_out_is_found(
    name: str, spoiled: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*LEFT_OUT[name])
    assert finds(spoiled, reader_difference)


CHECKER_LEFT_OUT: dict[str, tuple[Any, str, Any]] = {
    "once": (onnx_file, "_once", ignore),
    "fields": (onnx_file, "_only", ignore),
    "opset": (onnx_file, "_opset", lambda model: model.opset_import[0].version),
    "rules": (
        onnx_file,
        "OPERATORS",
        {kind: rule._replace(least=0, most=9) for kind, rule in onnx_file.OPERATORS.items()},
    ),
    "types": (
        onnx_file,
        "OPERATORS",
        {kind: rule._replace(types=(1, 7, 11)) for kind, rule in onnx_file.OPERATORS.items()},
    ),
}


@pytest.mark.parametrize("name", CHECKER_LEFT_OUT)
def test_a_check_that_the_checker_leaves_out_is_found(
    name: str, spoiled: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*CHECKER_LEFT_OUT[name])
    assert finds(spoiled, checker_difference)
