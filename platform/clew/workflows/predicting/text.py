"""Predict, for language models: a prompt in, the text that follows out, as it is written."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from clew import names
from clew.config.data import TokenData
from clew.config.eigenstate import EigenstateLMModel
from clew.errors import CheckpointError, ConfigError, DataError, TrackingError
from clew.files import working_folder
from clew.language_modeling.generation import Sampling
from clew.language_modeling.model_folder import TOKENS_FILE, TextModel, load_text_model
from clew.language_modeling.packed_tokens import PackManifest, read_manifest
from clew.language_modeling.state_file import read_paused
from clew.language_modeling.tokenizers import (
    BPE,
    BYTES,
    TOKENIZER_FILE,
    Tokenizer,
    load_tokenizer,
)
from clew.language_modeling.tokens import load_tokens
from clew.language_modeling.writer import TextWriter
from clew.training.checkpoints import weights_digest
from clew.workflows.model_source import (
    ModelSource,
    check_fingerprint,
    device_of,
    open_model,
    recorded_file,
    require_task,
)
from clew.workflows.outputs import check_file

STANDARD_INPUT = "-"
"""Stands for it where a file is named."""


@dataclass(frozen=True)
class TextRequest:
    """What a person asks a language model for."""

    prompt: str = ""
    """Text to continue; may be empty where a state is continued."""
    max_tokens: int = 200
    """Tokens to write."""
    sampling: Sampling = field(default_factory=Sampling)
    """How they are drawn."""
    seed: int | None = None
    """Of the draws; None: 0, or what an earlier call's draws have come to."""
    state: Path | None = None
    """File that keeps where the text has come to; continued if it is there."""


def predict_text(
    model: str,
    request: TextRequest,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[str]:
    """Yield the text that follows a prompt in pieces, and keep the state if that is asked for.

    The same request gives the same text. With a state, two calls give the text of one long call;
    without one, what ends within a character ends with the replacement character.

    Args:
        model: A run id, `models:/name@alias`, or a checkpoint folder.
        request: What to continue, and how.
        progress: Called with the number of tokens of the prompt that are read, and in total.

    Raises:
        UsageError: the model is none of language, the prompt is empty or not in its vocabulary, or
            the state is another model's.
    """
    check_file("--state", request.state)
    continued = request.state is not None and request.state.exists()
    if not request.prompt and not continued:
        missing = f", and {request.state} does not exist" if request.state else ""
        raise ConfigError(
            f"no prompt given{missing}; expected text to continue, as --prompt or --prompt-file"
        )
    with open_model(model) as source:
        require_task(source, names.TASK_LANGUAGE_MODELING, "only language models continue a prompt")
        text_model, start, weights = open_text_model(source), None, ""
        if request.state is not None:
            weights = weights_digest(source.checkpoint)
            if continued:
                start = read_paused(request.state, text_model.model, weights)
        writer = TextWriter(text_model, start, seed=request.seed)
        if request.prompt:
            writer.read(request.prompt, progress)
        yield from writer.write(request.max_tokens, request.sampling)
        if request.state is None:
            yield writer.rest()
        else:
            writer.paused().write(request.state, weights)


def open_text_model(source: ModelSource) -> TextModel:
    """Load a language model with its tokenizer, on the device that is there.

    The run's record of its tokens is enough. Where an older run has none of its tokenizer, the
    text that it was trained on is opened.

    Raises:
        UsageError: neither is there, or they are not the model's.
    """
    config = source.config
    with working_folder("tokens") as work:
        try:
            text, tokenizer = _recorded_tokens(source, work)
        except (CheckpointError, TrackingError):
            assert isinstance(config.data, TokenData)
            assert isinstance(config.model, EigenstateLMModel)
            tokens = load_tokens(config.data, window=config.model.max_seq_len)
            text, tokenizer = tokens.packed.manifest, tokens.tokenizer
            check_fingerprint(source, text.fingerprint)
    found = load_text_model(source.checkpoint, text, tokenizer)
    found.model.to(device_of(config))
    return found


def _recorded_tokens(source: ModelSource, work: Path) -> tuple[PackManifest, Tokenizer]:
    """Return what a run recorded of its tokens."""
    text = read_manifest(recorded_file(source, TOKENS_FILE, work).parent, TOKENS_FILE)
    if text.tokenizer == BYTES:
        return text, load_tokenizer(BYTES)
    return text, load_tokenizer(BPE, recorded_file(source, TOKENIZER_FILE, work).parent)


def read_prompt(name: str, standard_input: BinaryIO) -> str:
    """Return the text of a file, or of standard input if the name is `-`.

    Raises:
        DataError: it cannot be read or is not UTF-8; the message names the byte.
    """
    try:
        content = standard_input.read() if name == STANDARD_INPUT else Path(name).read_bytes()
        return content.decode("utf-8")
    except OSError as error:
        raise DataError(f"{name}: cannot be read as a prompt ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: byte {error.start} is 0x{error.object[error.start]:02x}, which is no UTF-8; "
            "expected UTF-8 text"
        ) from None
