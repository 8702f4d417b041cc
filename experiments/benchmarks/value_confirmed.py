"""Measures whether the values of `clew value-facts` say what training without the facts does.

    CLEW_DATA=... python -m experiments.benchmarks.value_confirmed [graph ...]

The models are the ConvE of `influence_validation models` and `wordnet`, on five graphs, each
trained with three seeds. All facts are valued by the validation triples, once through the whole
training run (`unrolled`) and once through fine-tunings (`tuned`).

- The twenty facts at each end of a list are tried with `--confirm`: the run is trained again with
  its own seed without each, and without all of an end together. A value, or the sum of twenty, is
  confirmed if the loss then rises by half of it to twice; tuned values are first multiplied by the
  model's median of rises over values.
- The run is trained with two other seeds without the twenty and the hundred facts at each end. The
  rise of the loss is that of the validation triples, by which facts were valued, and that of the
  test triples, which no value has seen.

A rule was written down before the measurement: `tuned` becomes the default if training with other
seeds without its hundred lowest lowers the validation loss more than without those of `unrolled`,
on average over the models, by more than the 95 % interval of this difference over models.

Results of a finished model stay in `runs/value_confirmed`, so a command that was stopped goes on,
and several processes can share the work; named graphs are measured without a result file.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Literal

import numpy as np

from clew.config.load import load
from clew.config.services import ValueRequest
from clew.influence.link_prediction.unrolled import triples_loss
from clew.influence.outcomes import Facts, half_width
from clew.influence.retraining import NOTHING, Retrainer
from clew.workflows.explaining.trace_source import open_trace_source
from clew.workflows.explaining.value_facts import FactValues, agree, factor_of, value_facts
from clew.workflows.train import train
from experiments.benchmarks.dense_part import write_dense_part
from experiments.benchmarks.harness import print_table, write_results
from experiments.benchmarks.influence_validation import (
    CONFIGS,
    MODEL_CASES,
    WORDNET_CASES,
    Row,
)

NAME = "value_confirmed"
KEPT = Path("runs") / NAME
CASES = {
    case.dense_part_of or "umls": case
    for name, case in (MODEL_CASES | WORDNET_CASES).items()
    if name.startswith("ConvE")
}
SEEDS, OTHER_SEEDS = (0, 1, 2), (1000, 1001)
TRIED, SIZES = 20, (20, 100)
Form = Literal["unrolled", "tuned"]
FORMS: tuple[Form, ...] = ("unrolled", "tuned")
CHOSEN_BY = "lowest 100 out, validation"


def measure(graph: str, seed: int) -> list[Row]:
    """Train a model, value its facts in both forms, and try the ends of both lists."""
    case, files = CASES[graph], dict[str, object]()
    with tempfile.TemporaryDirectory() as work:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{work}/mlflow.db"
        if case.dense_part_of:
            files = write_dense_part(case.dense_part_of, Path(work) / "graph")
        settings = {**case.settings, **files, "training.seed": seed}
        run = train(load(str(CONFIGS / case.config), settings))
        assert run.run_id is not None
        about: Row = {"graph": graph, "seed": seed, "test MRR": run.metrics["test/mrr"]}
        found: dict[Form, FactValues] = {}
        for form in FORMS:
            found[form] = value_facts(ValueRequest(model=run.run_id, score=form, confirm=TRIED))
            print(graph, seed, form, found[form].table().splitlines()[-3:], flush=True)
        rises = rises_of_ends(run.run_id, found)
    return [about | tried_in(found[form]) | rises[form] | {"form": form} for form in FORMS]


def tried_in(found: FactValues) -> Row:
    """Return the values that `--confirm` tried, and the rises with the own seed."""
    tried = np.concatenate(found.ends)
    return {
        "facts": len(found.values),
        "tried": tried.tolist(),
        "values": found.values[tried].tolist(),
        "rises": found.without[tried].tolist(),
        "together, values": [float(found.values[end].sum()) for end in found.ends],
        "together, rises": [*found.together],
    }


def judged(row: Row) -> Row:
    """Return a row with what the tried values are worth."""
    values, rises, sums, together = (
        np.array(row[key]) for key in ("values", "rises", "together, values", "together, rises")
    )
    factor = factor_of(values, rises) if row["form"] == "tuned" else 1.0
    right = float((values * rises > 0).mean())
    values, sums = factor * values, factor * sums
    high, low = agree(values, rises).reshape(2, -1).mean(1).tolist()
    of_high, of_low = agree(sums, together).astype(float).tolist()
    return row | {
        "factor": factor,
        "highest confirmed": high,
        "lowest confirmed": low,
        "right sign": right,
        "difference / mean rise": float(
            np.sqrt(np.mean((rises - values) ** 2)) / np.abs(rises).mean()
        ),
        "highest together confirmed": of_high,
        "lowest together confirmed": of_low,
    }


def rises_of_ends(run: str, found: Mapping[Form, FactValues]) -> dict[Form, Row]:
    """Return the mean rises of the losses without the ends of each list, with other seeds."""
    named: list[tuple[Form, str, Facts]] = [
        (form, f"{end} {size} out", np.sort(order[:size]))
        for form, values in found.items()
        for end, order in (("highest", values.order), ("lowest", values.order[::-1]))
        for size in SIZES
    ]
    with open_trace_source(run, {}) as source:
        task, device = source.task, source.tracer.device
        losses = {
            split: triples_loss(
                task, triples, np.full(len(triples), 1 / len(triples)), device, direction="both"
            )
            for split, triples in (("validation", task.graph.valid), ("test", task.graph.test))
        }
        again = Retrainer(task.graph, source.model.config, source.model.manifest, device)
        sets = [NOTHING, *(facts for *_, facts in named)]
        after = {split: np.empty((len(OTHER_SEEDS), len(sets))) for split in losses}
        for i, seed in enumerate(OTHER_SEEDS):
            for j, model in enumerate(again.train(seed, sets)):
                for split, loss in losses.items():
                    after[split][i, j] = float(loss(model).detach())
    rows: dict[Form, Row] = {form: {} for form in found}
    for split, values in after.items():
        rises = (values[:, 1:] - values[:, :1]).mean(0).tolist()
        for (form, title, _), rise in zip(named, rises, strict=True):
            rows[form][f"{title}, {split}"] = rise
    return rows


def kept(graph: str, seed: int) -> list[Row]:
    """Return the rows of a model, which are saved when it is first measured."""
    path = KEPT / f"{graph}-{seed}.json"
    if not path.is_file():
        rows = measure(graph, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rows), encoding="utf-8")
    found: list[Row] = json.loads(path.read_text(encoding="utf-8"))
    return found


def averages(rows: Sequence[Row]) -> Row:
    """Return the averages of all single figures."""
    keys = [key for key, value in rows[0].items() if isinstance(value, float)]
    return {key: mean(float(str(row[key])) for row in rows) for key in keys}


def choose(rows: Iterable[Row]) -> Row:
    """Apply the rule in the module's docstring."""
    by_form = {form: [row for row in rows if row["form"] == form] for form in FORMS}
    unrolled, tuned = (
        np.array([float(str(row[CHOSEN_BY])) for row in by_form[form]]) for form in FORMS
    )
    lower = unrolled - tuned
    width = half_width(lower.std(ddof=1) / len(lower) ** 0.5, len(lower) - 1)
    return {
        "tuned lowers the loss more by": float(lower.mean()),
        "±": width,
        "default": "tuned" if lower.mean() > width else "unrolled",
    }


def main(asked: Sequence[str]) -> None:
    """Measure the named graphs, or all and write the results."""
    found = [row for seed in SEEDS for graph in asked or CASES for row in kept(graph, seed)]
    rows = [judged(row) for row in found]
    table: list[Row] = [
        {"graph": graph, "form": form}
        | averages([row for row in rows if (row["graph"], row["form"]) == (graph, form)])
        for graph in asked or CASES
        for form in FORMS
    ]
    print_table(table)
    if not asked:
        overall: list[Row] = [
            {"form": form} | averages([row for row in rows if row["form"] == form])
            for form in FORMS
        ]
        print_table(overall)
        print(choose(rows))
        results = {**choose(rows), "all graphs": overall, "graphs": table, "models": rows}
        write_results(NAME, results)


if __name__ == "__main__":
    main(sys.argv[1:])
