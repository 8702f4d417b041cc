r"""Unrolled scores for link prediction, and the weights of training triples in the loss.

If a triple is a separate row (`one_vs_all`, and in `kvs_all` the only tail of its query), its
weight multiplies the row's loss. A tail among the n > 1 tails of a query has a share c in the row's
loss: the loss with the tail minus the loss without it. The row's loss is l + sum_p (w_p - 1) c_p,
with

    binary cross entropy     c = -(1 - eps) s_t
    softmax                  c = -(1 - eps) / (n - 1) (s_t - mean of s over the n tails)
    softmax, rows in groups  c = l / n - (1 - eps) (s_t - mean of s over the n tails)

These shares correspond to the deltas of `rows`. With inverse relations a triple has two rows and
one weight.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from clew.config.loss import KvsAllLoss, OneVsAllLoss
from clew.config.schema import RunConfig
from clew.config.services import Question
from clew.errors import ConfigError
from clew.files import working_folder
from clew.influence import unrolling
from clew.influence.linearization import ExampleFacts, WeightedLoss
from clew.influence.link_prediction.rows import Directions, LossForm
from clew.influence.outcomes import FactKeys
from clew.influence.retraining import Retrainer
from clew.influence.scores import Everything, Explanation, strongest, tile_of_intervals
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triple_batches import GroupedBatch, TripleBatch
from clew.link_prediction.triples import Triples
from clew.training.manifest import CheckpointRecord
from clew.training.replay import Replay
from clew.training.seeding import own_process

COPIES_PER_TEST = 4
"""Numbers of a test's adjoint for each parameter: its own, two moments', and its gradient's."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class UnrolledTracer:
    """Explains predictions of one trained graph model by differentiating through its training."""

    task: LinkPrediction
    config: RunConfig
    checkpoints: Sequence[CheckpointRecord]
    device: torch.device
    cache: Path

    def __post_init__(self) -> None:
        unrolling.require_replayable(self.config, self.device)
        unrolling.require_states(self.checkpoints)
        self._refuse_other_losses()
        if (start := self.task.model_config.warm_start) is not None:
            raise ConfigError(
                f"training began from model.warm_start={start}, but --score unrolled repeats its "
                "steps from random parameters; explain with --score raw, cosine or tuned"
            )

    def explain(
        self,
        tests: Triples,
        *,
        candidates: np.ndarray | None = None,
        progress: Progress = lambda done, total: None,
    ) -> list[Explanation]:
        losses = [self._loss(test[None], np.ones(1)) for test in tests]
        explained = tests.astype(np.int64).tobytes()
        by_interval = self._by_interval(losses, explained, progress)
        top_k, nothing = self.config.influence.top_k, np.full(len(tests), np.nan)
        tile = tile_of_intervals(by_interval, candidates)
        if top_k:
            return [Explanation(*strongest(tile, top_k), False, nothing, ())]
        kept = Everything()
        kept.add(tile)
        everything = kept.result()
        return [Explanation(everything, everything, True, nothing, ())]

    def values(
        self, tests: Triples, weights: np.ndarray, *, progress: Progress = lambda done, total: None
    ) -> Float[np.ndarray, "fact"]:
        """Score all training triples for a weighted sum of losses, at the cost of one test triple.

        Args:
            tests: Test triples `(test, 3)`.
            weights: Weight of each test triple's loss, `(test,)`.
            progress: Called with the number of steps done and in total, replays included.
        """
        explained = tests.astype(np.int64).tobytes() + b"weighted" + weights.tobytes()
        by_interval = self._by_interval([self._loss(tests, weights)], explained, progress)
        return np.asarray(by_interval.sum(0)[0])

    def _loss(self, tests: Triples, weights: np.ndarray) -> unrolling.Objective:
        direction = self.config.influence.direction
        return triples_loss(self.task, tests, weights, self.device, direction=direction)

    def _by_interval(
        self, losses: Sequence[unrolling.Objective], explained: bytes, progress: Progress
    ) -> Float[np.ndarray, "interval loss fact"]:
        return unrolling.through_training(
            lambda: Replay(self.config, self.task, self.checkpoints, self.device),
            TripleFacts(self.task, self.config),
            losses,
            kept=self._file(self.checkpoints, explained),
            progress=progress,
        )

    def _file(self, checkpoints: Sequence[CheckpointRecord], explained: bytes) -> Path:
        direction = self.config.influence.direction.encode()
        name = unrolling.pass_name(checkpoints, self.task.data_fingerprint, direction, explained)
        return self.cache / f"{name}.safetensors"

    def _refuse_other_losses(self) -> None:
        if self.task.terms is not None:
            raise ConfigError(
                f"{unrolling.NEEDS} are not defined for loss terms per triple (loss.regularizer, "
                "loss.relation_prediction_weight); explain with --score raw or cosine"
            )
        if self.config.influence.test_loss != "trained":
            raise ConfigError(
                f"influence.test_loss is {self.config.influence.test_loss}; only the trained loss "
                f"is differentiated through training ({unrolling.NEEDS}): leave test_loss out"
            )


@dataclass(frozen=True, eq=False)
class TunedTracer(UnrolledTracer):
    """Explains predictions by differentiating through fine-tunings of the finished model.

    Their mean is the share of the last checkpoint, from which they go on.
    """

    retrainer: Retrainer
    """The fine-tuning, as `clew verify` does it to see what happens without some facts."""
    seeds: Sequence[int]

    def __post_init__(self) -> None:
        unrolling.require_replayable(self.retrainer.configured(self.seeds[0]), self.device)
        self._refuse_other_losses()

    def _by_interval(
        self, losses: Sequence[unrolling.Objective], explained: bytes, progress: Progress
    ) -> Float[np.ndarray, "checkpoint loss fact"]:
        start = self.retrainer.start
        assert start is not None
        numbers = sum(p.numel() * p.element_size() for p in start.parameters())
        budget = self.config.influence.memory_budget_mib * unrolling.MEBIBYTE
        at_once = max(1, int(budget / (COPIES_PER_TEST * numbers)))
        parts = [slice(i, i + at_once) for i in range(0, len(losses), at_once)]
        passes = len(self.seeds) * len(parts)
        found = np.zeros((len(self.checkpoints), len(losses), len(self.task.graph.train)))
        files: list[Path] = []

        def told(finished: int, done: int, total: int) -> None:
            progress(finished * total + done, passes * total)

        for seed in self.seeds:
            with working_folder("tuning") as folder:
                with own_process():
                    config, checkpoints = self.retrainer.record(seed, folder)
                for part in parts:
                    files.append(self._file(checkpoints, explained + str(part).encode()))
                    by_interval = unrolling.through_training(
                        partial(Replay, config, self.task, checkpoints, self.device, start),
                        TripleFacts(self.task, config),
                        losses[part],
                        kept=files[-1],
                        stays=True,
                        progress=partial(told, len(files) - 1),
                    )
                    found[-1, part] += by_interval.sum(0) / len(self.seeds)
        for file in files:
            file.unlink(missing_ok=True)
        return found


class TripleFacts(ExampleFacts[TripleBatch]):
    """The training triples of a graph as facts."""

    task: LinkPrediction

    def __init__(self, task: LinkPrediction, config: RunConfig) -> None:
        assert isinstance(config.loss, OneVsAllLoss | KvsAllLoss)
        super().__init__(task)
        self.form = LossForm.from_config(config.loss)
        self._keys = FactKeys(task.graph, inverse_relations=task.inverse_relations)

    def __len__(self) -> int:
        return len(self.task.graph.train)

    def loss(self, model: nn.Module, batch: TripleBatch, examples: np.ndarray) -> WeightedLoss:
        assert isinstance(model, GraphModel)
        queries = model.queries(batch.head, batch.relation)
        losses = self.task.query_losses(model, queries, batch)
        if not (self.form.one_query_a_row or isinstance(batch, GroupedBatch)):
            weight = torch.ones_like(losses, requires_grad=True)
            return WeightedLoss((weight * losses).sum(), weight, examples % len(self))
        weight = losses.new_ones(len(batch.row), requires_grad=True)
        shares = self._shares(model, queries, losses, batch)
        found = self._keys.fact[self._keys.places(batch).numpy()]
        return WeightedLoss(losses.sum() + ((weight - 1.0) * shares).sum(), weight, found)

    def _shares(
        self, model: GraphModel, queries: Tensor, losses: Tensor, batch: TripleBatch
    ) -> Tensor:
        """Return the loss with each positive minus the loss without it, `(positive,)`."""
        row, tail = batch.row, batch.entity
        scores = (queries[row] * model.entity.weight[tail]).sum(1)
        tail_bias, query_bias = model.tail_bias(), model.query_bias(queries)
        if tail_bias is not None:
            scores = scores + tail_bias[tail]
        if query_bias is not None:
            scores = scores + query_bias[row]
        count = torch.bincount(row, minlength=len(losses))[row]
        keep = 1.0 - self.form.label_smoothing
        if self.form.function == "binary_cross_entropy":
            return torch.where(count == 1, losses[row], -keep * scores)
        further = scores - torch.zeros_like(losses).index_add(0, row, scores)[row] / count
        if isinstance(batch, GroupedBatch):
            return losses[row] / count - keep * further
        return torch.where(count == 1, losses[row], -keep * further / (count - 1).clamp_min(1))


def triples_loss(
    task: LinkPrediction,
    triples: Triples,
    weights: np.ndarray,
    device: torch.device,
    *,
    direction: Question,
) -> unrolling.Objective:
    """Return the weighted sum of the losses of some triples, each as a separate row.

    A triple has the row for its tail, the row for its head, or both, as given by `direction`. Rows
    for heads need a model with inverse relations.
    """
    kind, count = Directions(task.graph.num_relations, task.inverse_relations), len(triples)
    asked = {"tail": slice(count), "head": slice(count, None), "both": slice(None)}[direction]
    rows = torch.from_numpy(kind.rows(triples).astype(np.int64)[asked]).to(device)
    head, relation, tail = rows.T
    index = torch.arange(len(rows), device=device)
    batch = TripleBatch(head, relation, index, tail, index)
    weight = torch.from_numpy(np.tile(weights, kind.num_directions)[asked]).to(device)
    return lambda model: (task.example_losses(model, batch) * weight).sum()
