"""One checkpoint of a graph model in the sum over checkpoints: inner products of triples."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from clew.influence.link_prediction.conve_trunk import ConvETrunk
from clew.influence.link_prediction.deltas import DeltaRows, LossForm
from clew.influence.link_prediction.geometry import COVERED_PARTS, Geometry
from clew.influence.link_prediction.inner_products import (
    OTHERS,
    Aligned,
    Change,
    Grid,
    Kernel,
    unchanged,
)
from clew.influence.link_prediction.preconditioner import Preconditioner
from clew.influence.link_prediction.rows import RowBuilder, Rows
from clew.influence.link_prediction.trunk import AutogradTrunk, Scorer, Trunk
from clew.influence.link_prediction.tucker_trunk import TuckERTrunk
from clew.influence.products import MatrixProduct
from clew.influence.summation import Products
from clew.link_prediction.filters import FilterIndex
from clew.link_prediction.losses.triple_terms import TripleTerms
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.models.conve import ConvE
from clew.link_prediction.models.tucker import TuckER

EVERY_LAYER = 3
"""This many layers, counted from the end, are the whole model."""


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
    """What the loss adds for each training triple."""
    answers: FilterIndex | None = None
    """All known answers, if test rows are those of the filtered loss."""


class GraphModelCheckpoint:
    """Inner products of training triples with all test triples, at one checkpoint.

    Args:
        model: In evaluation mode.
        rows: Rows of training and test triples; a test triple may have fewer directions.
        options: How products are computed.
        form: Another form than the raw one: scales the second side, or changes factors.
    """

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
        self._trunk, self._rows = trunk, rows
        builder = RowBuilder(trunk, scorer, rows.form, options.depth, small=parts[-1] in OTHERS)
        self._builder = replace(builder, known=rows.known, terms=rows.terms)
        self._kernel = Kernel(trunk, parts, scale, features)
        with torch.no_grad():
            of_tests = replace(builder, trunk=kept, answers=rows.answers)
            self.tests = self._changed(of_tests.build(rows.test))
            self._test_squared_norm = self._norms(self.tests)

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the selected parts."""
        return self._kernel.parts

    @property
    def test_squared_norm(self) -> Tensor:
        """Squared gradient norms of the test triples, `(test,)`."""
        return self._test_squared_norm

    @torch.no_grad()
    def products(self, train: np.ndarray, *, norms: bool) -> Products:
        """Return the products of training triples, by index, with all test triples."""
        rows = self._build(train)
        pairs = self._kernel(Grid(self._trunk, rows, self.tests), rows, self.tests)
        ours, theirs = rows.rows.num_directions, self.tests.rows.num_directions
        tests = self.tests.rows.num_triples
        pairs = pairs.view(len(self.parts), ours, len(train), theirs, tests)
        by_part = pairs.sum((1, 3)) if ours > 1 else pairs[:, 0, :, 0]
        return Products(by_part.mT, self._norms(rows) if norms else None)

    @torch.no_grad()
    def squared_norms(self, train: np.ndarray) -> Tensor:
        """Return the squared gradient norms of training triples, `(train,)`."""
        return self._norms(self._build(train))

    def _build(self, train: np.ndarray) -> Rows:
        index = torch.from_numpy(train.astype(np.int64)).to(self._rows.train.head.device)
        return self._changed(self._builder.build(self._rows.train.of(index)))

    def _changed(self, rows: Rows) -> Rows:
        return rows if self._geometry is None else self._geometry.changed(rows)

    def _norms(self, rows: Rows) -> Tensor:
        """Return |g|^2 of triples: of the sum of their rows' gradients."""
        own = self._kernel(Aligned(self._trunk, rows, rows), rows, rows).sum(0)
        if rows.rows.num_directions == 1:
            return own
        forward, inverse = rows.direction(0), rows.direction(1)
        cross = self._kernel(Aligned(self._trunk, forward, inverse), forward, inverse).sum(0)
        return own.view(2, -1).sum(0).add_(cross, alpha=2.0)


def build_trunk(
    model: GraphModel, product: MatrixProduct | None = None, *, keep_features: bool = True
) -> Trunk:
    """Return the fastest trunk for a model."""
    product = product or MatrixProduct()
    if isinstance(model, ConvE):
        return ConvETrunk(model, product, keep_features)
    if isinstance(model, TuckER):
        return TuckERTrunk(model, product, keep_features)
    return AutogradTrunk(model, product, keep_features)


def options_for(depth: int, operand: torch.dtype | None, *, keep_features: bool) -> KernelOptions:
    """Return options; a depth of three or more selects the whole model."""
    return KernelOptions(min(depth, EVERY_LAYER), MatrixProduct(operand), keep_features)
