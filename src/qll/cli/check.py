"""``qll check``: a rule, a network and data before any work is done."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qll.cli.answers import JsonFile
from qll.cli.completion import complete_data, complete_rule
from qll.cli.doctor import report
from qll.cli.options import DATA_HELP, Features, Target, data_options, parse_settings


def check(
    rule: Annotated[
        str,
        typer.Argument(
            metavar="RULE", autocompletion=complete_rule, help="A property or a .qll file."
        ),
    ],
    network: Annotated[Path | None, typer.Option(help="An ONNX file.")] = None,
    data: Annotated[str | None, typer.Option(autocompletion=complete_data, help=DATA_HELP)] = None,
    target: Target = "",
    features: Features = "",
    data_dir: Annotated[str | None, typer.Option(help="Where the data files are.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter: --set epsilon=0.1.")
    ] = None,
    out: JsonFile = None,
) -> None:
    """Look before you train or prove: does the rule fit the network, can it be certified, is its
    premise ever true on these data, how far does the region reach, is it broken already, how long
    training (without --network) and proofs would take. Exit code 1: something is wrong.

    Example: qll check rule.qll --network net.onnx --data cars.csv
    """
    from qll.checkup import Subject, examine
    from qll.data import load as load_data
    from qll.kernels.announce import announced

    held = None if data is None else load_data(data, data_dir, **data_options(target, features))
    with announced(lambda text: typer.echo(text, err=True)):
        report(examine(Subject(rule, network, held, parse_settings(settings))), out)


def register(app: typer.Typer) -> None:
    app.command()(check)
