"""Chooses how `clew verify` fine-tunes, by comparing recipes with whole retraining.

    CLEW_DATA=... python -m experiments.benchmarks.verify_recipe [graph ...]

The models are those of `influence_validation models`. Of each, eight explained triples of the
validation split are checked with nine recipes: a twelfth, a sixth and a third of the epochs, at
0.2, 0.4 and all of the learning rate. Three fine-tunings of each group of facts are compared with
three whole retrainings, by the rank correlation of the falls and by their size.

The recipe is chosen by a rule that was written down before the measurement: the highest
correlation, averaged over the models whose test MRR is at least 0.3; of recipes within 0.01 of it,
the one with the fewest epochs, and of these the one with the higher correlation. The chosen recipe
and the former one are then compared on eight test triples.
"""

import os
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from clew.config.load import load
from clew.influence.verify import agreement_of
from clew.runs.verification import names_of
from clew.workflows.train import train
from clew.workflows.verify import VerifyRequest, verify
from experiments.benchmarks.dense_part import write_dense_part
from experiments.benchmarks.harness import print_table, write_results
from experiments.benchmarks.influence_validation import (
    CLOSE,
    CONFIGS,
    LEARNED_MRR,
    MODEL_CASES,
    Case,
)

NAME = "verify_recipe"
GRAPHS = ("", "codex-s", "drugmechdb")
SHARES_OF_EPOCHS = (1 / 12, 1 / 6, 1 / 3)
SHARES_OF_RATE = (0.2, 0.4, 1.0)
FORMER = (1 / 6, 0.4)
SEEDS, EXPLAINED, DRAWN = 3, 8, 24

Recipe = tuple[float, float]
Row = dict[str, object]


def drawn_triples(source: Path, path: Path) -> Path:
    """Write triples drawn from a file, the same each time."""
    lines = source.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(random.Random(0).sample(lines, DRAWN)) + "\n", encoding="utf-8")
    return path


class Model:
    """A trained model of a case, whose explanations are checked with several recipes."""

    def __init__(self, name: str, case: Case, files: Mapping[str, object]) -> None:
        self._name = name
        config = load(str(CONFIGS / case.config), {**case.settings, **files})
        self._epochs = config.training.num_epochs
        self._rate = config.optimizer.learning_rate
        run = train(config)
        assert run.run_id is not None
        self._run_id, self.mrr = run.run_id, run.metrics["test/mrr"]

    def row(self, split: str, triples: Path, recipe: Recipe) -> Row:
        """Return how well fine-tuned falls agree with whole ones."""
        epochs, rate = max(1, round(self._epochs * recipe[0])), self._rate * recipe[1]
        request = VerifyRequest(
            test=str(triples),
            model=self._run_id,
            top_tests=EXPLAINED,
            seeds=SEEDS,
            whole=True,
            epochs=epochs,
            learning_rate=rate,
        )
        checked = verify(request)
        explained = {names_of(test.test) for test in checked.tests}
        assert checked.agreement is not None
        # A model's agreement also has the explanations that were checked before.
        pairs = tuple(pair for pair in checked.agreement.pairs if pair.test in explained)
        found = agreement_of(checked.recipe, pairs)
        assert found is not None
        return {
            "model": self._name,
            "test MRR": self.mrr,
            "split": split,
            "share of epochs": recipe[0],
            "share of rate": recipe[1],
            "groups": len(found.pairs),
            "correlation": found.correlation,
            "whole falls, times": found.factor,
            "low": found.low,
            "high": found.high,
        }


def choose(rows: Sequence[Row]) -> Recipe:
    """Choose a recipe from rows of validation triples by the rule in the module's docstring."""
    averages = {
        recipe: mean(
            float(str(row["correlation"]))
            for row in rows
            if (row["share of epochs"], row["share of rate"]) == recipe
            and float(str(row["test MRR"])) >= LEARNED_MRR
        )
        for recipe in ((epochs, rate) for epochs in SHARES_OF_EPOCHS for rate in SHARES_OF_RATE)
    }
    near = [recipe for recipe in averages if averages[recipe] >= max(averages.values()) - CLOSE]
    return min(near, key=lambda recipe: (recipe[0], -averages[recipe]))


def main(graphs: Sequence[str]) -> None:
    """Measure all recipes on validation triples, choose one, and measure it on test triples."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as work:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{work}/mlflow.db"
        models: list[tuple[Model, Path]] = []
        for graph in graphs:
            files: Mapping[str, object] = {}
            source = Path(os.environ["CLEW_DATA"]) / "umls"
            if graph:
                source = Path(work) / graph
                files = write_dense_part(graph, source)
            asked = {
                split: drawn_triples(source / f"{split}.txt", Path(work) / f"{graph}-{split}.txt")
                for split in ("valid", "test")
            }
            for name, case in MODEL_CASES.items():
                if case.dense_part_of == graph:
                    model = Model(name, case, files)
                    models.append((model, asked["test"]))
                    for epochs in SHARES_OF_EPOCHS:
                        for rate in SHARES_OF_RATE:
                            rows.append(model.row("valid", asked["valid"], (epochs, rate)))
                            print(rows[-1], flush=True)
        chosen = choose(rows)
        for model, triples in models:
            for recipe in dict.fromkeys((FORMER, chosen)):
                rows.append(model.row("test", triples, recipe))
    print_table(rows)
    chosen_row = {"share of epochs": chosen[0], "share of rate": chosen[1]}
    write_results(NAME, {"chosen": chosen_row, "recipes": rows})


if __name__ == "__main__":
    main(sys.argv[1:] or GRAPHS)
