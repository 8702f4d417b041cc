"""What pages ask for that needs a model: each request is a job, and `clew.warm` does the work."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import streamlit as st

from clew.errors import DataError, described
from clew.ui import access
from clew.ui.data import jobs
from clew.ui.data.jobs import Job
from clew.ui.work import (
    FIRST_ANSWER_FILE,
    PREDICTIONS_FILE,
    AskedFrames,
    AskedText,
    Preparation,
    Question,
    Why,
)


def predict(asked: Question) -> Job:
    """Start asking a model for the most likely entities, or for the rank of a triple."""
    return jobs.jobs().start(asked, title=f"Ask {asked.model}", action="ask")


@st.cache_resource(max_entries=64, show_spinner=False)
def prepare_reasons(model: str, run_id: str) -> Job:
    """Start the work that all explanations of a champion share, while a person reads answers.

    The result is cached, so that this runs once per champion.

    Args:
        model: The URI of the champion.
        run_id: The champion's training run.

    Raises:
        UsageError: Too many jobs are running.
    """
    return jobs.jobs().start(Preparation(model), title=f"Prepare {run_id}", action="ask")


def continue_text(asked: AskedText) -> Job:
    """Start a job that prints the continuation of a prompt."""
    return jobs.jobs().start(asked, title=f"Ask {asked.model}", action="ask")


def predict_frames(asked: AskedFrames, files: Mapping[str, bytes]) -> Job:
    """Start predicting from frames; `files` are those of an upload, by their path in its folder."""
    if files:
        access.authorize("upload")
    return jobs.jobs().start(asked, title=f"Ask {asked.model}", action="ask", files=files)


def predictions_of(job: Job) -> pd.DataFrame:
    """Return the values that a job has predicted from frames, one row per window.

    Raises:
        DataError: The file is missing or cannot be read.
    """
    path = job.folder / PREDICTIONS_FILE
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({described(error)})") from None


def trace(why: Why, *, called: str = "") -> Job:
    """Start tracing a triple to its training facts; `called` is the triple with its labels."""
    title = f"Explain {called or ' · '.join((why.head, why.relation, why.tail))}"
    return jobs.jobs().start(why, title=title, action="explain")


def first_answer_of(job: Job) -> Path | None:
    """Return the file that explains a triple by the facts near it, None if there is none yet."""
    path = job.folder / FIRST_ANSWER_FILE
    return path if path.is_file() else None
