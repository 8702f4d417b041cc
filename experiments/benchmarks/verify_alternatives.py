"""Compares `clew verify`'s fine-tuning with other ways to go on without some facts.

    CLEW_DATA=... python -m experiments.benchmarks.verify_alternatives [case ...]

The models are those of `influence_validation models`. Of each, eight explained triples of the
validation split are checked with the present recipe, by two fine-tunings and by two whole
retrainings of each group of facts, and then with each alternative. An alternative is judged by the
rank correlation of its falls with the whole ones.

- "state kept": the optimizer goes on with the state of the run's last checkpoint.
- "ends": only the embeddings of the triple's two ends change; normalisation uses the
  run's statistics.
- "near": the embeddings of all entities of the taken facts change too.
- "Kelpie": as Kelpie's post-training (Rossi et al., 2022, section 4.2), the head's embedding is
  drawn anew and trained on the facts with it, for the epochs of the run; all else stays.
- "shared": the recipe, with facts of up to five explanations that do not touch taken away at once.

The rules were written down before the measurements. An alternative replaces the recipe if its
correlation, averaged over the models whose test MRR is at least 0.3, is at least 0.02 higher.
Otherwise the recipe stays. "shared" becomes the way to check several explanations if its average is
at most 0.01 lower.

Results of a finished case stay in `runs/verify_alternatives`, so several processes can share the
work; the command without names goes on from there.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from torch import Tensor, nn

from clew.config.load import load
from clew.config.schema import RunConfig
from clew.files import working_folder
from clew.influence.outcomes import Examiner, Facts, WithoutFacts, rank_correlations
from clew.influence.retraining import NOTHING, KeptRetrainings, Retrainer
from clew.influence.verify import Group, Queue, effects_of, fine_tuning, recipe_of, sharing
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.triples import HEAD, TAIL
from clew.runs.base import Tracker
from clew.runs.verification import VerifiedTriple, names_of
from clew.training.checkpoints import load_training_state
from clew.training.distributed import World
from clew.training.optimizer import restore_optimizer
from clew.training.setup import build_trainer
from clew.training.trainer import Trainer
from clew.workflows.explaining.trace_source import (
    TraceSource,
    of_fields,
    open_trace_source,
    seeds_of,
    usable,
)
from clew.workflows.train import train
from clew.workflows.verify import VerifyRequest, verify
from experiments.benchmarks.dense_part import write_dense_part
from experiments.benchmarks.harness import print_table, write_results
from experiments.benchmarks.influence_validation import CONFIGS, LEARNED_MRR, MODEL_CASES, Row
from experiments.benchmarks.verify_recipe import GRAPHS, drawn_triples

NAME = "verify_alternatives"
KEPT = Path("runs") / NAME
CASES = {name: case for name, case in MODEL_CASES.items() if case.dense_part_of in GRAPHS}
SEEDS, EXPLAINED = 2, 8
GAIN = 0.02
PRESENT = "the recipe"
ALTERNATIVES = ("state kept", "ends", "near", "Kelpie")
SHARED = "shared"
WAYS = (PRESENT, *ALTERNATIVES, SHARED)
LOSS = 0.01


@dataclass(frozen=True)
class Alternative(Retrainer):
    """Goes on from a model in one of the other ways, one model at a time."""

    kind: str = ""
    checkpoint: Path = Path()
    """The run's last, with the optimizer's state."""
    near: frozenset[int] = frozenset()
    """The entities whose embeddings change."""
    own: Facts = field(default_factory=lambda: NOTHING)
    """Facts that stay out in every run: for "Kelpie", those without the head."""

    @property
    def why_one_at_a_time(self) -> str:
        return "the trainer is changed"

    def _train_one(self, config: RunConfig, facts: Facts) -> GraphModel:
        task = WithoutFacts(self.graph, config, np.union1d(facts, self.own))
        with working_folder("alternative") as folder:
            trainer = build_trainer(
                config,
                task,
                Tracker(),
                device=self.device,
                world=World(),
                folder=folder,
                origin=self.origin,
                keep_all_checkpoints=True,
            )
            self._change(trainer)
            trainer.train()
        assert isinstance(trainer.model, GraphModel)
        return trainer.model.eval()

    def _change(self, trainer: Trainer) -> None:
        model = trainer.model
        assert self.start is not None
        assert isinstance(model, GraphModel)
        drawn = model.entity.weight.detach().clone()
        model.load_state_dict(self.start.state_dict())
        if self.kind == "state kept":
            saved = load_training_state(self.checkpoint)
            restore_optimizer(trainer.optimizer, model, saved.optimizer)
            return
        places = torch.tensor(sorted(self.near))
        if self.kind == "Kelpie":
            with torch.no_grad():
                model.entity.weight[places] = drawn[places]
        _keep_but(model, places)


def _keep_but(model: GraphModel, places: Tensor) -> None:
    """Let training change only rows of the entities' embeddings."""
    wanted = torch.zeros(len(model.entity.weight), 1)
    wanted[places] = 1.0
    for parameter in model.parameters():
        mask = wanted if parameter is model.entity.weight else torch.zeros(1)

        def only(changed: Tensor, mask: Tensor = mask) -> None:
            assert changed.grad is not None
            changed.grad.mul_(mask)

        parameter.register_post_accumulate_grad_hook(only)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
            # The trainer's call of `train` reaches every module, and shall not change this one.
            module.train = lambda mode=True, module=module: module  # type: ignore[method-assign,misc]


def alternative(source: TraceSource, kind: str, test: np.ndarray, groups: list[Group]) -> Retrainer:
    """Return what goes on in a way, for one test triple and its groups of facts."""
    graph, config = source.task.graph, source.model.config
    run = source.tracer.runs[0]
    ends = {int(test[HEAD]), int(test[TAIL])}
    near = {
        "state kept": set[int](),
        "ends": ends,
        "near": ends.union(*(graph.train[group.facts][:, [HEAD, TAIL]].flat for group in groups)),
        "Kelpie": {int(test[HEAD])},
    }[kind]
    touching = (graph.train[:, [HEAD, TAIL]] == test[HEAD]).any(1)
    tuning = fine_tuning(config, recipe_of(config, None, None))
    return Alternative(
        graph,
        config if kind == "Kelpie" else tuning,
        source.model.manifest,
        source.tracer.device,
        run.models[-1],
        kind,
        run.checkpoints[-1].path,
        frozenset(int(entity) for entity in near),
        np.flatnonzero(~touching) if kind == "Kelpie" else NOTHING,
    )


def falls_of(source: TraceSource, kind: str, several: Sequence[VerifiedTriple]) -> list[float]:
    """Return the fall that each group of explanations causes in one of the other ways."""
    graph, config = source.task.graph, source.model.config
    given = [of_fields(0, "", [*names_of(one.test)], graph) for one in several]
    tests = usable(given, source.model.title)
    groups = [
        Group(place, each.kind, np.array(each.facts))
        for place, one in enumerate(several)
        for each in one.removals
    ]
    if kind == SHARED:
        tuning = fine_tuning(config, recipe_of(config, None, None))
        manifest, start = source.model.manifest, source.tracer.runs[0].models[-1]
        retrainer = Retrainer(graph, tuning, manifest, source.tracer.device, start)
        groups = sharing(graph, tests, groups, VerifyRequest.at_once)
    else:
        retrainer = alternative(source, kind, tests[0], groups)
    with tempfile.TemporaryDirectory() as folder:
        kept = [KeptRetrainings(Path(folder) / str(place), kind) for place in range(len(tests))]
        seeds = seeds_of(source, SEEDS)[1:]
        queue = Queue(retrainer, Examiner(graph, config, tests), groups, seeds, kept)
        print(f"{kind}: {len(queue.missing)} training runs", flush=True)
        queue.run(lambda: None)
        return [effect.fall.mean for effect in effects_of([queue], several[0].direction)]


def rows_of(name: str, ways: Sequence[str]) -> Iterator[Row]:
    """Train the model of a case, and yield how well ways predict whole retraining."""
    case, files = CASES[name], dict[str, object]()
    with tempfile.TemporaryDirectory() as work:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{work}/mlflow.db"
        source_folder = Path(os.environ["CLEW_DATA"]) / "umls"
        if case.dense_part_of:
            source_folder = Path(work) / "graph"
            files = write_dense_part(case.dense_part_of, source_folder)
        config = load(str(CONFIGS / case.config), {**case.settings, **files})
        run = train(config)
        assert run.run_id is not None
        drawn = drawn_triples(source_folder / "valid.txt", Path(work) / "valid.txt")
        request = VerifyRequest(
            test=str(drawn), model=run.run_id, top_tests=EXPLAINED, seeds=SEEDS, whole=True
        )
        tests = verify(request).tests
        removals = [removal for test in tests for removal in test.removals]
        falls = {PRESENT: [removal.tuned.fall.mean for removal in removals]}
        with open_trace_source(run.run_id, {}) as source:
            for kind in (way for way in ways if way != PRESENT):
                parts = [tests] if kind == SHARED else [[one] for one in tests]
                falls[kind] = [fall for part in parts for fall in falls_of(source, kind, part)]
                print(name, kind, flush=True)
        whole = [removal.whole.fall.mean for removal in removals if removal.whole is not None]
        for kind, found in ((way, falls[way]) for way in ways):
            yield {
                "model": name,
                "test MRR": run.metrics["test/mrr"],
                "way": kind,
                "groups": len(removals),
                "correlation": correlation(found, whole),
                "falls": found,
                "whole falls": whole,
            }


def correlation(falls: Iterable[float], whole: Iterable[float]) -> float:
    """Return the rank correlation of falls."""
    return float(rank_correlations(np.array([[*falls]]), np.array([[*whole]]))[0])


def measured(name: str) -> list[Row]:
    """Return the rows of a case, which are kept; ways that are missing are measured first."""
    kept = KEPT / f"{name.replace(' ', '-')}.json"
    rows: list[Row] = json.loads(kept.read_text("utf-8")) if kept.is_file() else []
    measured_ways = {row["way"] for row in rows}
    if missing := [way for way in WAYS if way not in measured_ways]:
        rows += rows_of(name, missing)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(rows), encoding="utf-8")
    return rows


def choose(rows: Iterable[Row]) -> Mapping[str, object]:
    """Apply the rules in the module's docstring."""
    learned = [row for row in rows if float(str(row["test MRR"])) >= LEARNED_MRR]
    of_way = {way: [row for row in learned if row["way"] == way] for way in WAYS}
    averages = {way: mean(float(str(row["correlation"])) for row in of_way[way]) for way in WAYS}
    factors = {way: mean(map(factor, of_way[way])) for way in WAYS}
    best = max((PRESENT, *ALTERNATIVES), key=lambda way: averages[way])
    return {
        "chosen": best if averages[best] >= averages[PRESENT] + GAIN else PRESENT,
        "several share a run": averages[SHARED] >= averages[PRESENT] - LOSS,
        "averages": averages,
        "whole falls, times": factors,
    }


def factor(row: Row) -> float:
    """Return how many times the falls the whole ones are, by least squares."""
    falls, whole = (np.array(row[key]) for key in ("falls", "whole falls"))
    return float((falls * whole).sum() / (falls * falls).sum())


def main(names: Iterable[str]) -> None:
    """Measure the named cases; without names all, and choose."""
    asked = [*names]
    rows = [row for name in asked or CASES for row in measured(name)]
    shown = [{k: v for k, v in row.items() if "falls" not in k} for row in rows]
    print_table(shown)
    if not asked:
        print(choose(rows))
        write_results(NAME, {**choose(rows), "ways": rows})


if __name__ == "__main__":
    main(sys.argv[1:])
