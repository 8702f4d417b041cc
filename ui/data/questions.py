"""What the page Ask asks of models: each question is a job (`clew.ui.data.jobs`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd
import streamlit as st

from clew.errors import DataError, described
from clew.ui.data import jobs
from clew.ui.data.jobs import Job

PROMPT_FILE = "prompt.txt"
PREDICTIONS_FILE = "predictions.parquet"
FIRST_ANSWER_FILE = "first_answer.json"

End = Literal["head", "tail"]


@dataclass(frozen=True)
class Question:
    """What a person asks a model, under the data set's own names; an empty end is asked for."""

    head: str
    relation: str
    tail: str
    top_k: int
    only_new: bool
    """Leave out what the training data say already."""
    level: float | None
    """Probability with which the answer set holds a new answer; None: no such set."""


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
    """By their names below the folder of the job; empty where there is a path."""
    confidence: float


@dataclass(frozen=True)
class Why:
    """A triple to explain, as the answer of the question for one of its ends."""

    head: str
    relation: str
    tail: str
    end: End


def predict(model: str, asked: Question) -> Job:
    """Start asking a model for the most likely entities, or where it puts a triple."""
    parts = {"head": asked.head, "relation": asked.relation, "tail": asked.tail}
    arguments = [f"--{name}={value}" for name, value in parts.items() if value]
    arguments += ["--filter-known=true"] if asked.only_new else []
    arguments += [] if asked.level is None else [f"--conformal={asked.level}"]
    arguments += [f"--model={model}", f"--top-k={asked.top_k}", "--json"]
    return jobs.jobs().start(["predict", *arguments], title=f"Ask {model}")


@st.cache_resource(max_entries=64, show_spinner=False)
def prepare_reasons(model: str, run_id: str) -> Job:
    """Start, once for each champion, what its explanations share: while a person reads answers.

    Args:
        model: Its address.
        run_id: Its training run.

    Raises:
        UsageError: too many jobs are running.
    """
    return jobs.jobs().start(["tracin", f"--model={model}", "--prepare"], title=f"Prepare {run_id}")


def continue_text(model: str, asked: AskedText) -> Job:
    """Start continuing a prompt, which goes by file, whatever is in it; the text is its output."""
    arguments = [f"--model={model}", f"--prompt-file={{folder}}/{PROMPT_FILE}"]
    arguments += [f"--max-tokens={asked.max_tokens}", f"--temperature={asked.temperature}"]
    arguments += [f"--top-p={asked.top_p}", f"--seed={asked.seed}"]
    files = {PROMPT_FILE: asked.prompt}
    return jobs.jobs().start(["predict", *arguments], title=f"Ask {model}", files=files)


def prompt_of(job: Job) -> str:
    """Return the text that a job continues."""
    return job.text_of(PROMPT_FILE)


def predict_frames(model: str, asked: AskedFrames) -> Job:
    """Start predicting frames; the values go to a file in the job's folder."""
    frames = asked.path
    if asked.files:
        first = next(iter(asked.files))
        frames = f"{{folder}}/{first.partition('/')[0]}"
    arguments = [f"--model={model}", f"--frames={frames}", f"--confidence={asked.confidence}"]
    arguments += [f"--output={{folder}}/{PREDICTIONS_FILE}", "--json"]
    return jobs.jobs().start(["predict", *arguments], title=f"Ask {model}", files=asked.files)


def predictions_of(job: Job) -> pd.DataFrame:
    """Return the values that a job has predicted from frames, a row for each window.

    Raises:
        DataError: there are none that can be read.
    """
    path = job.folder / PREDICTIONS_FILE
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({described(error)})") from None


def trace(model: str, why: Why, *, called: str = "", person: str = "") -> Job:
    """Start tracing a triple to its training facts; the triple goes by file, whatever is in it.

    Args:
        model: The model's address.
        why: The triple, under the names of the data.
        called: The triple in the words that people know, if they are others.
        person: Whom the explanation's run names; the system's user if it is empty.
    """
    triple = (why.head, why.relation, why.tail)
    arguments = [f"--model={model}", "--test={folder}/test.txt", f"--direction={why.end}"]
    arguments += [f"--first-answer={{folder}}/{FIRST_ANSWER_FILE}", "--json"]
    return jobs.jobs().start(
        ["tracin", *arguments],
        title=f"Explain {called or ' · '.join(triple)}",
        person=person,
        files={"test.txt": "\t".join(triple) + "\n"},
    )


def first_answer_of(job: Job) -> Path | None:
    """Return what the facts near a triple say, while all of them are compared; None if nothing."""
    path = job.folder / FIRST_ANSWER_FILE
    return path if path.is_file() else None
