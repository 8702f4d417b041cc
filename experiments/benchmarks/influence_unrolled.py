"""Measures how well unrolled scores of one run and of several predict retraining on UMLS.

    python -m experiments.benchmarks.influence_unrolled [learning_rate]

A small ConvE is trained with several seeds, with ReLU and with SiLU, at the preset's learning rate
or at another one, which has its own result file. Random subsets drop 5 % of the facts, and the
first run is trained again on each subset with its own seed and with four others. The scores of one
run, and the means over three, are compared with the change of the tail's loss of test triples.
Retrainings are saved in `runs/influence_unrolled`. The cost of an explanation is the CPU time of
scoring twenty test triples, divided by twenty and by the CPU time of training.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from clew.config.load import load
from clew.config.services import ValidationRequest
from clew.influence.outcomes import datamodelling_scores, measured
from clew.influence.retraining import KeptRetrainings, Retraining
from clew.workflows.explaining.trace_source import open_trace_source
from clew.workflows.explaining.validate_influence import (
    identity,
    validate_influence,
)
from clew.workflows.explaining.validation_plan import (
    choose_tests,
    random_subsets,
    scores_by_form,
)
from clew.workflows.train import train
from experiments.benchmarks.harness import write_results

NAME = "influence_unrolled"
CONFIG = "experiments/link_prediction/umls.yaml"
KEPT = Path("runs") / NAME
SMALL = {
    "model.embedding_dim": 32,
    "model.output_channels": 8,
    "training.device": "cpu",
    "evaluation.every_epochs": 1000,  # only after the last epoch: no result depends on it
}
ACTIVATIONS = ("relu", "silu")
MEMBER_SEEDS = (1000, 1001)
"""Seeds of the further runs; far from the seeds of retrainings."""
UNROLLED = "unrolled"
FORMS = ("raw", "cosine", UNROLLED)
DROP, SUBSETS, SEEDS, TESTS = 0.05, 30, 4, 20

Row = dict[str, object]


def measure(activation: str, changed: Mapping[str, object]) -> Iterator[Row]:
    """Yield the datamodelling scores of each form for one run and for the mean of three."""
    settings = SMALL | {"model.activation": activation, **changed}
    folder = KEPT / "-".join(map(str, (activation, *changed.values())))
    first = train(load(CONFIG, settings))  # not timed: it imports modules at their first use
    began = time.process_time()
    members = [train(load(CONFIG, settings | {"training.seed": seed})) for seed in MEMBER_SEEDS]
    training_seconds = (time.process_time() - began) / len(members)
    runs = [str(result.run_id) for result in (first, *members)]
    request = ValidationRequest(
        model=runs[0],
        subsets=SUBSETS,
        seeds=SEEDS,
        drop=(DROP,),
        tests=TESTS,
        deletions=0,
        scores=("raw",),
        output_dir=folder,
    )
    ceiling = (
        validate_influence(request, say=lambda line: print(line, flush=True))
        .record.ceilings[0]
        .correlation
    )
    scores: dict[str, list[np.ndarray]] = {form: [] for form in FORMS}
    trainings: dict[str, list[float]] = {form: [] for form in FORMS}
    for run in runs:
        with open_trace_source(run, request.settings) as source:
            tests = choose_tests(source.task.graph.test, TESTS)
            for form in FORMS:
                began = time.process_time()
                scores[form].append(scores_by_form([form], source, tests)[form])
                seconds = time.process_time() - began
                trainings[form].append(seconds / TESTS / training_seconds)
        print(f"{activation}: {trainings} trainings for each explanation", flush=True)
    with open_trace_source(runs[0], request.settings) as source:
        kept = KeptRetrainings(folder, identity(source, tests))
        own_seed = source.model.config.training.seed
        subsets = random_subsets(len(source.task.graph.train), DROP, SUBSETS)

    def losses(seed: int) -> np.ndarray:
        found = [kept.read(Retraining(seed, np.flatnonzero(subset))) for subset in subsets]
        return np.stack([outcomes.of("tail").total_loss for outcomes in found])

    same = losses(own_seed)
    other = np.mean([losses(own_seed + 1 + n) for n in range(SEEDS)], axis=0)
    for form in FORMS:
        for count in (1, len(runs)):
            mean = np.mean(scores[form][:count], axis=0)
            own = measured(datamodelling_scores(mean, subsets, same))
            others = measured(datamodelling_scores(mean, subsets, other))
            yield {
                "activation": activation,
                "test MRR": first.metrics["test/mrr"],
                "form": form,
                "runs": count,
                "same seed": own.mean,
                "± same": own.half_width,
                "other seeds": others.mean,
                "± other": others.half_width,
                "ceiling": ceiling,
                "trainings an explanation": sum(trainings[form][:count]),
            }


def main(learning_rate: str) -> None:
    """Measure both activations, and print and write the results."""
    changed = {"optimizer.learning_rate": float(learning_rate)} if learning_rate else {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        rows = [row for activation in ACTIVATIONS for row in measure(activation, changed)]
    for row in rows:
        print(row, flush=True)
    about = {
        "share dropped": DROP,
        "subsets": SUBSETS,
        "other seeds": SEEDS,
        "test triples": TESTS,
        **changed,
    }
    write_results(NAME, {"about": about, "datamodelling scores": rows}, part=learning_rate)


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else "")
