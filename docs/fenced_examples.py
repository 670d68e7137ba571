"""For the site: doctests in docstrings are code, not quotations within quotations."""

from __future__ import annotations

from typing import Any

import griffe


def fenced(text: str) -> str:
    """Each run of lines from ``>>>`` to the next empty line between fences."""
    lines, inside = list[str](), False
    for line in text.splitlines():
        if line.lstrip().startswith(">>>") and not inside:
            lines.append("```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)


class FencedExamples(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
