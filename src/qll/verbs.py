"""What one does with a property, a network and data: the verbs of ``import qll``.

Each is a thin function over the package that does the work, with the same names and defaults as the
command of that name. Settings that are not listed (``**settings``) are those of a training run, as
in ``qll train --set``, and the property's own parameters: ``epsilon=0.1``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from qll.errors import InputError
from qll.properties import declared_parameters, load, load_fitting, names
from qll.property import Property, check_property
from qll.records import record

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from qll.attacks import Attack, AttackResult
    from qll.attacks.problem import Engine
    from qll.bounds.modules import BoundKind
    from qll.cycle import CycleResult, RepairResult
    from qll.cycle.records import Round
    from qll.data import DataSet
    from qll.enclosure import OutputBounds
    from qll.logics.base import Logic
    from qll.metrics import Evaluation, Watch
    from qll.networks import Network
    from qll.training.config import TrainConfig
    from qll.training.loop import TrainedRun
    from qll.training.progress import Reporter

    AnyNetwork = Network | nn.Module | str | Path | bytes


def train(
    prop: str | Path | Property,
    data: Any,
    out: str | Path | None = None,
    *,
    logic: str | None = None,
    method: str | None = None,
    network: str | nn.Module | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    device: str | None = None,
    config: str | Path | None = None,
    resume: bool = False,
    reporter: Reporter | None = None,
    **settings: Any,
) -> TrainedRun:
    """Train a network on a property, by the paper's recipe for them or another.

    ``prop`` is a shipped property or the path of a ``.qll`` file, ``data`` the name of a data set,
    a file, or what `qll.data.load` gives or takes. ``logic="baseline"`` trains on the prediction
    alone; ``method`` says how the property becomes a loss; ``network`` is a named one, or a module
    of yours to start from. With ``out`` the run is kept in that folder, and the same call with
    ``resume=True`` goes on with it. ``config`` is a TOML file of settings. The result has
    ``model``, ``evaluation``, ``rows`` (one an epoch), ``config`` and ``folder``. In a loop of your
    own, use ``qll.PropertyLoss``.
    """
    from qll.training.loop import train as run
    from qll.training.progress import shown

    data = data if isinstance(data, str) else _data_set(data)
    model = network if isinstance(network, nn.Module) else None
    resolved = _training(
        prop,
        data,
        config,
        settings,
        logic=logic,
        method=method,
        network=None if model is not None else network,
        epochs=epochs,
        seed=seed,
        device=device,
    )
    given = None if isinstance(data, str) else data
    with shown(reporter) as told:
        return run(resolved, out, resume=resume, data=given, model=model, reporter=told)


def attack(
    prop: Property,
    network: AnyNetwork,
    x: Tensor | NDArray[Any] | None = None,
    labels: Any = None,
    *,
    method: Attack | str = "apgd:50,restarts=4",
    logic: Logic | str = "qll:5",
    seed: int = 0,
    engine: Engine = "auto",
    mean: Any = None,
    std: Any = None,
) -> AttackResult:
    """Search the region around every row of ``x`` (raw inputs) for a point that violates ``prop``;
    a rule without a data point needs no ``x`` and is attacked once.

    ``falsified`` of the result marks the rows where one was found, ``x`` has the points; the others
    are not falsified, which proves nothing. An ONNX file is judged as ONNX Runtime runs it, a
    module as it is. ``logic`` is the one whose loss is driven up; ``method`` is
    ``apgd:STEPS,restarts=N``, ``pgd:STEPS,step=S`` or a record. ``mean``/``std`` are for ONNX files
    that take normalised input.
    """
    from qll.attacks import attack as read_attack
    from qll.attacks.shipped import attack_shipped
    from qll.networks import Network
    from qll.networks import load as load_network
    from qll.verify.given import declared, needs_data

    def as_points(given: Tensor | NDArray[Any], kind: torch.dtype) -> Tensor:
        """A tensor that holds no floats is refused further on."""
        points = torch.as_tensor(given)
        floats = points.is_floating_point() or not isinstance(given, Tensor)
        return points.to(kind) if floats else points

    check_property(prop)
    if x is None and not prop.is_closed:
        raise needs_data(prop)
    search = read_attack(method)
    truth = None if labels is None else torch.as_tensor(labels)
    if isinstance(network, nn.Module):
        given = torch.zeros(1, *declared(prop)) if x is None else x
        weights = {tensor.dtype for tensor in network.parameters() if tensor.is_floating_point()}
        points = as_points(given, weights.pop() if len(weights) == 1 else torch.float32)
        return search(network, prop, points, truth, logic=logic, seed=seed, engine=engine)
    handle = network if isinstance(network, Network) else load_network(network, mean=mean, std=std)
    points = torch.zeros(1, *handle.input_shape) if x is None else as_points(x, torch.float32)
    return attack_shipped(
        search, handle, prop, points, truth, logic=logic, seed=seed, engine=engine
    )


def bounds(
    prop: Property, model: nn.Module, x: Tensor, *, kind: BoundKind = "interval"
) -> OutputBounds:
    """Sound bounds of the module's outputs over the property's region around every row of ``x``.

    Differentiable in the weights: ``prop.upper(bounds, labels=...)`` is a loss to train on, and
    ``prop.certified(bounds, labels=...)`` says which regions they prove. ``kind`` is ``interval``,
    or ``crown``: tighter and dearer.
    """
    from qll.bounds.modules import module_bounds
    from qll.regions import Region

    check_property(prop)
    region = Region.of(prop, x)
    return module_bounds(model, region.lower, region.upper, kind=kind)


def evaluate(
    run: str | Path,
    *,
    split: str = "test",
    prove: int = 100,
    timeout: float = 10.0,
    jobs: int = 1,
    watch: Watch | None = None,
) -> Evaluation:
    """The figures of a trained run, from its folder: right predictions (PAcc), satisfied at random
    points (CAcc), not falsified by attacks (CSec), proved (CSat).

    CSat asks about ``prove`` regions, ``timeout`` seconds each, at epsilon and at half of it; every
    proof is confirmed by the checker. Those of the test set are kept in the folder. ``watch`` is
    called with the figure that is worked on, how much of it is done, and of how much.
    """
    from qll.metrics import constraint_satisfaction, unwatched
    from qll.training.loop import open_run

    trainer = open_run(run)
    splits = ["test", "validation"] if len(trainer.validation_rows) else ["test"]
    if split not in splits:
        raise InputError(
            f"this run has no images called '{split}'",
            where=str(run),
            expected=" or ".join(splits),
            found=f"'{split}'",
            fix="leave it out: the test images are the default",
        )
    csat = None
    if prove > 0 and "epsilon" in trainer.judged.values:
        # The images that the paper's verifier was asked about, where those are known.
        images = trainer.data.train if split == "validation" else trainer.data.test
        rows = trainer.validation_rows if split == "validation" else trainer.data.published
        chosen = slice(0, prove) if rows is None or prove > len(rows) else rows[:prove]
        x, labels = images.batch(chosen)
        csat = constraint_satisfaction(
            trainer.judged, x, labels, timeout=timeout, jobs=jobs, watch=watch or unwatched
        )
    found = trainer.evaluate(split, csat=csat, watch=watch or unwatched)
    if split == "test" and trainer.folder is not None:
        with trainer.folder.locked():
            trainer.folder.save_evaluation(found)
    return found


def cycle(
    prop: str | Path | Property,
    data: Any,
    out: str | Path,
    *,
    target: float = 0.95,
    accuracy: float | None = None,
    budget: float | str = "30m",
    network: AnyNetwork | None = None,
    count: int = 200,
    feedback: int = 400,
    epochs: int = 10,
    more_epochs: int = 5,
    method: str = "small-box",
    logic: str | None = None,
    timeout: float = 5.0,
    jobs: int = 1,
    seed: int = 0,
    resume: bool = False,
    reporter: Reporter | None = None,
    on_round: Callable[[Round], None] | None = None,
    **settings: Any,
) -> CycleResult:
    """From a rule to a proved network: train, verify, feed back what was not proved, repeat.

    Ends when the share ``target`` of ``count`` regions around test images is proved, at a PAcc of
    at least ``accuracy`` (None: 5 points below the same network without the rule), or ``budget``
    (seconds, or ``"30m"``) is spent; ``ending`` of the result says which. ``feedback`` regions
    around training images teach. ``network`` is one to begin from. The best network, its verdicts
    and their certificates are in ``out``.
    """
    from qll.cycle.loop import CycleConfig
    from qll.cycle.loop import cycle as run
    from qll.networks import Network
    from qll.networks import load as load_network
    from qll.networks.trainable import to_module
    from qll.training.progress import shown

    data = data if isinstance(data, str) else _data_set(data)
    trained = _training(
        prop, data, None, settings, logic=logic, method=method, epochs=epochs, seed=seed
    )
    config = record(
        CycleConfig,
        {"asked": "count"},
        train=trained,
        target=target,
        accuracy=accuracy,
        budget=_seconds(budget),
        asked=count,
        feedback=feedback,
        more_epochs=more_epochs,
        timeout=timeout,
        jobs=jobs,
    )
    start: nn.Module | None = None
    if isinstance(network, nn.Module):
        start = network
    elif network is not None:
        start = to_module(network if isinstance(network, Network) else load_network(network))
    given = None if isinstance(data, str) else data
    with shown(reporter) as told:
        return run(
            config, out, resume=resume, data=given, start=start, reporter=told, on_round=on_round
        )


def repair(
    prop: Property | str | Path,
    network: AnyNetwork,
    out: str | Path | None = None,
    *,
    budget: float | str = "30m",
    timeout: float = 300.0,
    decision: Literal["max", "min"] = "max",
    jobs: int = 1,
    seed: int = 0,
    data: Any = None,
    on_round: Callable[[dict[str, Any]], None] | None = None,
    **settings: Any,
) -> tuple[RepairResult, bytes]:
    """Move the weights of a network that violates a property as little as it takes to prove it.

    The property speaks of a box, not of data; it names the inputs of a module. ``data`` (a data
    set, or what `qll.data.load` takes) are what the network should go on to predict: ``kept`` of
    the result has the figures on them, before and after. Returns what was done and the network as
    ONNX bytes: proved iff ``status`` is ``verified``. ``decision`` says how its outputs are
    read. With ``out``, network, certificates and the record are kept there. Settings are those of
    `qll.cycle.Repair`.
    """
    from qll.cycle.repair import Repair
    from qll.cycle.repair import repair as run
    from qll.networks import Network
    from qll.networks import load as load_network
    from qll.verify.given import declared

    if isinstance(network, nn.Module):
        named = prop if isinstance(prop, Property) else load(prop)
        network = load_network(network, input_shape=declared(named))
    handle = network if isinstance(network, Network) else load_network(network)
    anchor = None if data is None else _data_set(data)
    fits = handle.output_size if anchor is None or anchor.schema is None else anchor.schema
    rule = prop if isinstance(prop, Property) else load_fitting(prop, fits)
    config = record(
        Repair,
        {},
        budget=_seconds(budget),
        timeout=timeout,
        decision=decision,
        jobs=jobs,
        seed=seed,
        **settings,
    )
    return run(rule, handle, config, out, data=anchor, on_round=on_round)


# --- from arguments to the records of the packages ---


def _training(
    prop: str | Path | Property,
    data: str | DataSet,
    file: str | Path | None,
    settings: Mapping[str, Any],
    **options: Any,
) -> TrainConfig:
    """A property's own parameters among the settings are where it is trained and judged."""
    from qll.training.config import default_logic, read_config, resolve

    source, own = _source(prop)
    name = data if isinstance(data, str) else data.name
    declared = {p.name for p in declared_parameters(source)}
    numbers = {k: v for k, v in settings.items() if k in declared and isinstance(v, int | float)}
    options |= {k: v for k, v in settings.items() if k not in numbers}
    held = {} if file is None else read_config(file)
    if options["logic"] is None and "logic" not in held:
        chosen = options.get("method") or held.get("method") or "attack"
        options["logic"] = default_logic(source, name, str(chosen))
    texts = [f"{k}={float(v)!r}" for k, v in {**own, **numbers}.items()]
    return resolve(source, name, file=file, options=options, settings=texts)


def _source(prop: str | Path | Property) -> tuple[str, Mapping[str, float]]:
    """The name or path that a run's record keeps, and the parameters that were set."""
    if not isinstance(prop, Property):
        return str(prop), {}
    if prop.name in names():
        shipped = load(prop.name, outputs=prop.outputs)
        if shipped.specification == prop.specification:
            return prop.name, prop.parameters
    raise InputError(
        f"a run keeps where its property is read from, which '{prop.name}' does not tell",
        expected="a shipped property, or the path of a .qll file",
        found="a property made in Python",
        fix="write it to a file, Path('rule.qll').write_text(prop.show()), and pass 'rule.qll'",
    )


def _data_set(data: Any) -> DataSet:
    from qll.data import DataSet
    from qll.data import load as load_data

    return data if isinstance(data, DataSet) else load_data(data)


def _seconds(budget: float | str) -> float:
    from qll.cycle.budget import seconds_of

    return seconds_of(budget) if isinstance(budget, str) else float(budget)
