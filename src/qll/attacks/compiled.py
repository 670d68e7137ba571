"""From a problem to the compiled kernels, or the reason why not.

Plans of networks and tapes of formulas are kept; the weights are read anew at every search, since
training changes them between any two.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from qll import kernels
from qll.attacks.problem import AttackBatch, Points, run_model
from qll.errors import NetworkError
from qll.kernels.announce import slow_path
from qll.kernels.schedule import Schedule
from qll.networks.graph import Graph

if TYPE_CHECKING:
    from qll.kernels.attack import CompiledAttack
    from qll.kernels.formula import Tape
    from qll.kernels.plan import NetworkPlan

Patterns = tuple[tuple[int, ...] | None, ...]
Search = Callable[[AttackBatch, Schedule, int], Points]
# A training run uses two or three (training, judging, the QLL oracle); schedules make new ones.
_MOST_TAPES = 32
# Samples by which a traced network is compared with its module, and how far float32 may take them.
_PROBES, _PROBE_ERROR = 4, 1e-3

_plans: WeakKeyDictionary[nn.Module, dict[Any, NetworkPlan | str]] = WeakKeyDictionary()
_tapes: OrderedDict[Any, tuple[Any, Tape | None]] = OrderedDict()
_known: OrderedDict[tuple[int, int], tuple[Any, dict[tuple[int, ...], int]]] = OrderedDict()
_attacks: OrderedDict[tuple[int, int], CompiledAttack] = OrderedDict()


def compile_search(problem: AttackBatch) -> Search | str:
    """The compiled search for this problem, or why there is none."""
    if not kernels.available():
        return "numba is not installed"
    reason = _refusal(problem)
    if reason is not None:
        return reason
    plan = _plan(problem.model, problem.region.x0)
    if isinstance(plan, str):
        slow_path(plan)
        return plan
    found = _patterns(problem, plan.outputs)
    if found is None:
        return "labels that do not fit the outputs"
    patterns, pick = found
    tape = _tape(problem, plan.outputs, patterns)
    if tape is None:
        return "a formula over inputs, or a logic, that the kernels do not know"
    attack = _attack(plan, tape)
    try:
        plan.refresh()
    except NetworkError as error:  # weights that are no numbers: the loss says more of them
        return error.what

    def search(problem: AttackBatch, schedule: Schedule, runs: int) -> Points:
        box = problem.box
        points, _ = attack.run(
            box.lower,
            box.upper,
            pick,
            schedule=schedule,
            valid=box.valid,
            width=box.step,
            restarts=runs,
            seed=problem.seed,
            centre=problem.y0,
        )
        return {"x": points}

    return search


def _refusal(problem: AttackBatch) -> str | None:
    region = problem.region
    shaped = region.constraints or region.groups or region.allowed
    plain = not (shaped or region.is_image or region.norms)
    if region.relates_two_points or not plain:
        return "a region that is not a box"
    if problem.prop.sources - {"y", "y0"}:
        return "a formula that speaks of inputs"
    x0 = region.x0
    if x0.device.type != "cpu" or x0.dtype != torch.float32:
        return f"{x0.dtype} on {x0.device}"
    if problem.logic.kernel() is None:
        return f"the logic '{problem.logic.name}', which has no compiled form"
    for module in problem.model.modules():
        if module._forward_hooks or module._forward_pre_hooks:
            reason = f"a forward hook on {type(module).__name__}"
            slow_path(reason)
            return reason
    return None


def _plan(model: nn.Module, x0: Tensor) -> NetworkPlan | str:
    from qll.kernels.forward import module_key

    key = module_key(model, tuple(x0.shape[1:]))
    known = _plans.setdefault(model, {})
    if key not in known:
        known.clear()
        known[key] = _new_plan(model, x0)
    return known[key]


def _new_plan(model: nn.Module, x0: Tensor) -> NetworkPlan | str:
    from qll.kernels.chain import ChainPlan
    from qll.kernels.graph import plan_graph
    from qll.kernels.network import plan_network
    from qll.kernels.plan import run_network

    graph = getattr(model, "graph", None)
    if isinstance(graph, Graph):
        try:
            return plan_graph(lambda: graph)
        except NetworkError as error:
            return f"{error.found}: {error.what}"
    plan = plan_network(model, tuple(x0.shape[1:]))
    if isinstance(plan, str | ChainPlan):
        return plan
    # A trace sees what one call does; a forward that looks at more than its input does another.
    some = x0[:_PROBES]
    with torch.no_grad():
        wanted = run_model(model, some).flatten(1).numpy()
    found, _ = run_network(plan, some.flatten(1).contiguous().numpy())
    scale = 1.0 + float(abs(wanted).max(initial=0.0))
    if found.shape != wanted.shape or not (abs(found - wanted) <= _PROBE_ERROR * scale).all():
        return f"{type(model).__name__}, whose forward is not what a trace of it shows"
    return plan


def _patterns(problem: AttackBatch, outputs: int) -> tuple[Patterns, Tensor] | None:
    """Label patterns to compile for, and each sample's; None where the labels do not fit: the
    reference then says what is wrong with them."""
    labels, samples = problem.labels, problem.samples
    if not problem.prop.uses_labels:
        return (None,), torch.zeros(samples, dtype=torch.long)
    if labels is None or labels.is_floating_point() or labels.dtype == torch.bool:
        return None
    low, high = (int(v) for v in torch.aminmax(labels))
    if labels.shape == (samples,) and low >= 0 and high < outputs:
        return tuple((c,) for c in range(outputs)), labels
    if labels.shape != (samples, outputs) or low < 0 or high > 1:
        return None
    unique, inverse = torch.unique(labels, dim=0, return_inverse=True)
    # Patterns keep their place once seen, so that another mix of them finds its tape compiled.
    _, known = _known.setdefault((id(problem.prop), outputs), (problem.prop, {}))
    places = [known.setdefault(_indices(row), len(known)) for row in unique]
    while len(_known) > _MOST_TAPES:
        _known.popitem(last=False)
    return tuple(known), torch.tensor(places)[inverse]


def _indices(row: Tensor) -> tuple[int, ...]:
    return tuple(torch.nonzero(row).flatten().tolist())


def _tape(problem: AttackBatch, outputs: int, patterns: Patterns) -> Tape | None:
    from qll.kernels.formula import compile_formulas

    prop, logic = problem.prop, problem.logic
    # A logic is a frozen record; the property is held, so that its identity stays its own.
    key = (id(prop), logic, outputs, patterns)
    if key not in _tapes:
        formulas = [prop.ground(pattern, logic, outputs=outputs) for pattern in patterns]
        _tapes[key] = (prop, compile_formulas(formulas, logic, outputs))
        while len(_tapes) > _MOST_TAPES:
            _tapes.popitem(last=False)
    _tapes.move_to_end(key)
    return _tapes[key][1]


def _attack(plan: NetworkPlan, tape: Tape) -> CompiledAttack:
    from qll.kernels.attack import CompiledAttack

    key = (id(plan), id(tape))
    held = _attacks.get(key)
    if held is None or held.plan is not plan or held.tape is not tape:
        held = _attacks[key] = CompiledAttack(plan, tape)
        while len(_attacks) > _MOST_TAPES:
            _attacks.popitem(last=False)
    _attacks.move_to_end(key)
    return held
