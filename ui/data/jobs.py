"""Child processes: whatever needs a model runs as `clew <verb>`, the same as on the command line.

They are forks of a warm process that has imported torch and MLflow already, so they start at once.
A job belongs to the server, not to a browser tab: a page that is loaded again finds it by its id.
Its output goes to files, which the pages read as they grow.
"""

import atexit
import json
import re
import shutil
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import streamlit as st

from clew.errors import DataError, UsageError, described
from clew.runs import store
from clew.ui.data.warm_process import Command, WarmProcess

MAX_RUNNING = 4
MAX_KEPT = 50
TAIL_CHARACTERS = 20_000
SECONDS_TO_STOP = 5.0
PROMPT_FILE = "prompt.txt"
PREDICTIONS_FILE = "predictions.parquet"
FIRST_ANSWER_FILE = "first_answer.json"
RUN_ID = re.compile(r"\b[0-9a-f]{32}\b")

JobState = Literal["running", "done", "refused", "failed", "cancelled"]
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


@dataclass
class Job:
    """One child process."""

    job_id: str
    title: str
    folder: Path
    process: Command
    started: float = field(default_factory=time.time)
    cancelled: bool = False

    @property
    def state(self) -> JobState:
        """Return how it stands; exit code 3 is a refusal that protects the result."""
        code = self.process.poll()
        if code is None:
            return "running"
        if self.cancelled:
            return "cancelled"
        return {0: "done", 3: "refused"}.get(code, "failed")  # type: ignore[return-value]

    @property
    def exit_code(self) -> int | None:
        """Return its exit code, None while it runs."""
        return self.process.poll()

    @property
    def seconds(self) -> float:
        """Return for how long it has been running."""
        return time.time() - self.started

    def output(self) -> str:
        """Return all that it printed."""
        return _text(self.folder / "stdout")

    def log(self) -> str:
        """Return the end of what it said on standard error."""
        return _text(self.folder / "stderr")[-TAIL_CHARACTERS:]

    def message(self) -> str:
        """Return its last word: the error message of a command that failed."""
        lines = [line for line in self.log().splitlines() if line.strip()]
        return lines[-1].removeprefix("clew: error: ") if lines else ""

    def events(self) -> list[dict[str, Any]]:
        """Return the JSON objects that it printed, one per line."""
        return list(_objects(self.output().splitlines()))

    def result(self) -> dict[str, Any] | None:
        """Return the JSON object that it printed as a whole, None if it printed none."""
        with suppress(ValueError):
            content = json.loads(self.output())
            return content if isinstance(content, dict) else None
        return None

    def run_id(self) -> str:
        """Return the id of the run that it made, as it printed it; empty if it named none."""
        for event in self.events():
            if isinstance(run_id := event.get("run_id"), str):
                return run_id
        found = RUN_ID.search(self.output())
        return found[0] if found else ""

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Wait for its end, or for so many seconds."""
        self.process.wait(timeout_seconds)

    def cancel(self) -> None:
        """Interrupt it as Ctrl-C does; kill it if it does not end by itself."""
        if self.process.poll() is None:
            self.cancelled = True
            threading.Thread(target=self._end, daemon=True).start()

    def _end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        if self.process.wait(SECONDS_TO_STOP) is None:
            self.process.send_signal(signal.SIGKILL)


class Jobs:
    """The jobs of this server."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="clew-jobs-"))
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._warm = WarmProcess()
        atexit.register(self.close)

    def start(
        self,
        arguments: Sequence[str],
        *,
        title: str,
        files: Mapping[str, str | bytes] | None = None,
        person: str = "",
    ) -> Job:
        """Start `clew` with arguments; `{folder}` in them is where `files` are written first.

        What it records names `person`, or else the system's user.

        Raises:
            UsageError: too many jobs are running.
        """
        with self._lock:
            running = sum(job.state == "running" for job in self._jobs.values())
            if running >= MAX_RUNNING:
                raise UsageError(
                    f"{running} commands are running, which is the limit; wait until one ends, or "
                    "cancel one"
                )
            job_id = uuid.uuid4().hex[:12]
            folder = self.folder / job_id
            folder.mkdir()
            for name, content in (files or {}).items():
                (folder / name).parent.mkdir(exist_ok=True)
                data = content.encode() if isinstance(content, str) else content
                (folder / name).write_bytes(data)
            placed = [argument.replace("{folder}", str(folder)) for argument in arguments]
            process = self._warm.start(job_id, placed, folder, _environment(person))
            job = Job(job_id, title, folder, process)
            self._jobs[job_id] = job
            self._forget_old()
            return job

    def find(self, job_id: str) -> Job | None:
        """Return a job, None if the server does not know it (any more)."""
        return self._jobs.get(job_id)

    def close(self) -> None:
        """End what still runs, with the server."""
        self._warm.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def warm_up(self) -> None:
        """Get ready for the first command, in the background."""
        self._warm.open()

    def _forget_old(self) -> None:
        ended = [job for job in self._jobs.values() if job.state != "running"]
        for job in ended[: max(0, len(self._jobs) - MAX_KEPT)]:
            del self._jobs[job.job_id]
            shutil.rmtree(job.folder, ignore_errors=True)


@st.cache_resource(show_spinner=False)
def jobs() -> Jobs:
    """Return the jobs of this server."""
    return Jobs()


def find(job_id: str) -> Job | None:
    """Return a job of this server, None if it does not know it (any more)."""
    return jobs().find(job_id)


def _environment(person: str) -> dict[str, str]:
    person_too = {store.PERSON_VARIABLE: person} if person else {}
    return {"MLFLOW_TRACKING_URI": store.tracking_uri()} | person_too


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


def _objects(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("{"):
            with suppress(ValueError):
                content = json.loads(line)
                if isinstance(content, dict):
                    yield content


def promote(run_id: str, name: str, *, dry_run: bool, force: str = "", person: str = "") -> Job:
    """Start the promotion of a run under a registered model's name, by a person."""
    arguments = ["promote", f"--run-id={run_id}", f"--name={name}", "--json"]
    arguments += ["--dry-run"] if dry_run else []
    arguments += [f"--force={force}"] if force else []
    title = f"{'Check' if dry_run else 'Promote'} run {run_id[:8]} as {name}"
    return jobs().start(arguments, title=title, person=person)


def roll_back(name: str, person: str = "") -> Job:
    """Start giving the alias `champion` back to the version before."""
    arguments = ["promote", f"--name={name}", "--rollback", "--json"]
    return jobs().start(arguments, title=f"Roll back {name}", person=person)


def predict(model: str, asked: Question) -> Job:
    """Start asking a model for the most likely entities, or where it puts a triple."""
    parts = {"head": asked.head, "relation": asked.relation, "tail": asked.tail}
    arguments = [f"--{name}={value}" for name, value in parts.items() if value]
    arguments += ["--filter-known=true"] if asked.only_new else []
    arguments += [] if asked.level is None else [f"--conformal={asked.level}"]
    arguments += [f"--model={model}", f"--top-k={asked.top_k}", "--json"]
    return jobs().start(["predict", *arguments], title=f"Ask {model}")


def continue_text(model: str, asked: AskedText) -> Job:
    """Start continuing a prompt, which goes by file, whatever is in it; the text is its output."""
    arguments = [f"--model={model}", f"--prompt-file={{folder}}/{PROMPT_FILE}"]
    arguments += [f"--max-tokens={asked.max_tokens}", f"--temperature={asked.temperature}"]
    arguments += [f"--top-p={asked.top_p}", f"--seed={asked.seed}"]
    files = {PROMPT_FILE: asked.prompt}
    return jobs().start(["predict", *arguments], title=f"Ask {model}", files=files)


def prompt_of(job: Job) -> str:
    """Return the text that a job continues."""
    return _text(job.folder / PROMPT_FILE)


def predict_frames(model: str, asked: AskedFrames) -> Job:
    """Start predicting frames; the values go to a file in the job's folder."""
    frames = asked.path
    if asked.files:
        first = next(iter(asked.files))
        frames = f"{{folder}}/{first.partition('/')[0]}"
    arguments = [f"--model={model}", f"--frames={frames}", f"--confidence={asked.confidence}"]
    arguments += [f"--output={{folder}}/{PREDICTIONS_FILE}", "--json"]
    return jobs().start(["predict", *arguments], title=f"Ask {model}", files=asked.files)


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


def trace(model: str, why: Why) -> Job:
    """Start tracing a triple to its training facts; the triple goes by file, whatever is in it."""
    triple = (why.head, why.relation, why.tail)
    arguments = [f"--model={model}", "--test={folder}/test.txt", f"--direction={why.end}"]
    arguments += [f"--first-answer={{folder}}/{FIRST_ANSWER_FILE}", "--json"]
    return jobs().start(
        ["tracin", *arguments],
        title=f"Explain {' · '.join(triple)}",
        files={"test.txt": "\t".join(triple) + "\n"},
    )


def first_answer_of(job: Job) -> Path | None:
    """Return what the facts near a triple say, while all of them are compared; None if nothing."""
    path = job.folder / FIRST_ANSWER_FILE
    return path if path.is_file() else None


def plan(
    config: str,
    changes: Mapping[str, str],
    *,
    device: str,
    memory_gib: float,
    sizes: Mapping[str, str],
) -> Job:
    """Start predicting the memory of a configuration with some settings changed.

    Args:
        config: The configuration.
        changes: Settings, `section.key` to value.
        device: A GPU by name; empty: any device with `memory_gib`.
        memory_gib: What there is on it.
        sizes: What stands for the data: option of `clew plan` to value.
    """
    place = f"--device={device}" if device else f"--memory-gib={memory_gib}"
    arguments = ["plan", f"--config={config}", place, "--json"]
    arguments += [f"--{size.replace('_', '-')}={value}" for size, value in sizes.items()]
    arguments += [f"{key}={value}" for key, value in changes.items()]
    return jobs().start(arguments, title=f"Plan {config}")
