"""Explanations of texts and image sequences: the test, and the training windows behind it."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from clew.runs.influence_forms import CHECKPOINT_PREFIX, ESTIMATE, PART_PREFIX, SELF_INFLUENCE, Form
from clew.runs.influence_report import SequenceInfluenceReport, TextInfluenceReport, TextWindow
from clew.runs.reading.facts import by_side, ranked
from clew.runs.reading.reports import ReportFiles
from clew.ui.components import basics, facts, glossary, influence_charts, influence_controls, tables
from clew.ui.components.explanations import FactFilter, Identity, filter_rows, value_column

MIN_SHARED_CHARACTERS = 8
Passage = tuple[int, int]


@st.cache_resource(max_entries=16, show_spinner="Reading the explanation …")
def _report(_files: ReportFiles, identity: Identity) -> TextInfluenceReport:
    assert _files.text is not None
    return TextInfluenceReport.read(_files.text)


def text_report_of(files: ReportFiles) -> TextInfluenceReport:
    """Return the explanation of a text."""
    return _report(files, files.identity)


def text_windows(report: TextInfluenceReport) -> pd.DataFrame:
    """Return the training windows behind a text, in the order of `by_side`.

    Columns: `place` and `rank` as of `ranked`, `influence`, `text`, `window` (its number),
    `first_token` and `last_token` (its place in the packed corpus), `cosine` if the report has it,
    and `part_*` and `checkpoint_*`.
    """
    frame = pd.DataFrame([_row(entry, report) for entry in report.listed])
    if frame.empty:
        return pd.DataFrame(columns=["place", "rank", "influence", "text", "window", "first_token"])
    return ranked(frame)


def _row(entry: TextWindow, report: TextInfluenceReport) -> dict[str, object]:
    row: dict[str, object] = {
        "influence": entry.influence,
        "text": entry.text,
        "window": entry.window,
        "first_token": entry.first_token,
    }
    length = report.settings.get("window")
    if isinstance(length, int):
        row["last_token"] = entry.first_token + length - 1
    if entry.cosine is not None:
        row["cosine"] = entry.cosine
    row |= {PART_PREFIX + part: value for part, value in entry.by_part.items()}
    steps = zip(report.steps, entry.by_checkpoint, strict=False)
    return row | {f"{CHECKPOINT_PREFIX}{step}": value for step, value in steps}


def sequence_windows(report: SequenceInfluenceReport) -> pd.DataFrame:
    """Return the training windows behind a prediction from frames, in the order of `by_side`.

    Columns: `rank` within the own side, `influence`, `cosine`, `last_frame`, `group`, `target`.
    """
    return pd.DataFrame(
        [(e.rank, e.influence, e.cosine, e.last_frame, e.group, e.target) for e in report.listed],
        columns=["rank", "influence", "cosine", "last_frame", "group", "target"],
    )


def shared_passages(text: str, other: str) -> list[Passage]:
    """Return the passages of `text` that also occur in `other`, from left to right.

    They have at least `MIN_SHARED_CHARACTERS` characters. Case is ignored, unless lower case
    changes the length of `text`.
    """
    lowered, wanted = text.lower(), other.lower()
    if len(lowered) != len(text):  # a lower-case letter can be longer: places would not fit
        lowered, wanted = text, other
    passages: list[Passage] = []
    start = 0
    while start <= len(lowered) - MIN_SHARED_CHARACTERS:
        end = start + MIN_SHARED_CHARACTERS
        if lowered[start:end] not in wanted:
            start += 1
            continue
        while end < len(lowered) and lowered[start : end + 1] in wanted:
            end += 1
        passages.append((start, end))
        start = end
    return passages


EXCERPT_CHARACTERS = 140
HEIGHT = 513
_TEXT_CARD = (
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


def show_text(report: TextInfluenceReport, *, key: str) -> None:
    """Show an explanation; `key` is different for each one."""
    windows = text_windows(report)
    text_card(report, windows)
    text_numbers(report)
    if windows.empty:
        basics.note(f"None of the {report.num_scored:,} scored training windows is listed.")
        return
    wanted = window_filter(windows)
    shown = filter_rows(windows, wanted, ["text"])
    if shown.empty:
        basics.note(
            f"None of the {len(windows):,} listed training windows passes these filters; clear one "
            "of them."
        )
        return
    column = value_column(shown, cosine=wanted.cosine)
    shown, form = by_side(shown, column), report.form
    left, right = st.columns([1.15, 1])
    with left:
        text_table(shown, column, form, key=f"{key}-{hash(wanted)}")
        listed = windows.drop(columns="place").rename(columns={"influence": form.heading})
        tables.export(listed.rename(columns=tables.heading), "windows.csv")
    chosen = _chosen(shown)
    with right:
        reading(report, chosen, column)
    facts.splits(chosen, form)
    st.header("Where in the training text", anchor=False, help=glossary.PLACE)
    title = glossary.score(column, form).label
    chart = influence_charts.place_bars(shown, column, title, int(chosen["place"]))
    alt = f"Bars: {column} of the windows over their places in the training text"
    st.altair_chart(chart, width="stretch", alt=alt)


def text_card(report: TextInfluenceReport, windows: pd.DataFrame) -> None:
    """Show the continuation after its prompt, and how many windows are listed."""
    helping = int((windows["influence"] > 0).sum())
    basics.show(
        _TEXT_CARD,
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


def text_numbers(report: TextInfluenceReport) -> None:
    """Show the numbers of the continuation, each with its meaning."""
    shown = [
        ("Loss [nats]", report.loss, glossary.TEXT_LOSS),
        (report.form.self_heading, report.self_influence, SELF_INFLUENCE),
        (
            "Windows scored",
            report.num_scored,
            "Parts of the training text whose influence was computed.",
        ),
        ("Checkpoints", len(report.steps) or math.nan, facts.CHECKPOINTS),
    ]
    with st.container(horizontal=True):
        for label, value, explanation in shown:
            number = None if value is None else float(value)
            st.metric(label, facts.number(number), help=explanation)
    st.caption(f"{report.form.sentence} {ESTIMATE}")
    for note in report.notes():
        basics.note(note)


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


def text_table(windows: pd.DataFrame, column: str, form: Form, *, key: str) -> None:
    """Show the windows in a table; a click on a row opens its text."""
    places = [int(place) for place in windows["place"]]
    tables.tick_one(
        _frame(windows, column, form),
        places,
        key=f"{key}-windows",
        chosen=facts.selected(windows) or places[0],
        take=partial(basics.write_address, "fact"),
        alt="Training windows by their influence",
        column_config=_columns(column, form),
        most=HEIGHT,
    )


def _frame(windows: pd.DataFrame, column: str, form: Form) -> pd.DataFrame:
    values = windows[column].to_numpy(float)
    texts = [" ".join(str(text).split())[:EXCERPT_CHARACTERS] for text in windows["text"]]
    return pd.DataFrame(
        {
            "±": [basics.sign_symbol(value) for value in values],
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
    basics.show(
        _WINDOW,
        window=f"{int(row['window']):,}",
        effect=facts.effect(row, column, report.form, of="continuation"),
        place=_place(report, row, len(passages)),
        text=basics.marked(text, passages),
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


FRAMES = "Frames of this window, then of training windows."
_SEQUENCE_CARD = (
    '<div class="clew-card"><h2>Window that ends at frame {frame} of {group}</h2>'
    "<p>The model predicts <b>{predicted} {unit}</b>; the target is <b>{true} {unit}</b>.</p>"
    '<p class="clew-muted">Of {count} training windows, those are listed that lowered (▲) or '
    "raised (▼) the error of this prediction most.</p></div>"
)


def show_sequence(report: SequenceInfluenceReport, picture: Path | None) -> None:
    """Show an explanation, with the picture of its frames if there is one."""
    basics.show(
        _SEQUENCE_CARD,
        frame=f"{report.last_frame:,}",
        group=report.group,
        predicted=f"{report.prediction:.4g}",
        true=f"{report.target:.4g}",
        unit=report.unit,
        count=f"{report.num_windows:,}",
    )
    sequence_numbers(report)
    windows = sequence_windows(report)
    headings = {str(name): tables.heading(str(name)) for name in windows}
    headings |= {"target": tables.heading("target", report.unit), "influence": report.form.heading}
    windows = windows.rename(columns=headings)
    if windows.empty:
        basics.note(f"None of the {report.num_scored:,} scored training windows is listed.")
        return
    left, right = st.columns([1, 1.2])
    with left:
        sequence_table(windows, report.form)
        tables.export(windows, "windows.csv")
    with right:
        if picture is None:
            basics.note("The picture of the frames is missing from this report.")
        else:
            st.image(str(picture), caption=FRAMES, alt=FRAMES)


def sequence_numbers(report: SequenceInfluenceReport) -> None:
    """Show the numbers of the explanation, each with its meaning."""
    with st.container(horizontal=True):
        st.metric("Loss", facts.number(report.loss), help="Of this window, after training.")
        st.metric(
            report.form.self_heading,
            facts.number(report.self_influence),
            help=SELF_INFLUENCE,
        )
        st.metric("Checkpoints", str(len(report.steps)), help=facts.CHECKPOINTS)
    st.caption(f"{report.form.sentence} {ESTIMATE}")
    for note in report.notes():
        basics.note(note)


def sequence_table(windows: pd.DataFrame, form: Form) -> None:
    shown, score = windows.copy(), glossary.score("influence", form)
    shown.insert(0, "±", [basics.sign_symbol(value) for value in windows[score.label]])
    st.dataframe(
        shown,
        alt="Training windows behind the prediction",
        hide_index=True,
        column_config={
            score.label: st.column_config.NumberColumn(format="%.4g", help=score.help),
            "Cosine": st.column_config.NumberColumn(format="%.3f", help=glossary.COSINE),
        },
    )
