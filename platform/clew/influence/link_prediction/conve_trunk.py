r"""ConvE's activations and activation gradients, per query and per row, in evaluation mode.

Symbols, for head a = W[hd] and relation rho of a query, normalisations 0 (image), 1 (feature maps),
2 (projection) with gain gam, shift bet, running mean mu and deviation sd:

    xh = (stack(a, rho) - mu0) / sd0      x1 = gam0 xh + bet0       U = im2col(x1)
    u  = gam1 (K U + k - mu1) / sd1 + bet1                          f = relu(u)
    qh = (Wf f + c - mu2) / sd2           m  = gam2 qh + bet2       h = relu(m)       s = W h + b

The gradients, backwards from delta = dL / ds, are named g and the name of their variable:

    gm = (W^T delta) [m > 0]    gq = gm gam2 / sd2    gu = (Wf^T gq) [u > 0]
    gx1 = col2im(K^T (gu gam1 / sd1))                 [ga; gr] = gx1 gam0 / sd0

With `model.activation=silu`, relu becomes silu, [m > 0] becomes silu'(m) and [u > 0] silu'(u).

Everything up to h, and the part of delta that is the same for all tails, is computed once per query
for all rows that share it. Per-example gradients are never formed for a large matrix, only for the
small parameters (kernel, normalisations, biases), as one vector w per row.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from clew.influence.link_prediction.trunk import (
    Activations,
    ParameterLayout,
    Queries,
    RowGradients,
    Trunk,
)
from clew.layers.products import MatrixProduct
from clew.link_prediction.models.conve import ConvE
from clew.runs.influence_report import CONVE_PARTS


class Affine:
    """A batch normalisation in evaluation mode: gain * (x - mean) / deviation + shift."""

    def __init__(self, norm: torch.nn.BatchNorm1d | torch.nn.BatchNorm2d) -> None:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        self.mean, self.deviation = norm.running_mean, (norm.running_var + norm.eps).sqrt()
        self.gain, self.shift = norm.weight.detach(), norm.bias.detach()
        self.slope = self.gain / self.deviation


class ConvETrunk(Trunk):
    """The frozen ConvE of a checkpoint, with the values that its factors need.

    For each query it keeps `image` (xh), `normal` (qh) and, if `keep_features`, `features` (f).
    The arguments are those of `Trunk`.
    """

    model: ConvE
    layout = ParameterLayout(
        dense="projection.weight",
        small=tuple(
            f"{layer}.{kind}"
            for layer in ("convolution", "feature_norm", "projection_norm", "input_norm")
            for kind in ("weight", "bias")
        ),
        parts=CONVE_PARTS,
        without_effect=("convolution.bias", "projection.bias"),
    )

    def __init__(
        self, model: ConvE, product: MatrixProduct | None = None, keep_features: bool = True
    ) -> None:
        super().__init__(model, product, keep_features)
        self.input, self.feature, self.projection = (
            Affine(norm) for norm in (model.input_norm, model.feature_norm, model.projection_norm)
        )
        self.kernel = model.convolution.weight.detach()
        bias = model.convolution.bias
        self.kernel_bias = torch.zeros_like(self.feature.mean) if bias is None else bias.detach()
        self._folded_kernel = self.kernel * self.feature.slope[:, None, None, None]
        self._folded_bias = (
            self.feature.slope * (self.kernel_bias - self.feature.mean) + self.feature.shift
        )
        bias = model.projection.bias
        self.dense_bias = None if bias is None else bias.detach()
        self._dense = self.product.prepare(model.projection.weight.detach())

    def forward(self, head: Tensor, relation: Tensor) -> tuple[Activations, Tensor]:
        """Return xh, qh and f of queries by name, and their h."""
        rows = self.model.entity(head).detach()
        stacked = torch.cat([rows, self.model.relation(relation).detach()], dim=1)
        image = (stacked - self.input.mean) / self.input.deviation
        features = self._features(image)
        projected = self.product.affine(features, self._dense, self.dense_bias)
        normal = (projected - self.projection.mean) / self.projection.deviation
        hidden = self.model.activation(self._m(normal))
        kept = {"image": image, "normal": normal}
        if self.keep_features:
            kept["features"] = features
        return kept, hidden

    def features(
        self, activations: Activations, index: Tensor | slice
    ) -> Float[Tensor, "n feature"]:
        if "features" in activations:
            return activations["features"][index]
        return self._features(activations["image"][index])

    def _features(self, image: Float[Tensor, "n image"]) -> Float[Tensor, "n feature"]:
        return self.model.activation(self._u(image), inplace=True).flatten(1)

    def _u(self, image: Float[Tensor, "n image"]) -> Tensor:
        return F.conv2d(self._x1(image), self._folded_kernel, self._folded_bias)

    def _m(self, normal: Float[Tensor, "n dim"]) -> Tensor:
        return self.projection.gain * normal + self.projection.shift

    def backward(
        self, queries: Queries, index: Tensor, grad_hidden: Tensor, *, deep: bool, small: bool
    ) -> RowGradients:
        """Return the activation gradients of rows from gh = W^T delta; see `Trunk`."""
        smooth = self.model.config.activation == "silu"
        if smooth:
            m = self._m(queries.activations["normal"][index])
            grad_m = torch.ops.aten.silu_backward(grad_hidden, m)
        else:
            grad_m = grad_hidden * (queries.hidden[index] > 0)
        projected = grad_m * self.projection.slope
        if not deep:
            return RowGradients(projected)
        image, normal = (queries.activations[name][index] for name in ("image", "normal"))
        grad_f = self.product(projected, self._dense)
        if smooth:
            grad_u = torch.ops.aten.silu_backward(grad_f, self._u(image).flatten(1))
        else:
            features = self.features(queries.activations, index)
            masked = torch.ops.aten.threshold_backward.grad_input
            grad_u = masked(grad_f, features, 0.0, grad_input=grad_f)
        grad_u = grad_u.view(len(grad_u), len(self.kernel), -1)
        grad_x1 = self._to_image(grad_u)
        others = self._others(image, normal, grad_m, grad_u, grad_x1) if small else None
        head, relation = (grad_x1 * self.input.slope).chunk(2, dim=1)
        return RowGradients(projected, head, relation, others)

    def _x1(self, image: Tensor) -> Tensor:
        x1 = image * self.input.gain + self.input.shift
        return x1.view(-1, 1, *self.model.image_shape)

    def _columns(self, image: Tensor) -> Float[Tensor, "row weight position"]:
        height, width = self.kernel.shape[2:]
        windows = self._x1(image)[:, 0].unfold(1, height, 1).unfold(2, width, 1)
        return windows.permute(0, 3, 4, 1, 2).reshape(len(image), height * width, -1)

    def _to_image(self, grad_u: Float[Tensor, "row channel position"]) -> Float[Tensor, "row n"]:
        """Return gx1: K^T of every position, added up where kernels overlap.

        On the CPU this takes a third of the time of a transposed convolution.
        """
        shares = torch.matmul(self._folded_kernel.flatten(1).T, grad_u)
        return F.fold(shares, self.model.image_shape, self.kernel.shape[2:]).flatten(1)

    def _others(
        self, image: Tensor, normal: Tensor, grad_m: Tensor, grad_u: Tensor, grad_x1: Tensor
    ) -> Float[Tensor, "row small"]:
        """Return w: kernel, its bias, and gains and shifts of the three normalisations.

        sum_p gu zh is computed without zh: with z = K U, it is a product of K with gu U^T.
        """
        kernel = grad_u @ self._columns(image).mT
        total = grad_u.sum(2)
        slope = self.feature.slope
        centred = (kernel * self.kernel.flatten(1)).sum(2) + total * (
            self.kernel_bias - self.feature.mean
        )
        parts = [
            (kernel * slope[:, None]).flatten(1),
            total * slope if self.model.convolution.bias is not None else total[:, :0],
            centred / self.feature.deviation,
            total,
            grad_m * normal,
            grad_m,
            (grad_x1 * image).sum(1, keepdim=True),
            grad_x1.sum(1, keepdim=True),
        ]
        return torch.cat(parts, dim=1)
