"""The named properties: one ``.qll`` text file each, found by their file names."""

from __future__ import annotations

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
    outputs: int | None = None,
    inputs: tuple[int, ...] | None = None,
    **parameters: float,
) -> Property:
    """A shipped property by name, or any ``.qll`` file by path, with its parameters set.

    >>> load("classification-robustness", epsilon=0.2).value_of("epsilon")
    0.2
    """
    text, source = _read(name_or_path)
    specification = parse_specification(text, name=source, outputs=outputs)
    return Property(specification, parameters, outputs, inputs)


def parse(
    text: str,
    *,
    outputs: int | None = None,
    inputs: tuple[int, ...] | None = None,
    name: str = "<text>",
    **parameters: float,
) -> Property:
    """A property from text.

    >>> parse("y[0] >= y[1]", outputs=2).sources
    frozenset({'y'})
    """
    return Property(
        parse_specification(text, name=name, outputs=outputs), parameters, outputs, inputs
    )


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
