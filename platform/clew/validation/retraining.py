"""Trains a run again without facts: one model at a time by the product's own trainer.

`clew.validation.stacked` trains many small models at once and gives the same models.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from clew.config.schema import RunConfig
from clew.errors import ConfigError
from clew.files import working_folder
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import KnowledgeGraph
from clew.runs.base import Tracker
from clew.training.distributed import World
from clew.training.manifest import Manifest
from clew.training.setup import build_trainer, total_steps
from clew.validation.dropped_facts import Facts, WithoutFacts
from clew.validation.stacked import STACK_SIZE, train_stack, why_not_stacked


@dataclass(frozen=True)
class Retrainer:
    """Trains models as a run was trained, with other seeds and without some facts.

    Raises:
        ConfigError: validation results steer the run's training.
    """

    graph: KnowledgeGraph
    config: RunConfig
    origin: Manifest
    """Manifest of the run's last checkpoint."""
    device: torch.device

    def __post_init__(self) -> None:
        steered = {
            "schedule.kind=plateau": self.config.schedule.kind == "plateau",
            "training.early_stopping_patience": bool(self.config.training.early_stopping_patience),
        }
        for setting in (name for name, is_set in steered.items() if is_set):
            raise ConfigError(
                f"the run was trained with {setting}: its course depends on validation results, "
                "which change when facts are left out; train a run without it to test explanations"
            )

    @property
    def why_one_at_a_time(self) -> str:
        """Why models cannot, or should not, be trained together; empty if they are."""
        if self.device.type != "cpu":
            return f"training runs on {self.device.type}"
        return why_not_stacked(self.config, self.graph.num_entities)

    @property
    def models_at_once(self) -> int:
        """Number of models that are trained together."""
        return 1 if self.why_one_at_a_time else STACK_SIZE

    @property
    def num_steps(self) -> int:
        """Number of optimizer steps of one retraining."""
        task = LinkPrediction(self.graph, self.config)
        return total_steps(self.config, task, World())

    def train(
        self, seed: int, dropped: Sequence[Facts], *, max_steps: int | None = None
    ) -> Iterator[GraphModel]:
        """Train a model for each set of dropped facts, and yield it, ready to be evaluated.

        Args:
            seed: Seed of initial weights, order and dropout.
            dropped: Facts that each model does without.
            max_steps: Stop after so many optimizer steps.
        """
        config = self._configured(seed, max_steps)
        if self.why_one_at_a_time:
            for facts in dropped:
                yield self._train_one(config, facts)
            return
        for start in range(0, len(dropped), STACK_SIZE):
            yield from train_stack(self.graph, config, dropped[start : start + STACK_SIZE])

    def _configured(self, seed: int, max_steps: int | None) -> RunConfig:
        """Return the run's configuration without what leaves no trace in its last parameters."""
        content = self.config.model_dump(mode="json")
        limits = [n for n in (max_steps, self.config.training.max_steps) if n is not None]
        content["training"] |= {
            "seed": seed,
            "max_steps": min(limits, default=None),
            "ema_decay": None,
            "checkpoint_frequency": 0,
            "checkpoint_every_steps": None,
        }
        content["evaluation"]["enabled"] = False
        content["optimizations"]["torch_compile"] = False
        content["tracking"] |= {"log_checkpoints": False, "profile_steps": 0}
        return RunConfig.model_validate(content)

    def _train_one(self, config: RunConfig, facts: Facts) -> GraphModel:
        """Train one model with the product's trainer."""
        task = WithoutFacts(self.graph, config, facts)
        with working_folder("retraining") as folder:
            trainer = build_trainer(
                config,
                task,
                Tracker(),
                device=self.device,
                world=World(),
                folder=folder,
                origin=self.origin,
            )
            trainer.train()
        assert isinstance(trainer.model, GraphModel)
        return trainer.model.eval()
