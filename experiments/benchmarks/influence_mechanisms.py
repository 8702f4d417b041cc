"""Ground truth for explanations: are a treatment's curated mechanism links its top proponents?

    CLEW_DATA=... python -m experiments.benchmarks.influence_mechanisms [run id]

DrugMechDB holds drug-treats-disease triples and, for each, the links of an expert's mechanism. For
held-out treatments whose mechanism links are training triples, training triples are ranked by
their score; siblings (the test's own relation with its head or its tail) are left out. Reported is
how often a mechanism link comes first, and is among the first ten, beside random orders of the
training triples that touch head or tail, since most of those are mechanism links anyway.

Without a run id the model of `experiments/link_prediction/drugmechdb.yaml` is trained first.
"""

import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from clew.config.load import load
from clew.influence.link_prediction.tracin import Explanation
from clew.link_prediction.triples import HEAD, RELATION, TAIL, KnowledgeGraph
from clew.workflows.trace_source import TraceSource, open_trace_source
from clew.workflows.train import train
from experiments.benchmarks.harness import print_table, write_results

NAME = "influence_mechanisms"
TREATS = "treats"
NUM_TESTS = 100
RANDOM_ORDERS = 200
CONFIG = "experiments/link_prediction/drugmechdb.yaml"

Test = tuple[np.ndarray, np.ndarray]
"""A test triple, and the training triples of its mechanism."""


def mechanisms(graph: KnowledgeGraph, path: Path) -> list[Test]:
    """Return held-out treatments with the training triples of their mechanisms."""
    place = {tuple(row): index for index, row in reversed(list(enumerate(graph.train.tolist())))}
    links: dict[tuple[str, str], set[int]] = defaultdict(set)
    for line in path.read_text(encoding="utf-8").splitlines():
        _, drug, disease, mechanism = line.split("\t")
        for link in mechanism.split("|"):
            head, relation, tail = link.split(">")
            known = head in graph.entities and tail in graph.entities
            if known and relation in graph.relations:
                ids = (graph.entities.id(head), graph.relations.id(relation))
                index = place.get((*ids, graph.entities.id(tail)))
                if index is not None:
                    links[drug, disease].add(index)
    treats = graph.relations.id(TREATS)
    found = []
    for triple in graph.test[graph.test[:, RELATION] == treats]:
        pair = (graph.entities.name(triple[HEAD]), graph.entities.name(triple[TAIL]))
        own = np.array(sorted(links.get(pair, ())), np.int64)
        if len(own[~siblings(graph, triple)[own]]):
            found.append((triple, own))
    return found[:NUM_TESTS]


def siblings(graph: KnowledgeGraph, triple: np.ndarray) -> np.ndarray:
    """Return which training triples share the test's relation and its head or its tail."""
    train = graph.train
    near = (train[:, HEAD] == triple[HEAD]) | (train[:, TAIL] == triple[TAIL])
    hidden: np.ndarray = near & (train[:, RELATION] == triple[RELATION])
    return hidden


def touching(graph: KnowledgeGraph, triple: np.ndarray) -> np.ndarray:
    """Return the training triples with an end in common with the test, siblings left out."""
    ends = [triple[HEAD], triple[TAIL]]
    near = np.isin(graph.train[:, HEAD], ends) | np.isin(graph.train[:, TAIL], ends)
    return np.flatnonzero(near & ~siblings(graph, triple))


def rates(ranked: list[np.ndarray], tests: list[Test]) -> dict[str, float]:
    """Return how often a mechanism link is first, and among the first ten."""
    hits = [np.isin(order[:10], own) for order, (_, own) in zip(ranked, tests, strict=True)]
    return {
        "first": float(np.mean([hit[:1].any() for hit in hits])),
        "among first 10": float(np.mean([hit.any() for hit in hits])),
        "share of first 10": float(np.mean([hit.mean() for hit in hits])),
    }


def orders(
    explanations: list[Explanation], tests: list[Test], graph: KnowledgeGraph, *, cosine: bool
) -> list[np.ndarray]:
    """Return training triples by falling score, siblings left out."""
    ranked: list[np.ndarray] = []
    for explanation in explanations:
        scored = explanation.proponents
        for row in range(len(scored.train)):
            train = scored.train[row]
            if cosine:
                assert scored.cosine is not None
                train = train[np.argsort(-scored.cosine[row], kind="stable")]
            hidden = siblings(graph, tests[len(ranked)][0])
            ranked.append(train[~hidden[train]])
    return ranked


def by_chance(graph: KnowledgeGraph, tests: list[Test]) -> dict[str, float]:
    """Return the rates of random orders of the triples that touch head or tail."""
    generator = np.random.default_rng(0)
    found = [
        rates([generator.permutation(touching(graph, triple)) for triple, _ in tests], tests)
        for _ in range(RANDOM_ORDERS)
    ]
    return {key: float(np.mean([rate[key] for rate in found])) for key in found[0]}


def forms(run_id: str) -> Iterator[tuple[str, dict[str, float], TraceSource]]:
    """Yield the rates of each form of the score."""
    path = Path(os.environ["CLEW_DATA"]) / "drugmechdb" / "mechanism_paths.tsv"
    for score in ("raw", "preconditioned"):
        settings = {"influence.score": score, "influence.top_k": 0}
        with open_trace_source(run_id, settings) as source:
            graph = source.task.graph
            tests = mechanisms(graph, path)
            explanations = source.tracer.explain(np.array([triple for triple, _ in tests]))
            for cosine in (False, True):
                ranked = orders(explanations, tests, graph, cosine=cosine)
                name = f"{score}, cosine" if cosine else score
                yield name, rates(ranked, tests), source
            if score == "raw":
                yield "random neighbours", by_chance(graph, tests), source


def main(run_id: str) -> None:
    """Train if there is no run, compare the forms, print and write."""
    trained: dict[str, float] = {}
    if not run_id:
        result = train(load(CONFIG, {}))
        assert result.run_id is not None
        run_id, trained = result.run_id, result.metrics
    table, about = [], {}
    for name, found, source in forms(run_id):
        table.append({"score": name, **found})
        about = {
            "checkpoints": [[c.epoch, c.learning_rate_weight] for c in source.checkpoints],
            "data_fingerprint": source.task.data_fingerprint,
        }
        print_table(table[-1:])
    print()
    print_table(table)
    quality = {key: value for key, value in trained.items() if key.startswith("test/")}
    write_results(NAME, {"table": table, "model": about | quality, "tests": NUM_TESTS})


if __name__ == "__main__":
    if "CLEW_DATA" not in os.environ:
        print(f"{NAME}: left out, needs the data set drugmechdb under $CLEW_DATA")
    elif len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
            main("")
