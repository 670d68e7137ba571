"""Every Python block of the documentation runs as it stands, page by page and in order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
# Pages whose blocks use what a reader brings along: it is there.
_MODEL = """
import torch, qll
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.ReLU(), nn.Linear(10, 10))
prop = qll.load("classification-robustness", epsilon=0.05)
x, labels = torch.rand(4, 1, 28, 28), torch.tensor([0, 1, 2, 3])
loader = [(x, labels)]
optimiser = torch.optim.Adam(model.parameters())
"""
BROUGHT = {"certified.md": _MODEL, "loop.md": _MODEL}

# What is shortened, so that a page takes seconds: the figures in it are of the whole.
QUICK = {
    "tutorial.md": {"count_train=1000, count_test=100": "count_train=40, count_test=20",
                    "epochs=8": "epochs=1", "slice(0, 20)": "slice(0, 3)"},
}  # fmt: skip


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)


# Pages whose blocks print what stands below them, to the last digit.
EXACT = ("language.md",)


def outputs(page: Path) -> list[str]:
    """What stands below each block, "" where that is no output."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^```python\n.*?^```\n(?:\n```\n(.*?)^```$)?", text, re.M | re.S)
    return [str(output) for output in found]


PAGES = [page.name for page in sorted(DOCS.glob("*.md")) if blocks(page)]


def test_pages_with_blocks_are_found() -> None:
    for name, shortened in QUICK.items():
        text = "".join(blocks(DOCS / name))
        assert all(whole in text for whole in shortened)
    assert {"certified.md", "language.md", "logics.md", "loop.md", "repair.md"} <= set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_blocks_run(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    printed = []
    for text in [BROUGHT.get(name, ""), *blocks(DOCS / name)]:
        for whole, part in QUICK.get(name, {}).items():
            text = text.replace(whole, part)
        exec(compile(text, name, "exec"), names)  # noqa: S102 - the documentation's own code
        printed.append(capsys.readouterr().out)
    if name in EXACT:
        expected = outputs(DOCS / name)
        assert any(expected)
        for said, wanted in zip(printed[1:], expected, strict=True):
            assert not wanted or said == wanted
