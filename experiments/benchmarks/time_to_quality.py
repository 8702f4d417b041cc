"""Measures time to quality: validation MRR against wall-clock seconds, for Clew and PyKEEN.

    CLEW_DATA=... python -m experiments.benchmarks.time_to_quality [minutes] [data set ...]

Each curve is measured in a new process, which is stopped after the given minutes. The clock starts
with the process, so imports, reading the data and every validation are included. The configurations
of ConvE and ComplEx are those that Clew ships for such a machine; these curves are not used to
choose any setting. "Plain ComplEx" is the same recipe for both programs: 400 numbers per entity,
inverse relations, all answers of 500 queries per step, cross entropy over all entities, Adagrad at
0.1, no regulariser. Every second epoch is validated. Each data set has its own result file.
Finished curves are saved in `runs/time_to_quality`, so a program that was stopped continues with
the next one.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from mlflow import MlflowClient

from clew import names
from clew.files import write_whole
from experiments.benchmarks.harness import ROOT, SHORT_COMMIT, print_table, write_results

NAME = "time_to_quality"
KEPT = Path("runs") / NAME
MINUTES = 30.0
DATA_SETS = {
    "codex-s": {"conve": "codex_s_short", "complex": "codex_s_complex"},
    "WN18RR": {"conve": "wn18rr_short", "complex": "wn18rr_complex"},
    "FB15k-237": {"conve": "fb15k237_short", "complex": "fb15k237_complex"},
}
"""Maps folders under $CLEW_DATA to their configurations."""
EVERY_EPOCHS = 2
PLAIN = {
    "model.embedding_dim": 400,
    "model.initial_deviation": 0.001,
    "loss.kind": "kvs_all",
    "loss.negatives": None,
    "loss.regularizer": None,
    "loss.relation_prediction_weight": 0.0,
    "optimizer.kind": "adagrad",
    "optimizer.learning_rate": 0.1,
    "schedule.kind": "constant",
    "training.batch_size": 500,
}
SINGLE_ROWS = {"loss.triples_per_row": 1}
SHARED_ROWS = {"loss.triples_per_row": 8, "training.batch_size": 250}
PYKEEN = "PyKEEN 1.11.1"
GRACE_SECONDS = 60
"""The longest time for a process to stop."""

Point = dict[str, float]
Row = dict[str, object]


@dataclass(frozen=True, eq=False)
class Curve:
    """A run whose validation MRR is recorded over time."""

    program: str
    recipe: str
    model: str
    settings: Mapping[str, object] = field(default_factory=dict)


CURVES = (
    Curve("Clew", "ConvE", "conve"),
    Curve("Clew", "ComplEx", "complex", SINGLE_ROWS),
    Curve("Clew", "ComplEx, 8 triples in a row", "complex", SHARED_ROWS),
    Curve("Clew", "plain ComplEx", "complex", PLAIN),
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
    """Train for some minutes, and return its validations: `seconds` and `mrr`."""
    with tempfile.TemporaryDirectory(prefix="clew-quality-") as folder:
        store = f"sqlite:///{folder}/mlflow.db"
        is_clew = curve.program != PYKEEN
        command = clew_command(curve, data) if is_clew else pykeen_command(data)
        environment = os.environ | {"MLFLOW_TRACKING_URI": store, "CLEW_SPOOL": f"{folder}/spool"}
        written = Path(folder) / "points"
        start = time.time()
        with written.open("w", encoding="utf-8") as file:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file)
            stop_after(process, 60 * minutes)
        if is_clew:
            return list(points_of_the_run(store, start))
        lines = written.read_text(encoding="utf-8").splitlines()
        points = [json.loads(line) for line in lines if line.startswith("{")]
        return [{"seconds": p["time"] - start, "mrr": p["mrr"]} for p in points]


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
    config = f"experiments/link_prediction/{DATA_SETS[data][curve.model]}.yaml"
    settings = {
        "evaluation.every_epochs": EVERY_EPOCHS,
        "training.device": "cpu",
        "training.checkpoint_frequency": 0,
        **curve.settings,
    }
    assigned = [f"{k}={'null' if v is None else v}" for k, v in settings.items()]
    return [sys.executable, "-m", "clew", "train", "--config", config, *assigned]


def pykeen_command(data: str) -> list[str]:
    """Return the command that trains PyKEEN's curve: this module with `--pykeen`."""
    return [sys.executable, "-m", f"experiments.benchmarks.{NAME}", "--pykeen", data]


def points_of_the_run(store: str, start: float) -> Iterator[Point]:
    """Yield the points that the only run of a store recorded."""
    client = MlflowClient(store)
    (run,) = client.search_runs([e.experiment_id for e in client.search_experiments()])
    for metric in client.get_metric_history(run.info.run_id, names.metric("valid", names.MRR)):
        yield {"seconds": metric.timestamp / 1000 - start, "mrr": metric.value}


def train_with_pykeen(data: str) -> None:
    """Train until stopped, and print the time and validation MRR of every second epoch."""
    from pykeen.evaluation import RankBasedEvaluator
    from pykeen.models import ComplEx
    from pykeen.training import LCWATrainingLoop, TrainingCallback
    from pykeen.triples import TriplesFactory

    folder = Path(os.environ["CLEW_DATA"]) / data
    train = TriplesFactory.from_path(folder / "train.txt", create_inverse_triples=True)

    def ids_of(split: str) -> torch.Tensor:
        path, names_of = folder / f"{split}.txt", (train.entity_to_id, train.relation_to_id)
        read = TriplesFactory.from_path(path, entity_to_id=names_of[0], relation_to_id=names_of[1])
        return read.mapped_triples

    valid, test = ids_of("valid"), ids_of("test")
    evaluator = RankBasedEvaluator(filtered=True)

    class Validation(TrainingCallback):
        """Validates like the other curves, filtered by all known triples."""

        def post_epoch(self, epoch: int, epoch_loss: float, **others: object) -> None:
            if epoch % EVERY_EPOCHS:
                return
            known = [train.mapped_triples, test]
            found = evaluator.evaluate(
                self.model, valid, 512, use_tqdm=False, additional_filter_triples=known
            )
            mrr = found.get_metric("both.realistic.inverse_harmonic_mean_rank")
            print(json.dumps({"time": time.time(), "mrr": float(mrr)}), flush=True)

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
    loop.train(train, num_epochs=10_000, batch_size=500, use_tqdm=False, callbacks=Validation())  # type: ignore[no-untyped-call]


def summary(curve: Curve, points: list[Point]) -> Row:
    """Return the best MRR of a curve, and the seconds to 90 % and 99 % of it."""
    row: Row = {"program": curve.program, "recipe": curve.recipe, "validations": len(points)}
    best = max((point["mrr"] for point in points), default=0.0)

    def soon(share: float) -> float | None:
        return next((p["seconds"] for p in points if p["mrr"] >= share * best), None)

    return row | {
        "best valid MRR": best,
        "seconds to 90 % of it": soon(0.9),
        "seconds to 99 % of it": soon(0.99),
        "seconds of the last": points[-1]["seconds"] if points else None,
    }


def main(minutes: float, data_sets: list[str]) -> None:
    """Measure every curve of each data set, and print and write the results."""
    KEPT.mkdir(parents=True, exist_ok=True)
    for data in data_sets:
        found = {}
        for curve in CURVES:
            found[curve] = followed(curve, data, minutes)
            print(data, summary(curve, found[curve]), flush=True)
        rows = [{"data set": data, **summary(*pair)} for pair in found.items()]
        print_table(rows)
        curves = [
            {"program": curve.program, "recipe": curve.recipe, **point}
            for curve, points in found.items()
            for point in points
        ]
        results = {"minutes": minutes, "summary": rows, "curves": curves}
        write_results(NAME, results, part=data, packages=["torch", "pykeen"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--pykeen"]:
        train_with_pykeen(sys.argv[2])
    else:
        main(float(sys.argv[1]) if sys.argv[1:] else MINUTES, sys.argv[2:] or list(DATA_SETS))
