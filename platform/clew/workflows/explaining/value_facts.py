"""Value training facts by their effect on many predictions together, and record it as a run.

One backward pass through the training run, or through fine-tunings of the finished model,
differentiates the weighted sum of the predictions' losses. By this estimate, the facts with the
lowest values made these predictions worse. They are also written as a list that `data.exclude` can
read. A value is a derivative, which one step of Adam or a few rows can make arbitrarily large. So
both ends of the list can be confirmed: the run is trained again with its seed, without one fact at
a time, and without all of an end together.
"""

import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from clew import names
from clew.config.services import ValueRequest
from clew.errors import ConfigError, DataError, counted, quoted
from clew.files import working_folder, write_whole
from clew.influence.link_prediction.report_tables import write_values_csv
from clew.influence.link_prediction.unrolled import triples_loss
from clew.influence.outcomes import Facts
from clew.influence.retraining import NOTHING, Retrainer
from clew.influence.unrolling import Objective
from clew.input_files import read_lines
from clew.link_prediction.triples import KnowledgeGraph, Triples, as_keys
from clew.runs.base import Tracker
from clew.runs.reading.disagreements import exclusion_list
from clew.runs.reading.reviews import DataOrigin
from clew.workflows.explaining.members import Progress
from clew.workflows.explaining.trace_source import open_trace_source, prepare, unrolled_settings
from clew.workflows.explaining.tracin import tests_of
from clew.workflows.outputs import check_new_folder
from clew.workflows.training_run import trace_run

SHOWN = 5
ADVICE = "look facts up before leaving any out, as other triples may need them"
THROUGH = {"tuned": "fine-tunings of the finished model", "unrolled": "the whole training run"}
TIMES = 2.0
"""A confirmed value and the effect of leaving the fact out differ by at most this factor."""


@dataclass(frozen=True, eq=False)
class FactValues:
    """The value of each training fact, and the run that records them."""

    graph: KnowledgeGraph
    values: np.ndarray
    """How much the weight of a fact and its copies lowers the sum of losses, `(train,)`."""
    num_tests: int
    without: np.ndarray
    """Rise of that sum after training without the fact, `(train,)`; NaN if that was not tried."""
    request: ValueRequest
    run_id: str | None
    notes: tuple[str, ...] = ()
    """Whether predictions come from other parameters."""
    together: tuple[float, ...] = ()
    """Rise of the sum without all tried facts of the high end, and of the low; empty if untried."""

    @property
    def confirmed(self) -> np.ndarray:
        """Whether each fact's value has the sign and about the size of the rise, `(train,)`."""
        return agree(self.scale * self.values, self.without)

    @property
    def scale(self) -> float:
        """Rise for each unit of a tuned value, from the tried facts; 1 for unrolled values."""
        tried = np.isfinite(self.without)
        if self.request.score == "unrolled" or not tried.any():
            return 1.0
        return factor_of(self.values[tried], self.without[tried])

    @property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Return indices of the facts to try, the highest first and the lowest first."""
        return self.order[: self.request.confirm], self.order[::-1][: self.request.confirm]

    @cached_property
    def order(self) -> np.ndarray:
        """Indices of the facts, the highest value first; of several copies, the first."""
        first = np.sort(np.unique(as_keys(self.graph.train), return_index=True)[1])
        order: np.ndarray = first[np.argsort(-self.values[first], kind="stable")]
        return order

    @property
    def worst(self) -> np.ndarray:
        """Return indices of the worst facts, the lowest value first; confirmed ones, if tried."""
        order = self.order[::-1]
        if self.request.confirm:
            order = order[self.confirmed[order]]
        found: np.ndarray = order[self.values[order] < 0]
        return found[: self.request.worst]

    def table(self) -> str:
        """Return the facts with the highest and the lowest values."""
        order, values = self.order, self.values[self.order]
        shown = max(SHOWN, self.request.confirm)
        loss = "mean loss" if self.request.weights is None else "weighted sum of the losses"
        lines = [
            f"run {self.run_id or '(not recorded)'}",
            f"values of {len(order):,} facts for the {loss} of "
            f"{counted(self.num_tests, 'triple')}, in nats for each unit of a fact's weight in "
            f"{THROUGH[self.request.score]}: {(values > 0).sum():,} lower it, "
            f"{(values < 0).sum():,} raise it",
            *self.notes,
        ]
        for title, facts in (("highest", order[:shown]), ("lowest", order[::-1][:shown])):
            lines += ["", title, *(f"  {self.values[i]:+.4g}  {self._words(i)}" for i in facts)]
        if self.together:
            return "\n".join([*lines, "", *self._tried()])
        said = f"no retraining has confirmed these values: {ADVICE}"
        kept = {"test", "weights", "direction", "score"}
        given = self.request.model_dump(include=kept, exclude_defaults=True) | {"confirm": 20}
        lines += ["", said]
        if not any(isinstance(value, tuple) for value in given.values()):  # of Python, no files
            options = [f"{key}={value}" for key, value in given.items()]
            following = shlex.join(["clew", "value-facts", self.request.model, *options])
            lines.append(f"next: {following}")
        return "\n".join(lines)

    def _tried(self) -> list[str]:
        tried = np.isfinite(self.without)
        luck = float(np.sqrt(np.mean((self.without - self.scale * self.values)[tried] ** 2)))
        times = f" times {self.scale:.2f}" * (self.request.score == "tuned")
        lines = [
            f"trained again without each of {tried.sum()} facts: {self.confirmed.sum()} confirmed, "
            f"as the loss rose by half of the value{times} to twice; a rise differs from it by "
            f"{luck:.2g} (root mean square); {names.WORST_FACTS} lists only confirmed ones"
        ]
        if not self.scale:
            lines.append("the loss did not follow the values, so none is confirmed")
        for title, facts, rise in zip(("highest", "lowest"), self.ends, self.together, strict=True):
            value = self.scale * self.values[facts].sum() + 0.0  # not -0
            verdict = "confirmed" if agree(value, np.array(rise)) else "not confirmed"
            lines.append(
                f"without all {len(facts)} {title} together: {rise:+.4g}; the sum of their values"
                f"{times} is {value:+.4g}: {verdict}"
            )
        return [*lines, ADVICE]

    def _words(self, fact: int) -> str:
        head, relation, tail = self.graph.train[fact].tolist()
        entities, relations = self.graph.entities, self.graph.relations
        triple = f"{entities.label(head)} · {relations.label(relation)} · {entities.label(tail)}"
        if np.isnan(self.without[fact]):
            return triple
        verdict = "confirmed" if self.confirmed[fact] else "not confirmed"
        return f"{triple}  ({verdict}: {self.without[fact]:+.4g} by training without it)"


def value_facts(
    request: ValueRequest,
    *,
    progress: Progress = lambda done, total: None,
    retrained: Progress = lambda done, total: None,
) -> FactValues:
    """Differentiate the loss of many predictions through training steps; record it as a run."""
    check_new_folder("--output-dir", request.output_dir)
    settings = {"influence.score": request.score, "influence.direction": request.direction}
    with open_trace_source(request.model, settings) as source:
        tests, weights = _weighted_tests(request, source.task.graph)
        tracer = prepare(source, request.score)
        config, device, again = source.model.config, source.tracer.device, None
        if request.confirm:
            if config.training.ema_decay is not None:
                raise ConfigError("--confirm cannot judge averaged parameters (training.ema_decay)")
            again = Retrainer(source.task.graph, config, source.model.manifest, device)
        # Opened before the work, so that the store shows a running command and its peak memory.
        name = f"value-facts {source.task.dataset}"
        with trace_run(source.model, source.loaded, name, kind=names.KIND_VALUE) as tracker:
            began = time.perf_counter()
            values = tracer.values(tests, weights, progress=progress)
            seconds = time.perf_counter() - began
            # Copies of a fact are left out together, so each has the value of all.
            graph = source.task.graph
            copy = np.unique(as_keys(graph.train), return_inverse=True)[1]
            values = np.bincount(copy, values)[copy]
            without, notes = np.full(len(values), np.nan), tuple(names.model_notes(source.best))
            found = FactValues(graph, values, len(tests), without, request, tracker.run_id, notes)
            measured = {names.VALUE_SECONDS: seconds}
            if again is not None:
                way = request.direction
                loss = triples_loss(source.task, tests, weights, device, direction=way)
                each = np.unique(found.ends)
                sets = [*each[:, None], *(np.sort(end) for end in found.ends)]
                rises = _rises_without(again, loss, sets, retrained)
                without[each] = rises[:-2]
                found = replace(found, together=tuple(rises[-2:].tolist()))
                measured |= dict(zip(names.VALUE_TOGETHER, found.together, strict=True))
            _record(tracker, unrolled_settings(source), found)
            tracker.metrics(measured, source.model.manifest.step)
        return found


def factor_of(values: np.ndarray, rises: np.ndarray) -> float:
    """Return the median rise for each unit of a value, which a few artifacts do not change.

    It is at least 0, where no value agrees with a rise.
    """
    some = values != 0
    return max(0.0, float(np.median(rises[some] / values[some]))) if some.any() else 0.0


def agree(values: np.ndarray, rises: np.ndarray) -> np.ndarray:
    """Return whether values have the sign and about the size of rises, which may be NaN."""
    nothing, some = np.zeros_like(values), values != 0
    ratio = np.divide(rises, values, out=nothing, where=some)
    close: np.ndarray = (ratio >= 1 / TIMES) & (ratio <= TIMES)
    return close


def _rises_without(
    retrainer: Retrainer, loss: Objective, sets: Sequence[Facts], progress: Progress
) -> np.ndarray:
    """Return the rise of a loss after training without each of some sets of facts.

    Models that are trained together are compared with one of them that has all facts, because sums
    in another order change a training run.
    """
    at_once = retrainer.models_at_once - 1 or len(sets)
    rises: list[float] = []
    for start in range(0, len(sets), at_once):
        dropped, losses = [NOTHING, *sets[start : start + at_once]], []
        for model in retrainer.train(retrainer.config.training.seed, dropped):
            with torch.no_grad():
                losses.append(float(loss(model)))
            progress(len(rises) + len(losses) - 1, len(sets))
        rises += [after - losses[0] for after in losses[1:]]
    return np.array(rises)


def _weighted_tests(request: ValueRequest, graph: KnowledgeGraph) -> tuple[Triples, np.ndarray]:
    weights = request.weights
    tests = tests_of(request.test, graph) if request.test else graph.valid
    if not len(tests):
        raise DataError(f"{graph.name} has no validation triples; give triples with --test")
    if isinstance(weights, Path):
        return tests, read_weights(weights, len(tests))
    return tests, np.full(len(tests), 1.0 / len(tests)) if weights is None else np.array(weights)


def read_weights(path: Path, count: int) -> np.ndarray:
    """Read one number per line."""
    lines = read_lines(path)
    if len(lines) != count:
        raise DataError(
            f"{path}: expected {count} lines, one number per triple, but it has {len(lines)}"
        )
    weights: np.ndarray = pd.to_numeric(pd.Series(lines), errors="coerce").to_numpy(float)
    if len(wrong := np.flatnonzero(~np.isfinite(weights))):
        line = lines[wrong[0]]
        raise DataError(f"{path}, line {wrong[0] + 1}: {quoted(line)} is not a finite number")
    return weights


def _record(tracker: Tracker, settings: dict[str, object], found: FactValues) -> None:
    graph, request = found.graph, found.request
    with working_folder("values") as temporary:
        folder = temporary / names.ARTIFACT_VALUES
        folder.mkdir()
        tried = np.where(np.isnan(found.without), "", found.confirmed.astype(str))
        further = {"WithoutIt": found.without, "Confirmed": tried}
        path = folder / names.VALUES_CSV
        write_values_csv(path, graph, found.values, further if request.confirm else {})
        origin = DataOrigin(graph.name, graph.fingerprint)
        name, relation = graph.entities.name, graph.relations.name
        worst = graph.train[list(found.worst)].tolist()
        triples = [(name(head), relation(r), name(tail)) for head, r, tail in worst]
        write_whole(folder / names.WORST_FACTS, exclusion_list(origin, triples))
        tests = request.test if isinstance(request.test, str) else "triples by name"
        weights = request.weights if isinstance(request.weights, Path | None) else "numbers"
        said = settings | {
            "test": tests or "validation triples",
            "weights": str(weights or "equal"),
            "score": request.score,
            "direction": request.direction,
            "num_tests": found.num_tests,
        }
        tracker.params({f"value.{key}": value for key, value in said.items()})
        tracker.artifact(folder)
        if request.output_dir is not None:
            shutil.copytree(folder, request.output_dir, dirs_exist_ok=True)
