"""Checks that the fast kernel and a task compute the same gradients, before scoring."""

import logging

import torch
from torch import Tensor

from clew.influence.kernel import InfluenceError
from clew.influence.link_prediction.deltas import DeltaRows, LossForm
from clew.influence.link_prediction.traced_run import (
    GraphModelCheckpoint,
    KernelOptions,
    TripleRows,
)
from clew.link_prediction.losses.triple_terms import TripleTerms
from clew.link_prediction.models.base import GraphModel, build_graph_model
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triple_batches import TripleBatch

logger = logging.getLogger(__name__)

TOLERANCE = 5e-3
NUM_ROWS = 2


def verify_task(
    task: LinkPrediction, model: GraphModel, train: DeltaRows, form: LossForm, budget_mib: float
) -> None:
    """Compare inner products of two training rows' gradients with the task's own, by autograd.

    Raises:
        InfluenceError: If they differ, or if the kernel does not cover a trainable parameter.
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
    """Return the first training triples as rows of their own, forward direction only."""
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
    """Refuse parameters that the kernel does not know, and frozen ones."""
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
