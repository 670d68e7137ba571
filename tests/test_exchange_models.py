"""Networks that a query declares: shapes, defaults, isomorphic graphs, and what is printed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from exchange_cases import BOX2, HEAD1, HEAD2, layered, save
from onnx import helper

from qll.errors import InputError
from qll.exchange.document import Tensor
from qll.exchange.files import parse
from qll.exchange.models import Attached, attach, files_of, shape_in_model
from qll.verify.documents import Answer, decide, queries


def attached(text: str, *networks: str) -> Attached:
    document = parse(text, "query.vnnlib")
    return attach(document, files_of(document, networks))


def declared(*shape: int) -> Tensor:
    return Tensor("X", "input", "real", shape, 0, place="query.vnnlib:2:35")


@pytest.mark.parametrize(
    ("shape", "sizes", "found"),
    [
        ((1, 3, 4, 4), [1, 3, 4, 4], (1, 3, 4, 4)),
        ((3, 4, 4), [1, 3, 4, 4], (1, 3, 4, 4)),  # without the batch
        ((1, 4), [4], (4,)),  # with one
        ((1, 1, 4, 4), [4, 4], (4, 4)),
        ((48,), [1, 3, 4, 4], (1, 3, 4, 4)),  # flat, as version 1 has it
        ((1, 48), [1, 3, 4, 4], (1, 3, 4, 4)),
        ((3,), [3, 1], (3, 1)),
        ((), [1], (1,)),
        ((), [], ()),
        ((4,), [None, 4], (1, 4)),  # open axes are the query's
        ((2, 4), [None, 4], (2, 4)),
        ((8,), [None, 4], (2, 4)),
        ((5, 4), [None, None], (5, 4)),
        ((5, 4), None, (5, 4)),
    ],
)
def test_shapes_that_fit(
    shape: tuple[int, ...], sizes: list[int | None] | None, found: tuple[int, ...]
) -> None:
    assert shape_in_model(declared(*shape), sizes, "net.onnx") == found


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((1, 4, 4, 1), [1, 1, 4, 4]),  # the channels last
        ((1, 4, 4, 3), [1, 3, 4, 4]),
        ((3, 1), [1, 3]),
        ((3, 1), [3]),
        ((2, 2), [1, 4]),
        ((4, 2), [None, 4]),
        ((2, 3, 4), [1, 3, 4]),
        ((5,), [1, 4]),
        ((), [2]),
    ],
)
def test_other_shapes_are_refused_with_their_place(
    shape: tuple[int, ...], sizes: list[int | None]
) -> None:
    with pytest.raises(InputError, match=r"^query\.vnnlib:2:35: the input of the query is not"):
        shape_in_model(declared(*shape), sizes, "net.onnx")


def test_shapes_of_hidden_nodes(tmp_path: Path) -> None:
    path = layered(tmp_path / "net.onnx", ([[1, 0], [0, 1]], [0, 0]), ([[1, 1]], [0]))
    head = HEAD2.replace("[1])", "[1,1])")
    for shape, at in (("[1,2]", "[0,1]"), ("[2]", "[1]")):
        hidden = f'(declare-hidden H real {shape} "r0")\n  (declare-output'
        text = head.replace("(declare-output", hidden) + BOX2 + f"(assert (>= H{at} 0.5))"
        assert attached(text, f"f={path}").network.output_size == 3
    wrong = text.replace("real [2]", "real [2,1]").replace("H[1]", "H[1,0]")
    with pytest.raises(InputError, match=r"^query\.vnnlib:4:19: the hidden node of the query"):
        attached(wrong, f"f={path}")


def test_errors_about_networks_have_places(tmp_path: Path) -> None:
    path = layered(tmp_path / "net.onnx", ([[1, 1, 1]], [0]))
    text = HEAD2 + BOX2 + "(assert (>= Y[0] 1.5))"
    more = text.replace("(declare-output", "(declare-input Z real [1])\n  (declare-output")
    first = "query.vnnlib:3:18: the input of the query is not that of"
    for query, start in (
        (text, first),
        (more, "query.vnnlib:4:18: the query's inputs are not those of"),
        (HEAD1 + "(assert (>= Y_0 1.5))", "query.vnnlib:1:16: the input of the query is not"),
    ):
        with pytest.raises(InputError, match=f"^{re.escape(start)}"):
            attached(query, f"f={path}")
    fits = layered(tmp_path / "fits.onnx", ([[1, 1]], [0]))
    without = attached(text.replace("(assert (<= X[0,1] 1.0))\n", ""), f"f={fits}")
    with pytest.raises(InputError, match=r"^query\.vnnlib:3:18: the input X\[0,1\] has no upper"):
        list(queries(without.document, without.network))


def test_inputs_with_a_default(tmp_path: Path) -> None:
    """As the standard says, an input that is declared is chosen, whatever the file stores for it;
    older files list all weights among their inputs."""
    nodes = [helper.make_node("Add", ["x", "d"], ["y"])]
    path = save(tmp_path / "net.onnx", nodes, {"x": [1, 2], "d": [1, 2]}, {"y": [1, 2]},
                {"d": [[1.0, 1.0]]})  # fmt: skip
    head = HEAD2.replace("Y real [1]", "Y real [1,2]") + BOX2
    text = head + "(assert (>= Y[0,0] {}))"
    stored = attached(text.format(2), f"f={path}")
    assert stored.notes
    assert "stored values: d" in stored.notes[0]
    assert decide(stored.document, stored.network, seconds=9).answer is Answer.SAT
    listed = text.replace("  (declare-out", "  (declare-input D real [1,2])\n  (declare-out")
    listed += "(assert (and (>= D[0,0] 0) (<= D[0,0] 2) (== D[0,1] 1)))"
    free = attached(listed.format(3), f"f={path}")
    assert not free.notes
    found = decide(free.document, free.network, seconds=9)
    assert found.answer is Answer.SAT
    assert found.witness is not None
    assert found.witness[2] == 2


def test_isomorphic_networks_have_the_same_graph(tmp_path: Path) -> None:
    one = layered(tmp_path / "a.onnx", ([[1, 0], [0, 1]], [0, 0]), ([[1, 1]], [0]))
    two = layered(tmp_path / "b.onnx", ([[2, 3], [4, 5]], [6, 7]), ([[8, 9]], [1]))
    model = onnx.load(two)
    for node in model.graph.node:  # names are no structure
        node.name = f"another_{node.name}"
        node.output[0] = node.output[0].replace("m0", "other")
        node.input[0] = node.input[0].replace("m0", "other")
    onnx.save(model, two)
    plain = layered(tmp_path / "c.onnx", ([[1, 1]], [0]))
    wide = layered(tmp_path / "d.onnx", ([[1, 0]] * 3, [0] * 3), ([[1, 1, 1]], [0]))
    second = HEAD2.split("\n", 1)[1].replace("network f", "network g (isomorphic-to f)")
    second = second.replace(" X ", " A ").replace(" Y ", " B ")
    text = HEAD2 + second + BOX2 + BOX2.replace("X[", "A[") + "(assert (>= Y[0] B[0]))"
    assert attached(text, f"f={one}", f"g={two}").network.input_size == 4
    for other in (plain, wide):
        with pytest.raises(InputError, match=r"^query\.vnnlib:7:18: .* is not isomorphic to"):
            attached(text, f"f={one}", f"g={other}")
    any_two = text.replace("(isomorphic-to f)", "")
    assert attached(any_two, f"f={one}", f"g={plain}").network.input_size == 4


def test_outputs_are_printed_in_the_declared_type(tmp_path: Path) -> None:
    """1e60 is a real number and no float32."""
    nodes = [
        helper.make_node("Mul", ["x", "big"], ["p"]),
        helper.make_node("Mul", ["p", "big"], ["y"]),
    ]
    path = save(tmp_path / "net.onnx", nodes, {"x": [1, 2]}, {"y": [1, 2]}, {"big": [[1e30, 1.1]]})
    text = HEAD2.replace("Y real [1]", "Y real [1,2]") + BOX2 + "(assert (>= Y[0,0] 0.5))"
    point = np.array([1.0, 1.0])
    exact = [float(np.float32(v)) ** 2 for v in (1e30, 1.1)]
    found = attached(text, f"f={path}").outputs(point)
    assert found == pytest.approx(exact, rel=1e-15)
    single = attached(text.replace("real", "float32"), f"f={path}").outputs(point)
    assert single.tolist() == [np.inf, float(np.float32(1.1) * np.float32(1.1))]
