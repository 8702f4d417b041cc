"""ConvE: link prediction by a convolution over the stacked images of head and relation.

The scores are a matrix product of the returned queries with the entity table. Losses and ranking
can therefore process entities in chunks, and never keep all scores. Both tables are initialised
xavier-normal, as in the authors' code. Inverse relations are ordinary rows of the relation table,
numbered after the relations themselves.

On a CPU the convolution and the projection after it are computed in two passes over the feature
maps. A convolution is linear in the patches u of its input, z = K u + c, so the batch statistics of
its outputs follow from the mean m and covariance C of the patches, which are only a few numbers:

    mean(z) = K m + c,    var(z) = diag(K C K^T)

Normalisation is then a change of the kernel, gam K / sd. A channel's dropout factor also changes
the kernel: it commutes with ReLU because it is not negative. A row of ones below the patches is
multiplied by the shift. The feature maps then need one product, with a kernel for each example, and
one ReLU, instead of five passes over them. The backward pass is similar. On a CPU the passes take
most of the time, because a 3 x 3 kernel needs little arithmetic. Gradients through the statistics
are exact.

The projection is included because its gradient with respect to the maps is as large as the maps.
The gradient of the ReLU can then overwrite it. Everything here can be differentiated twice, which
`clew.influence.unrolling` needs.
"""

import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from clew.config.graph_models import ConvEModel
from clew.layers.products import is_vectorised, linear, product
from clew.layers.training_mode import dropout, normalised, recomputed, report_statistics
from clew.link_prediction.models.base import Embeddings, GraphModel, Queries
from clew.training.sharding import draw_xavier_normal

_BLOCK_ROWS = 128

Image = Float[Tensor, "batch 1 height width"]


def projected_maps(
    x: Image,
    convolution: nn.Conv2d,
    norm: nn.BatchNorm2d,
    projection: nn.Linear,
    *,
    dropout: float,
    activation: Literal["relu", "silu"] = "relu",
) -> Float[Tensor, "batch dim"]:
    """Return projection(flatten(dropout(activation(norm(convolution(x)))))) as in training mode.

    Values and gradients equal those of the separate layers. The same random numbers are drawn, and
    the buffers of `norm` are updated. Under autocast the products have half-precision operands; the
    statistics do not.
    """
    device = x.device.type
    operand = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    height, width = convolution.weight.shape[2:]
    with torch.autocast(device, enabled=False):
        patches: Tensor = _Unfold.apply(x, height, width)  # type: ignore[no-untyped-call]
        moments: Tensor = _SecondMoments.apply(patches)  # type: ignore[no-untyped-call]
        kernel = _normalised_kernel(moments, convolution, norm, len(x) * patches.shape[2])
        keep = torch.empty(len(x), norm.num_features, dtype=operand, device=x.device)
        keep = keep.bernoulli_(1.0 - dropout).to(x.dtype) / (1.0 - dropout)
        bias = None if projection.bias is None else projection.bias.to(operand)
        weight = projection.weight.to(operand)
        if activation == "silu":
            maps = F.silu(torch.matmul(kernel.to(operand), patches.to(operand)))
            maps = maps * keep.unsqueeze(2).to(operand)
            return linear(maps.flatten(1), weight, bias)
        projected: Tensor = _Projected.apply(  # type: ignore[no-untyped-call]
            (keep.unsqueeze(2) * kernel).to(operand),
            patches.to(operand),
            weight,
            bias,
        )
    return projected


def _normalised_kernel(
    moments: Tensor, convolution: nn.Conv2d, norm: nn.BatchNorm2d, count: int
) -> Tensor:
    """Return the kernel and shift that convolve and normalise, `(channel, patch + 1)`."""
    kernel = convolution.weight.flatten(1)
    mean = moments[:-1, -1]
    covariance = moments[:-1, :-1] - torch.outer(mean, mean)
    convolved = kernel @ mean
    variance = ((kernel @ covariance) * kernel).sum(dim=1).clamp_min(0.0)
    output_mean = convolved if convolution.bias is None else convolved + convolution.bias
    unbiased = variance * (count / (count - 1))
    report_statistics(norm, output_mean, unbiased)
    _update_statistics(norm, output_mean, unbiased)
    scale = norm.weight * torch.rsqrt(variance + norm.eps)
    # The bias of the convolution cancels: it shifts the mean as much as the values.
    shift = norm.bias - scale * convolved
    return torch.cat([kernel * scale.unsqueeze(1), shift.unsqueeze(1)], dim=1)


@torch.no_grad()
def _update_statistics(norm: nn.BatchNorm2d, mean: Tensor, unbiased_variance: Tensor) -> None:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    assert norm.momentum is not None
    norm.num_batches_tracked += 1
    norm.running_mean.lerp_(mean, norm.momentum)
    norm.running_var.lerp_(unbiased_variance, norm.momentum)


class _Unfold(torch.autograd.Function):
    """Patches of an image as columns, and a row of ones below them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *kernel: int) -> Tensor:
        ctx.shape, ctx.kernel = x.shape[2:], kernel
        windows = x.squeeze(1).unfold(1, kernel[0], 1).unfold(2, kernel[1], 1)
        windows = windows.permute(0, 3, 4, 1, 2)
        patches = x.new_ones(len(x), math.prod(kernel) + 1, math.prod(windows.shape[3:]))
        patches[:, :-1].view(windows.shape).copy_(windows)
        return patches

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return F.fold(gradient[:, :-1], ctx.shape, ctx.kernel), None, None


class _SecondMoments(torch.autograd.Function):
    """Mean of u u^T over all patches, including the ones: second moments, means and 1."""

    @staticmethod
    def forward(ctx: Any, patches: Tensor) -> Tensor:
        ctx.save_for_backward(patches)
        count = patches.shape[0] * patches.shape[2]
        return torch.bmm(patches, patches.transpose(1, 2)).sum(dim=0) / count

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (patches,) = ctx.saved_tensors
        symmetric = (gradient + gradient.T) / (patches.shape[0] * patches.shape[2])
        return torch.matmul(symmetric, patches)


class _Projected(torch.autograd.Function):
    """relu(kernels patches), flattened, times the projection's weight.

    Rows are processed in blocks. The result of a product is then still in the cache when the ReLU
    reads it, and the gradient of all feature maps is never in memory at once.
    """

    @staticmethod
    def forward(
        ctx: Any, kernels: Tensor, patches: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        maps = kernels.new_empty(len(kernels), kernels.shape[1], patches.shape[2])
        for rows in _blocks(len(maps)):
            torch.bmm(kernels[rows], patches[rows], out=maps[rows]).relu_()
        ctx.save_for_backward(kernels, patches, weight, maps)
        ctx.has_bias = bias is not None
        return linear(maps.flatten(1), weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        slopes = _ProjectedSlopes.apply(gradient.contiguous(), *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return *slopes, gradient.sum(dim=0) if ctx.has_bias else None


class _ProjectedSlopes(torch.autograd.Function):
    r"""Gradients of `_Projected`, which can be differentiated again.

    The maps are M = relu(K P), the outputs M W^T, and g is the gradient of the outputs. With [.]
    zero where M is zero:

        D = [g W],    dK = D P^T,    dP = K^T D,    dW = g^T M

    For gradients k, p, w of dK, dP, dW, with E = [k P + K p] and N = [g w], the gradients are:

        g: E W^T + M w^T      K: N P^T + D p^T      P: K^T N + k^T D      W: g^T E
    """

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd passes arguments by position)
        ctx: Any, gradient: Tensor, kernels: Tensor, patches: Tensor, weight: Tensor, maps: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        dkernels, dpatches = torch.empty_like(kernels), torch.empty_like(patches)
        for rows in _blocks(len(maps)):
            slope = _masked(product(gradient[rows], weight), maps[rows])
            torch.bmm(slope, patches[rows].transpose(1, 2), out=dkernels[rows])
            torch.bmm(kernels[rows].transpose(1, 2), slope, out=dpatches[rows])
        ctx.save_for_backward(gradient, kernels, patches, weight, maps)
        return dkernels, dpatches, product(gradient.T.contiguous(), maps.flatten(1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, k: Tensor, p: Tensor, w: Tensor) -> tuple[Tensor | None, ...]:
        gradient, kernels, patches, weight, maps = ctx.saved_tensors
        k, p, w = k.contiguous(), p.contiguous(), w.contiguous()
        dgradient, dweight = torch.empty_like(gradient), torch.zeros_like(weight)
        dkernels, dpatches = torch.empty_like(kernels), torch.empty_like(patches)
        for rows in _blocks(len(maps)):
            g, some = gradient[rows], maps[rows]
            change = torch.bmm(k[rows], patches[rows]).baddbmm_(kernels[rows], p[rows])
            change = _masked(change, some)
            dgradient[rows] = product(change.flatten(1), weight.T)
            dgradient[rows] += product(some.flatten(1), w.T)
            dweight += product(g.T.contiguous(), change.flatten(1))
            bent = _masked(product(g, w), some)
            slope = _masked(product(g, weight), some)
            dkernels[rows] = torch.bmm(bent, patches[rows].transpose(1, 2))
            dkernels[rows].baddbmm_(slope, p[rows].transpose(1, 2))
            dpatches[rows] = torch.bmm(kernels[rows].transpose(1, 2), bent)
            dpatches[rows].baddbmm_(k[rows].transpose(1, 2), slope)
        return dgradient, dkernels, dpatches, dweight, None


def _masked(slope: Tensor, maps: Tensor) -> Tensor:
    slope = slope.view(maps.shape)
    torch.ops.aten.threshold_backward.grad_input(slope, maps, 0, grad_input=slope)
    return slope


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(start, start + _BLOCK_ROWS) for start in range(0, rows, _BLOCK_ROWS))


class ConvE(GraphModel, kind="conve"):
    """Convolutional 2-D knowledge-graph embeddings (Dettmers et al., 2018, arXiv 1707.01476).

        h(s, r) = relu(vec(relu([S; R] * omega)) W),    score(s, r, o) = h(s, r) . e_o + b_o

    S and R are the embeddings of head and relation as `(embedding_height, embedding_width)` images,
    one above the other, and omega are the kernels. `activation=silu` replaces relu by silu. Batch
    normalisation is applied to the input image, to the feature maps and after the projection.
    Dropout is applied to the normalised image, to the feature maps after their activation, and
    between the projection and its normalisation, as in the authors' code.
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

    def parameters_without_effect(self) -> list[Tensor]:
        """Return the shifts that the next normalisation cancels in training."""
        shifts: list[Tensor | None] = [self.convolution.bias]
        shifts += [] if self.config.projection_dropout else [self.projection.bias]
        shifts += [] if self.config.input_dropout else [self.input_norm.bias]
        return [shift for shift in shifts if shift is not None]

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
