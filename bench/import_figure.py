"""Draw which package imports which, as the source has it: ``docs/figures/imports.svg``.

    python bench/import_figure.py [--out FILE]

An arrow that follows from others is left out (a transitive reduction); imports inside functions
count. Packages stand as high as the longest way down from them.
"""

from __future__ import annotations

import argparse
import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "qll"
WIDTH, HEIGHT, BOX = 104, 74, (88, 26)
COLOURS = {"formula": "#2b6cb0", "networks": "#2f855a", "audit": "#b7791f"}


def arrows() -> dict[str, set[str]]:
    """Packages (and single modules beside them) by what they import."""
    found: dict[str, set[str]] = defaultdict(set)
    names = {path.stem if path.suffix else path.name for path in SOURCE.iterdir()}
    names -= {"__init__", "__pycache__", "py"}
    for path in sorted(SOURCE.rglob("*.py")):
        own = path.relative_to(SOURCE).with_suffix("").parts[0]
        if own == "__init__":
            continue
        targets = found[own]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                targets |= {name.name.split(".")[1] for name in node.names if "qll." in name.name}
            elif isinstance(node, ast.ImportFrom) and node.module == "qll":
                targets |= {alias.name for alias in node.names if alias.name in names}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("qll."):
                targets.add(str(node.module).split(".")[1])
        targets.discard(own)
    return dict(found)


def reduced(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    @cache
    def below(name: str) -> frozenset[str]:
        direct = graph.get(name, set())
        return frozenset(direct).union(*(below(target) for target in direct))

    return {
        name: {t for t in targets if not any(t in below(o) for o in targets if o != t)}
        for name, targets in graph.items()
    }


def draw(graph: dict[str, set[str]]) -> str:
    @cache
    def level(name: str) -> int:
        return 1 + max((level(target) for target in graph.get(name, ())), default=-1)

    rows: dict[int, list[str]] = defaultdict(list)
    for name in sorted(graph):
        rows[level(name)].append(name)
    few = reduced(graph)
    wide = max(len(row) for row in rows.values()) * WIDTH
    tall = len(rows) * HEIGHT
    place: dict[str, tuple[float, float]] = {}
    for height in sorted(rows):
        row = rows[height]
        # Above the middle of what is imported, as far as there is room.
        row.sort(key=lambda name: sum(place[t][0] for t in few[name]) / max(len(few[name]), 1))
        for number, name in enumerate(row):
            x = wide * (number + 0.5) / len(row)
            place[name] = (x, tall - height * HEIGHT - HEIGHT / 2)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tall}" '
        'font-family="sans-serif" font-size="12">',
        '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" '
        'markerHeight="6" orient="auto"><path d="M0 0L8 4L0 8z" fill="#718096"/></marker></defs>',
    ]
    for name, targets in sorted(few.items()):
        for target in sorted(targets):
            (x, y), (u, v) = place[name], place[target]
            y, v = y + BOX[1] / 2, v - BOX[1] / 2
            lines.append(
                f'<path d="M{x:.0f} {y:.0f}C{x:.0f} {y + 22:.0f} {u:.0f} {v - 22:.0f} '
                f'{u:.0f} {v:.0f}" fill="none" stroke="#a0aec0" marker-end="url(#end)"/>'
            )
    for name, (x, y) in sorted(place.items()):
        colour = COLOURS.get(name, "#4a5568")
        lines.append(
            f'<rect x="{x - BOX[0] / 2:.0f}" y="{y - BOX[1] / 2:.0f}" width="{BOX[0]}" '
            f'height="{BOX[1]}" rx="5" fill="white" stroke="{colour}"/>'
            f'<text x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle" fill="{colour}">{name}</text>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures" / "imports.svg")
    parser.add_argument("--quick", action="store_true", help="the same: it takes no time")
    parser.parse_args().out.write_text(draw(arrows()), encoding="utf-8")


if __name__ == "__main__":
    main()
