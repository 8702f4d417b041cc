"""Plans the memory of training, what other settings would save, and the largest batch."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from clew.config.data import TokenData
from clew.config.eigenstate import EigenstateLMModel
from clew.config.image_sequences import ImageSequenceData
from clew.config.load import with_settings
from clew.config.schema import TASK_KINDS, RunConfig
from clew.config.services import DataSizes
from clew.config.training import AUTO_BATCH_SIZE, DEFAULT_BATCH_SIZE
from clew.errors import ConfigError, OutOfMemoryError, UsageError
from clew.files import expanded
from clew.image_sequences.files import FrameTable
from clew.image_sequences.task import SequenceRegression
from clew.image_sequences.windows import ScalarEncoding, SequenceSplits, SequenceWindows
from clew.language_modeling import packed_tokens
from clew.language_modeling.task import LanguageModeling
from clew.language_modeling.tokenizers import BPE, BYTES, ByteTokenizer, load_tokenizer
from clew.language_modeling.tokens import SPLITS, TokenSplits, TokenWindows
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import KnowledgeGraph, no_triples
from clew.link_prediction.vocabulary import Vocabulary
from clew.training.hardware import Hardware, find_device, fit_to_hardware
from clew.training.memory_plan import PARTS, MemoryPlanner, StepMemory
from clew.training.task import Task
from clew.workflows.subjects import build_task

NAME = "sizes alone"

logger = logging.getLogger(__name__)


def task_to_plan(config: RunConfig, sizes: DataSizes) -> tuple[Task[Any], int | None]:
    """Return a task with the shapes of a configuration, and its number of examples if known.

    Text is never read; the vocabulary size is that of the packed corpus or of the tokenizer.
    """
    data, needed = config.data, set(TASK_KINDS[config.data.kind].sizes)
    given = {name for name in DataSizes.model_fields if getattr(sizes, name)}
    if given and given != needed:
        raise ConfigError(
            f"{_options(given)} given, and data.kind is {data.kind}; expected {_options(needed)}"
        )
    if sizes.num_entities and sizes.num_relations:
        return LinkPrediction(_graph(sizes.num_entities, sizes.num_relations), config), None
    if isinstance(data, ImageSequenceData) and sizes.frame_shape:
        return SequenceRegression(_frames(data, sizes.frame_shape), config), None
    try:
        if isinstance(data, TokenData):
            assert isinstance(config.model, EigenstateLMModel)
            size = sizes.vocabulary_size or _vocabulary_size(data)
            return LanguageModeling(_tokens(size, config.model.max_seq_len), config), None
        task = build_task(config)
    except UsageError as error:
        raise type(error)(f"{error}; to plan without data, give {_options(needed)}") from None
    return task, len(task.train_examples())


def _options(names: set[str]) -> str:
    return " and ".join(f"--{name.replace('_', '-')}" for name in sorted(names))


def _vocabulary_size(data: TokenData) -> int:
    folder = expanded(data.packed or "")
    if data.packed and packed_tokens.is_packed(folder):
        return packed_tokens.read_manifest(folder).vocabulary_size
    told = data.tokenizer or data.name or data.dataset
    if not told:
        logger.warning("no packed text in %s: planned for %d tokens", folder, data.vocabulary_size)
    if data.tokenizer == BPE or not told:
        return data.vocabulary_size
    return load_tokenizer(data.tokenizer or BYTES).vocabulary_size


def _tokens(vocabulary_size: int, window: int) -> TokenSplits:
    tokens = np.zeros(window + 1, dtype=np.uint16)
    manifest = packed_tokens.PackManifest(
        dataset=NAME,
        tokenizer=NAME,
        tokenizer_fingerprint=NAME,
        vocabulary_size=vocabulary_size,
        end_of_text=0,
        dtype=str(tokens.dtype),
        num_tokens=len(tokens),
        num_documents=1,
        num_bytes=len(tokens),
        chunk_size=window,
        fingerprint=NAME,
    )
    packed = packed_tokens.PackedTokens(Path(NAME), manifest, tokens)
    windows = TokenWindows(packed, start=0, end=len(tokens), length=window, stride=window)
    return TokenSplits(packed, ByteTokenizer(), dict.fromkeys(SPLITS, windows))


def _graph(num_entities: int, num_relations: int) -> KnowledgeGraph:
    """Return a graph with one triple, whose entities and relations have no names."""
    return KnowledgeGraph(
        NAME,
        Vocabulary("entity", pa.nulls(num_entities, pa.string())),
        Vocabulary("relation", pa.nulls(num_relations, pa.string())),
        train=np.zeros((1, 3), np.int32),
        valid=no_triples(),
        test=no_triples(),
    )


@dataclass(frozen=True)
class _BlankFrames:
    """Frames of zeros."""

    shape: tuple[int, int, int, int]

    def read(self, frames: np.ndarray) -> np.ndarray:
        """Return zeros `(frame, channel, height, width)`."""
        return np.zeros((len(frames), *self.shape[1:]), np.float32)


def _frames(data: ImageSequenceData, shape: str) -> SequenceSplits:
    channels, height, width = map(int, shape.split("x"))
    names = data.scalars or (*data.azimuth_scalars, *data.zenith_scalars)
    zeros, groups = np.zeros(data.temporal_frames), np.full(data.temporal_frames, "0")
    table = FrameTable(
        NAME,
        _BlankFrames((data.temporal_frames, channels, height, width)),
        target=zeros,
        group=groups,
        recording=groups,
        scalars=np.zeros((data.temporal_frames, len(names))),
        scalar_names=names,
        present=zeros,
    )
    encoding = ScalarEncoding.from_config(names, data, NAME)
    last = np.array([data.temporal_frames - 1])
    windows = SequenceWindows(table, encoding, last, data.temporal_frames)
    return SequenceSplits(table, encoding, dict.fromkeys(SPLITS, windows), NAME)


SEARCHED_TIMES = 32
"""The largest microbatch is searched up to this multiple of the configured one."""
SWITCHES = {"use_mixed_precision": "mixed precision", "use_gradient_checkpointing": "checkpointing"}
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Variant:
    """A configuration with some settings changed, and its predicted memory."""

    name: str
    settings: Settings
    """The changed settings, `section.key` to value."""
    memory: StepMemory


@dataclass(frozen=True)
class MemoryPlan:
    """Predicted memory of a configuration and its variants, and the limit of the device."""

    device: str
    batch_size: int
    gradient_accumulation: int
    limit_gib: float
    """Available memory of the device; on a CPU, for the whole process."""
    largest_batch_size: int
    """Largest microbatch that fits; 0 if none does."""
    searched_batch_size: int
    """Largest microbatch that was tried."""
    variants: list[Variant]
    """The unchanged configuration first, then the variants."""
    torch_compile: bool = False
    """Whether training compiles the model; the effect on memory is not predicted."""
    remarks: tuple[str, ...] = ()
    """What the device does not compute in hardware, and what training would switch off."""

    def table(self) -> str:
        """Return the predicted memory in GiB, one line per variant."""
        width = max(len(variant.name) for variant in self.variants)
        lines = [
            f"GiB on {self.device}, microbatches of {self.batch_size} x "
            f"{self.gradient_accumulation}",
            " " * width + "".join(f"{part:>12}" for part in [*PARTS, "total"]),
        ]
        for variant in self.variants:
            values = [*variant.memory.parts_gib.values(), variant.memory.total_gib]
            lines.append(variant.name.ljust(width) + "".join(f"{v:12.3f}" for v in values))
        verdict = "fits" if self.variants[0].memory.total_gib <= self.limit_gib else "does not fit"
        most = self.largest_batch_size == self.searched_batch_size
        lines.append(
            f"{verdict} into {self.limit_gib:.2f} GiB; the largest microbatch that fits: "
            f"{self.largest_batch_size or 'none'}{', the largest tried' if most else ''}"
        )
        if self.torch_compile:
            lines.append(
                "optimizations.torch_compile is on, but these numbers are without it: compiling "
                "changes the memory"
            )
        lines += self.remarks
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        variants = [
            {
                "name": variant.name,
                "settings": dict(variant.settings),
                "total_gib": variant.memory.total_gib,
                "parts_gib": variant.memory.parts_gib,
            }
            for variant in self.variants
        ]
        return vars(self) | {"variants": variants}


def plan(
    config: RunConfig,
    *,
    device: str | None = None,
    memory_gib: float | None = None,
    world_size: int = 1,
    sizes: DataSizes | None = None,
) -> MemoryPlan:
    """Plan the memory of a configuration without training it.

    `device` is `cpu`, `cuda`, or the name of a GPU, which this machine need not have; None: the
    configured device. `memory_gib` is the available memory; None: the free memory of the device, or
    all of its memory if this machine does not have it; on the CPU, the processes share it. The plan
    is for each of the `world_size` processes; `sizes` are used instead of the data.
    """
    target = find_device(device or config.training.device)
    sharing = world_size if target.device.type == "cpu" else 1
    limit = target.memory_gib / sharing if memory_gib is None else memory_gib
    sizes = sizes or DataSizes()
    task, num_examples = task_to_plan(config, sizes)
    if config.training.shard_entities and isinstance(task, LinkPrediction):
        # A process needs as much as a single process with only its rows, whose gradients are not
        # summed over the processes.
        rows = -(-task.graph.num_entities // world_size)
        task = LinkPrediction(_graph(rows, task.graph.num_relations), config)
    summed_over = 1 if config.training.shard_entities else world_size
    planner = MemoryPlanner(task, target.device, summed_over)
    hardware = Hardware.named(target.name, target.device)
    config, remarks = fit_to_hardware(config, hardware)
    if config.training.batch_size == AUTO_BATCH_SIZE:
        size = largest_divisor(planner, config, limit, num_examples=num_examples)
        config = with_settings(config, split(config, size))
    if num_examples is not None:
        config, lines = limited_to_data(config, num_examples, world_size)
        remarks += lines
    most = SEARCHED_TIMES * config.training.batch_size
    most = min(most, num_examples) if num_examples is not None else most
    variants = _variants(planner, config)
    for variant in (v for v in variants if True in v.settings.values()):  # what can be switched on
        remarks += fit_to_hardware(with_settings(config, variant.settings), hardware)[1]
    return MemoryPlan(
        device=target.name,
        batch_size=config.training.batch_size,
        gradient_accumulation=config.training.gradient_accumulation,
        limit_gib=limit,
        largest_batch_size=planner.largest_batch(config, limit, most=most),
        searched_batch_size=most,
        variants=variants,
        torch_compile=config.optimizations.torch_compile,
        remarks=tuple(dict.fromkeys(remarks)),
    )


def _variants(planner: MemoryPlanner, config: RunConfig) -> list[Variant]:
    changes: dict[str, Settings] = {"as configured": {}}
    for key, name in SWITCHES.items():
        on = getattr(config.optimizations, key)
        changes[f"{'without' if on else 'with'} {name}"] = {f"optimizations.{key}": not on}
    if config.training.batch_size % 2 == 0:
        changes["half the microbatch"] = split(config, config.training.batch_size // 2)
    found = []
    for name, settings in changes.items():
        with suppress(ConfigError):  # this model does not support the optimization
            memory = planner.predict(with_settings(config, settings))
            found.append(Variant(name, settings, memory))
    return found


def limited_to_data(
    config: RunConfig, num_examples: int, world_size: int
) -> tuple[RunConfig, list[str]]:
    """Return the configuration with a batch no larger than the data, and a line if it was larger.

    Training gives the same result with both; only a plan of the larger batch would be wrong.
    """
    share = max(-(-num_examples // world_size), config.smallest_batch_size)
    given = config.training.batch_size
    if given <= share:
        return config, []
    return with_settings(config, {"training.batch_size": share}), [
        f"training.batch_size is {given:,}: a batch has all {num_examples:,} examples"
    ]


def examples_in_step(config: RunConfig) -> int:
    """Return the number of examples in an optimizer step of each process."""
    training = config.training
    if training.batch_size == AUTO_BATCH_SIZE:
        return training.effective_batch_size or DEFAULT_BATCH_SIZE
    return training.batch_size * training.gradient_accumulation


def split(config: RunConfig, batch_size: int) -> dict[str, Any]:
    """Return settings for another microbatch size with the same number of examples per step."""
    settings: dict[str, Any] = {
        "training.batch_size": batch_size,
        "training.gradient_accumulation": -(-examples_in_step(config) // batch_size),
    }
    if config.training.batch_size == AUTO_BATCH_SIZE:
        settings["training.effective_batch_size"] = None
    return settings


def largest_divisor(
    planner: MemoryPlanner,
    config: RunConfig,
    limit_gib: float,
    *,
    most: int | None = None,
    num_examples: int | None = None,
) -> int:
    """Return the largest microbatch that fits and divides the number of examples in a step.

    Every step then uses the same examples as with one large batch. The gradients are also the same,
    because losses are sums that the trainer divides once, by the count of the whole step. The
    exception is batch normalisation, which uses one microbatch at a time. The configured batch size
    can be `auto`. If all `num_examples` fit at once, the step is one microbatch.

    Raises:
        ConfigError: Batch normalisation needs more examples than a step has.
        OutOfMemoryError: Not even the smallest microbatch up to `most` fits.
    """
    together, least = examples_in_step(config), config.smallest_batch_size
    if together < least:
        raise ConfigError(
            f"a step has {together} example, and batch normalisation needs {least} at once; "
            "raise training.effective_batch_size or training.batch_size"
        )
    # The second microbatch runs while the gradients of the first exist: this case needs the most.
    halves = with_settings(config, split(config, max(together // 2, least)))
    most = min(most or together, together, num_examples or together)
    fits = planner.largest_batch(halves, limit_gib, most=most)
    if num_examples is not None and fits >= num_examples:
        return together
    for size in range(fits, least - 1, -1):
        if together % size == 0:
            return size
    raise OutOfMemoryError(
        f"no microbatch of {least} or more examples that divides {together} fits into "
        f"{limit_gib:.2f} GiB; make the model smaller or free memory"
    )
