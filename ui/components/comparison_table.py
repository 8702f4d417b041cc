"""The comparison as a table of values and their changes against the reference, and as files."""

from collections.abc import Mapping
from typing import Literal

import streamlit as st
from markupsafe import Markup

from clew.ui.components import exports, glossary, markup
from clew.ui.data.comparison import (
    Cell,
    Comparison,
    Group,
    delta_text,
    ratio_text,
    statistic_text,
    to_csv,
    to_latex,
    to_markdown,
)

Change = Literal["ratio", "delta", "both"]

_TABLE = (
    '<div class="clew-scroll" tabindex="0" role="region" aria-label="Comparison">'
    '<table class="clew-table">'
    "<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
)
_HEAD = '<th scope="col" title="{help}">{label}<br><span class="clew-unit">{unit}</span></th>'
_ROW = '<tr class="{kind}"><td>{name}<br><span class="clew-unit">{runs}</span></td>{cells}</tr>'
_CELL = '<td>{value}<br><span class="clew-change {kind}">{change}</span></td>'


def show(comparison: Comparison, change: Change, picked: Mapping[str, str]) -> None:
    """Show the table, and offer it as CSV, Markdown and LaTeX.

    `picked` says, for a metric with a curve, which of its values is shown.
    """
    st.html(html(comparison, change, picked))
    labels = {
        key: ", ".join(filter(None, (glossary.label(key), picked.get(key))))
        for key in comparison.metrics
    }
    with st.container(horizontal=True, vertical_alignment="center"):
        exports.button("CSV", to_csv(comparison, labels), "comparison.csv", "text/csv")
        text = to_markdown(comparison, labels)
        exports.button("Markdown", text, "comparison.md", "text/markdown")
        exports.button("LaTeX", to_latex(comparison, labels), "comparison.tex", "application/x-tex")
        st.caption(
            "Point at a picture: the toolbar at its corner saves it as PNG.", width="content"
        )


def html(comparison: Comparison, change: Change, picked: Mapping[str, str]) -> Markup:
    """Return the table as HTML; every name in it is escaped."""
    head = [markup.fill('<th scope="col">Variant<br><span class="clew-unit">runs</span></th>')]
    for key in comparison.metrics:
        words = glossary.words(key)
        below = " · ".join(filter(None, (words.unit, picked.get(key)))) or "\u00a0"
        head.append(markup.fill(_HEAD, help=words.help, label=words.label, unit=below))
    rows = [_row(comparison, group, change) for group in comparison.groups]
    return markup.fill(_TABLE, head=markup.join(head), body=markup.join(rows))


def _row(comparison: Comparison, group: Group, change: Change) -> Markup:
    number = len(group.run_ids)
    reference = group.label == comparison.reference
    cells = [
        _cell(comparison.cells[group.label, key], change, reference=reference)
        for key in comparison.metrics
    ]
    return markup.fill(
        _ROW,
        kind="clew-reference" if reference else "",
        name=group.label,
        runs=("reference · " if reference else "") + (f"{number} runs" if number > 1 else "1 run"),
        cells=markup.join(cells),
    )


def _cell(cell: Cell, change: Change, *, reference: bool) -> Markup:
    value = statistic_text(cell.value) or "–"
    if reference or cell.value is None:
        return markup.fill(_CELL, value=value, kind="", change="\u00a0")
    shown = {
        "ratio": ratio_text(cell),
        "delta": delta_text(cell),
        "both": f"{ratio_text(cell)}  {delta_text(cell)}".strip(),
    }[change]
    if cell.doubt:
        doubtful = f"{shown} · {cell.doubt}"
        return markup.fill(_CELL, value=value, kind="clew-muted", change=doubtful)
    better = cell.better
    symbol = "" if better is None else "✓ " if better else "✗ "
    kind = "" if better is None else "clew-for" if better else "clew-against"
    return markup.fill(_CELL, value=value, kind=kind, change=f"{symbol}{shown}" or "\u00a0")
