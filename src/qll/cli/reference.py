"""The page of all commands, from the program itself: ``python -m qll.cli.reference``."""

from __future__ import annotations

from typing import Any

from qll.cli.groups import GROUPS

WIDTH = 90
HEAD = r"""# Commands

What `qll COMMAND --help` says, made by `python -m qll.cli.reference > docs/commands.md`.

Every command takes two options. `--json FILE` also writes the answer as JSON; `--json -` prints it,
and nothing else, on standard output. `--quiet` prints errors alone. The exit code says what came
out, the same for all commands:

| code | |
|---|---|
| 0 | done; all that was asked holds |
| 1 | looked, and something is wrong (`check`, `doctor`; `record`: a run differs) |
| 2 | wrong use: an option, a file or a rule, told in three lines |
| 10 | falsified |
| 11 | unknown, or a target that is not met |
| 12 | not confirmed by the checker, or runs that failed |
| 13 | runs that are being made elsewhere |
| 130 | interrupted |
| 141 | the reader of the output has gone (`qll laws \| head`) |

A VNN-LIB query ends with 0 whatever its answer is, as that standard asks.
"""


def reference() -> str:
    import typer.main

    from qll.cli.main import build_app
    from qll.cli.solver import build_solver

    root: Any = typer.main.get_command(build_app())
    parts = [HEAD]
    for title, names in GROUPS.items():
        known = [name for name in names if name in root.commands]
        if known:
            parts.append(f"## {title}\n")
        for name in known:
            parts += _command(root.commands[name], f"qll {name}", "###")
            if name == "verify":
                solver: Any = typer.main.get_command(build_solver())
                parts += _command(solver, "qll verify", "####", "qll verify of a VNN-LIB query")
    return "\n".join(parts)


def _command(command: Any, path: str, level: str, title: str = "") -> list[str]:
    context = command.make_context(path, [], resilient_parsing=True, max_content_width=WIDTH)
    context.terminal_width = WIDTH
    parts = [f"{level} {title or path}\n", f"```\n{command.get_help(context).rstrip()}\n```\n"]
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        parts += _command(inner, f"{path} {name}", level + "#")
    return parts


if __name__ == "__main__":
    import sys

    sys.stdout.write(reference())
