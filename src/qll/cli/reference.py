"""The page of all commands, from the program itself: ``python -m qll.cli.reference``."""

from __future__ import annotations

from typing import Any

from qll.cli.groups import GROUPS

WIDTH = 90
HEAD = """# Commands

What `qll COMMAND --help` says, made by `python -m qll.cli.reference > docs/commands.md`.
"""


def reference() -> str:
    import typer.main

    from qll.cli.main import build_app

    root: Any = typer.main.get_command(build_app())
    parts = [HEAD]
    for title, names in GROUPS.items():
        known = [name for name in names if name in root.commands]
        if known:
            parts.append(f"## {title}\n")
        for name in known:
            parts += _command(root.commands[name], f"qll {name}", "###")
    return "\n".join(parts)


def _command(command: Any, path: str, level: str) -> list[str]:
    context = command.make_context(path, [], resilient_parsing=True, max_content_width=WIDTH)
    context.terminal_width = WIDTH
    parts = [f"{level} {path}\n", f"```\n{command.get_help(context).rstrip()}\n```\n"]
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        parts += _command(inner, f"{path} {name}", level + "#")
    return parts


if __name__ == "__main__":
    import sys

    sys.stdout.write(reference())
