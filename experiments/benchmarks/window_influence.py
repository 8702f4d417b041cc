"""Measures explanations of texts and image sequences: all scores, and a search with an index.

    python -m experiments.benchmarks.window_influence text               # all windows of `nano`
    python -m experiments.benchmarks.window_influence sequences
    python -m experiments.benchmarks.window_influence text --windows 60  # a quick look
    (further options: --tests 10 --steps 300 --half --candidates 20,15 --rank 64 --folder FOLDER)

This needs tinyshakespeare or the ERA5 file under $CLEW_DATA. It trains the model for some steps,
and scores all training windows for ten tests in one pass, without cosines. Then it builds the
index, and searches it for one test after the other, for proponents and opponents and for proponents
alone. The ten strongest proponents of the search are compared with the exact ones. The cost of
cosines is the time for some windows with cosines, divided by the time without, in turns. The result
of each stage is saved in the folder (default runs/window_influence/…) and the stage is not
repeated, so an interrupted benchmark continues after the last finished stage. Seconds are those of
the explanation itself, without the start of the process and the building of the index.
"""

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clew.config.load import load
from clew.config.schema import RunConfig
from clew.config.services import InfluenceConfig
from clew.files import write_whole
from clew.image_sequences.task import SequenceRegression
from clew.influence.window_tracer import WindowExplanation, WindowTracer
from clew.language_modeling.task import LanguageModeling
from clew.language_modeling.tokens import continuation_batch
from clew.runs.base import Tracker
from clew.training.distributed import World
from clew.training.manifest import Manifest, list_checkpoints
from clew.training.setup import build_trainer, prepare_process
from clew.workflows.subjects import build_task
from experiments.benchmarks.harness import (
    ROOT,
    interleaved_seconds,
    print_table,
    spread,
    write_results,
)
from experiments.image_sequences.era5 import convert

NAME = "window_influence"
GRIB = Path("era5_uk_t2m_2019_03") / "era5-2mt-2019-03-uk.grib"
CPU = torch.device("cpu")
TOP, SAMPLE, ROUNDS = 10, 48, 3
PROMPT, CONTINUATION = 64, 32
"""Bytes of a prompt from the test text, and of the continuation that is explained."""


class FirstWindows:
    """An evenly spaced selection of all windows."""

    def __init__(self, windows: Any, count: int) -> None:
        self.windows = windows
        self.chosen = np.linspace(0, len(windows) - 1, count).astype(int)

    def __len__(self) -> int:
        return len(self.chosen)

    def batch(self, indices: np.ndarray) -> Any:
        """Return a batch of selected windows."""
        return self.windows.batch(self.chosen[indices])


def configuration(subject: str, folder: Path, steps: int) -> RunConfig:
    """Return the shipped configuration for a short training."""
    short = {"training.max_steps": steps, "tracking.log_mfu": False, "evaluation.enabled": False}
    if subject == "text":
        # Influence does not accept averaged parameters. A constant rate suits a short run.
        changed = {"training.ema_decay": None, "schedule.kind": "constant"}
        return load(ROOT / "experiments/language_modeling/nano.yaml", short | changed)
    data = folder / "era5"
    if not data.exists():
        convert(Path(os.environ["CLEW_DATA"]) / GRIB, data)
    single = {"data.path": str(data)}
    return load(ROOT / "experiments/image_sequences/era5.yaml", short | single)


def trained(config: RunConfig, task: Any, folder: Path) -> Path:
    """Train unless a saved training exists, and return the folder of checkpoints."""
    run = folder / "run"
    if not (folder / "trained").exists():
        origin = Manifest(0, 0, 0.0, task.kind, {}, "benchmark", task.data_fingerprint)
        build_trainer(
            config,
            task,
            Tracker(),
            device=CPU,
            world=World(),
            folder=run,
            origin=origin,
            keep_all_checkpoints=True,
        ).train()
        write_whole(folder / "trained", "")
    return run / "checkpoints"


def test_windows(task: Any, count: int) -> list[Any]:
    """Return the windows to explain, each as a batch."""
    if isinstance(task, SequenceRegression):
        windows = task.splits.windows["test"]
        chosen = np.linspace(0, len(windows) - 1, count).astype(int)
        return [windows.batch(np.array([index])) for index in chosen]
    assert isinstance(task, LanguageModeling)
    decode, stream = task.splits.tokenizer.decode, task.splits.windows["test"].stream
    starts = np.linspace(0, len(stream) - PROMPT - CONTINUATION, count).astype(int)
    return [
        continuation_batch(
            task.splits.tokenizer,
            decode(stream[start : start + PROMPT]),
            decode(stream[start + PROMPT : start + PROMPT + CONTINUATION]),
        )
        for start in starts
    ]


def kept(path: Path, stage: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return a stage's saved result, or run the stage and save its result."""
    if not path.exists():
        write_whole(path, json.dumps(stage()))
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def strongest(found: Sequence[WindowExplanation]) -> list[list[int]]:
    """Return the proponents of each test."""
    return [explanation.proponents.train[0].tolist() for explanation in found]


def all_scores(tracer: WindowTracer[Any], tests: Sequence[Any]) -> dict[str, Any]:
    """Score every window for all tests in one pass."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = tracer.explain(tests, top_k=TOP, progress=show)
    return {
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "top": strongest(found),
    }


def price_of_cosines(tracer: WindowTracer[Any], tests: Sequence[Any]) -> dict[str, Any]:
    """Return the time with cosines divided by the time without, for some windows."""

    def explain(*, with_cosine: bool) -> None:
        few = copy(tracer)
        few.windows, few.with_cosine = FirstWindows(tracer.windows, SAMPLE), with_cosine
        few.explain(tests, top_k=TOP)

    forms = {
        "with": partial(explain, with_cosine=True),
        "without": partial(explain, with_cosine=False),
    }
    seconds = interleaved_seconds(forms, repeats=ROUNDS, warm_ups=0)
    pairs = zip(seconds["with"], seconds["without"], strict=True)
    return spread([longer / shorter for longer, shorter in pairs])


def searches(
    tracer: WindowTracer[Any], tests: Sequence[Any], settings: InfluenceConfig
) -> dict[str, Any]:
    """Search for one test after the other; an untimed first search builds the index."""
    made = tracer.explain(tests[:1], top_k=TOP, settings=settings, progress=show)[0].searched
    assert made is not None
    seconds, cpu, top, errors = [], [], [], []
    for test in tests:
        wall, started = time.perf_counter(), time.process_time()
        (found,) = tracer.explain([test], top_k=TOP, settings=settings)
        seconds.append(time.perf_counter() - wall)
        cpu.append(time.process_time() - started)
        assert found.searched is not None
        errors.append(found.searched.cosine_error)
        top += strongest([found])
    return {
        "making_seconds": made.making_seconds,
        "index_mib": made.index_bytes / 2**20,
        "stated_cosine_error": made.index_cosine_error,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "cosine_errors": errors,
        "top": top,
    }


def show(done: int, total: int) -> None:
    """Print the progress of a stage at intervals."""
    if done % 200 < 4 or done == total:
        print(f"  {done} of {total} windows", flush=True)


def recall(exact: list[list[int]], found: list[list[int]]) -> float:
    """Return the share of the exact top proponents that the search found."""
    return float(np.mean([len({*a} & {*b}) / len(a) for a, b in zip(exact, found, strict=True)]))


def main() -> None:
    """Run all stages and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subject", choices=("text", "sequences"))
    parser.add_argument("--tests", type=int, default=10)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--windows", type=int, default=0)
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--candidates", default="20,15")
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args()
    folder = given.folder or ROOT / "runs" / NAME / given.subject
    folder.mkdir(parents=True, exist_ok=True)
    config = configuration(given.subject, folder, given.steps)
    prepare_process(config)
    task: Any = build_task(config)
    checkpoints = list_checkpoints(trained(config, task, folder))
    windows: Any = task.train_examples()
    if given.subject == "text":
        windows = windows.without_overlap()
    if given.windows:
        windows = FirstWindows(windows, given.windows)
    half = torch.bfloat16 if given.half else None
    tracer = WindowTracer(task, windows, checkpoints, device=CPU, half=half)
    tests = test_windows(task, given.tests)
    label = f"{len(windows)}-{given.tests}-{half}".replace("torch.", "")
    price = kept(folder / f"cosines-{label}.json", lambda: price_of_cosines(tracer, tests))
    tracer.with_cosine = False
    exact = kept(folder / f"all-{label}.json", lambda: all_scores(tracer, tests))
    tracer.with_cosine = True
    rows = []
    tried = itertools.product(map(int, given.candidates.split(",")), (True, False))
    for candidates, opponents in tried:
        settings = InfluenceConfig(
            candidates=candidates, projection_rank=given.rank, search_opponents=opponents
        )
        signs = "both" if opponents else "proponents"
        name = f"search-{label}-{given.rank}-{candidates}-{signs}.json"
        found = kept(folder / name, lambda s=settings: searches(tracer, tests, s))  # type: ignore[misc]
        rows.append(
            {
                "subject": given.subject,
                "windows": len(windows),
                "precision": str(half or torch.float32).removeprefix("torch."),
                "all, s": exact["seconds"],
                "all, CPU s": exact["cpu_seconds"],
                "with cosines, times": price["median"],
                "rank": given.rank,
                "candidates": candidates,
                "searched for": signs,
                "index, s": found["making_seconds"],
                "index, MiB": found["index_mib"],
                "cosine error": found["stated_cosine_error"],
                "search, s": spread(found["seconds"])["median"],
                "search, CPU s": spread(found["cpu_seconds"])["median"],
                "found of top 10": recall(exact["top"], found["top"]),
            }
        )
    print_table(rows)
    if not given.windows:
        write_results(NAME, rows, part=given.subject)


if __name__ == "__main__":
    main()
