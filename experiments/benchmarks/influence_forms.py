"""Measures the cost of each form of score relative to `raw`.

    python -m experiments.benchmarks.influence_forms

There are two ConvE models: that of the preset `umls` on the bundled graph, and that of the preset
`fb15k237` on 20,000 random triples with FB15k-237's numbers of entities and relations. Neither is
fully trained, because this does not change the cost. All training triples are scored for 1 and for
100 test triples, with the same checkpoints. Forms take turns. Each turn has a new tracer, so the
cost of `deflated` and `kronecker` includes their moments.
"""

import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clew.config.load import load
from clew.influence.link_prediction.tracin import Tracer
from clew.link_prediction.triples import Triples
from clew.workflows.explaining.trace_source import TraceSource, open_trace_source
from clew.workflows.train import train
from experiments.benchmarks.harness import median, print_table, write_results
from experiments.benchmarks.training_speed import generated_triples

NAME = "influence_forms"
FORMS = ("raw", "cosine", "deflated", "kronecker")
NUM_TESTS = (1, 100)
ROUNDS = 3
QUICK = {"training.device": "cpu", "evaluation.enabled": False}

Row = dict[str, object]


@dataclass(frozen=True)
class Case:
    """A model, its data and the settings of its short training."""

    config: str
    num_triples: int
    """Number of random triples to train on; 0 means the configuration's own data."""
    settings: Mapping[str, object]


CASES = {
    "umls": Case("umls.yaml", 0, {"training.num_epochs": 10, "training.checkpoint_frequency": 2}),
    "fb15k237, 20,000 triples": Case(
        "fb15k237.yaml",
        20_000,
        {
            "loss.kind": "kvs_all",
            "schedule.kind": "constant",
            "training.num_epochs": 1,
            "training.batch_size": 4096,
            "training.checkpoint_frequency": 1,
        },
    ),
}


def random_files(num_triples: int, folder: Path) -> dict[str, object]:
    """Write random triples, and return the settings to use them."""
    files: dict[str, object] = {"data.name": None, "data.valid": None}
    triples = generated_triples(num_triples)
    for split, rows in (("train", triples), ("test", triples[:: num_triples // max(NUM_TESTS)])):
        path = folder / f"{split}.txt"
        np.savetxt(path, rows, "%d", delimiter="\t")
        files[f"data.{split}"] = str(path)
    return files


def measure(name: str, case: Case) -> list[Row]:
    """Train a model, and return the cost of each form."""
    with tempfile.TemporaryDirectory() as folder:
        files = random_files(case.num_triples, Path(folder)) if case.num_triples else {}
        config = load(
            f"experiments/link_prediction/{case.config}", {**QUICK, **case.settings, **files}
        )
        run = train(config)
        with open_trace_source(str(run.run_id), {"influence.top_k": 10}) as source:
            tests = source.task.graph.test
            return [
                {
                    "model": name,
                    "training triples": len(source.task.graph.train),
                    "checkpoints": len(source.checkpoints),
                    "test triples": count,
                    **prices(source, tests[:count]),
                }
                for count in NUM_TESTS
            ]


def prices(source: TraceSource, tests: Triples) -> Row:
    """Return the seconds of `raw`, and the cost of every other form as a multiple of it."""
    seconds: dict[str, list[float]] = {form: [] for form in FORMS}
    for turn in range(ROUNDS + 1):
        for form in FORMS:
            tracer = tracer_of(source, form)
            start = time.perf_counter()
            tracer.explain(tests)
            if turn:  # the first turn is a warm-up
                seconds[form].append(time.perf_counter() - start)
    ratios = {
        form: [own / raw for own, raw in zip(seconds[form], seconds["raw"], strict=True)]
        for form in FORMS[1:]
    }
    found: Row = {"raw_seconds": median(seconds["raw"])}
    for form, values in ratios.items():
        found |= {
            f"{form} / raw": median(values),
            f"{form}, lowest": min(values),
            f"{form}, highest": max(values),
        }
    return found


def tracer_of(source: TraceSource, form: str) -> Tracer:
    """Return a new tracer for a form, with nothing computed yet."""
    return Tracer(
        source.task,
        source.model.config,
        settings=source.tracer.settings.model_copy(update={"score": form, "with_cosine": False}),
        checkpoints=source.checkpoints,
        device=source.tracer.device,
    )


def main() -> None:
    """Measure both models, and print and write the results."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        rows = [row for name, case in CASES.items() for row in measure(name, case)]
    print_table(rows)
    write_results(NAME, rows)


if __name__ == "__main__":
    main()
