"""TracIn for link prediction: which training triples moved a prediction, and how much.

The influence of training triple i on test triple j (Pruthi et al., 2020, arXiv 2002.08484) is

    sum over checkpoints k of w_k <grad L_i(theta_k), grad L_j(theta_k)>

with gradients of summed losses in evaluation mode and w_k the learning-rate weight stored in the
checkpoint. A positive value means that training on i lowered the loss of j (a proponent). L_j is
the loss of the answer that was asked for, the tail or the head, or of both.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float

from clew.config.loss import KvsAllLoss, OneVsAllLoss
from clew.config.schema import RunConfig
from clew.config.services import InfluenceConfig
from clew.errors import ConfigError
from clew.influence.ensemble import MeanOfRuns
from clew.influence.guards import clean_up, deviation, require_finite
from clew.influence.link_prediction.answers import scores_and_ranks
from clew.influence.link_prediction.checkpoint import EVERY_LAYER, TripleRows, build_trunk
from clew.influence.link_prediction.deltas import (
    DeltaRows,
    Directions,
    LossForm,
    known_tails,
    own_rows,
    training_rows,
)
from clew.influence.link_prediction.tiles import Plan, plan_tiles, tiles
from clew.influence.link_prediction.traced_run import DIVIDED_BY, TracedRun
from clew.influence.link_prediction.verification import verify_task
from clew.influence.scores import Everything, Scored, Strongest
from clew.influence.summation import Summation, self_influence
from clew.link_prediction.filters import FilterIndex
from clew.link_prediction.losses.triple_terms import TripleTerms
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import Triples
from clew.training.checkpoints import CheckpointRecord

logger = logging.getLogger(__name__)

CLEANUP_INTERVAL_TILES = 8
SAMPLE_TRIPLES, SAMPLE_TESTS = 1000, 8
DETAILS_LIMIT_MIB = 1024.0


@dataclass(frozen=True, eq=False)
class Explanation:
    """Scores of training triples for each test triple."""

    proponents: Scored
    opponents: Scored
    """Strongest first."""
    complete: bool
    """Whether every score was kept: `proponents` and `opponents` are then the same list of all
    candidates, in descending order of influence."""
    self_influence: Float[np.ndarray, "test"]
    """NaN where the score has none."""
    parts: tuple[str, ...]
    num_pairs: int

    def only(self, test: int) -> "Explanation":
        """Return the explanation of one test triple."""
        proponents = self.proponents.only(test)
        return replace(
            self,
            proponents=proponents,
            opponents=proponents if self.complete else self.opponents.only(test),
            self_influence=self.self_influence[test : test + 1],
        )


class Tracer:
    """Explains predictions of a trained model, or of several that differ in their seed alone.

    Args:
        task: The graph, the network and its losses.
        config: The training run's configuration.
        settings: Settings of the explanation.
        checkpoints: Checkpoints in order of their steps.
        device: Device to compute on.
        further_runs: Checkpoints of the other runs of an ensemble, of which scores are averaged.

    Raises:
        ConfigError: the settings ask for what this model cannot give.
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
    ) -> None:
        self.graph, self.config, self.settings = task.graph, config, settings
        self.checkpoints, self.device = checkpoints, device
        self.runs = [
            TracedRun(task, config, settings=settings, checkpoints=records, device=device)
            for records in (checkpoints, *further_runs)
        ]
        loss = config.loss
        if not isinstance(loss, OneVsAllLoss | KvsAllLoss):
            raise ConfigError(f"loss.kind is {loss.kind}, expected one_vs_all or kvs_all")
        self.form, self._terms = LossForm.from_config(loss), TripleTerms.from_config(loss)
        self._kind = Directions(task.graph.num_relations, task.inverse_relations)
        self._require_defined(task)
        several = self.form.one_query_a_row and self.form.function == "softmax_cross_entropy"
        self._known = known_tails(self.graph.train, self._kind) if several else None
        self._train = training_rows(self.graph.train, self.form, self._kind).to(device, self._dtype)
        verify_task(task, self.models[-1], self._train, self.form, settings.memory_budget_mib)

    @property
    def models(self) -> list[GraphModel]:
        """Models of the (first) run's checkpoints."""
        return self.runs[0].models

    @property
    def operand(self) -> torch.dtype | None:
        """Half-precision type of the operands; None: float32."""
        return self.runs[0].operand

    @property
    def _dtype(self) -> torch.dtype:
        return self.models[0].entity.weight.dtype

    @property
    def _num_parts(self) -> int:
        return len(build_trunk(self.models[0]).parts(min(self.runs[0].depth, EVERY_LAYER)))

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

        Args:
            tests: Test triples `(test, 3)`.
            candidates: Pairs to include, `(test, train)`, bool; None: all.
            progress: Called with the number of training triples done and in total, over all passes.

        Returns:
            One explanation for each pass over the training triples; each covers consecutive tests.
        """
        plan = self.plan(len(tests))
        passes = range(0, len(tests), plan.tests_per_pass)
        results = []
        for number, start in enumerate(passes):
            part = slice(start, start + plan.tests_per_pass)
            mask = None if candidates is None else candidates[part]

            def report(done: int, total: int, number: int = number) -> None:
                progress(number * total + done, len(passes) * total)

            results.append(self._one_pass(tests[part], mask, plan, report))
        return results

    def self_influence(self) -> Float[np.ndarray, "train"]:
        """Return the (first) run's TracIn of every training triple on itself.

        It is the square of the norm that scores are divided by, in the geometry of the score.
        """
        plan, run = self.plan(1), self.runs[0]
        kernels = run.kernels(self._rows(self.graph.train[:1]))
        parts = tiles(self.graph.train, None, plan.tile_triples)
        return self_influence(kernels, run.weights, parts, len(self.graph.train))

    def summation(
        self, tests: Triples, candidates: np.ndarray | None = None, *, half: bool = True
    ) -> Summation | MeanOfRuns:
        """Return the sum over checkpoints for these test triples; of an ensemble, the mean.

        `half` allows half precision if the settings ask for it.
        """
        assert self.settings.score != "unrolled"  # no sum over checkpoints: see `unrolled`
        rows = self._rows(tests)
        sums = [
            Summation(
                run.kernels(rows, half=half),
                run.weights,
                cosine=self.settings.with_cosine or self.settings.score == "cosine",
                divided_by=DIVIDED_BY.get(self.settings.score, "none"),
                candidates=candidates,
            )
            for run in self.runs
        ]
        return sums[0] if len(sums) == 1 else MeanOfRuns(sums, [run.steps for run in self.runs])

    def half_precision_deviation(self, tests: Triples) -> dict[str, float]:
        """Return how far half precision is from float32 on a sample of pairs.

        `relative_error` is the largest error divided by the largest score, `spearman_top_100` the
        mean rank correlation over the 100 scores of largest size of each test.
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

        Both are at the last checkpoint, and of the question that is explained: for the tail, for
        the head, or the means of both. Of an ensemble, they are means over the runs.
        """
        models = [run.models[-1] for run in self.runs]
        return scores_and_ranks(models, self._tests(tests), self._answers)

    @cached_property
    def _answers(self) -> FilterIndex:
        return FilterIndex.from_graph(self.graph)

    def _tests(self, tests: Triples) -> DeltaRows:
        """Return the rows of test triples: of the direction that is explained."""
        rows = own_rows(tests, self.form, self._kind).to(self.device, self._dtype)
        if self.settings.direction == "both":
            return rows
        return rows.direction(0 if self.settings.direction == "tail" else 1)

    def _rows(self, tests: Triples) -> TripleRows:
        answers = self._answers if self.settings.test_loss == "filtered" else None
        return TripleRows(
            self.form, self._train, self._tests(tests), self._known, self._terms, answers
        )

    def _one_pass(
        self,
        tests: Triples,
        candidates: np.ndarray | None,
        plan: Plan,
        progress: Callable[[int, int], None],
    ) -> Explanation:
        summation = self.summation(tests, candidates)
        top_k = self.settings.top_k
        train = self.graph.train
        union = None if candidates is None else np.flatnonzero(candidates.any(0))
        total = len(train) if union is None else len(union)
        everything = Everything(details=self._keeps_details(len(tests), total))
        strongest = (Strongest(top_k, 1), Strongest(top_k, -1)) if top_k else None
        sinks = strongest or (everything,)
        done = 0
        for count, indices in enumerate(tiles(train, union, plan.tile_triples)):
            tile = summation.tile(indices)
            for sink in sinks:
                sink.add(tile)
            done += len(indices)
            progress(done, total)
            if self.settings.enable_memory_cleanup and count % CLEANUP_INTERVAL_TILES == 0:
                clean_up(self.device)
        if strongest is not None:
            proponents, opponents = (sink.result() for sink in strongest)
        else:
            proponents = opponents = everything.result()
        require_finite(proponents, opponents)
        return Explanation(
            proponents,
            opponents,
            strongest is None,
            summation.test_self_influence.cpu().numpy(),
            summation.parts,
            num_pairs=total * len(tests),
        )

    def _keeps_details(self, num_tests: int, num_train: int) -> bool:
        """Whether the contributions of all pairs fit into memory if every score is kept."""
        numbers = len(self.checkpoints) + self._num_parts + len(self.runs)
        size_mib = 4.0 * num_tests * num_train * numbers / 2**20
        if self.settings.top_k == 0 and size_mib > DETAILS_LIMIT_MIB:
            logger.warning(
                "contributions by part and checkpoint of %d x %d scores would need %.0f MiB and "
                "are left out; the scores are complete",
                num_tests,
                num_train,
                size_mib,
            )
            return False
        return True

    def _require_defined(self, task: LinkPrediction) -> None:
        """Refuse what this model cannot give.

        Raises:
            ConfigError: it has no such question, or its gradients no such form.
        """
        score, kind, terms = self.settings.score, task.model_config.kind, self._terms
        if self.settings.direction == "head" and not task.inverse_relations:
            raise ConfigError(
                "influence.direction is head, but the model was trained with "
                "data.inverse_relations=false and has no question for heads; use tail"
            )
        changed = score in {"deflated", "kronecker"}
        if changed and self.models[0].squared_distance:
            raise ConfigError(
                f"influence.score is {score}, but {kind} scores by a squared distance, whose "
                "gradient of an entity is no outer product; use raw or cosine"
            )
        if changed and terms is not None:
            raise ConfigError(
                f"influence.score is {score}, but it is not defined for what the loss adds for "
                "each triple (loss.regularizer, loss.relation_prediction_weight); use raw or cosine"
            )
        if score == "preconditioned" and terms is not None and terms.relation_prediction_weight:
            raise ConfigError(
                "influence.score is preconditioned, but the gradient of "
                f"loss.relation_prediction_weight={terms.relation_prediction_weight} has no "
                "factored form in that geometry; use raw or cosine"
            )
