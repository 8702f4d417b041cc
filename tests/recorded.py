"""A store that real commands filled once for all tests; a test that changes it uses a copy.

All of its content was recorded by the commands that a person would type, with tiny models:
`mlflow run`, `clew train`, `tracin`, `trace-text`, `trace-sequence`, `compare`, `promote`. One
further training killed itself at the end of its first epoch. `mlflow run` starts a new process; all
other commands run in one process, including the study's trainings.
"""

import contextlib
import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import yaml
from mlflow import MlflowClient

from tests.made_once import copy_filled, made_once

ROOT = Path(__file__).resolve().parents[1]
UMLS = ROOT / "platform/clew/link_prediction/bundled/umls"
HOSTILE = ("<script>alert(1)</script>", "[x](javascript:1)", ":red[**bold**] $x^2$")
RUN_NAME = f"{HOSTILE[0]} {HOSTILE[1]}"
LINKED = ("MLproject", "python_env.yaml", "constraints.txt", "experiments", "platform")
NUM_TESTS = 6
NUM_EPOCHS = 2
NUM_HOSTILE_FACTS = 300
NUM_HOSTILE_TESTS = 4
TOP_K = 25
MODEL = "clew-umls"
FORCED = "<b>I know better</b>"
PROMPT, CONTINUATION = "But soft, what light ", "through yonder window"


@dataclass(frozen=True)
class Recorded:
    """The store in a folder, and its runs by the names that `main` gives them."""

    folder: Path
    runs: Mapping[str, str]

    @property
    def uri(self) -> str:
        """Address of the store."""
        return f"sqlite:///{self.folder / 'mlflow.db'}"

    @property
    def client(self) -> MlflowClient:
        """MLflow's client of the store."""
        return MlflowClient(self.uri)

    def files(self, name: str, path: str = "") -> Path:
        """Return the path of a run's artifact."""
        return next(self.folder.glob(f"mlartifacts/*/{self.runs[name]}/artifacts")) / path

    def copy(self, folder: Path) -> "Recorded":
        """Return a copy that a test can change."""
        copy_filled(self.folder, folder)
        return Recorded(folder, dict(self.runs))

    @contextlib.contextmanager
    def database(self) -> Iterator[sqlite3.Connection]:
        """Open the database for changes that no command makes."""
        with closing(sqlite3.connect(self.folder / "mlflow.db")) as base, base:
            yield base

    def keep_only(self, *run_names: str) -> "Recorded":
        """Delete all other runs, as MLflow does."""
        kept = tuple(self.runs[name] for name in run_names)
        marks = ", ".join("?" * len(kept))
        statement = "UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid NOT IN"
        with self.database() as base:
            base.execute(f"{statement} ({marks})", kept)
        return self


def record(folder: Path, num_epochs: int = NUM_EPOCHS) -> Recorded:
    """Fill a store in a folder in a new process, or return the store that is there already."""
    return Recorded(folder, made_once(folder, lambda new: _fill(new, num_epochs)))


def _fill(folder: Path, num_epochs: int) -> dict[str, str]:
    others = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", "CLEW_SPOOL")
    kept = {key: value for key, value in os.environ.items() if key not in others}
    environment = kept | {
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "PYTHONPATH": os.pathsep.join((str(ROOT / "platform"), str(ROOT))),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.recorded", str(folder), str(num_epochs)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    runs: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return runs


def main(folder: Path, num_epochs: int) -> None:
    """Run the command that dies, then all others in this process, in parallel to `mlflow run`."""
    from clew.runs.mlflow_store import preload_databases
    from clew.runs.reading.search import RunQuery, search_runs
    from clew.workflows import child

    preload_databases()
    train_and_die()
    child.run_child = in_this_process
    with ThreadPoolExecutor(1) as beside:
        project = beside.submit(mlflow_run, folder, num_epochs)
        runs = record_here(folder, num_epochs) | {"fp32 0": project.result()}
    for name, query in {
        "failed": RunQuery(status="FAILED"),
        "killed": RunQuery(status="RUNNING"),
        "study": RunQuery(kind="compare"),
    }.items():
        (found,) = search_runs(query).runs
        runs[name] = found.run_id
    sys.stdout.write(f"\n{json.dumps(runs)}\n")


def tiny(num_epochs: int) -> dict[str, str]:
    """Return the options of the setting that most trainings share."""
    return {
        "embedding_dim": "24",
        "output_channels": "6",
        "num_epochs": str(num_epochs),
        "checkpoint_frequency": "1",
        "set": "training.device=cpu,training.log_every_steps=10,evaluation.every_epochs=1,"
        "tracking.log_mfu=false",
    }


def flags(num_epochs: int) -> list[str]:
    """Return these options as `clew train` takes them."""
    return [f"--{key.replace('_', '-')}={value}" for key, value in tiny(num_epochs).items()]


def record_here(folder: Path, num_epochs: int) -> dict[str, str]:
    """Run the commands of this process one after the other, and return each command's run."""
    runs = {}
    train = ("train", *flags(num_epochs))
    half, recompute = "--use-mixed-precision", "--use-gradient-checkpointing"
    runs["fp32 1"] = clew(*train, "--seed=1")
    for seed in (0, 1):
        runs[f"bf16 {seed}"] = clew(*train, f"--seed={seed}", half)
    for seed in (0, 1):
        runs[f"fp32+ckpt {seed}"] = clew(*train, f"--seed={seed}", recompute)
        runs[f"bf16+ckpt {seed}"] = clew(*train, f"--seed={seed}", recompute, half)
    clew(*train, "--learning-rate=1e30", exit_code=3)
    model, tests = f"--model={runs['fp32 1']}", head(UMLS / "test.txt", NUM_TESTS, folder)
    runs["trace"] = clew("tracin", model, f"--test={tests}", f"--top-k={TOP_K}")
    runs["trace bf16"] = clew("tracin", model, f"--test={tests}", f"--top-k={TOP_K}", half)
    batch = (f"--test-triples={tests}", f"--output-dir={folder / 'batch'}", "--max-triples=1")
    runs["trace batch"] = clew("batch-tracin", model, *batch)

    graph = hostile_graph(folder / "hostile")
    runs["hostile"] = clew(*train, *graph, "--num-epochs=4", f"tracking.run_name={RUN_NAME}")
    model = f"--model={runs['hostile']}"
    tests = head(folder / "hostile/test.txt", NUM_HOSTILE_TESTS, folder)
    question = (f"--test={tests}", "--direction=both", "--top-k=0")
    runs["trace hostile"] = clew("tracin", model, *question)

    runs["text"] = clew("train", f"--config={text_config(folder / 'text')}")
    model, words = f"--model={runs['text']}", f"--continuation={CONTINUATION}"
    runs["trace text"] = clew("trace-text", model, f"--prompt={PROMPT}", words, "--top-k=0")
    runs["frames"] = clew("train", f"--config={frames_config(folder / 'frames')}")
    runs["trace frames"] = clew("trace-sequence", f"--model={runs['frames']}", "--top-k=3")

    clew("compare", f"--study={study_file(folder / 'study.yaml')}")
    clew("promote", f"--run-id={runs['fp32 1']}", f"--name={MODEL}")
    clew("promote", f"--run-id={runs['bf16 1']}", f"--name={MODEL}", f"--force={FORCED}")
    return runs


def clew(*arguments: str, exit_code: int = 0) -> str:
    """Run a command of the command line, and return the run id that it prints, if any."""
    from clew.__main__ import run

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        ended = run(list(arguments))
    if ended != exit_code:
        raise RuntimeError(f"clew {' '.join(arguments)} ended with {ended}")
    return run_id_in(printed.getvalue())


def run_id_in(text: str) -> str:
    """Return the first run id in a command's output."""
    found = re.search(r"\b[0-9a-f]{32}\b", text)
    return found[0] if found else ""


def in_this_process(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    capture: bool = False,
    started: object = None,
) -> tuple[int, str]:
    """Run a study's command in this process; a child would import torch and MLflow again."""
    from clew.__main__ import run

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        return run(list(command[3:])), printed.getvalue()


def mlflow_run(folder: Path, num_epochs: int) -> str:
    """Train by `mlflow run`, which starts a new process, and return the run."""
    from mlflow import projects

    project = folder / "project"
    project.mkdir()
    for name in LINKED:
        (project / name).symlink_to(ROOT / name)
    return str(projects.run(str(project), "train", parameters=tiny(num_epochs)).run_id)


def train_and_die() -> None:
    """Train in a fork that kills itself at the end of the first of three epochs."""
    from clew.training.trainer import Trainer

    if process := os.fork():
        _, status = os.waitpid(process, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            raise RuntimeError(f"the training that kills itself ended with {status}")
        return

    close_epoch = Trainer._close_epoch

    def close_epoch_and_die(self: Trainer) -> None:
        close_epoch(self)
        self.history.tracker.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    Trainer._close_epoch = close_epoch_and_die  # type: ignore[method-assign]
    try:
        clew("train", *flags(3), "--seed=9")
    finally:
        os._exit(1)  # the fork must not record the other commands too


def head(path: Path, num_lines: int, folder: Path) -> Path:
    """Write the first lines of a file of triples to another."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)[:num_lines]
    target = folder / f"first of {path.parent.name}.txt"
    target.write_text("".join(lines), encoding="utf-8")
    return target


def hostile_graph(folder: Path) -> list[str]:
    """Write the first facts of UMLS with names that contain markup; return the options for it."""
    folder.mkdir()
    harmless = ("steroid", "eicosanoid", "disease_or_syndrome")
    sizes = {"train": NUM_HOSTILE_FACTS, "valid": 20, "test": 20}
    for split, size in sizes.items():
        triples = [line.split("\t") for line in (UMLS / f"{split}.txt").read_text().splitlines()]
        # Facts about the renamed entities come first, so that the first tests have such names.
        triples.sort(key=lambda triple: -sum(name in harmless for name in triple))
        text = "".join("\t".join(triple) + "\n" for triple in triples[:size])
        for name, hostile in zip(harmless, HOSTILE, strict=True):
            text = re.sub(rf"(?m)(^|\t){name}(?=\t|$)", lambda m, h=hostile: m[1] + h, text)
        (folder / f"{split}.txt").write_text(text, encoding="utf-8")
    return ["--config=", "data.name=null"] + [f"--{s}={folder / s}.txt" for s in sizes]


def text_config(folder: Path) -> Path:
    """Write a small corpus, and the configuration of a language model for it."""
    folder.mkdir()
    verse = "But soft, what light through yonder window breaks? It is the east.\n"
    lines = [f"{number % 7} green bottles on a wall\n" for number in range(30)]
    lines[10:12] = [verse, HOSTILE[0] + " " + verse]
    (folder / "plays.txt").write_text("".join(lines), encoding="utf-8")
    sizes = {"d_model": 16, "n_layers": 1, "num_eigenstates": 8, "max_seq_len": 64}
    data = {"kind": "tokens", "dataset": str(folder / "plays.txt")}
    return config_file(
        folder,
        data=data | {"packed": str(folder / "packed")},
        model={"kind": "eigenstate_lm"} | sizes,
        training={"ema_decay": 0.5},
    )


def frames_config(folder: Path) -> Path:
    """Write small image sequences, and the configuration of a network for them."""
    from tests.image_sequences.sequence_files import sequence_columns, write_folder

    write_folder(folder / "clouds", sequence_columns(groups=3, frames_in_group=10))
    sizes = {"channels": [4, 8], "norm_groups": 2, "heads": 2, "patch_grid": [2, 2]}
    data = {"kind": "image_sequences", "path": str(folder / "clouds"), "temporal_frames": 3}
    return config_file(
        folder,
        data=data,
        model={"kind": "sequence_regression", "architecture": "cnn"} | sizes,
        training={},
    )


def config_file(folder: Path, **sections: dict[str, object]) -> Path:
    """Write a configuration that trains within a second."""
    small = {"num_epochs": 2, "batch_size": 4, "checkpoint_frequency": 1, "device": "cpu"}
    sections["training"] = small | sections["training"]
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(sections | {"tracking": {"log_mfu": False}}), encoding="utf-8")
    return path


def study_file(path: Path) -> Path:
    """Write a small study.

    Its variants differ in the batch size, so that it is no comparison of precisions.
    """
    speed = "throughput/examples_per_second"
    small = {key: value for key, value in tiny(1).items() if key != "set"}
    sections = {"embedding_dim": "model", "output_channels": "model"}
    content = {
        "name": "speed",
        "base": str(ROOT / "experiments/link_prediction/umls.yaml"),
        "overrides": {f"{sections.get(key, 'training')}.{key}": int(v) for key, v in small.items()}
        | {"training.device": "cpu", "tracking.log_mfu": False},
        "variants": {"small batch": {}, "large batch": {"training.batch_size": 512}},
        "measures": [{"metric": speed, "label": "examples/s"}],
    }
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
