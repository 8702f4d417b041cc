"""Checks explanations: takes their facts away, trains on or again, and says what happens."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from clew import names
from clew.config.schema import RunConfig
from clew.errors import ConfigError, Interrupted, TrackingError
from clew.files import cache_folder, working_folder
from clew.influence.outcomes import Examiner, Facts
from clew.influence.retraining import KeptRetrainings, Retrainer
from clew.influence.verify import (
    SIZES,
    Queue,
    agreement_of,
    digest_of,
    fine_tuning,
    groups_of,
    recipe_of,
)
from clew.link_prediction.dictionaries import fields_to_ids
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.triples import Triples
from clew.runs.influence_report import ExplainedTriple, InfluenceReport, read_influence_json
from clew.runs.reading.reports import report_files
from clew.runs.reading.search import run_meant
from clew.runs.verification import (
    Answer,
    Effect,
    KeptAgreement,
    Pair,
    Recipe,
    Removal,
    Verification,
    VerifiedTriple,
    keep,
    names_of,
    read_agreement,
    read_verification,
)
from clew.workflows.explaining.trace_source import TraceSource, open_trace_source
from clew.workflows.explaining.tracin import tracin
from clew.workflows.explaining.validate_influence import identity
from clew.workflows.explaining.validation_plan import seeds_of

logger = logging.getLogger(__name__)
Progress = Callable[[int, int], None]
SCORES = ("score", "direction", "test_loss", "use_last_layers_only", "num_last_layers")
"""Settings of an explanation that decide which facts are its strongest."""
LISTED = {"influence.top_k": max(SIZES)}


@dataclass(frozen=True)
class VerifyRequest:
    """The explanations to check, and how."""

    explanation: str = ""
    """Run of kind trace; empty: the newest, or a new one if `test` is given."""
    test: str = ""
    """Triples to explain first: a file, or head,relation,tail."""
    model: str = names.NEWEST
    """The model that explains `test`."""
    top_tests: int | None = None
    """Number of explained triples, best rank first; None: one of a report, all of `test`."""
    triple: tuple[str, str, str] | None = None
    """The only triple of the report to check, by its names in the data."""
    seeds: int = 2
    whole: bool = False
    """Also train again from the start."""
    epochs: int | None = None
    learning_rate: float | None = None


@dataclass(frozen=True)
class VerifyResult:
    """What was found, and the run of the explanation that keeps it."""

    run_id: str
    verification: Verification

    def table(self) -> str:
        found = self.verification
        again = f"verify {self.run_id} whole=true seeds=3"
        if len(found.tests) > 1:
            again = again.replace(" whole", f" top-tests={len(found.tests)} whole")
        if any(removal.whole for test in found.tests for removal in test.removals):
            again = f"report --explanation {self.run_id} --output why.html"
        return f"run {self.run_id}\n\n{found}\nnext: clew {again}"

    def as_dict(self) -> dict[str, object]:
        return {"run_id": self.run_id, "verification": self.verification.model_dump(mode="json")}


def verify(
    request: VerifyRequest,
    *,
    say: Callable[[str], None] = logger.info,
    progress: Progress = lambda done, total: None,
) -> VerifyResult:
    """Take the facts of explanations away, and keep what happens with the explanation's run.

    Trainings that were finished before, by any call, are not repeated.
    """
    if request.test and request.explanation:
        raise ConfigError(
            "an explanation and --test are both given; give the explanation to check, or a triple "
            "to explain first"
        )
    run_id = request.explanation or names.NEWEST
    if request.test:
        model = run_meant(request.model, names.KIND_TRAIN)
        run_id = tracin(model, request.test, LISTED).run_id or ""
        say(f"explained as run {run_id}")
    run_id = run_meant(run_id, names.KIND_TRACE)
    with working_folder("verify") as work:
        files = report_files(run_id, work)
        if files.json is None:
            raise ConfigError(f"run {run_id} explains no triples; give a run that explains triples")
        report = read_influence_json(files.json)
        explained = _chosen(report, request)
        if report.model.runs:
            raise ConfigError(
                f"run {run_id} explains the mean of {len(report.model.runs)} runs; one model is "
                f"checked: explain one of them, such as {report.model.run_id}"
            )
        settings = {f"influence.{k}": report.settings[k] for k in SCORES if k in report.settings}
        with open_trace_source(report.model.run_id, settings | LISTED) as source:
            found = _verify(request, source, explained, say=say, progress=progress)
        found = _with_agreement(found, work)
        keep(run_id, _with_earlier(found, run_id), work)
    return VerifyResult(run_id, found)


def _chosen(report: InfluenceReport, request: VerifyRequest) -> list[ExplainedTriple]:
    """Return the explained triples, best rank first, each once."""
    ordered = sorted(report.tests, key=lambda test: test.rank)
    distinct = list({names_of(test.test): test for test in ordered}.values())
    if request.triple is not None:
        return [test for test in distinct if names_of(test.test) == request.triple]
    return distinct[: request.top_tests or (len(distinct) if request.test else 1)]


def _verify(
    request: VerifyRequest,
    source: TraceSource,
    explained: Sequence[ExplainedTriple],
    *,
    say: Callable[[str], None],
    progress: Progress,
) -> Verification:
    graph, config, model = source.task.graph, source.model.config, source.tracer.models[-1]
    direction = source.tracer.settings.direction
    tests = np.array([_ids(source, one) for one in explained], np.int32)
    groups = [
        group
        for place, one in enumerate(explained)
        for group in groups_of(graph, tests, place, _strongest(source, one, tests[[place]]))
    ]
    recipe = recipe_of(config, request.epochs, request.learning_rate)
    seeds = seeds_of(source, request.seeds)[1:]
    origin, device = source.model.manifest, source.tracer.device

    def queue(config: RunConfig, start: GraphModel | None, begin: str) -> Queue:
        kept = []
        for place in range(len(tests)):
            content = identity(source, tests[[place]], config) + begin
            name = hashlib.sha256(content.encode()).hexdigest()
            kept.append(KeptRetrainings(cache_folder("verify") / name[:32], name))
        return Queue(Retrainer(graph, config, origin, device, start), groups, seeds, kept)

    queues = [queue(fine_tuning(config, recipe), model, digest_of(model))]
    if request.whole:
        queues.append(queue(config, None, ""))
    examiner = Examiner(graph, config, tests)
    _run(queues, examiner, recipe, say, progress)
    own = examiner.examine(model.eval()).of(direction)
    tuned, *whole = (each.effects(direction) for each in queues)
    again: list[Effect | None] = list(whole[0]) if whole else [None] * len(groups)
    removals = [
        Removal(kind=group.kind, facts=tuple(group.facts.tolist()), tuned=short, whole=long)
        for group, short, long in zip(groups, tuned, again, strict=True)
    ]
    return Verification(
        source_run=source.model.run_id or "",
        step=origin.step,
        recipe=recipe,
        seeds=request.seeds,
        tests=tuple(
            VerifiedTriple(
                test=one.test,
                direction=direction,
                model=Answer(
                    rank=float(own.rank[:, place].mean()),
                    log_probability=float(own.log_probability[:, place].mean()),
                ),
                removals=tuple(
                    removal
                    for group, removal in zip(groups, removals, strict=True)
                    if group.test == place
                ),
            )
            for place, one in enumerate(explained)
        ),
    )


def _ids(source: TraceSource, explained: ExplainedTriple) -> list[int]:
    graph, test = source.task.graph, explained.test
    parts = (
        (test.head, graph.entities),
        (test.relation, graph.relations),
        (test.tail, graph.entities),
    )
    return [int(fields_to_ids(pa.array([term.id]), known)[0]) for term, known in parts]


def _strongest(source: TraceSource, explained: ExplainedTriple, test: Triples) -> Facts:
    """Return the strongest proponents; those that the report does not list are scored again."""
    listed = [entry.train_index for entry in explained.proponents]
    complete = not explained.truncated or explained.candidates < len(source.task.graph.train)
    if len(listed) >= max(SIZES) or complete or source.tracer.settings.score == "unrolled":
        return np.array(listed[: max(SIZES)], np.int64)
    (found,) = source.tracer.explain(test)
    return found.proponents.train[0][found.proponents.influence[0] > 0].astype(np.int64)


def _run(
    queues: Sequence[Queue],
    examiner: Examiner,
    recipe: Recipe,
    say: Callable[[str], None],
    progress: Progress,
) -> None:
    left = [len(queue.missing) for queue in queues]
    finished = 0
    total = sum(left)

    def done() -> None:
        nonlocal finished
        finished += 1
        progress(finished, total)

    for queue, number, what in zip(queues, left, ("fine-tunings", "whole trainings"), strict=False):
        at_once, epochs = queue.retrainer.models_at_once, queue.retrainer.config.training.num_epochs
        how = (
            f"{at_once} at once"
            if at_once > 1
            else f"one at a time: {queue.retrainer.why_one_at_a_time}"
        )
        kept = len({one.key for one, _ in queue.wanted}) - number
        say(f"{number} {what} of {epochs} epochs ({how}); {kept} were done before")
    progress(0, total)
    try:
        for queue in queues:
            queue.run(examiner, done)
    except (KeyboardInterrupt, Interrupted):  # the second is from a training of one model
        raise Interrupted(
            f"stopped by the user after {finished} of {total} trainings, which are kept; the same "
            "command goes on"
        ) from None


def _with_agreement(found: Verification, work: Path) -> Verification:
    """Add what is known of the model's agreement, after keeping what was measured now."""
    try:
        kept = read_agreement(found.source_run)
    except TrackingError as error:
        logger.warning("%s; no agreement with whole retraining is kept", error)
        return found
    known = (
        {}
        if kept is None or kept.recipe != found.recipe
        else {(p.test, p.facts): p for p in kept.pairs}
    )
    new = {
        (test.names, removal.facts): Pair(
            test=test.names,
            facts=removal.facts,
            tuned=removal.tuned.fall.mean,
            whole=removal.whole.fall.mean,
        )
        for test in found.tests
        for removal in test.removals
        if removal.whole is not None
    }
    pairs = tuple((known | new).values())
    agreement = agreement_of(pairs)
    if new and agreement is not None:
        record = KeptAgreement(recipe=found.recipe, pairs=pairs, agreement=agreement)
        keep(found.source_run, record, work)
    return found.model_copy(update={"agreement": agreement})


def _with_earlier(found: Verification, run_id: str) -> Verification:
    """Add the triples of the same explanation that an earlier call checked in the same way."""
    earlier = read_verification(run_id)
    if earlier is None or (earlier.recipe, earlier.step) != (found.recipe, found.step):
        return found
    others = tuple(test for test in earlier.tests if found.about(test.names) is None)
    return found.model_copy(update={"tests": found.tests + others})
