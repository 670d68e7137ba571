"""How every command answers: in words, as JSON (``--json``), or by its exit code (``--quiet``).

``--json FILE`` writes the answer beside the words; ``--json -`` prints it instead of them, and
nothing else goes to standard output. ``--quiet`` prints errors alone. Both are held by turning the
streams away once, so that no command has to ask before it speaks.
"""

from __future__ import annotations

import errno
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

if TYPE_CHECKING:
    from rich.console import Console

QUIET = "--quiet"
QUIET_HELP = "Print errors only: exit code or --json is the answer."
_PIPE_WIDTH = 140
_held: list[tuple[TextIO, TextIO]] = []  # output and errors, before they were turned away


def json_option(said: str = "Write the answer as JSON here; - prints it alone.") -> Any:
    return typer.Option("--json", metavar="<path>", help=said, callback=_look)


def _look(context: typer.Context, path: Path | None) -> Path | None:
    """Before any work: an answer that cannot be written is not worth computing."""
    if path is None or context.resilient_parsing:
        return path
    if prints_json(path):
        _turn_away(context, errors=False)
    else:
        require_writable(path)
    return path


JsonFile = Annotated[Path | None, json_option()]


def prints_json(path: Path | None) -> bool:
    """Whether standard output is for the JSON alone."""
    return path is not None and str(path) == "-"


def store(path: Path | None, values: Any) -> None:
    """What ``--json`` asks for; called last, so that a full disk takes nothing but the file."""
    import json

    from qll.files import write_error, write_json

    if path is None:
        return
    values = strict(values)
    if prints_json(path):
        typer.echo(json.dumps(values), file=_held[-1][0] if _held else None)
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(path, error) from error
    write_json(path, values)


def strict(value: Any) -> Any:
    """Without what JSON has no word for: infinities and NaN are null, as other readers want it.

    >>> strict({"bound": [1.0, float("inf")]})
    {'bound': [1.0, None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    return [strict(item) for item in value] if isinstance(value, list | tuple) else value


def plain_console(*, highlight: bool = False) -> Console:
    """Where tables are printed: a file or a pipe has room for lines that a terminal has not."""
    from rich.console import Console

    console = Console(highlight=highlight)
    return console if console.is_terminal else Console(highlight=highlight, width=_PIPE_WIDTH)


def fitted(line: str, indent: int) -> str:
    """One line; on a terminal, as many as its width asks for, the later ones indented."""
    import shutil
    import textwrap

    if sys.stdout is None or not sys.stdout.isatty():
        return line
    width = max(shutil.get_terminal_size().columns, indent + 20)
    return textwrap.fill(
        line, width, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False
    )


def fail(text: str) -> None:
    """A part of the answer that is said in any case: beside JSON, and if quiet, as an error."""
    typer.echo(text, file=_held[-1][1] if _held else None)


def quieten(context: typer.Context, value: bool) -> None:
    """Nothing more is printed until the program ends; errors are, since that is at its end."""
    if value and not context.resilient_parsing:
        _turn_away(context, errors=True)


def _turn_away(context: typer.Context, *, errors: bool) -> None:
    if _held:
        return
    streams = sys.stdout, sys.stderr
    _held.append(streams)
    nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - closed by speak

    def speak() -> None:
        sys.stdout, sys.stderr = streams
        _held.clear()
        nowhere.close()

    # Of the root: a command whose other options are wrong never closes its own.
    context.find_root().call_on_close(speak)
    sys.stdout = nowhere
    if errors:
        sys.stderr = nowhere


def quiet_first(arguments: list[str]) -> list[str]:
    """--quiet is meant for the program, wherever it stands.

    >>> quiet_first(["show", "not-both", "--quiet"])
    ['--quiet', 'show', 'not-both']
    """
    if QUIET not in arguments:
        return arguments
    return [QUIET, *(word for word in arguments if word != QUIET)]


def require_writable(path: Path, *, folder: bool = False) -> None:
    """That a file (or a folder of files) can be written here, before there is anything to write:
    tried, since permissions alone do not tell."""
    from qll.files import write_error

    try:
        if path.exists() and path.is_dir() != folder:
            number = errno.ENOTDIR if folder else errno.EISDIR
            raise OSError(number, os.strerror(number))
        places = (path, *path.absolute().parents) if folder else path.absolute().parents
        place = next(place for place in places if place.exists())
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise write_error(path, error) from error
