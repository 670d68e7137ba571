"""Names of outputs and inputs: after ``outputs cat, dog`` the first output is ``y["cat"]``.

A name stays in the nodes, so that it is printed as it was written; `check` refuses a wrong one at
its place, and the `Grounder` puts the index in its place before any reading begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TypeAlias

from qll.errors import FormulaError
from qll.formula.nodes import EntryKind, Index, IndexSet, NameDeclaration, Span, Specification
from qll.registry import suggest

MAX_NAME = 100  # characters
# How many names an error lists.
_SHOWN = 12
_KINDS: dict[EntryKind, tuple[str, str]] = {
    "outputs": ("an output", "y"),
    "inputs": ("an input", "x"),
}
# What the names in one column of an index set are names of; None: it has none, or they may be both.
Column: TypeAlias = EntryKind | None
# The indices that are bound, each with that of the set it runs over.
Scope: TypeAlias = dict[str, Column]


@dataclass(frozen=True)
class Names:
    """The declared names of a specification, each with its index."""

    outputs: Mapping[str, int]
    inputs: Mapping[str, int]
    spans: Mapping[EntryKind, Span | None]

    @classmethod
    def of(cls, specification: Specification) -> Names:
        tables: dict[EntryKind, dict[str, int]] = {"outputs": {}, "inputs": {}}
        for declared in specification.names:
            tables[declared.kind] = {name: k for k, name in enumerate(declared.names)}
        spans = {d.kind: d.span for d in specification.names}
        return cls(tables["outputs"], tables["inputs"], spans)

    def table(self, kind: EntryKind) -> Mapping[str, int]:
        return self.outputs if kind == "outputs" else self.inputs

    def index(self, name: str, kind: EntryKind | None, span: Span | None) -> int:
        """The index that ``name`` stands for. In a set, a condition or an argument (``kind`` None)
        outputs and inputs are both looked at."""
        kinds: tuple[EntryKind, ...] = ("outputs", "inputs") if kind is None else (kind,)
        found = {self.table(k)[name] for k in kinds if name in self.table(k)}
        if len(found) == 1:
            return found.pop()
        raise _ambiguous(name, span) if found else self._unknown(name, kind, span)

    def kind(self, name: str) -> EntryKind | None:
        """Of which its index is; None if both have it."""
        both: tuple[EntryKind, ...] = ("outputs", "inputs")
        kinds = [k for k in both if name in self.table(k)]
        return kinds[0] if len(kinds) == 1 else None

    def columns(self, domain: IndexSet) -> tuple[Column, ...]:
        """For each place in the tuples of a set, of which kind the names there are; nothing for a
        set that has a name itself."""
        found: list[Column] = []
        for column in zip(*domain.items, strict=True):
            names = [name for name in column if isinstance(name, str)]
            for name in names:
                self.index(name, None, domain.span)
            kinds = {kind for name in names if (kind := self.kind(name)) is not None}
            if len(kinds) > 1:
                raise _error(
                    "this set mixes outputs and inputs",
                    "names of outputs, or names of inputs",
                    f"both: {_listed(names)}",
                    "split it into two sets",
                    domain.span,
                )
            found.append(kinds.pop() if kinds else None)
        return tuple(found)

    def check(self, index: Index, scope: Scope, kind: EntryKind | None) -> None:
        """A name must be declared; an index over names of outputs cannot be one of inputs."""
        name = index.quoted
        if name is not None:
            if name in scope and name not in self.outputs and name not in self.inputs:
                raise _error(
                    f"'{name}' is an index, not a name",
                    f"{name}, without quotes",
                    f'"{name}"',
                    "leave the quotes out",
                    index.span,
                )
            self.index(name, kind, index.span)
        held = scope.get(index.name or "")
        if kind is not None and held is not None and kind != held:
            raise _error(
                f"index '{index.name}' runs over names of {held}",
                f"an index of {kind}",
                f"one of {held}",
                f"write {_KINDS[held][1]}[{index.name}], or bind another index",
                index.span,
            )

    def check_alone(self, indices: Sequence[Index], span: Span | None) -> None:
        """A name says which input is meant: no axis is left to be given."""
        for index in indices if len(indices) > 1 else ():
            if index.quoted is not None:
                raise _error(
                    "a name stands beside other indices",
                    f'["{index.quoted}"] alone, or one integer for each axis',
                    f"{len(indices)} indices",
                    "leave the others out",
                    span,
                )

    def check_fit(self, kind: EntryKind, count: int, shape: tuple[int, ...] | None = None) -> None:
        """A network with another number of entries than there are names is refused."""
        names = self.table(kind)
        if not names or count == len(names):
            return
        shown = f"{count}" if shape is None else f"{count}, of shape {shape}"
        raise _error(
            f"the network has another number of {kind} than this property names",
            f"{len(names)}: {_listed(names)}",
            shown,
            f"name every one of the network's {kind}, in their order",
            self.spans[kind],
        )

    def _unknown(self, name: str, kind: EntryKind | None, span: Span | None) -> FormulaError:
        here = _KINDS[kind][0] if kind else "an output or input"
        known = [*self.table(kind)] if kind else [*self.outputs, *self.inputs]
        other = self.kind(name)
        if kind is not None and other is not None:
            article, vector = _KINDS[other]
            return _error(
                f"'{name}' is {article}, not {here}",
                f"{here}" + (f": {_listed(known)}" if known else ""),
                f"'{name}'",
                f'write {vector}["{name}"]',
                span,
            )
        example = "inputs weight, year" if kind == "inputs" else "outputs cat, dog"
        values = [entry for entry in known if entry.startswith(f"{name}=")]
        if values:  # a column of a table, which has an entry for each of its values
            fix = f"write each value, as {_listed(values)}; to say that two points are alike in "
            fix += 'all but some: (forall i in inputs where i != "...": x2[i] == x[i])'
        elif known:
            fix = suggest(name, _near(name, known))
        else:
            fix = f"declare names: '{example}', in their order"
        return _error(f"unknown name '{name}'", f"{here} that is declared", f"'{name}'", fix, span)


def check_declarations(specification: Specification) -> None:
    """What can be wrong with the names themselves."""
    kinds = [declared.kind for declared in specification.names]
    for declared in specification.names:
        if kinds.count(declared.kind) > 1:
            raise declared_twice(declared.kind, declared.span)
        if not declared.names:
            raise _error(
                f"'{declared.kind}' has no names",
                "a name for each of them",
                "none",
                f"name them, or leave '{declared.kind}' out",
                declared.span,
            )
        seen = set[str]()
        for name in declared.names:
            if not is_name(name):
                raise _error(
                    "this cannot be a name",
                    f"1 to {MAX_NAME} printable characters, neither '\"' nor a backslash",
                    f"{name[:20]!r}" + ("..." if len(name) > 20 else ""),
                    "choose another name",
                    declared.span,
                )
            if name in seen:
                raise _error(
                    f"'{name}' is named twice",
                    f"a name of its own for each of the {declared.kind}",
                    f"'{name}' again",
                    "rename one of them",
                    declared.span,
                )
            seen.add(name)
        count = specification.outputs
        if declared.kind == "outputs" and count is not None and count != len(declared.names):
            Names.of(specification).check_fit("outputs", count)


def declared_twice(kind: EntryKind, span: Span | None) -> FormulaError:
    return _error(
        f"'{kind}' is declared twice",
        "one declaration",
        "a second one",
        "leave one of them out",
        span,
    )


def is_name(text: str) -> bool:
    """
    >>> is_name("T-shirt/top"), is_name('a "quoted" one')
    (True, False)
    """
    fits = 0 < len(text) <= MAX_NAME and text == text.strip()
    return fits and text.isprintable() and '"' not in text and "\\" not in text


def declare(specification: Specification, kind: EntryKind, names: Sequence[str]) -> Specification:
    """The same with names that were given in Python; those of the text must be the same."""
    given = NameDeclaration(kind, tuple(names))
    for declared in specification.names:
        if declared.kind == kind:
            if declared != given:
                raise _error(
                    f"the text names other {kind}",
                    _listed(given.names),
                    _listed(declared.names),
                    f"name the {kind} in the text as they are named elsewhere, or leave them out "
                    "of it",
                    declared.span,
                )
            return specification
    outputs = len(given.names) if kind == "outputs" else specification.outputs
    return replace(specification, outputs=outputs, names=(*specification.names, given))


def _listed(names: Sequence[str] | Mapping[str, int]) -> str:
    shown = list(names)[:_SHOWN]
    return ", ".join(shown) + (f", ... ({len(names)} in all)" if len(names) > _SHOWN else "")


def _near(name: str, known: list[str]) -> list[str]:
    """All of them, or of very many the nearest."""
    return known if len(known) <= _SHOWN else get_close_matches(name, known) or known[:_SHOWN]


def _ambiguous(name: str, span: Span | None) -> FormulaError:
    return _error(
        f"'{name}' is both an output and an input here",
        'a name of one of them; y["..."] and x["..."] say which is meant',
        f"'{name}', at different indices",
        "rename one of them",
        span,
    )


def _error(what: str, expected: str, found: str, fix: str, span: Span | None) -> FormulaError:
    return FormulaError(
        what, expected=expected, found=found, fix=fix, where=None if span is None else str(span)
    )
