"""``qll lab``: a page to try formulas in, or a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qll.cli.answers import JsonFile, store
from qll.cli.completion import complete_data, complete_rule
from qll.cli.options import DATA_HELP, Features, Target, data_options, parse_settings

if TYPE_CHECKING:
    from qll.reports.lab_network import NetworkLab


def lab(
    prop: Annotated[
        str | None,
        typer.Argument(
            metavar="[RULE]",
            autocompletion=complete_rule,
            help="With --network: a rule with epsilon.",
        ),
    ] = None,
    network: Annotated[
        Path | None, typer.Option(help="An ONNX file: watch one region of it instead.")
    ] = None,
    data: Annotated[str | None, typer.Option(autocompletion=complete_data, help=DATA_HELP)] = None,
    target: Target = "",
    features: Features = "",
    data_dir: Annotated[str | None, typer.Option(help="Where the data files are.")] = None,
    port: Annotated[int, typer.Option(help="0 for any free port.", min=0, max=65535)] = 8765,
    static: Annotated[
        Path | None, typer.Option(help="Write one page that needs no server, and stop.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter: --set epsilon=0.1.")
    ] = None,
    json_path: JsonFile = None,
) -> None:
    """Type a formula, move hardness and epsilon, and see what every logic makes of it. With a
    network and data: drag epsilon around a data point, and watch bounds, attack and verdict.

    The page is served to this machine alone.

    Example: qll lab, or qll lab not-both --network net.onnx --data dice-rendered
    """
    import torch

    torch.set_num_threads(1)  # small pictures: more threads would wait for each other
    watched = None
    if prop is not None or network is not None or data is not None:
        table = data_options(target, features)
        watched = _watched(prop, network, data, data_dir, table, parse_settings(settings))
    if static is not None:
        from qll.reports.lab_page import write_static

        written = write_static(static)
        typer.echo(written)
        store(json_path, {"file": str(written)})
        return
    from qll.reports.lab_server import LabServer

    with LabServer(port, watched) as server:
        typer.echo(f"{server.address}  (Ctrl-C to stop)")
        store(json_path, {"address": server.address})
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("Stopped.")


def _watched(
    prop: str | None,
    network: Path | None,
    data: str | None,
    data_dir: str | None,
    table: dict[str, Any],
    settings: dict[str, float],
) -> NetworkLab:
    from qll.data import load as load_data
    from qll.errors import InputError
    from qll.networks import load as load_network
    from qll.properties import load_fitting
    from qll.reports.lab_network import NetworkLab

    if prop is None or network is None or data is None:
        missing = {"a RULE": prop, "--network": network, "--data": data}
        raise InputError(
            "the lab of a network needs a rule, a network and data",
            expected="qll lab RULE --network NET.onnx --data DATA",
            found="no " + " and no ".join(name for name, v in missing.items() if v is None),
            fix="give all three, or none for the lab of formulas",
        )
    handle, held = load_network(network), load_data(data, data_dir, **table)
    fits = handle.output_size if held.schema is None else held.schema
    return NetworkLab(handle, load_fitting(prop, fits, **settings), held)


def register(app: typer.Typer) -> None:
    app.command()(lab)
