"""The named properties: one ``.qll`` text file each, found by their file names."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from qll.errors import InputError
from qll.formula.parse import parse_specification
from qll.property import Property
from qll.registry import suggest


def names() -> list[str]:
    """The properties that ship with the package."""
    files = resources.files("qll.properties").iterdir()
    return sorted(f.name.removesuffix(".qll") for f in files if f.name.endswith(".qll"))


def load(
    name_or_path: str | Path,
    *,
    outputs: int | Sequence[str] | None = None,
    inputs: Sequence[int] | Sequence[str] | None = None,
    **parameters: float,
) -> Property:
    """A shipped property by name, or any ``.qll`` file by path, with its parameters set.

    ``outputs`` is the network's number of outputs, or their names; ``inputs`` the shape of an
    input, or the names of the inputs. Without them the text and the network say it.

    >>> load("classification-robustness", epsilon=0.2).value_of("epsilon")
    0.2
    """
    text, source = _read(name_or_path)
    return _property(text, source, outputs, inputs, parameters)


def parse(
    text: str,
    *,
    outputs: int | Sequence[str] | None = None,
    inputs: Sequence[int] | Sequence[str] | None = None,
    name: str = "<text>",
    **parameters: float,
) -> Property:
    """A property from text; ``name`` is what errors call it. The rest as for ``load``.

    >>> parse("y[0] >= y[1]", outputs=2).sources
    frozenset({'y'})
    >>> parse('y["cat"] >= y["dog"]', outputs=["cat", "dog"])
    outputs cat, dog;
    y["cat"] >= y["dog"]
    """
    return _property(text, name, outputs, inputs, parameters)


def _property(
    text: str,
    name: str,
    outputs: int | Sequence[str] | None,
    inputs: Sequence[int] | Sequence[str] | None,
    parameters: dict[str, float],
) -> Property:
    for option, given in (("outputs", outputs), ("inputs", inputs)):
        if isinstance(given, str):
            raise InputError(
                f"{option} is one word",
                expected="a number or a list of names" if option == "outputs" else "a list",
                found=f"'{given}'",
                fix=f"pass {option}=['{given}', ...], a name for each of them",
            )
    named = tuple(part for part in inputs or () if isinstance(part, str))
    shape = tuple(part for part in inputs or () if not isinstance(part, str))
    if named and shape:
        raise InputError(
            "inputs mixes names and sizes",
            expected="the shape of an input, or a name for each of them",
            found=str(tuple(inputs or ())),
            fix="pass one or the other",
        )
    specification = parse_specification(text, name=name, outputs=outputs, inputs=named)
    count = outputs if outputs is None or isinstance(outputs, int) else len(outputs)
    return Property(specification, parameters, count, shape or None)


def _read(name_or_path: str | Path) -> tuple[str, str]:
    path = Path(name_or_path)
    known = names()
    if str(name_or_path) in known:
        file = resources.files("qll.properties").joinpath(f"{name_or_path}.qll")
        return file.read_text(encoding="utf-8"), str(name_or_path)
    if path.suffix != ".qll" and not path.is_file():
        raise InputError(
            f"unknown property '{name_or_path}'",
            expected="the name of a shipped property, or the path of a .qll file",
            found=f"'{name_or_path}'",
            fix=suggest(str(name_or_path), known),
        )
    try:
        return path.read_text(encoding="utf-8"), path.name
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"the property file '{name_or_path}' cannot be read",
            expected="a text file in UTF-8",
            found=str(getattr(error, "strerror", None) or "bytes that are not UTF-8"),
            fix="check the path, or use a shipped property: 'qll show' lists them",
        ) from error


def describe(prop: Property) -> dict[str, Any]:
    """Name, purpose and parameters: what the command line and the docs tables show."""
    return {
        "name": prop.name,
        "documentation": prop.documentation,
        "parameters": {
            p.name: {"unit": p.unit, "default": p.default} for p in prop.specification.parameters
        },
    }
