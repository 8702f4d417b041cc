"""The checkpoints of one training run, in memory, and the form of their inner products."""

from collections.abc import Sequence

import torch

from clew.config.optimizer import Adam
from clew.config.schema import RunConfig
from clew.config.services import InfluenceConfig
from clew.errors import ConfigError
from clew.influence.guards import checked_weights
from clew.influence.link_prediction.checkpoint import (
    EVERY_LAYER,
    GraphModelCheckpoint,
    TripleRows,
    build_trunk,
    options_for,
)
from clew.influence.link_prediction.geometry import Geometry
from clew.influence.link_prediction.moments import MomentSettings, deflated, kronecker
from clew.influence.link_prediction.preconditioner import Preconditioner, read_preconditioner
from clew.influence.link_prediction.trunk import Scorer
from clew.influence.products import MatrixProduct, half_precision_for
from clew.influence.summation import Norms
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.task import LinkPrediction
from clew.training.checkpoints import CheckpointRecord, load_model

MOMENTS = MomentSettings()
DIVIDED_BY: dict[str, Norms] = {"cosine": "both", "deflated": "train", "kronecker": "train"}
"""Norms that a form is divided by, where it is."""


class TracedRun:
    """One run's checkpoints.

    Args:
        task: Builds the network.
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
        self.config, self.settings = config, settings
        self.checkpoints, self.device = checkpoints, device
        self.weights = checked_weights(checkpoints)
        self.models = [self._load(task, record) for record in checkpoints]
        self._forms: list[Preconditioner | Geometry | None] = []
        if settings.score == "preconditioned":
            self._forms = [*map(self._preconditioner, self.models, checkpoints)]

    @property
    def steps(self) -> list[int]:
        """Step of each checkpoint."""
        return [record.step for record in self.checkpoints]

    @property
    def depth(self) -> int:
        """Number of selected layers, counted from the output."""
        settings = self.settings
        return settings.num_last_layers if settings.use_last_layers_only else EVERY_LAYER

    @property
    def operand(self) -> torch.dtype | None:
        """Half-precision type of the operands; None: float32."""
        if not self.settings.use_mixed_precision:
            return None
        return half_precision_for(self.device, self.settings.mixed_precision_dtype)

    def kernels(self, rows: TripleRows, *, half: bool = True) -> list[GraphModelCheckpoint]:
        """Return the inner products at each checkpoint; `half` allows half precision."""
        if not self._forms:
            self._forms = [self._geometry(model, rows) for model in self.models]
        keep = not self.settings.use_gradient_checkpointing
        options = options_for(self.depth, self.operand if half else None, keep_features=keep)
        return [
            GraphModelCheckpoint(model, rows, options, form)
            for model, form in zip(self.models, self._forms, strict=True)
        ]

    def _load(self, task: LinkPrediction, record: CheckpointRecord) -> GraphModel:
        model = task.build_model()
        load_model(record.path, model)
        return model.to(self.device).eval()

    @torch.no_grad()
    def _geometry(self, model: GraphModel, rows: TripleRows) -> Geometry | None:
        if self.settings.score == "deflated":
            return deflated(build_trunk(model), rows.train, MOMENTS)
        if self.settings.score == "kronecker":
            scorer = Scorer(model, MatrixProduct())
            return kronecker(build_trunk(model), scorer, rows.train, rows.form.function, MOMENTS)
        return None

    def _preconditioner(self, model: GraphModel, record: CheckpointRecord) -> Preconditioner:
        optimizer = self.config.optimizer
        if not isinstance(optimizer, Adam):
            raise ConfigError(
                f"influence.score is preconditioned, but the model was trained with "
                f"{optimizer.kind}; it needs adam or adamw. Use raw or cosine"
            )
        return read_preconditioner(
            record.path,
            model,
            build_trunk(model).layout(model),
            step=record.step,
            beta2=optimizer.beta2,
            epsilon=optimizer.epsilon,
        )
