"""What can be wrong with a specification besides its grammar: names, indices, sorts of regions,
where ``==`` may stand. Everything is reported with its place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from qll.errors import FormulaError
from qll.formula import units
from qll.formula.check_region import Regions, error_at, place
from qll.formula.fold import children, fold
from qll.formula.names import Names, Scope, check_declarations
from qll.formula.nodes import (
    Compare,
    Connective,
    Definition,
    Divide,
    Entry,
    EntryKind,
    FormulaReference,
    Implies,
    Index,
    IndexBinder,
    IndexCondition,
    IndexSet,
    Label,
    Node,
    Not,
    Number,
    Parameter,
    Quantified,
    Quantity,
    QuantityReference,
    Scale,
    Specification,
)
from qll.registry import suggest

BUILT_IN_SETS = ("outputs", "inputs")
# A hostile or generated formula fails with a message instead of exhausting memory or the stack.
MAX_DEPTH = 150
MAX_OUTPUTS = 1_000_000


def check(specification: Specification, *, outputs: int | None = None) -> None:
    """Raise a ``FormulaError`` at the first fault; ``outputs`` also checks output indices."""
    _Checker(specification, outputs).run()


class _Checker:
    def __init__(self, specification: Specification, outputs: int | None) -> None:
        self.specification = specification
        self.outputs = outputs if outputs is not None else specification.outputs
        self.sets: dict[str, IndexSet] = {}  # those declared so far, as are the definitions
        self.definitions: dict[str, Definition] = {}
        self.depths: dict[str, int] = {}
        self.parameters = {p.name for p in specification.parameters}
        self.names = Names.of(specification)
        self.seen: set[tuple[str, bool]] = set()

    def run(self) -> None:
        for parameter in self.specification.parameters:
            units.convert(parameter.name, parameter.unit, parameter.default, place(parameter.span))
        declared = self.specification.outputs
        if declared is not None and not 1 <= declared <= MAX_OUTPUTS:
            raise wrong_outputs(declared, None)
        check_declarations(self.specification)
        if self.outputs is not None:
            self.names.check_fit("outputs", self.outputs)
        for item in self.specification.sets:
            if item.name in BUILT_IN_SETS:
                raise error_at(
                    f"set '{item.name}' is built in",
                    "a new name",
                    f"a declaration of '{item.name}'",
                    "choose another name for the set",
                    item,
                )
            self._domain(item.domain, f"set '{item.name}'")
            self.sets[item.name] = self.sets.get(item.domain.name or "", item.domain)
        for definition in self.specification.definitions:
            self._distinct(definition.arguments, definition)
            self._walk(definition.body, dict.fromkeys(definition.arguments), True)
            self.depths[definition.name] = self._depth(definition.body)
            self.definitions[definition.name] = definition
        regions = Regions(self.specification, self._walk, self._depth)
        regions.run()
        self._walk(self.specification.formula, {}, True)
        self._depth(self.specification.formula)
        if self.specification.binders:
            regions.bound_points()

    # --- formulas: top-down, carrying the indices in scope and the polarity ---

    def _walk(self, root: Node, scope: Scope, positive: bool) -> None:
        stack: list[tuple[Node, Scope, bool]] = [(root, scope, positive)]
        while stack:
            node, scope, positive = stack.pop()
            match node:
                case Entry(source, indices):
                    self._entry(node, source, indices, scope)
                case Label(index):
                    self._output_index(index, scope)
                case Parameter(name) if name not in self.parameters:
                    raise error_at(
                        f"unknown parameter '{name}'",
                        "a declared parameter",
                        f"'{name}'",
                        suggest(name, sorted(self.parameters)) if self.parameters else "declare it",
                        node,
                    )
                case Number(value) if math.isnan(value):
                    raise error_at(
                        "this number is undefined",
                        "a number or inf",
                        "nan, such as 0*inf",
                        "write the number itself",
                        node,
                    )
                case Scale(Number(value), _) if math.isinf(value):
                    raise error_at(
                        "this factor is infinite",
                        "a finite factor",
                        f"{value:g}",
                        "use a finite number",
                        node,
                    )
                case Divide(_, divisor) if divisor == 0.0 or not math.isfinite(divisor):
                    raise error_at(
                        "this divides by zero or by an infinity",
                        "a finite number that is not 0",
                        f"{divisor:g}",
                        "divide by another number",
                        node,
                    )
                case QuantityReference(name, arguments) | FormulaReference(name, arguments):
                    self._reference(node, name, arguments)
                    for argument in arguments:
                        self._index(argument, scope)
                    if not positive and (name, positive) not in self.seen:
                        self.seen.add((name, positive))
                        definition = self.definitions[name]
                        stack.append((definition.body, dict.fromkeys(definition.arguments), False))
                case Compare("==") if not positive:
                    raise error_at(
                        "'==' stands where it would hold almost everywhere",
                        "'==' only in positive positions, neither under 'not' nor in a premise",
                        "'==' in a negative position",
                        "put the equation into the region, or use two inequalities with a margin",
                        node,
                    )
                case Not(body):
                    stack.append((body, scope, not positive))
                    continue
                case Implies(_, left, right):
                    stack.append((right, scope, positive))
                    stack.append((left, scope, not positive))
                    continue
                case Quantified(_, binders, body, conditions, hardness):
                    self._hardness(hardness, node)
                    inner = dict(scope)
                    self._distinct([name for binder in binders for name in binder.names], node)
                    for binder in binders:
                        self._binder(binder, inner)
                    for condition in conditions:
                        self._condition(condition, inner)
                    stack.append((body, inner, positive))
                    continue
                case Connective(kind, parts, hardness):
                    self._hardness(hardness, node)
                    if not parts:
                        raise error_at(
                            f"this '{kind}' has no parts",
                            "at least one part",
                            "none",
                            "write top or bottom instead",
                            node,
                        )
            stack.extend((child, scope, positive) for child in reversed(children(node)))

    def _reference(self, node: Node, name: str, arguments: tuple[Index, ...]) -> None:
        """The parser has seen to this; nodes built in Python may name what is not there."""
        definition = self.definitions.get(name)
        if definition is None:
            known = sorted(self.definitions)
            raise error_at(
                f"unknown name '{name}'",
                "a definition that stands above",
                f"'{name}'",
                suggest(name, known) if known else "declare it with 'define'",
                node,
            )
        if len(arguments) != len(definition.arguments):
            raise error_at(
                f"'{name}' is used with the wrong number of indices",
                f"{len(definition.arguments)}",
                f"{len(arguments)}",
                "give one index for each argument of the definition",
                node,
            )
        if isinstance(definition.body, Quantity) != isinstance(node, QuantityReference):
            raise error_at(
                f"'{name}' is used as the wrong sort",
                "a quantity where a number stands, a formula where a truth value stands",
                "the other one",
                "compare the quantity with something",
                node,
            )

    def _distinct(self, names: Sequence[str], node: object) -> None:
        for name in names:
            if names.count(name) > 1:
                raise error_at(
                    f"index '{name}' is bound twice",
                    "a name of its own for each index",
                    f"'{name}' again",
                    "rename one of them",
                    node,
                )

    def _depth(self, root: Node) -> int:
        """Levels of nesting, definitions unfolded."""

        def visit(node: Any, parts: list[int]) -> int:
            deepest = max(parts, default=0)
            if isinstance(node, QuantityReference | FormulaReference):
                deepest = self.depths[node.name]
            if deepest >= MAX_DEPTH:
                raise error_at(
                    "this formula is nested too deeply",
                    f"at most {MAX_DEPTH} levels, with definitions unfolded",
                    "more",
                    "write flat conjunctions and sums",
                    node,
                )
            return deepest + 1

        return fold(root, visit)

    def _hardness(self, hardness: float | None, node: Node) -> None:
        if hardness is not None and not hardness > 0:
            raise error_at(
                "this hardness is not positive",
                "a number > 0 or inf",
                f"{hardness:g}",
                "use and[5], say",
                node,
            )

    def _entry(self, node: Entry, source: str, indices: tuple[Index, ...], scope: Scope) -> None:
        if source.startswith("x"):
            self.names.check_alone(indices, node.span)
            for index in indices:
                self._index(index, scope, "inputs")
        else:
            if len(indices) != 1:
                raise error_at(
                    f"'{source}' takes one index",
                    f"{source}[i]",
                    f"{len(indices)} indices",
                    "outputs are a vector: name one of them",
                    node,
                )
            self._output_index(indices[0], scope)

    def _output_index(self, index: Index, scope: Scope) -> None:
        self._index(index, scope, "outputs")
        if index.name is None and self.outputs is not None and not 0 <= index.offset < self.outputs:
            raise error_at(
                f"output {index.offset} does not exist",
                f"an index from 0 to {self.outputs - 1}",
                f"{index.offset}",
                "indices count from 0; check the number of outputs",
                index,
            )

    def _index(self, index: Index, scope: Scope, kind: EntryKind | None = None) -> None:
        self.names.check(index, scope, kind)
        if index.name is not None and index.name not in scope:
            raise error_at(
                f"unknown index '{index.name}'",
                f"an index that a quantifier binds: {', '.join(scope) or 'none here'}",
                f"'{index.name}'",
                f"bind it, as in 'forall {index.name} in outputs: ...'",
                index,
            )

    def _binder(self, binder: IndexBinder, scope: Scope) -> None:
        width = self._domain(binder.domain, "this set")
        if width is not None and width != len(binder.names):
            raise error_at(
                "this quantifier binds the wrong number of indices",
                f"{width} for this set",
                f"{len(binder.names)}: {', '.join(binder.names)}",
                "write (i, j) for a set of pairs",
                binder,
            )
        for name in binder.names:
            if name in self.parameters or name in self.definitions or name in self.sets:
                raise error_at(
                    f"index '{name}' hides a declared name",
                    "a new name",
                    f"'{name}', which is declared",
                    "choose another letter for the index",
                    binder,
                )
        columns = self.names.columns(self.sets.get(binder.domain.name or "", binder.domain))
        scope.update(zip(binder.names, columns or (None,), strict=True))

    def _condition(self, condition: IndexCondition, scope: Scope) -> None:
        self._index(condition.left, scope)
        if isinstance(condition.right, Index):
            self._index(condition.right, scope)
        else:
            self._domain(condition.right, "this set")

    def _domain(self, domain: IndexSet, what: str) -> int | None:
        """Checks a set and returns the width of its tuples (None where not known yet)."""
        if domain.name is not None:
            if domain.name in BUILT_IN_SETS:
                return 1
            if domain.name not in self.sets:
                known = sorted([*self.sets, *BUILT_IN_SETS])
                raise error_at(
                    f"unknown set '{domain.name}'",
                    "a declared set, 'outputs' or 'inputs'",
                    f"'{domain.name}'",
                    suggest(domain.name, known),
                    domain,
                )
            return self._domain(self.sets[domain.name], what)
        if not domain.items:
            raise error_at(
                f"{what} is empty",
                "at least one index",
                "{}",
                "name the indices it should hold",
                domain,
            )
        widths = {len(item) for item in domain.items}
        if len(widths) > 1:
            raise error_at(
                f"{what} mixes tuples of different lengths",
                "tuples of one length",
                f"lengths {sorted(widths)}",
                "split it into two sets",
                domain,
            )
        self.names.columns(domain)
        return widths.pop()


def wrong_outputs(declared: int, where: str | None) -> FormulaError:
    return FormulaError(
        "this is no number of outputs",
        expected=f"a number from 1 to {MAX_OUTPUTS:,}",
        found=f"{declared}",
        fix="write outputs 10, say",
        where=where,
    )
