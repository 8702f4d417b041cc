"""Measures the cost of idle OpenMP threads on a busy machine: one training, and four at once.

    python -m experiments.benchmarks.busy_machine [rounds] [training ...]

A libgomp thread without work spins before it sleeps, by default for 300,000 turns. It then occupies
a core that another process could use. Three trainings, run by `clew train`, are measured with three
ways to wait: libgomp's default, the 2,000 turns that `clew` sets when it starts, and no spinning
(`OMP_WAIT_POLICY=PASSIVE`).

    small     ConvE on the bundled graph UMLS, six epochs
    workers   the same with two worker processes that prepare batches
    large     ConvE with FB15k-237's sizes on random triples, 25 steps of 512 queries

`seconds` is the time of training, without the start of the process. `processor_seconds` is the CPU
time of the whole process and its workers. The ways take turns, so the load of other programs
affects all of them.
"""

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from experiments.benchmarks.harness import ROOT, median, print_table, write_results

NAME = "busy_machine"
AT_ONCE = (1, 4)
NUM_ENTITIES, NUM_RELATIONS, NUM_TRIPLES = 14_541, 237, 50_000
USUAL = "libgomp's own"
WAYS_TO_WAIT = {
    USUAL: {"GOMP_SPINCOUNT": "300000"},
    "2,000 turns": {"GOMP_SPINCOUNT": "2000"},
    "none": {"OMP_WAIT_POLICY": "PASSIVE"},
}


@dataclass(frozen=True)
class Case:
    """A training, how many run at once, and how their idle threads wait."""

    training: str
    at_once: int
    idle_threads_wait: str


@dataclass(frozen=True)
class Measured:
    """The time that one training took."""

    seconds: float
    processor_seconds: float


def trainings(folder: Path) -> dict[str, list[str]]:
    """Return the arguments of `clew train` for each training, and write the triples of `large`."""
    generator = np.random.default_rng(0)
    ends = (NUM_ENTITIES * generator.random((2, NUM_TRIPLES)) ** 2).astype(int)
    relations = generator.integers(NUM_RELATIONS, size=NUM_TRIPLES)
    triples = {f"e{h}\tr{r}\te{t}\n" for h, r, t in zip(ends[0], relations, ends[1], strict=True)}
    every_entity = [f"e{entity}\tr0\te{entity}\n" for entity in range(NUM_ENTITIES)]
    splits = {"train": [*sorted(triples), *every_entity]}
    splits |= {"valid": every_entity[:1], "test": every_entity[1:2]}
    for name, lines in splits.items():
        (folder / f"{name}.txt").write_text("".join(lines), encoding="utf-8")
    common = ["evaluation.enabled=false", "training.checkpoint_frequency=0"]
    small = [*common, "training.num_epochs=6"]
    files = [f"data.{name}={folder / name}.txt" for name in splits]
    return {
        "small": small,
        "workers": [*small, "training.num_workers=2", "training.persistent_workers=true"],
        "large": [*common, *files, "training.batch_size=512", "training.max_steps=25"],
    }


def train(settings: list[str], environment: dict[str, str]) -> Measured:
    """Train in a separate process with its own tracking store."""
    ways = {name for way in WAYS_TO_WAIT.values() for name in way}
    inherited = {name: value for name, value in os.environ.items() if name not in ways}
    with tempfile.TemporaryDirectory() as folder:
        result, said = Path(folder) / "result.json", Path(folder) / "said"
        own = {
            "PYTHONPATH": str(ROOT / "platform"),
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        }
        command = [sys.executable, "-m", "clew", "train", f"--result-file={result}", *settings]
        with said.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=inherited | own | environment, stdout=output, stderr=output
            )
            _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)}: {said.read_text()[-2000:]}")
        metrics = json.loads(result.read_text(encoding="utf-8"))["metrics"]
        return Measured(metrics["time/total_seconds"], used.ru_utime + used.ru_stime)


def measure(case: Case, settings: list[str]) -> list[Measured]:
    """Run the trainings of a case at the same time."""
    environment = WAYS_TO_WAIT[case.idle_threads_wait]
    with ThreadPoolExecutor(case.at_once) as pool:
        runs = [pool.submit(train, settings, environment) for _ in range(case.at_once)]
        return [run.result() for run in runs]


def main(rounds: int, chosen: list[str]) -> None:
    """Measure all cases in turn in each round, and print and write the medians."""
    with tempfile.TemporaryDirectory() as folder:
        settings = trainings(Path(folder))
        names = chosen or list(settings)
        cases = [Case(*values) for values in product(names, AT_ONCE, WAYS_TO_WAIT)]
        measured: dict[Case, list[Measured]] = {case: [] for case in cases}
        for turn, case in product(range(rounds), cases):
            found = measure(case, settings[case.training])
            measured[case] += found
            print(f"round {turn + 1}, {case}: {found}", flush=True)
    rows = [_row(case, measured) for case in cases]
    print_table(rows)
    kept = [
        row | {"runs": [vars(run) for run in measured[case]]}
        for case, row in zip(cases, rows, strict=True)
    ]
    write_results(NAME, {"rounds": rounds, "cases": kept}, packages=["torch"])


def _row(case: Case, measured: dict[Case, list[Measured]]) -> dict[str, object]:
    usual = Case(case.training, case.at_once, USUAL)
    seconds, processor = _medians(measured[case])
    usual_seconds, usual_processor = _medians(measured[usual])
    return {
        **vars(case),
        "seconds": seconds,
        "processor_seconds": processor,
        "of_usual_seconds": seconds / usual_seconds,
        "of_usual_processor_seconds": processor / usual_processor,
    }


def _medians(runs: list[Measured]) -> tuple[float, float]:
    return median([run.seconds for run in runs]), median([run.processor_seconds for run in runs])


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 3, sys.argv[2:])
