"""Section `model`: the network and its shape, checked before anything is built."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from clew.config.base import Section
from clew.config.eigenstate import EigenstateLMModel
from clew.config.image_sequences import SequenceRegressionModel

Probability = Annotated[float, Field(ge=0, lt=1)]


class ConvEModel(Section):
    """ConvE (Dettmers et al., 2018, arXiv 1707.01476): 2-D convolution over head and relation."""

    kind: Literal["conve"] = "conve"
    """Convolutional knowledge-graph embedding."""
    embedding_dim: int = Field(default=200, ge=1)
    """Length of an entity's and of a relation's embedding."""
    embedding_height: int | None = Field(default=None, ge=1)
    """Rows of the image that an embedding is reshaped to; unset: the divisor of `embedding_dim`
    nearest below its square root (10 for 200)."""
    embedding_width: int | None = Field(default=None, ge=1)
    """Columns of that image; unset: `embedding_dim / embedding_height`."""
    output_channels: int = Field(default=32, ge=1)
    """Feature maps of the convolution."""
    kernel_height: int = Field(default=3, ge=1)
    """Rows of the convolution kernel; the image has `2 * embedding_height` rows."""
    kernel_width: int = Field(default=3, ge=1)
    """Columns of the convolution kernel."""
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
    entity_bias: bool = True
    """Whether each entity has a bias added to its score."""

    @property
    def height(self) -> int:
        """Rows of one embedding's image."""
        if self.embedding_height is not None:
            return self.embedding_height
        if self.embedding_width is not None:
            return self.embedding_dim // self.embedding_width
        root = int(self.embedding_dim**0.5)
        return next(n for n in range(root, 0, -1) if self.embedding_dim % n == 0)

    @property
    def width(self) -> int:
        """Columns of one embedding's image."""
        return self.embedding_width or self.embedding_dim // self.height

    @property
    def num_features(self) -> int:
        """Inputs of the fully connected layer: channels x output rows x output columns."""
        rows = 2 * self.height - self.kernel_height + 1
        columns = self.width - self.kernel_width + 1
        return self.output_channels * rows * columns

    @model_validator(mode="after")
    def _shapes_fit(self) -> "ConvEModel":
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
        return self


ModelConfig = Annotated[
    ConvEModel | EigenstateLMModel | SequenceRegressionModel, Field(discriminator="kind")
]
