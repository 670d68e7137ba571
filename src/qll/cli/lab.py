"""``qll lab``: a page to try formulas in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def lab(
    port: Annotated[int, typer.Option(help="0 for any free port.", min=0, max=65535)] = 8765,
    static: Annotated[
        Path | None, typer.Option(help="Write one page that needs no server, and stop.")
    ] = None,
) -> None:
    """Type a formula, move hardness and epsilon, and see what every logic makes of it.

    The page is served to this machine alone. Example: qll lab, or qll lab --static lab.html
    """
    import torch

    torch.set_num_threads(1)  # small pictures: more threads would wait for each other
    if static is not None:
        from qll.reports.lab_page import write_static

        typer.echo(write_static(static))
        return
    from qll.reports.lab_server import LabServer

    with LabServer(port) as server:
        typer.echo(f"{server.address}  (Ctrl-C to stop)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("Stopped.")


def register(app: typer.Typer) -> None:
    app.command()(lab)
