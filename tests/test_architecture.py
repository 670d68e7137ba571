"""What the source may import and contain: the direction of the arrows, and what has no place."""

from __future__ import annotations

import ast
import doctest
import importlib
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import qll

ROOT = Path(qll.__file__).parent
MAX_LINES = 500
OPTIONAL = (
    "numba", "scipy", "onnx", "onnxruntime", "highspy", "maraboupy", "PIL", "safetensors",
    "joblib", "distributed", "ray", "tensorboard", "plotly", "matplotlib", "jinja2",
    "pyarrow", "pandas",
)  # fmt: skip

# Lower never imports higher. Packages of one rank may import each other, but modules never in a
# circle. `networks` and `data` stand beside `formula` and know nothing of it.
RANKS = {
    "errors": 0,
    "limits": 0,
    "late": 0,
    "registry": 1,
    "records": 2,
    "notebook": 2,
    "files": 1,
    "folders": 0,
    "formula": 2,
    "networks": 2,
    "data": 2,
    "points": 3,
    "audit": 3,
    "logics": 3,
    "prediction": 4,
    "connectives": 4,
    "reading": 4,
    "enclosure": 4,
    "property": 5,
    "properties": 6,
    "regions": 6,
    "exchange": 6,
    "kernels": 7,
    "attacks": 8,
    "bounds": 8,
    "verify": 9,
    "metrics": 9,
    "training": 10,
    "workers": 1,
    "grid": 11,
    "cycle": 11,
    "tuning": 11,
    "verbs": 12,
    "doctor": 12,
    "checkup": 13,
    "reports": 12,
    "zoo": 13,
    "cli": 14,
    "__main__": 15,
}
BESIDE = ("networks", "data")


@cache
def modules() -> dict[str, ast.Module]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    return found


def package(module: str) -> str:
    return module.split(".")[1]


def imports(tree: ast.AST, *, top_level: bool = False) -> set[str]:
    """Modules of qll that are imported; with ``top_level`` only where importing runs them."""
    found: set[str] = set()
    nodes = list(_run_on_import(tree)) if top_level else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules() else node.module)
    return {name for name in found if name.startswith("qll.")}


def _run_on_import(tree: ast.AST):
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _run_on_import(node)


def inner_modules() -> list[str]:
    return [name for name in modules() if name != "qll"]


def test_every_package_has_a_rank() -> None:
    assert {package(name) for name in inner_modules()} <= set(RANKS)


def test_no_arrow_points_upward() -> None:
    upward = []
    for name in inner_modules():
        own = package(name)
        for target in imports(modules()[name]):
            other = package(target)
            if other != own and RANKS[other] > RANKS[own]:
                upward.append(f"{name} imports {target}")
            if own in BESIDE and other not in (
                own,
                "errors",
                "limits",
                "late",
                "registry",
                "files",
                "folders",
            ):
                upward.append(f"{name} imports {target}, but stands beside it")
    assert not upward


def test_modules_do_not_import_in_a_circle() -> None:
    graph = {name: imports(modules()[name], top_level=True) - {name} for name in inner_modules()}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"import circle: {' -> '.join(error.args[1])}")


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Sets of nodes that reach each other."""

    @cache
    def reached(name: str) -> frozenset[str]:
        found, waiting = set(), [name]
        while waiting:
            for target in graph.get(waiting.pop(), ()):
                if target not in found:
                    found.add(target)
                    waiting.append(target)
        return frozenset(found)

    rounds = {
        frozenset(other for other in reached(name) if name in reached(other)) for name in graph
    }
    return [set(found) for found in rounds if len(found) > 1]


def package_arrows() -> dict[str, set[str]]:
    """Which package imports which, inside functions too."""
    arrows: dict[str, set[str]] = {name: set() for name in RANKS}
    for name in inner_modules():
        own = package(name)
        arrows[own] |= {package(target) for target in imports(modules()[name])} - {own}
    return arrows


def test_packages_do_not_import_in_a_circle_not_even_lazily() -> None:
    assert circles(package_arrows()) == []


def test_modules_do_not_import_in_a_circle_lazily() -> None:
    known = set(modules())
    graph = {name: (imports(modules()[name]) & known) - {name} for name in inner_modules()}
    assert [sorted(ring) for ring in circles(graph)] == []


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_language_needs_neither_torch_nor_numpy() -> None:
    names = [name for name in modules() if package(f"{name}.") == "formula"]
    assert "qll.formula.parse" in names
    assert run(
        "import sys\n"
        "sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "import importlib\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "from qll.formula.parse import parse_specification\n"
        "from qll.formula.show import show_specification\n"
        "from qll.formula.rewrite import Grounder, Shape\n"
        "from qll.formula.slack import hard_form\n"
        "spec = parse_specification('forall i in outputs: y[i] <= 1')\n"
        "print(show_specification(spec, 'unicode').strip())\n"
        "print(len(hard_form(Grounder(spec, {}, Shape(3)).ground()).parts))\n"
    ).split("\n") == ["∀ i ∈ outputs: y[i] ≤ 1", "3", ""]


def test_importing_the_library_imports_no_optional_dependency() -> None:
    loaded = run(
        "import sys, qll\n"
        "qll.load, qll.Property, qll.Region, qll.QLL, dict(qll.LOGICS)\n"
        f"print([name for name in {OPTIONAL!r} if name in sys.modules])"
    )
    assert loaded.strip() == "[]"


def test_optional_dependencies_are_imported_inside_functions() -> None:
    """But for the compiled kernels, which are imported by those who want them."""
    wrong = []
    for name, tree in modules().items():
        if name == "qll" or package(name) == "kernels":
            continue
        for node in _run_on_import(tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wrong += [f"{name}: {n}" for n in names if n.split(".")[0] in OPTIONAL]
    assert not wrong


def logic_classes() -> set[str]:
    return {qll.LOGICS[name].__name__ for name in qll.LOGICS} | {"Logic", "Fuzzy"}


def test_nobody_asks_what_kind_of_logic_it_is() -> None:
    asked = []
    for name, tree in modules().items():
        if name.startswith("qll.logics."):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "isinstance",
                "issubclass",
            ):
                classes = {part.split(".")[-1] for part in ast.unparse(node.args[1]).split(" | ")}
                if classes & logic_classes():
                    asked.append(f"{name}:{node.lineno}")
    assert not asked


FORBIDDEN_CALLS = {"print", "eval", "exec", "torch.load", "pickle.load", "pickle.loads", "np.load"}


def test_no_print_assert_eval_or_pickle() -> None:
    found = []
    for name, tree in modules().items():
        source = (ROOT.parent / f"{name.replace('.', '/')}.py").with_suffix(".py")
        if not source.is_file():
            source = ROOT.parent / name.replace(".", "/") / "__init__.py"
        lines = source.read_text(encoding="utf-8").splitlines()
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                safe = any(
                    k.arg == "allow_pickle" and ast.unparse(k.value) == "False"
                    for k in node.keywords
                )
                if called in FORBIDDEN_CALLS and not (called == "np.load" and safe):
                    found.append(f"{name}:{node.lineno}: {called}")
            if isinstance(node, ast.Assert) and "# noqa: S101 - " not in lines[node.lineno - 1]:
                # what is left narrows a type after a check elsewhere, and says which
                found.append(f"{name}:{node.lineno}: assert")
            if isinstance(node, ast.Import) and any(a.name == "pickle" for a in node.names):
                found.append(f"{name}:{node.lineno}: pickle")
    assert not found


def test_files_stay_short() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in ROOT.rglob("*.py")
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES
    }
    assert not long, "split them"


def test_nothing_of_one_machine() -> None:
    places = ("/" + "work/", "/" + "home/", "/" + "farm/")
    here = Path(__file__).parent
    wrong = [
        str(path)
        for path in (*ROOT.rglob("*.py"), *ROOT.rglob("*.qll"), *here.glob("*.py"))
        if any(place in path.read_text(encoding="utf-8") for place in places)
    ]
    assert not wrong


def test_logics_and_properties_are_found_by_their_files() -> None:
    files = {p.stem for p in (ROOT / "logics").glob("*.py")} - {"__init__", "base", "laws"}
    assert {f for f in files if not f.startswith("_")} == set(qll.LOGICS)
    texts = {p.stem for p in (ROOT / "properties").glob("*.qll")}
    assert texts == set(qll.properties.names())


@pytest.mark.parametrize("part", sorted({package(name) for name in inner_modules()}))
def test_examples_in_docstrings(part: str) -> None:
    for name in inner_modules():
        if package(name) == part:
            result = doctest.testmod(importlib.import_module(name))
            assert result.failed == 0, name


def test_examples_in_docstrings_are_found() -> None:
    """Wherever the source has one: by the marks in the text, however doctest looks for them."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name, tree in modules().items():
        if ">>> " in ast.unparse(tree) and name != "qll":
            found = finder.find(importlib.import_module(name))
            assert any(test.examples for test in found), name


def test_public_names_are_the_same_for_readers_and_for_types() -> None:
    """The package looks names up on first use; the type checker reads the same list."""
    block = next(n for n in modules()["qll"].body if isinstance(n, ast.If))
    typed = {
        (alias.asname or alias.name): node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("qll.")
        for alias in node.names
    }
    assert typed == qll._WHERE
    for name in typed:
        assert getattr(qll, name) is not None
    with pytest.raises(AttributeError):
        _ = qll.no_such_name
