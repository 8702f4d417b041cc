"""Compares the scores of a model's explanations with the retrainings that are on the disk."""

import numpy as np
from jaxtyping import Float

from clew.runs.validation_record import (
    Ceiling,
    DatamodellingScore,
    DeletionEffect,
    Measured,
    Seeds,
    ValidationRecord,
)
from clew.validation.experiment import NOTHING, Cell
from clew.validation.measures import Interval, ceiling, datamodelling_scores
from clew.validation.outcomes import Outcomes
from clew.workflows.trace_source import TraceSource
from clew.workflows.validation_cells import CellFolder
from clew.workflows.validation_experiment import Experiment


def measure(
    experiment: Experiment, source: TraceSource, folder: CellFolder, trained: Outcomes
) -> ValidationRecord:
    """Compare the scores with the retrainings."""
    scores: list[DatamodellingScore] = []
    ceilings: list[Ceiling] = []
    for drop, subsets in experiment.subsets.items():
        by_seed = {
            seed: np.stack(
                [folder.read(experiment.of_subset(seed, row)).total_loss for row in subsets]
            )
            for seed in (experiment.own_seed, *experiment.other_seeds)
        }
        scores += _datamodelling_scores(experiment, drop, "same", by_seed[experiment.own_seed])
        others = [by_seed[seed] for seed in experiment.other_seeds]
        if others:
            scores += _datamodelling_scores(experiment, drop, "other", np.mean(others, axis=0))
        ceilings.append(
            Ceiling(drop=drop, correlation=ceiling(np.stack(others)) if others else None)
        )
    again = folder.read(Cell(experiment.own_seed, NOTHING))
    return ValidationRecord(
        source_run=source.model.run_id or "",
        data_fingerprint=source.task.data_fingerprint,
        config_hash=source.model.manifest.config_hash,
        num_tests=len(experiment.tests),
        num_subsets=len(next(iter(experiment.subsets.values()))),
        num_other_seeds=len(experiment.other_seeds),
        num_retrainings=len({cell.key for cell in experiment.cells}),
        largest_difference=float(abs(again.log_probability - trained.log_probability).max()),
        scores=tuple(scores),
        ceilings=tuple(ceilings),
        deletions=tuple(_effects(experiment, folder)),
    )


def _datamodelling_scores(
    experiment: Experiment, drop: float, seeds: Seeds, losses: Float[np.ndarray, "subset test"]
) -> list[DatamodellingScore]:
    return [
        DatamodellingScore(
            form=form,
            drop=drop,
            seeds=seeds,
            correlation=_measured(datamodelling_scores(values, experiment.subsets[drop], losses)),
        )
        for form, values in {**experiment.forms, **experiment.baselines}.items()
    ]


def _effects(experiment: Experiment, folder: CellFolder) -> list[DeletionEffect]:
    """Average the falls over other seeds, then over test triples."""
    nothing = {seed: folder.read(Cell(seed, NOTHING)) for seed in experiment.other_seeds}
    falls: dict[tuple[str, int], list[np.ndarray]] = {}
    for deletion in experiment.deletions:
        places, differences = list(deletion.tests), []
        for seed, before in nothing.items():
            after = folder.read(Cell(seed, deletion.facts))
            probability = before.log_probability[0, places] - after.log_probability[0, places]
            rank = 1.0 / before.rank[0, places] - 1.0 / after.rank[0, places]
            differences.append([probability, rank])
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
