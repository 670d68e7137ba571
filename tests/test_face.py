"""What ``import qll`` shows: the verbs, their arguments and help, and that they do the work."""

from __future__ import annotations

import importlib
import inspect
import pydoc
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_architecture import run
from test_cycle import BOX, violating_network
from torch import nn

import qll
from qll.errors import QllError
from qll.networks.onnx_writer import export_onnx

VERBS = [name for name in qll.__all__ if inspect.isroutine(getattr(qll, name))]
PACKAGES = ("audit", "bounds", "cycle", "verify")  # which can be called
SMALL = {
    "epochs": 1,
    "batch_size": 8,
    "steps": 2,
    "restarts": 0,
    "engine": "autograd",
    "data_options": {"count_train": 16, "count_test": 4},
}


def test_the_face_is_about_fifteen_names() -> None:
    assert len(qll.__all__) == len(set(qll.__all__)) <= 18
    assert set(qll.__all__) <= set(qll._WHERE)
    assert {*VERBS, *PACKAGES} == {
        "attack", "audit", "bounds", "cycle", "evaluate", "load", "logic", "parse", "repair",
        "train", "verify",
    }  # fmt: skip
    space: dict[str, Any] = {}
    exec("from qll import *", space)  # noqa: S102 - what a user may write
    assert set(qll.__all__) <= set(space)
    assert set(qll.__all__) <= set(dir(qll)) and "forall" not in dir(qll)


def test_importing_it_costs_nothing() -> None:
    """Under 0.3 s: what takes longer is not imported. Time itself is not measured here."""
    heavy = "torch numpy lark pydantic typer rich inspect importlib.metadata"
    assert run(
        f"import sys, qll\nprint([n for n in {heavy.split()!r} if n in sys.modules])\n"
        "print(qll.__version__)"
    ).split("\n")[:2] == ["[]", qll.__version__]


@pytest.mark.parametrize("name", VERBS + list(PACKAGES))
def test_every_argument_is_known_and_explained(name: str) -> None:
    verb = getattr(qll, name)
    taken = inspect.signature(verb)
    assert all(p.annotation is not p.empty for p in taken.parameters.values())
    assert taken.return_annotation is not taken.empty
    assert not any(p.kind is p.VAR_POSITIONAL for p in taken.parameters.values())
    shown = pydoc.render_doc(verb, renderer=pydoc.plaintext)
    for parameter in taken.parameters.values():
        assert parameter.name in shown
    (first, *_) = (inspect.getdoc(verb) or "").splitlines()
    assert len(first) > 20 and first in shown


def test_help_on_a_package_that_is_a_verb() -> None:
    shown = textwrap.dedent(qll.verify.__doc__)
    assert shown.startswith("Prove or refute ``prop`` around every row")
    assert "    timeout: float = 10.0,\n" in shown and ") -> list[Verdict]" in shown
    assert "backend: str = 'bab'," in shown and "certificates" in shown


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_stays_a_package(name: str) -> None:
    package = importlib.import_module(f"qll.{name}")
    assert package is getattr(qll, name) is sys.modules[f"qll.{name}"]
    assert inspect.ismodule(package) and package.__path__
    with pytest.raises(TypeError, match=rf"{name}\(\) missing"):
        package()


@pytest.mark.parametrize(
    "order",
    [
        "import qll",
        "import qll.verify",
        "from qll.verify.verdict import Verdict; import qll",
    ],
)
def test_whatever_is_imported_first(order: str) -> None:
    code = (
        f"{order}; import qll.verify.clock as c; print(callable(qll.verify), qll.verify.clock is c)"
    )
    assert run(code) == "True True\n"


@pytest.mark.slow
def test_a_type_checker_knows_the_arguments(tmp_path: Path) -> None:
    file = tmp_path / "user.py"
    file.write_text(
        "import qll\nimport qll.verify.api\n"
        "prop = qll.load('not-both', epsilon=0.1)\n"
        "reveal_type(qll.verify(prop, 'net.onnx', qll.verify.api.np.zeros((1, 2))))\n"
        "qll.verify(prop, 'net.onnx', qll.verify.api.np.zeros((1, 2)), timeut=3)\n"
    )
    # what others' packages say takes mypy half a minute to read, and is not asked here
    settings = tmp_path / "mypy.ini"
    settings.write_text(
        "[mypy]\nignore_missing_imports = True\n"
        "[mypy-torch.*,numpy.*,onnx.*,scipy.*,pydantic.*,rich.*,typer.*]\nfollow_imports = skip\n"
    )
    done = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--config-file", str(settings),
            "--cache-dir", str(tmp_path), str(file),
        ],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    assert 'Revealed type is "list[qll.verify.verdict.Verdict]"' in done.stdout
    assert 'Unexpected keyword argument "timeut"' in done.stdout


# --- the verbs at work ---


def image_network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2)).eval()


RULE = 'outputs cat, dog\nforall x in ball(x0, 0.1) and range(0, 1): y["cat"] >= y["dog"] - 0.3\n'


def test_a_witness_has_the_shape_of_a_data_point(tmp_path: Path) -> None:
    """Seen failing: it was flat, whatever the shape of the points."""
    x = torch.full((3, 2, 2, 2), 0.5)
    prop, model = qll.parse("forall x in ball(x0, 0.5): y[0] >= 1e6"), image_network()
    for verdict in qll.verify(prop, model, x, certified=True, jobs=1):
        assert verdict.status == "falsified" and verdict.witness is not None
        assert verdict.witness.shape == (2, 2, 2)
        point = torch.from_numpy(verdict.witness).float()[None]
        assert bool(qll.Region.of(prop, x[:1]).contains({"x": point}, tolerance=1e-6))
    flat = qll.verify(prop, model.append(nn.Flatten()), x.numpy().reshape(3, -1))
    assert flat[0].witness is not None and flat[0].witness.shape == (8,)


def test_the_journal_keeps_a_witness_flat(tmp_path: Path) -> None:
    from qll.verify.api import Problem
    from qll.verify.journal import Journal

    prop = qll.parse("forall x in ball(x0, 0.5): y[0] >= 1e6")
    problem = Problem.of(prop, image_network(), np.full((1, 2, 2, 2), 0.5), timeout=5.0)
    (verdict,) = problem.decide([0])
    with Journal(tmp_path / "verdicts.json", problem) as journal:
        journal.add(0, verdict)
    assert len(journal.known[0]["witness"]) == 8


def test_attack_and_bounds(tmp_path: Path) -> None:
    prop, model = qll.parse(RULE), image_network()
    x = torch.rand(12, 2, 2, 2, generator=torch.Generator().manual_seed(0))
    found = qll.attack(prop, model, x, method="apgd:10,restarts=1", engine="autograd")
    proved = prop.certified(qll.bounds(prop, model, x))
    assert found.falsified.any() and proved.any() and not (proved & found.falsified).any()
    tighter = prop.certified(qll.bounds(prop, model, x, kind="crown"))
    assert (tighter >= proved).all() and not (tighter & found.falsified).any()

    file = tmp_path / "net.onnx"
    export_onnx(model, file, input_shape=(2, 2, 2))
    shipped = qll.attack(prop, file, x.numpy(), method="apgd:10,restarts=1", engine="autograd")
    assert not (proved & shipped.falsified).any() and shipped.falsified.any()
    with torch.no_grad():
        assert torch.allclose(shipped.outputs.float(), model(shipped.x), atol=1e-5)
        assert torch.equal(model(found.x), found.outputs)
    with pytest.raises(QllError, match=r"net\.onnx: the network does not take these inputs"):
        qll.attack(prop, file, torch.zeros(1, 8))


def test_train_and_evaluate(tmp_path: Path) -> None:
    run = qll.train("not-both", "dice-rendered", tmp_path / "run", epsilon=0.01, seed=3, **SMALL)
    assert run.config.parameters["epsilon"] == 0.01 and run.config.seed == 3
    assert run.config.logic == "qll:5" and len(run.rows) == 1
    # a shipped property with its parameters set says the same
    prop = qll.load("not-both", epsilon=0.01)
    again = qll.train(prop, "dice-rendered", tmp_path / "run", resume=True, seed=3, **SMALL)
    assert again.evaluation == run.evaluation
    found = qll.evaluate(tmp_path / "run", prove=1, timeout=2.0)
    assert set(found.csat) == {"0.01", "0.005"} and found.pacc == run.evaluation.pacc
    with pytest.raises(QllError, match="no images called 'training'"):
        qll.evaluate(tmp_path / "run", split="training")


def test_a_network_and_data_in_hand_are_trained() -> None:
    data = qll.data.load("dice-rendered", count_train=16, count_test=4)
    channels, height, width = data.shape
    model = nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 6))
    small = {k: v for k, v in SMALL.items() if k != "data_options"}
    run = qll.train("not-both", data, network=model, logic="baseline", **small)
    assert run.model is model and run.config.is_baseline


def test_cycle_from_python(tmp_path: Path) -> None:
    rule = tmp_path / "easy.qll"
    rule.write_text(
        "outputs 6\nparameter epsilon: input = 0.001\n"
        "forall x in ball(x0, epsilon) and range(0, 1): y[0] <= 1e6\n"
    )
    rounds: list[Any] = []
    result = qll.cycle(
        rule, "dice-rendered", tmp_path / "out", count=2, feedback=2, timeout=2.0, budget=60,
        on_round=rounds.append, **SMALL,
    )  # fmt: skip
    assert result.ending == "met" and len(rounds) == 1
    assert (tmp_path / "out" / "model.onnx").is_file()


def test_repair_from_python(tmp_path: Path) -> None:
    network = violating_network(tmp_path / "net.onnx")
    result, source = qll.repair(
        qll.parse(BOX), network, budget="1m", timeout=10, samples=2000, steps=60, halvings=0
    )
    assert result.status == "verified"
    (verdict,) = qll.verify(qll.parse(BOX), source, np.zeros((1, 2)))
    assert verdict.status == "verified"


REFUSED: dict[str, tuple[Any, str]] = {
    "property": (lambda: qll.train(qll.parse(RULE), "dice-rendered"), "where its property is read"),
    "setting": (
        lambda: qll.train("not-both", "dice-rendered", epoch=3),
        "unknown setting 'epoch'",
    ),
    "count": (lambda: qll.cycle("not-both", "dice", "out", count=0), "count has a wrong value"),
    "budget": (lambda: qll.cycle("not-both", "dice", "out", budget="soon"), "not a length of time"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_named(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(QllError, match=message) as error:
        call()
    assert "Fix: " in str(error.value)


def test_an_unknown_setting_of_a_repair_is_named(tmp_path: Path) -> None:
    network = violating_network(tmp_path / "net.onnx")
    with pytest.raises(QllError, match="unknown setting 'halving'") as error:
        qll.repair(qll.parse(BOX), network, halving=1)
    assert "did you mean 'halvings'" in str(error.value)


COMPARISON = "outputs 2\nforall x in ball(x0, 0.1): y[0] >= y[1]\n"


@pytest.mark.parametrize("verb", ["verify", "attack", "bounds"])
def test_a_text_or_a_network_in_place_of_a_property_is_named(verb: str) -> None:
    for wrong in (COMPARISON, nn.Linear(2, 2)):
        with pytest.raises(QllError, match=r"not a property[^$]*qll.parse"):
            getattr(qll, verb)(wrong, nn.Linear(2, 2), torch.zeros(1, 2))


def test_a_property_is_not_made_of_its_text() -> None:
    with pytest.raises(QllError, match=r"found str\.\nFix: use qll\.parse\(text\)"):
        qll.Property(COMPARISON)  # type: ignore[arg-type]
    with pytest.raises(QllError, match="Expected a str, found int"):
        qll.parse(3)  # type: ignore[arg-type]


def test_a_loss_of_ones_own_that_is_not_one_number_is_named() -> None:
    prop, model = qll.parse(COMPARISON), nn.Linear(2, 2)
    x, labels = torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)
    each = qll.PropertyLoss(prop, task=nn.CrossEntropyLoss(reduction="none"))
    with pytest.raises(QllError, match=r"shape \(3,\)\.\nFix: build the loss with reduction"):
        each(model, x, labels)
    with pytest.raises(QllError, match="found float"):
        qll.PropertyLoss(prop, task=lambda y, t: 1.0)(model, x, labels)  # type: ignore[arg-type,return-value]
    mean = qll.PropertyLoss(prop, task=nn.CrossEntropyLoss())
    assert mean(model, x, labels).ndim == 0


@pytest.mark.parametrize(
    "rule",
    [
        'ball(x0, 0.1):\n  y["cat"] >= y["dog"]',
        'box(0, 1):\n  x["year"] >= 1 -> y["dog"] <= 0',
    ],
)
def test_declared_names_are_printed_as_they_are_written(rule: str) -> None:
    text = f"outputs cat, dog\ninputs weight, year\nforall x in {rule}"
    prop = qll.parse(text)
    assert repr(prop) == text
    assert qll.parse(repr(prop)) == prop
