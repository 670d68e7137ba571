"""Queries in VNN-LIB, good and bad, and tiny networks for them."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qll.exchange.document import Document
from qll.exchange.files import parse
from qll.exchange.models import attach, files_of
from qll.verify.documents import Answer, Decision, decide

HEAD1 = "(declare-const X_0 Real)\n(declare-const X_1 Real)\n(declare-const Y_0 Real)\n"
BOX1 = "".join(f"(assert (>= X_{k} -1.0))\n(assert (<= X_{k} 1.0))\n" for k in range(2))
HEAD2 = """(vnnlib-version <2.1>)
(declare-network f
  (declare-input X real [1,2])
  (declare-output Y real [1])
)
"""
BOX2 = "".join(f"(assert (>= X[0,{k}] -1.0))\n(assert (<= X[0,{k}] 1.0))\n" for k in range(2))

# Name: text, and what the message must say. Places are in the goldens.
REFUSED = {
    "empty": "",
    "only-a-comment": "; nothing\n",
    "prose": "the network is safe",
    "nothing-asserted": HEAD1,
    "truncated-in-an-assertion": HEAD1 + "(assert (<= X_0\n",
    "truncated-in-a-declaration": "(declare-const X_0",
    "closing-bracket": HEAD1 + BOX1 + ")\n",
    "product-of-variables": HEAD1 + "(assert (<= (+ X_0\n   (* X_0 X_1)) 1.0))\n",
    "undeclared-1": HEAD1 + "(assert (<= X_2 1.0))\n",
    "undeclared-in-a-disjunction": HEAD1 + "(assert (or (<= X_0 1.0)\n  (<= Z_0 1.0)))\n",
    "undeclared-2": HEAD2 + "(assert (<= Z[0] 1.0))\n",
    "declared-twice": HEAD1 + "(declare-const X_1 Real)\n",
    "declared-with-gaps": "(declare-const X_1 Real)(declare-const Y_0 Real)(assert (<= X_1 1))",
    "another-type": "(declare-const X_0 Int)",
    "another-name": "(declare-const Z_0 Real)",
    "another-statement": HEAD1 + "(define-fun f () Real 1.0)",
    "another-operator": HEAD1 + "(assert (xor (<= X_0 1.0) (<= X_1 1.0)))",
    "division": HEAD1 + "(assert (<= (/ X_0 2.0) 1.0))",
    "no-operands": HEAD1 + "(assert (and))",
    "three-sides": HEAD1 + "(assert (<= X_0 X_1 Y_0))",
    "not-a-number": HEAD1 + "(assert (<= X_0 1.0.0))",
    "nan": HEAD1 + "(assert (<= X_0 nan))",
    "endless-exponent": HEAD1 + "(assert (<= X_0 1e999999999))",
    "a-number-beyond-floats": HEAD1 + "(assert (<= X_0 1e309))",
    "huge-index": "(declare-const X_999999999 Real)",
    "too-deep": HEAD1 + "(assert " + "(and " * 120 + "(<= X_0 1)" + ")" * 121,
    "too-deep-a-term": HEAD1 + "(assert (<= " + "(+ " * 120 + "X_0" + ")" * 120 + " 1))",
    "a-long-word": HEAD1 + "(assert (<= " + "X" * 5000 + " 1))",
    "bytes": HEAD1 + "(assert (<= X_0 \ufffd\ufffd))",
    "another-version": "(vnnlib-version <3.0>)",
    "a-version-to-come": HEAD2.replace("2.1", "2.2"),
    "negative-index": HEAD2 + "(assert (<= X[0,-1] 1.0))",
    "fractional-index": HEAD2 + "(assert (<= X[0,1.0] 1.0))",
    "no-network": "(vnnlib-version <2.0>)\n(assert (<= X[0] 1.0))",
    "no-output": "(vnnlib-version <2.0>)\n(declare-network f (declare-input X real [1]))",
    "wrong-number-of-indices": HEAD2 + "(assert (<= X[0] 1.0))",
    "index-outside": HEAD2 + "(assert (<= X[0,2] 1.0))",
    "scalar-with-an-index": HEAD2 + "(assert (<= Y[0,0] 1.0))",
    "no-index": HEAD2 + "(assert (<= Y 1.0))",
    "empty-axis": "(vnnlib-version <2.0>)\n(declare-network f (declare-input X real [1,0])",
    "size-0": HEAD2.replace("[1,2]", "[0]") + "(assert (<= Y[0] 1.0))",
    "huge-shape": "(vnnlib-version <2.0>)\n(declare-network f (declare-input X real [99999,99999])",
    "no-shape": "(vnnlib-version <2.0>)\n(declare-network f (declare-input X real)",
    "unknown-element": "(vnnlib-version <2.0>)\n(declare-network f (declare-input X float [1])",
    "name-twice": HEAD2.replace("output Y", "output X"),
    "outputs-first": HEAD2.replace("(declare-in", "(declare-output Z real [1])\n  (declare-in"),
    "hidden-without-a-name": HEAD2.replace("declare-input", "declare-hidden"),
    "declaration-after-assertion": HEAD2 + "(assert (<= Y[0] 1.0))\n" + HEAD2[23:],
    "mixed-types": HEAD2.replace("Y real", "Y float32") + "(assert (<= X[0,0] Y[0]))",
    "a-fraction-among-integers": HEAD2.replace("real", "int32") + "(assert (<= Y[0] 0.5))",
    "negation-in-version-2": HEAD2 + "(assert (not (<= Y[0] 0.5)))",
    "equal-to-nothing": "(vnnlib-version <2.0>)\n(declare-network f (equal-to g)",
    "equal-with-another-shape": HEAD2
    + "(declare-network g (equal-to f)\n  (declare-input A real [2]) (declare-output B real [1]))",
    "a-chain-of-equals": HEAD2
    + "(declare-network g (equal-to f)\n (declare-input A real [1,2])(declare-output B real [1]))\n"
    + "(declare-network h (equal-to g)\n (declare-input C real [1,2]) (declare-output D real [1]))",
}  # fmt: skip


def save(
    path: Path,
    nodes: list[Any],
    inputs: dict[str, list[int]],
    outputs: dict[str, list[int]],
    weights: dict[str, Any],
) -> Path:
    """An ONNX file in float32."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(np.asarray(w, np.float32), name) for name, w in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    return path


def layered(path: Path, *layers: tuple[Any, Any]) -> Path:
    """Affine layers with ReLU between them, ``x W^T + b``."""
    nodes, weights, value = [], {}, "x"
    for k, (matrix, bias) in enumerate(layers):
        weights[f"w{k}"], weights[f"b{k}"] = np.asarray(matrix, float).T, np.asarray(bias, float)
        last = k == len(layers) - 1
        nodes.append(helper.make_node("MatMul", [value, f"w{k}"], [f"m{k}"]))
        nodes.append(helper.make_node("Add", [f"m{k}", f"b{k}"], ["y" if last else f"a{k}"]))
        if not last:
            nodes.append(helper.make_node("Relu", [f"a{k}"], [f"r{k}"], name=f"relu{k}"))
            value = f"r{k}"
    inputs, outputs = np.shape(layers[0][0])[1], np.shape(layers[-1][0])[0]
    return save(path, nodes, {"x": [1, inputs]}, {"y": [1, outputs]}, weights)


MONOTONE = """(vnnlib-version <2.0>)
(declare-network f (declare-input X real [1,2]) (declare-output Y real [1,1]))
(declare-network g (equal-to f) (declare-input A real [1,2]) (declare-output B real [1,1]))
(assert (and (<= X[0,0] 1) (>= X[0,0] 0) (<= X[0,1] 1) (>= X[0,1] 0)))
(assert (and (<= A[0,0] 1) (>= A[0,0] 0)))
(assert (== X[0,1] A[0,1]))
(assert (>= A[0,0] X[0,0]))
"""

F = Fraction
SUM = ([[1.0, 1.0]], [0.0])  # y = x0 + x1


def answer(document: Document, *networks: str, seconds: float = 30) -> tuple[Decision, list[float]]:
    attached = attach(document, files_of(document, networks))
    decision = decide(attached.document, attached.network, seconds=seconds)
    if decision.witness is None:
        return decision, []
    x = attached.all_inputs(decision.witness)
    return decision, [*x.tolist(), *attached.outputs(decision.witness).tolist()]


def ask(text: str, path: Path) -> Answer:
    decision, values = answer(parse(text), str(path))
    if decision.answer is Answer.SAT:
        assert len(values) > 1
    return decision.answer


def assert_answer(found: Answer, expected: str) -> None:
    assert f"not {found}" != expected
    assert expected.startswith("not") or found == expected
