"""Plans the validation of a model's explanations, and measures it with the stored retrainings."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from jaxtyping import Bool, Float

from clew.config.services import Form, Question, ValidationRequest
from clew.errors import CheckpointError, ConfigError, DataError
from clew.influence import outcomes
from clew.influence.link_prediction.tracin import Tracer
from clew.influence.outcomes import Facts, Outcomes
from clew.influence.retraining import NOTHING, KeptRetrainings, Retraining
from clew.influence.scores import Explanation
from clew.link_prediction.triples import Triples
from clew.runs.validation_record import (
    SIBLINGS,
    Ceiling,
    DatamodellingScore,
    DeletionEffect,
    Measured,
    ScoreSettings,
    Seeds,
    ValidationRecord,
)
from clew.workflows.explaining.trace_source import TraceSource, prepare, seeds_of, tuned_settings

logger = logging.getLogger(__name__)

FORMS = tuple(form for form in get_args(Form) if form not in {"unrolled", "tuned"})
"""Forms that are tested by default, without those that cost several training runs."""
DELETION_BASELINES = ("touching", SIBLINGS)
Matrix = Float[np.ndarray, "test fact"]
TESTS_PER_GROUP = 5
"""Number of test triples whose strongest facts are deleted together."""
NUM_DELETED = (1, 4, 20)
"""Numbers of strongest facts that are deleted for each test triple."""


@dataclass(frozen=True)
class Deletion:
    """The strongest facts of a group of test triples, which are deleted together."""

    form: str
    num_facts: int
    """Number of facts for each test triple."""
    tests: tuple[int, ...]
    facts: Facts


@dataclass(frozen=True, eq=False)
class ValidationPlan:
    """The test triples, the scores to be tested, and the retrainings that this needs."""

    tests: Triples
    own_seed: int
    other_seeds: tuple[int, ...]
    forms: dict[str, Matrix]
    baselines: dict[str, Matrix]
    subsets: Mapping[float, Bool[np.ndarray, "subset fact"]]
    """Share of dropped facts to the random subsets."""
    deletions: tuple[Deletion, ...]

    @property
    def retrainings(self) -> list[Retraining]:
        """All retrainings; some can be the same."""
        every = [NOTHING, *(np.flatnonzero(row) for rows in self.subsets.values() for row in rows)]
        # Deletions use only the other seeds, whose randomness the scores could not know.
        return [
            Retraining(s, facts) for s in (self.own_seed, *self.other_seeds) for facts in every
        ] + [Retraining(s, d.facts) for s in self.other_seeds for d in self.deletions]


def choose_tests(test: Triples, count: int) -> Triples:
    """Return up to `count` test triples, in a random order that is always the same."""
    if not len(test):
        raise DataError("the data has no test triples, so nothing to explain; give data.test")
    return test[np.random.default_rng(0).permutation(len(test))[:count]]


def plan_experiment(
    request: ValidationRequest, source: TraceSource, tests: Triples, trained: Outcomes
) -> ValidationPlan:
    """Compute the scores, and choose the facts to drop."""
    graph = source.task.graph
    own_seed, *other_seeds = seeds_of(source, request.seeds)
    scores = scores_by_form(request.scores, source, tests)
    baselines = {name: score(graph, tests) for name, score in outcomes.BASELINES.items()}
    asked = trained.of(source.tracer.settings.direction)
    first = np.flatnonzero((asked.rank == 1.0).all(0))[: request.deletions].tolist()
    if not request.seeds and request.deletions:
        logger.warning("no facts are deleted: deletions are trained with other seeds (--seeds)")
    elif not first and request.deletions:
        logger.warning("no facts are deleted: the model ranks none of the test triples first")
    elif len(first) < request.deletions:
        logger.warning(
            "the model ranks only %d of the test triples first: their strongest facts are deleted, "
            "not those of %d test triples (--deletions)",
            len(first),
            request.deletions,
        )
    # Baselines score 0 or 1, so ties are common. Facts that touch the triple come first, the rest
    # is decided at random.
    ties = outcomes.touching(graph, tests) + 1e-3 * outcomes.random_scores(graph, tests)
    deleted = dict(scores) | {name: baselines[name] for name in DELETION_BASELINES}
    num_facts = len(graph.train)
    return ValidationPlan(
        tests=tests,
        own_seed=own_seed,
        other_seeds=tuple(other_seeds),
        forms=scores,
        baselines=baselines,
        subsets={d: random_subsets(num_facts, d, request.subsets) for d in sorted(request.drop)},
        deletions=tuple(deletions(deleted, first, ties)) if request.seeds else (),
    )


def scores_by_form(forms: Sequence[str], source: TraceSource, tests: Triples) -> dict[str, Matrix]:
    """Return the scores of all training facts by form, `(test, fact)`.

    A form that the run does not allow is an error if `forms` has it; otherwise it is left out.
    """
    found = {}
    for form in forms or FORMS:
        try:
            found[form] = _matrix(_explanations(form, source, tests))
        except (ConfigError, CheckpointError) as error:
            if forms:
                raise
            logger.warning("the form %s is left out: %s", form, error)
    return found


def _explanations(form: str, source: TraceSource, tests: Triples) -> Iterable[Explanation]:
    if form in {"unrolled", "tuned"}:
        if form == "unrolled" and source.model.config.training.ema_decay is not None:
            raise ConfigError(
                "--scores unrolled explains the average of the parameters (training.ema_decay), "
                "but retrainings are compared by the last parameters; test a run without an average"
            )
        return prepare(source, form).explain(tests)
    settings = source.tracer.settings.model_copy(update={"score": form, "with_cosine": False})
    checkpoints, *further_runs = (run.checkpoints for run in source.tracer.runs)
    tracer = Tracer(
        source.task,
        source.model.config,
        settings=settings,
        checkpoints=checkpoints,
        further_runs=further_runs,
        device=source.tracer.device,
    )
    return tracer.explain(tests)


def _matrix(explanations: Iterable[Explanation]) -> Matrix:
    rows = []
    for explanation in explanations:
        scored = explanation.proponents
        scores = np.empty(scored.influence.shape)
        np.put_along_axis(scores, scored.train, scored.influence, 1)
        rows.append(scores)
    return np.concatenate(rows)


def random_subsets(num_facts: int, fraction: float, count: int) -> Bool[np.ndarray, "subset fact"]:
    """Return which facts each subset drops; the same arguments give the same subsets."""
    size = max(1, round(fraction * num_facts))
    generator = np.random.default_rng([count, size, num_facts])
    dropped = np.zeros((count, num_facts), bool)
    for row in dropped:
        row[generator.permutation(num_facts)[:size]] = True
    return dropped


def deletions(scores: dict[str, Matrix], tests: Sequence[int], ties: Matrix) -> Iterator[Deletion]:
    """Yield the facts that each form of score deletes for each group of test triples."""
    groups = [tuple(tests[i : i + TESTS_PER_GROUP]) for i in range(0, len(tests), TESTS_PER_GROUP)]
    for form, values in scores.items():
        for count in NUM_DELETED:
            for group in groups:
                facts = [outcomes.strongest(values[test], count, ties[test]) for test in group]
                yield Deletion(form, count, group, np.unique(np.concatenate(facts)))


def measure(
    plan: ValidationPlan, source: TraceSource, folder: KeptRetrainings, trained: Outcomes
) -> ValidationRecord:
    """Return how well the scores predict the retrainings."""
    direction = source.tracer.settings.direction

    def losses(seed: int, drop: float) -> Float[np.ndarray, "subset test"]:
        every = (Retraining(seed, np.flatnonzero(subset)) for subset in plan.subsets[drop])
        return np.stack([folder.read(one).of(direction).total_loss for one in every])

    scores: list[DatamodellingScore] = []
    ceilings: list[Ceiling] = []
    for drop in plan.subsets:
        scores += _datamodelling_scores(plan, drop, "same", losses(plan.own_seed, drop))
        others, ceiling = [losses(seed, drop) for seed in plan.other_seeds], None
        if others:
            scores += _datamodelling_scores(plan, drop, "other", np.mean(others, axis=0))
            ceiling = outcomes.ceiling(np.stack(others))
        ceilings.append(Ceiling(drop=drop, correlation=ceiling))
    again = folder.read(Retraining(plan.own_seed, NOTHING))
    return ValidationRecord(
        source_run=source.model.run_id or "",
        ensemble=source.runs,
        direction=direction,
        test_loss=source.tracer.settings.test_loss,
        settings=ScoreSettings.of_report(
            source.tracer.settings.model_dump()
            | {"precision": source.tracer.precision}
            | (tuned_settings(source.model.config) if "tuned" in plan.forms else {}),
            [(record.step, record.learning_rate_weight) for record in source.checkpoints],
        ),
        data_fingerprint=source.task.data_fingerprint,
        config_hash=source.model.manifest.config_hash,
        num_tests=len(plan.tests),
        num_subsets=len(next(iter(plan.subsets.values()))),
        num_other_seeds=len(plan.other_seeds),
        num_retrainings=len({retraining.key for retraining in plan.retrainings}),
        num_deletions=len({test for deletion in plan.deletions for test in deletion.tests}),
        largest_difference=float(abs(again.log_probability - trained.log_probability).max()),
        scores=tuple(scores),
        ceilings=tuple(ceilings),
        deletions=tuple(deletion_effects(plan, folder, direction)),
    )


def _datamodelling_scores(
    plan: ValidationPlan, drop: float, seeds: Seeds, losses: Float[np.ndarray, "subset test"]
) -> list[DatamodellingScore]:
    dropped, tests = plan.subsets[drop], losses.shape[1]
    every = {**plan.forms, **plan.baselines}
    means = {f: outcomes.datamodelling_scores(s, dropped, losses).mean() for f, s in every.items()}
    summed = [scores @ dropped.T.astype(scores.dtype) for scores in every.values()]
    draws = dict(zip(every, outcomes.resampled_scores(summed, losses).T, strict=True))
    strongest = max(plan.baselines, key=lambda form: means[form])

    def of(mean: float, drawn: np.ndarray) -> Measured:
        return outcomes.measured_over_both(mean, drawn, tests, len(dropped))

    return [
        DatamodellingScore(
            form=form,
            drop=drop,
            seeds=seeds,
            correlation=of(means[form], draws[form]),
            over_baseline=None
            if form == strongest
            else of(means[form] - means[strongest], draws[form] - draws[strongest]),
        )
        for form in every
    ]


def deletion_effects(
    plan: ValidationPlan, folder: KeptRetrainings, direction: Question
) -> list[DeletionEffect]:
    nothing = {s: folder.read(Retraining(s, NOTHING)).of(direction) for s in plan.other_seeds}
    falls: dict[tuple[str, int], list[np.ndarray]] = {}
    for deletion in plan.deletions:
        places, differences = list(deletion.tests), []
        for seed, before in nothing.items():
            after = folder.read(Retraining(seed, deletion.facts)).of(direction)
            probability = before.log_probability - after.log_probability
            rank = 1.0 / before.rank - 1.0 / after.rank
            differences.append([probability.mean(0)[places], rank.mean(0)[places]])
        scores = (plan.forms | plan.baselines)[deletion.form][places][:, deletion.facts]
        found = np.stack([*np.mean(differences, 0), scores.sum(1)])
        falls.setdefault((deletion.form, deletion.num_facts), []).append(found)
    joined = {key: np.concatenate(parts, axis=1) for key, parts in falls.items()}
    return [
        DeletionEffect(
            form=form,
            num_facts=num_facts,
            log_probability=outcomes.measured(probability),
            reciprocal_rank=outcomes.measured(rank),
            for_each_unit=outcomes.fall_for_each_unit(summed, probability),
        )
        for (form, num_facts), (probability, rank, summed) in joined.items()
    ]
