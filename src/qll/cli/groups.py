"""``qll --help`` by what one wants to do."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

GROUPS = {
    "From a rule to a network that obeys it": ("demo", "train", "cycle", "repair", "tune"),
    "Look at a rule, a network, your data": ("show", "data", "check", "doctor", "lab"),
    "Find violations, prove that there are none": ("attack", "verify", "evaluate", "explain"),
    "Evidence and exchange": ("audit", "zoo", "export", "supports"),
    "The paper": ("reproduce", "record", "report", "figures", "laws"),
}
OTHERS = "More"


class GroupedCommands(TyperGroup):
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        left = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        shown = {name: command for name, command in left.items() if command and not command.hidden}
        width = max(len(name) for name in shown)
        for title, names in {**GROUPS, OTHERS: ()}.items():
            chosen = names or sorted(set(shown) - {n for group in GROUPS.values() for n in group})
            limit = formatter.width - width - 6
            rows = [
                (name.ljust(width), shown[name].get_short_help_str(limit))
                for name in chosen
                if name in shown
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
