"""Do influence scores say what retraining does? The test of explanations, and the default by it.

    python -m experiments.benchmarks.influence_validation [dense]

Each case trains a run and tests its explanations as `clew validate-influence` does: random subsets
of facts are dropped, the strongest facts of test triples are deleted, and the model is trained
again with its own seed and with others. The models are small, so that one takes seconds.
Retrainings are kept in `runs/influence_validation`; a command that was killed goes on where it was.
`dense` means the densest parts of two data sets, after the example of the kinship graph: few
entities, few relations, many facts. Both groups have a result file.

The default form of score is chosen by this rule, written down before the measurement: the form
whose datamodelling score with other seeds, averaged over all cases and both explained losses of the
tail's question, is the highest; among forms within .01 of it the one that comes first in the list
of the setting `influence.score`, which names the simpler ones first. The default of
`influence.test_loss` is the one with the higher score of that form, averaged over cases.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import get_args

from clew.config.load import load
from clew.config.services import Question, TestLoss
from clew.runs.validation_record import ValidationRecord
from clew.workflows.train import train
from clew.workflows.validating.experiment import FORMS
from clew.workflows.validating.validate_influence import ValidationRequest, validate_influence
from experiments.benchmarks.dense_part import write_dense_part
from experiments.benchmarks.harness import result_file, write_results

NAME = "influence_validation"
CONFIGS = Path("experiments/link_prediction")
KEPT = Path("runs") / NAME
SMALL = {
    "model.embedding_dim": 32,
    "model.output_channels": 8,
    "training.device": "cpu",
    "evaluation.every_epochs": 1000,  # only after the last one: nothing here depends on it
}
SEEDS, TESTS, HOURS = 2, 100, 3.0
FIRST_MEMBER_SEED = 1000
"""Of the further runs of an ensemble; far from the seeds of retrainings."""
CLOSE = 0.01
"""Forms that are so close count as equal."""
TAIL: Question = "tail"

Row = dict[str, object]


@dataclass(frozen=True)
class Case:
    """A training, and how much of its test can be afforded."""

    config: str
    settings: Mapping[str, object]
    subsets: int
    deletions: int
    members: int = 0
    """Runs of an ensemble whose mean scores are tested too."""
    questions: Sequence[tuple[Question, TestLoss]] = field(
        default=((TAIL, "trained"), (TAIL, "filtered"))
    )
    dense_part_of: str = ""
    """Data set whose densest part is trained on; empty: the configuration's own data."""


EVERY_QUESTION: tuple[tuple[Question, TestLoss], ...] = (
    (TAIL, "trained"),
    (TAIL, "filtered"),
    ("both", "trained"),
)
CASES: dict[str, Case] = {
    "umls, k-vs-all": Case(
        "umls.yaml", SMALL | {"loss.kind": "kvs_all"}, 40, 15, 10, EVERY_QUESTION
    ),
    # An epoch has seven times as many rows.
    "umls, 1-vs-all": Case(
        "umls.yaml",
        SMALL
        | {
            "loss.kind": "one_vs_all",
            "training.num_epochs": 12,
            "training.checkpoint_frequency": 3,
        },
        30,
        10,
        10,
        EVERY_QUESTION,
    ),
    "codex-s, k-vs-all": Case(
        "codex_s.yaml",
        SMALL
        | {
            "loss.kind": "kvs_all",
            "loss.function": "binary_cross_entropy",
            "training.num_epochs": 30,
            "training.checkpoint_frequency": 6,
        },
        16,
        5,
    ),
    "drugmechdb, k-vs-all": Case(
        "drugmechdb.yaml",
        SMALL
        | {
            "loss.kind": "kvs_all",
            "loss.function": "binary_cross_entropy",
            "training.num_epochs": 30,
            "training.checkpoint_frequency": 6,
        },
        16,
        5,
    ),
}
DENSE_SETTINGS = SMALL | {"loss.kind": "kvs_all", "data.name": None}
DENSE_CASES = {
    f"densest part of {data_set}": Case("umls.yaml", DENSE_SETTINGS, 40, 15, dense_part_of=data_set)
    for data_set in ("FB15k-237", "codex-s")
}
GROUPS = {"": CASES, "dense": DENSE_CASES}
SCORES = "datamodelling scores"


def measure(
    name: str, case: Case, files: Mapping[str, object]
) -> tuple[Row, list[ValidationRecord]]:
    """Train the runs of a case and test their explanations; return what it was, and the results."""
    settings = {**case.settings, **files}
    config = load(str(CONFIGS / case.config), settings)
    run = train(config)
    assert run.run_id is not None
    runs = [run.run_id]
    for seed in range(FIRST_MEMBER_SEED, FIRST_MEMBER_SEED + case.members - 1):
        member = train(load(str(CONFIGS / case.config), {**settings, "training.seed": seed}))
        assert member.run_id is not None
        runs.append(member.run_id)
    records = []
    for tested in [runs[:1], runs][: 1 + bool(case.members)]:
        alone = len(tested) == 1
        for question, loss in case.questions if alone else [(TAIL, "trained")]:
            request = ValidationRequest(
                ",".join(tested),
                subsets=case.subsets,
                seeds=SEEDS,
                drop=(0.5,),
                tests=TESTS,
                deletions=case.deletions if alone and (question, loss) == case.questions[0] else 0,
                direction=question,
                test_loss=loss,
                max_hours=HOURS,
                output_dir=KEPT / name.replace(", ", "-"),
            )
            record = validate_influence(
                request, say=lambda line: print(f"{name}: {line}", flush=True)
            ).record
            print("\n".join([_title(name, record), *record.markdown()]), flush=True)
            records.append(record)
    about: Row = {
        "training": name,
        "test MRR": run.metrics["test/mrr"],
        "test triples": records[0].num_tests,
        "subsets": records[0].num_subsets,
        "other seeds": records[0].num_other_seeds,
        "retrainings": len(list((KEPT / name.replace(", ", "-")).glob("seed-*.npz"))),
        "ceiling": records[0].ceilings[0].correlation,
        "largest difference": records[0].largest_difference,
    }
    return about, records


def _title(name: str, record: ValidationRecord) -> str:
    runs = f"mean of {len(record.ensemble)} runs, " if record.ensemble else ""
    return f"{name}, {runs}{record.direction}, {record.test_loss} loss"


def _about(name: str, record: ValidationRecord) -> Row:
    return {
        "training": name,
        "runs": max(1, len(record.ensemble)),
        "question": record.direction,
        "loss": record.test_loss,
    }


def score_rows(name: str, record: ValidationRecord) -> Iterator[Row]:
    """Yield the datamodelling scores of each form, with half-widths of 95 % intervals."""
    found = {(score.form, score.seeds): score for score in record.scores}
    for form in dict.fromkeys(score.form for score in record.scores):
        same, other = found[form, "same"].correlation, found[form, "other"].correlation
        over = found[form, "other"].over_siblings
        yield _about(name, record) | {
            "form": form,
            "same seed": same.mean,
            "± same": same.half_width,
            "other seeds": other.mean,
            "± other": other.half_width,
            "over siblings": over and over.mean,
            "± over siblings": over and over.half_width,
        }


def deletion_rows(name: str, record: ValidationRecord) -> Iterator[Row]:
    """Yield what deleting the strongest facts cost, with half-widths of 95 % intervals."""
    for effect in record.deletions:
        yield _about(name, record) | {
            "strongest of": effect.form,
            "facts for each test": effect.num_facts,
            "fall of log-probability": effect.log_probability.mean,
            "± log-probability": effect.log_probability.half_width,
            "fall of reciprocal rank": effect.reciprocal_rank.mean,
            "± reciprocal rank": effect.reciprocal_rank.half_width,
        }


def choose(rows: Sequence[Row]) -> Row:
    """Choose the defaults from rows of `score_rows` by the rule of this file's beginning."""
    losses: tuple[TestLoss, ...] = get_args(TestLoss)
    averages = {
        (form, loss): mean(
            float(str(row["other seeds"]))
            for row in rows
            if (row["form"], row["loss"], row["question"], row["runs"]) == (form, loss, TAIL, 1)
        )
        for form in FORMS
        for loss in losses
    }
    by_form = {form: mean(averages[form, loss] for loss in losses) for form in FORMS}
    best = max(by_form.values())
    chosen = next(form for form in FORMS if by_form[form] >= best - CLOSE)
    return {
        "form": chosen,
        "test loss": max(losses, key=lambda loss: averages[chosen, loss]),
        "averages": [
            {"form": form, **{loss: averages[form, loss] for loss in losses}} for form in FORMS
        ],
    }


def recorded_scores(other_than: str) -> list[Row]:
    """Return the datamodelling scores of the other group, if they were recorded."""
    (other,) = {*GROUPS} - {other_than}
    path = result_file(NAME, other)
    if not path.is_file():
        return []
    found: list[Row] = json.loads(path.read_text(encoding="utf-8"))["results"][SCORES]
    return found


def main(group: str) -> None:
    """Measure a group of cases, print and write."""
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        for name, case in GROUPS[group].items():
            part = case.dense_part_of
            files = write_dense_part(part, Path(folder) / part) if part else {}
            measured[name] = measure(name, case, files)
    every = [(name, record) for name, (_, records) in measured.items() for record in records]
    scores = [row for name, record in every for row in score_rows(name, record)]
    results = {
        "runs": [about for about, _ in measured.values()],
        SCORES: scores,
        "deletions": [row for name, record in every for row in deletion_rows(name, record)],
        "chosen": choose(scores + recorded_scores(group)),
    }
    print(results["chosen"])
    write_results(NAME, results, part=group)


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else "")
