"""Which kinds of the sections `data`, `model` and `loss` fit together."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clew.config.eigenstate import PRESET_COMPANIONS
from clew.config.graph_models import GRAPH_MODELS
from clew.errors import quoted, valid_names


@dataclass(frozen=True)
class TaskKind:
    """The kinds that fit one kind of data; the first of each is the default."""

    models: tuple[str, ...]
    losses: tuple[str, ...]
    metrics: tuple[str, ...]
    """Names of the validation metrics, without the split."""
    sizes: tuple[str, ...]
    """Sizes that describe the data when memory is planned without reading them."""


TASK_KINDS = {
    "triples": TaskKind(
        models=GRAPH_MODELS,
        losses=("one_vs_all", "kvs_all"),
        metrics=("mrr", "hits_at_1", "hits_at_3", "hits_at_10", "mean_rank"),
        sizes=("num_entities", "num_relations"),
    ),
    "tokens": TaskKind(
        models=("eigenstate_lm",),
        losses=("language",),
        metrics=("bits_per_byte", "perplexity", "loss"),
        sizes=("vocabulary_size",),
    ),
    "image_sequences": TaskKind(
        models=("sequence_regression",),
        losses=("huber", "mae", "mse", "weighted_huber_mae"),
        metrics=("mae", "rmse", "r2"),
        sizes=("frame_shape",),
    ),
}
"""Maps each kind of data to the kinds that fit it."""


def fitting_kinds(content: Mapping[str, Any]) -> TaskKind | None:
    """Return the kinds that fit the data of a raw configuration; None if the data are unknown."""
    data = content.get("data")
    return TASK_KINDS.get(str(data.get("kind", "triples"))) if isinstance(data, dict) else None


def fill_sections(content: dict[str, Any]) -> dict[str, Any]:
    """Return a raw configuration with the missing values that its data and model preset imply.

    These are the sections `model` and `loss`, `evaluation.metric`, and the keys of other sections
    that a preset of the model sets.
    """
    filled = {k: dict(v) if isinstance(v, dict) else v for k, v in content.items()}
    if (fitting := fitting_kinds(filled)) is not None:
        filled.setdefault("model", {"kind": fitting.models[0]})
        filled.setdefault("loss", {"kind": fitting.losses[0]})
        _fill(filled, "evaluation", {"metric": f"valid/{fitting.metrics[0]}"})
    model = filled.get("model")
    preset = model.get("preset") if isinstance(model, dict) else None
    for section, values in PRESET_COMPANIONS.get(str(preset), {}).items():
        _fill(filled, section, values)
    return filled


def _fill(content: dict[str, Any], section: str, values: dict[str, Any]) -> None:
    given = content.get(section, {})
    if isinstance(given, dict):
        content[section] = values | given


def check_kinds(data: str, model: str, loss: str, metric: str) -> None:
    """Refuse sections that do not fit together.

    Raises:
        ValueError: If the model, the loss or the metric does not fit the data.
    """
    fitting = TASK_KINDS[data]
    for section, given, valid in (("model", model, fitting.models), ("loss", loss, fitting.losses)):
        if given not in valid:
            raise ValueError(
                f"{section}.kind is {given!r}, but data.kind {data!r} needs {' or '.join(valid)}"
            )
    metrics = [f"valid/{name}" for name in fitting.metrics]
    if metric not in metrics:
        raise ValueError(f"evaluation.metric is {quoted(metric)}; {valid_names(metric, metrics)}")
