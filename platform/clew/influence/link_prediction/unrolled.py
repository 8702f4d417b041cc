"""The unrolled score for link prediction, as the report wants it."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from clew.config.schema import RunConfig
from clew.errors import ConfigError, NonFiniteLossError
from clew.influence.link_prediction.fact_losses import TripleFacts, triples_loss
from clew.influence.link_prediction.passes import Explanation
from clew.influence.scores import Scored
from clew.influence.unrolled.engine import Unrolling
from clew.influence.unrolled.progress_files import KeptInFile
from clew.influence.unrolled.refusals import require_replayable
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import Triples
from clew.training.checkpoints import MODEL_FILE, CheckpointRecord
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
        kept = KeptInFile(self.cache / f"{self._identity(tests)}.safetensors", self.device)
        unrolling = Unrolling(
            Replay(self.config, self.task, self.checkpoints, self.device),
            TripleFacts(self.task, self.config),
            self.config.influence.memory_budget_mib * MEBIBYTE,
            kept,
        )
        direction = self.config.influence.direction
        losses = [
            triples_loss(self.task, test[None], np.ones(1), self.device, direction=direction)
            for test in tests
        ]
        by_interval = unrolling.explain(losses, progress=progress).astype(np.float64)
        if not np.isfinite(by_interval).all():
            raise NonFiniteLossError(
                "influence scores contain NaN or infinity: the trained loss depends on the "
                "training facts without limit; explain with --score cosine, or train with "
                "model.activation=silu or a lower optimizer.learning_rate"
            )
        return [self._explanation(by_interval)]

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
            everything = _strongest(by_interval, by_interval.shape[2], sign=1, every=True)
            return self._of(everything, everything, by_interval)
        best, worst = (_strongest(by_interval, top_k, sign=sign) for sign in (1, -1))
        return self._of(best, worst, by_interval)

    def _of(self, best: Scored, worst: Scored, by_interval: np.ndarray) -> Explanation:
        _, tests, facts = by_interval.shape
        nothing = np.full(tests, np.nan)  # a test triple is no training fact
        return Explanation(best, worst, best is worst, nothing, (), num_pairs=tests * facts)

    def _identity(self, tests: Triples) -> str:
        """Return a name that only the same explanation of the same run has."""
        digest = hashlib.sha256()
        for record in self.checkpoints:
            digest.update(f"{record.step} {record.learning_rate_weight};".encode())
        digest.update((self.checkpoints[-1].path / MODEL_FILE).read_bytes())
        digest.update(self.task.data_fingerprint.encode())
        digest.update(self.config.influence.direction.encode())
        digest.update(tests.astype(np.int64).tobytes())
        return digest.hexdigest()[:24]


def _strongest(by_interval: np.ndarray, count: int, *, sign: int, every: bool = False) -> Scored:
    """Return the strongest facts of one sign for each test, ties to the smaller index.

    Args:
        by_interval: Influence `(interval, test, fact)`.
        count: Facts to keep.
        sign: 1 for proponents, -1 for opponents.
        every: Whether to keep facts of the other sign too.
    """
    whole = by_interval.sum(0)
    order = np.argsort(-sign * whole, axis=1, kind="stable")[:, :count]
    influence = np.take_along_axis(whole, order, 1)
    missing = np.zeros_like(order, bool) if every else sign * influence <= 0
    kept = np.take_along_axis(by_interval, order[None], 2).astype(np.float32)
    return Scored(
        train=np.where(missing, -1, order),
        influence=np.where(missing, 0.0, influence),
        by_checkpoint=np.where(missing[None], np.float32(0.0), kept),
        by_part=np.zeros((0, *order.shape), np.float32),
        cosine=None,
    )
