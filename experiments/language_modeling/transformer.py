"""A transformer of the same size as `nano`, for comparison.

It is plain torch, with rotary position embeddings and a tied output layer. It has six layers of 384
channels and six heads, like nanoGPT's "baby GPT": 10.7 million parameters.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class TransformerBlock(nn.Module):
    """Causal attention and an MLP, each with layer normalisation of its input."""

    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.attention_norm = nn.LayerNorm(dim, bias=False)
        self.queries_keys_values = nn.Linear(dim, 3 * dim, bias=False)
        self.output = nn.Linear(dim, dim, bias=False)
        self.mlp_norm = nn.LayerNorm(dim, bias=False)
        self.expand = nn.Linear(dim, 4 * dim, bias=False)
        self.contract = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """Return the residual stream after the block, `(batch, time, dim)`."""
        batch, time, dim = x.shape
        heads = self.queries_keys_values(self.attention_norm(x))
        heads = heads.view(batch, time, 3, self.num_heads, dim // self.num_heads)
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(
            rotate(queries, turns), rotate(keys, turns), values, is_causal=True
        )
        attended = attended.transpose(1, 2).reshape(batch, time, dim)
        x = x + F.dropout(self.output(attended), self.dropout, self.training)
        hidden = F.gelu(self.expand(self.mlp_norm(x)), approximate="tanh")
        return x + F.dropout(self.contract(hidden), self.dropout, self.training)


def rotate(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate pairs of channels by angles that grow with the position (Su et al., 2104.09864)."""
    cosine, sine = (turn.to(x.dtype) for turn in turns)
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cosine - right * sine, left * sine + right * cosine], dim=-1)


class Transformer(nn.Module):
    """A causal transformer that returns hidden vectors, as `EigenstateLM` does."""

    def __init__(
        self,
        vocabulary_size: int,
        *,
        dim: int = 384,
        num_layers: int = 6,
        num_heads: int = 6,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.dropout, self.head_dim = dropout, dim // num_heads
        self.embedding = nn.Embedding(vocabulary_size, dim)
        self.blocks = nn.ModuleList(
            TransformerBlock(dim, num_heads, dropout) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(dim, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                last = name.endswith(("output.weight", "contract.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * num_layers) ** 0.5 if last else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the hidden vector after each token, `(batch, time, dim)`."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        channels = torch.arange(0, self.head_dim, 2, device=tokens.device) / self.head_dim
        angles = positions[:, None] * 10_000.0**-channels
        turns = (angles.cos(), angles.sin())
        x = F.dropout(self.embedding(tokens), self.dropout, self.training)
        for block in self.blocks:
            x = block(x, turns)
        return self.norm(x)  # type: ignore[no-any-return]

    def parameters_without_decay(self) -> list[nn.Parameter]:
        """Return the scales of normalisation; weight decay is only for matrices."""
        return [p for p in self.parameters() if p.dim() == 1]
