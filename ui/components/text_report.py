"""The explanation of a text: the prompt with its continuation, and the training windows.

The place of the open window is in the address under `fact`, as that of a selected fact is.
"""

import math
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from clew.runs.influence_forms import ESTIMATE, SELF_INFLUENCE, Form
from clew.ui.components import (
    address,
    exports,
    facts,
    glossary,
    influence_charts,
    influence_controls,
    markup,
    palette,
    prediction,
    states,
    tables,
)
from clew.ui.data.influence import FactFilter, by_side, filter_rows, value_column
from clew.ui.data.windows import (
    MIN_SHARED_CHARACTERS,
    TextInfluenceReport,
    shared_passages,
    text_windows,
)

EXCERPT_CHARACTERS = 140
HEIGHT = 513
_CARD = (
    '<div class="clew-card"><div class="clew-text">{prompt}<mark>{continuation}</mark></div>'
    "<p>Explained: how likely the model finds the <b>marked</b> text after the words before it.</p>"
    '<p class="clew-muted">{summary}</p></div>'
)
_WINDOW = (
    '<div class="clew-card"><h2>Window {window}</h2>'
    '{effect}<p class="clew-muted">{place}</p>'
    '<div class="clew-text clew-window" tabindex="0" role="region" aria-label="Its text">'
    "{text}</div></div>"
)


def show(report: TextInfluenceReport, *, key: str) -> None:
    """Show an explanation; `key` is different for each one."""
    windows = text_windows(report)
    card(report, windows)
    numbers(report)
    if windows.empty:
        states.note(f"None of the {report.num_scored:,} scored training windows is listed.")
        return
    wanted = window_filter(windows)
    shown = filter_rows(windows, wanted, ["text"])
    if shown.empty:
        states.note(
            f"None of the {len(windows):,} listed training windows passes these filters; clear one "
            "of them."
        )
        return
    column = value_column(shown, cosine=wanted.cosine)
    shown, form = by_side(shown, column), report.form
    left, right = st.columns([1.15, 1])
    with left:
        table(shown, column, form, key=f"{key}-{hash(wanted)}")
        listed = windows.drop(columns="place").rename(columns={"influence": form.heading})
        exports.table(listed.rename(columns=exports.heading), "windows.csv")
    chosen = _chosen(shown)
    with right:
        reading(report, chosen, column)
    facts.splits(chosen, form)
    st.header("Where in the training text", anchor=False, help=glossary.PLACE)
    title = glossary.score(column, form).label
    chart = influence_charts.place_bars(shown, column, title, int(chosen["place"]))
    alt = f"Bars: {column} of the windows over their places in the training text"
    st.altair_chart(chart, width="stretch", alt=alt)


def card(report: TextInfluenceReport, windows: pd.DataFrame) -> None:
    """Show the continuation after its prompt, and how many windows are listed."""
    helping = int((windows["influence"] > 0).sum())
    markup.show(
        _CARD,
        prompt=report.prompt,
        continuation=report.continuation,
        summary=summary(report.num_windows, helping, len(windows) - helping),
    )


def summary(total: int, helping: int, opposing: int) -> str:
    """Return in a sentence how many windows of each sign are listed."""
    listed = [f"the {helping:,} that made it most likely (▲)"] if helping else []
    listed += [f"the {opposing:,} that made it least likely (▼)"] if opposing else []
    verb = "is" if helping + opposing <= 1 else "are"
    return f"Of {total:,} training windows, {' and '.join(listed) or 'none'} {verb} listed."


def numbers(report: TextInfluenceReport) -> None:
    """Show the numbers of the continuation, each with its meaning."""
    shown = [
        ("Loss [nats]", report.loss, glossary.TEXT_LOSS),
        (report.form.self_heading, report.self_influence, SELF_INFLUENCE),
        (
            "Windows scored",
            report.num_scored,
            "Parts of the training text whose influence was computed.",
        ),
        ("Checkpoints", len(report.steps) or math.nan, prediction.CHECKPOINTS),
    ]
    with st.container(horizontal=True):
        for label, value, explanation in shown:
            number = None if value is None else float(value)
            st.metric(label, prediction.number(number), help=explanation)
    st.caption(f"{report.form.sentence} {ESTIMATE}")
    for note in report.notes():
        states.note(note)


def window_filter(windows: pd.DataFrame) -> FactFilter:
    """Let a person narrow the windows down."""
    first, second, third = st.columns([2, 1.6, 1], vertical_alignment="bottom")
    text = first.text_input(
        "Search windows",
        key="factfind",
        bind="query-params",
        type="search",
        placeholder="part of the text",
    )
    with second:
        side = influence_controls.side()
    with third:
        cosine = influence_controls.cosine(windows)
    return FactFilter(text=text, side=side, cosine=cosine)


def _chosen(windows: pd.DataFrame) -> pd.Series:
    """Return the open window: the selected one, or else the first."""
    place = facts.selected(windows)
    row: pd.Series = windows[windows["place"] == place].iloc[0] if place else windows.iloc[0]
    return row


def table(windows: pd.DataFrame, column: str, form: Form, *, key: str) -> None:
    """Show the windows in a table; a click on a row opens its text."""
    places = [int(place) for place in windows["place"]]
    tables.tick_one(
        _frame(windows, column, form),
        places,
        key=f"{key}-windows",
        chosen=facts.selected(windows) or places[0],
        take=partial(address.write, "fact"),
        alt="Training windows by their influence",
        column_config=_columns(column, form),
        most=HEIGHT,
    )


def _frame(windows: pd.DataFrame, column: str, form: Form) -> pd.DataFrame:
    values = windows[column].to_numpy(float)
    texts = [" ".join(str(text).split())[:EXCERPT_CHARACTERS] for text in windows["text"]]
    return pd.DataFrame(
        {
            "±": [palette.sign_symbol(value) for value in values],
            glossary.score(column, form).label: values,
            "Text": texts,
            "Window": windows["window"].to_numpy(),
            "Rank": windows["rank"].to_numpy(),
        }
    )


def _columns(column: str, form: Form) -> dict[str, Any]:
    score = glossary.score(column, form)
    return {
        "±": st.column_config.TextColumn(
            width=30, help="▲ made the continuation more likely, ▼ less likely."
        ),
        score.label: st.column_config.NumberColumn(format="%.4g", width=138, help=score.help),
        "Text": st.column_config.TextColumn(width=370, help="How the window starts."),
        "Window": st.column_config.NumberColumn(width=70, help=glossary.PLACE),
        "Rank": st.column_config.NumberColumn(
            width=54,
            help="Place among the windows of the same side: ▲ 1 helped the continuation most, ▼ 1 "
            "spoke most against it.",
        ),
    }


def reading(report: TextInfluenceReport, row: pd.Series, column: str) -> None:
    """Show a window's whole text, its place, and the passages that it shares with the test."""
    text = str(row["text"])
    passages = shared_passages(text, report.prompt + report.continuation)
    markup.show(
        _WINDOW,
        window=f"{int(row['window']):,}",
        effect=facts.effect(row, column, report.form, of="continuation"),
        place=_place(report, row, len(passages)),
        text=markup.marked(text, passages),
    )


def _place(report: TextInfluenceReport, row: pd.Series, num_passages: int) -> str:
    first = int(row["first_token"])
    last = row.get("last_token")
    tokens = f"token {first:,} on" if pd.isna(last) else f"tokens {first:,} to {int(last):,}"
    shared = {0: "no passage", 1: "one passage, marked,"}.get(
        num_passages, f"{num_passages} passages, marked,"
    )
    length = f"of {MIN_SHARED_CHARACTERS} characters or more"
    return f"From {report.dataset}, {tokens}; it shares {shared} {length} with the text above."
