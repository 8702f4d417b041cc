"""The requests that jobs carry out, and the start of a job in its child process.

This module imports nothing heavy: the process that forks has it without Streamlit.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from clew.processes import PARENT_VARIABLE, end_with_parent

WORK = "clew.warm"
"""The module whose `run` does the work; it is named, because the dashboard never imports torch."""
EXIT_CODE_FILE = "exit_code"
PREDICTIONS_FILE = "predictions.parquet"
FIRST_ANSWER_FILE = "first_answer.json"
NUM_ASKED = 2000
"""How many new answers a model gives, and among how many of all it gives the known ones."""

LEFT_OUT = "runs/left_out"
"""The folder of the lists of facts marked wrong, relative to the folder that commands run in."""

End = Literal["head", "tail"]


@dataclass(frozen=True)
class Question:
    """A question about a triple in the data set's own names; an empty end is asked for."""

    model: str
    head: str
    relation: str
    tail: str
    level: float | None
    """Probability that the answer set contains a new answer; None: no answer set."""


@dataclass(frozen=True)
class AskedText:
    """A text for a language model to continue, and how."""

    model: str
    prompt: str
    max_tokens: int
    temperature: float
    top_p: float
    seed: int


@dataclass(frozen=True)
class AskedFrames:
    """Frames for a model of image sequences."""

    model: str
    path: str
    """On the server, or relative to the folder of the job, which holds the files of an upload."""
    confidence: float


@dataclass(frozen=True)
class Why:
    """A triple to explain, as the answer to a question for one of its ends."""

    head: str
    relation: str
    tail: str
    end: End
    model: str = ""
    score: str = ""
    """Form of the scores; empty: as the model's own configuration says."""


@dataclass(frozen=True)
class Check:
    """An explained triple whose strongest facts are to be taken away."""

    run_id: str
    triple: tuple[str, str, str]


@dataclass(frozen=True)
class Preparation:
    """The work that all explanations of a model share."""

    model: str


@dataclass(frozen=True)
class Promotion:
    """A promotion of a run, or only its checks."""

    run_id: str
    name: str
    dry_run: bool
    force: str = ""


@dataclass(frozen=True)
class Rollback:
    """The previous version of a model gets the alias `champion` again."""

    name: str


@dataclass(frozen=True)
class Training:
    """A training run; the configuration has sections as its file has."""

    config: Mapping[str, Any]


def start_work(
    work: str, asked: object, folder: Path, environment: dict[str, str], root: Path
) -> None:
    """Do the work in a process group of its own; its output goes to files in the folder."""
    os.setsid()
    os.environ[PARENT_VARIABLE] = str(os.getppid())  # it ends with the server
    end_with_parent()
    os.environ.pop("MLFLOW_RUN_ID", None)  # the run that `mlflow run` opened for the dashboard
    os.environ.update(environment)
    os.chdir(root)
    errors = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT, 0o600)
    for number in (1, 2):
        os.dup2(errors, number)
    exit_code = import_module(work).run(asked, folder)
    (folder / EXIT_CODE_FILE).write_text(str(exit_code))
