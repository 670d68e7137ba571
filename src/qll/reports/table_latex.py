"""The tables as LaTeX, in the paper's two layouts: tabularray with booktabs and siunitx."""

from __future__ import annotations

from qll.reports.paper import Published
from qll.reports.style import BASELINE, data_name, number, property_name
from qll.reports.table_text import (
    Column,
    chance_text,
    columns_of,
    departure_mark,
    epsilon_text,
    metric_of,
)
from qll.reports.tables import Row, Stat, Table

_PREAMBLE = r"""% \usepackage{tabularray,siunitx,nicefrac,xcolor,amssymb,graphicx}
% \UseTblrLibrary{booktabs,siunitx}
\providecommand*\QllAbove{\textsuperscript{$\blacktriangle$}}
\providecommand*\QllBelow{\textsuperscript{$\blacktriangledown$}}
"""
_SPECIAL = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "ε": r"$\varepsilon$",
    "Ł": r"\L{}",
    "±": r"$\pm$",
    "²": r"$^2$",
    "∞": r"$\infty$",
    "▲": r"\QllAbove{}",
    "▼": r"\QllBelow{}",
}


def escape(text: str) -> str:
    """Any text, safe in LaTeX.

    >>> escape("50 % of a_b")
    '50 \\\\% of a\\\\_b'
    """
    return "".join(_SPECIAL.get(c, c) for c in text)


def latex(table: Table, layout: str) -> str:
    """One ``talltblr``. With published results each row is followed by a grey one that has them."""
    shown = table.short() if layout == "short" else table
    columns = columns_of(table, layout)
    best, notes = shown.best(), shown.notes()
    body: list[str] = []
    bold: list[int] = []
    grey: list[int] = []
    line = 2  # lines of the head
    for group in shown.experiments():
        body.append(r"  \midrule")
        heights = [1 + _has_published(shown, row) for row in group]
        for k, row in enumerate(group):
            if k and _family(row, layout) != _family(group[k - 1], layout):
                body.append(rf"  \cmidrule[lr]{{3-{3 + len(columns)}}}")
            line += 1
            if row in best:
                bold.append(line)
            lead = _lead(row, sum(heights), layout) if k == 0 else "& "
            cells = [_cell(shown, row, c, layout) for c in columns]
            body.append(f"  {lead}& {_logic(row, notes)} & {' & '.join(cells)} \\\\")
            if heights[k] == 2:
                line += 1
                grey.append(line)
                theirs = [
                    _published(shown.published(row, metric_of(row, c, layout))) for c in columns
                ]
                body.append(f"  & & \\quad published & {' & '.join(theirs)} \\\\")
    return "\n".join([_PREAMBLE, *_opening(shown, layout, bold, grey), *body, *_CLOSING]) + "\n"


_CLOSING = (r"  \bottomrule", r"\end{talltblr}", r"\end{table}")


def _opening(table: Table, layout: str, bold: list[int], grey: list[int]) -> list[str]:
    columns = columns_of(table, layout)
    caption = (
        "Mean and sample standard deviation over the seeds. Boldface: the best product of PAcc "
        "and CSat in its experiment."
    )
    if found := chance_text(table):
        caption += f" {found}"
    if table.paper:
        caption += (
            " Grey: the published values; ▲ and ▼ mark a mean outside of their standard deviation."
        )
    used = [chr(ord("a") + k) for k in range(26)]
    noted = [
        f"  note{{{used[2 + k]}}}={{{escape(note)}.}}," for k, note in enumerate(table.notes()[:24])
    ]
    # The first two columns span rows, and are not bold because their first row is.
    across = f"{{3-{3 + len(columns)}}}"
    styles = [f"  cell{{{','.join(map(str, bold))}}}{across}={{font=\\bfseries}},"] if bold else []
    first = "*{2}{Q[l, m, cmd=\\rotatebox{90}]}" if layout == "long" else "ll"
    styles += [f"  row{{{','.join(map(str, grey))}}}={{fg=gray}},"] if grey else []
    return [
        r"\begin{table}",
        r"\centering" + (r"\tiny" if layout == "long" else r"\scriptsize"),
        r"\sisetup{uncertainty-mode=separate, detect-weight=true, mode=text}",
        r"\begin{talltblr}",
        "[",
        f"  caption={{{escape(caption)}}},",
        f"  label={{tab:qll-results-{layout}}},",
        r"  note{a}={Neither proved nor refuted within the verifier's time limit.},",
        r"  note{b}={The baseline has no logic of its own: attacked with the QLL oracle.},",
        *noted,
        "]",
        "{",
        f"  colspec={{{first}l*{{{len(columns)}}}{{S[table-format=3.1(2.1)]}}}},",
        "  rowsep=1pt,",
        r"  row{1}={guard, font=\bfseries, mode=text, cmd=},",
        "  row{2}={guard, mode=text},",
        *styles,
        "}",
        r"  \toprule",
        *_head(columns),
    ]


def _head(columns: tuple[Column, ...]) -> list[str]:
    first = [rf"\SetCell[r=2]{{l}} {name}" for name in ("Constraint", "Dataset", "Logic")]
    second = ["", "", ""]
    rules = []
    for k, column in enumerate(columns):
        if not column.group:
            unit = r" (\unit{\percent})" if column.unit else ""
            first.append(rf"\SetCell[r=2]{{c}} {{{escape(column.title)}{unit}}}")
            second.append("")
            continue
        second.append(column.title + (r"\TblrNote{a}" if column.title == "unknown" else ""))
        if columns[k - 1].group == column.group:
            first.append("")
            continue
        width = sum(c.group == column.group for c in columns)
        title = _GROUPS.get(column.group, escape(column.group))
        first.append(rf"\SetCell[c={width}]{{c}} {title} (\unit{{\percent}})")
        rules.append(rf"\cmidrule[lr]{{{4 + k}-{3 + k + width}}}")
    return [
        f"  {' & '.join(first)} \\\\",
        f"  {' '.join(rules)}",
        f"  {' & '.join(second)} \\\\",
    ]


_GROUPS = {
    "CSec": r"CSec$_{\varepsilon}$",
    "CSat at ε": r"CSat$_{\varepsilon}$",
    "CSat at ε/2": r"CSat$_{\nicefrac{\varepsilon}{2}}$",
}


def _family(row: Row, layout: str) -> int:
    """The short table keeps STL and QLL together."""
    return min(row.family, 2) if layout == "short" else row.family


def _has_published(table: Table, row: Row) -> bool:
    return row.comparable and row.key in table.paper.rows


def _lead(row: Row, height: int, layout: str) -> str:
    top, _, bottom = epsilon_text(row.epsilon).partition("/")
    epsilon = rf"\nicefrac{{{top}}}{{{bottom}}}" if bottom else escape(top)
    words = escape(property_name(row.prop))
    if layout == "long":  # turned, because the table is wide: two short lines
        break_at = words.find(" ", len(words) // 2)
        first, last = (words[:break_at], words[break_at + 1 :]) if break_at > 0 else (words, "")
        name = rf"\shortstack[l]{{{first}\\{last} ($\varepsilon={epsilon}$)}}"
    else:
        name = rf"{{{words}\\($\varepsilon={epsilon}$)}}"
    return (
        rf"\SetCell[r={height}]{{l}} {name} & \SetCell[r={height}]{{l}} "
        rf"{escape(data_name(row.data))} "
    )


def _logic(row: Row, notes: list[str]) -> str:
    shown = escape(row.name)
    if row.hardness is not None:
        hard = number(row.hardness)
        plain = escape(row.name.replace(f" {hard}", "", 1))
        shown = f"${{}}_{{{hard if hard != '∞' else chr(92) + 'infty'}}}${plain}"
    marks = "".join(
        rf"\TblrNote{{{chr(ord('c') + notes.index(note))}}}"
        for note in row.notes
        if notes.index(note) < 24
    )
    return shown + marks


def _cell(table: Table, row: Row, column: Column, layout: str) -> str:
    metric = metric_of(row, column, layout)
    stat = row.stat(metric)
    if stat is None:
        return r"\text{n/a}"
    mark = departure_mark(row.counted_as_published(metric), table.published(row, metric))
    marks = {"": "", "▲": r"\QllAbove", "▼": r"\QllBelow"}[mark]
    note = r"\TblrNote{b}" if layout == "short" and _is_stand_in(row, column, metric) else ""
    return _number(stat, metric) + marks + note


def _is_stand_in(row: Row, column: Column, metric: str) -> bool:
    return row.logic == BASELINE and metric != column.metric


def _number(stat: Stat, metric: str) -> str:
    if metric == "RMSE":
        return f"{stat.mean:.3g}"
    return f"{stat.mean:.1f}" + ("" if stat.deviation is None else f"+-{stat.deviation:.1f}")


def _published(value: Published | None) -> str:
    return r"\text{n/a}" if value is None else f"{value.mean:.1f}+-{value.deviation:.1f}"
