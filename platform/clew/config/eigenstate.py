"""Section `model`, kind `eigenstate_lm`: a language model of diagonal linear recurrences."""

from typing import Any, Literal

from pydantic import Field, model_validator

from clew.config.base import Section

PresetName = Literal["nano", "small_32k", "medium_32k", "large_32k"]

_OF_LONG_WINDOWS = {"num_gates": 32, "num_heads": 8, "chunk_size": 256, "max_seq_len": 32768}
PRESETS: dict[str, dict[str, Any]] = {
    "nano": {
        "d_model": 512,
        "n_layers": 4,
        "num_eigenstates": 64,
        "num_gates": 512,
        "chunk_size": 32,
        "max_seq_len": 512,
    },
    "small_32k": {"d_model": 1024, "n_layers": 8, "num_eigenstates": 128, **_OF_LONG_WINDOWS},
    "medium_32k": {"d_model": 1280, "n_layers": 12, "num_eigenstates": 160, **_OF_LONG_WINDOWS},
    "large_32k": {"d_model": 1536, "n_layers": 16, "num_eigenstates": 192, **_OF_LONG_WINDOWS},
}
"""Preset to the keys of this section that it sets if they are not given."""

_LONG_WINDOWS: dict[str, dict[str, Any]] = {
    "training": {"batch_size": 4, "gradient_accumulation": 4},
    "optimizations": {"use_gradient_checkpointing": True},
}
PRESET_COMPANIONS = dict.fromkeys(("small_32k", "medium_32k", "large_32k"), _LONG_WINDOWS)
"""Preset to the keys of other sections that it sets if they are not given."""


class EigenstateLMModel(Section):
    """Layers of gated diagonal recurrences ("temporal eigenstates") with a tied head."""

    kind: Literal["eigenstate_lm"] = "eigenstate_lm"
    """Language model of diagonal complex linear recurrences."""
    preset: PresetName | None = None
    """A named size; keys that are given explicitly replace its values. `*_32k` also set batch size
    4, gradient accumulation 4 and gradient checkpointing, if these are not given."""
    d_model: int = Field(default=512, ge=1)
    """Width of the residual stream and of the token embedding."""
    n_layers: int = Field(default=4, ge=1)
    """Number of blocks; each is a recurrence followed by an MLP."""
    num_eigenstates: int = Field(default=64, ge=1)
    """Number of complex eigenstates in each layer."""
    transition: Literal["fixed", "gated"] = "fixed"
    """`fixed`: an eigenstate decays and rotates by the same amount in every step. `gated`: each
    token decides how much each eigenstate changes. With no change, the state keeps the past and
    ignores the token; with the largest change, the state forgets the past."""
    chunk_size: int = Field(default=32, ge=1)
    """Time steps per chunk of the scan; changes the speed, not the results."""
    max_seq_len: int = Field(default=512, ge=2)
    """Tokens in a training window. The model itself has no maximum length."""
    longest_time_constant: float | None = Field(default=None, ge=1)
    """Longest initial time constant of an eigenstate, in tokens; unset: `max_seq_len`."""
    num_gates: int | None = Field(default=None, ge=1)
    """Number of gates on the readout, each for d_model / num_gates channels; unset: one per
    channel."""
    num_heads: int = Field(default=4, ge=1)
    """Number of blocks of the resonance matrix; only eigenstates of the same block interact."""
    resonance: float = Field(default=0.1, ge=0)
    """Strength eps of the resonance R = I + eps M on the readout; 0: none."""
    convolution_width: int = Field(default=1, ge=1)
    """Width, in tokens, of a convolution in every channel before each mixer and each MLP; 1: no
    convolution."""
    reset_at_documents: bool = False
    """Read each document separately: state and convolutions are reset after an end-of-text token,
    in training, evaluation and generation. Only the first token of a document is predicted from
    earlier text. If false, the model keeps its state from one document to the next and sees the
    end of a document as a token. In both cases, windows and segments can cut documents anywhere."""
    mlp_ratio: int = Field(default=4, ge=1)
    """Hidden width of the MLP, as a multiple of d_model."""
    further_tokens: int = Field(default=0, ge=0)
    """Number of tokens after the next one that training also predicts, each with its own matrix
    `(d_model, d_model)`, which is used only for this."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the embedding and on the output of each half block."""

    @model_validator(mode="before")
    @classmethod
    def _fill_preset(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("preset"), str):
            return PRESETS.get(values["preset"], {}) | values
        return values

    @property
    def gates(self) -> int:
        return self.num_gates or self.d_model

    def _check(self) -> None:
        if self.num_eigenstates % self.num_heads:
            raise ValueError(
                f"num_eigenstates is {self.num_eigenstates}, not a multiple of num_heads "
                f"{self.num_heads}; choose sizes that divide"
            )
        if self.d_model % self.gates:
            raise ValueError(
                f"d_model is {self.d_model}, not a multiple of num_gates {self.gates}; choose "
                "sizes that divide"
            )
        if self.further_tokens >= self.max_seq_len:
            raise ValueError(
                f"further_tokens is {self.further_tokens}, but max_seq_len is {self.max_seq_len}; "
                "set further_tokens below max_seq_len"
            )
