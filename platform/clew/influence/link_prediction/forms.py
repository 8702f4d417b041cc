"""Which forms of score a graph model allows, and which one `influence.score=auto` means."""

from clew.config.loss import EntityLoss
from clew.config.schema import RunConfig
from clew.config.services import InfluenceConfig
from clew.errors import ConfigError
from clew.link_prediction.models.base import model_class
from clew.link_prediction.task import LinkPrediction

WHITENED = ("deflated", "kronecker")
"""Forms that change the factors of a gradient."""


def with_chosen_form(settings: InfluenceConfig, task: LinkPrediction) -> InfluenceConfig:
    """Return the settings with `auto` replaced by the form that it means for this model.

    That is `kronecker`, which predicts retraining best (docs/trust.md); `cosine` for the models
    and losses that it is not defined for.
    """
    if settings.score != "auto":
        return settings
    chosen = "cosine" if _why_not_whitened(task) else "kronecker"
    return settings.model_copy(update={"score": chosen})


def require_defined(settings: InfluenceConfig, task: LinkPrediction, config: RunConfig) -> None:
    """Refuse what this model cannot give.

    Raises:
        ConfigError: it has no such question, or its gradients no such form.
    """
    if settings.direction == "head" and not task.inverse_relations:
        raise ConfigError(
            "influence.direction is head, but the model was trained with "
            "data.inverse_relations=false and has no question for heads; use tail"
        )
    reason = _why_not_whitened(task)
    if settings.score in WHITENED and reason:
        raise ConfigError(f"influence.score is {settings.score}, but {reason}; use raw or cosine")
    assert isinstance(config.loss, EntityLoss)
    weight = config.loss.relation_prediction_weight
    if settings.score == "preconditioned" and weight:
        raise ConfigError(
            "influence.score is preconditioned, but the gradient of "
            f"loss.relation_prediction_weight={weight} has no factored form in that geometry; use "
            "raw or cosine"
        )


def _why_not_whitened(task: LinkPrediction) -> str:
    """Return why the whitened forms are not defined for a model; empty if they are."""
    if model_class(task.model_config).squared_distance:
        return (
            f"{task.model_config.kind} scores by a squared distance, whose gradient of an entity "
            "is no outer product"
        )
    if task.terms is not None:
        return (
            "it is not defined for what the loss adds for each triple (loss.regularizer, "
            "loss.relation_prediction_weight)"
        )
    return ""
