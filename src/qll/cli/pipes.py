"""How a program is ended from outside: by a reader that has gone, or by Ctrl-C.

``qll ... | head``: when the reader of the output has gone, the program ends without a word.

Its exit code is then that of a program that the signal SIGPIPE ended, as of any other in a pipe:
neither 0, which would say that all was done and holds, nor one of those that stand for an answer.
The signal itself stays ignored, since servers and clusters write to readers that come and go.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from typer.core import TyperCommand

from qll.errors import RunError

EXIT_PIPE = 128 + 13  # SIGPIPE, which not every platform has


class ReaderGoneError(Exception):
    """Standard output is closed. No OSError, which typer would turn into the exit code 1."""


class StoppedError(Exception):
    """Ctrl-C. Versions of typer differ in what they make of it, and say nothing."""


def flush(last: str = "") -> None:
    """Write what is buffered; the interpreter would complain if only its own last try failed."""
    for stream in (sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None:  # None if it was closed before the program began
                stream.write(last)
                stream.flush()
        except BrokenPipeError as error:
            raise ReaderGoneError from error


def turn_off() -> None:
    """Nothing more is written, not even what is buffered still."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            try:
                stream.flush()
            except BrokenPipeError:
                os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class Piped:
    """A command, or a group of them, whose output may end early."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:  # where --help is printed
        return _watched(super().make_context, *arguments, **options)  # type: ignore[misc]

    def invoke(self, *arguments: Any, **options: Any) -> Any:
        return _watched(super().invoke, *arguments, **options)  # type: ignore[misc]


class PipedCommand(Piped, TyperCommand):
    """The command of a program that has but one."""


def _watched(call: Any, *arguments: Any, **options: Any) -> Any:
    try:
        return call(*arguments, **options)
    except BrokenPipeError as error:
        flush("\n")  # a stream that broke breaks again; if none does, it was another pipe
        raise RunError(
            "a process that this one was speaking to has ended",
            expected="an answer",
            found=str(error),
            fix="run the command again; what is finished is kept",
        ) from error
    except KeyboardInterrupt as error:
        raise StoppedError from error
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # rich's answer to one of its own
            raise ReaderGoneError from ended
        raise
