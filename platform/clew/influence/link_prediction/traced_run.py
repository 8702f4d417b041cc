"""The checkpoints of one training run, in memory, and the inner products of triples at each.

Before anything is scored, the form is checked against the model, and the inner products of two
training rows are compared with those of autograd.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clew.config.loss import EntityLoss
from clew.config.schema import RunConfig
from clew.config.services import InfluenceConfig
from clew.config.training import Adam
from clew.errors import ConfigError
from clew.influence.kernel import InfluenceError
from clew.influence.link_prediction.conve_trunk import ConvETrunk
from clew.influence.link_prediction.geometry import (
    COVERED_PARTS,
    WHITENED,
    Geometry,
    Preconditioner,
    read_preconditioner,
)
from clew.influence.link_prediction.inner_products import (
    OTHERS,
    Aligned,
    Change,
    Grid,
    Kernel,
    unchanged,
)
from clew.influence.link_prediction.moments import MomentSettings, deflated, kept, kronecker
from clew.influence.link_prediction.rows import DeltaRows, FactoredRows, LossForm, RowBuilder
from clew.influence.link_prediction.trunk import Scorer, Trunk, TuckERTrunk
from clew.influence.summation import Norms, Products, checked_weights
from clew.layers.products import MatrixProduct
from clew.link_prediction.losses.triple_terms import TripleTerms
from clew.link_prediction.models.base import GraphModel, build_graph_model, model_class
from clew.link_prediction.models.conve import ConvE
from clew.link_prediction.models.factorizations import TuckER
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triple_batches import TripleBatch
from clew.link_prediction.triples import FilterIndex
from clew.training.checkpoints import read_model, weights_digest
from clew.training.manifest import CheckpointRecord
from clew.training.precision import half_precision_type
from clew.training.seeding import DrawingApart

EVERY_LAYER = 3
"""Number of layers, counted from the end, that are the whole model."""
MOMENTS = MomentSettings()
RANKED_ROWS = 16
"""Number of rows whose scores of all entities are held at once."""
DIVIDED_BY: dict[str, Norms] = {"cosine": "both", "deflated": "train", "kronecker": "train"}
"""Norms that a form is divided by; other forms are not divided."""
logger = logging.getLogger(__name__)
TOLERANCE = 5e-3
NUM_ROWS = 2


@dataclass(frozen=True)
class KernelOptions:
    """How products are computed; only `depth` changes what they mean."""

    depth: int = EVERY_LAYER
    product: MatrixProduct = field(default_factory=MatrixProduct)
    keep_features: bool = True


@dataclass(frozen=True, eq=False)
class TripleRows:
    """Rows of training and test triples, the same for all checkpoints, on the model's device."""

    form: LossForm
    train: DeltaRows
    test: DeltaRows
    known: FilterIndex | None = None
    """Tails of training queries, if the deltas need them."""
    terms: TripleTerms | None = None
    """Loss terms per training triple."""
    answers: FilterIndex | None = None
    """All known answers, for test rows of the filtered loss."""


class GraphModelCheckpoint:
    """Inner products of training triples with all test triples, at one checkpoint."""

    def __init__(
        self,
        model: GraphModel,
        rows: TripleRows,
        options: KernelOptions,
        form: Preconditioner | Geometry | None = None,
    ) -> None:
        trunk = build_trunk(model, options.product, keep_features=options.keep_features)
        kept = trunk if options.keep_features else build_trunk(model, options.product)
        scorer = Scorer(model, options.product)
        scale = form if isinstance(form, Preconditioner) else None
        self._geometry = form if isinstance(form, Geometry) else None
        parts = trunk.parts(options.depth)
        features: Change = unchanged
        if self._geometry is not None:
            parts = tuple(part for part in parts if part in COVERED_PARTS)
            features = self._geometry.features or unchanged
        self.parts = parts
        """Names of the selected parts."""
        self._trunk, self._rows = trunk, rows
        builder = RowBuilder(trunk, scorer, rows.form, options.depth, small=parts[-1] in OTHERS)
        self._builder = replace(builder, known=rows.known, terms=rows.terms)
        self._kernel = Kernel(trunk, parts, scale, features)
        with torch.no_grad():
            of_tests = replace(builder, trunk=kept, answers=rows.answers)
            self.tests = self._changed(of_tests.build(rows.test))
            self.test_squared_norm = self._norms(self.tests)
            """Squared gradient norms of the test triples, `(test,)`."""

    @torch.no_grad()
    def products(self, train: np.ndarray, *, norms: bool) -> Products:
        """Return the products of training triples, by index, with all test triples."""
        rows = self._build(train)
        pairs = self._kernel(Grid, rows, self.tests)
        ours, theirs = rows.rows.num_directions, self.tests.rows.num_directions
        tests = self.tests.rows.num_triples
        pairs = pairs.view(len(self.parts), ours, len(train), theirs, tests)
        by_part = pairs.sum((1, 3)) if ours > 1 else pairs[:, 0, :, 0]
        return Products(by_part.mT, self._norms(rows) if norms else None)

    @torch.no_grad()
    def squared_norms(self, train: np.ndarray) -> Tensor:
        return self._norms(self._build(train))

    def _build(self, train: np.ndarray) -> FactoredRows:
        index = torch.from_numpy(train.astype(np.int64)).to(self._rows.train.head.device)
        return self._changed(self._builder.build(self._rows.train.of(index)))

    def _changed(self, rows: FactoredRows) -> FactoredRows:
        return rows if self._geometry is None else self._geometry.changed(rows, self._trunk)

    def _norms(self, rows: FactoredRows) -> Tensor:
        """Return |g|^2 of triples, with g the sum of the gradients of a triple's rows."""
        own = self._kernel(Aligned, rows, rows).sum(0)
        if rows.rows.num_directions == 1:
            return own
        cross = self._kernel(Aligned, rows.direction(0), rows.direction(1)).sum(0)
        return own.view(2, -1).sum(0).add_(cross, alpha=2.0)


class TracedRun:
    """The checkpoints of one run."""

    def __init__(
        self,
        task: LinkPrediction,
        config: RunConfig,
        *,
        settings: InfluenceConfig,
        checkpoints: Sequence[CheckpointRecord],
        device: torch.device,
        cache: Path | None = None,
    ) -> None:
        self.config, self.settings = config, settings
        self._data, self._cache = task.data_fingerprint, cache
        self.checkpoints, self.device = checkpoints, device
        last_layers = settings.num_last_layers if settings.use_last_layers_only else EVERY_LAYER
        self.depth = min(last_layers, EVERY_LAYER)
        self.weights = checked_weights(checkpoints)
        self.operand = half_precision_type(settings, device)
        """Half-precision type of the operands; None: float32."""
        self.models = [
            read_model(record.path, task.build_model).to(device).eval() for record in checkpoints
        ]
        self._forms: list[Preconditioner | Geometry | None] = []
        if settings.score == "preconditioned":
            assert isinstance(config.optimizer, Adam)
            self._forms = [
                read_preconditioner(record, build_trunk(model), config.optimizer)
                for model, record in zip(self.models, checkpoints, strict=True)
            ]

    def kernels(self, rows: TripleRows, *, half: bool = True) -> list[GraphModelCheckpoint]:
        """Return the inner products at each checkpoint; `half` allows half precision."""
        if not self._forms and self.settings.score in WHITENED:
            records = zip(self.models, self.checkpoints, strict=True)
            self._forms = [self._geometry(model, record, rows) for model, record in records]
        forms = self._forms or [None] * len(self.models)
        products = MatrixProduct(self.operand if half else None)
        recomputes = self.settings.use_gradient_checkpointing
        options = KernelOptions(self.depth, products, keep_features=not recomputes)
        return [
            GraphModelCheckpoint(model, rows, options, form)
            for model, form in zip(self.models, forms, strict=True)
        ]

    @torch.no_grad()
    def answers(self, rows: DeltaRows, known: FilterIndex) -> Float[np.ndarray, "2 direction test"]:
        """Return the score and the filtered rank of each row's tail, at the last checkpoint.

        The rank leaves out known answers of a row's query, and counts ties as one half.
        """
        found = np.empty((2, len(rows)))
        for start in range(0, len(rows), RANKED_ROWS):
            part = slice(start, start + RANKED_ROWS)
            found[:, part] = _scores_and_ranks(self.models[-1], rows, part, known)
        return found.reshape(2, rows.num_directions, rows.num_triples)

    @torch.no_grad()
    def _geometry(self, model: GraphModel, record: CheckpointRecord, rows: TripleRows) -> Geometry:
        def estimate() -> Geometry:
            if self.settings.score == "deflated":
                return deflated(build_trunk(model), rows.train, MOMENTS)
            scorer = Scorer(model, MatrixProduct())
            return kronecker(build_trunk(model), scorer, rows.train, rows.form.function, MOMENTS)

        depends_on = {
            "weights": weights_digest(record.path),
            "type": str(model.entity.weight.dtype),
            "network": self.config.model.model_dump(mode="json"),
            "data": self._data,
            "directions": rows.train.num_directions,
            "loss": rows.form.function,
            "score": self.settings.score,
            "moments": MOMENTS.as_dict(),
        }
        return kept(self._cache, depends_on, estimate, self.device)


def build_trunk(
    model: GraphModel, product: MatrixProduct | None = None, *, keep_features: bool = True
) -> Trunk:
    product = product or MatrixProduct()
    if isinstance(model, ConvE):
        return ConvETrunk(model, product, keep_features)
    if isinstance(model, TuckER):
        return TuckERTrunk(model, product, keep_features)
    return Trunk(model, product, keep_features)


def _scores_and_ranks(
    model: GraphModel, rows: DeltaRows, part: slice, known: FilterIndex
) -> tuple[np.ndarray, np.ndarray]:
    head, relation, tail = rows.head[part], rows.relation[part], rows.tail[part].cpu()
    every = model.scores(model.queries(head, relation)).double().cpu()
    row = torch.arange(len(every))
    own = every[row, tail]
    known_row, answer = known.lookup(head.cpu().numpy(), relation.cpu().numpy())
    every[torch.from_numpy(known_row), torch.from_numpy(answer)] = -torch.inf
    every[row, tail] = -torch.inf
    better, equal = (every > own[:, None]).sum(1), (every == own[:, None]).sum(1)
    return own.numpy(), (1.0 + better + 0.5 * equal).numpy()


def with_chosen_form(settings: InfluenceConfig, task: LinkPrediction) -> InfluenceConfig:
    """Return the settings with `auto` replaced by the best form for this model.

    The form is `kronecker`, which predicts retraining best on average (docs/trust.md). Where it is
    not defined, it is `raw` for distance models and `cosine` for losses with terms per triple.
    """
    if settings.score != "auto":
        return settings
    chosen = "cosine" if _why_not_whitened(task) else "kronecker"
    if model_class(task.model_config).squared_distance:
        chosen = "raw"
    return settings.model_copy(update={"score": chosen})


def require_defined(settings: InfluenceConfig, task: LinkPrediction, config: RunConfig) -> None:
    """Raise an error if the settings are not defined for this model."""
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
    """Compare the kernel's inner products of two training rows with those of autograd."""
    _require_covered(model)
    table_mib = model.entity.weight.numel() * model.entity.weight.element_size() / 2**20
    if (NUM_ROWS + 1) * table_mib > budget_mib:
        logger.warning(
            "the kernel was not compared with autograd: full gradients would need %.0f MiB, but "
            "the memory budget is %.0f MiB",
            (NUM_ROWS + 1) * table_mib,
            budget_mib,
        )
        return
    few = train.direction(0).of(torch.arange(min(NUM_ROWS, train.num_triples)).to(train.head))
    beta = torch.full_like(few.beta, 1.0 - form.label_smoothing)
    rows = replace(few, alpha=torch.ones_like(beta), beta=beta)
    triples = TripleRows(form, rows, rows, terms=task.terms)
    kernel = GraphModelCheckpoint(model, triples, KernelOptions())
    ours = kernel.products(np.arange(len(rows)), norms=False).by_part.sum(0)
    expected = _autograd_products(task, model, rows)
    error = (ours - expected).abs().max() / expected.abs().max()
    if not bool(error <= TOLERANCE):
        raise InfluenceError(
            f"task {task.kind}: gradients of its example losses differ from the influence kernel's "
            f"by a relative error of {float(error):.2g} on two training triples; the task's loss "
            "or model is not the one in the configuration"
        )


def _autograd_products(task: LinkPrediction, model: GraphModel, rows: DeltaRows) -> Tensor:
    index = torch.arange(len(rows), device=rows.head.device)
    batch = TripleBatch(rows.head, rows.relation, index, rows.tail, index)
    parameters = [p for p in model.parameters() if p.requires_grad]
    with torch.enable_grad():
        train, test = (
            [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]
            for losses in (task.example_losses(model, batch), task.prediction_losses(model, batch))
        )
    return torch.stack([torch.stack([_dot(a, b) for a in train]) for b in test])


def _dot(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> Tensor:
    return torch.stack([(x * y).sum() for x, y in zip(a, b, strict=True)]).sum()


def _require_covered(model: GraphModel) -> None:
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
