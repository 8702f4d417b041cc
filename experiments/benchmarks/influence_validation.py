"""Tests whether influence scores predict retraining, and chooses the default form of score.

    python -m experiments.benchmarks.influence_validation [dense | models | wordnet]

Each case trains a run and tests its explanations as `clew validate-influence` does: random subsets
of facts are dropped, the strongest facts of test triples are deleted, and the model is trained
again with its own seed and with others. The models are small, so training takes seconds.
Retrainings are saved in `runs/influence_validation`, so a command that was killed continues where
it stopped. `dense` tests the densest parts of two data sets. Like the kinship graph, they have few
entities, few relations and many facts. `models` tests ConvE, ComplEx and RotatE on UMLS and on the
densest parts of three data sets, `wordnet` on WN18RR's. Each group has a result file.

The default form of score is chosen by a rule that was written down before the measurement. It is
the form with the highest datamodelling score with other seeds, averaged over all cases and both
explained losses of the tail's question. If several forms are within 0.01 of the highest, the first
one in the list of the setting `influence.score` is chosen, because the list starts with the simpler
forms. The default of `influence.test_loss` is the loss with the higher score of the chosen form,
averaged over cases.

For `models` and `wordnet` together, the rule is applied to the models that allow every form (ConvE
and ComplEx), and apart to RotatE, which allows neither `deflated` nor `kronecker`; cases whose test
MRR is below 0.3 do not count.
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
from clew.config.services import Question, TestLoss, ValidationRequest
from clew.runs.validation_record import ValidationRecord
from clew.workflows.explaining.validate_influence import validate_influence
from clew.workflows.explaining.validation_plan import FORMS
from clew.workflows.train import train
from experiments.benchmarks.dense_part import NUM_ENTITIES, write_dense_part
from experiments.benchmarks.harness import result_file, write_results

NAME = "influence_validation"
CONFIGS = Path("experiments/link_prediction")
KEPT = Path("runs") / NAME
SMALL = {
    "model.embedding_dim": 32,
    "model.output_channels": 8,
    "training.device": "cpu",
    "evaluation.every_epochs": 1000,  # only after the last epoch: no result depends on it
}
ROWS = {"loss.kind": "kvs_all", "loss.function": "softmax_cross_entropy"}
SMALL_PLAIN = {
    "model.embedding_dim": 64,
    "training.device": "cpu",
    "evaluation.every_epochs": 1000,
}
SEEDS, TESTS, HOURS = 2, 100, 3.0
FIRST_MEMBER_SEED = 1000
"""Seed of the second run of an ensemble; far from the seeds of retrainings."""
CLOSE = 0.01
"""The largest difference between forms that count as equal."""
TAIL: Question = "tail"

Row = dict[str, object]


@dataclass(frozen=True)
class Case:
    """A training run, and the size of the test of its explanations."""

    config: str
    settings: Mapping[str, object]
    subsets: int
    deletions: int
    members: int = 0
    """Number of runs of an ensemble whose mean scores are tested too; 0 means no ensemble."""
    questions: Sequence[tuple[Question, TestLoss]] = field(
        default=((TAIL, "trained"), (TAIL, "filtered"))
    )
    dense_part_of: str = ""
    """Data set whose densest part is used; empty means the configuration's own data."""


EVERY_QUESTION: tuple[tuple[Question, TestLoss], ...] = (
    (TAIL, "trained"),
    (TAIL, "filtered"),
    ("both", "trained"),
)
CASES: dict[str, Case] = {
    "umls, k-vs-all": Case(
        "umls.yaml", SMALL | {"loss.kind": "kvs_all"}, 40, 15, 10, EVERY_QUESTION
    ),
    # An epoch has seven times as many rows as with k-vs-all.
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
MODELS = {
    "ConvE": ("umls.yaml", SMALL),
    "ComplEx": ("umls_complex.yaml", SMALL_PLAIN),
    "RotatE": ("umls_rotate.yaml", SMALL_PLAIN),
}
MODEL_CASES = {
    f"{model} on {graph or 'umls'}": Case(
        config,
        settings | ROWS | ({"data.name": None} if graph else {}),
        40,
        15,
        dense_part_of=graph,
    )
    for graph in ("", *NUM_ENTITIES)
    for model, (config, settings) in MODELS.items()
}
WORDNET_CASES = {name: MODEL_CASES.pop(name) for name in [*MODEL_CASES] if "WN18RR" in name}
GROUPS = {"": CASES, "dense": DENSE_CASES, "models": MODEL_CASES, "wordnet": WORDNET_CASES}
OTHER = {"": "dense", "dense": "", "models": "wordnet", "wordnet": "models"}
"""The group whose recorded results count in a group's choice too."""
LEARNED_MRR = 0.3
"""A model with a lower test MRR does not count in the choice from `models`."""
SCORES, RUNS = "datamodelling scores", "runs"


def measure(
    name: str, case: Case, files: Mapping[str, object]
) -> tuple[Row, list[ValidationRecord]]:
    """Train the runs of a case, test their explanations, and return a summary and the results."""
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
                model=",".join(tested),
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
        over = found[form, "other"].over_baseline
        yield _about(name, record) | {
            "form": form,
            "same seed": same.mean,
            "± same": same.half_width,
            "other seeds": other.mean,
            "± other": other.half_width,
            "over baseline": over and over.mean,
            "± over baseline": over and over.half_width,
        }


def deletion_rows(name: str, record: ValidationRecord) -> Iterator[Row]:
    """Yield the effects of deleting the strongest facts, with half-widths of 95 % intervals."""
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
    """Choose the defaults from rows of `score_rows` by the rule in the module's docstring.

    Only forms that every training run allows can be chosen.
    """
    losses: tuple[TestLoss, ...] = get_args(TestLoss)
    allowed = [{row["form"] for row in rows if row["training"] == name} for name in runs_of(rows)]
    forms = [form for form in FORMS if all(form in each for each in allowed)]
    averages = {
        (form, loss): mean(
            float(str(row["other seeds"]))
            for row in rows
            if (row["form"], row["loss"], row["question"], row["runs"]) == (form, loss, TAIL, 1)
        )
        for form in forms
        for loss in losses
    }
    by_form = {form: mean(averages[form, loss] for loss in losses) for form in forms}
    best = max(by_form.values())
    chosen = next(form for form in forms if by_form[form] >= best - CLOSE)
    return {
        "training": ", ".join(runs_of(rows)),
        "form": chosen,
        "test loss": max(losses, key=lambda loss: averages[chosen, loss]),
        "averages": [
            {"form": form, **{loss: averages[form, loss] for loss in losses}} for form in forms
        ],
    }


def runs_of(rows: Sequence[Row]) -> list[str]:
    """Return the names of the training runs in rows of `score_rows`."""
    return list(dict.fromkeys(str(row["training"]) for row in rows))


def choices(group: str, rows: Sequence[Row], about: Sequence[Row]) -> list[Row]:
    """Choose for the models of a group: for all together, or apart for those that allow less."""
    rows = [*rows, *recorded(OTHER[group], SCORES)]
    if group not in {"models", "wordnet"}:
        return [choose(rows)]
    about = [*about, *recorded(OTHER[group], RUNS)]
    learned = {row["training"] for row in about if float(str(row["test MRR"])) >= LEARNED_MRR}
    counted = [row for row in rows if row["training"] in learned]
    is_distance = [str(row["training"]).startswith("RotatE") for row in counted]
    parts = [
        [row for row, given in zip(counted, is_distance, strict=True) if given is wanted]
        for wanted in (False, True)
    ]
    return [choose(part) for part in parts if part]


def recorded(group: str, kind: str) -> list[Row]:
    """Return the recorded results of a group, or an empty list."""
    path = result_file(NAME, group)
    if not path.is_file():
        return []
    found: list[Row] = json.loads(path.read_text(encoding="utf-8"))["results"][kind]
    return found


def main(group: str) -> None:
    """Measure a group of cases, and print and write the results."""
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        parts = {case.dense_part_of for case in GROUPS[group].values() if case.dense_part_of}
        files = {part: write_dense_part(part, Path(folder) / part) for part in sorted(parts)}
        for name, case in GROUPS[group].items():
            measured[name] = measure(name, case, files.get(case.dense_part_of, {}))
    every = [(name, record) for name, (_, records) in measured.items() for record in records]
    scores = [row for name, record in every for row in score_rows(name, record)]
    runs = [about for about, _ in measured.values()]
    results = {
        RUNS: runs,
        SCORES: scores,
        "deletions": [row for name, record in every for row in deletion_rows(name, record)],
        "chosen": choices(group, scores, runs),
    }
    print(results["chosen"])
    write_results(NAME, results, part=group)


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else "")
