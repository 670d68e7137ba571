"""Entry point. Commands are the modules of this package: each has ``register(app)``."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import Annotated

import typer

import qll
from qll.cli.answers import QUIET, QUIET_HELP, quiet_first, quieten
from qll.cli.groups import GroupedCommands
from qll.cli.pipes import EXIT_PIPE, ReaderGoneError, StoppedError, flush, turn_off
from qll.cli.solver import NAME, age, build_solver, query_arguments
from qll.errors import QllError

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def _version(value: bool) -> None:
    if value:
        typer.echo(qll.__version__)
        raise typer.Exit


def _name(value: bool) -> None:
    if value:
        typer.echo(NAME)
        raise typer.Exit


def build_app() -> typer.Typer:
    app = typer.Typer(
        name="qll",
        cls=GroupedCommands,
        help="Neural networks that provably obey a written rule.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback()
    def root(
        version: Annotated[
            bool,
            typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
        ] = False,
        name: Annotated[
            bool,
            typer.Option("--name", callback=_name, is_eager=True, help="Show the solver's name."),
        ] = False,
        quiet: Annotated[bool, typer.Option(QUIET, callback=quieten, help=QUIET_HELP)] = False,
    ) -> None:
        import logging

        # It tells of its font cache at its first picture: nothing that a user can act on.
        logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)

    package = importlib.import_module("qll.cli")
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
        loaded = importlib.import_module(f"qll.cli.{module.name}")
        if hasattr(loaded, "register"):
            loaded.register(app)
    return app


def _call(words: list[str]) -> None:
    silent = words[:1] == [QUIET]
    query = query_arguments(words[1:] if silent else words)
    if query is not None:
        build_solver()([*words[:silent], *query], prog_name="qll verify", obj=age())
    build_app()(words)


def run() -> None:
    """``qll``: a user's mistake is three lines and exit code 2, never a traceback."""
    try:
        try:
            _call(quiet_first(sys.argv[1:]))
        finally:
            flush()
    except QllError as error:
        typer.echo(str(error), err=True)
        sys.exit(EXIT_USAGE)
    except (KeyboardInterrupt, StoppedError):
        typer.echo("Interrupted.", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except ReaderGoneError:
        turn_off()
        sys.exit(EXIT_PIPE)


if __name__ == "__main__":  # 'python -m qll.cli.main', as debuggers and profilers start programs
    run()
