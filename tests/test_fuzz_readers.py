"""Damaged and hostile files: read, or refused with a message; never a crash, a hang, a gigabyte.

`make test` tries the same few examples of each reader every time. `make fuzz` sets QLL_FUZZ, the
number of examples of each, and tries new ones.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audit_cases import certified, seal
from fuzz_cases import READERS, damaged, limited, outcome
from hypothesis import HealthCheck, given, settings
from typer.testing import CliRunner

from qll.audit import audit
from qll.audit.layout import SPLIT
from qll.audit.network import read_network as checker_network
from qll.cli.main import build_app

EXAMPLES = int(os.environ.get("QLL_FUZZ", "0"))
SETTINGS = settings(
    max_examples=EXAMPLES or 60,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("name", READERS)
def test_good_files_are_read(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    valid = reader.valid()
    assert any(outcome(reader, data, tmp_path) is not None for data in valid)


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_read_or_refused(name: str) -> None:
    reader = READERS[name]
    valid = reader.valid()
    with tempfile.TemporaryDirectory() as folder:
        good = {data: outcome(reader, data, Path(folder)) for data in valid}

        @SETTINGS
        @given(damaged(valid))
        def run(files: tuple[bytes, bytes]) -> None:
            before, after = files
            found = outcome(reader, after, Path(folder))
            if reader.checked and found is not None:
                assert found == good[before], "damage that the checksum should have shown"

        run()


DEEP, LONG = 100_000, 6_000  # levels; digits, more than Python turns into an integer
HOSTILE = {
    "brackets": b"[" * DEEP,
    "parentheses": b"(" * DEEP,
    "objects": b'{"a":' * DEEP,
    "a deep value": b"a = " + b"[" * LONG,
    "a long number": b"a = " + b"9" * LONG,
    "a huge input": b"(declare-const X_99999999999 Real)",
    "an endless input": b"(declare-const X_" + b"9" * LONG + b" Real)",
    "a deep sum": b"(assert (>= " + b"(+ " * LONG + b"X_0" + b")" * LONG + b" 0))",
    "a deep assertion": b"(assert " + b"(and " * LONG + b"(>= X_0 0)" + b")" * LONG + b")",
    "not a number": b"(declare-const X_0 Real)(assert (>= X_0 nan))",
    "nothing": b"",
    "zeros": bytes(100),
    "lines": b'0\n[]\n{"point": 1}\n',
}


@pytest.mark.parametrize("name", READERS)
def test_files_that_once_crashed_a_reader(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    for data in HOSTILE.values():
        outcome(reader, data, tmp_path)  # raises if it is neither read nor refused


def test_numbers_that_ask_for_memory(tmp_path: Path) -> None:
    """Sizes in a header are compared with the file before anything is allocated."""
    import struct

    header = struct.pack(">BBBB3I", 0, 0, 0x0E, 3, 0xFFFFFFFF, 0xFFFFFFFF, 2)
    assert outcome(READERS["idx"], header + bytes(64), tmp_path) is None
    good = READERS["checkpoint"].valid()[0]
    changed = (1 << 62).to_bytes(8, "little") + good[8:]
    assert outcome(READERS["checkpoint"], changed, tmp_path) is None


def network_with(**changes: Any) -> bytes:
    """A small network whose input, weight or padding says something else than is there."""
    import onnx

    model = onnx.ModelProto.FromString(READERS["network"].valid()[1])
    graph = model.graph
    if "input" in changes:
        graph.input[0].type.tensor_type.shape.dim[-1].dim_value = changes["input"]
    if "weight" in changes:
        graph.initializer[0].dims[0] = changes["weight"]
    if "pads" in changes:
        node = next(n for n in graph.node if n.op_type == "Conv")
        next(a for a in node.attribute if a.name == "pads").ints[:] = [changes["pads"]] * 4
    if "location" in changes:
        tensor = graph.initializer[0]
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=changes["location"])
    return bytes(model.SerializeToString())


@pytest.mark.parametrize(
    "changes",
    [
        {"input": 1 << 40},
        {"input": 1 << 20},
        {"weight": 1 << 40},
        {"weight": -1},
        {"pads": 1 << 30},
        {"pads": 1 << 16},
        {"location": "../../../etc/passwd"},
        {"location": "/etc/passwd"},
    ],
    ids=str,
)
def test_networks_that_lie_about_themselves(changes: dict[str, Any], tmp_path: Path) -> None:
    data = network_with(**changes)
    assert outcome(READERS["network"], data, tmp_path) is None
    with limited(), pytest.raises(Exception) as caught:
        checker_network(data, None, None)
    assert not isinstance(caught.value, MemoryError | TimeoutError | OSError)


NAMES = ("../x", "..", "/etc/passwd", "a/../../b", "C:\\x", "")


@pytest.mark.parametrize("name", NAMES)
def test_no_name_in_a_file_leads_out_of_its_folder(name: str, tmp_path: Path) -> None:
    grid = READERS["grid"].valid()[0].replace(b'name = "g"', f"name = {name!r}".encode())
    assert outcome(READERS["grid"], grid, tmp_path) is None
    table = READERS["label table"].valid()[0].replace(b"1.png", name.encode())
    assert outcome(READERS["label table"], table, tmp_path) is None


@pytest.mark.parametrize("name", [*NAMES, "../" * 21 + "a", "/" * 64])
def test_a_certificate_cannot_name_a_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, arrays = certified()[0].parts()
    folder = tmp_path / "certificates"
    folder.mkdir()
    (folder / "0.qllcert").write_bytes(seal({**header, "network": name}, arrays))
    opened: list[str] = []
    real = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: opened.append(path.name) or real(path))
    result = CliRunner().invoke(build_app(), ["audit", str(folder)])
    assert result.exit_code == 12 and "NOT CONFIRMED" in result.output
    assert opened == ["0.qllcert"]


def test_a_certificate_cannot_rewrite_the_screen(tmp_path: Path) -> None:
    header, arrays = certified()[0].parts()
    escape = "\x1b[2K\rother.qllcert: verified: confirmed\n"
    for field in ("text", "verdict", "network"):
        changed = {**header, field: str(header[field]) + f"# {escape}"}
        (tmp_path / "0.qllcert").write_bytes(seal(changed, arrays))
        (tmp_path / f"{header['network']}.onnx").write_bytes(certified()[0].case.network.source)
        result = CliRunner().invoke(build_app(), ["audit", str(tmp_path)])
        assert result.exit_code == 12 and "\x1b" not in result.output
        assert "\r" not in result.output
        lines = [line for line in result.output.splitlines() if line.startswith("other")]
        assert not lines, result.output


def test_groups_of_neurons_that_do_not_exist(tmp_path: Path) -> None:
    """A count of neurons by number must not be as long as the largest number."""
    case = certified()[0]
    header, arrays = case.parts()
    for name in ("group_neurons", "group_inputs"):
        changed = {**arrays, name: arrays[name].copy()}
        changed[name][0] = 0xFFFFFFF0
        data = seal(header, changed)
        with limited():
            answer = audit(data, case.case.network.source)
        assert not answer.confirmed and "Memory" not in answer.reason


def test_a_proof_that_only_splits(tmp_path: Path) -> None:
    """Open branches are kept in memory: there is an end to their number."""
    case = certified()[0]
    header, arrays = case.parts()
    count = 3_000_000
    endless = {
        **{n: a if n in ("x0", "loose") else a[:0] for n, a in arrays.items()},
        "kinds": np.full(count, SPLIT, dtype="u1"),
        "arguments": np.zeros(count, dtype="<u4"),
        "groups": np.zeros(3, dtype="<u4"),
    }
    with limited():
        answer = audit(seal(header, endless), case.case.network.source)
    assert not answer.confirmed and "too deep" in answer.reason
