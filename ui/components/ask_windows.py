"""The page Ask for language models and for models of image sequences."""

import io
from collections.abc import Sequence
from typing import Any, Protocol

import pandas as pd
import streamlit as st

from clew.errors import DataError, UsageError, described
from clew.ui import access
from clew.ui.components import basics, charts, tables
from clew.ui.components.jobs import Job
from clew.ui.work import PREDICTIONS_FILE, AskedFrames, AskedText

PROMPT = "ask-prompt"
MOST_TOKENS = 5000
MOST_IN_ADDRESS = 1000
"""Characters of a prompt that a link can hold."""
_NUMBERS: tuple[tuple[str, str, float, float, float, float, str | None], ...] = (
    ("tokens", "Tokens to write", 1, MOST_TOKENS, 200, 1, None),
    (
        "temperature",
        "Temperature",
        0.0,
        5.0,
        1.0,
        0.1,
        "0: always the likeliest token; 1: the model's probabilities.",
    ),
    (
        "p",
        "Top p",
        0.01,
        1.0,
        1.0,
        0.05,
        "Draw only from the likeliest tokens with this total probability.",
    ),
    ("seed", "Seed", 0, 2**31 - 1, 0, 1, "The same seed gives the same text."),
)
_TEXT = (
    '<div class="clew-card"><div class="clew-text">{prompt}<mark>{written}</mark></div></div>'
    '<p class="clew-muted clew-small">Marked: what the model wrote.</p>'
)


def asked_text(model: str, *, again: bool) -> AskedText | None:
    """Let a person give a prompt; return it once sent, or with `again` the one in the address."""
    linked = basics.address("prompt")
    if PROMPT not in st.session_state:
        st.session_state[PROMPT] = linked
    prompt = st.text_area("Prompt", key=PROMPT, height=140, placeholder="Text to continue")
    given = {}
    for place, (key, label, least, most, value, step, meaning) in zip(
        st.columns(len(_NUMBERS)), _NUMBERS, strict=True
    ):
        given[key] = place.number_input(
            label, least, most, value, step, key=key, bind="query-params", help=meaning
        )
    settings = int(given["tokens"]), given["temperature"], given["p"], int(given["seed"])
    sent = st.button(
        "Continue", type="primary", key="ask", disabled=not (prompt and access.may("ask"))
    )
    if again and linked:
        return AskedText(model, linked, *settings)
    if not sent:
        return None
    basics.write_address("prompt", prompt if len(prompt) <= MOST_IN_ADDRESS else None)
    return AskedText(model, prompt, *settings)


def written(job: Job) -> None:
    """Show the prompt and what the model has written so far."""
    if job.state in {"running", "done"} and isinstance(job.asked, AskedText):
        basics.show(_TEXT, prompt=job.asked.prompt, written=job.output())


def download_text(job: Job) -> None:
    """Offer the whole text of a finished job."""
    if job.state == "done" and isinstance(job.asked, AskedText):
        tables.download("Text", job.asked.prompt + job.output(), "text.txt", "text/plain")


PATH = "ask-path"
HDF5 = ("h5", "hdf5")
FILES = ("images", "scalars", "group", "time", "present", "target")
CONFIDENCES = {"90 %": 0.9, "80 %": 0.8, "95 %": 0.95, "50 %": 0.5}
ALL_GROUPS = "all"
_WHERE = {"from this computer": False, "on the server": True}


class Upload(Protocol):
    """A file that a person has chosen."""

    @property
    def name(self) -> str: ...

    def getvalue(self) -> bytes: ...


def asked_frames(model: str, *, again: bool) -> tuple[AskedFrames, dict[str, bytes]] | None:
    """Let a person choose frames; return them once sent, or with `again` those of a linked path.

    People who sign in cannot name a path on the server: they may have no right to read it.
    """
    linked = "" if access.is_configured() else basics.address("frames")
    first, second = st.columns([4, 1], vertical_alignment="bottom")
    with first:
        path, chosen = _frames(linked)
    share = second.selectbox(
        "Intervals",
        list(CONFIDENCES),
        key="share",
        bind="query-params",
        help="Share of targets that the intervals should contain, from errors on validation "
        "windows.",
    )
    ready = bool(path or chosen) and access.may("ask")
    sent = st.button("Predict", type="primary", key="ask", disabled=not ready)
    if again and linked:
        return AskedFrames(model, linked, CONFIDENCES[share]), {}
    if not sent:
        return None
    basics.write_address("frames", path or None)
    files = uploaded(chosen) if chosen else {}
    uploads = next(iter(files), "").partition("/")[0]
    return AskedFrames(model, path or uploads, CONFIDENCES[share]), files


def _frames(linked: str) -> tuple[str, Sequence[Upload]]:
    """Let a person name a path or choose files; return both, one of them empty."""
    on_server = False
    if not access.is_configured():
        where = st.segmented_control(
            "Frames",
            list(_WHERE),
            key="where",
            default="on the server" if linked else "from this computer",
            required=True,
        )
        on_server = _WHERE[where or "from this computer"]
    if on_server:
        if PATH not in st.session_state:
            st.session_state[PATH] = linked
        path = st.text_input("Folder or file", key=PATH, placeholder="/data/new_frames").strip()
        return path, ()
    chosen = st.file_uploader(
        "One HDF5 file, or a folder's NumPy files: images.npy and, as in training, scalars.npy, "
        "group.npy, time.npy, present.npy, sequences.json",
        type=[*HDF5, "npy", "json"],
        accept_multiple_files=True,
        key="uploads",
        disabled=not access.may("upload"),
    )
    return "", chosen


def uploaded(chosen: Sequence[Upload]) -> dict[str, bytes]:
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
        raise UsageError(
            f"{other or 'the same file twice'} was chosen; expected one HDF5 file alone, or "
            f"files named {', '.join(sorted(known))}"
        )
    return {f"frames/{file.name}": file.getvalue() for file in chosen}


def predictions(job: Job) -> None:
    """Show the values of a finished job, with their intervals."""
    said = job.result()
    if job.state != "done" or said is None:
        return
    for note in said.get("notes", []):
        basics.note(str(note))
    path, unit = job.folder / PREDICTIONS_FILE, str(said.get("unit", ""))
    try:
        frame = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({described(error)})") from None
    title = str(said.get("target_name", "")) + (f" [{unit}]" if unit else "")
    if isinstance(intervals := said.get("intervals"), dict):
        st.markdown(basics.markdown(_held(intervals, unit)))
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
        parquet = io.BytesIO()
        frame.to_parquet(parquet, index=False)
        kind = "application/vnd.apache.parquet"
        tables.download("Parquet", parquet.getvalue(), "predictions.parquet", kind)


def _held(intervals: dict[str, Any], unit: str) -> str:
    width = f"{intervals['half_width']:.4g} {unit}".strip()
    return (
        f"Intervals of {intervals['confidence']:.0%}: ± {width}, from "
        f"{intervals['validation_windows']:,} validation windows; of "
        f"{intervals['test_windows']:,} test windows they covered {intervals['test_coverage']:.1%}."
    )
