"""Writes a comparison as CSV, Markdown or LaTeX."""

import re
from collections.abc import Callable, Mapping

from clew.runs.reading.comparison import Cell, Comparison, Statistic
from clew.runs.reading.metrics import number_text
from clew.spreadsheets import csv_text

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "·": r"$\cdot$",
}


def statistic_text(value: Statistic | None) -> str:
    """Return `mean ± deviation`, or only the mean if the values do not vary."""
    if value is None:
        return ""
    if value.deviation is None or value.deviation <= 1e-9 * abs(value.mean):
        return number_text(value.mean)
    return f"{number_text(value.mean)} ± {number_text(value.deviation, 2)}"


def ratio_text(cell: Cell) -> str:
    """Return the ratio, such as `×0.58`; empty if there is no ratio."""
    return "" if cell.ratio is None else f"×{cell.ratio:.3f}"


def delta_text(cell: Cell) -> str:
    """Return the signed difference; empty if there is none."""
    if cell.delta is None:
        return ""
    sign = "+" if cell.delta > 0 else "−" if cell.delta < 0 else "±"
    return f"{sign}{number_text(abs(cell.delta), 3)}"


def to_csv(comparison: Comparison, labels: Mapping[str, str]) -> str:
    """Return CSV with one row per group, and mean, deviation, ratio and delta of each metric.

    `labels` are the names of the metrics with their units.
    """
    parts = ("mean", "std", "ratio", "delta")
    header = ["group", "runs", "run_ids"]
    header += [f"{labels[metric]} {part}" for metric in comparison.metrics for part in parts]
    rows = []
    for group in comparison.groups:
        row: list[object] = [group.label, len(group.run_ids), " ".join(group.run_ids)]
        for metric in comparison.metrics:
            cell = comparison.cells[group.label, metric]
            value = cell.value
            row += [value and value.mean, value and value.deviation, cell.ratio, cell.delta]
        rows.append(row)
    return csv_text(header, rows)


def to_markdown(comparison: Comparison, labels: Mapping[str, str]) -> str:
    """Return a Markdown table of values, each followed by its ratio to the reference."""
    rows = _text_rows(comparison, labels, _escape_markdown)
    widths = "|".join(["---"] + ["---:"] * (len(rows[0]) - 1))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], f"|{widths}|", *lines[1:]]) + "\n"


def to_latex(comparison: Comparison, labels: Mapping[str, str]) -> str:
    """Return a LaTeX table (booktabs) of values, each followed by its ratio to the reference."""
    rows = _text_rows(comparison, labels, escape_latex)
    lines = [" & ".join(row) + r" \\" for row in rows]
    columns = "l" + "r" * (len(rows[0]) - 1)
    inner = [r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
    return "\n".join([rf"\begin{{tabular}}{{{columns}}}", *inner, r"\end{tabular}"]) + "\n"


def _text_rows(
    comparison: Comparison, labels: Mapping[str, str], escape: Callable[[str], str]
) -> list[list[str]]:
    header = ("variant", "runs", *(labels[metric] for metric in comparison.metrics))
    rows = [[escape(text) for text in header]]
    for group in comparison.groups:
        cells = (comparison.cells[group.label, metric] for metric in comparison.metrics)
        texts = [f"{statistic_text(cell.value)} {_behind(cell)}".strip() for cell in cells]
        rows.append([escape(text) for text in (group.label, str(len(group.run_ids)), *texts)])
    return rows


def _behind(cell: Cell) -> str:
    return f"({ratio_text(cell)})" if cell.ratio is not None else ""


def escape_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|#$~])", r"\\\1", text)
