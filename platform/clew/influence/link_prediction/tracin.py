"""TracIn for link prediction: which training triples moved a prediction, and how much.

The influence of training triple i on test triple j (Pruthi et al., 2020, arXiv 2002.08484) is

    sum over checkpoints k of w_k <grad L_i(theta_k), grad L_j(theta_k)>

with gradients of summed losses in evaluation mode and w_k the learning-rate weight stored in the
checkpoint. A positive value means that training on i lowered the loss of j (a proponent).
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float

from clew.config.loss import KvsAllLoss, OneVsAllLoss
from clew.config.optimizer import Adam
from clew.config.schema import RunConfig
from clew.config.services import InfluenceConfig
from clew.errors import ConfigError
from clew.influence.guards import checked_weights, clean_up, deviation, require_finite
from clew.influence.link_prediction.checkpoint import (
    EVERY_LAYER,
    GraphModelCheckpoint,
    TripleRows,
    build_trunk,
    options_for,
)
from clew.influence.link_prediction.deltas import (
    Directions,
    LossForm,
    known_tails,
    own_rows,
    training_rows,
)
from clew.influence.link_prediction.preconditioner import Preconditioner, read_preconditioner
from clew.influence.link_prediction.tiles import Plan, plan_tiles, tiles
from clew.influence.link_prediction.verification import verify_task
from clew.influence.products import half_precision_for
from clew.influence.scores import Everything, Scored, Strongest
from clew.influence.summation import Summation, self_influence
from clew.link_prediction.filters import FilterIndex
from clew.link_prediction.losses.triple_terms import TripleTerms
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import HEAD, RELATION, Triples
from clew.training.checkpoints import CheckpointRecord, load_model

logger = logging.getLogger(__name__)

CLEANUP_INTERVAL_TILES = 8
SAMPLE_TRIPLES, SAMPLE_TESTS = 1000, 8
RANKED_TESTS = 16
"""Number of test triples whose scores of all entities are held at once."""
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
    """Explains predictions of one trained model.

    Args:
        task: The graph, the network and its losses.
        config: The training run's configuration.
        settings: Settings of the explanation.
        checkpoints: Checkpoints in order of their steps.
        device: Device to compute on.
    """

    def __init__(
        self,
        task: LinkPrediction,
        config: RunConfig,
        *,
        settings: InfluenceConfig,
        checkpoints: Sequence[CheckpointRecord],
        device: torch.device,
    ) -> None:
        graph = task.graph
        self.graph, self.config, self.settings = graph, config, settings
        self.checkpoints, self.device = checkpoints, device
        self.weights = checked_weights(checkpoints)
        self.models = [self._load(task, record) for record in checkpoints]
        loss = config.loss
        if not isinstance(loss, OneVsAllLoss | KvsAllLoss):
            raise ConfigError(f"loss.kind is {loss.kind}, expected one_vs_all or kvs_all")
        self.form, self._terms = LossForm.from_config(loss), TripleTerms.from_config(loss)
        self._kind = Directions(graph.num_relations, task.inverse_relations)
        several = self.form.one_query_a_row and self.form.function == "softmax_cross_entropy"
        self._known = known_tails(graph.train, self._kind) if several else None
        self._train = training_rows(graph.train, self.form, self._kind).to(device, self._dtype)
        self._scales = [self._scale(*pair) for pair in zip(self.models, checkpoints, strict=True)]
        verify_task(task, self.models[-1], self._train, self.form, settings.memory_budget_mib)

    @property
    def _dtype(self) -> torch.dtype:
        return self.models[0].entity.weight.dtype

    @property
    def depth(self) -> int:
        """Number of selected layers, counted from the output."""
        settings = self.settings
        return settings.num_last_layers if settings.use_last_layers_only else EVERY_LAYER

    @property
    def _num_parts(self) -> int:
        return len(build_trunk(self.models[0]).parts(min(self.depth, EVERY_LAYER)))

    @property
    def operand(self) -> torch.dtype | None:
        """Half-precision type of the operands; None: float32."""
        if not self.settings.use_mixed_precision:
            return None
        return half_precision_for(self.device, self.settings.mixed_precision_dtype)

    def plan(self, num_tests: int) -> Plan:
        """Choose the tile size and the tests per pass from the memory budget."""
        settings = self.settings
        return plan_tiles(
            self.models[0],
            num_tests=num_tests,
            num_checkpoints=len(self.checkpoints),
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
        """Return TracIn of every training triple on itself."""
        plan = self.plan(1)
        kernels = self._kernels(self.graph.train[:1])
        parts = tiles(self.graph.train, None, plan.tile_triples)
        return self_influence(kernels, self.weights, parts, len(self.graph.train))

    def summation(
        self, tests: Triples, candidates: np.ndarray | None = None, *, half: bool = True
    ) -> Summation:
        """Return the sum over checkpoints for these test triples.

        `half` allows half precision if the settings ask for it.
        """
        settings = self.settings
        return Summation(
            self._kernels(tests, half=half),
            self.weights,
            cosine=settings.with_cosine or settings.score == "cosine",
            normalise=settings.score == "cosine",
            candidates=candidates,
        )

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

    @torch.no_grad()
    def scores_and_ranks(self, tests: Triples) -> tuple[np.ndarray, np.ndarray]:
        """Return each test triple's score at the last checkpoint and its filtered rank as a tail.

        Known tails of the query from all splits are left out; ties count half.
        """
        model = self.models[-1]
        scores, ranks = np.empty(len(tests)), np.empty(len(tests))
        for start in range(0, len(tests), RANKED_TESTS):
            part = slice(start, start + RANKED_TESTS)
            head, relation, tail = torch.from_numpy(tests[part].astype(np.int64)).T
            queries = model(head.to(self.device), relation.to(self.device))
            every = model.scores(queries).double().cpu().numpy()
            row, answer = np.arange(len(every)), tail.numpy()
            scores[part] = own = every[row, answer]
            every[self._filter.lookup(tests[part, HEAD], tests[part, RELATION])] = -np.inf
            better = (every > own[:, None]).sum(1)
            every[row, answer] = -np.inf
            ranks[part] = 1.0 + better + 0.5 * (every == own[:, None]).sum(1)
        return scores, ranks

    @cached_property
    def _filter(self) -> FilterIndex:
        return FilterIndex.from_graph(self.graph)

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
            summation.run([indices], sinks)
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
        numbers = len(self.checkpoints) + self._num_parts
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

    def _kernels(self, tests: Triples, *, half: bool = True) -> list[GraphModelCheckpoint]:
        rows = TripleRows(
            self.form,
            self._train,
            own_rows(tests, self.form, self._kind).to(self.device, self._dtype),
            self._known,
            self._terms,
        )
        keep = not self.settings.use_gradient_checkpointing
        options = options_for(self.depth, self.operand if half else None, keep_features=keep)
        return [
            GraphModelCheckpoint(model, rows, options, scale)
            for model, scale in zip(self.models, self._scales, strict=True)
        ]

    def _load(self, task: LinkPrediction, record: CheckpointRecord) -> GraphModel:
        model = task.build_model()
        load_model(record.path, model)
        return model.to(self.device).eval()

    def _scale(self, model: GraphModel, record: CheckpointRecord) -> Preconditioner | None:
        if self.settings.score != "preconditioned":
            return None
        optimizer = self.config.optimizer
        if not isinstance(optimizer, Adam):
            raise ConfigError(
                f"influence.score is preconditioned, but the model was trained with "
                f"{optimizer.kind}; it needs adam or adamw. Use raw or cosine"
            )
        if self._terms is not None and self._terms.relation_prediction_weight:
            raise ConfigError(
                "influence.score is preconditioned, but the gradient of "
                f"loss.relation_prediction_weight={self._terms.relation_prediction_weight} has no "
                "factored form in that geometry; use raw or cosine"
            )
        return read_preconditioner(
            record.path,
            model,
            build_trunk(model).layout(model),
            step=record.step,
            beta2=optimizer.beta2,
            epsilon=optimizer.epsilon,
        )
