"""Compares Clew's explanations with published ones: how much does deleting their facts cost?

    CLEW_DATA=... python -m experiments.benchmarks.influence_kelpie [data set ...]

Kelpie's authors (Rossi et al., 2022) published the training facts that four methods delete, for 100
test facts of WN18RR and of FB15k-237 that their ConvE ranked first. This benchmark trains a ConvE
and keeps the test facts that it also ranks first. Every method deletes the same number of facts for
each test fact, all at once as the authors did, and the model is trained again with other seeds. The
controls delete nothing, a random fact that shares an entity, or a random sibling (same relation,
same head or tail).

Models are trained on the part of the graph within a number of steps of the 100 test facts (`steps`;
0 means the whole graph), because 35 runs on all facts would take hours. Retrainings are saved
in `runs/influence_kelpie`, so a command that was killed continues where it stopped. Each data set
has its own result file.
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clew.config.load import load
from clew.influence.outcomes import (
    Examiner,
    Outcomes,
    measured,
    random_scores,
    siblings,
    strongest,
    touching,
)
from clew.influence.retraining import (
    NOTHING,
    KeptRetrainings,
    Retrainer,
    Retraining,
)
from clew.link_prediction.triples import KnowledgeGraph, Triples
from clew.workflows.explaining.trace_source import TraceSource, open_trace_source
from clew.workflows.explaining.validate_influence import identity
from clew.workflows.explaining.validation_plan import scores_by_form
from clew.workflows.train import train
from experiments.benchmarks.harness import print_table, write_results

NAME = "influence_kelpie"
KEPT = Path("runs") / NAME
SMALL = {
    "model.embedding_dim": 64,
    "model.embedding_height": 8,
    "model.embedding_width": 8,
    "model.output_channels": 16,
    "loss.kind": "kvs_all",
    "loss.function": "softmax_cross_entropy",
    "schedule.kind": "warmup_cosine",
    "training.device": "cpu",
    "evaluation.enabled": False,
}
FORMS = ("raw", "cosine", "deflated", "kronecker")
PUBLISHED = ("criage", "dp", "k1")
"""Methods that delete one fact for each test fact: CRIAGE, Data Poisoning, Kelpie."""
UP_TO_FOUR = "kelpie"
SEEDS = 2
NOTHING_DELETED = "nothing"

Row = dict[str, object]
Fact = tuple[str, str, str]
Deleted = list[np.ndarray]
"""The indices of the deleted training facts, for each test fact."""


@dataclass(frozen=True)
class Case:
    """A data set, and the settings of its model."""

    key: str
    """The data set's name in the names of the published files."""
    config: str
    steps: int
    settings: Mapping[str, object]


CASES = {
    "WN18RR": Case(
        "wn18rr",
        "wn18rr.yaml",
        2,
        {
            "optimizer.learning_rate": 0.003,
            "training.num_epochs": 30,
            "training.batch_size": 256,
            "training.checkpoint_frequency": 10,
        },
    ),
    "FB15k-237": Case(
        "fb15k237",
        "fb15k237.yaml",
        1,
        {
            "optimizer.learning_rate": 0.003,
            "training.num_epochs": 10,
            "training.batch_size": 512,
            "training.checkpoint_frequency": 5,
        },
    ),
}


def published(method: str, case: Case) -> dict[Fact, list[Fact]]:
    """Return the facts that a published method deletes for each test fact."""
    path = Path(os.environ["CLEW_DATA"]) / "kelpie" / f"{method}_conve_{case.key}.csv"
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = line.split(";")
        facts = [tuple(fields[place : place + 3]) for place in range(0, len(fields) - 4, 3)]
        test, *deleted = (fact for fact in facts if all(fact))
        found[test] = deleted
    return found  # type: ignore[return-value]


def part_of_graph(data_set: str, tests: list[Fact], steps: int, folder: Path) -> dict[str, str]:
    """Write the training facts within `steps` of the test facts, and return the files' settings."""
    lines = (Path(os.environ["CLEW_DATA"]) / data_set / "train.txt").read_text(encoding="utf-8")
    facts = [line.split("\t") for line in lines.splitlines()]
    near = {entity for head, _, tail in tests for entity in (head, tail)}
    for _ in range(steps):
        touched = [fact for fact in facts if fact[0] in near or fact[2] in near]
        near |= {fact[end] for fact in touched for end in (0, 2)}
    kept = [fact for fact in facts if not steps or (fact[0] in near and fact[2] in near)]
    files = {}
    for name, rows in (("train", kept), ("test", [list(test) for test in tests])):
        path = folder / f"{data_set}-{name}.txt"
        path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
        files[f"data.{name}"] = str(path)
    return files


def to_indices(graph: KnowledgeGraph, tests: Triples, given: Mapping[Fact, list[Fact]]) -> Deleted:
    """Return the indices of a published method's facts among the training facts."""
    place = {tuple(row): index for index, row in reversed(list(enumerate(graph.train.tolist())))}
    names = {tuple(_names(graph, row)): row for row in tests}

    def indices(test: np.ndarray) -> np.ndarray:
        facts = given[_names(graph, test)]
        ids = [
            (graph.entities.id(h), graph.relations.id(r), graph.entities.id(t)) for h, r, t in facts
        ]
        return np.array([place[one] for one in ids], np.int64)

    return [indices(test) for test in names.values()]


def _names(graph: KnowledgeGraph, triple: np.ndarray) -> Fact:
    head, relation, tail = triple.tolist()
    return graph.entities.name(head), graph.relations.name(relation), graph.entities.name(tail)


def deletions(
    source: TraceSource, tests: Triples, case: Case
) -> Iterator[tuple[str, str, Deleted]]:
    """Yield the number of deleted facts, the method that chose them, and the facts."""
    graph = source.task.graph
    noise = random_scores(graph, tests)
    scores = scores_by_form(FORMS, source, tests) | {
        "siblings": siblings(graph, tests),
        "touching": touching(graph, tests),
    }
    counts = {
        "one": [1] * len(tests),
        "as many as Kelpie": [
            len(facts) for facts in to_indices(graph, tests, published(UP_TO_FOUR, case))
        ],
    }
    for method in PUBLISHED:
        yield "one", method, to_indices(graph, tests, published(method, case))
    yield "as many as Kelpie", UP_TO_FOUR, to_indices(graph, tests, published(UP_TO_FOUR, case))
    for name, numbers in counts.items():
        for method, values in scores.items():
            # Ties are broken at random; facts that share no entity with the test come last.
            ties = noise + 100.0 * scores["touching"]
            yield (
                name,
                method,
                [strongest(values[row], count, ties[row]) for row, count in enumerate(numbers)],
            )


def measure(data_set: str) -> tuple[list[Row], list[Row], Row]:
    """Return the effect of each method, its difference from published methods, and the model."""
    case = CASES[data_set]
    tests = list(published(UP_TO_FOUR, case))
    with tempfile.TemporaryDirectory() as folder:
        files = part_of_graph(data_set, tests, case.steps, Path(folder))
        unnamed = {"data.name": None, "data.valid": None, **files}
        run = train(
            load(
                f"experiments/link_prediction/{case.config}", {**SMALL, **case.settings, **unnamed}
            )
        )
        with open_trace_source(str(run.run_id), {"influence.top_k": 0}) as source:
            return _measure(data_set, case, source)


def _measure(data_set: str, case: Case, source: TraceSource) -> tuple[list[Row], list[Row], Row]:
    graph, config = source.task.graph, source.model.config
    trained = Examiner(graph, config, graph.test).examine(source.tracer.models[-1]).of("tail")
    tests = graph.test[trained.rank[0] == 1.0]
    chosen = {(count, method): facts for count, method, facts in deletions(source, tests, case)}
    chosen["one", NOTHING_DELETED] = [NOTHING] * len(tests)
    after = retrained(data_set, source, tests, chosen)
    before = after["one", NOTHING_DELETED]
    mrr = {key: _mean([1 / o.rank[0] for o in found]) for key, found in after.items()}
    log_probability = {
        key: _mean([o.log_probability[0] for o in found]) for key, found in after.items()
    }
    nothing = "one", NOTHING_DELETED
    rows = [
        {
            "data set": data_set,
            "facts for each": key[0],
            "chosen by": key[1],
            "facts": len(np.unique(np.concatenate(chosen[key]))),
            "MRR after": float(mrr[key].mean()),
            **_interval("fall of MRR", mrr[nothing] - mrr[key]),
            **_interval("fall of log-probability", log_probability[nothing] - log_probability[key]),
        }
        for key in chosen
    ]
    compared = [
        {
            "data set": data_set,
            "facts for each": key[0],
            "ours": key[1],
            "published": other,
            **_interval("further fall of MRR", mrr[key[0], other] - mrr[key]),
            **_interval(
                "further fall of log-probability",
                log_probability[key[0], other] - log_probability[key],
            ),
        }
        for key in chosen
        if key[1] in FORMS
        for other in (PUBLISHED if key[0] == "one" else (UP_TO_FOUR,))
    ]
    about: Row = {
        "data set": data_set,
        "steps": case.steps,
        "entities": graph.num_entities,
        "training facts": len(graph.train),
        "test facts": len(graph.test),
        "ranked first": len(tests),
        "other seeds": len(before),
        "data_fingerprint": source.task.data_fingerprint,
    }
    return rows, compared, about


def retrained(
    data_set: str, source: TraceSource, tests: Triples, chosen: Mapping[tuple[str, str], Deleted]
) -> dict[tuple[str, str], list[Outcomes]]:
    """Train without each choice of facts, with each seed, and return the outcomes of the tails."""
    graph, config = source.task.graph, source.model.config
    seeds = [config.training.seed + 1 + number for number in range(SEEDS)]
    plans = {
        key: [Retraining(seed, np.unique(np.concatenate(facts))) for seed in seeds]
        for key, facts in chosen.items()
    }
    folder = KeptRetrainings(KEPT / data_set, identity(source, tests))
    retrainer = Retrainer(graph, config, source.model.manifest, source.tracer.device)
    examiner = Examiner(graph, config, tests)
    every = {one.key: one for plan in plans.values() for one in plan}
    missing = [one for one in every.values() if one not in folder]
    print(f"{data_set}: {len(missing)} of {len(every)} retrainings to do", flush=True)
    for one, model in retrainer.train_each(missing):
        folder.write(one, examiner.examine(model))
        print(f"{data_set}: {one.key} done", flush=True)
    return {key: [folder.read(one).of("tail") for one in plan] for key, plan in plans.items()}


def _mean(values: list[np.ndarray]) -> np.ndarray:
    mean: np.ndarray = np.mean(values, axis=0)
    return mean


def _interval(name: str, values: np.ndarray) -> Row:
    found = measured(values)
    return {name: found.mean, f"± {name}": found.half_width}


def main(data_sets: list[str]) -> None:
    """Measure the data sets, and print and write the results."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        for data_set in data_sets:
            rows, compared, about = measure(data_set)
            print_table(rows)
            print()
            print_table(compared)
            found = {"models": [about], "falls": rows, "beyond published methods": compared}
            write_results(NAME, found, part=data_set)


if __name__ == "__main__":
    if "CLEW_DATA" not in os.environ:
        print(f"{NAME}: skipped, needs the data set kelpie under $CLEW_DATA")
    else:
        main(sys.argv[1:] or list(CASES))
