"""Frames for a model of image sequences: a path or an upload, and the predictions from them."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st
from streamlit.runtime.uploaded_file_manager import UploadedFile

from clew.errors import UsageError, refusing
from clew.ui import access, work
from clew.ui.components import basics, charts, tables
from clew.ui.components.jobs import Job

PATH = "ask-path"
HDF5 = ("h5", "hdf5")
FILES = ("images", "scalars", "group", "time", "present", "target")
CONFIDENCES = {"90 %": 0.9, "80 %": 0.8, "95 %": 0.95, "50 %": 0.5}
ALL_GROUPS = "all"
HERE, ON_SERVER = "from this computer", "on the server"


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


def predictions(job: Job) -> None:
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
