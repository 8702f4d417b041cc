"""Checks before scoring: the form is defined for the model, and the kernel agrees with autograd."""

import logging

import torch
from torch import Tensor

from clew.config.loss import EntityLoss
from clew.config.schema import RunConfig
from clew.config.services import InfluenceConfig
from clew.config.training import Adam
from clew.errors import ConfigError
from clew.influence.kernel import InfluenceError
from clew.influence.link_prediction.geometry import WHITENED
from clew.influence.link_prediction.rows import DeltaRows, LossForm
from clew.influence.link_prediction.traced_run import (
    GraphModelCheckpoint,
    KernelOptions,
    TripleRows,
)
from clew.link_prediction.losses.triple_terms import TripleTerms
from clew.link_prediction.models.base import GraphModel, build_graph_model, model_class
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triple_batches import TripleBatch
from clew.training.seeding import DrawingApart

logger = logging.getLogger(__name__)

TOLERANCE = 5e-3
NUM_ROWS = 2


def with_chosen_form(settings: InfluenceConfig, task: LinkPrediction) -> InfluenceConfig:
    """Return the settings with `auto` replaced by the best form for this model.

    The form is `kronecker`, which predicts retraining best (docs/trust.md), or `cosine` for the
    models and losses for which `kronecker` is not defined.
    """
    if settings.score != "auto":
        return settings
    chosen = "cosine" if _why_not_whitened(task) else "kronecker"
    return settings.model_copy(update={"score": chosen})


def require_defined(settings: InfluenceConfig, task: LinkPrediction, config: RunConfig) -> None:
    """Raise an error if the settings are not defined for this model.

    Raises:
        ConfigError: The model does not predict heads, or has no score of this form.
    """
    if settings.direction == "head" and not task.inverse_relations:
        raise ConfigError(
            "influence.direction is head, but the model was trained with "
            "data.inverse_relations=false and does not predict heads; use tail"
        )
    reason = _why_not_whitened(task)
    if settings.score in WHITENED and reason:
        raise ConfigError(f"influence.score is {settings.score}, but {reason}; use raw or cosine")
    optimizer = config.optimizer
    if settings.score == "preconditioned" and not isinstance(optimizer, Adam):
        raise ConfigError(
            f"influence.score is preconditioned, but the model was trained with "
            f"{optimizer.kind}; it needs adam or adamw. Use raw or cosine"
        )
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
            "is not an outer product"
        )
    if task.terms is not None:
        return (
            "it is not defined for loss terms per triple (loss.regularizer, "
            "loss.relation_prediction_weight)"
        )
    return ""


def verify_task(
    task: LinkPrediction, model: GraphModel, train: DeltaRows, form: LossForm, budget_mib: float
) -> None:
    """Compare the kernel's inner products of two training rows with those of autograd.

    Raises:
        InfluenceError: The inner products differ, or the kernel does not cover a parameter.
    """
    _require_covered(model)
    if model.table_rows.exchange is not None:
        logger.info("the kernel was not compared with autograd: processes share the entity table")
        return
    table_mib = model.entity.weight.numel() * model.entity.weight.element_size() / 2**20
    if (NUM_ROWS + 1) * table_mib > budget_mib:
        logger.warning(
            "the kernel was not compared with autograd: full gradients would need %.0f MiB, but "
            "the memory budget is %.0f MiB",
            (NUM_ROWS + 1) * table_mib,
            budget_mib,
        )
        return
    rows = _own_rows(train, form)
    ours = _kernel_products(model, rows, form, task.terms)
    expected = _autograd_products(task, model, rows)
    error = (ours - expected).abs().max() / expected.abs().max()
    if not bool(error <= TOLERANCE):
        raise InfluenceError(
            f"task {task.kind}: gradients of its example losses differ from the influence kernel's "
            f"by a relative error of {float(error):.2g} on two training triples; the task's loss "
            "or model is not the one in the configuration"
        )


def _own_rows(train: DeltaRows, form: LossForm) -> DeltaRows:
    """Return the first training triples as separate rows, forward direction only."""
    few = train.direction(0).of(torch.arange(min(NUM_ROWS, train.num_triples)).to(train.head))
    beta = torch.full_like(few.beta, 1.0 - form.label_smoothing)
    return DeltaRows(few.head, few.relation, few.tail, torch.ones_like(beta), beta, 1)


def _kernel_products(
    model: GraphModel, rows: DeltaRows, form: LossForm, terms: TripleTerms | None
) -> Tensor:
    triples = TripleRows(form, rows, rows, terms=terms)
    checkpoint = GraphModelCheckpoint(model, triples, KernelOptions())
    indices = torch.arange(len(rows)).numpy()
    return checkpoint.products(indices, norms=False).by_part.sum(0)


def _autograd_products(task: LinkPrediction, model: GraphModel, rows: DeltaRows) -> Tensor:
    index = torch.arange(len(rows), device=rows.head.device)
    batch = TripleBatch(rows.head, rows.relation, index, rows.tail, index)
    parameters = [p for p in model.parameters() if p.requires_grad]
    with torch.enable_grad():
        train, test = (
            [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]
            for losses in (
                task.example_losses(model, batch),
                task.prediction_losses(model, batch),
            )
        )
    return torch.stack([torch.stack([_dot(a, b) for a in train]) for b in test])


def _dot(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> Tensor:
    return torch.stack([(x * y).sum() for x, y in zip(a, b, strict=True)]).sum()


def _require_covered(model: GraphModel) -> None:
    """Raise an error if a parameter is frozen or unknown to the kernel."""
    with DrawingApart():
        plain = build_graph_model(model.config, 1, 1).state_dict().keys()
    for name, parameter in model.named_parameters():
        if name not in plain:
            raise InfluenceError(
                f"trainable parameter {name} is not covered by the {model.config.kind} kernel; "
                "use the generic engine for modified models"
            )
        if not parameter.requires_grad:
            raise InfluenceError(
                f"parameter {name} is frozen, but influence needs all parameters; unfreeze it"
            )
