"""TracIn for link prediction: which training triples moved a prediction, and how much.

The influence of training triple i on test triple j (Pruthi et al., 2020, arXiv 2002.08484) is

    sum over checkpoints k of w_k <grad L_i(theta_k), grad L_j(theta_k)>

with gradients of summed losses in evaluation mode and w_k the learning-rate weight stored in the
checkpoint. A positive value means that training on i lowered the loss of j (a proponent). L_j is
the loss of the explained answer: the tail, the head, or both.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from clew.config.loss import KvsAllLoss, OneVsAllLoss
from clew.config.schema import RunConfig
from clew.config.services import InfluenceConfig
from clew.errors import ConfigError
from clew.influence.link_prediction.rows import (
    DeltaRows,
    Directions,
    LossForm,
    known_tails,
    own_rows,
    training_rows,
)
from clew.influence.link_prediction.traced_run import (
    DIVIDED_BY,
    TracedRun,
    TripleRows,
    build_trunk,
    require_defined,
    verify_task,
    with_chosen_form,
)
from clew.influence.scores import Explanation, deviation
from clew.influence.summation import MeanOfRuns, Summation, explain_in_tiles, self_influence
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import HEAD, RELATION, TAIL, FilterIndex, Triples
from clew.training.manifest import CheckpointRecord
from clew.training.memory import MemoryCleanup

LARGEST_TILE, SMALLEST_TILE = 1024, 16
FLOAT_BYTES = 4
TEST_SHARE = 0.5
"""Share of the budget that the factors of test triples can use."""
CLEANUP_INTERVAL_TILES = 8
SAMPLE_TRIPLES, SAMPLE_TESTS = 1000, 8


@dataclass(frozen=True)
class Plan:
    """Sizes chosen to stay within a memory budget."""

    tile_triples: int
    tests_per_pass: int


class Tracer:
    """Explains predictions of a trained model, or of several that differ only in their seed.

    Args:
        task: The graph, the network and its losses.
        config: The training run's configuration.
        settings: Settings of the explanation; `auto` is replaced by the form for the model.
        checkpoints: Checkpoints in order of their steps.
        device: Device to compute on.
        further_runs: Checkpoints of the other runs of an ensemble; scores are averaged over runs.
        cache: Folder that stores moments of training rows; None: estimate them each time.
    """

    def __init__(
        self,
        task: LinkPrediction,
        config: RunConfig,
        *,
        settings: InfluenceConfig,
        checkpoints: Sequence[CheckpointRecord],
        device: torch.device,
        further_runs: Sequence[Sequence[CheckpointRecord]] = (),
        cache: Path | None = None,
    ) -> None:
        settings = with_chosen_form(settings, task)
        require_defined(settings, task, config)
        self.graph, self.config, self.settings = task.graph, config, settings
        self.checkpoints, self.device = checkpoints, device
        self.runs = [
            TracedRun(
                task, config, settings=settings, checkpoints=records, device=device, cache=cache
            )
            for records in (checkpoints, *further_runs)
        ]
        self.models, self.operand = self.runs[0].models, self.runs[0].operand
        self._dtype = self.models[0].entity.weight.dtype
        self.precision = str(self.operand or self._dtype).removeprefix("torch.")
        assert isinstance(config.loss, OneVsAllLoss | KvsAllLoss)  # the task refuses others
        self.form, self._terms = LossForm.from_config(config.loss), task.terms
        self._kind = Directions(task.graph.num_relations, task.inverse_relations)
        several = self.form.one_query_a_row and self.form.function == "softmax_cross_entropy"
        self._known = known_tails(self.graph.train, self._kind) if several else None
        self._train = training_rows(self.graph.train, self.form, self._kind).to(device, self._dtype)
        self._num_parts = len(build_trunk(self.models[0]).parts(self.runs[0].depth))
        self._cleanup = MemoryCleanup(
            settings.enable_memory_cleanup, CLEANUP_INTERVAL_TILES, device
        )
        verify_task(task, self.models[-1], self._train, self.form, settings.memory_budget_mib)

    def plan(self, num_tests: int) -> Plan:
        """Choose the tile size and the tests per pass from the memory budget."""
        settings = self.settings
        return plan_tiles(
            self.models[0],
            num_tests=num_tests,
            num_checkpoints=sum(len(run.checkpoints) for run in self.runs),
            num_directions=self._train.num_directions,
            num_parts=self._num_parts,
            keep_features=not settings.use_gradient_checkpointing,
            budget_mib=settings.memory_budget_mib,
            tile_triples=settings.batch_size,
        )

    def explain(
        self,
        tests: Triples,
        *,
        candidates: np.ndarray | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[Explanation]:
        """Score training triples for every test triple.

        `candidates` are the pairs to include, `(test, train)`; None: all. Each explanation is one
        pass over the training triples and covers consecutive tests.
        """
        plan = self.plan(len(tests))
        passes = range(0, len(tests), plan.tests_per_pass)
        results = []
        for number, start in enumerate(passes):
            part = slice(start, start + plan.tests_per_pass)
            mask = None if candidates is None else candidates[part]
            chosen = None if mask is None else np.flatnonzero(mask.any(0))

            def report(done: int, total: int, number: int = number) -> None:
                progress(number * total + done, len(passes) * total)

            results.append(
                explain_in_tiles(
                    self.summation(tests[part], mask),
                    tiles(self.graph.train, chosen, plan.tile_triples),
                    len(self.graph.train) if chosen is None else len(chosen),
                    top_k=self.settings.top_k,
                    numbers_per_pair=len(self.checkpoints) + self._num_parts + len(self.runs),
                    cleanup=self._cleanup,
                    progress=report,
                )
            )
        return results

    def prepare(self) -> None:
        if not self.settings.goes_through_steps:
            for run in self.runs:
                run.kernels(self._rows(self.graph.train[:1]))

    def self_influence(self) -> Float[np.ndarray, "train"]:
        """Return the (first) run's TracIn of every training triple on itself.

        This is the square of the norm that scores are divided by, in the geometry of the score.
        """
        plan, run = self.plan(1), self.runs[0]
        kernels = run.kernels(self._rows(self.graph.train[:1]))
        parts = tiles(self.graph.train, None, plan.tile_triples)
        return self_influence(kernels, run.weights, parts, len(self.graph.train))

    def summation(
        self, tests: Triples, candidates: np.ndarray | None = None, *, half: bool = True
    ) -> Summation | MeanOfRuns:
        """Return the sum over checkpoints for test triples; for an ensemble, the mean of the sums.

        If `half`, half precision is used when the settings ask for it.
        """
        assert not self.settings.goes_through_steps  # no sum over checkpoints: see `unrolled`
        rows, score = self._rows(tests), self.settings.score
        cosine = self.settings.with_cosine or score == "cosine"
        form = (cosine, DIVIDED_BY.get(score, "none"), candidates)
        sums = [Summation(run.kernels(rows, half=half), run.weights, *form) for run in self.runs]
        steps = [[record.step for record in run.checkpoints] for run in self.runs]
        return sums[0] if len(sums) == 1 else MeanOfRuns(sums, steps)

    def half_precision_deviation(self, tests: Triples) -> dict[str, float]:
        """Return the deviation of half precision from float32 on a sample of pairs.

        `relative_error` is the largest error divided by the largest absolute score.
        `spearman_top_100` is the mean over tests of the rank correlation of the 100 largest
        absolute scores.
        """
        if self.operand is None:
            raise ConfigError("influence.use_mixed_precision is false; set it to true to compare")
        train = np.arange(len(self.graph.train))[:: max(1, len(self.graph.train) // SAMPLE_TRIPLES)]
        sample = tests[:SAMPLE_TESTS]
        half = self.summation(sample).tile(train).influence
        exact = self.summation(sample, half=False).tile(train).influence
        return deviation(half.cpu().numpy(), exact.cpu().numpy())

    def scores_and_ranks(self, tests: Triples) -> tuple[np.ndarray, np.ndarray]:
        """Return the score and the filtered rank of each test triple's answer.

        Both are those of the last checkpoint, for the explained answer: the tail, the head, or the
        means of both. For an ensemble, they are means over the runs.
        """
        rows = self._tests(tests)
        found = np.stack([run.answers(rows, self._answers) for run in self.runs], axis=1)
        scores, ranks = found.mean((1, 2))
        return scores, ranks

    @cached_property
    def _answers(self) -> FilterIndex:
        return FilterIndex.from_graph(self.graph)

    def _tests(self, tests: Triples) -> DeltaRows:
        rows = own_rows(tests, self.form, self._kind).to(self.device, self._dtype)
        asked = self.settings.direction
        return rows if asked == "both" else rows.direction(("tail", "head").index(asked))

    def _rows(self, tests: Triples) -> TripleRows:
        answers = self._answers if self.settings.test_loss == "filtered" else None
        return TripleRows(
            self.form, self._train, self._tests(tests), self._known, self._terms, answers
        )


def plan_tiles(
    model: GraphModel,
    *,
    num_tests: int,
    num_checkpoints: int,
    num_directions: int,
    num_parts: int,
    keep_features: bool,
    budget_mib: float,
    tile_triples: int | None = None,
) -> Plan:
    """Choose the tile size, and the number of tests per pass over the training triples.

    A row needs memory for its scores and feature maps, and a test needs it at every checkpoint. A
    pair of triples needs memory for one product per part and pair of directions, and for the sums.
    """
    budget = budget_mib * 2**20
    num_entities, dim = model.entity.num_embeddings, model.entity.embedding_dim
    tables = 3 if model.squared_distance else 1  # deltas, and their two weighted forms
    features = (1 + keep_features) * model.floats_per_query
    row = FLOAT_BYTES * (tables * num_entities + features + 12 * dim)
    test = num_checkpoints * num_directions * row
    tests = int(max(1, min(num_tests, TEST_SHARE * budget // test)))
    pair = FLOAT_BYTES * num_parts * (2 * num_directions**2 + 4) + 16 * (num_checkpoints + 2)
    triple = num_directions * row + tests * pair
    fitting = int((budget - tests * test) // triple)
    chosen = tile_triples or max(SMALLEST_TILE, min(LARGEST_TILE, fitting))
    return Plan(chosen, tests)


def tiles(triples: Triples, candidates: np.ndarray | None, size: int) -> Iterator[np.ndarray]:
    """Yield indices of training triples, `size` at a time, in an order that shares queries.

    A tile holds triples of one relation with neighbouring heads if possible. The rows of one (head,
    relation) share a query, which is computed once, and so do the inverse rows of one (tail,
    relation).
    """
    chosen = np.arange(len(triples)) if candidates is None else candidates
    part = triples[chosen]
    order = chosen[np.lexsort((part[:, TAIL], part[:, HEAD], part[:, RELATION]))]
    for start in range(0, len(order), size):
        yield order[start : start + size]
