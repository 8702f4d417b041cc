"""Heads over time: from the feature vectors of a window's frames to one vector for the window.

`transformer`  attention between all frames, with learned positions
`ssm`          the eigenstate layers of the language model, read out after the last frame
`gnn`          attention along the edges of a graph: a patch sees its neighbours in the same frame,
               and the same patch one frame earlier and later (after Velickovic et al., 2018, arXiv
               1710.10903)
`cnn`          the mean over frames
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from clew.config.eigenstate import EigenstateLMModel
from clew.config.image_sequences import SequenceRegressionModel
from clew.layers.eigenstate import EigenstateBlock

Nodes = Float[Tensor, "window node dim"]
Steps = Float[Tensor, "window time patch dim"]
Summary = Float[Tensor, "window dim"]


class AttentionBlock(nn.Module):
    """Multi-head attention and an MLP, each on a normalised copy of the residual stream."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(dim)
        self.project = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)
        self.mlp_norm = nn.LayerNorm(dim)
        self.expand = nn.Linear(dim, 2 * dim)
        self.contract = nn.Linear(2 * dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Nodes, edges: Bool[Tensor, "node node"] | None = None) -> Nodes:
        """Return the residual stream after the block; without `edges`, all nodes see each other."""
        parts = self.project(self.attention_norm(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=edges)
        x = x + self.dropout(self.output(mixed.transpose(1, 2).flatten(2)))
        added: Tensor = self.contract(F.gelu(self.expand(self.mlp_norm(x))))
        summed: Tensor = x + self.dropout(added)
        return summed


class AttentionHead(nn.Module):
    """Attention over frames, or over the graph of patches and times.

    Args:
        num_frames: Number of frames of a window.
        config: Validated settings.
    """

    edges: Tensor | None

    def __init__(self, num_frames: int, config: SequenceRegressionModel) -> None:
        super().__init__()
        dim, grid = config.width, config.patch_grid if config.architecture == "gnn" else (1, 1)
        self.time = nn.Parameter(0.02 * torch.randn(num_frames, 1, dim))
        self.place = nn.Parameter(0.02 * torch.randn(grid[0] * grid[1], dim))
        edges = graph_edges(num_frames, *grid) if config.architecture == "gnn" else None
        self.register_buffer("edges", edges, persistent=False)
        self.blocks = nn.ModuleList(
            AttentionBlock(dim, config.heads, config.dropout) for _ in range(config.temporal_layers)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, steps: Steps) -> Summary:
        """Return the mean over nodes after all layers."""
        x = (steps + self.time + self.place).flatten(1, 2)
        for block in self.blocks:
            x = block(x, self.edges)
        normed: Tensor = self.norm(x)
        return normed.mean(1)


class EigenstateHead(nn.Module):
    """Eigenstate layers over the frames; the output is the vector of the last frame."""

    def __init__(self, num_frames: int, config: SequenceRegressionModel) -> None:
        super().__init__()
        settings = EigenstateLMModel(
            d_model=config.width,
            n_layers=config.temporal_layers,
            num_eigenstates=config.width // 2,
            num_heads=config.heads,
            max_seq_len=max(2, num_frames),
            chunk_size=num_frames,
            mlp_ratio=2,
            dropout=config.dropout,
        )
        self.blocks = nn.ModuleList(
            EigenstateBlock(settings) for _ in range(config.temporal_layers)
        )
        self.norm = nn.LayerNorm(config.width)

    def forward(self, steps: Steps) -> Summary:
        """Return the normalised residual stream after the last frame."""
        x = steps.flatten(1, 2)
        for block in self.blocks:
            x = block(x)[0]
        normed: Tensor = self.norm(x)
        return normed[:, -1]


class MeanHead(nn.Module):
    """The mean over frames, normalised."""

    def __init__(self, config: SequenceRegressionModel) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)

    def forward(self, steps: Steps) -> Summary:
        normed: Tensor = self.norm(steps.flatten(1, 2).mean(1))
        return normed


def build_head(num_frames: int, config: SequenceRegressionModel) -> nn.Module:
    """Return the head that `architecture` names."""
    match config.architecture:
        case "transformer" | "gnn":
            return AttentionHead(num_frames, config)
        case "ssm":
            return EigenstateHead(num_frames, config)
        case "cnn":
            return MeanHead(config)


def graph_edges(num_frames: int, rows: int, columns: int) -> Bool[Tensor, "node node"]:
    """Return which nodes see each other: neighbours in a frame, and a patch one frame apart.

    Nodes are numbered by time, then row, then column. Every node sees itself.
    """
    time, row, column = torch.meshgrid(
        torch.arange(num_frames), torch.arange(rows), torch.arange(columns), indexing="ij"
    )
    place = torch.stack([time.flatten(), row.flatten(), column.flatten()], dim=1)
    apart = (place[:, None] - place[None]).abs()
    beside = (apart[..., 0] == 0) & (apart[..., 1:].amax(-1) <= 1)
    before = (apart[..., 0] <= 1) & (apart[..., 1:].sum(-1) == 0)
    return beside | before
