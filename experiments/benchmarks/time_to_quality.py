"""Measures time to quality: validation MRR against seconds, for Clew, PyKEEN and a plain loop.

    CLEW_DATA=... python -m experiments.benchmarks.time_to_quality [minutes] [data set ...]

Each curve is measured in a new process with two threads, which is stopped after the given minutes.
A point has three clocks: seconds since the process was started, with imports, reading the data and
everything else; seconds of training until then; and seconds of validation until then. Each
program's own loop and its own validation are timed.

The configurations of ConvE and ComplEx are those that Clew ships for such a machine; these curves
are not used to choose any setting. The loop's ConvE is the model of `opponent_loop` with the
settings of ConvE's paper. "Plain ComplEx" is the same recipe for all programs: 400 numbers per
entity, inverse relations, all answers of 500 queries per step, cross entropy over all entities,
Adagrad at 0.1, no regulariser, at most 50 epochs. UMLS is validated every second epoch, the larger
graphs after every epoch.

Each data set has its own result file. Finished curves are saved in `runs/time_to_quality`, so a
program that was stopped continues with the next one.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from clew import names
from clew.files import write_whole
from clew.runs.hardware import prepare_threads
from clew.training.memory import keep_allocator_pages
from experiments.benchmarks import opponent_loop
from experiments.benchmarks.harness import ROOT, SHORT_COMMIT, print_table, write_results
from experiments.benchmarks.training_opponents import UMLS

NAME = "time_to_quality"
KEPT = Path("runs") / NAME
MINUTES = 30.0
THREADS = 2


@dataclass(frozen=True)
class DataSet:
    """Clew's configurations for a graph, and how it is validated."""

    conve: str
    complex: str
    every_epochs: int
    targets: tuple[float, ...]
    """The validation MRR whose first times are shown."""


DATA_SETS = {
    "umls": DataSet("umls", "umls_complex", 2, (0.8, 0.9)),
    "codex-s": DataSet("codex_s_short", "codex_s_complex", 1, (0.4, 0.42)),
    "WN18RR": DataSet("wn18rr_short", "wn18rr_complex", 1, (0.38, 0.43)),
    "FB15k-237": DataSet("fb15k237_short", "fb15k237_complex", 1, (0.3, 0.34)),
}
"""The graphs: folders under $CLEW_DATA, and the bundled UMLS."""
EPOCHS = {"plain ComplEx": 50, "ConvE": 100}
"""The longest trainings of the opponents."""
PLAIN = {
    "model.embedding_dim": 400,
    "model.initial_deviation": 0.001,
    "model.input_dropout": 0.0,
    "loss.kind": "kvs_all",
    "loss.negatives": None,
    "loss.regularizer": None,
    "loss.relation_prediction_weight": 0.0,
    "loss.label_smoothing": 0.0,
    "optimizer.kind": "adagrad",
    "optimizer.learning_rate": 0.1,
    "schedule.kind": "constant",
    "training.batch_size": 500,
    "training.num_epochs": EPOCHS["plain ComplEx"],
}
SINGLE_ROWS = {"loss.triples_per_row": 1}
SHARED_ROWS = {"loss.triples_per_row": 8, "training.batch_size": 250}
CLEW, LOOP, PYKEEN = "Clew", "loop", "PyKEEN 1.11.1"
GRACE_SECONDS = 60
"""The longest time for a process to stop."""

Point = dict[str, float]
"""`seconds` since the start, `training_seconds` and `validation_seconds` of them, and `mrr`."""
Row = dict[str, object]


@dataclass(frozen=True, eq=False)
class Curve:
    """A run whose validation MRR is recorded over time."""

    program: str
    recipe: str
    model: str
    settings: Mapping[str, object] = field(default_factory=dict)


CURVES = (
    Curve(CLEW, "ConvE", "conve"),
    Curve(CLEW, "ComplEx", "complex", SINGLE_ROWS),
    Curve(CLEW, "ComplEx, 8 triples in a row", "complex", SHARED_ROWS),
    Curve(CLEW, "plain ComplEx", "complex", PLAIN),
    Curve(LOOP, "ConvE", "conve"),
    Curve(LOOP, "plain ComplEx", "complex"),
    Curve(PYKEEN, "plain ComplEx", "complex"),
)


def followed(curve: Curve, data: str, minutes: float) -> list[Point]:
    """Return the points of a curve, or the saved ones of this commit if there are any."""
    of_file = "-".join([data, curve.program, curve.recipe, f"{minutes:g}", SHORT_COMMIT])
    kept = KEPT / f"{of_file.replace(' ', '_')}.json"
    if kept.is_file():
        found: list[Point] = json.loads(kept.read_text(encoding="utf-8"))
        return found
    points = follow(curve, data, minutes)
    write_whole(kept, json.dumps(points))
    return points


def follow(curve: Curve, data: str, minutes: float) -> list[Point]:
    """Train for some minutes, and return the points of the validations."""
    with tempfile.TemporaryDirectory(prefix="clew-quality-") as folder:
        store = f"sqlite:///{folder}/mlflow.db"
        command = [sys.executable, "-m", f"experiments.benchmarks.{NAME}", "opponent"]
        command += [curve.program, curve.recipe, data]
        if curve.program == CLEW:
            command = clew_command(curve, data)
        environment = os.environ | {
            "MLFLOW_TRACKING_URI": store,
            "CLEW_SPOOL": f"{folder}/spool",
            "OMP_NUM_THREADS": str(THREADS),
        }
        prepare_threads(environment)
        written = Path(folder) / "points"
        start = time.time()
        with written.open("w", encoding="utf-8") as file:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file)
            stop_after(process, 60 * minutes)
        if curve.program == CLEW:
            return points_of_the_run(store, start)
        lines = written.read_text(encoding="utf-8").splitlines()
        points = [json.loads(line) for line in lines if line.startswith("{")]
        return [p | {"seconds": p["seconds"] - start} for p in points]


def stop_after(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for a process, and terminate it when its time is over.

    Raises:
        RuntimeError: When the process ended with an error before this time.
    """
    try:
        if process.wait(seconds):
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
    except subprocess.TimeoutExpired:
        process.terminate()  # not SIGINT: background processes of a shell ignore it
        process.wait(GRACE_SECONDS)


def clew_command(curve: Curve, data: str) -> list[str]:
    """Return the command that trains a curve with Clew."""
    found = DATA_SETS[data]
    preset = found.conve if curve.model == "conve" else found.complex
    config = f"experiments/link_prediction/{preset}.yaml"
    settings = {
        "evaluation.every_epochs": found.every_epochs,
        "training.device": "cpu",
        "training.checkpoint_frequency": 0,
        **curve.settings,
    }
    assigned = [f"{k}={'null' if v is None else v}" for k, v in settings.items()]
    return [sys.executable, "-m", "clew", "train", "--config", config, *assigned]


def points_of_the_run(store: str, start: float) -> list[Point]:
    """Return the points that the only run of a store recorded."""
    from mlflow import MlflowClient  # here, so that an opponent's process does not import it

    client = MlflowClient(store)
    (run,) = client.search_runs([e.experiment_id for e in client.search_experiments()])

    def history(name: str) -> list[tuple[int, float, float]]:
        every = client.get_metric_history(run.info.run_id, name)
        return [(metric.step, metric.timestamp / 1000 - start, metric.value) for metric in every]

    return with_clocks(
        history(names.metric("valid", names.MRR)),
        history(names.TIME_EPOCH_SECONDS),
        history(names.TIME_EVALUATION_SECONDS),
    )


def with_clocks(
    mrr: Iterable[tuple[int, float, float]],
    epochs: Sequence[tuple[int, float, float]],
    validations: Sequence[tuple[int, float, float]],
) -> list[Point]:
    """Return the points of a run's metrics, each a list of step, seconds since the start, value."""

    def until(step: int, found: Sequence[tuple[int, float, float]]) -> float:
        return sum(value for other, _, value in found if other <= step)

    return [
        {
            "seconds": seconds,
            "training_seconds": until(step, epochs),
            "validation_seconds": until(step, validations),
            "mrr": value,
        }
        for step, seconds, value in sorted(mrr)
    ]


class Clocks:
    """Times an opponent's training and validation apart, and prints its points."""

    def __init__(self) -> None:
        self.training = self.validation = 0.0

    def print_point(self, validate: Callable[[], float]) -> None:
        """Validate, and print where the curve is."""
        began = time.perf_counter()
        mrr = validate()
        self.validation += time.perf_counter() - began
        point = {
            "seconds": time.time(),
            "training_seconds": self.training,
            "validation_seconds": self.validation,
            "mrr": mrr,
        }
        print(json.dumps(point), flush=True)


def folder_of(data: str) -> Path:
    """Return the folder of a graph's files."""
    return UMLS if data == "umls" else Path(os.environ["CLEW_DATA"]) / data


def train_with_loop(recipe: str, data: str) -> None:
    """Train with the independent loop, and print points."""
    torch.manual_seed(0)
    graph = opponent_loop.Graph(folder_of(data))
    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[Tensor, Tensor], Tensor]
    if recipe == "ConvE":
        model = opponent_loop.ConvE(graph.entities, graph.relations)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.003, fused=True)
        loss, batch = partial(opponent_loop.loss_of, smoothing=0.1), 128
    else:
        model = opponent_loop.ComplEx(graph.entities, graph.relations, deviation=0.001)
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
        loss, batch = opponent_loop.softmax_loss, 500
    epochs = opponent_loop.train(
        model, graph.large_rows(), optimizer=optimizer, loss=loss, batch=batch
    )
    clocks = Clocks()
    for epoch, seconds in enumerate(itertools.islice(epochs, EPOCHS[recipe]), 1):
        clocks.training += seconds
        if epoch % DATA_SETS[data].every_epochs == 0:
            clocks.print_point(
                lambda: float((1 / opponent_loop.ranks(model, graph, "valid")).mean())
            )


def train_with_pykeen(recipe: str, data: str) -> None:
    """Train plain ComplEx with PyKEEN, and print points."""
    from pykeen.evaluation import RankBasedEvaluator
    from pykeen.models import ComplEx
    from pykeen.training import LCWATrainingLoop, TrainingCallback
    from pykeen.triples import TriplesFactory

    folder = folder_of(data)
    train = TriplesFactory.from_path(folder / "train.txt", create_inverse_triples=True)

    def ids_of(split: str) -> Tensor:
        path, names_of = folder / f"{split}.txt", (train.entity_to_id, train.relation_to_id)
        read = TriplesFactory.from_path(path, entity_to_id=names_of[0], relation_to_id=names_of[1])
        ids: Tensor = read.mapped_triples
        return ids

    valid, test = ids_of("valid"), ids_of("test")
    evaluator = RankBasedEvaluator(filtered=True)

    def validate() -> float:
        known = [train.mapped_triples, test]
        found = evaluator.evaluate(
            model, valid, 512, use_tqdm=False, additional_filter_triples=known
        )
        return float(found.get_metric("both.realistic.inverse_harmonic_mean_rank"))

    class Validation(TrainingCallback):  # type: ignore[misc,unused-ignore]
        """Validates like the other curves, filtered by all known triples."""

        clocks, began = Clocks(), 0.0

        def pre_batch(self, **others: object) -> None:
            if not self.began:
                self.began = time.perf_counter()

        def post_epoch(self, epoch: int, epoch_loss: float, **others: object) -> None:
            self.clocks.training += time.perf_counter() - self.began
            if epoch % DATA_SETS[data].every_epochs == 0:
                self.clocks.print_point(validate)
            self.began = time.perf_counter()

    small = partial(torch.nn.init.normal_, std=0.001)
    model = ComplEx(
        triples_factory=train,
        embedding_dim=200,  # complex numbers
        entity_initializer=small,
        relation_initializer=small,
        regularizer=None,
        loss="crossentropy",
        random_seed=0,
    )
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    loop = LCWATrainingLoop(model=model, triples_factory=train, optimizer=optimizer)
    loop.train(
        train,
        num_epochs=EPOCHS[recipe],
        batch_size=500,
        use_tqdm=False,
        use_tqdm_batch=False,
        pin_memory=False,
        callbacks=Validation(),
    )


OPPONENTS = {LOOP: train_with_loop, PYKEEN: train_with_pykeen}


def summary(curve: Curve, points: list[Point], targets: Sequence[float]) -> Row:
    """Return the best MRR of a curve, the first times of some MRR, and all its seconds."""
    best = max((point["mrr"] for point in points), default=0.0)
    row: Row = {
        "program": curve.program,
        "recipe": curve.recipe,
        "validations": len(points),
        "best valid MRR": best,
    }

    def first(mrr: float, clock: str) -> float | None:
        return next((p[clock] for p in points if p["mrr"] >= mrr), None)

    row["s to 99 % of it"] = first(0.99 * best, "seconds")
    for target in targets:
        row[f"s to {target:g}"] = first(target, "seconds")
        row[f"s of training to {target:g}"] = first(target, "training_seconds")
    last = points[-1] if points else {}
    row["s, all"] = last.get("seconds")
    row["s, training"] = last.get("training_seconds")
    row["s, validation"] = last.get("validation_seconds")
    return row


def main(minutes: float, data_sets: list[str]) -> None:
    """Measure every curve of each data set, and print and write the results."""
    KEPT.mkdir(parents=True, exist_ok=True)
    for data in data_sets:
        found = {}
        for curve in CURVES:
            found[curve] = followed(curve, data, minutes)
            print(data, summary(curve, found[curve], DATA_SETS[data].targets), flush=True)
        rows = [summary(*pair, DATA_SETS[data].targets) for pair in found.items()]
        print_table(rows)
        curves = [
            {"program": curve.program, "recipe": curve.recipe, **point}
            for curve, points in found.items()
            for point in points
        ]
        results = {"minutes": minutes, "threads": THREADS, "summary": rows, "curves": curves}
        write_results(NAME, results, part=data, packages=["torch", "pykeen"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["opponent"]:
        keep_allocator_pages()
        OPPONENTS[sys.argv[2]](*sys.argv[3:])
    else:
        main(float(sys.argv[1]) if sys.argv[1:] else MINUTES, sys.argv[2:] or list(DATA_SETS))
