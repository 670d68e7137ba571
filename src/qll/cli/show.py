"""``qll show``: a property as text or LaTeX, with its parameters and slack."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from qll.cli.answers import JsonFile, fitted, store
from qll.cli.completion import complete_rule
from qll.cli.options import Features, Target, data_options, parse_settings

_NAME = 34  # columns of a name


class Form(enum.StrEnum):
    unicode = "unicode"
    ascii = "ascii"
    latex = "latex"


def show(
    name: Annotated[
        str | None,
        typer.Argument(
            autocompletion=complete_rule,
            help="A shipped property or a .qll file; without it, a list.",
        ),
    ] = None,
    form: Annotated[Form, typer.Option("--as", help="How to print the formula.")] = Form.unicode,
    logic: Annotated[
        str | None, typer.Option(help="Print the slack of this logic, e.g. qll:5.")
    ] = None,
    outputs: Annotated[int | None, typer.Option(help="Number of outputs of the network.")] = None,
    data: Annotated[str | None, typer.Option(help="A table that the rule speaks of.")] = None,
    target: Target = "",
    features: Features = "",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter: --set epsilon=0.1.")
    ] = None,
    out: JsonFile = None,
) -> None:
    """Print a property, or list the shipped ones.

    Example: qll show classification-robustness --as latex --logic qll:5
    """
    from qll.properties import load, purposes

    if name is None:
        found = purposes()
        for known, purpose in found.items():
            typer.echo(fitted(f"{known:{_NAME}}{purpose}", _NAME))
        store(out, found)
        return
    schema = None
    if data is not None:
        from qll.data import load as load_data

        schema = load_data(data, **data_options(target, features)).schema
    prop = load(name, outputs=outputs, schema=schema).with_parameters(**parse_settings(settings))
    text = prop.show(form.value)
    typer.echo(text, nl=False)
    sign = "%" if form is Form.latex else "#"
    said = {
        "name": prop.name,
        "text": text,
        "parameters": {p.name: prop.value_of(p.name) for p in prop.specification.parameters},
    }
    for declared in prop.specification.parameters:
        given, seen = prop.value_of(declared.name), prop.values[declared.name]
        converted = f", read as {seen:.6g}" if seen != given else ""
        typer.echo(f"{sign} {declared.name} = {given:g} ({declared.unit}){converted}")
    if logic is not None:
        below, above = prop.slack(logic, outputs=outputs)
        typer.echo(
            f"{sign} slack of {logic}: hard value in [soft - {below:.4f}, soft + {above:.4f}]"
        )
        said["slack"] = {"logic": logic, "below": below, "above": above}
    store(out, said)


def register(app: typer.Typer) -> None:
    app.command()(show)
