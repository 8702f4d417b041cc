"""The questions of the page Ask to models: each one is a job (`clew.ui.data.jobs`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd
import streamlit as st

from clew.errors import DataError, described
from clew.ui import access
from clew.ui.data import jobs
from clew.ui.data.jobs import Job

PROMPT_FILE = "prompt.txt"
PREDICTIONS_FILE = "predictions.parquet"
FIRST_ANSWER_FILE = "first_answer.json"

End = Literal["head", "tail"]


@dataclass(frozen=True)
class Question:
    """A question about a triple in the data set's own names; an empty end is asked for."""

    head: str
    relation: str
    tail: str
    top_k: int
    only_new: bool
    """Leave out answers that are already in the training data."""
    level: float | None
    """Probability that the answer set contains a new answer; None: no answer set."""


@dataclass(frozen=True)
class AskedText:
    """A text for a language model to continue, and how."""

    prompt: str
    max_tokens: int
    temperature: float
    top_p: float
    seed: int


@dataclass(frozen=True)
class AskedFrames:
    """Frames for a model of image sequences: a path on the server, or the files of an upload."""

    path: str
    files: Mapping[str, bytes]
    """Contents by the name relative to the folder of the job; empty if there is a path."""
    confidence: float


@dataclass(frozen=True)
class Why:
    """A triple to explain, as the answer to a question for one of its ends."""

    head: str
    relation: str
    tail: str
    end: End


def predict(model: str, asked: Question) -> Job:
    """Start asking a model for the most likely entities, or for the rank of a triple."""
    parts = {"head": asked.head, "relation": asked.relation, "tail": asked.tail}
    arguments = [f"--{name}={value}" for name, value in parts.items() if value]
    arguments += ["--filter-known=true"] if asked.only_new else []
    arguments += [] if asked.level is None else [f"--conformal={asked.level}"]
    arguments += [f"--model={model}", f"--top-k={asked.top_k}", "--json"]
    return jobs.jobs().start(["predict", *arguments], title=f"Ask {model}", action="ask")


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
    return jobs.jobs().start(
        ["tracin", f"--model={model}", "--prepare"], title=f"Prepare {run_id}", action="ask"
    )


def continue_text(model: str, asked: AskedText) -> Job:
    """Start a job that prints the continuation of a prompt.

    The prompt is passed in a file, because it can contain any characters.
    """
    arguments = [f"--model={model}", f"--prompt-file={{folder}}/{PROMPT_FILE}"]
    arguments += [f"--max-tokens={asked.max_tokens}", f"--temperature={asked.temperature}"]
    arguments += [f"--top-p={asked.top_p}", f"--seed={asked.seed}"]
    return jobs.jobs().start(
        ["predict", *arguments],
        title=f"Ask {model}",
        action="ask",
        files={PROMPT_FILE: asked.prompt},
    )


def prompt_of(job: Job) -> str:
    """Return the text that a job continues."""
    return job.text_of(PROMPT_FILE)


def predict_frames(model: str, asked: AskedFrames) -> Job:
    """Start predicting from frames; the job writes the values to a file in its folder."""
    frames = asked.path
    if asked.files:
        access.authorize("upload")
        first = next(iter(asked.files))
        frames = f"{{folder}}/{first.partition('/')[0]}"
    arguments = [f"--model={model}", f"--frames={frames}", f"--confidence={asked.confidence}"]
    arguments += [f"--output={{folder}}/{PREDICTIONS_FILE}", "--json"]
    return jobs.jobs().start(
        ["predict", *arguments], title=f"Ask {model}", action="ask", files=asked.files
    )


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


def trace(model: str, why: Why, *, called: str = "") -> Job:
    """Start tracing a triple to its training facts.

    The triple is passed in a file, because its names can contain any characters.

    Args:
        model: The model's URI.
        why: The triple, under the names of the data.
        called: The triple with its labels, if they differ.
    """
    triple = (why.head, why.relation, why.tail)
    arguments = [f"--model={model}", "--test={folder}/test.txt", f"--direction={why.end}"]
    arguments += [f"--first-answer={{folder}}/{FIRST_ANSWER_FILE}", "--json"]
    return jobs.jobs().start(
        ["tracin", *arguments],
        title=f"Explain {called or ' · '.join(triple)}",
        action="explain",
        files={"test.txt": "\t".join(triple) + "\n"},
    )


def first_answer_of(job: Job) -> Path | None:
    """Return the file that explains a triple by the facts near it, None if there is none yet."""
    path = job.folder / FIRST_ANSWER_FILE
    return path if path.is_file() else None
