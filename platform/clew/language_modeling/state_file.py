"""Saves a paused text: the state of the model, the random generator, and the shown tokens.

The file is a safetensors file, whose tensors are named by their place in the state. Its metadata
contains the digest of the model's weights, because another model cannot use the state.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from clew.errors import CheckpointError, DataError, described, quoted
from clew.files import replacing
from clew.language_modeling.generation import TextState, read_text
from clew.language_modeling.model import EigenstateLM

SCHEMA_VERSION = "1"
VERSION_KEY, WEIGHTS_KEY = "clew.text_state", "clew.weights"
S = TypeVar("S")


@dataclass(frozen=True)
class PausedText:
    """Everything that the rest of a text depends on."""

    state: TextState
    draws: Tensor
    """State of the random generator, uint8."""
    tokens: Tensor
    """The last tokens of the text, `(token,)`, int64."""
    num_shown: int
    """Number of `tokens` that have been shown; the others end inside a character."""

    def write(self, path: Path, weights: str) -> None:
        """Write the state and the digest of the model's weights to a file, atomically."""
        tensors = {n: t.detach().cpu().contiguous().clone() for n, t in _named(self, "text")}
        metadata = {VERSION_KEY: SCHEMA_VERSION, WEIGHTS_KEY: weights}
        with replacing(path) as temporary:
            save_file(tensors, temporary, metadata=metadata)


def read_paused(path: Path, model: EigenstateLM, weights: str) -> PausedText:
    """Read a state that was written with the model; its tensors are put on the model's device.

    Args:
        path: The file.
        model: The model.
        weights: Digest of the model's weights.

    Raises:
        DataError: The file is not a state of a text, or is damaged.
        CheckpointError: The state belongs to another model.
    """
    try:
        with safe_open(path, framework="pt") as file:
            said = file.metadata() or {}
        tensors = load_file(path)
    except (OSError, SafetensorError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{path}: not a readable state ({described(error)}); expected a file written by "
            "--state, or the name of a new file"
        ) from None
    if said.get(VERSION_KEY) != SCHEMA_VERSION:
        raise DataError(
            f"{path}: a safetensors file, but not the state of a text (version "
            f"{quoted(said.get(VERSION_KEY))}, this version of Clew reads {SCHEMA_VERSION}); give "
            "another file"
        )
    if said.get(WEIGHTS_KEY) != weights:
        raise CheckpointError(
            f"{path}: the state of a model with weights {quoted(said.get(WEIGHTS_KEY))}, but this "
            f"model has {weights}; use the model that wrote the state, or give another file"
        )
    device = model.embedding.weight.device
    pattern = PausedText(
        read_text(model, torch.zeros(1, 1, dtype=torch.long, device=device)),
        draws=torch.Generator().get_state(),
        tokens=tensors.get("text.tokens", torch.zeros(0, dtype=torch.long)),
        num_shown=0,
    )
    expected = {name: (tuple(t.shape), t.dtype) for name, t in _named(pattern, "text")}
    if expected != {name: (tuple(t.shape), t.dtype) for name, t in tensors.items()}:
        raise DataError(f"{path}: damaged; its tensors do not have the form of this model's state")
    paused = _filled(pattern, tensors, "text")
    if not _is_usable(paused, num_tokens=len(model.embedding.weight)):
        raise DataError(f"{path}: damaged; it contains values that are not valid for this model")
    return paused


def _is_usable(paused: PausedText, num_tokens: int) -> bool:
    try:
        torch.Generator().set_state(paused.draws)
    except RuntimeError:
        return False
    tokens = paused.tokens
    return (
        bool(((tokens >= 0) & (tokens < num_tokens)).all())
        and 0 <= paused.num_shown <= len(tokens)
        and all(bool(torch.isfinite(tensor).all()) for _, tensor in _named(paused.state, "state"))
    )


def _named(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, int):
        yield name, torch.tensor(value)
    elif isinstance(value, tuple):
        for place, part in enumerate(value):
            yield from _named(part, f"{name}.{place}")
    elif is_dataclass(value):
        for field in fields(value):
            yield from _named(getattr(value, field.name), f"{name}.{field.name}")


def _filled(value: S, tensors: dict[str, Tensor], name: str) -> S:
    found: Any = value
    if isinstance(value, Tensor):
        found = tensors[name].to(value.device)
    elif isinstance(value, int):
        found = int(tensors[name])
    elif isinstance(value, tuple):
        found = tuple(_filled(part, tensors, f"{name}.{i}") for i, part in enumerate(value))
    elif is_dataclass(value) and not isinstance(value, type):
        parts = {
            field.name: _filled(getattr(value, field.name), tensors, f"{name}.{field.name}")
            for field in fields(value)
        }
        found = replace(value, **parts)
    return found  # type: ignore[no-any-return]
