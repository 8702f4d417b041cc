"""Predicts what windows are for: the text after a prompt, and values of new image sequences."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pydantic
import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError

from clew.config.data import TokenData
from clew.config.image_sequences import ImageSequenceData
from clew.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    TrackingError,
    UsageError,
    counted,
    described,
)
from clew.files import working_folder
from clew.image_sequences.errors import CONFIDENCE, HeldOutErrors, Intervals, conformal_half_width
from clew.image_sequences.files import handed_in_frames
from clew.image_sequences.model import SequenceRegressor
from clew.image_sequences.prediction import (
    HELD_OUT_FILE,
    SEQUENCES_FILE,
    SequencesRecord,
    load_sequence_model,
    predict_windows,
    windows_to_predict,
    write_predictions,
)
from clew.image_sequences.task import SequenceRegression
from clew.image_sequences.windows import present_values
from clew.input_files import read_lines
from clew.language_modeling.model import Sampling
from clew.language_modeling.packed_tokens import read_manifest
from clew.language_modeling.task import LanguageModeling
from clew.language_modeling.tokenizers import BPE, BYTES, TOKENIZER_FILE, load_tokenizer
from clew.language_modeling.writer import (
    TOKENS_FILE,
    TextModel,
    TextWriter,
    load_text_model,
    read_paused,
)
from clew.training.checkpoints import weights_digest
from clew.workflows.model_source import (
    ModelSource,
    device_of,
    open_model,
    own_task,
    recorded,
    require_data,
)
from clew.workflows.outputs import check_file, check_table


@dataclass(frozen=True)
class TextRequest:
    """A request for text from a language model."""

    prompt: str = ""
    """Text to continue; can be empty if a state is continued."""
    max_tokens: int = 200
    """Number of tokens to generate."""
    sampling: Sampling = field(default_factory=Sampling)
    """How the tokens are drawn."""
    seed: int | None = None
    """Seed of the draws; None: 0, or the random state that `state` contains."""
    state: Path | None = None
    """File that keeps the state after the text; if it exists, the text continues from there."""


def predict_text(
    model: str,
    request: TextRequest,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[str]:
    """Yield the text that follows a prompt in pieces; write the state if the request names a file.

    The same request gives the same text. With a state file, two calls give the same text as one
    long call. Without one, an incomplete character at the end becomes the replacement character.
    """
    check_file("--state", request.state)
    continued = request.state is not None and request.state.exists()
    if not request.prompt and not continued:
        missing = f", and {request.state} does not exist" if request.state else ""
        raise ConfigError(
            f"no prompt given{missing}; expected text to continue, as --prompt or --prompt-file"
        )
    with open_model(model) as source:
        require_data(source, TokenData, "only language models continue a prompt")
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
    """Load a language model with its tokenizer, on a GPU if there is one.

    The tokenizer is read from the run's record of its tokens. Without such a record, beside a
    copied checkpoint for example, it is read from the training text.
    """
    with working_folder("tokens") as work:
        try:
            folder = recorded(source, TOKENS_FILE, work).parent
            text, kind = read_manifest(folder, TOKENS_FILE), BYTES
            if text.tokenizer != BYTES:
                kind, folder = BPE, recorded(source, TOKENIZER_FILE, work).parent
            tokenizer = load_tokenizer(kind, folder)
        except (CheckpointError, TrackingError):
            task = own_task(source)
            assert isinstance(task, LanguageModeling)
            text, tokenizer = task.splits.packed.manifest, task.splits.tokenizer
    found = load_text_model(source.checkpoint, text, tokenizer)
    found.model.to(device_of(source.config))
    return found


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Text:
    """A continuation of a prompt to explain; if it is empty, the model generates one."""

    prompt: str
    continuation: str = ""


_TEXTS = TypeAdapter(Text)


def read_texts(path: Path) -> list[Text]:
    """Read a file with one JSON object per line, with `prompt` and optionally `continuation`."""
    texts = []
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            try:
                texts.append(_TEXTS.validate_json(line))
            except ValidationError as error:
                raise DataError(
                    f"{path}, line {number}: {described(error)}; expected "
                    '{"prompt": TEXT, "continuation": TEXT}, the latter is optional'
                ) from None
    if not texts:
        raise DataError(f"{path}: holds no prompt; expected a JSON object with `prompt` per line")
    return texts


def read_prompt(name: str, standard_input: BinaryIO) -> str:
    """Return the text of a file, or of standard input if the name is `-`.

    Raises:
        DataError: The file cannot be read, or is not UTF-8; the message names the first bad byte.
    """
    try:
        content = standard_input.read() if name == "-" else Path(name).read_bytes()
        return content.decode("utf-8").removeprefix("\N{BYTE ORDER MARK}")
    except OSError as error:
        raise DataError(f"{name}: cannot be read as a prompt ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: byte {error.start} is 0x{error.object[error.start]:02x}, which is not valid "
            "UTF-8; expected UTF-8 text"
        ) from None


@dataclass(frozen=True)
class FramesResult:
    """The file of predictions, and their intervals."""

    model: str
    output: str
    num_windows: int
    target_name: str
    unit: str
    intervals: Intervals | None
    """None if no errors on held-out windows are available."""
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def table(self) -> str:
        """Return the output file and the coverage of the intervals, one per line."""
        shown = [f"model: {self.model}"]
        shown += [f"note: {note}" for note in self.notes]
        shown.append(f"{self.output}: {self.target_name} of {counted(self.num_windows, 'window')}")
        if self.intervals is not None:
            shown.append(self.intervals.describe(self.unit))
        return "\n".join(shown)


def predict_frames(
    model: str,
    frames: Path,
    output: Path,
    *,
    confidence: float = CONFIDENCE,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> FramesResult:
    """Predict every complete window of new frames and write the values atomically.

    Half widths come from the errors on the validation windows. They can be too small, because these
    windows also chose the checkpoint; the coverage of the test windows is therefore measured.
    A child process reads the frames (`clew.untrusted`).
    """
    check_table("--output", output, (".parquet",))
    if not frames.exists():
        raise ConfigError(
            f"--frames {frames}: no such file or folder; expected HDF5, a Zarr store or a folder "
            "with images.npy"
        )
    with open_model(model) as source:
        only = "only models of image sequences predict frames"
        config, data = source.config, require_data(source, ImageSequenceData, only)
        device, at_once = device_of(config), config.evaluation.batch_size
        with working_folder("sequences") as work:
            record = SequencesRecord.read(recorded(source, SEQUENCES_FILE, work))
        regressor, _ = load_sequence_model(source.checkpoint, record)
        regressor.to(device)
        errors, notes = _held_out_errors(source, regressor, device, confidence)
        intervals = None if errors is None else errors.intervals(confidence)
        with handed_in_frames(frames, data.channels) as table:
            windows = windows_to_predict(table, record, data)
            if regressor.config.predicts == "change":
                present_values(windows)
            prediction = predict_windows(
                regressor, windows, batch_size=at_once, device=device, progress=progress
            )
        said = {"target": record.target_name, "unit": record.unit, "model": source.title}
        if intervals:
            said |= {key: str(value) for key, value in asdict(intervals).items()}
        metadata = {f"clew.{key}": value for key, value in said.items()}
        width = None if intervals is None else intervals.half_width
        write_predictions(output, windows, prediction, width, metadata)
        target = record.target_name, record.unit
        return FramesResult(source.title, str(output), len(windows), *target, intervals, notes)


def _held_out_errors(
    source: ModelSource, model: SequenceRegressor, device: torch.device, confidence: float
) -> tuple[HeldOutErrors | None, tuple[str, ...]]:
    """Return a model's errors on held-out windows, from its file or measured on its data.

    The second value contains a note if there are no errors.
    """
    kept = source.checkpoint / HELD_OUT_FILE
    if kept.is_file():
        return HeldOutErrors.read(kept), ()
    try:
        task = own_task(source)
    except UsageError as error:
        return None, (f"no intervals, because the training data cannot be read: {error}",)
    assert isinstance(task, SequenceRegression)
    errors = task.held_out_errors(model, device)
    if errors is None:
        return None, ("no intervals, because no group was held out for validation in training",)
    if confidence == CONFIDENCE and math.isinf(conformal_half_width(errors.valid)):  # not asked for
        return None, (f"no intervals, because there are {len(errors.valid)} validation windows",)
    return errors, ()
