"""The lab of a network: bounds, attack and verdict of one region, as its radius moves."""

from __future__ import annotations

import json
import threading
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import assert_no_sideways_scroll, browse, opened, wait_until
from torch import nn
from typer.testing import CliRunner

import qll
from qll.cli.main import build_app
from qll.errors import InputError
from qll.networks.onnx_writer import export_onnx
from qll.reports.lab_network import NetworkLab, NetworkRequest
from qll.reports.lab_server import LabServer


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> NetworkLab:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, 6), nn.ReLU(), nn.Linear(6, 6))
    path = tmp_path_factory.mktemp("lab") / "net.onnx"
    export_onnx(model.eval(), path, input_shape=(3, 28, 28))
    data = qll.data.load("dice-rendered", count_train=4, count_test=4)
    return NetworkLab(qll.networks.load(path), qll.load("not-both"), data)


def test_bounds_hold_what_is_found_and_grow(lab: NetworkLab) -> None:
    widths = []
    for epsilon in (0.0, 0.01, 0.05):
        reply = lab.examine(NetworkRequest(1, epsilon))
        for row in reply["outputs"]:
            for ends in (row["interval"], row["crown"]):
                slack = 1e-3 * (1 + abs(row["attacked"]))
                assert ends[0] - slack <= row["clean"] <= ends[1] + slack
                assert ends[0] - slack <= row["attacked"] <= ends[1] + slack
        widths.append(sum(row["crown"][1] - row["crown"][0] for row in reply["outputs"]))
        assert reply["status"] in ("verified", "falsified", "unknown")
        assert not (reply["attack"]["falsified"] and reply["status"] == "verified")
    assert widths[0] < widths[1] < widths[2]
    assert reply["pictures"]["clean"].startswith("data:image/png")


def test_of_a_table_features_are_shown(tmp_path: Path) -> None:
    rows = "\n".join(f"{age},{0.5 * age},{int(age > 40)}" for age in range(20, 60))
    (tmp_path / "t.csv").write_text(f"age,income,answer\n{rows}\n")
    data = qll.data.load(str(tmp_path / "t.csv"), target="answer")
    export_onnx(nn.Linear(2, data.outputs).eval(), tmp_path / "net.onnx", input_shape=(2,))
    text = "parameter epsilon: input = 2\nforall x in ball(x0, epsilon): y[0] >= -1000\n"
    rule = qll.parse(text, schema=data.schema)
    reply = NetworkLab(qll.networks.load(tmp_path / "net.onnx"), rule, data).examine(
        NetworkRequest(0, 1.0)
    )
    assert {f["name"] for f in reply["features"]} == {"age", "income"}
    assert reply["pictures"] is None and reply["status"] == "verified"


@pytest.mark.parametrize(
    "values",
    [None, {"point": -1, "epsilon": 0.1}, {"point": 0, "epsilon": "x"}, {"point": 0},
     {"point": 0, "epsilon": -1}, {"point": 0, "epsilon": 0.1, "seconds": 1000}],
)  # fmt: skip
def test_requests_are_not_trusted(values: Any) -> None:
    with pytest.raises(InputError, match="does not fit"):
        NetworkRequest.from_json(values)


def test_what_does_not_fit_is_refused(lab: NetworkLab) -> None:
    with pytest.raises(InputError, match="the point does not fit"):
        lab.examine(NetworkRequest(99, 0.1))
    with pytest.raises(InputError, match="no radius to move"):
        NetworkLab(lab.network, qll.parse("y[0] <= 1", outputs=6), lab.data)
    found = CliRunner().invoke(build_app(), ["lab", "not-both"])
    assert isinstance(found.exception, InputError) and "no --network" in str(found.exception)


def _asked(server: LabServer, path: str, values: Any) -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.request("POST", path, json.dumps(values), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, json.load(answer)


def test_the_page_in_a_browser(lab: NetworkLab) -> None:
    with LabServer(0, lab) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        drawn = "Number(document.documentElement.dataset.drawn || 0)"
        with browse() as browser, opened(browser, server.address) as watched:
            page = watched.page
            wait_until(page, f"{drawn} > 0")
            first = page.locator("#bars").inner_html()
            page.locator("#epsilon").fill("200")
            wait_until(page, f"{drawn} > 1")
            assert page.locator("#bars").inner_html() != first
            assert page.locator("#pictures img").count() == 3
            assert page.locator("#verdict").inner_text().split(":")[0] in (
                "verified", "falsified", "unknown",
            )  # fmt: skip
            assert_no_sideways_scroll(page)
        assert _asked(server, "/evaluate", {})[0] == 404
        status, reply = _asked(server, "/examine", {"point": 0, "epsilon": 0.0})
        assert status == 200 and reply["epsilon"] == 0.0
        server.shutdown()
        thread.join(10)
