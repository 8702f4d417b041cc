"""Explanations of texts and image sequences: the test, and the training windows behind it."""

import math
from functools import partial
from pathlib import Path

import pandas as pd
import streamlit as st
from streamlit.column_config import NumberColumn, TextColumn

from clew.runs.influence_forms import SELF_INFLUENCE, Form
from clew.runs.reading.facts import by_side, ranked
from clew.runs.window_report import SequenceInfluenceReport, TextInfluenceReport, numbers_of
from clew.ui.components import basics, facts, glossary, tables
from clew.ui.components.explanations import SIDES, FactFilter, passing

MIN_SHARED_CHARACTERS = 8
Passage = tuple[int, int]
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
FRAMES = "Frames of this window, then of training windows."
_SEQUENCE_CARD = (
    '<div class="clew-card"><h2>Window that ends at frame {frame} of {group}</h2>'
    "<p>The model predicts <b>{predicted} {unit}</b>; the target is <b>{true} {unit}</b>.</p>"
    '<p class="clew-muted">Of {count} training windows, those are listed that lowered (▲) or '
    "raised (▼) the error of this prediction most.</p></div>"
)


def choose_cosine(found: pd.DataFrame) -> bool:
    """Let a person choose the cosine instead of the influence, if there is one."""
    absent = "cosine" not in found
    return st.toggle(
        "Cosine", key="cosine", bind="query-params", disabled=absent, help=glossary.COSINE
    )


def numbers(
    report: TextInfluenceReport | SequenceInfluenceReport, shown: list[tuple[str, str, str]]
) -> None:
    """Show the numbers of an explanation, each with its meaning, and its notes."""
    own = (report.form.self_heading, facts.number(report.self_influence), SELF_INFLUENCE)
    steps = facts.number(len(report.steps) or math.nan)
    basics.tiles(
        [shown[0], own, *shown[1:], ("Checkpoints", steps, facts.CHECKPOINTS)], border=False
    )
    st.caption(report.form.sentence)
    for note in (report.label.sentence, *report.notes()):
        basics.note(note)


def text_windows(report: TextInfluenceReport) -> pd.DataFrame:
    """Return the training windows behind a text, in the order of `by_side`.

    Columns: `place` and `rank` as of `ranked`, `influence`, `text`, `window` (its number),
    `first_token` and `last_token` (its place in the packed corpus), `cosine` if the report has it,
    and `part_*` and `checkpoint_*`.
    """
    own = ("text", "window", "first_token")
    rows = [
        {name: getattr(entry, name) for name in own} | numbers_of(entry, report.steps)
        for entry in report.listed
    ]
    columns = None if rows else ["rank", "influence", *own]
    frame = pd.DataFrame(rows, columns=columns).drop(columns="rank")
    if isinstance(length := report.settings.get("window"), int):
        frame["last_token"] = frame["first_token"] + length - 1
    return ranked(frame)


def sequence_windows(report: SequenceInfluenceReport) -> pd.DataFrame:
    """Return the training windows behind a prediction from frames, in the order of `by_side`.

    Columns: `rank` within the own side, `influence`, `cosine`, `last_frame`, `group`, `target`.
    """
    columns = ["rank", "influence", "cosine", "last_frame", "group", "target"]
    rows = [[getattr(entry, name) for name in columns] for entry in report.listed]
    return pd.DataFrame(rows, columns=columns)


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


def show_text(report: TextInfluenceReport, *, key: str) -> None:
    """Show an explanation; `key` is different for each one."""
    windows = text_windows(report)
    helping, opposing = (int((sign * windows["influence"] > 0).sum()) for sign in (1, -1))
    listed = summary(report.num_windows, helping, opposing)
    basics.show(_TEXT_CARD, prompt=report.prompt, continuation=report.continuation, summary=listed)
    parts = "Parts of the training text whose influence was computed."
    loss, scored = facts.number(report.loss), facts.number(report.num_scored)
    numbers(report, [("Loss [nats]", loss, glossary.TEXT_LOSS), ("Windows scored", scored, parts)])
    if windows.empty:
        basics.note(f"None of the {report.num_scored:,} scored training windows is listed.")
        return
    first, second, third = st.columns([2, 1.6, 1], vertical_alignment="bottom")
    about = "part of the text"
    text = basics.search_box(first, "Search windows", "factfind", placeholder=about)
    side = basics.choice("Side", SIDES, "side", place=second)
    with third:
        cosine = choose_cosine(windows)
    wanted = FactFilter(text=text, side=side, cosine=cosine)
    shown = passing(windows, wanted, "listed training windows", ["text"])
    if shown.empty:
        return
    column = wanted.column(shown)
    shown, form = by_side(shown, column), report.form
    left, right = st.columns([1.15, 1])
    with left:
        text_table(shown, column, form, key=f"{key}-{hash(wanted)}")
        listed = windows.drop(columns="place").rename(columns={"influence": form.heading})
        tables.export(listed.rename(columns=tables.heading), "windows.csv")
    place = facts.selected(shown)
    chosen = shown[shown["place"] == place].iloc[0] if place else shown.iloc[0]
    with right:
        reading(report, chosen, column)
    facts.splits(chosen, form)


def summary(total: int, helping: int, opposing: int) -> str:
    """Return in a sentence how many windows of each sign are listed."""
    listed = [f"the {helping:,} that made it most likely (▲)"] if helping else []
    listed += [f"the {opposing:,} that made it least likely (▼)"] if opposing else []
    verb = "is" if helping + opposing <= 1 else "are"
    return f"Of {total:,} training windows, {' and '.join(listed) or 'none'} {verb} listed."


def text_table(windows: pd.DataFrame, column: str, form: Form, *, key: str) -> None:
    places = [int(place) for place in windows["place"]]
    score, values = glossary.score(column, form), windows[column].to_numpy(float)
    texts = [" ".join(str(text).split())[:EXCERPT_CHARACTERS] for text in windows["text"]]
    of = {"things": "windows", "of": "continuation"}
    signs = [basics.sign_symbol(value) for value in values]
    tables.tick_one(
        {
            "±": (signs, TextColumn(width=30, help=facts.SIDES.format(**of))),
            score.label: (values, NumberColumn(format="%.4g", width=138, help=score.help)),
            "Text": (texts, TextColumn(width=370, help="How the window starts.")),
            "Window": (windows["window"], NumberColumn(width=70, help=glossary.PLACE)),
            "Rank": (windows["rank"], NumberColumn(width=54, help=facts.RANKS.format(**of))),
        },
        places,
        key=f"{key}-windows",
        chosen=facts.selected(windows) or places[0],
        take=partial(basics.write_address, "fact"),
        alt="Training windows by their influence",
        most=HEIGHT,
    )


def reading(report: TextInfluenceReport, row: pd.Series, column: str) -> None:
    """Show a window's whole text, its place, and the passages that it shares with the test."""
    text, first, last = str(row["text"]), int(row["first_token"]), row.get("last_token")
    passages = shared_passages(text, report.prompt + report.continuation)
    tokens = f"token {first:,} on" if pd.isna(last) else f"tokens {first:,} to {int(last):,}"
    count = len(passages)
    common = {0: "no passage", 1: "one passage, marked,"}.get(count, f"{count} passages, marked,")
    basics.show(
        _WINDOW,
        window=f"{int(row['window']):,}",
        effect=facts.effect(row, column, report.form, of="continuation"),
        place=f"From {report.dataset}, {tokens}; it shares {common} of {MIN_SHARED_CHARACTERS} "
        "characters or more with the text above.",
        text=basics.marked(text, passages),
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
    numbers(report, [("Loss", facts.number(report.loss), "Of this window, after training.")])
    windows = sequence_windows(report)
    if windows.empty:
        basics.note(f"None of the {report.num_scored:,} scored training windows is listed.")
        return
    headings = {str(name): tables.heading(str(name)) for name in windows}
    headings |= {"target": tables.heading("target", report.unit), "influence": report.form.heading}
    windows, score = windows.rename(columns=headings), glossary.score("influence", report.form)
    signs = [basics.sign_symbol(value) for value in windows[score.label]]
    left, right = st.columns([1, 1.2])
    with left:
        st.dataframe(
            pd.concat([pd.Series(signs, name="±"), windows], axis="columns"),
            alt="Training windows behind the prediction",
            hide_index=True,
            column_config={
                score.label: NumberColumn(format="%.4g", help=score.help),
                "Cosine": NumberColumn(format="%.3f", help=glossary.COSINE),
            },
        )
        tables.export(windows, "windows.csv")
    with right:
        if picture is None:
            basics.note("The picture of the frames is missing from this report.")
        else:
            st.image(str(picture), caption=FRAMES, alt=FRAMES)
