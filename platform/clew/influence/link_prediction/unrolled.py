"""The unrolled score for link prediction, as the report wants it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from clew.config.schema import RunConfig
from clew.errors import ConfigError, NonFiniteLossError
from clew.influence.link_prediction.fact_losses import TripleFacts, triples_loss
from clew.influence.scores import Explanation, Scored
from clew.influence.unrolled.engine import Objective, Unrolling
from clew.influence.unrolled.progress_files import KeptInFile, pass_name
from clew.influence.unrolled.refusals import require_replayable
from clew.influence.unrolled.strongest import strongest
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import Triples
from clew.training.checkpoints import CheckpointRecord
from clew.training.replay import Replay

MEBIBYTE = 2**20


@dataclass(frozen=True, eq=False)
class UnrolledTracer:
    """Explains predictions of one trained graph model by differentiating through its training.

    Args:
        task: The graph, the network and its losses.
        config: The training run's configuration, with the settings of the explanation.
        checkpoints: All checkpoints in order of their steps.
        device: Device that the run was trained on.
        cache: Folder for unfinished passes.
    """

    task: LinkPrediction
    config: RunConfig
    checkpoints: Sequence[CheckpointRecord]
    device: torch.device
    cache: Path

    def __post_init__(self) -> None:
        require_replayable(self.config, self.checkpoints, self.device)
        self._refuse_other_losses()

    def explain(
        self,
        tests: Triples,
        *,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[Explanation]:
        """Score all training triples for every test triple, in one pass over the training.

        Args:
            tests: Test triples `(test, 3)`.
            progress: Called with the number of steps done and in total, replays included.
        """
        losses = [self._loss(test[None], np.ones(1)) for test in tests]
        explained = tests.astype(np.int64).tobytes()
        return [self._explanation(self._by_interval(losses, explained, progress))]

    def values(
        self,
        tests: Triples,
        weights: np.ndarray,
        *,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Float[np.ndarray, "fact"]:
        """Score all training triples for a weighted sum of losses, at the price of one test triple.

        Args:
            tests: Test triples `(test, 3)`.
            weights: Weight of each one's loss, `(test,)`.
            progress: Called with the number of steps done and in total, replays included.
        """
        explained = tests.astype(np.int64).tobytes() + b"weighted" + weights.tobytes()
        by_interval = self._by_interval([self._loss(tests, weights)], explained, progress)
        total: np.ndarray = by_interval.sum(0)[0]
        return total

    def _loss(self, tests: Triples, weights: np.ndarray) -> Objective:
        direction = self.config.influence.direction
        return triples_loss(self.task, tests, weights, self.device, direction=direction)

    def _by_interval(
        self,
        losses: Sequence[Objective],
        explained: bytes,
        progress: Callable[[int, int], None],
    ) -> Float[np.ndarray, "interval loss fact"]:
        """Differentiate losses through the training; `explained` names an unfinished pass."""
        direction = self.config.influence.direction.encode()
        name = pass_name(self.checkpoints, self.task.data_fingerprint, direction, explained)
        kept = KeptInFile(self.cache / f"{name}.safetensors", self.device)
        unrolling = Unrolling(
            Replay(self.config, self.task, self.checkpoints, self.device),
            TripleFacts(self.task, self.config),
            self.config.influence.memory_budget_mib * MEBIBYTE,
            kept,
        )
        by_interval = unrolling.explain(losses, progress=progress).astype(np.float64)
        if not np.isfinite(by_interval).all():
            raise NonFiniteLossError(
                "influence scores contain NaN or infinity: the trained loss depends on the "
                "training facts without limit; explain with --score cosine, or train with "
                "model.activation=silu or a lower optimizer.learning_rate"
            )
        return by_interval

    def _refuse_other_losses(self) -> None:
        """Refuse losses and first parameters whose derivatives are not here.

        Raises:
            ConfigError: The run was trained with one of them, or the explanation asks for it.
        """
        model = self.task.model_config
        if self.task.terms is not None:
            raise ConfigError(
                "influence.score is unrolled, but it is not defined for what the loss adds for "
                "each triple (loss.regularizer, loss.relation_prediction_weight); use raw or cosine"
            )
        if model.warm_start is not None:
            raise ConfigError(
                f"influence.score is unrolled, but training began from model.warm_start="
                f"{model.warm_start}, and steps are taken again from random parameters; use raw or "
                "cosine"
            )
        if self.config.influence.test_loss != "trained":
            raise ConfigError(
                f"influence.score is unrolled and influence.test_loss is "
                f"{self.config.influence.test_loss}; only the trained loss is differentiated "
                "through training: leave test_loss out"
            )

    def _explanation(self, by_interval: np.ndarray) -> Explanation:
        """Return the strongest proponents and opponents, or all facts."""
        top_k = self.config.influence.top_k
        if top_k == 0:
            everything = strongest(by_interval, by_interval.shape[2], sign=1, every=True)
            return self._of(everything, everything, by_interval)
        best, worst = (strongest(by_interval, top_k, sign=sign) for sign in (1, -1))
        return self._of(best, worst, by_interval)

    def _of(self, best: Scored, worst: Scored, by_interval: np.ndarray) -> Explanation:
        _, tests, facts = by_interval.shape
        nothing = np.full(tests, np.nan)  # a test triple is no training fact
        return Explanation(best, worst, best is worst, nothing, (), num_pairs=tests * facts)
