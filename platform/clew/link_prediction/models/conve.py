"""ConvE: link prediction by a convolution over the stacked images of head and relation.

The scores are a matrix product of the returned queries with the entity table. Losses and ranking
can therefore process entities in chunks, and never keep all scores. Both tables are initialised
xavier-normal, as in the authors' code. Inverse relations are ordinary rows of the relation table,
numbered after the relations themselves.
"""

import torch
from torch import nn
from torch.nn import functional as F

from clew.config.graph_models import ConvEModel
from clew.layers.products import is_vectorised, linear
from clew.layers.training_mode import dropout, normalised, recomputed
from clew.link_prediction.models.base import Embeddings, GraphModel, Queries
from clew.link_prediction.models.patch_convolution import Image, projected_maps
from clew.training.sharding.table import draw_xavier_normal


class ConvE(GraphModel, kind="conve"):
    """Convolutional 2-D knowledge-graph embeddings (Dettmers et al., 2018, arXiv 1707.01476).

        h(s, r) = relu(vec(relu([S; R] * omega)) W),    score(s, r, o) = h(s, r) . e_o + b_o

    S and R are the embeddings of head and relation as `(embedding_height, embedding_width)` images,
    one above the other, and omega are the kernels. `activation=silu` replaces relu by silu. Batch
    normalisation is applied to the input image, to the feature maps and after the projection.
    Dropout is applied to the normalised image, to the feature maps after their activation, and
    between the projection and its normalisation, as in the authors' code.

    Args:
        num_entities: Rows of the entity table.
        num_relations: Rows of the relation table, inverse relations included.
        config: The model's settings.
    """

    config: ConvEModel

    def __init__(self, num_entities: int, num_relations: int, config: ConvEModel) -> None:
        super().__init__(num_entities, num_relations, config)
        self.recomputes = False
        self.image_shape = 2 * config.height, config.width
        self.activation = {"relu": F.relu, "silu": F.silu}[config.activation]
        self.input_norm = nn.BatchNorm2d(1)
        self.convolution = nn.Conv2d(
            1,
            config.output_channels,
            (config.kernel_height, config.kernel_width),
            bias=config.convolution_bias,
        )
        self.feature_norm = nn.BatchNorm2d(config.output_channels)
        self.projection = nn.Linear(
            config.num_features, config.embedding_dim, bias=config.projection_bias
        )
        self.projection_norm = nn.BatchNorm1d(config.embedding_dim)
        draw_xavier_normal(self.entity)
        nn.init.xavier_normal_(self.relation.weight)

    def encode(self, head: Embeddings, relation: Embeddings) -> Queries:
        """Return the query vector of each pair of embeddings, `(batch, dim)`."""
        rows = torch.cat([head, relation], dim=1)
        image = rows.view(-1, 1, *self.image_shape)
        if self.recomputes and self.training and torch.is_grad_enabled():
            hidden = recomputed(self._convolve, image, within=self)
        else:
            hidden = self._convolve(image)
        return self.activation(normalised(self.projection_norm, hidden))

    @property
    def floats_per_query(self) -> int:
        return self.config.num_features

    def enable_gradient_checkpointing(self) -> None:
        """Recompute the convolution's activations in the backward pass; in training only."""
        self.recomputes = True

    def _convolve(self, image: Image) -> Queries:
        """Return the projected feature maps before the last normalisation, `(batch, dim)`."""
        config, training = self.config, self.training
        x = dropout(self.input_norm(image), config.input_dropout, training)
        own_functions = x.device.type == "cpu" and not torch.compiler.is_compiling()
        if training and own_functions and not is_vectorised():
            x = projected_maps(
                x,
                self.convolution,
                self.feature_norm,
                self.projection,
                dropout=config.feature_map_dropout,
                activation=config.activation,
            )
        else:
            x = self.activation(self.feature_norm(self.convolution(x)), inplace=True)
            x = F.dropout2d(x, config.feature_map_dropout, training)
            x = linear(x.flatten(1), self.projection.weight, self.projection.bias)
        return dropout(x, config.projection_dropout, training)
