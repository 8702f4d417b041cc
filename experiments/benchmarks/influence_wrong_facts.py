"""Measures which rankings find wrong training facts, and the benefit of removing these facts.

    python -m experiments.benchmarks.influence_wrong_facts

In 5 % of UMLS's training facts, the tail is replaced by a random entity that makes no known fact.
The other splits are unchanged. A small ConvE is trained on all of these facts, and the facts are
ranked from the most to the least suspicious:

    values            the lowest values for the validation loss, as `clew value-facts` gives them
    tuned values      the same with `--score tuned`
    raw               the lowest sums of raw scores over the validation triples
    self-influence    the largest raw score on themselves, of tail and head (Pruthi et al., 2020)
    own loss          the lowest probability that the trained model gives the fact
    random

The number of wrong facts is known. This many facts are removed from the top of each ranking, and
the model is trained again. It is also trained without the wrong facts, and without removing any
fact. Every evaluation filters the same known answers: all facts of the bundled UMLS. Each round
draws its own wrong facts, and its number is also the seed of its training. These figures are not
used to choose any setting.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from sklearn.metrics import (  # type: ignore[import-untyped]
    average_precision_score,
    roc_auc_score,
)

from clew.config.load import load
from clew.config.services import ValueRequest
from clew.influence.scores import Explanation
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.ranking import rank_triples
from clew.link_prediction.sources import BUNDLED
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import FilterIndex
from clew.workflows.explaining.trace_source import open_trace_source
from clew.workflows.explaining.value_facts import value_facts
from clew.workflows.model_source import load_source, open_model
from clew.workflows.train import TrainResult, train
from experiments.benchmarks.harness import print_table, write_results

NAME = "influence_wrong_facts"
CONFIG = "experiments/link_prediction/umls.yaml"
SMALL = {
    "model.embedding_dim": 32,
    "model.output_channels": 8,
    "training.device": "cpu",
    "evaluation.every_epochs": 1000,  # only after the last epoch: no result depends on it
}
SHARE = 0.05
ROUNDS = 3

FIGURES = ("found", "average precision", "AUC")

Row = dict[str, object]
Line = tuple[str, str, str]


def read(split: str) -> list[Line]:
    """Return the bundled facts of a split."""
    text = (BUNDLED / "umls" / f"{split}.txt").read_text(encoding="utf-8")
    return [tuple(line.split("\t")) for line in text.splitlines()]  # type: ignore[misc]


def write_with_wrong_facts(folder: Path, seed: int) -> np.ndarray:
    """Write the splits with wrong training facts; return which ones are wrong, `(train,)`."""
    random = np.random.default_rng(seed)
    splits = {split: read(split) for split in ("train", "valid", "test")}
    known = {fact for facts in splits.values() for fact in facts}
    entities = sorted({fact[end] for fact in known for end in (0, 2)})
    facts = splits["train"]
    wrong = np.zeros(len(facts), bool)
    for index in random.permutation(len(facts))[: round(SHARE * len(facts))]:
        head, relation, _ = facts[index]
        while (made := (head, relation, str(random.choice(entities)))) in known:
            pass
        facts[index] = made
        known.add(made)
        wrong[index] = True
    for split, lines in splits.items():
        text = "".join("\t".join(line) + "\n" for line in lines)
        (folder / f"{split}.txt").write_text(text, encoding="utf-8")
    return wrong


def suspicion(run: str, seed: int, num_facts: int) -> dict[str, np.ndarray]:
    """Return each ranking's degree of suspicion for each training fact, `(train,)`."""
    raw = {"influence.score": "raw", "influence.direction": "both"}
    with open_trace_source(run, raw | {"influence.top_k": 0}) as source:
        summed = sum(
            of_facts(part, num_facts) for part in source.tracer.explain(source.task.graph.valid)
        )
    with open_trace_source(run, raw | {"influence.top_k": 1}) as source:
        train_facts = source.task.graph.train
        parts = source.tracer.explain(train_facts)
        own = np.concatenate([part.self_influence for part in parts])
        scores, _ = source.tracer.scores_and_ranks(train_facts)
    return {
        "values": -value_facts(ValueRequest(model=run, score="unrolled")).values,
        "tuned values": -value_facts(ValueRequest(model=run, score="tuned")).values,
        "raw": -np.asarray(summed),
        "self-influence": own,
        "own loss": -scores,
        "random": np.random.default_rng(seed).random(num_facts),
    }


def of_facts(explanation: Explanation, num_facts: int) -> np.ndarray:
    """Return complete scores in the order of the facts, summed over the tests."""
    total = np.zeros(num_facts)
    np.add.at(total, explanation.proponents.train, explanation.proponents.influence)
    return total


def true_quality(run: str) -> list[float]:
    """Return validation and test MRR, filtered by the facts of the bundled UMLS."""
    with open_model(run) as source:
        loaded = load_source(source)
    assert isinstance(loaded.task, LinkPrediction)
    assert isinstance(loaded.model, GraphModel)
    graph = loaded.task.graph
    facts = [fact for split in ("train", "valid", "test") for fact in read(split)]
    ids = [(graph.entities.id(h), graph.relations.id(r), graph.entities.id(t)) for h, r, t in facts]
    both = graph.with_inverses(np.array(ids, np.int32))
    known = FilterIndex.from_triples(both, 2 * graph.num_relations)
    return [
        rank_triples(loaded.model, triples, known).quality()["mrr"]
        for triples in (graph.valid, graph.test)
    ]


def measure(seed: int) -> Iterator[Row]:
    """Yield, for each ranking of a round, how well it finds wrong facts, and the resulting MRR."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wrong = write_with_wrong_facts(folder, seed)
        data: dict[str, object] = {
            f"data.{split}": str(folder / f"{split}.txt") for split in ("train", "valid", "test")
        }
        facts = (folder / "train.txt").read_text(encoding="utf-8").splitlines(keepends=True)

        def trained(without: np.ndarray, changed: Mapping[str, object]) -> TrainResult:
            if without.any():
                excluded = folder / "excluded.tsv"
                lines = [fact for fact, out in zip(facts, without, strict=True) if out]
                excluded.write_text("".join(lines), encoding="utf-8")
                changed = {**changed, "data.exclude": str(excluded)}
            return train(load(CONFIG, SMALL | data | {"training.seed": seed} | dict(changed)))

        every = trained(np.zeros_like(wrong), {})
        yield row(seed, "nothing left out", every)
        yield row(seed, "the wrong facts", trained(wrong, {}))
        for ranking, suspicious in suspicion(str(every.run_id), seed, len(facts)).items():
            worst = np.zeros_like(wrong)
            worst[np.argsort(-suspicious, kind="stable")[: wrong.sum()]] = True
            yield row(seed, ranking, trained(worst, {})) | {
                "found": float(wrong[worst].mean()),
                "average precision": float(average_precision_score(wrong, suspicious)),
                "AUC": float(roc_auc_score(wrong, suspicious)),
            }


def row(seed: int, left_out: str, result: TrainResult) -> Row:
    """Return a row with a run's quality and empty figures of a ranking."""
    quality = dict(zip(("valid MRR", "test MRR"), true_quality(str(result.run_id)), strict=True))
    return {"round": seed, "left out": left_out, **quality, **dict.fromkeys(FIGURES)}


def main() -> None:
    """Measure all rounds, and print and write the results."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        rows = []
        for seed in range(ROUNDS):
            for found in measure(seed):
                rows.append(found)
                print(found, flush=True)
    print_table(rows)
    about = {"share of wrong facts": SHARE, "rounds": ROUNDS}
    write_results(NAME, {"about": about, "rankings": rows}, packages=("scikit-learn",))


if __name__ == "__main__":
    main()
