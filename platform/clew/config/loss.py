"""Section `loss`: how the output of the model is compared with the targets."""

from typing import Annotated, Literal

from pydantic import Field

from clew.config.base import TRAIN_FLAG, Section


class EntityLoss(Section):
    """Fields of both losses over all entities."""

    function: Literal["binary_cross_entropy", "softmax_cross_entropy"] = "binary_cross_entropy"
    """Binary cross entropy for each entity, or softmax cross entropy over all of them (KL)."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1), TRAIN_FLAG] = 0.1
    """Share eps of the labels that is spread over all entities: y = (1-eps) y + eps / entities."""
    implementation: Literal["auto", "plain", "fused"] = "auto"
    """`plain` keeps all scores. `fused` processes entities in chunks and keeps as many scores as
    `chunk_mib` allows. `auto` selects one of them by the sizes; the run records the choice."""
    chunk_mib: float = Field(default=64.0, gt=0)
    """Memory budget of the fused loss for its chunks, in MiB. Softmax cross entropy needs all
    scores twice, so it can use the same amount again to keep them; it recomputes scores that do not
    fit."""
    regularizer: Literal["n3", "dura"] | None = None
    """Penalty on the embeddings of each training triple. `n3`: sum of the cubed absolute values
    (Lacroix et al., 2018). `dura`: squared norms of the query vector and of the tail (Zhang et al.,
    2020). For complex, cp, distmult and rescal."""
    regularizer_weight: float = Field(default=0.01, gt=0)
    """Factor of the regularizer."""
    relation_prediction_weight: float = Field(default=0.0, ge=0)
    """Factor of a second task: softmax cross entropy of a triple's relation among all relations,
    inverse ones included (Chen et al., 2021). For complex, cp, distmult and rescal."""

    negatives: int | None = Field(default=None, ge=1)
    """Number of sampled entities that a batch is compared with, instead of all entities. All rows
    of a batch share one sample, and the loss is corrected so that it estimates the loss over all
    entities. For large graphs, or to train faster. Unset: all entities. With
    `optimizer.kind=adagrad` and `optimizer.row_wise=true`, only the rows that a batch uses are
    updated."""
    negative_sampling: Literal["uniform", "degree"] = "uniform"
    """How the entities are sampled: all with the same probability (`uniform`), or in proportion to
    (1 + number of training triples of the entity)^0.75 (`degree`)."""

    @property
    def needs_factorization(self) -> str | None:
        """The key of an active loss term that needs a tensor factorization; None if none is."""
        if self.regularizer is not None:
            return "regularizer"
        return "relation_prediction_weight" if self.relation_prediction_weight else None


class OneVsAllLoss(EntityLoss):
    """One row per training triple; the triple's tail is the only positive."""

    kind: Literal["one_vs_all"] = "one_vs_all"
    """One row per triple."""
    triples_per_row: int = Field(default=1, ge=1)
    """Largest number of training triples with the same query (head, relation) that share a row.
    The query is encoded and scored only once, which gives the same loss with less computation.
    `training.batch_size` is then the number of rows. A value above 1 needs softmax cross entropy.
    """

    def _check(self) -> None:
        if self.triples_per_row > 1 and self.function != "softmax_cross_entropy":
            raise ValueError(
                f"triples_per_row is {self.triples_per_row}, but function is {self.function}; set "
                "function to softmax_cross_entropy, or leave triples_per_row out"
            )


class KvsAllLoss(EntityLoss):
    """One row per query (head, relation); all training tails of the query are positive."""

    kind: Literal["kvs_all"] = "kvs_all"
    """One row per query."""


class LanguageLoss(Section):
    """Cross entropy of the next token, summed over all tokens."""

    kind: Literal["language"] = "language"
    """Next-token prediction."""
    implementation: Literal["plain", "chunked"] = "chunked"
    """`plain` keeps the logits of all tokens. `chunked` keeps only the logits of one chunk and
    computes the gradients together with the loss."""
    chunk_mib: float = Field(default=64.0, gt=0)
    """Memory budget for the logits of a chunk, in MiB."""
    further_weight: float = Field(default=0.3, gt=0)
    """Weight of the loss of each token after the next one; `model.further_tokens` sets their
    number. `train/loss` is the sum of all; validation and test use only the next token."""


class MaeLoss(Section):
    """Mean absolute error, in standard deviations of the training targets."""

    kind: Literal["mae"] = "mae"
    """Absolute error."""


class MseLoss(Section):
    """Mean squared error, in standard deviations of the training targets."""

    kind: Literal["mse"] = "mse"
    """Squared error."""


class HuberLoss(Section):
    """Squared error if it is small, absolute error if it is large (Huber, 1964)."""

    kind: Literal["huber"] = "huber"
    """Huber's loss."""
    delta: float = Field(default=1.0, gt=0)
    """Error above which the loss is no longer squared, in standard deviations of the targets."""


RegressionLoss = MaeLoss | MseLoss | HuberLoss
LossConfig = Annotated[
    OneVsAllLoss | KvsAllLoss | LanguageLoss | RegressionLoss, Field(discriminator="kind")
]
