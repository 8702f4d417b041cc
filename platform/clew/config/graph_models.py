"""Section `model` of link prediction: the settings of the graph models.

To add a graph model, add a class here, list it in `GraphModelConfig`, and put its network into
`clew.link_prediction.models`, in a file named after its `kind`.
"""

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field

from clew.config.base import TRAIN_FLAG, Section

Probability = Annotated[float, Field(ge=0, lt=1)]
MAX_EMBEDDING_DIM = 2**20
"""Upper limit: larger tables do not fit into memory, and larger numbers take long to factor."""

EvenDim = Annotated[int, TRAIN_FLAG, Field(ge=2, le=MAX_EMBEDDING_DIM, multiple_of=2)]


class GraphModelSettings(Section):
    """Settings of all graph models.

    Query vectors and rows of the entity table have the same length.
    """

    normalises_batches: ClassVar[bool] = False
    recomputes: ClassVar[bool] = False
    """Whether the network has activations that gradient checkpointing can recompute."""
    kind: str
    """Name of the model, and of the file of its network."""
    embedding_dim: Annotated[int, TRAIN_FLAG] = Field(default=200, ge=1, le=MAX_EMBEDDING_DIM)
    """Length of the embedding of an entity or a relation."""
    entity_bias: bool = True
    """Whether to add a bias to each entity's score."""
    warm_start: str | None = None
    """Start from the parameters of this run (its id, `newest`, `models:/name@alias` or a checkpoint
    folder) instead of random ones. Entities and relations are matched by name; new ones start with
    random parameters. Influence covers only the steps of the new run."""

    @property
    def relation_size(self) -> int:
        return self.embedding_dim


class ConvEModel(GraphModelSettings):
    """ConvE (Dettmers et al., 2018, arXiv 1707.01476): 2-D convolution over head and relation."""

    normalises_batches: ClassVar[bool] = True
    recomputes: ClassVar[bool] = True
    kind: Literal["conve"] = "conve"
    """Convolutional knowledge-graph embedding."""
    embedding_height: int | None = Field(default=None, ge=1)
    """Rows of the image that an embedding is reshaped to; unset: the largest divisor of
    `embedding_dim` that is not above its square root (10 for 200)."""
    embedding_width: int | None = Field(default=None, ge=1)
    """Columns of that image; unset: `embedding_dim / embedding_height`."""
    output_channels: Annotated[int, TRAIN_FLAG] = Field(default=32, ge=1)
    """Feature maps of the convolution."""
    kernel_height: int = Field(default=3, ge=1)
    """Rows of the convolution kernel; the image has `2 * embedding_height` rows."""
    kernel_width: int = Field(default=3, ge=1)
    """Columns of the convolution kernel."""
    activation: Literal["relu", "silu"] = "relu"
    """Activation after the normalisation of the feature maps and of the projection. `relu` is the
    published model. `silu`, x sigmoid(x), is smooth; `influence.score=unrolled` loses precision at
    the kink of `relu`."""
    input_dropout: Probability = 0.2
    """Dropout on the stacked image of head and relation."""
    feature_map_dropout: Probability = 0.2
    """Dropout of whole feature maps after the convolution."""
    projection_dropout: Probability = 0.3
    """Dropout after the fully connected layer."""
    convolution_bias: bool = True
    """Whether the convolution has a bias."""
    projection_bias: bool = True
    """Whether the fully connected layer has a bias."""

    @property
    def height(self) -> int:
        """Rows of the image of one embedding."""
        if self.embedding_height is not None:
            return self.embedding_height
        if self.embedding_width is not None:
            return self.embedding_dim // self.embedding_width
        root = int(self.embedding_dim**0.5)
        return next(n for n in range(root, 0, -1) if self.embedding_dim % n == 0)

    @property
    def width(self) -> int:
        return self.embedding_width or self.embedding_dim // self.height

    @property
    def num_features(self) -> int:
        rows = 2 * self.height - self.kernel_height + 1
        columns = self.width - self.kernel_width + 1
        return self.output_channels * rows * columns

    def _check(self) -> None:
        if self.height * self.width != self.embedding_dim:
            raise ValueError(
                f"embedding_height {self.height} x embedding_width {self.width} = "
                f"{self.height * self.width}, but embedding_dim is {self.embedding_dim}; "
                "choose a height and a width whose product is embedding_dim"
            )
        image_height = 2 * self.height
        if self.kernel_height > image_height or self.kernel_width > self.width:
            raise ValueError(
                f"kernel {self.kernel_height} x {self.kernel_width} is larger than the image "
                f"{image_height} x {self.width} (2 x {self.height} rows of stacked head and "
                f"relation, {self.width} columns); choose a smaller kernel or another "
                "embedding_height"
            )


class PlainModel(GraphModelSettings):
    """Settings of models that compute scores from embeddings without a network."""

    entity_bias: bool = False
    """Whether to add a bias to each entity's score."""
    input_dropout: Probability = 0.0
    """Dropout on the embeddings of head and relation."""
    initial_deviation: float = Field(default=0.1, gt=0)
    """Standard deviation of the initial embeddings."""


class FactorizationSettings(PlainModel):
    """Settings of models whose score is linear in each of head, relation and tail."""

    relation_dropout: Probability | None = None
    """Dropout on the embedding of the relation; unset: `input_dropout`."""

    @property
    def dropout_of_relations(self) -> float:
        """`relation_dropout`, if it is set, else `input_dropout`."""
        return self.input_dropout if self.relation_dropout is None else self.relation_dropout


class DistMultModel(FactorizationSettings):
    """DistMult (Yang et al., 2015, arXiv 1412.6575): a product of three vectors."""

    kind: Literal["distmult"] = "distmult"
    """Element-wise products; symmetric in head and tail."""


class ComplExModel(FactorizationSettings):
    """ComplEx (Trouillon et al., 2016, arXiv 1606.06357): DistMult over complex numbers."""

    kind: Literal["complex"] = "complex"
    """Products of complex numbers; a relation can be antisymmetric."""
    embedding_dim: EvenDim = 200
    """Length of a row: real parts of `embedding_dim / 2` complex numbers, then imaginary parts."""


class CPModel(FactorizationSettings):
    """CP decomposition (Lacroix et al., 2018, arXiv 1806.07297), with inverse relations."""

    kind: Literal["cp"] = "cp"
    """A product of three vectors; an entity has one row as head and another row as tail."""


class RESCALModel(FactorizationSettings):
    """RESCAL (Nickel et al., 2011): a relation is a matrix."""

    kind: Literal["rescal"] = "rescal"
    """Bilinear forms; a relation has `embedding_dim` x `embedding_dim` numbers."""
    embedding_dim: Annotated[int, TRAIN_FLAG] = Field(default=100, ge=1, le=MAX_EMBEDDING_DIM)
    """Length of the embedding of an entity, and rows and columns of a relation's matrix."""

    @property
    def relation_size(self) -> int:
        return self.embedding_dim**2


class TuckERModel(GraphModelSettings):
    """TuckER (Balazevic et al., 2019, arXiv 1901.09590): a core tensor that relations share."""

    normalises_batches: ClassVar[bool] = True
    kind: Literal["tucker"] = "tucker"
    """Three vectors multiplied with a core tensor."""
    relation_dim: int | None = Field(default=None, ge=1)
    """Length of a relation's row; unset: `embedding_dim`."""
    entity_bias: bool = False
    """Whether to add a bias to each entity's score."""
    input_dropout: Probability = 0.3
    """Dropout on the head."""
    relation_dropout: Probability = 0.4
    """Dropout on the product of a relation and the core tensor, which is a matrix."""
    projection_dropout: Probability = 0.5
    """Dropout on the product of head and matrix."""

    @property
    def relation_size(self) -> int:
        """`relation_dim` if it is set, else `embedding_dim`."""
        return self.relation_dim or self.embedding_dim


class TransEModel(PlainModel):
    """TransE (Bordes et al., 2013): a relation translates the head to the tail."""

    kind: Literal["transe"] = "transe"
    """Squared distances of head + relation to the tails."""
    entity_bias: bool = True
    """Whether to add a bias to each entity's score; the score of a distance is never positive."""


class RotatEModel(PlainModel):
    """RotatE (Sun et al., 2019, arXiv 1902.10197): a relation rotates the head to the tail."""

    kind: Literal["rotate"] = "rotate"
    """Squared distances of the rotated head to the tails."""
    embedding_dim: EvenDim = 200
    """Length of an entity's row: real parts of `embedding_dim / 2` complex numbers, then imaginary
    parts. A relation has one angle for each complex number, and, for RotE, a translation."""
    entity_bias: bool = True
    """Whether to add a bias to each entity's score; the score of a distance is never positive."""
    input_dropout: Probability = 0.0
    """Dropout on the head, before its rotation, and, for RotE, on the translation."""

    @property
    def relation_size(self) -> int:
        return self.embedding_dim // 2


class RotEModel(RotatEModel):
    """RotE (Chami et al., 2020, arXiv 2005.00545): a relation rotates and translates the head."""

    kind: Literal["rote"] = "rote"  # type: ignore[assignment]
    """Squared distances of the rotated and translated head to the tails."""

    @property
    def relation_size(self) -> int:
        return self.embedding_dim // 2 + self.embedding_dim


GraphModelConfig = (
    ConvEModel
    | DistMultModel
    | ComplExModel
    | CPModel
    | RESCALModel
    | TuckERModel
    | TransEModel
    | RotatEModel
    | RotEModel
)
GRAPH_MODELS = tuple(str(m.model_fields["kind"].default) for m in get_args(GraphModelConfig))
"""Every `kind` of graph model; the first is the default."""
