"""A rule, a network and data looked at before any work is done: what would go wrong, and what to
expect.

Everything is found by doing a little of the real work: the rule is read for this network, judged
at clean data points, and a few regions are decided for real.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from qll.data import DataSet
from qll.doctor import Finding
from qll.errors import InputError, QllError
from qll.formula.fold import walk
from qll.formula.hard import Affine, HardForm, Max
from qll.formula.nodes import Box, Entry, Linear, Member
from qll.metrics import vacuous_labels
from qll.networks import Network
from qll.networks import load as load_network
from qll.properties import load_fitting
from qll.property import Property
from qll.regions import Region
from qll.training.progress import Silent
from qll.training.reach import reach

if TYPE_CHECKING:
    from qll.training.config import TrainConfig
    from qll.verify.verdict import Verdict

_POINTS = 1000  # data points at which the rule is judged
_TRIED = 3  # regions decided, with so many seconds for each
_SECONDS = 3.0
_LOOKED = 20  # data points around which some input must meet the premises
_WARM = 0.5  # seconds of training before it is measured


@dataclass(frozen=True)
class Subject:
    """What is looked at: the rule by name or path, and whatever else is there."""

    rule: str | Path
    network: Path | None = None
    data: DataSet | None = None
    parameters: dict[str, float] | None = None


def examine(subject: Subject) -> Iterator[Finding]:
    """Findings, one after the other; after a wrong one, only what does not depend on it."""
    network: Network | None = None
    if subject.network is not None:
        try:
            network = load_network(subject.network)
            yield _size(network)
        except QllError as error:
            yield _wrong("network", error)
    try:
        prop = _property(subject, network)
    except QllError as error:
        yield _wrong("rule", error)
        return
    yield from _rule(prop, subject)
    empty = list(_settled(prop)) or list(_empty(prop, network, subject.data))
    yield from empty
    if network is not None:
        yield _certifiable(network)
    if subject.data is not None:
        yield from _data(prop, network, subject.data)
        if subject.network is None and not empty:
            yield _training(subject.rule, subject.data)
    if network is not None and prop.is_closed and not empty:
        yield from _asked_once(prop, network)
    if subject.network is None and subject.data is None:
        yield Finding("next", _NEXT, "note")


def _property(subject: Subject, network: Network | None) -> Property:
    from qll.properties import load

    given = subject.parameters or {}
    if subject.data is not None and subject.data.schema is not None:
        return load_fitting(subject.rule, subject.data.schema, **given)
    if network is not None:
        return load_fitting(subject.rule, network.output_size, **given)
    if subject.data is not None:
        return load_fitting(subject.rule, subject.data.fits, **given)
    return load(subject.rule).with_parameters(**given)


def _wrong(topic: str, error: QllError) -> Finding:
    said, _, fix = str(error).partition("\nFix: ")
    return Finding(topic, said.replace("\n", " "), "wrong", fix)


def _size(network: Network) -> Finding:
    shape = " x ".join(map(str, network.input_shape))
    counted = len(network.graph.nodes)
    count = network.output_size
    ends = f"{shape} inputs, {count} output{'s' if count != 1 else ''}"
    return Finding("network", f"{ends}, {counted} layers")


def _rule(prop: Property, subject: Subject) -> Iterator[Finding]:
    if prop.is_closed:
        where = "asked once, of the whole region: it depends on no data point"
    else:
        own = " and its label" if prop.uses_labels else ""
        where = f"asked around each data point{own}"
    yield Finding("rule", f"{prop.name}: {where}")
    for binder in prop.binders:
        yield Finding("for every", _cut(repr(binder)))
    if subject.network is None:
        yield Finding("entries", _entries(prop))
    for declared in prop.specification.parameters:
        said = f"{declared.name} = {prop.value_of(declared.name):g}, {_UNITS[declared.unit]}"
        yield Finding("parameter", f"{said}; --set {declared.name}=... changes it")
    for note in prop.notes:
        yield Finding("rule", note, "note")


_UNITS = {
    "input": "in the units of the inputs as the network takes them",
    "probability": "a probability",
    "logit": "a logit",
    "number": "a number",
    "rate": "a rate",
}
_LONGEST = 300  # characters of a region: that of a table may have hundreds of numbers


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _entries(prop: Property) -> str:
    named = {declared.kind: declared.names for declared in prop.specification.names}
    parts = [
        f"{kind} {_cut(', '.join(named[kind]))}" for kind in ("inputs", "outputs") if kind in named
    ]
    if "outputs" not in named:
        count = prop.specification.outputs
        parts.append("as many outputs as the network has" if count is None else f"{count} outputs")
    return "; ".join(parts)


def _settled(prop: Property) -> Iterator[Finding]:
    """A rule in which the outputs cancel each other is true or false whatever they are."""
    if prop.uses_labels:
        return
    try:
        form = prop.hard_form(outputs=_least_outputs(prop))
    except QllError:  # it needs the shape of an input, or other things that are told later
        return
    always = _sign(form, strict=bool(prop.notes))
    if always is not None:
        said = "true of every network: there is nothing to train or prove"
        broken = "false of every network: none can obey it"
        fix = "see whether both sides of its comparisons are meant to be the same outputs"
        yield Finding("claim", said if always else broken, "wrong", fix)


def _least_outputs(prop: Property) -> int:
    """Where their number is open: as many as the rule names."""
    entries = [node for node in walk(prop.formula) if isinstance(node, Entry)]
    named = [index.offset for entry in entries for index in entry.indices if index.name is None]
    return prop.specification.outputs or max([1, *named]) + 1


def _sign(form: HardForm, *, strict: bool) -> bool | None:
    """Whether it is at most 0 (the rule holds) or above it (broken), at any values; None: it
    depends on them, or on whether a comparison was ``strict``, which the form does not say."""
    if isinstance(form, Affine):
        open_ = form.terms or (strict and form.constant == 0)
        return None if open_ else bool(form.constant <= 0)
    signs = [_sign(part, strict=strict) for part in form.parts]
    decided = not isinstance(form, Max)  # one part that holds is enough for a minimum
    if decided in signs:
        return decided
    return None if None in signs else not decided


_NEXT = (
    "--network NET.onnx adds: do its layers fit, can verdicts be certified, a first proof; --data: "
    "how far the region reaches, what training takes; both: is it broken already"
)
_NOTHING = "the rule says nothing, whatever the network computes"
_COMPARE = (
    "compare the rule's conditions on inputs with each other and with the region's bounds "
    "(qll data FILE shows a table's)"
)


def _empty(prop: Property, network: Network | None, data: DataSet | None) -> Iterator[Finding]:
    met, count = _met(prop, network, data)
    if met is False:
        where = "" if prop.is_closed else f" around each of {count} data points"
        yield Finding("premise", f"no input meets it{where}: {_NOTHING}", "wrong", _COMPARE)


def _met(prop: Property, network: Network | None, data: DataSet | None) -> tuple[bool | None, int]:
    """Whether some input of some region meets the premises, and how many regions were looked at:
    decided exactly, as a proof decides it; None where it cannot be. What outputs a network has
    makes no difference, so a stand-in has some; what they are at a data point does."""
    from qll.verify.api import Problem

    x = None if prop.is_closed or data is None else data.test.batch(slice(0, _LOOKED))[0]
    if prop.uses_labels or (x is None and not prop.is_closed):
        return None, 0  # labels are looked at with the data
    if network is None or "y0" not in prop.sources:
        shape = _shape(prop) if data is None else data.shape
        shape = network.input_shape if network is not None else shape
        outputs = _least_outputs(prop) if network is None else network.output_size
        if shape is None or "y0" in prop.sources:
            return None, 0
        network = _stand_in(shape, outputs)
    try:
        problem = Problem.of(prop, network, x, timeout=_SECONDS)
        queries = [problem.query(index) for index in range(len(problem))]
        met = any(not case.vacuous for query in queries for case in query.cases)
    except QllError:
        return None, 0  # named by what asks the rule for real
    return met, len(queries)


def _shape(prop: Property) -> tuple[int, ...] | None:
    """Of an input that has every entry the rule speaks of: further ones change no premise."""
    for declared in prop.specification.names:
        if declared.kind == "inputs":
            return (len(declared.names),)
    parts = [part for binder in prop.binders for part in binder.parts]
    for part in parts:
        if isinstance(part, Box) and len(part.lower) > 1:
            return (len(part.lower),)
    roots = [prop.formula, *(part.formula for part in parts if isinstance(part, Linear))]
    found = [node for root in roots for node in walk(root) if isinstance(node, Entry)]
    for part in parts:
        found += getattr(part, "entries", ())
        found += [part.entry] if isinstance(part, Member) else []
    indices = [entry.indices for entry in found if entry.source in ("x", "x2")]
    axes = {len(index) for index in indices}
    if len(axes) > 1 or any(i.name is not None for index in indices for i in index):
        return None
    if not indices:
        return (1,)
    return tuple(max(place) + 1 for place in zip(*([i.offset for i in index] for index in indices)))


def refuse_empty(config: TrainConfig, data: DataSet) -> None:
    """Before training on a table: a rule that no input can break teaches nothing, and every figure
    of it would be an accident."""
    if data.schema is None or config.is_baseline:
        return
    prop = load_fitting(config.property, data.schema, **config.parameters)
    if _met(prop, None, data)[0] is False:
        raise InputError(
            f"no input meets the premises of '{prop.name}'",
            expected="a rule that some input of its region can break",
            found=_NOTHING,
            fix=_COMPARE,
        )


def _stand_in(shape: tuple[int, ...], outputs: int) -> Network:
    model = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs))
    return load_network(model.eval(), input_shape=shape)


def _certifiable(network: Network) -> Finding:
    from qll.verify.evidence import obstacle

    found = obstacle(network)
    if found is None:
        return Finding("certificate", "every verdict can be confirmed by the checker")
    return Finding("certificate", f"the checker does not read this network: {found}", "note",
                   "verdicts are then the prover's word")  # fmt: skip


def _data(prop: Property, network: Network | None, data: DataSet) -> Iterator[Finding]:
    x, labels = data.test.batch(slice(0, _POINTS))
    own = labels if prop.uses_labels else None
    yield Finding("data", f"{len(data.train)} training and {len(data.test)} test points")
    if own is not None:
        outputs = network.output_size if network is not None else prop.specification.outputs
        empty = vacuous_labels(prop, own, outputs or 0, tuple(x.shape[1:]))
        if bool(empty.all()):
            yield Finding(
                "premise",
                f"false at each of {len(x)} data points, whatever the network computes",
                "wrong",
                "see which classes the rule names: nothing of these data is asked",
            )
        elif bool(empty.any()):
            said = f"false at {int(empty.sum())} of {len(x)} data points: they are counted apart"
            yield Finding("premise", said, "note")
    yield from _radius(prop, x)
    if network is not None:
        yield from _judged(prop, network, x, own)
        if not prop.is_closed:
            yield from _tried(prop, network, x, own, len(data.test))


def _radius(prop: Property, x: Tensor) -> Iterator[Finding]:
    """Epsilon against the spread of the data."""
    found = reach(prop, x)
    if found is not None:
        yield Finding("region", found.said, "note" if found.far else "ok", found.fix)


def _judged(
    prop: Property, network: Network, x: Tensor, labels: Tensor | None
) -> Iterator[Finding]:
    if prop.sources & {"x2", "y2"}:
        return
    inside = Region.of(prop, x).contains({"x": x})
    if not bool(inside.any()):
        yield Finding("clean data", f"none of {len(x)} data points lies in the region", "note")
        return
    x, labels = x[inside], None if labels is None else labels[inside]
    y = torch.from_numpy(network.runtime(x.numpy())).to(x.dtype)
    points = {"x": x, "x0": x, "y0": y}
    margins = prop.margin(y, labels=labels, **{k: points[k] for k in prop.sources & set(points)})
    broken, count = int((margins < 0).sum()), f"{len(x)} data points"
    if not bool(inside.all()):
        count += " in the region"
    if broken:
        said = f"broken at {broken} of {count} as they are: no proof is possible there"
        yield Finding(
            "clean data", said, "note", "train on the rule, or see whether it is meant so"
        )
    else:
        yield Finding("clean data", f"obeyed at all {count} as they are")


def _tried(
    prop: Property, network: Network, x: Tensor, labels: Tensor | None, total: int
) -> Iterator[Finding]:
    """A few regions decided, and what all would take."""
    from qll.verify.api import verify

    own = None if labels is None else labels[:_TRIED]
    try:
        found = verify(prop, network, x[:_TRIED], own, timeout=_SECONDS)
    except QllError as error:
        yield _wrong("proof", error)
        return
    each = sum(verdict.seconds for verdict in found) / max(1, len(found))
    said = ", ".join(str(verdict) for verdict in found)
    yield _proof(f"{said}; about {each * total:.0f} s for all {total:,} test points", found)


class _Steps(Silent):
    """When steps of training were done."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.all = 0

    def start(self, title: str, epochs: int, steps: int, done: int) -> None:
        self.all = epochs * steps

    def step(self) -> None:
        self.times.append(time.monotonic())


def _training(rule: str | Path, data: DataSet) -> Finding:
    """Some steps of what ``qll train`` would do, and what all would take."""
    from qll.training.config import default_logic, resolve
    from qll.training.loop import Trainer

    try:
        options = {"logic": default_logic(str(rule), data.name, "attack")}
        config = resolve(str(rule), data.name, options=options)
        steps = _Steps()
        trainer = Trainer(config, data, None, None, steps)
        trainer.run_epochs(0, until=time.monotonic() + _WARM)  # what is compiled is not counted
        steps.times.clear()
        trainer.run_epochs(0, until=time.monotonic() + _SECONDS)
    except QllError as error:
        return Finding("training", str(error).replace("\n", " "), "note")
    if len(steps.times) < 2:
        return Finding("training", f"a step takes more than {_SECONDS:g} s here", "note")
    each = (steps.times[-1] - steps.times[0]) / (len(steps.times) - 1)
    said = f"qll train takes about {_spoken(each * steps.all)} here: {config.epochs} epochs"
    return Finding("training", f"{said} (--epochs), network {config.network} (--network)")


def _spoken(seconds: float) -> str:
    """
    >>> _spoken(40.0), _spoken(600.0), _spoken(9000.0)
    ('40 s', '10 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _asked_once(prop: Property, network: Network) -> Iterator[Finding]:
    """A rule that depends on no data point has one verdict: it is sought here, for seconds."""
    from qll.verify.api import verify

    try:
        found = verify(prop, network, timeout=_SECONDS)
    except QllError as error:
        yield _wrong("proof", error)
        return
    seconds = sum(verdict.seconds for verdict in found)
    said = ", ".join(str(verdict) for verdict in found)
    yield _proof(f"{said}, asked once, {seconds:.1f} s", found)


def _proof(said: str, found: list[Verdict]) -> Finding:
    if any(verdict.status == "unknown" for verdict in found):
        fix = f"{_SECONDS:g} seconds were given here: qll verify --timeout 60 gives more"
        return Finding("proof", said, "note", fix)
    if any(verdict.status == "falsified" for verdict in found):
        fix = "the network does not obey it yet: qll explain tells a witness, qll repair mends the "
        return Finding("proof", said, "note", fix + "network, qll train makes one that obeys")
    return Finding("proof", said)
