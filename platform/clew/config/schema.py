"""The complete configuration of a run: ten sections, and which of their kinds fit together."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from pydantic import BaseModel, Field, model_validator

from clew import names
from clew.config.base import Section
from clew.config.data import DataConfig, TripleData
from clew.config.eigenstate import PRESET_COMPANIONS, EigenstateLMModel
from clew.config.graph_models import (
    GRAPH_MODELS,
    ConvEModel,
    FactorizationSettings,
    GraphModelConfig,
    GraphModelSettings,
)
from clew.config.image_sequences import ImageSequenceData, SequenceRegressionModel
from clew.config.loss import EntityLoss, LossConfig, OneVsAllLoss
from clew.config.services import EvaluationConfig, InfluenceConfig, TrackingConfig
from clew.config.training import (
    AUTO_BATCH_SIZE,
    Adagrad,
    Adam,
    ConstantSchedule,
    OptimizationsConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainingConfig,
)
from clew.errors import quoted, valid_names

ModelConfig = Annotated[
    GraphModelConfig | EigenstateLMModel | SequenceRegressionModel, Field(discriminator="kind")
]


class RunConfig(Section):
    """Everything that determines a run; the resolved configuration reproduces the run."""

    data: DataConfig
    """The examples."""
    model: ModelConfig = Field(default_factory=ConvEModel)
    """The network."""
    loss: LossConfig = Field(default_factory=OneVsAllLoss)
    """The loss."""
    optimizer: OptimizerConfig = Field(default_factory=Adam)
    """How parameters are updated."""
    schedule: ScheduleConfig = Field(default_factory=ConstantSchedule)
    """How the learning rate changes."""
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    """The training loop."""
    optimizations: OptimizationsConfig = Field(default_factory=OptimizationsConfig)
    """Options for memory and speed."""
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    """How quality is measured."""
    influence: InfluenceConfig = Field(default_factory=InfluenceConfig)
    """How predictions are explained."""
    tracking: TrackingConfig = Field(default_factory=TrackingConfig)
    """How the run is recorded."""

    @model_validator(mode="before")
    @classmethod
    def _fill_sections(cls, content: Any) -> Any:
        """Return a raw configuration with the missing values that the given ones imply.

        These are the sections `model` and `loss`, each `kind`, `evaluation.metric`, and the keys of
        other sections that a preset of the model sets.
        """
        if not isinstance(content, dict):
            return content
        filled = {k: dict(v) if isinstance(v, dict) else v for k, v in content.items()}
        task = task_of(filled, {})
        for section in ("data", "model", "loss", "optimizer", "schedule"):
            values = filled.setdefault(section, {})
            if isinstance(values, dict) and "kind" not in values:
                misfits = _misfits(values, section, task)
                values["kind"] = kind_of(_choices(section, task)[misfits.index(min(misfits))])
        _fill(filled, "evaluation", {"metric": f"valid/{TASK_KINDS[task].metrics[0]}"})
        model = filled.get("model")
        preset = model.get("preset") if isinstance(model, dict) else None
        for section, values in PRESET_COMPANIONS.get(str(preset), {}).items():
            _fill(filled, section, values)
        return filled

    def _check(self) -> None:
        needs_evaluation = {
            "schedule.kind=plateau": self.schedule.kind == "plateau",
            "training.early_stopping_patience": self.training.early_stopping_patience is not None,
            "training.ema_decay": self.training.ema_decay is not None,
        }
        for key, is_given in needs_evaluation.items():
            if is_given and not self.evaluation.enabled:
                raise ValueError(
                    f"{key} depends on {self.evaluation.metric}, but evaluation.enabled is false; "
                    "enable evaluation, or change this setting"
                )
        if 0 < self.training.batch_size < self.smallest_batch_size:
            raise ValueError(
                "training.batch_size is 1, but the model's batch normalisation needs 2 or more "
                "examples; set it to 2 or more"
            )
        recomputes = getattr(self.model, "recomputes", True)
        if self.optimizations.use_gradient_checkpointing and not recomputes:
            raise ValueError(
                "optimizations.use_gradient_checkpointing is true, but model.kind "
                f"{self.model.kind!r} has nothing to recompute; set it to false"
            )
        if isinstance(self.loss, EntityLoss):
            self._refuse_terms_without_factors(self.loss)
            self._refuse_whole_tables(self.loss)
        if self.training.shard_entities:
            self._refuse_unsharded()
        if isinstance(self.data, ImageSequenceData):
            if not self.data.hold_out_validation:
                self._refuse_choice_by_test()
            if isinstance(self.model, SequenceRegressionModel):
                self.model.check_graph(self.data.temporal_frames)
        check_kinds(self.data.kind, self.model.kind, self.loss.kind, self.evaluation.metric)

    def _refuse_terms_without_factors(self, loss: EntityLoss) -> None:
        if loss.needs_factorization and not isinstance(self.model, FactorizationSettings):
            raise ValueError(
                f"loss.{loss.needs_factorization} is {getattr(loss, loss.needs_factorization)!r}, "
                f"but model.kind is {self.model.kind!r}; this loss term is defined only for "
                "complex, cp, distmult and rescal"
            )

    def _refuse_whole_tables(self, loss: EntityLoss) -> None:
        """Refuse settings that change every row if a step updates only the rows of its batch."""
        if not self.updates_rows:
            return
        if self.optimizer.weight_decay:
            raise ValueError(
                f"optimizer.weight_decay is {self.optimizer.weight_decay}, but with "
                f"loss.negatives={loss.negatives} and optimizer.row_wise only the rows of a batch "
                "are updated; set it to 0, or use loss.regularizer"
            )
        if self.optimizations.torch_compile:
            raise ValueError(
                "optimizations.torch_compile is true, but the gradients of single rows "
                f"(loss.negatives={loss.negatives}, optimizer.row_wise) cannot be compiled; set it "
                "to false"
            )

    def _refuse_unsharded(self) -> None:
        data, model = self.data, self.model
        if not (isinstance(data, TripleData) and isinstance(model, GraphModelSettings)):
            raise ValueError(
                f"training.shard_entities is true, but data.kind is {data.kind!r}, which has no "
                "entity table; set it to false"
            )
        unfit = {
            "data.inverse_relations": (data.inverse_relations, True),
            "loss.implementation": (getattr(self.loss, "implementation", "") == "plain", False),
            "model.warm_start": (bool(model.warm_start), False),
            "optimizations.torch_compile": (self.optimizations.torch_compile, False),
            "training.batch_size=auto": (self.training.batch_size == AUTO_BATCH_SIZE, False),
        }
        for key, (value, fit) in unfit.items():
            if value != fit:
                raise ValueError(
                    f"training.shard_entities is true, which does not work with {key}"
                    f"{'=false' if fit else ''}; change that, or set training.shard_entities=false"
                )

    def _refuse_choice_by_test(self) -> None:
        once = self.evaluation.every_epochs >= self.training.num_epochs
        if not once or self.schedule.kind == "plateau" or self.training.early_stopping_patience:
            raise ValueError(
                "with data.hold_out_validation=false, the test group must not choose a model; set "
                f"evaluation.every_epochs to training.num_epochs ({self.training.num_epochs}) or "
                "more, without early stopping and without schedule.kind=plateau"
            )

    @property
    def updates_rows(self) -> bool:
        """Whether a step updates only the rows of the entity table that its batch uses."""
        sampled = isinstance(self.loss, EntityLoss) and self.loss.negatives is not None
        return sampled and isinstance(self.optimizer, Adagrad) and self.optimizer.row_wise

    @property
    def smallest_batch_size(self) -> int:
        graph_model = self.model if isinstance(self.model, GraphModelSettings) else None
        return 2 if graph_model and graph_model.normalises_batches else 1

    @property
    def config_hash(self) -> str:
        """Hash of all sections except `tracking`, as twelve hexadecimal digits."""
        content = self.model_dump(mode="json", exclude={"tracking"})
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class TaskKind:
    """The task of one kind of data, and the kinds that fit it; the first of each is the default."""

    task: str
    models: tuple[str, ...]
    losses: tuple[str, ...]
    metrics: tuple[str, ...]
    """Names of the validation metrics, without the split."""
    sizes: tuple[str, ...]
    """Sizes that describe the data when memory is planned without reading them."""


TASK_KINDS = {
    "triples": TaskKind(
        task=names.TASK_LINK_PREDICTION,
        models=GRAPH_MODELS,
        losses=("one_vs_all", "kvs_all"),
        metrics=("mrr", "hits_at_1", "hits_at_3", "hits_at_10", "mean_rank"),
        sizes=("num_entities", "num_relations"),
    ),
    "tokens": TaskKind(
        task=names.TASK_LANGUAGE_MODELING,
        models=("eigenstate_lm",),
        losses=("language",),
        metrics=("bits_per_byte", "perplexity", "loss"),
        sizes=("vocabulary_size",),
    ),
    "image_sequences": TaskKind(
        task=names.TASK_SEQUENCE_REGRESSION,
        models=("sequence_regression",),
        losses=("huber", "mae", "mse"),
        metrics=("mae", "rmse", "r2"),
        sizes=("frame_shape",),
    ),
}
"""Maps each kind of data to the kinds that fit it."""


def section_classes(section: str) -> list[type[BaseModel]]:
    """Return the possible classes of a section, one for each `kind`."""
    return model_classes(RunConfig.model_fields[section].annotation)


def model_classes(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in model_classes(part)]


def kind_of(choice: type[BaseModel]) -> str:
    kind: str = choice.model_fields["kind"].default
    return kind


FRAME_FILES = (".h5", ".hdf5", ".nc", ".zarr")
"""Endings of `data.path` that mean image sequences; other files and folders can be graphs."""


def task_of(content: Mapping[str, Any], overrides: Mapping[str, Any]) -> str:
    """Return the kind of data that fits the given kinds and keys best; the first if all fit."""
    given: dict[str, dict[str, Any]] = {"data": {}, "model": {}, "loss": {}}
    for section, values in given.items():
        found, start = content.get(section), f"{section}."
        values.update(found if isinstance(found, dict) else {})
        values.update({k[len(start) :]: v for k, v in overrides.items() if k.startswith(start)})

    def misfit(task: str) -> int:
        is_other = task == "triples" and str(given["data"].get("path")).endswith(FRAME_FILES)
        return is_other + sum(min(_misfits(values, s, task)) for s, values in given.items())

    return min(TASK_KINDS, key=misfit)


def _choices(section: str, task: str) -> list[type[BaseModel]]:
    """Return the classes of a section that fit a kind of data, the default first."""
    fitting = TASK_KINDS[task]
    kinds = {"data": (task,), "model": fitting.models, "loss": fitting.losses}
    known = {kind_of(c): c for c in section_classes(section) if "kind" in c.model_fields}
    return [known[kind] for kind in kinds.get(section, tuple(known))]


def _misfits(values: Mapping[str, Any], section: str, task: str) -> list[int]:
    """Return, for each class, 1 for a key that it does not have, and more for a wrong kind."""
    return [
        len(values.keys() - choice.model_fields.keys())
        + len(RunConfig.model_fields) * (values.get("kind", kind_of(choice)) != kind_of(choice))
        for choice in _choices(section, task)
    ]


def _fill(content: dict[str, Any], section: str, values: dict[str, Any]) -> None:
    given = content.get(section, {})
    if isinstance(given, dict):
        content[section] = values | given


def check_kinds(data: str, model: str, loss: str, metric: str) -> None:
    """Refuse sections that do not fit together."""
    fitting = TASK_KINDS[data]
    for section, given, valid in (("model", model, fitting.models), ("loss", loss, fitting.losses)):
        if given not in valid:
            raise ValueError(
                f"{section}.kind is {given!r}, but data.kind {data!r} needs {' or '.join(valid)}"
            )
    metrics = [f"valid/{name}" for name in fitting.metrics]
    if metric not in metrics:
        raise ValueError(f"evaluation.metric is {quoted(metric)}; {valid_names(metric, metrics)}")
