"""Compares the scores of a model's explanations with the stored retrainings."""

import numpy as np
from jaxtyping import Float

from clew.config.services import Question
from clew.runs.validation_record import (
    SIBLINGS,
    Ceiling,
    DatamodellingScore,
    DeletionEffect,
    Measured,
    Seeds,
    ValidationRecord,
)
from clew.validation.measures import Interval, ceiling, datamodelling_scores
from clew.validation.outcomes import Outcomes
from clew.validation.retraining import NOTHING, KeptRetrainings, Retraining
from clew.workflows.explaining.trace_source import TraceSource
from clew.workflows.validating.experiment import ValidationPlan


def measure(
    plan: ValidationPlan, source: TraceSource, folder: KeptRetrainings, trained: Outcomes
) -> ValidationRecord:
    """Return how well the scores predict the retrainings.

    Args:
        plan: The test triples, scores and retrainings.
        source: The model.
        folder: The finished retrainings.
        trained: Outcomes of the test triples under the model.
    """
    direction = source.tracer.settings.direction

    def loss_without(subset: np.ndarray, seed: int) -> np.ndarray:
        return folder.read(plan.of_subset(seed, subset)).of(direction).total_loss

    scores: list[DatamodellingScore] = []
    ceilings: list[Ceiling] = []
    for drop, subsets in plan.subsets.items():
        by_seed = {
            seed: np.stack([loss_without(subset, seed) for subset in subsets])
            for seed in (plan.own_seed, *plan.other_seeds)
        }
        scores += _datamodelling_scores(plan, drop, "same", by_seed[plan.own_seed])
        others = [by_seed[seed] for seed in plan.other_seeds]
        if others:
            scores += _datamodelling_scores(plan, drop, "other", np.mean(others, axis=0))
        ceilings.append(
            Ceiling(drop=drop, correlation=ceiling(np.stack(others)) if others else None)
        )
    again = folder.read(Retraining(plan.own_seed, NOTHING))
    return ValidationRecord(
        source_run=source.model.run_id or "",
        ensemble=source.runs,
        direction=direction,
        test_loss=source.tracer.settings.test_loss,
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
        deletions=tuple(_effects(plan, folder, direction)),
    )


def _datamodelling_scores(
    plan: ValidationPlan, drop: float, seeds: Seeds, losses: Float[np.ndarray, "subset test"]
) -> list[DatamodellingScore]:
    found = {
        form: datamodelling_scores(values, plan.subsets[drop], losses)
        for form, values in {**plan.forms, **plan.baselines}.items()
    }
    return [
        DatamodellingScore(
            form=form,
            drop=drop,
            seeds=seeds,
            correlation=_measured(values),
            over_siblings=_measured(values - found[SIBLINGS]) if form != SIBLINGS else None,
        )
        for form, values in found.items()
    ]


def _effects(
    plan: ValidationPlan, folder: KeptRetrainings, direction: Question
) -> list[DeletionEffect]:
    nothing = {
        seed: folder.read(Retraining(seed, NOTHING)).of(direction) for seed in plan.other_seeds
    }
    falls: dict[tuple[str, int], list[np.ndarray]] = {}
    for deletion in plan.deletions:
        places, differences = list(deletion.tests), []
        for seed, before in nothing.items():
            after = folder.read(Retraining(seed, deletion.facts)).of(direction)
            probability = before.log_probability - after.log_probability
            rank = 1.0 / before.rank - 1.0 / after.rank
            differences.append([probability.mean(0)[places], rank.mean(0)[places]])
        falls.setdefault((deletion.form, deletion.num_facts), []).append(np.mean(differences, 0))
    effects = []
    for (form, num_facts), parts in falls.items():
        probability, rank = np.concatenate(parts, axis=1)
        effects.append(
            DeletionEffect(
                form=form,
                num_facts=num_facts,
                log_probability=_measured(probability),
                reciprocal_rank=_measured(rank),
            )
        )
    return effects


def _measured(values: np.ndarray) -> Measured:
    interval = Interval.of(values)
    return Measured(mean=interval.mean, half_width=interval.half_width)
