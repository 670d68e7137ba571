"""The notebooks: their code runs, in short form; what stands in them is what a whole run gave."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
ACAS = Path(os.environ.get("QLL_SHARED", "")) / "corpus" / "acasxu"
# What makes a notebook quick: its committed outputs are of the whole.
QUICK = {
    "dice": {
        "count_train=1000, count_test=200": "count_train=40, count_test=20",
        "slice(0, 30)": "slice(0, 3)",
        "epochs=10": "epochs=1",
        "target=0.9, accuracy=0.75": "target=0.1, accuracy=0.0",
        "count=30, feedback=60": "count=3, feedback=3",
    },
    "credit": {"epochs=15": "epochs=4"},
    "acasxu": {"samples=5000, steps=150, halvings=2": "samples=2000, steps=80, halvings=0"},
    "own_logic": {"range(150)": "range(20)"},
}
MOST_BYTES = 200_000


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
    return content


def cells(name: str) -> list[str]:
    found = ["".join(c["source"]) for c in read(name)["cells"] if c["cell_type"] == "code"]
    for whole, part in QUICK[name].items():
        assert any(whole in text for text in found), whole
        found = [text.replace(whole, part) for text in found]
    return found


def bring(name: str, folder: Path) -> None:
    if name == "acasxu":
        if not ACAS.is_dir():
            pytest.skip("needs QLL_SHARED")
        for number in ("1_1", "2_1"):
            shutil.copy(ACAS / f"ACASXU_run2a_{number}_batch_2000.onnx", folder)


def test_there_are_four() -> None:
    assert sorted(QUICK) == NAMES and len(NAMES) == 4


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_there_and_small(name: str) -> None:
    """Executed from the first cell to the last, once, without an error."""
    code = [cell for cell in read(name)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert any(cell["outputs"] for cell in code)
    assert not any(out["output_type"] == "error" for cell in code for out in cell["outputs"])
    assert (NOTEBOOKS / f"{name}.ipynb").stat().st_size < MOST_BYTES


@pytest.mark.parametrize("name", ["credit", "own_logic"])
def test_code_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qll.logics.base import LOGICS

    monkeypatch.chdir(tmp_path)
    bring(name, tmp_path)
    space: dict[str, Any] = {"__name__": "__main__"}
    try:
        for number, text in enumerate(cells(name)):
            exec(compile(text, f"{name}, cell {number}", "exec"), space)  # noqa: S102 - our own
    finally:
        LOGICS._items.pop("leaky", None)  # a notebook's logic is not one of the library's


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_notebook_runs_in_a_kernel(name: str, tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    bring(name, tmp_path)
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        for whole, part in QUICK[name].items():
            cell.source = cell.source.replace(whole, part)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=280, kernel_name="python3", resources=where).execute()
