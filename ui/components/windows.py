"""Texts and image sequences: what a person asks a model, its answer, and the windows behind it."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.column_config import NumberColumn, TextColumn
from streamlit.runtime.uploaded_file_manager import UploadedFile

from clew.errors import UsageError, refusing
from clew.runs.influence_forms import SELF_INFLUENCE, Form
from clew.runs.reading.facts import by_side, ranked
from clew.runs.window_report import SequenceInfluenceReport, TextInfluenceReport, numbers_of
from clew.ui import access, work
from clew.ui.components import basics, charts, facts, glossary, jobs, tables
from clew.ui.components.explanations import SIDES, FactFilter, passing

PROMPT = "ask-prompt"
MOST_IN_ADDRESS = 1000
"""Characters of a prompt that a link can hold."""
_WRITTEN = (
    '<div class="clew-card"><div class="clew-text">{prompt}<mark>{written}</mark></div></div>'
    '<p class="clew-muted clew-small">Marked: what the model wrote.</p>'
)
PATH = "ask-path"
HDF5 = ("h5", "hdf5")
FILES = ("images", "scalars", "group", "time", "present", "target")
CONFIDENCES = {"90 %": 0.9, "80 %": 0.8, "95 %": 0.95, "50 %": 0.5}
ALL_GROUPS = "all"
HERE, ON_SERVER = "from this computer", "on the server"
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


def asked_text(model: str, *, again: bool) -> work.AskedText | None:
    """Let a person give a prompt; return it once sent, or with `again` the one in the address."""
    linked = basics.address("prompt")
    if PROMPT not in st.session_state:
        st.session_state[PROMPT] = linked
    prompt = st.text_area("Prompt", key=PROMPT, height=140, placeholder="Text to continue")
    first, second, third, fourth = st.columns(4)
    kept: Any = {"bind": "query-params"}
    tokens = first.number_input("Tokens to write", 1, 5000, 200, key="tokens", **kept)
    about = "0: always the likeliest token; 1: the model's probabilities."
    temperature = second.number_input(
        "Temperature", 0.0, 5.0, 1.0, 0.1, key="temperature", help=about, **kept
    )
    about = "Draw only from the likeliest tokens with this total probability."
    top_p = third.number_input("Top p", 0.01, 1.0, 1.0, 0.05, key="p", help=about, **kept)
    about = "The same seed gives the same text."
    seed = fourth.number_input("Seed", 0, 2**31 - 1, 0, key="seed", help=about, **kept)
    settings = tokens, temperature, top_p, seed
    is_off = not (prompt and access.may("ask"))
    sent = st.button("Continue", type="primary", key="ask", disabled=is_off)
    if again and linked:
        return work.AskedText(model, linked, *settings)
    if not sent:
        return None
    basics.write_address("prompt", prompt if len(prompt) <= MOST_IN_ADDRESS else None)
    return work.AskedText(model, prompt, *settings)


def written(job: jobs.Job) -> None:
    """Show the prompt and what the model has written so far."""
    if job.state in {"running", "done"} and isinstance(job.asked, work.AskedText):
        basics.show(_WRITTEN, prompt=job.asked.prompt, written=job.output())


def download_text(job: jobs.Job) -> None:
    """Offer the whole text of a finished job."""
    if job.state == "done" and isinstance(job.asked, work.AskedText):
        tables.download("Text", job.asked.prompt + job.output(), "text.txt")


def asked_frames(model: str, *, again: bool) -> tuple[work.AskedFrames, dict[str, bytes]] | None:
    """Let a person choose frames; return them once sent, or with `again` those of a linked path.

    People who sign in cannot name a path on the server: they may have no right to read it.
    """
    linked = "" if access.is_configured() else basics.address("frames")
    first, second = st.columns([4, 1], vertical_alignment="bottom")
    with first:
        path, chosen = _frames(linked)
    about = "Share of targets that the intervals should contain, from errors on validation windows."
    share = second.selectbox(
        "Intervals", list(CONFIDENCES), key="share", bind="query-params", help=about
    )
    ready = bool(path or chosen) and access.may("ask")
    sent = st.button("Predict", type="primary", key="ask", disabled=not ready)
    if again and linked:
        return work.AskedFrames(model, linked, CONFIDENCES[share]), {}
    if not sent:
        return None
    basics.write_address("frames", path or None)
    files = uploaded(chosen) if chosen else {}
    uploads = next(iter(files), "").partition("/")[0]
    return work.AskedFrames(model, path or uploads, CONFIDENCES[share]), files


def _frames(linked: str) -> tuple[str, Sequence[UploadedFile]]:
    """Let a person name a path or choose files; return both, one of them empty."""
    where: str | None = HERE
    if not access.is_configured():
        first = ON_SERVER if linked else HERE
        where = st.segmented_control(
            "Frames", [HERE, ON_SERVER], key="where", default=first, required=True
        )
    if where == ON_SERVER:
        if PATH not in st.session_state:
            st.session_state[PATH] = linked
        path = st.text_input("Folder or file", key=PATH, placeholder="/data/new_frames").strip()
        return path, ()
    wanted = "One HDF5 file, or a folder's NumPy files: images.npy and, as in training, "
    wanted += "scalars.npy, group.npy, time.npy, present.npy, sequences.json"
    kinds, is_off = [*HDF5, "npy", "json"], not access.may("upload")
    return "", st.file_uploader(
        wanted, kinds, accept_multiple_files=True, key="uploads", disabled=is_off
    )


def uploaded(chosen: Sequence[UploadedFile]) -> dict[str, bytes]:
    """Return the files of an upload under the names that `clew predict --frames` expects.

    Raises:
        UsageError: The files are neither one HDF5 file nor the files of a folder.
    """
    names = [file.name for file in chosen]
    if len(names) == 1 and names[0].rpartition(".")[2].lower() in HDF5:
        return {"frames.h5": chosen[0].getvalue()}
    known = {f"{name}.npy" for name in FILES} | {"sequences.json"}
    other = next((name for name in names if name not in known), None)
    if other is not None or len(set(names)) < len(names):
        wanted = f"expected one HDF5 file alone, or files named {', '.join(sorted(known))}"
        raise UsageError(f"{other or 'the same file twice'} was chosen; {wanted}")
    return {f"frames/{file.name}": file.getvalue() for file in chosen}


def predictions(job: jobs.Job) -> None:
    """Show the values of a finished job, with their intervals."""
    said = job.result()
    if job.state != "done" or said is None:
        return
    for note in said.get("notes", []):
        basics.note(str(note))
    path, unit = job.folder / work.PREDICTIONS_FILE, str(said.get("unit", ""))
    with refusing(f"{path}: cannot be read as Parquet", OSError, ValueError):
        frame = pd.read_parquet(path)
    title = str(said.get("target_name", "")) + (f" [{unit}]" if unit else "")
    if isinstance(intervals := said.get("intervals"), dict):
        width = f"{intervals['half_width']:.4g} {unit}".strip()
        held = (
            f"Intervals of {100 * intervals['confidence']:g}%: ± {width}, from "
            f"{intervals['validation_windows']:,} validation windows; of "
            f"{intervals['test_windows']:,} test windows they covered "
            f"{intervals['test_coverage']:.1%}."
        )
        st.markdown(basics.markdown(held))
    shown, groups = frame, list(dict.fromkeys(frame["group"]))
    if len(groups) > 1:
        chosen = st.selectbox("Group", [ALL_GROUPS, *groups], key="group")
        shown = frame if chosen in (None, ALL_GROUPS) else frame[frame["group"] == chosen]
    st.vega_lite_chart(charts.predictions(shown, title), width="stretch")
    of_target = {name: tables.heading(name, unit) for name in ("prediction", "lower", "upper")}
    headings = {name: of_target.get(name, tables.heading(name)) for name in frame.columns}
    st.dataframe(shown.rename(columns=headings), hide_index=True, height=260)
    with st.container(horizontal=True):
        tables.export(frame.rename(columns=headings), "predictions.csv")
        tables.download("Parquet", frame.to_parquet(index=False), "predictions.parquet")


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
    said = summary(report.num_windows, helping, opposing)
    basics.show(_TEXT_CARD, prompt=report.prompt, continuation=report.continuation, summary=said)
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
    values = {"predicted": f"{report.prediction:.4g}", "true": f"{report.target:.4g}"}
    window = {"frame": f"{report.last_frame:,}", "group": report.group}
    count = f"{report.num_windows:,}"
    basics.show(_SEQUENCE_CARD, unit=report.unit, count=count, **window, **values)
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
