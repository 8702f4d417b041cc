"""Measures the quality of scores on UMLS: finding corrupted triples, and the loss by filtering.

    python -m experiments.benchmarks.influence_quality [epochs]

1. Five per cent of the training triples get a random wrong tail, and a model is trained on all
   triples. Self-influence should rank the corrupted ones high. The area under the curve is measured
   for each seed, and compared with that of the training loss as a simple alternative: of the last
   checkpoint, and as the mean over the checkpoints that self-influence uses. Both scores are sums
   over the directions in which a triple is trained.
2. `batch_tracin` considers only triples near the test. This measures how many of the ten strongest
   proponents and opponents without a filter are among the candidates, and the number of candidates.

No time is measured, so each model of the first part is trained by a process of one thread.
"""

import itertools
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from scipy.stats import rankdata

from clew.config.load import load
from clew.config.services import InfluenceConfig
from clew.influence.link_prediction.paths import Neighbourhood
from clew.link_prediction.sources import BUNDLED
from clew.link_prediction.triples import add_inverses
from clew.workflows.explaining.trace_source import TraceSource, open_trace_source
from clew.workflows.train import train
from experiments.benchmarks.harness import print_table, write_results

NAME = "influence_quality"
CONFIG = "experiments/link_prediction/umls.yaml"
CORRUPTED_SHARE = 0.05
SEEDS = (0, 1, 2)
EPOCHS = 60
NUM_TESTS = 100


def corrupt(folder: Path, seed: int) -> np.ndarray:
    """Write UMLS with corrupted training triples, and return which lines are corrupted."""
    lines = [line.split("\t") for line in (BUNDLED / "umls/train.txt").read_text().splitlines()]
    generator = np.random.default_rng(seed)
    entities = sorted({name for head, _, tail in lines for name in (head, tail)})
    known = {tuple(line) for line in lines}
    chosen = generator.permutation(len(lines))[: int(CORRUPTED_SHARE * len(lines))]
    for index in chosen:
        head, relation, _ = lines[index]
        wrong = [e for e in entities if (head, relation, e) not in known]
        lines[index] = [head, relation, wrong[generator.integers(len(wrong))]]
    folder.mkdir(parents=True)
    (folder / "train.txt").write_text("\n".join("\t".join(line) for line in lines) + "\n")
    for split in ("valid", "test"):
        (folder / f"{split}.txt").write_text((BUNDLED / f"umls/{split}.txt").read_text())
    return np.isin(np.arange(len(lines)), chosen)


def area_under_curve(scores: np.ndarray, positive: np.ndarray) -> float:
    """Return the probability that a positive scores above a negative; ties count half."""
    ranks = rankdata(scores)[positive]
    count, others = int(positive.sum()), int((~positive).sum())
    return float((ranks.sum() - count * (count + 1) / 2) / (count * others))


def own_losses(source: TraceSource) -> np.ndarray:
    """Return each training triple's own loss at each checkpoint, `(checkpoint, triple)`.

    The loss is summed over directions, like self-influence.
    """
    graph, rows = source.task.graph, source.task.graph.train
    if source.task.inverse_relations:
        rows = add_inverses(rows, graph.num_relations)
    head, relation, tail = torch.from_numpy(rows.astype(np.int64)).T
    losses = []
    for model in source.tracer.models:
        assert model.entity_bias is not None
        with torch.no_grad():
            scores = model.queries(head, relation) @ model.entity.weight.T + model.entity_bias
        each = scores.logsumexp(1) - scores.gather(1, tail[:, None])[:, 0]
        losses.append(each.view(-1, len(graph.train)).sum(0).numpy())
    return np.stack(losses)


def corruption(folder: Path, kind: str, seed: int, epochs: int) -> dict[str, object]:
    """Train on corrupted triples, and return the areas under the curve."""
    torch.set_num_threads(1)
    data = folder / f"{kind}-{seed}"
    positive = corrupt(data, seed)
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{data}/mlflow.db"
    files = {f"data.{split}": str(data / f"{split}.txt") for split in ("train", "valid", "test")}
    overrides = {
        **files,
        "data.name": None,
        "loss.kind": kind,
        "training.num_epochs": epochs,
        "training.checkpoint_frequency": max(1, epochs // 4),
        "training.seed": seed,
        "evaluation.every_epochs": epochs,
    }
    run = train(load(CONFIG, overrides))
    assert run.run_id is not None
    with open_trace_source(run.run_id, {}) as source:
        own = source.tracer.self_influence()
        losses = own_losses(source)
    return {
        "training": kind,
        "seed": seed,
        "test MRR": run.metrics["test/mrr"],
        "AUC self-influence": area_under_curve(own, positive),
        "AUC last loss": area_under_curve(losses[-1], positive),
        "AUC mean loss": area_under_curve(losses.mean(0), positive),
    }


def recall(source: TraceSource) -> list[dict[str, object]]:
    """Return, for each filter, the share of the strongest triples that are candidates."""
    graph = source.task.graph
    tests = graph.test[:NUM_TESTS]
    explanations = source.tracer.explain(tests)
    strongest = [
        (np.concatenate([e.proponents.train for e in explanations])),
        (np.concatenate([e.opponents.train for e in explanations])),
    ]
    index = Neighbourhood(graph.train, graph.num_entities)
    table: list[dict[str, object]] = []
    for filtering in (
        InfluenceConfig(n_hops=1),
        InfluenceConfig(n_hops=2),
        InfluenceConfig(n_hops=2, min_degree=10),
        InfluenceConfig(n_hops=1, strict_path_filtering=True),
        InfluenceConfig(n_hops=2, strict_path_filtering=True),
    ):
        found: tuple[list[float], list[float]] = ([], [])
        sizes = []
        for row, (head, _, tail) in enumerate(tests.tolist()):
            candidates = index.candidates(head, tail, filtering)
            sizes.append(len(candidates))
            for side, best in zip(found, strongest, strict=True):
                own = best[row][best[row] >= 0]
                if len(own):
                    side.append(float(np.isin(own, candidates).mean()))
        table.append(
            {
                "data": graph.name,
                "n_hops": filtering.n_hops,
                "min_degree": filtering.min_degree,
                "strict paths": filtering.strict_path_filtering,
                "share of triples": float(np.mean(sizes)) / len(graph.train),
                "recall of proponents": float(np.mean(found[0])),
                "recall of opponents": float(np.mean(found[1])),
            }
        )
    return table


def main(epochs: int) -> None:
    """Measure both qualities, and print and write the results."""
    with tempfile.TemporaryDirectory() as folder:
        cases = list(itertools.product(("one_vs_all", "kvs_all"), SEEDS))
        with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
            found = [pool.submit(corruption, Path(folder), *case, epochs) for case in cases]
            table = [one.result() for one in found]
        print_table(table)
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        overrides = {"training.num_epochs": epochs, "training.checkpoint_frequency": epochs // 4}
        run = train(load(CONFIG, overrides))
        with open_trace_source(run.run_id or "", {"influence.with_cosine": False}) as source:
            filters = recall(source)
        print_table(filters)
        results = {"epochs": epochs, "corruption": table, "filter recall": filters}
        figures = {
            f"{row['training']}, {key}": [
                float(str(other[key])) for other in table if other["training"] == row["training"]
            ]
            for row in table
            for key in ("AUC self-influence", "AUC last loss")
        }
        write_results(NAME, results, figures=figures)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else EPOCHS)
