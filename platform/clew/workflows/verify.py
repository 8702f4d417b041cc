"""Checks explanations: takes their facts away, trains on or again, and says what happens."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from clew import names
from clew.config.schema import RunConfig
from clew.errors import ConfigError, Interrupted, counted
from clew.files import cache_folder, working_folder
from clew.influence.outcomes import Examiner, Facts
from clew.influence.retraining import KeptRetrainings, Retrainer
from clew.influence.verify import (
    SIZES,
    Queue,
    agreement_of,
    effects_of,
    fine_tuning,
    groups_of,
    recipe_of,
    sharing,
)
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.triples import Triples
from clew.runs.influence_report import ExplainedTriple, read_influence_json
from clew.runs.reading.reports import report_files
from clew.runs.reading.search import run_meant
from clew.runs.validation_record import ONLY_TESTED
from clew.runs.verification import (
    Agreement,
    Answer,
    Names,
    Pair,
    Removal,
    Verification,
    VerifiedTriple,
    keep,
    names_of,
    read_kept,
)
from clew.training.manifest import MODEL_FILE, sha256
from clew.workflows.explaining.trace_source import (
    TraceSource,
    of_fields,
    open_trace_source,
    seeds_of,
    usable,
)
from clew.workflows.explaining.tracin import tracin
from clew.workflows.explaining.validate_influence import identity
from clew.workflows.model_source import average_setting

logger = logging.getLogger(__name__)
SCORES = {"score", "direction", "test_loss", *ONLY_TESTED, "num_last_layers"}
"""Settings of an explanation that decide which facts are its strongest."""
LISTED = {"influence.top_k": max(SIZES)}


@dataclass(frozen=True)
class VerifyRequest:
    """The explanations to check, and how; see the options of `clew verify`."""

    explanation: str = ""
    test: str = ""
    model: str = names.NEWEST
    top_tests: int | None = None
    triple: Names | None = None
    """The only triple of the report to check, by its names in the data."""
    seeds: int = 2
    whole: bool = False
    at_once: int = 5
    epochs: int | None = None
    learning_rate: float | None = None


def verify(
    request: VerifyRequest,
    *,
    say: Callable[[str], None] = logger.info,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Verification:
    """Take the facts of explanations away, and keep what happens with the explanation's run.

    Training runs that were finished before, by any call, are not repeated.
    """
    if request.test and request.explanation:
        raise ConfigError(
            "an explanation and --test are both given; give the explanation to check, or a triple "
            "to explain first"
        )
    if request.test:
        model = run_meant(request.model, names.KIND_TRAIN)
        run_id = tracin(model, request.test, LISTED).run_id or ""
        say(f"explained as run {run_id}")
    else:
        run_id = run_meant(request.explanation or names.NEWEST, names.KIND_TRACE)
    with working_folder("verify") as work:
        path = report_files(run_id, work).json
        report = read_influence_json(path) if path else None
        if report is None:
            raise ConfigError(f"run {run_id} explains no triples; give one that explains triples")
        best_last = sorted(reversed(report.tests), key=lambda test: -test.rank)
        distinct = {names_of(test.test): test for test in best_last}
        explained = list(distinct.values())[::-1]
        if request.triple is not None:
            explained = [distinct[request.triple]]
        elif not request.test or request.top_tests:
            explained = explained[: request.top_tests or 1]
        settings = {f"influence.{k}": report.settings[k] for k in SCORES if k in report.settings}
        with open_trace_source(report.model.reference, settings | LISTED) as source:
            tuned, whole = _queues(request, source, explained)
            _train(tuned, whole, say, progress)
            tests = _effects(source, explained, tuned, whole)
            of_model = {**average_setting(source.model.config), **source.best}
        found = Verification(
            run_id=run_id,
            source_run=report.model.run_id,
            recipe=recipe_of(source.model.config, request.epochs, request.learning_rate),
            seeds=request.seeds,
            runs=max(1, len(report.model.runs)),
            tests=tests,
            notes=tuple(names.model_notes(of_model)),
        )
        ensemble = bool(report.model.runs)
        agreement = _agreement(found, None if ensemble else read_kept(Agreement, found.source_run))
        if agreement is not None and found.is_whole and not ensemble:
            keep(agreement, found.source_run, work)
        found = found.model_copy(update={"agreement": agreement})
        keep(found.beside(read_kept(Verification, run_id)), run_id, work)
    return found


def _queues(
    request: VerifyRequest, source: TraceSource, explained: Sequence[ExplainedTriple]
) -> tuple[list[Queue], list[Queue]]:
    """Return the fine-tunings of each member, and the whole runs if they are asked for."""
    graph, config, manifest = source.task.graph, source.model.config, source.model.manifest
    given = [of_fields(0, "", [*names_of(one.test)], graph) for one in explained]
    tests = usable(given, source.model.title)
    groups = [
        group
        for place, one in enumerate(explained)
        for group in groups_of(graph, tests, place, _strongest(source, one, tests[[place]]))
    ]
    if not request.whole:
        groups = sharing(graph, tests, groups, request.at_once)
    seeds = seeds_of(source, request.seeds)[1:]

    def queue(config: RunConfig, start: GraphModel | None, begin: str) -> Queue:
        contents = [identity(source, tests[[place]], config) + begin for place in range(len(tests))]
        keys = [hashlib.sha256(content.encode()).hexdigest() for content in contents]
        kept = [KeptRetrainings(cache_folder("verify") / key[:32], key) for key in keys]
        retrainer = Retrainer(graph, config, manifest, source.tracer.device, start)
        return Queue(retrainer, Examiner(graph, config, tests), groups, seeds, kept)

    tuning = fine_tuning(config, recipe_of(config, request.epochs, request.learning_rate))
    tuned = [
        queue(tuning, run.models[-1], sha256(run.checkpoints[-1].path / MODEL_FILE))
        for run in source.tracer.runs
    ]
    return tuned, [queue(config, None, "")] if request.whole else []


def _strongest(source: TraceSource, explained: ExplainedTriple, test: Triples) -> Facts:
    """Return the strongest proponents; those that the report does not list are scored again."""
    listed = [entry.train_index for entry in explained.proponents]
    complete = not explained.truncated or explained.candidates < len(source.task.graph.train)
    if len(listed) >= max(SIZES) or complete or source.tracer.settings.goes_through_steps:
        return np.array(listed[: max(SIZES)], np.int64)
    (found,) = source.tracer.explain(test)
    top: Facts = found.proponents.train[0][found.proponents.influence[0] > 0].astype(np.int64)
    return top


def _train(
    tuned: Sequence[Queue],
    whole: Sequence[Queue],
    say: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> None:
    """Do the missing training runs of all queues."""
    queues = [*tuned, *whole]
    left = sum(len(queue.missing) for queue in queues)
    for several, what in ((tuned, "fine-tunings"), (whole, "training runs")):
        if not several:
            continue
        retrainer, number = several[0].retrainer, sum(len(queue.missing) for queue in several)
        how = f"{retrainer.models_at_once} at once"
        if reason := retrainer.why_one_at_a_time:
            how = f"one at a time: {reason}"
        epochs = counted(retrainer.config.training.num_epochs, "epoch")
        say(f"{number} {what} to do, {epochs} each ({how})")

    def done() -> int:
        finished = left - sum(len(queue.missing) for queue in queues)
        progress(finished, left)
        return finished

    done()
    try:
        for queue in queues:
            queue.run(done)
    except (KeyboardInterrupt, Interrupted):  # the second is from the training of one model
        raise Interrupted(
            f"stopped by the user after {done()} of {left} training runs, which are kept; the "
            "same command goes on"
        ) from None


def _effects(
    source: TraceSource,
    explained: Sequence[ExplainedTriple],
    tuned: Sequence[Queue],
    whole: Sequence[Queue],
) -> tuple[VerifiedTriple, ...]:
    direction, groups = source.tracer.settings.direction, tuned[0].groups
    members = [run.models[-1].eval() for run in source.tracer.runs]
    own = [tuned[0].examiner.examine(model).of(direction) for model in members]
    again = effects_of(whole, direction) if whole else [None] * len(groups)
    removals = [
        (
            group.test,
            Removal(
                kind=group.kind,
                facts=group.facts.tolist(),
                tuned=t,
                whole=w,
                drawn_from=group.drawn_from,
                others=len(group.others),
            ),
        )
        for group, t, w in zip(groups, effects_of(tuned, direction), again, strict=True)
    ]
    return tuple(
        VerifiedTriple(
            test=one.test,
            direction=direction,
            model=Answer(
                rank=np.mean([each.rank[:, place] for each in own]),
                log_probability=np.mean([each.log_probability[:, place] for each in own]),
            ),
            removals=tuple(removal for test, removal in removals if test == place),
            scored=one.candidates,
        )
        for place, one in enumerate(explained)
    )


def _agreement(found: Verification, kept: Agreement | None) -> Agreement | None:
    """Return the agreement on the model, with what was measured now and before."""
    earlier = kept.pairs if kept is not None and kept.recipe == found.recipe else ()
    now = []
    for test in found.tests:
        for each in test.removals:
            if each.whole is not None:
                falls = {"tuned": each.tuned.fall.mean, "whole": each.whole.fall.mean}
                now.append(Pair(test=names_of(test.test), facts=each.facts, **falls))
    pairs = {(pair.test, pair.facts): pair for pair in (*earlier, *now)}
    return agreement_of(found.recipe, tuple(pairs.values()))
