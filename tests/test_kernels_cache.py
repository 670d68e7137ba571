"""Machine code on disk: found again while nothing in it changed, and only then."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import qll
from qll.kernels.cache import closure, source_hash

PACKAGE = Path(qll.__file__).parent

HELPER = "from qll.kernels.simd import kernel\n\n@kernel\ndef scaled(x):\n    return {factor} * x\n"
MIDDLE = "from qll.kernels.helper import scaled\n"
KERNEL = (
    "from qll.kernels import middle\nfrom qll.kernels.simd import kernel\n"
    "scaled = middle.scaled\n\n@kernel\ndef answer(x):\n    return scaled(x) + 1.0\n"
)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the library, to be changed."""
    copy = tmp_path / "src" / "qll"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "templates"))
    return copy


def ask(package: Path) -> tuple[float, int]:
    """The answer of the kernel in a new process, and how often it was compiled there."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from qll.kernels.doubtful import answer\n"
            "print(answer(3.0), sum(answer.stats.cache_misses.values()))",
        ],
        capture_output=True,
        text=True,
        check=True,
        env={
            **os.environ,
            "PYTHONPATH": str(package.parent),
            "PYTHONDONTWRITEBYTECODE": "1",
            "QLL_CACHE_DIR": str(package.parent.parent / "cache"),
        },
    )
    answer, compiled = done.stdout.split()
    return float(answer), int(compiled)


def test_a_changed_helper_is_compiled_again(package: Path) -> None:
    """Two files away, whatever the names. What no kernel imports changes nothing."""
    kernels = package / "kernels"
    (kernels / "helper.py").write_text(HELPER.format(factor=2.0))
    (kernels / "middle.py").write_text(MIDDLE)
    (kernels / "doubtful.py").write_text(KERNEL)
    assert ask(package) == (7.0, 1)
    for file in kernels.iterdir():
        file.touch()  # as another installation of the same version has it
    assert ask(package) == (7.0, 0)
    (package / "cli" / "main.py").write_text("# changed\n")
    (kernels / "threads.py").write_text("# changed\n")
    assert ask(package) == (7.0, 0)
    (kernels / "helper.py").write_text(HELPER.format(factor=3.0))
    assert ask(package) == (10.0, 1)


@pytest.mark.parametrize(
    ("module", "helper", "other"),
    [
        ("qll.kernels.chunk", "kernels/tile.py", "kernels/attack.py"),
        ("qll.kernels.chunk", "kernels/starts.py", "kernels/dual.py"),
        ("qll.kernels.dual", "kernels/tile.py", "kernels/chunk.py"),
        ("qll.kernels.dual_boxes", "kernels/dual_boxes.py", "kernels/tile.py"),
        ("qll.logics.qll", "logics/_rows.py", "logics/stl.py"),
    ],
)
def test_the_key_follows_the_imports(module: str, helper: str, other: str, package: Path) -> None:
    before = source_hash(module, package=package)
    assert source_hash(module, package=PACKAGE) == before, "it does not depend on the place"
    for name, same in ((other, True), (helper, False)):
        file = package / name
        file.write_text(file.read_text() + "\n# changed\n")
        assert (source_hash(module, package=package) == before) is same, name


def test_imports_of_every_form_are_followed(tmp_path: Path) -> None:
    package = tmp_path / "qll"
    (package / "a").mkdir(parents=True)
    files = {
        "__init__.py": "", "a/__init__.py": "from qll.a import g\n", "a/g.py": "", "a/h.py": "",
        "a/b.py": "from qll.a.c import x\n", "a/c.py": "import qll.a.d as d\n",
        "a/d.py": "def f():\n    from . import e\n", "a/e.py": "from .f import (\n    y,\n)\n",
        "a/f.py": "import numpy\nfrom qll.a import thing\nfrom qll.nowhere import no\n",
    }  # fmt: skip
    for name, text in files.items():
        (package / name).write_text(text)
    assert closure("qll.a.b", package=package) == {
        *(f"qll.a.{name}" for name in "bcdefg"), "qll.a",
    }  # fmt: skip


def test_code_of_others_is_not_kept() -> None:
    """Its helpers are not known."""
    from qll.kernels.cache import code_folder

    assert code_folder("qll.kernels.dual") is not None
    assert code_folder("qll.kernels.dual", "somewhere.else") is None


def test_every_kernel_is_kept_in_our_folder() -> None:
    """None beside the sources, where a change elsewhere goes unnoticed."""
    from qll.kernels import chunk, dual, dual_boxes, dual_check, first_layer, interpreter, layers
    from qll.kernels.cache import code_folder

    for module in (chunk, dual, dual_boxes, dual_check, first_layer, interpreter, layers):
        folder = code_folder(module.__name__)
        assert folder is not None
        found = [
            f for f in vars(module).values() if getattr(f, "__module__", "") == module.__name__
        ]
        kept = [str(f._cache.cache_path) for f in found if hasattr(f, "_cache")]
        assert kept and all(path.startswith(str(folder)) for path in kept)
