"""Unrolled scores of text and of frames: exact influence through the whole training.

Every training example is a fact with a weight in its loss, even if windows overlap; see
`clew.influence.unrolling`.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from clew.config.schema import RunConfig
from clew.influence.linearization import ExampleFacts
from clew.influence.scores import strongest
from clew.influence.unrolling import load_average, pass_name, require_replayable, through_training
from clew.influence.window_index import SearchSettings
from clew.influence.window_tracer import Progress, WindowExplanation, WindowTracer
from clew.training.manifest import CheckpointRecord
from clew.training.replay import Replay
from clew.training.task import B, Task


class UnrolledWindowTracer(WindowTracer[B]):
    """Explains predictions of one trained model by differentiating through its training."""

    def __init__(
        self,
        task: Task[B],
        config: RunConfig,
        checkpoints: Sequence[CheckpointRecord],
        *,
        device: torch.device,
        cache: Path,
    ) -> None:
        require_replayable(config, checkpoints, device)
        super().__init__(task, task.train_examples(), checkpoints, device=device, with_cosine=False)
        self._config, self._cache = config, cache

    def model(self, record: CheckpointRecord) -> nn.Module:
        """Return the model of a checkpoint in evaluation mode, with its average if it has one."""
        model = super().model(record)
        if self._config.training.ema_decay is not None:
            load_average(model, record.path)
        return model

    def explain(
        self,
        tests: Sequence[B],
        *,
        top_k: int,
        settings: SearchSettings | None = None,
        progress: Progress = lambda done, total: None,
    ) -> list[WindowExplanation]:
        """Score all training examples for every test, in one pass over the training."""
        assert settings is None
        on_device = [test.to(self.device) for test in tests]
        explained = [
            value.cpu().contiguous().numpy().tobytes()
            for test in tests
            for value in vars(test).values()
            if isinstance(value, Tensor)
        ]
        name = pass_name(self.checkpoints, self.task.data_fingerprint, *explained)
        losses = [partial(self._loss, batch=test) for test in on_device]
        by_interval = through_training(
            lambda: Replay(self._config, self.task, self.checkpoints, self.device),
            ExampleFacts(self.task),
            losses,
            kept=self._cache / f"{name}.safetensors",
            progress=progress,
        )
        model = self.model(self.checkpoints[-1])
        with torch.no_grad():
            values = [float(self._loss(model, batch=test)) for test in on_device]
        return [
            WindowExplanation(
                strongest(by_interval[:, [number]], top_k, sign=1),
                strongest(by_interval[:, [number]], top_k, sign=-1),
                parts=(),
                self_influence=None,
                loss=value,
            )
            for number, value in enumerate(values)
        ]

    def _loss(self, model: nn.Module, batch: B) -> Tensor:
        return self.task.example_losses(model, batch).sum()
