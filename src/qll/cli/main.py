"""Entry point. Commands are the modules of this package: each has ``register(app)``."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from pathlib import Path
from typing import Annotated

import typer

import qll
from qll.cli.groups import GroupedCommands
from qll.cli.solver import NAME, age, build_solver, query_arguments
from qll.errors import QllError

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
QUIET = "--quiet"
_OWN_QUIET = ("audit",)  # shows what fails all the same


def _version(value: bool) -> None:
    if value:
        typer.echo(qll.__version__)
        raise typer.Exit


def _name(value: bool) -> None:
    if value:
        typer.echo(NAME)
        raise typer.Exit


def _silence(context: typer.Context) -> None:
    """Nothing more is printed until the program ends; errors are, since that is at its end."""
    held = sys.stdout, sys.stderr
    nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - closed by speak

    def speak() -> None:
        sys.stdout, sys.stderr = held
        nowhere.close()

    context.call_on_close(speak)
    sys.stdout = sys.stderr = nowhere


def quiet_first(arguments: list[str]) -> list[str]:
    """--quiet is meant for the program, wherever it stands; one command has its own.

    >>> quiet_first(["show", "not-both", "--quiet"])
    ['--quiet', 'show', 'not-both']
    """
    if QUIET not in arguments or arguments[0] in (QUIET, *_OWN_QUIET):
        return arguments
    return [QUIET, *(word for word in arguments if word != QUIET)]


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
        context: typer.Context,
        version: Annotated[
            bool,
            typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
        ] = False,
        name: Annotated[
            bool,
            typer.Option("--name", callback=_name, is_eager=True, help="Show the solver's name."),
        ] = False,
        quiet: Annotated[
            bool,
            typer.Option(QUIET, help="Print errors only: exit code or --json FILE is the answer."),
        ] = False,
    ) -> None:
        if quiet:
            _silence(context)

    package = importlib.import_module("qll.cli")
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
        loaded = importlib.import_module(f"qll.cli.{module.name}")
        if hasattr(loaded, "register"):
            loaded.register(app)
    return app


def run() -> None:
    """``qll``: a user's mistake is three lines and exit code 2, never a traceback."""
    try:
        query = query_arguments(sys.argv[1:])
        if query is not None:
            build_solver()(query, prog_name="qll verify", obj=age())
        build_app()(quiet_first(sys.argv[1:]))
    except QllError as error:
        typer.echo(str(error), err=True)
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:
        typer.echo("Interrupted.", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        sys.exit(0)
