"""Takes facts away from a trained model, and finds what that does to its answers.

The model goes on training without the facts for a short while (fine-tuning), or is trained again
from the start. All groups of facts of all explanations are one queue, of which several are trained
together, and each finished result is kept on the disk.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from jaxtyping import Float

from clew.config.schema import RunConfig
from clew.config.services import Question
from clew.influence.outcomes import (
    BASELINES,
    CONFIDENCE,
    Examiner,
    Facts,
    half_width,
    rank_correlations,
    strongest,
)
from clew.influence.retraining import NOTHING, KeptRetrainings, Retrainer, Retraining
from clew.link_prediction.triples import HEAD, TAIL, KnowledgeGraph, Triples, as_keys
from clew.runs.validation_record import Measured, Recipe
from clew.runs.verification import Agreement, Answer, Effect, Kind, Pair

SIZES = (1, 5, 20)
"""Numbers of strongest facts that are taken away."""
SHARE_OF_EPOCHS = 1 / 6
"""At the run's own learning rate; chosen among nine recipes (`experiments`: `verify_recipe`)."""
RESAMPLINGS = 2000
MIN_PAIRS = 3
OTHERS: tuple[Kind, ...] = ("siblings", "touching")


@dataclass(frozen=True, eq=False)
class Group:
    """Facts that are taken away to see what happens to one test triple."""

    test: int
    """Its place among the test triples of the queue."""
    kind: Kind
    facts: Facts
    drawn_from: int | None = None
    """Number of facts of which a control is a random part, or all."""
    others: Facts = field(default_factory=lambda: NOTHING)
    """Facts of other explanations that are taken away in the same training run."""

    @property
    def taken(self) -> Facts:
        return np.union1d(self.facts, self.others)


def groups_of(graph: KnowledgeGraph, tests: Triples, place: int, top: Facts) -> Iterator[Group]:
    """Yield the groups of an explanation: its strongest facts, siblings, and random neighbours.

    The others are the controls. None of them is a copy of the explained triple or of one of the
    strongest facts. They are as many as the strongest facts, or as there are. Of several copies of
    a fact, the first counts; all are taken away. Empty groups are left out.
    """
    first = np.unique(as_keys(graph.train[top]), return_index=True)[1]
    top = top[np.sort(first)][: max(SIZES)]
    for size in sorted({min(size, len(top)) for size in SIZES} - {0}):
        yield Group(place, "strongest", np.sort(top[:size]))
    test = tests[[place]]
    chance = np.random.default_rng(test[0].tolist()).random(len(graph.train))
    keys = as_keys(np.concatenate([graph.train, test]))
    is_other = ~np.isin(keys[:-1], keys[np.append(top, len(graph.train))])
    for kind in OTHERS:
        near = BASELINES[kind](graph, test)[0] * is_other
        size = min(len(top) or max(SIZES), int(near.sum()))
        if size:
            facts = np.sort(strongest(near, size, chance))
            yield Group(place, kind, facts, drawn_from=int(near.sum()))


def sharing(
    graph: KnowledgeGraph, tests: Triples, groups: Sequence[Group], most: int
) -> list[Group]:
    """Return the groups, up to `most` of which share a training run.

    Those that share one have no end in common, and no fact of one has an end of another's explained
    triple.
    """
    ends = [set(test[[HEAD, TAIL]].tolist()) for test in tests]
    near = [set(graph.train[group.facts][:, [HEAD, TAIL]].flat) for group in groups]
    runs: list[list[int]] = []
    for place in sorted(range(len(groups)), key=lambda place: -len(groups[place].facts)):
        own = ends[groups[place].test]

        def is_apart(other: int, place: int = place, own: set[int] = own) -> bool:
            theirs = ends[groups[other].test]
            return own.isdisjoint(theirs | near[other]) and theirs.isdisjoint(near[place])

        fitting = (run for run in runs if len(run) < most and all(map(is_apart, run)))
        if (run := next(fitting, None)) is None:
            runs.append(run := [])
        run.append(place)
    found = list(groups)
    for run in runs:
        for place in run:
            others = [groups[other].facts for other in run if other != place]
            found[place] = replace(groups[place], others=np.concatenate([NOTHING, *others]))
    return found


def recipe_of(config: RunConfig, epochs: int | None, learning_rate: float | None) -> Recipe:
    return Recipe(
        epochs=epochs or max(1, round(config.training.num_epochs * SHARE_OF_EPOCHS)),
        learning_rate=learning_rate or config.optimizer.learning_rate,
    )


def fine_tuning(config: RunConfig, recipe: Recipe) -> RunConfig:
    """Return the configuration of the fine-tuning: a new optimizer, warm-up and cosine."""
    content = config.model_dump(mode="json")
    content["optimizer"]["learning_rate"] = recipe.learning_rate
    content["schedule"] = {"kind": "warmup_cosine"}
    steered = {"max_steps": None, "early_stopping_patience": None}
    content["training"] |= {"num_epochs": recipe.epochs, **steered}
    return RunConfig.model_validate(content)


@dataclass(frozen=True)
class Queue:
    """Trainings of one kind, of all groups and seeds, with the results that are there already."""

    retrainer: Retrainer
    examiner: Examiner
    groups: Sequence[Group]
    seeds: Sequence[int]
    kept: Sequence[KeptRetrainings]
    """The results for each test triple."""

    @property
    def missing(self) -> dict[str, tuple[Retraining, list[int]]]:
        """The training runs to do, each with the test triples that need it, by key."""
        found: dict[str, tuple[Retraining, list[int]]] = {}
        nothing = [Group(test, "strongest", NOTHING) for test in range(len(self.kept))]
        for seed, group in product(self.seeds, (*nothing, *self.groups)):
            one = Retraining(seed, group.taken)
            if one not in self.kept[group.test]:
                found.setdefault(one.key, (one, []))[1].append(group.test)
        return found

    def run(self, done: Callable[[], object]) -> None:
        """Do the missing training runs, and keep the result of each."""
        missing = self.missing
        for one, model in self.retrainer.train_each(one for one, _ in missing.values()):
            found = self.examiner.examine(model)
            for test in missing[one.key][1]:
                self.kept[test].write(one, found.only(test))
            done()

    def answers(self, test: int, facts: Facts, direction: Question) -> np.ndarray:
        """Return log-probability and rank after each seed's training, `(seed, 2)`."""
        read = (self.kept[test].read(Retraining(seed, facts)).of(direction) for seed in self.seeds)
        return np.array([[found.log_probability.mean(), found.rank.mean()] for found in read])


def effects_of(members: Sequence[Queue], direction: Question) -> list[Effect]:
    """Return the effect of each group, in their order, as means over seeds and members.

    Two seeds alone would give no useful interval. So all groups of an explanation are assumed to
    vary as much between seeds.

    Args:
        members: The same groups, going on from each member of an ensemble; one for a single run.
        direction: The question whose answers are compared.
    """
    groups, tests = members[0].groups, range(len(members[0].kept))

    def answers(test: int, facts: Facts) -> np.ndarray:
        return np.concatenate([queue.answers(test, facts, direction) for queue in members])

    before = [answers(test, NOTHING) for test in tests]
    after = [answers(group.test, group.taken) for group in groups]
    places = np.array([group.test for group in groups])
    falls = np.array([before[test] - found for test, found in zip(places, after, strict=True)])
    half_widths = [_half_width(falls[places == test, :, 0]) for test in tests]
    return [
        Effect(
            before=_mean(before[test]),
            after=_mean(found),
            fall=Measured(mean=float(fall[:, 0].mean()), half_width=half_widths[test]),
        )
        for test, found, fall in zip(places, after, falls, strict=True)
    ]


def _mean(answers: np.ndarray) -> Answer:
    log_probability, rank = answers.mean(0).tolist()
    return Answer(log_probability=log_probability, rank=rank)


def _half_width(falls: Float[np.ndarray, "group seed"]) -> float | None:
    groups, seeds = falls.shape
    if seeds < 2 or not groups:
        return None
    error = (falls.var(1, ddof=1).mean() / seeds) ** 0.5
    return half_width(error, groups * (seeds - 1))


def agreement_of(recipe: Recipe, pairs: tuple[Pair, ...]) -> Agreement | None:
    """Return how well fine-tuned falls predict whole ones; None with too few groups.

    The interval of the factor resamples explanations, because their groups are alike.
    """
    if len(pairs) < MIN_PAIRS:
        return None
    tests = list(dict.fromkeys(pair.test for pair in pairs))
    tuned, whole = (np.array([vars(pair)[key] for pair in pairs]) for key in ("tuned", "whole"))
    of_test = np.array([[pair.test == test for pair in pairs] for test in tests])
    products, squares = of_test @ (tuned * whole), of_test @ tuned**2
    drawn = np.random.default_rng(0).integers(len(tests), size=(RESAMPLINGS, len(tests)))
    factors = products[drawn].sum(1) / squares[drawn].sum(1)
    low, high = np.quantile(factors, [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2]).tolist()
    return Agreement(
        recipe=recipe,
        pairs=pairs,
        correlation=float(rank_correlations(tuned[None], whole[None])[0]),
        factor=float(products.sum() / squares.sum()),
        low=low,
        high=high,
    )
