"""Do influence scores say what retraining does? The test of explanations on UMLS, in two trainings.

    python -m experiments.benchmarks.influence_validation [case ...]

Each case trains a run of UMLS and tests its explanations as `clew validate-influence` does: random
subsets of facts are dropped, the strongest facts of test triples are deleted, and the model is
trained again with its own seed and with others. The models are small, ConvE with 32 dimensions and
8 channels, so that one takes a second or two. Retrainings are kept in `runs/influence_validation`;
a command that was killed goes on where it was.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from clew.config.load import load
from clew.runs.validation_record import ValidationRecord
from clew.workflows.train import train
from clew.workflows.validate_influence import ValidationRequest, validate_influence
from experiments.benchmarks.harness import write_results

NAME = "influence_validation"
CONFIG = "experiments/link_prediction/umls.yaml"
KEPT = Path("runs") / NAME
SMALL = {"model.embedding_dim": 32, "model.output_channels": 8, "training.device": "cpu"}
CASES: dict[str, dict[str, object]] = {
    "kvs_all": {"loss.kind": "kvs_all"},
    "one_vs_all": {
        "loss.kind": "one_vs_all",
        "training.num_epochs": 12,
        "training.checkpoint_frequency": 3,
    },
}
SUBSETS = {"kvs_all": 40, "one_vs_all": 30}
DELETIONS = {"kvs_all": 15, "one_vs_all": 10}
"""Fewer where an epoch has seven times as many rows."""
SEEDS, TESTS, HOURS = 2, 100, 3.0


Row = dict[str, object]


def measure(case: str) -> tuple[Row, ValidationRecord]:
    """Train the run of a case and test its explanations; return what it was, and the result."""
    run = train(load(CONFIG, SMALL | CASES[case]))
    assert run.run_id is not None
    request = ValidationRequest(
        run.run_id,
        subsets=SUBSETS[case],
        seeds=SEEDS,
        drop=(0.5,),
        tests=TESTS,
        deletions=DELETIONS[case],
        max_hours=HOURS,
        output_dir=KEPT / case,
    )
    record = validate_influence(
        request, say=lambda line: print(f"{case}: {line}", flush=True)
    ).record
    print("\n".join(record.markdown()), flush=True)
    about = {
        "training": case,
        "test MRR": run.metrics["test/mrr"],
        "test triples": record.num_tests,
        "subsets": record.num_subsets,
        "other seeds": record.num_other_seeds,
        "retrainings": record.num_retrainings,
        "ceiling": record.ceilings[0].correlation,
        "largest difference": record.largest_difference,
    }
    return about, record


def score_rows(case: str, record: ValidationRecord) -> Iterator[Row]:
    """Yield the datamodelling scores of each form, with half-widths of 95 % intervals."""
    found = {(score.form, score.seeds): score.correlation for score in record.scores}
    for form in dict.fromkeys(score.form for score in record.scores):
        same, other = found[form, "same"], found[form, "other"]
        yield {
            "training": case,
            "form": form,
            "same seed": same.mean,
            "± same": same.half_width,
            "other seeds": other.mean,
            "± other": other.half_width,
        }


def deletion_rows(case: str, record: ValidationRecord) -> Iterator[Row]:
    """Yield what deleting the strongest facts cost, with half-widths of 95 % intervals."""
    for effect in record.deletions:
        yield {
            "training": case,
            "strongest of": effect.form,
            "facts for each test": effect.num_facts,
            "fall of log-probability": effect.log_probability.mean,
            "± log-probability": effect.log_probability.half_width,
            "fall of reciprocal rank": effect.reciprocal_rank.mean,
            "± reciprocal rank": effect.reciprocal_rank.half_width,
        }


def main(cases: list[str]) -> None:
    """Measure the cases, print and write."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        found = {case: measure(case) for case in cases}
    results = {
        "runs": [about for about, _ in found.values()],
        "datamodelling scores": [
            row for case, (_, record) in found.items() for row in score_rows(case, record)
        ],
        "deletions": [
            row for case, (_, record) in found.items() for row in deletion_rows(case, record)
        ],
    }
    write_results(NAME, results)


if __name__ == "__main__":
    main(sys.argv[1:] or list(CASES))
