"""How much memory a training step of the language model takes, before anything is built.

    parameters, gradients, two moments of Adam        16 bytes each
    kept from the forward pass                        of every block, or its input alone
    live in the backward pass                         one block's activations and gradients
    head                                              two tiles of logits, dH, dW

Counted per token and block from what its operations keep for the backward pass; the operands of
matrix products in the type of mixed precision, residual stream and scan in float32.
"""

from dataclasses import dataclass

from clew.config.eigenstate import EigenstateLMModel

GIB = 2.0**30
SINGLE = 4
"""Bytes of a float32."""


@dataclass(frozen=True)
class MemoryBudget:
    """Predicted peak of a training step, in GiB."""

    state_gib: float
    """Parameters, gradients and optimizer state."""
    kept_gib: float
    """Activations kept from the forward pass."""
    live_gib: float
    """What the backward pass holds at once beyond them."""

    @property
    def total_gib(self) -> float:
        """The peak."""
        return self.state_gib + self.kept_gib + self.live_gib


def predict_memory(
    config: EigenstateLMModel,
    *,
    num_parameters: int,
    vocabulary_size: int,
    batch_tokens: int,
    recompute: bool,
    operand_bytes: int = 2,
    chunk_bytes: int = 64 * 2**20,
) -> MemoryBudget:
    """Predict the peak memory of a training step with Adam.

    Args:
        config: Sizes of the model.
        num_parameters: All of them, shared ones once.
        vocabulary_size: Number of tokens.
        batch_tokens: Tokens in a microbatch.
        recompute: Whether activations are computed again in the backward pass.
        operand_bytes: Size of a matrix product's operand: 2 in mixed precision, else 4.
        chunk_bytes: Budget of the loss for its logits.
    """
    stream = SINGLE * config.d_model * batch_tokens
    kept_by_block = _kept_bytes(config, operand_bytes) * batch_tokens
    kept = stream * 2 + config.n_layers * (stream if recompute else kept_by_block)
    # A product's two operands' gradients, and the residual stream's.
    gradients = (2 * operand_bytes * config.mlp_ratio + 2 * SINGLE) * config.d_model * batch_tokens
    head = (
        chunk_bytes
        + operand_bytes * config.d_model * batch_tokens
        + (SINGLE + operand_bytes) * vocabulary_size * config.d_model
    )
    live = max(head, gradients + (kept_by_block if recompute else 0))
    return MemoryBudget(4 * SINGLE * num_parameters / GIB, kept / GIB, live / GIB)


def _kept_bytes(config: EigenstateLMModel, operand: int) -> int:
    """Return the bytes that a block keeps for a token."""
    dim, scan = config.d_model, 2 * config.num_eigenstates
    norms = 2 * (SINGLE + operand) * dim
    gates = operand * (config.gates + (dim if config.gates < dim else 0))
    # Drive, states, states by head and what resonance makes of them; the last as an operand.
    mixer = SINGLE * scan * (4 if config.resonance else 2) + operand * (scan + dim) + gates
    mlp = operand * 2 * config.mlp_ratio * dim
    return norms + mixer + mlp
