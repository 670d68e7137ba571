"""The lab: what it computes, how it says what is wrong, and whom its server answers."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import qll
from qll.errors import FormulaError, InputError, QllError
from qll.logics.base import LOGICS
from qll.reports.lab import COARSE, FINE, LabRequest, evaluate, report_error
from qll.reports.lab_page import STATIC_HARDNESSES, examples, static_page
from qll.reports.lab_server import HOST, MOST_BYTES, LabServer

BOTH = "outputs 2\ny[0] <= 0 and y[1] <= 0"


def _panels(reply: dict[str, Any]) -> dict[str, Any]:
    return {panel["logic"]: panel for panel in reply["logics"]}


def test_every_logic_is_read_as_the_library_reads_it() -> None:
    request = LabRequest(BOTH, marker=(0.5, -1.0), hardness=2.0, epsilon=0.3)
    reply = evaluate(request)
    panels = _panels(reply)
    assert set(panels) == set(LOGICS)
    y = torch.tensor([[0.5, -1.0]], dtype=torch.float64, requires_grad=True)
    prop = qll.parse(BOTH)
    for text in ("qll:2", "stl:2", "yager:2", "dl2", "product", "goedel", "lukasiewicz"):
        loss = prop.loss(y, logic=text)
        (slope,) = torch.autograd.grad(loss.sum(), y)
        found = panels[text.partition(":")[0]]["at"]
        assert found["loss"] == pytest.approx(loss.item(), rel=1e-4)
        assert found["gradient"] == pytest.approx(slope[0].tolist(), rel=1e-4, abs=1e-9)
    assert panels["qll"]["slack"] == pytest.approx([0.34657, 0.0], abs=1e-4)
    assert panels["dl2"]["slack"] is None
    assert reply["holds"] is False and reply["square_violated"] is True


def test_grids_run_row_by_row_from_the_lower_left() -> None:
    reply = evaluate(LabRequest("outputs 2\ny[0] <= 1", ends=(-2, 2)))
    margin = reply["margin"]
    assert len(margin) == FINE * FINE and len(reply["logics"][0]["by_x"]) == COARSE * COARSE
    assert (margin[0], margin[FINE - 1]) == (3.0, -1.0)
    assert margin[0] == margin[FINE * (FINE - 1)]  # y[1] does not matter
    dl2 = _panels(reply)["dl2"]
    assert max(dl2["by_x"]) == 1.0 and set(dl2["by_y"]) == {0.0}


def test_worst_point_tells_which_logic_misses_a_violation() -> None:
    """Of 'y0 <= 0 or y1 <= 0', Goedel at the marker is flat: its loss does not lead anywhere."""
    reply = evaluate(LabRequest("outputs 2\ny[0] <= 0 or y[1] <= 0", marker=(-0.2, -0.2)))
    assert not reply["square_violated"]
    reply = evaluate(
        LabRequest("outputs 2\ny[0] <= 0 or y[1] <= 0", marker=(-0.2, -0.2), epsilon=0.4)
    )
    assert reply["square_violated"]
    assert _panels(reply)["qll"]["worst"]["violated"]
    assert _panels(reply)["qll"]["worst"]["point"] == pytest.approx([0.2, 0.2])


def test_epsilon_is_the_property_s_own() -> None:
    text = "outputs 2\nparameter epsilon: input = 0.1\ny[0] <= epsilon"
    assert evaluate(LabRequest(text, marker=(0.5, 0), epsilon=0.6))["holds"]
    assert not evaluate(LabRequest(text, marker=(0.5, 0), epsilon=0.4))["holds"]


def test_second_points_stand_at_the_marker() -> None:
    text = qll.load("standard-robustness").show()
    reply = evaluate(LabRequest(text, marker=(2.0, 0.0), ends=(-3, 3)))
    assert reply["holds"]
    middle = FINE // 2 * FINE
    assert reply["margin"][middle] < 0  # y[0] = -3 is further than 1 from y0[0] = 2


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("outputs 2\ny[0] <= 0 and y[7] >= 1", 2, 17),
        ("y[0] <= ", 1, None),
        ("outputs 2\n\n  y[0] <== 1", 3, 10),
        ("outputs 2\nforall i in nowhere: y[i] <= 0", 2, 13),
    ],
)
def test_errors_know_their_place(text: str, line: int, column: int | None) -> None:
    with pytest.raises(FormulaError) as caught:
        evaluate(LabRequest(text))
    told = report_error(caught.value)
    assert told["line"] == line
    assert told["column"] is not None and (column is None or told["column"] == column)
    assert told["fix"]


@pytest.mark.parametrize(
    "values",
    [
        [],
        {},
        {"text": 3},
        {"text": BOTH, "axes": [0, 0]},
        {"text": BOTH, "axes": [0, 9]},
        {"text": BOTH, "axes": [0]},
        {"text": BOTH, "ends": [1, -1]},
        {"text": BOTH, "outputs": 10**5},
        {"text": BOTH, "hardness": -1},
        {"text": BOTH, "hardness": "five"},
        {"text": BOTH, "epsilon": float("nan")},
        {"text": "y[0] <= 0 " * 5000},
        {"text": "outputs 2\nlabel(0) -o y[0] >= 0", "labels": [5]},
    ],
)
def test_requests_that_do_not_fit(values: Any) -> None:
    with pytest.raises(QllError):
        evaluate(LabRequest.from_json(values))


def test_examples_are_drawn_or_left_out_by_an_error() -> None:
    for example in examples():
        if example["name"] != "lipschitz-robustness":  # the same, only slower
            reply = evaluate(LabRequest(example["text"], axes=tuple(example["axes"])))
            assert [panel["error"] for panel in reply["logics"]] == [None] * len(LOGICS)


def test_static_page_holds_every_hardness(monkeypatch: pytest.MonkeyPatch) -> None:
    few = examples()[:2]
    monkeypatch.setattr("qll.reports.lab_page.examples", lambda: few)
    page = static_page()
    text = page.partition('<script id="data" type="application/json">')[2].partition("</script>")[0]
    data = json.loads(text)
    assert [len(example["replies"]) for example in data["examples"]] == [len(STATIC_HARDNESSES)] * 2
    first, second = data["examples"][0]["replies"][:2]
    assert len(first["logics"]) == len(LOGICS)
    assert {panel["logic"] for panel in second["logics"]} == {"qll", "stl", "yager"}
    assert "connect-src" not in page and "http" not in page.replace("http-equiv", "")


# --- the server ---


@pytest.fixture(scope="module")
def server() -> Iterator[LabServer]:
    with LabServer(0) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join(10)


def _ask(
    server: LabServer,
    method: str,
    path: str,
    body: bytes | None = None,
    **headers: str,
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(HOST, server.server_address[1], timeout=60)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, named)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    if answer.headers.get_content_type() != "application/json":
        return answer.status, content.decode()
    return answer.status, json.loads(content)


JSON = "application/json"


def test_server_answers_its_own_page(server: LabServer) -> None:
    status, page = _ask(server, "GET", "/")
    assert status == 200 and "<title>qll lab</title>" in page
    body = json.dumps({"text": BOTH}).encode()
    status, reply = _ask(server, "POST", "/evaluate", body, Content_Type=JSON)
    assert status == 200 and len(reply["logics"]) == len(LOGICS)
    status, reply = _ask(server, "POST", "/evaluate", b'{"text": "y["}', Content_Type=JSON)
    assert status == 422 and reply["error"]["line"] == 1


def test_server_listens_on_loopback_only(server: LabServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_server_refuses_other_sites(server: LabServer) -> None:
    body = json.dumps({"text": BOTH}).encode()
    port = server.server_address[1]
    for headers in (
        {"Origin": "https://example.org"},
        {"Origin": "null"},
        {"Origin": f"http://{HOST}:{port + 1}"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Host": "example.org"},  # a name that was pointed at this machine
        {"Host": f"example.org:{port}"},
        {"Host": ""},
    ):
        status, reply = _ask(server, "POST", "/evaluate", body, Content_Type=JSON, **headers)
        assert status == 403, headers
        assert "logics" not in reply
    status, _ = _ask(server, "GET", "/", Host="example.org")
    assert status == 403
    good = {"Origin": f"http://{HOST}:{port}", "Sec_Fetch_Site": "same-origin"}
    status, _ = _ask(server, "POST", "/evaluate", body, Content_Type=JSON, **good)
    assert status == 200


def test_server_refuses_what_it_did_not_ask_for(server: LabServer) -> None:
    body = json.dumps({"text": BOTH}).encode()
    assert _ask(server, "POST", "/evaluate", body, Content_Type="text/plain")[0] == 415
    assert _ask(server, "POST", "/elsewhere", body, Content_Type=JSON)[0] == 404
    assert _ask(server, "GET", "/../etc/passwd")[0] == 404
    assert _ask(server, "PUT", "/evaluate", body)[0] == 501
    long = {"Content_Type": JSON, "Content_Length": str(MOST_BYTES + 1)}
    assert _ask(server, "POST", "/evaluate", b"{}", **long)[0] == 413
    assert _ask(server, "POST", "/evaluate", b"{", Content_Type=JSON)[0] == 422


def test_a_port_that_is_taken(server: LabServer) -> None:
    with pytest.raises(QllError, match="cannot be used"):
        LabServer(server.server_address[1])


def test_infinite_hardness_is_taken() -> None:
    reply = evaluate(LabRequest.from_json({"text": BOTH, "hardness": "inf", "marker": [1, 2]}))
    assert _panels(reply)["qll"]["at"]["loss"] == 2.0
    with pytest.raises(InputError):
        LabRequest.from_json({"text": BOTH, "epsilon": "inf"})
