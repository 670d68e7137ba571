"""The named properties: one ``.qll`` text file each, found by their file names."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from qll.errors import InputError
from qll.exchange.recognition import is_query
from qll.formula.domain import Domain
from qll.formula.nodes import ParameterDeclaration
from qll.formula.parse import documentation, parse_specification
from qll.registry import suggest

if TYPE_CHECKING:  # they take a second to import, for torch: a list of names needs neither
    from qll.data.schema import Schema
    from qll.property import Property


def names() -> list[str]:
    """The properties that ship with the package."""
    files = resources.files("qll.properties").iterdir()
    return sorted(f.name.removesuffix(".qll") for f in files if f.name.endswith(".qll"))


def purposes() -> dict[str, str]:
    """What each of them is for, in a sentence: how its text begins."""
    found = {}
    for name in names():
        sentence = documentation(_read(name)[0]).split(". ")[0].replace("\n", " ").rstrip(".")
        found[name] = sentence.partition(": ")[2] or sentence
    return found


def load(
    name_or_path: str | Path,
    *,
    outputs: int | Sequence[str] | None = None,
    inputs: Sequence[int] | Sequence[str] | None = None,
    schema: Schema | None = None,
    **parameters: float,
) -> Property:
    """A shipped property by name, a ``.qll`` file or a VNN-LIB query by path; parameters are set.

    ``outputs`` is the network's number of outputs, or their names; ``inputs`` the shape of an
    input, or the names of the inputs. Without them the text and the network say it. The ``schema``
    of a table gives both, the box that ``domain`` stands for, and the units in which soft readings
    count.

    >>> load("classification-robustness", epsilon=0.2).value_of("epsilon")
    0.2
    """
    text, source = _read(name_or_path)
    return _property(text, source, outputs, inputs, parameters, schema)


def load_fitting(name_or_path: str | Path, fits: int | Schema, **parameters: float) -> Property:
    """For a network of so many outputs, or for the table of a schema."""
    if isinstance(fits, int):
        return load(name_or_path, outputs=fits).with_parameters(**parameters)
    return load(name_or_path, schema=fits).with_parameters(**parameters)


def declared_parameters(name_or_path: str | Path) -> tuple[ParameterDeclaration, ...]:
    """What a property declares, before it is known what its names stand for."""
    text, source = _read(name_or_path)
    return parse_specification(text, name=source, checked=False).parameters


def parse(
    text: str,
    *,
    outputs: int | Sequence[str] | None = None,
    inputs: Sequence[int] | Sequence[str] | None = None,
    name: str = "<text>",
    schema: Schema | None = None,
    **parameters: float,
) -> Property:
    """A property from text; ``name`` is what errors call it. The rest as for ``load``.

    >>> parse("y[0] >= y[1]", outputs=2).sources
    frozenset({'y'})
    >>> parse('y["cat"] >= y["dog"]', outputs=["cat", "dog"])
    outputs cat, dog;
    y["cat"] >= y["dog"]
    """
    return _property(text, name, outputs, inputs, parameters, schema)


def _property(
    text: str,
    name: str,
    outputs: int | Sequence[str] | None,
    inputs: Sequence[int] | Sequence[str] | None,
    parameters: dict[str, float],
    schema: Schema | None,
) -> Property:
    if not isinstance(text, str):
        raise InputError(
            "the text of a property is no text",
            expected="a str",
            found=type(text).__name__,
            fix="pass the rule as it is written, or use qll.load for a name or a file",
        )
    if schema is not None:
        return _of_schema(text, name, parameters, schema)
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
    from qll.property import Property

    specification = parse_specification(text, name=name, outputs=outputs, inputs=named)
    count = outputs if outputs is None or isinstance(outputs, int) else len(outputs)
    return Property(specification, parameters, count, shape or None)


def _of_schema(text: str, name: str, parameters: dict[str, float], schema: Schema) -> Property:
    """The text over the inputs and outputs of a table, by their names, in their units."""
    from qll.property import Property

    specification = parse_specification(
        text,
        name=name,
        outputs=schema.output_names,
        inputs=schema.input_names,
        domain=Domain(
            schema.lower, schema.upper, schema.integers, schema.groups, schema.input_scales
        ),
    )
    prop = Property(specification, parameters, len(schema.output_names))
    scales = {"x": schema.input_scales}
    if schema.task == "regression":
        scales["y"] = schema.output_scales
    return prop.with_scales(**scales)


def _read(name_or_path: str | Path) -> tuple[str, str]:
    path = Path(name_or_path)
    known = names()
    if str(name_or_path) in known:
        file = resources.files("qll.properties").joinpath(f"{name_or_path}.qll")
        return file.read_text(encoding="utf-8"), str(name_or_path)
    if is_query(str(path)):
        from qll.exchange.files import read
        from qll.exchange.rules import rule_of

        return rule_of(read(path)), path.name
    if path.is_dir():
        raise InputError(
            f"'{name_or_path}' is a folder",
            expected="the name of a shipped property, a .qll file or a VNN-LIB query",
            found="a folder",
            fix="give one of the files in it",
        )
    named = len(path.parts) == 1  # with a folder before it, it is a file that is not there
    if path.suffix != ".qll" and named and not path.is_file():
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
