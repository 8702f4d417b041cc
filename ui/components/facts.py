"""A prediction in words, and its training facts: table, graph and bars with one selection.

The place of the selected fact is in the address under `fact`. A click in one of them changes the
address, and the others are drawn again.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st
from markupsafe import Markup, escape

from clew.biolink import is_denied, page_of
from clew.names import average_notes
from clew.runs.influence_forms import ESTIMATE, SELF_INFLUENCE, Form
from clew.runs.reading.facts import FactPath, answer, evidence, scored, summary
from clew.runs.reading.metrics import number_text
from clew.runs.reading.reports import ReportHead
from clew.runs.sharing.explanation import SharedExplanation
from clew.runs.sharing.html_report import html_report
from clew.runs.sharing.trapi import trapi_json
from clew.ui.components import basics, glossary, graph, influence_charts, tables
from clew.ui.components.explanations import checkpoint_columns, part_columns, strongest
from clew.ui.components.graph import NO_KINDS

MAX_ROWS = 1000
NUM_BARS = 16
_EFFECT = (
    '<p><b class="{kind}">{symbol} {effect}</b> '
    '<span class="clew-muted">· {column} {value} · rank {rank} on its side</span></p>'
)


def selected(facts: pd.DataFrame) -> int | None:
    """Return the place of the selected fact, None if it is not among `facts`."""
    place = basics.address_number("fact")
    return place if place is not None and (facts["place"] == place).any() else None


def _select(place: int | None) -> None:
    basics.write_address("fact", place)
    st.session_state["fact-version"] = st.session_state.get("fact-version", 0) + 1


def table(facts: pd.DataFrame, column: str, form: Form, *, key: str) -> None:
    """Show the facts in a table; a click on a row selects its fact."""
    shown = strongest(facts, column, MAX_ROWS)
    tables.tick_one(
        _frame(shown, column, form),
        [int(place) for place in shown["place"]],
        key=f"{key}-table-{st.session_state.get('fact-version', 0)}",
        chosen=selected(shown),
        take=_select,
        alt="Training facts by their influence",
        column_config=_columns(column, form),
        most=graph.HEIGHT,
        placeholder="–",
    )
    if len(shown) < len(facts):
        st.caption(
            f"The {len(shown):,} strongest of {len(facts):,} facts; search or filter for others."
        )
    tables.export(facts, "facts.csv")


def _frame(facts: pd.DataFrame, column: str, form: Form) -> pd.DataFrame:
    values = facts[column].to_numpy(float)
    frame = pd.DataFrame(
        {
            "Rank": facts["rank"].to_numpy(),
            "±": [basics.sign_symbol(value) for value in values],
            glossary.score(column, form).label: values,
            "Head": facts["head"].astype(str).to_numpy(),
            "Relation": facts["relation"].astype(str).to_numpy(),
            "Tail": facts["tail"].astype(str).to_numpy(),
            "Hops": facts["hops"].to_numpy(),
        }
    )
    if "agreement" in facts:  # of an ensemble
        frame["Runs agree"] = facts["agreement"].to_numpy()
        frame["Spread"] = facts["spread"].to_numpy(float)
    if parts := part_columns(facts):
        frame["By part"] = facts[parts].to_numpy(float).round(6).tolist()
    if checkpoints := checkpoint_columns(facts):
        frame["By checkpoint"] = facts[checkpoints].to_numpy(float).round(6).tolist()
    return frame


def _columns(column: str, form: Form) -> dict[str, Any]:
    score = glossary.score(column, form)
    order = ", ".join(glossary.PARTS.values())
    return {
        "Rank": st.column_config.NumberColumn(
            width=54,
            help="Place among the facts of the same side: ▲ 1 helped the prediction most, ▼ 1 "
            "spoke most against it.",
        ),
        "±": st.column_config.TextColumn(
            width=30, help="▲ made the prediction more likely, ▼ less likely."
        ),
        "Head": st.column_config.TextColumn(width=112),
        "Relation": st.column_config.TextColumn(width=92),
        "Tail": st.column_config.TextColumn(width=112),
        "Hops": st.column_config.NumberColumn(width=46, help=glossary.HOPS),
        score.label: st.column_config.NumberColumn(format="%.4g", width=132, help=score.help),
        "Runs agree": st.column_config.TextColumn(width=72, help=glossary.RUNS_AGREE),
        "Spread": st.column_config.NumberColumn(format="%.2g", width=60, help=glossary.SPREAD),
        "By part": st.column_config.BarChartColumn(
            width=58, help=f"Share of each part of the model, in this order: {order}."
        ),
        "By checkpoint": st.column_config.BarChartColumn(
            width=68, help="Share of each checkpoint, the earliest first."
        ),
    }


def picture(
    test: pd.Series,
    facts: pd.DataFrame,
    column: str,
    *,
    number: int,
    key: str,
    kinds: Mapping[str, str],
) -> None:
    """Show the test triple with its strongest facts; a click on an edge selects its fact."""
    shown = strongest(facts, column, number)
    by_strength = shown[column].abs().sort_values(ascending=False, kind="stable").index
    place = selected(facts)
    graph.show(
        test,
        shown.loc[by_strength],
        column=column,
        selected=() if place is None else (place,),
        kinds=kinds,
        key=f"{key}-graph-{st.session_state.get('fact-version', 0)}",
        take=_select,
        alt="Graph of the test triple and its strongest training facts",
    )


def bars(facts: pd.DataFrame, column: str, form: Form) -> None:
    """Show the strongest facts of either sign as bars."""
    shown = strongest(facts, column, NUM_BARS)
    title = glossary.score(column, form).label
    chart = influence_charts.fact_bars(shown, column, title, selected(facts))
    alt = f"Bars: {column} of the strongest training facts"
    st.altair_chart(chart, width="stretch", alt=alt)


def details(facts: pd.DataFrame, column: str, form: Form) -> None:
    """Show how the selected fact's influence splits."""
    place = selected(facts)
    if place is None:
        st.caption("Click an edge of the graph or tick a row to see details of one fact.")
        return
    row: pd.Series = facts[facts["place"] == place].iloc[0]
    basics.show(
        '<div class="clew-card"><h3>{triple}</h3>{effect}</div>',
        triple=basics.triple(row["head"], row["relation"], row["tail"]),
        effect=effect(row, column, form, of="prediction"),
    )
    splits(row, form)


def effect(row: pd.Series, column: str, form: Form, *, of: str) -> Markup:
    """Return in words how a fact or a window changed a prediction, or whatever `of` names."""
    value = float(row[column])
    return basics.fill(
        _EFFECT,
        kind="clew-for" if value > 0 else "clew-against",
        symbol=basics.sign_symbol(value),
        effect=f"made the {of} more likely" if value > 0 else "made it less likely",
        column=glossary.score(column, form).label,
        value=number_text(value),
        rank=f"{int(row['rank']):,}",
    )


def splits(row: pd.Series, form: Form) -> None:
    """Show how an influence splits by part of the model and by checkpoint."""
    columns = row.to_frame().T
    left, right = st.columns(2)
    halves = (
        (left, f"{form.heading} by part of the model", part_columns(columns), True),
        (right, f"{form.heading} by checkpoint", checkpoint_columns(columns), False),
    )
    for place, title, found, by_part in halves:
        if found:
            split = influence_charts.split_frame(row, found, by_part=by_part)
            chart = influence_charts.share_bars(split, title)
            place.altair_chart(chart, width="stretch", alt=f"Bars: {title}")


CHECKPOINTS = "Saved states of the model over which the influence is summed."

_CARD = (
    '<div class="clew-card"><h2>{triple} <span class="clew-small clew-muted">{numbers}</span></h2>'
    '<p class="clew-small clew-ids">{ids}</p>'
    '<p>{answer} {evidence}</p><p class="clew-muted clew-small">{why} '
    '<span title="{meaning}">{form}</span></p></div>'
)
_NUMBER = '<span title="{help}">{label} {value}</span>'
_LINK = '<a href="{page}" target="_blank" rel="noreferrer">{text}</a>'


def card(
    test: pd.Series,
    facts: pd.DataFrame,
    paths: Sequence[FactPath],
    head: ReportHead,
    kinds: Mapping[str, str] = NO_KINDS,
) -> None:
    """Show what the model predicts, the numbers, and the reasons in sentences."""
    basics.show(
        _CARD,
        triple=basics.triple(test["head"], test["relation"], test["tail"]),
        numbers=_numbers(test, head),
        ids=identifiers(test, kinds),
        answer=answer(test, head.settings),
        evidence=evidence(test, facts, paths),
        why=summary(facts, scored(test, facts), head.train_size),
        form=f"{head.form.named}, an estimate.",
        meaning=f"{head.form.sentence} {ESTIMATE}",
    )
    if head.validation is not None:
        basics.note(head.validation.sentence)
    notes(head.settings)


def _numbers(test: pd.Series, head: ReportHead) -> Markup:
    form = head.form
    shown = [
        ("rank", test["rank"], glossary.RANK),
        ("model's score", test["score"], glossary.SCORE),
        (form.self_heading.lower(), test["self_influence"], SELF_INFLUENCE),
        ("checkpoints", len(head.checkpoints) or math.nan, CHECKPOINTS),
    ]
    return basics.join(
        [
            basics.fill(_NUMBER, label=label, value=number(float(value)), help=explanation)
            for label, value, explanation in shown
        ],
        " · ",
    )


def identifiers(test: pd.Series, kinds: Mapping[str, str]) -> Markup:
    """Return the identifiers of a triple's ends, with their kinds; empty if they add nothing.

    An identifier of a known database is a link to its page there.
    """
    ends = (
        _identifier(str(test[f"{end}_id"]), str(test[end]), kinds.get(str(test[f"{end}_id"]), ""))
        for end in ("head", "tail")
    )
    return basics.join([end for end in ends if end], " · ")


def _identifier(key: str, name: str, kind: str) -> Markup:
    page = page_of(key)
    shown = basics.fill(_LINK, page=page, text=key) if page else escape(key)
    parts = [shown] if page or key != name else []
    return basics.join([*parts, escape(kind)] if kind else parts, ", ")


def share(shown: SharedExplanation) -> None:
    """Offer an explanation as an HTML page and as a TRAPI message."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", shown.title).strip("-")[:80] or "explanation"
    page, message = "Report to mail (HTML)", "TRAPI message (JSON)"
    tables.download(page, lambda: html_report(shown), f"{name}.html", "text/html")
    if not is_denied(str(shown.test["relation_id"])):  # TRAPI cannot state a denial
        tables.download(message, lambda: trapi_json(shown), f"{name}.json", "application/json")
    st.caption("The report is one file: picture, paths, facts, how far to trust them.")


def notes(settings: Mapping[str, Any]) -> None:
    """Show a note if the numbers of an explanation are not those of the averaged parameters."""
    for note in average_notes(settings):
        basics.note(note)


def number(value: float | None) -> str:
    """Return a number in a readable form, a dash if there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if value.is_integer() else number_text(value, 3)
