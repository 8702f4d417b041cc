"""Compares explanations with ground truth: are curated mechanism links the top proponents?

    CLEW_DATA=... python -m experiments.benchmarks.influence_mechanisms [run id]

DrugMechDB contains drug-treats-disease triples and, for each, the links of a mechanism that an
expert curated. For held-out treatments whose mechanism links are training triples, the training
triples are ranked by their score. Siblings (the test's own relation with its head or its tail) are
left out. Every form of score is measured, and also heuristics that use the graph but no model. Each
ranking is measured twice: over all training triples, and with the triples on a path from drug to
disease first.

The form is chosen on the treatments of the validation split, by a rule that was written down before
the measurement: the ranking of a model whose first fact is most often a mechanism link, and among
equal ones the first in the list. The reported rates are those of the treatments of the test split.

Without a run id, the model of `experiments/link_prediction/drugmechdb.yaml` is trained first.
"""

import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix, diags

from clew.config.load import load
from clew.config.services import InfluenceConfig
from clew.influence.link_prediction.paths import Neighbourhood
from clew.influence.outcomes import adamic_adar, measured, siblings, touching
from clew.link_prediction.triples import HEAD, RELATION, TAIL, KnowledgeGraph, Triples
from clew.workflows.explaining.trace_source import TraceSource, open_trace_source
from clew.workflows.explaining.validation_plan import FORMS, Matrix, scores_by_form
from clew.workflows.train import train
from experiments.benchmarks.harness import print_table, write_results

NAME = "influence_mechanisms"
TREATS = "treats"
CONFIG = "experiments/link_prediction/drugmechdb.yaml"
TOP = 10
TIE_ORDERS = 20
"""Number of random orders of equal scores; rates are means over these orders."""
MAX_STEPS = 4
"""The most facts of a path from drug to disease."""
DAMPING = 0.4
"""Exponent of the degree that reduces a walk's weight (Himmelstein and Baranzini, 2015)."""

Row = dict[str, object]
Mechanisms = dict[tuple[str, str], set[int]]


def mechanisms(graph: KnowledgeGraph, path: Path) -> Mechanisms:
    """Return the indices of the training triples of each drug and disease's mechanism."""
    place = {tuple(row): index for index, row in reversed(list(enumerate(graph.train.tolist())))}
    links: Mechanisms = defaultdict(set)
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
    return links


class Treatments:
    """The held-out treatments of one split whose mechanism links are training triples."""

    def __init__(self, graph: KnowledgeGraph, held_out: Triples, links: Mechanisms) -> None:
        treats = held_out[held_out[:, RELATION] == graph.relations.id(TREATS)]
        is_link = np.zeros((len(treats), len(graph.train)), bool)
        for row, (head, _, tail) in enumerate(treats.tolist()):
            pair = graph.entities.name(head), graph.entities.name(tail)
            is_link[row, sorted(links.get(pair, ()))] = True
        hidden = siblings(graph, treats) > 0
        found = (is_link & ~hidden).any(1)
        self.tests, self.hidden, self.is_link = treats[found], hidden[found], is_link[found]
        self.on_path = np.stack([self._on_path(graph, row) for row in range(len(self.tests))])

    def _on_path(self, graph: KnowledgeGraph, row: int) -> np.ndarray:
        """Return which training triples are on a path from drug to disease without siblings."""
        kept = np.flatnonzero(~self.hidden[row])
        head, _, tail = self.tests[row].tolist()
        near = Neighbourhood(graph.train[kept], graph.num_entities)
        inside = np.zeros(len(graph.train), bool)
        paths = InfluenceConfig(n_hops=MAX_STEPS // 2, strict_path_filtering=True)
        inside[kept[near.candidates(head, tail, paths)]] = True
        return inside

    def rates(self, scores: Matrix, *, paths_first: bool) -> Row:
        """Return how often a mechanism link comes first, and the recall of links in the top ten."""
        shown = np.where(self.hidden, -np.inf, scores)
        generator = np.random.default_rng(0)
        first, recall = np.zeros((2, len(self.tests)))
        for _ in range(TIE_ORDERS):
            keys = [generator.random(shown.shape), shown]
            order = np.lexsort([*keys, self.on_path] if paths_first else keys, axis=1)
            top = np.take_along_axis(self.is_link & ~self.hidden, order[:, ::-1][:, :TOP], 1)
            first += top[:, 0] / TIE_ORDERS
            links = (self.is_link & ~self.hidden).sum(1)
            recall += top.sum(1) / np.minimum(links, TOP) / TIE_ORDERS
        mean = measured(first)
        return {
            "first": mean.mean,
            "± first": mean.half_width,
            f"found among first {TOP}": float(recall.mean()),
        }


def weighted_paths(graph: KnowledgeGraph, treatments: Treatments) -> Matrix:
    """Return the weight of walks of up to `MAX_STEPS` facts from drug to disease over each fact.

    The weight of a walk is the product of `degree ** -DAMPING` over both ends of its steps, as in
    degree-weighted path counts. Walks do not use siblings.
    """
    scores = np.zeros(treatments.is_link.shape)
    for row, test in enumerate(treatments.tests):
        kept = np.flatnonzero(~treatments.hidden[row])
        u, v = graph.train[kept][:, [HEAD, TAIL]].T
        ends = (np.concatenate([u, v]), np.concatenate([v, u]))
        shape = (graph.num_entities, graph.num_entities)
        linked = csr_matrix((np.ones(2 * len(u)), ends), shape=shape)
        weight = np.maximum(np.asarray(linked.sum(1)).ravel(), 1.0) ** -DAMPING
        step = diags(weight) @ linked @ diags(weight)
        walks = []
        for end in (test[HEAD], test[TAIL]):
            reached = [np.eye(1, graph.num_entities, int(end)).ravel()]
            for _ in range(MAX_STEPS - 1):
                reached.append(step @ reached[-1])
            walks.append(reached)
        for near in range(MAX_STEPS):
            for far in range(MAX_STEPS - near):
                start, end = walks[0][near], walks[1][far]
                scores[row, kept] += weight[u] * weight[v] * (start[u] * end[v] + start[v] * end[u])
    return scores


def scored(source: TraceSource, treatments: Treatments) -> Iterator[tuple[str, bool, Matrix]]:
    """Yield the name of each ranking, whether it uses a model, and its scores."""
    graph, tests = source.task.graph, treatments.tests
    for form, scores in scores_by_form([], source, tests).items():
        yield form, True, scores
    yield "random neighbours", False, touching(graph, tests)
    yield "Adamic-Adar", False, adamic_adar(graph, tests)
    yield "degree-weighted paths", False, weighted_paths(graph, treatments)


def table(source: TraceSource, treatments: Treatments) -> list[Row]:
    """Return the rates of every ranking."""
    return [
        {"ranking": name, "of a model": of_model, "paths first": paths_first}
        | treatments.rates(scores, paths_first=paths_first)
        for name, of_model, scores in scored(source, treatments)
        for paths_first in (False, True)
    ]


def choose(validation: list[Row], test: list[Row]) -> Mapping[str, Row]:
    """Return the test rates of the model's ranking and the heuristic that the rule chooses."""
    of_models = [row for row in range(len(validation)) if validation[row]["of a model"]]
    best = max(of_models, key=lambda row: (float(str(validation[row]["first"])), -row))
    heuristics = [row for row in range(len(validation)) if not validation[row]["of a model"]]
    beside = max(heuristics, key=lambda row: (float(str(validation[row]["first"])), -row))
    return {"of a model": test[best], "heuristic": test[beside]}


def main(run_id: str) -> None:
    """Train if no run is given, compare the rankings, and print and write the results."""
    trained: dict[str, float] = {}
    if not run_id:
        result = train(load(CONFIG, {}))
        assert result.run_id is not None
        run_id, trained = result.run_id, result.metrics
    path = Path(os.environ["CLEW_DATA"]) / "drugmechdb" / "mechanism_paths.tsv"
    with open_trace_source(run_id, {"influence.top_k": 0}) as source:
        graph = source.task.graph
        links = mechanisms(graph, path)
        halves = {
            "validation": Treatments(graph, graph.valid, links),
            "test": Treatments(graph, graph.test, links),
        }
        tables = {name: table(source, half) for name, half in halves.items()}
        about: Row = {
            "checkpoints": [[c.epoch, c.learning_rate_weight] for c in source.checkpoints],
            "data_fingerprint": source.task.data_fingerprint,
        }
    for name, rows in tables.items():
        print(f"{name}, {len(halves[name].tests)} treatments")
        print_table(rows)
    chosen = choose(tables["validation"], tables["test"])
    print_table(list(chosen.values()))
    quality: Row = {key: value for key, value in trained.items() if key.startswith("test/")}
    results = {
        **tables,
        "chosen on the validation split": chosen,
        "model": about | quality,
        "treatments": {name: len(half.tests) for name, half in halves.items()},
        "forms": FORMS,
    }
    write_results(NAME, results)


if __name__ == "__main__":
    if "CLEW_DATA" not in os.environ:
        print(f"{NAME}: skipped, needs the data set drugmechdb under $CLEW_DATA")
    elif len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
            main("")
