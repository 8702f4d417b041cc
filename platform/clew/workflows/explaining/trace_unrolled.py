"""The unrolled score in `tracin`: prepares the replay, and describes it for the report."""

from collections.abc import Callable
from typing import Any

import torch

from clew.config.graph_models import ConvEModel
from clew.config.schema import RunConfig
from clew.config.training import SGD, AdamW
from clew.errors import CheckpointError, ConfigError
from clew.files import cache_folder
from clew.influence.link_prediction.unrolled import UnrolledTracer
from clew.influence.scores import Explanation
from clew.link_prediction.triples import Triples
from clew.training.checkpoints import AVERAGE_FILE, load_tensors
from clew.training.precision import device_name
from clew.workflows.explaining.trace_source import TraceSource
from clew.workflows.model_source import ModelSource


def explain_unrolled(
    source: TraceSource, tests: Triples, progress: Callable[[int, int], None]
) -> list[Explanation]:
    """Explain test triples through the whole training.

    If the run keeps an average of the parameters, the loss of the averaged model is explained. The
    average is then loaded into the last model, so that the report shows its score and rank.

    Raises:
        UsageError: The run cannot be replayed.
    """
    explanations = prepare(source).explain(tests, progress=progress)
    if source.model.config.training.ema_decay is not None:
        model = source.tracer.models[-1]
        average = load_tensors(source.checkpoints[-1].path / AVERAGE_FILE)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(average[name])
    return explanations


def prepare(source: TraceSource) -> UnrolledTracer:
    """Return the tracer of unrolled scores, after all checks that can refuse the run.

    Raises:
        UsageError: The run cannot be replayed.
    """
    if source.runs:
        raise ConfigError(
            f"influence.score is unrolled, which explains one run, but {len(source.runs)} are "
            "given; explain each run separately, or choose raw or cosine"
        )
    _refuse_rounding_noise(source.model.config)
    device = source.tracer.device
    require_same_device(source.model, device)
    return UnrolledTracer(
        source.task, source.model.config, source.checkpoints, device, cache_folder("unrolled")
    )


def require_same_device(model: ModelSource, device: torch.device) -> None:
    """Refuse to repeat a training on another kind of device than it ran on.

    Raises:
        CheckpointError: The model was trained on another kind of device.
    """
    trained_on, this = model.manifest.device, device_name(device)
    if trained_on != this:
        raise CheckpointError(
            f"{model.title} was trained on {trained_on}, this is {this}; score=unrolled repeats "
            "the same steps on the same device: explain it there, or with another --score"
        )


def _refuse_rounding_noise(config: RunConfig) -> None:
    """Refuse a ConvE model whose float32 derivative would be mostly rounding error.

    Without dropout, batch normalisation cancels the gradients of the biases before it. Only the
    rounding error is left, and Adam and Adagrad scale it up because they divide it by its own
    size. A penalty in the gradient is larger than the rounding error and avoids this.
    """
    model, optimizer = config.model, config.optimizer
    if not isinstance(model, ConvEModel) or isinstance(optimizer, SGD):
        return
    penalty = optimizer.weight_decay > 0 and not isinstance(optimizer, AdamW)
    if not (
        model.input_dropout or model.feature_map_dropout or model.projection_dropout or penalty
    ):
        raise ConfigError(
            f"influence.score is unrolled, but this conve was trained by {optimizer.kind} without "
            "dropout and without a penalty in the gradient: rounding in float32 would change its "
            "scores by up to 63 %; use raw or cosine, or train with dropout"
        )


def unrolled_settings(source: TraceSource) -> dict[str, Any]:
    """Return the replay settings for a report, after checking that the run can be replayed."""
    prepare(source)
    return replay_settings(source.model.config, source.checkpoints[-1].step)


def replay_settings(config: RunConfig, steps: int) -> dict[str, Any]:
    averaged = config.training.ema_decay is not None
    return {
        "steps": steps,
        "explained_parameters": "average" if averaged else "last",
        "scope": "this run: its seed, order and dropout",
    }
