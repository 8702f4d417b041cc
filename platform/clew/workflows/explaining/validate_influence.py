"""Test a model's explanations: retrain without some facts, and compare with the scores."""

import hashlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clew import names
from clew.config.schema import RunConfig
from clew.config.services import ValidationRequest
from clew.errors import ConfigError
from clew.files import working_folder, write_whole
from clew.influence.outcomes import Examiner
from clew.influence.retraining import NOTHING, KeptRetrainings, Retrainer
from clew.link_prediction.triples import Triples
from clew.runs.base import Tracker
from clew.runs.validation_record import (
    FEWEST_SUBSETS,
    FEWEST_TESTS,
    SIBLINGS,
    Seeds,
    ValidationRecord,
)
from clew.training.reports import lasting
from clew.workflows.explaining.trace_source import TraceSource, open_trace_source
from clew.workflows.explaining.validation_plan import choose_tests, measure, plan_experiment
from clew.workflows.model_source import average_setting
from clew.workflows.outputs import check_folder
from clew.workflows.training_run import linked_run

logger = logging.getLogger(__name__)

TIMED_STEPS = 4
Say = Callable[[str], None]


@dataclass(frozen=True)
class ValidationResult:
    """The measures, and the run that records them."""

    run_id: str | None
    record: ValidationRecord
    notes: tuple[str, ...] = ()
    """Whether predictions come from other parameters."""

    def table(self) -> str:
        head = [f"run {self.run_id or '(not recorded)'}", ""]
        note = (
            "Rank correlations (Spearman, no unit; 1 is perfect, 0 is chance) of a form's summed "
            "scores with the rise of the test triple's loss after training without the facts; in "
            "brackets the difference from the strongest baseline. Log-probabilities are in nats. "
            "95 % intervals over test triples and subsets (deletions: over test triples); see "
            "docs/trust.md."
        )
        again = (
            "Trained again with the same seed and all facts, log-probabilities differ from the "
            f"run's by up to {self.record.largest_difference:.2g}."
        )
        said = ["", note, again, *self.notes, ""]
        return "\n".join([*head, *self.record.markdown(), *said, *self.record.labels()])


def validate_influence(
    request: ValidationRequest,
    *,
    say: Say = logger.info,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ValidationResult:
    """Measure how well a model's scores predict retraining, and record a run of kind `validate`.

    Retrainings that are already in `output_dir` are not repeated.
    """
    check_folder("--output-dir", request.output_dir)
    began = time.perf_counter()
    with open_trace_source(request.model, request.settings) as source:
        graph, config = source.task.graph, source.model.config
        retrainer = Retrainer(graph, config, source.model.manifest, source.tracer.device)
        tests = choose_tests(graph.test, request.tests)
        examiner = Examiner(graph, config, tests)
        own = source.model.run_id or source.model.manifest.config_hash
        given = request.output_dir or Path("runs") / "validate_influence" / own
        folder = KeptRetrainings(given, identity(source, tests))
        trained = examiner.examine(source.tracer.models[-1])
        plan = plan_experiment(request, source, tests, trained)
        every = {one.key: one for one in plan.retrainings}
        missing = [one for one in every.values() if one not in folder]
        _forecast(request, retrainer, len(missing), len(tests), say)
        name, of = f"validate {source.task.dataset}", names.KIND_VALIDATE
        run = linked_run(source.model, source.loaded, name, kind=of, context="explanation")
        with run as tracker:
            kept = len(every) - len(missing)
            progress(kept, len(every))
            for done, (one, model) in enumerate(retrainer.train_each(missing), kept + 1):
                folder.write(one, examiner.examine(model))
                progress(done, len(every))
            record = measure(plan, source, folder, trained)
            _store(tracker, record, source, time.perf_counter() - began)
        of_model = {**average_setting(source.model.config), **source.best}
        return ValidationResult(tracker.run_id, record, tuple(names.model_notes(of_model)))


def _forecast(
    request: ValidationRequest, retrainer: Retrainer, count: int, num_tests: int, say: Say
) -> None:
    """Report how long the retrainings take, and whether they are too few to say anything."""
    seconds = count * _seconds_per_model(retrainer) if count else 0.0
    lasts, at_once = lasting(seconds), retrainer.models_at_once
    how = f"{at_once} at once" if at_once > 1 else f"one at a time: {retrainer.why_one_at_a_time}"
    say(f"{count} retrainings ({how}), about {lasts}")
    if request.subsets < FEWEST_SUBSETS or num_tests < FEWEST_TESTS:
        fewest = FEWEST_SUBSETS, FEWEST_TESTS
        logger.warning("too few to say anything: a test needs %d subsets, %d test triples", *fewest)
    if seconds > 3600 * request.max_hours:
        raise ConfigError(
            f"{count} retrainings of this graph take about {lasts}, more than --max-hours "
            f"{request.max_hours:g}; lower --subsets, --seeds or --deletions, or raise --max-hours"
        )


def _seconds_per_model(retrainer: Retrainer) -> float:
    def seconds(steps: int) -> float:
        began = time.perf_counter()
        dropped = [NOTHING] * retrainer.models_at_once
        for _ in retrainer.train(retrainer.config.training.seed, dropped, max_steps=steps):
            pass
        return time.perf_counter() - began

    seconds(1)  # warm-up: first calls take longer
    first, left = seconds(1), max(1, retrainer.num_steps - 1)
    timed = min(TIMED_STEPS, left)
    # The difference of two short times says little: the steps must take longer than all the rest.
    while (took := seconds(1 + timed)) < 2 * first and timed < left:
        timed = min(4 * timed, left)
    return (first + max(0.0, took - first) / timed * left) / retrainer.models_at_once


def identity(source: TraceSource, tests: Triples, config: RunConfig | None = None) -> str:
    """Return a hash of what all retrainings depend on, except their seeds and dropped facts.

    `config` is that of the retrainings, if it is not the run's.
    """
    config = config or source.model.config
    parts = {
        section: getattr(config, section).model_dump(mode="json")
        for section in ("model", "loss", "optimizer", "schedule", "training", "optimizations")
    }
    if not source.task.inverse_relations:
        parts["data"] = {"inverse_relations": False}
    content = json.dumps([parts, source.task.data_fingerprint, tests.tolist()], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _store(tracker: Tracker, record: ValidationRecord, source: TraceSource, seconds: float) -> None:
    with working_folder("validation") as temporary:
        folder = temporary / names.ARTIFACT_VALIDATION
        write_whole(folder / names.VALIDATION_JSON, record.model_dump_json(indent=1) + "\n")
        write_whole(folder / "validation.md", "\n".join([*record.markdown(), ""]))
        tracker.artifact(folder)
        metrics = _metrics(record, source.tracer.settings.score)
        metrics[names.TIME_TOTAL_SECONDS] = seconds
        tracker.metrics(metrics, source.model.manifest.step)


def _metrics(record: ValidationRecord, default: str) -> dict[str, float]:
    def mean(form: str, seeds: Seeds) -> float | None:
        score = record.score(form, seeds)
        return None if score is None else score.correlation.mean

    found: dict[str, float | None] = {}
    for form in dict.fromkeys([default, *(score.form for score in record.scores)]):
        values = {
            names.INFLUENCE_LDS_SAME_SEED: mean(form, "same"),
            names.INFLUENCE_LDS_OTHER_SEEDS: mean(form, "other"),
            names.INFLUENCE_DELETION_DROP: record.fall(form),
        }
        if form == default:
            found |= values
            seeds: Seeds = "other" if record.num_other_seeds else "same"
            found[names.INFLUENCE_LDS_SIBLINGS] = mean(SIBLINGS, seeds)
            found[names.INFLUENCE_LDS_CEILING] = record.summary(form, "").ceiling
        found |= {f"{key}/{form}": value for key, value in values.items()}
    return {key: value for key, value in found.items() if value is not None}
