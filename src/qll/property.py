"""A property: a specification with its parameters bound, and its readings.

prop = qll.load("classification-robustness", epsilon=0.2)
loss = prop.loss(y, labels=labels, logic=qll.QLL(p=5))     # per sample, differentiable
ok = prop.holds(y, labels=labels)                          # Boolean per sample
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from qll.enclosure import Enclosure, OutputBounds
from qll.errors import FormulaError, InputError
from qll.formula import units
from qll.formula.check import check
from qll.formula.fold import walk
from qll.formula.hard import HardForm
from qll.formula.nodes import (
    SOURCES,
    Compare,
    Entry,
    Formula,
    Label,
    Linear,
    PointBinder,
    Specification,
)
from qll.formula.question import is_closed
from qll.formula.rewrite import Grounder, Shape
from qll.formula.scale import Scales, rescaled
from qll.formula.show import Style, show_specification
from qll.formula.slack import hard_form
from qll.formula.template import plan
from qll.logics.base import Direction, Logic
from qll.logics.base import logic as read_logic
from qll.logics.boolean import Boolean
from qll.points import check_points, check_tensor
from qll.reading import Reading
from qll.registry import suggest

# Distinct multi-hot patterns kept compiled; a data set with more is recompiled by batch.
_MAX_PATTERNS = 4096
# 2^14 formulas are a matter of seconds.
_MAX_ENUMERATED_LABELS = 14


@dataclass(frozen=True)
class Property:
    """Immutable: ``with_parameters`` gives another one. Its ``repr`` is its text, which
    ``qll.parse`` reads back."""

    specification: Specification
    parameters: Mapping[str, float] = field(default_factory=dict)
    outputs: int | None = None
    inputs: tuple[int, ...] | None = None
    scales: Scales = field(default_factory=dict)
    _cache: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.specification, Specification):
            raise InputError(
                "a property is built from a specification, not from its text",
                expected="a Specification",
                found=type(self.specification).__name__,
                fix="use qll.parse(text) for a text, qll.load(name) for a name or a file",
            )
        declared = {p.name: p for p in self.specification.parameters}
        for name in self.parameters:
            if name not in declared:
                raise FormulaError(
                    f"property '{self.name}' has no parameter '{name}'",
                    expected=f"one of: {', '.join(declared) or 'it has none'}",
                    found=f"'{name}'",
                    fix=suggest(name, sorted(declared)) if declared else "leave it out",
                )
        check(self.specification, outputs=self.outputs)
        if self.outputs is not None and self.specification.outputs not in (None, self.outputs):
            # Its text says what it is: a certificate quotes it.
            own = replace(self.specification, outputs=self.outputs)
            object.__setattr__(self, "specification", own)
        # Converting now reports a value outside its domain where it was given.
        self._cache["values"] = {
            name: units.convert(
                name, p.unit, self.value_of(name), _where(p.span, name in self.parameters)
            )
            for name, p in declared.items()
        }

    # --- what it says ---

    @property
    def name(self) -> str:
        return self.specification.name

    @property
    def documentation(self) -> str:
        return self.specification.documentation

    @property
    def formula(self) -> Formula:
        return self.specification.formula

    @property
    def binders(self) -> tuple[PointBinder, ...]:
        return self.specification.binders

    def value_of(self, parameter: str) -> float:
        """A parameter in the unit it was declared with."""
        default = {p.name: p.default for p in self.specification.parameters}
        return float(self.parameters.get(parameter, default[parameter]))

    @property
    def values(self) -> Mapping[str, float]:
        """The numbers that the formula sees: probabilities have become logits."""
        return self._cache["values"]  # type: ignore[no-any-return]

    @property
    def sources(self) -> frozenset[str]:
        """Which of ``y, x, x0, y0, x2, y2`` the formula speaks of."""
        return self._facts()[0]

    @property
    def uses_labels(self) -> bool:
        return self._facts()[1]

    @property
    def is_closed(self) -> bool:
        """Whether it depends on no data point: neither x0 nor y0 nor labels are in it."""
        return is_closed(self.specification)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the closed reading weakens: recorded in every verdict."""
        if not self._facts()[2]:
            return ()
        return ("strict comparisons are read as closed ones",)

    def _facts(self) -> tuple[frozenset[str], bool, bool]:
        if "facts" not in self._cache:
            nodes = [
                node
                for root in (self.formula, *(d.body for d in self.specification.definitions))
                for node in walk(root)
            ]
            sources = frozenset(n.source for n in nodes if isinstance(n, Entry))
            labels = any(isinstance(n, Label) for n in nodes)
            region = [
                node
                for binder in self.binders
                for part in binder.parts
                if isinstance(part, Linear)
                for node in walk(part.formula)
            ]
            strict = any(
                isinstance(n, Compare) and n.operator in ("<", ">") for n in (*nodes, *region)
            )
            self._cache["facts"] = (sources, labels, strict)
        return self._cache["facts"]  # type: ignore[no-any-return]

    def with_parameters(self, **parameters: float) -> Property:
        return replace(self, parameters={**self.parameters, **parameters}, _cache={})

    def with_scales(self, **scales: Sequence[float]) -> Property:
        """The same rule, whose soft readings count in these units: ``y=(0.003,)`` says that 0.003
        is a step of the output. What holds, and by what margin, does not change."""
        for source, steps in scales.items():
            if source not in ("x", "y") or not all(math.isfinite(s) and s > 0 for s in steps):
                raise InputError(
                    "these are no scales",
                    expected="x= or y= with a number above 0 for each entry",
                    found=f"{source}={list(steps)[:6]}",
                    fix="pass y=[...] with the spread of each output",
                )
        return replace(self, scales={k: tuple(v) for k, v in scales.items()}, _cache={})

    def __repr__(self) -> str:
        return self.show().rstrip("\n")

    def show(self, style: Style = "ascii") -> str:
        """Its text, with the parameters as they are set: read again, it is the same property."""
        given = tuple(
            replace(p, default=self.value_of(p.name)) for p in self.specification.parameters
        )
        return show_specification(replace(self.specification, parameters=given), style)

    def _repr_latex_(self) -> str:
        """In a notebook."""
        return f"$${self.show('latex').strip()}$$"

    # --- readings at points ---

    def loss(
        self,
        y: Tensor,
        *,
        labels: Tensor | None = None,
        logic: Logic | str = "qll:5",
        **points: Tensor,
    ) -> Tensor:
        """The loss of each sample, ``(batch,)``, differentiable in ``y`` and the points.

        ``labels`` are classes ``(batch,)`` or multi-hot ``(batch, outputs)``; ``x``, ``x0``,
        ``y0``, ``x2``, ``y2`` are given where the formula speaks of them. A sample that the
        property says nothing about (its formula is top) has loss 0.
        """
        record = read_logic(logic)
        value, fixed = self._read(record, y, labels, points)
        loss = record.loss(value)
        if fixed is None:
            return loss
        vacuous = fixed & (value == record.top)
        return torch.where(vacuous, torch.zeros_like(loss), loss)

    def value(
        self,
        y: Tensor,
        *,
        labels: Tensor | None = None,
        logic: Logic | str = "qll:5",
        **points: Tensor,
    ) -> Tensor:
        """The truth value of each sample in the logic's own domain (top where it says nothing)."""
        return self._read(read_logic(logic), y, labels, points)[0]

    def holds(self, y: Tensor, *, labels: Tensor | None = None, **points: Tensor) -> Tensor:
        """Satisfied or not, for each sample, by the Boolean reading."""
        return self.margin(y, labels=labels, **points) >= 0

    def margin(self, y: Tensor, *, labels: Tensor | None = None, **points: Tensor) -> Tensor:
        """Minus the hard value: positive when good, negative when violated."""
        return -self._read(Boolean(), y, labels, points)[0]

    def slack(
        self,
        logic: Logic | str = "qll:5",
        *,
        outputs: int | None = None,
        multi_label: bool = False,
    ) -> tuple[float, float]:
        """``(a, b)`` with the hard value in ``[soft - a, soft + b]``: the worst over all classes,
        or with ``multi_label`` over all sets of labels."""
        record = read_logic(logic)
        shape = self._shape(outputs)
        grounder = Grounder(self.specification, self.values, shape, top_is_unit=record.top_is_unit)
        pairs = [
            record.slack(self._prepared(record, grounder.ground(pattern)))
            for pattern in self._label_patterns(shape, multi_label)
        ]
        return max(a for a, _ in pairs), max(b for _, b in pairs)

    def enclose(
        self, bounds: OutputBounds, *, labels: Tensor | None = None, logic: Logic | str = "qll:5"
    ) -> tuple[Tensor, Tensor]:
        """Lower and upper ends of the value over each sample's region, ``(batch,)``."""
        record, zeros = read_logic(logic), bounds.zeros
        if extra := self.sources - set(bounds.sources):
            raise FormulaError(
                f"property '{self.name}' cannot be bounded over a region yet",
                expected=f"a formula of {', '.join(bounds.sources)} alone",
                found=f"one that speaks of {', '.join(sorted(extra))}",
                fix="train it against attacks, and prove it with the verifier",
            )
        patterns, pick = self._patterns(zeros.new_zeros(len(zeros), bounds.outputs), labels)
        shape = Shape(bounds.outputs, bounds.input_shape)
        key = (record, "enclosure", shape, patterns, zeros.device, zeros.dtype)
        if key not in self._cache:
            formulas, rows, _ = self._formulas(record, shape, patterns)
            self._cache[key] = Enclosure(
                plan(formulas), record, rows, device=zeros.device, dtype=zeros.dtype
            )
        enclosure: Enclosure = self._cache[key]
        return enclosure(bounds, pick)

    def upper(
        self, bounds: OutputBounds, *, labels: Tensor | None = None, logic: Logic | str = "qll:5"
    ) -> Tensor:
        """A sound, differentiable upper bound of the loss over each sample's region.

        ``bounds`` come from ``qll.bounds(prop, model, x)``. With the Boolean logic's
        value (or QLL's plus its slack) at most 0, the region is certified.
        """
        record = read_logic(logic)
        low, high = self.enclose(bounds, labels=labels, logic=record)
        worst = low if record.direction is Direction.HIGHER_IS_TRUER else high
        loss = record.loss(worst)
        return torch.where(worst == record.top, torch.zeros_like(loss), loss)

    def certified(
        self,
        bounds: OutputBounds,
        *,
        labels: Tensor | None = None,
        logic: Logic | str | None = None,
    ) -> Tensor:
        """Which regions the bounds prove: the hard value is at most 0 everywhere in them, or, with
        a ``logic``, the soft value plus its slack. In the arithmetic of the bounds: float rounding
        is not covered, a verifier's certificate is."""
        if logic is None:
            return self.enclose(bounds, labels=labels, logic=Boolean())[1] <= 0
        several = labels is not None and labels.dim() > 1
        _, slack = self.slack(logic, outputs=bounds.outputs, multi_label=several)
        return self.enclose(bounds, labels=labels, logic=logic)[1] + slack <= 0

    def hard_form(
        self,
        labels: int | tuple[int, ...] | None = None,
        *,
        outputs: int | None = None,
        inputs: tuple[int, ...] | None = None,
    ) -> HardForm:
        """The max/min tree of affine functions for one data point: what a verifier proves <= 0."""
        shape = self._shape(outputs, inputs)
        grounder = Grounder(self.specification, self.values, shape)
        pattern = None if labels is None else ((labels,) if isinstance(labels, int) else labels)
        return hard_form(grounder.ground(pattern))

    def ground(
        self,
        labels: tuple[int, ...] | None,
        logic: Logic,
        *,
        outputs: int,
        inputs: tuple[int, ...] | None = None,
    ) -> Formula:
        """The formula for one label pattern as ``logic`` evaluates it."""
        grounder = Grounder(
            self.specification, self.values, Shape(outputs, inputs), top_is_unit=logic.top_is_unit
        )
        return self._prepared(logic, grounder.ground(labels))

    # --- how ---

    def _shape(self, outputs: int | None, inputs: tuple[int, ...] | None = None) -> Shape:
        count = outputs or self.outputs or self.specification.outputs
        if count is None:
            raise InputError(
                f"the number of outputs of property '{self.name}' is not known",
                expected="outputs=N",
                found="none",
                fix="pass outputs=10, or write 'outputs 10' in the property",
            )
        return Shape(count, inputs or self.inputs)

    def _label_patterns(self, shape: Shape, multi_label: bool) -> list[tuple[int, ...] | None]:
        if not self.uses_labels:
            return [None]
        classes = range(shape.outputs)
        if not multi_label:
            return [(c,) for c in classes]
        if shape.outputs > _MAX_ENUMERATED_LABELS:
            raise InputError(
                "there are too many sets of labels to go through",
                expected=f"at most {_MAX_ENUMERATED_LABELS} outputs",
                found=f"{shape.outputs}",
                fix="leave multi_label out to bound single labels",
            )
        return [
            subset for size in range(shape.outputs + 1) for subset in combinations(classes, size)
        ]

    def _read(
        self, record: Logic, y: Tensor, labels: Tensor | None, points: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        tensors = check_points(self.name, self.outputs, self.sources, y, points)
        inputs = self.inputs
        for name, tensor in tensors.items():
            if name[0] == "x":
                inputs = tuple(tensor.shape[1:])
        patterns, pick = self._patterns(y, labels)
        key = (record, y.shape[1], inputs, patterns, y.device, y.dtype)
        cached = self._cache.get(key)
        if cached is None:
            cached = self._compile(record, Shape(y.shape[1], inputs), patterns, y)
            for stale in [k for k in self._cache if isinstance(k, tuple) and k[0] == record][:-8]:
                del self._cache[stale]
            self._cache[key] = cached
        reading, used = cached
        if used == ("y",):
            z = y.t()
        else:
            z = torch.cat([tensors[source].flatten(1).t() for source in used])
        try:
            value, fixed = reading(z, pick)
        except (IndexError, RuntimeError):
            if pick is not None:
                _check_classes(pick, y.shape[1])
            raise
        if z.requires_grad and not value.requires_grad:
            # A reading with no slope at all (Goedel's y <= 0) is still part of the graph.
            value = value + 0.0 * z[0]
        return value, fixed

    def _compile(
        self, record: Logic, shape: Shape, patterns: tuple[tuple[int, ...], ...] | None, y: Tensor
    ) -> tuple[Reading, tuple[str, ...]]:
        formulas, rows, used = self._formulas(record, shape, patterns)
        return Reading(plan(formulas), record, rows, device=y.device, dtype=y.dtype), used

    def _formulas(
        self, record: Logic, shape: Shape, patterns: tuple[tuple[int, ...], ...] | None
    ) -> tuple[list[Formula], dict[tuple[str, int], int], tuple[str, ...]]:
        """The ground formula of each pattern, the row of each slot in the stack of quantities, and
        which quantities are stacked."""
        grounder = Grounder(self.specification, self.values, shape, top_is_unit=record.top_is_unit)
        wanted = patterns or self._label_patterns(shape, multi_label=False)
        formulas = [self._prepared(record, grounder.ground(p)) for p in wanted]
        used = tuple(s for s in SOURCES if s in self.sources) or ("y",)
        rows: dict[tuple[str, int], int] = {}
        for source in used:
            width = shape.outputs if source.startswith("y") else math.prod(shape.inputs or ())
            for k in range(width):
                rows[(source, k)] = len(rows)
        return formulas, rows, used

    def _prepared(self, record: Logic, formula: Formula) -> Formula:
        """As the logic evaluates it: a soft one in the units of what is compared."""
        counted = rescaled(formula, self.scales) if record.counts_in_units else formula
        return record.prepare(counted)

    def _patterns(
        self, y: Tensor, labels: Tensor | None
    ) -> tuple[tuple[tuple[int, ...], ...] | None, Tensor | None]:
        """Label patterns to compile for (None: one for each class, or the only one there is), and
        each sample's pattern."""
        if not self.uses_labels:
            return None, None
        if labels is None:
            raise InputError(
                f"property '{self.name}' speaks of labels",
                expected="labels=...",
                found="none",
                fix="pass classes (batch,) or multi-hot labels (batch, outputs)",
            )
        check_tensor(labels, "labels")
        batch, outputs = y.shape
        if labels.shape == (batch,):
            if labels.is_floating_point() or labels.dtype == torch.bool:
                raise _label_error("an integer class for each sample", str(labels.dtype))
            if labels.device.type != "cpu":  # a look-up out of range would not raise there
                _check_classes(labels, outputs)
            return None, labels if labels.dtype == torch.long else labels.long()
        if labels.shape == (batch, outputs):
            hot = labels.bool()
            if not torch.equal(hot.to(labels.dtype), labels):
                raise _label_error("multi-hot labels of 0 and 1", "other values")
            unique, inverse = torch.unique(hot, dim=0, return_inverse=True)
            # Patterns keep their place once seen, so that a new batch with the same patterns in
            # another mix finds its tables compiled.
            known: dict[tuple[int, ...], int] = self._cache.setdefault(("patterns", outputs), {})
            if len(known) > _MAX_PATTERNS:
                known.clear()
            places = [
                known.setdefault(tuple(torch.nonzero(row).flatten().tolist()), len(known))
                for row in unique
            ]
            return tuple(known), torch.tensor(places, device=y.device)[inverse]
        raise _label_error(f"({batch},) or ({batch}, {outputs})", str(tuple(labels.shape)))


def _check_classes(labels: Tensor, outputs: int) -> None:
    bad = labels[(labels < 0) | (labels >= outputs)]
    if len(bad):
        raise _label_error(f"classes from 0 to {outputs - 1}", str(int(bad[0])))


def _label_error(expected: str, found: str) -> InputError:
    return InputError(
        "labels do not fit the outputs",
        expected=expected,
        found=found,
        fix="pass classes (batch,) or multi-hot labels (batch, outputs)",
    )


def _where(span: object, given: bool) -> str | None:
    return None if given or span is None else str(span)


def check_property(prop: object) -> None:
    """Of the verbs that take a property and nothing in place of it."""
    if not isinstance(prop, Property):
        raise InputError(
            "this is not a property",
            expected="a property, as qll.load or qll.parse gives it",
            found=type(prop).__name__,
            fix="pass qll.load('classification-robustness'), or qll.parse(text)",
        )
