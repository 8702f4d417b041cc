"""Builds the task whose memory is planned, from the data or only from their sizes.

A prediction needs the shapes of the tensors. For text they follow from window and vocabulary size,
for a graph from the numbers of entities and relations, for images from the shape of a frame.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from clew.config.data import TokenData
from clew.config.eigenstate import EigenstateLMModel
from clew.config.image_sequences import ImageSequenceData
from clew.config.schema import TASK_KINDS, RunConfig
from clew.errors import ConfigError, UsageError
from clew.files import expanded
from clew.image_sequences.files import FrameTable
from clew.image_sequences.splits import SequenceSplits
from clew.image_sequences.task import SequenceRegression
from clew.image_sequences.windows import ScalarEncoding, SequenceWindows
from clew.language_modeling.packed_tokens import (
    PackedTokens,
    PackManifest,
    is_packed,
    read_manifest,
)
from clew.language_modeling.task import LanguageModeling
from clew.language_modeling.tokenizers import BPE, BYTES, ByteTokenizer, load_tokenizer
from clew.language_modeling.tokens import SPLITS, TokenSplits, TokenWindows
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import KnowledgeGraph, no_triples
from clew.link_prediction.vocabulary import Vocabulary
from clew.training.task import Task
from clew.workflows.subjects import build_task

NAME = "sizes alone"


@dataclass(frozen=True)
class DataSizes:
    """Sizes to plan with instead of data."""

    num_entities: int | None = None
    num_relations: int | None = None
    """Number of relations, without inverse relations."""
    vocabulary_size: int | None = None
    frame_shape: tuple[int, int, int] | None = None
    """Channels, height and width."""


def task_to_plan(config: RunConfig, sizes: DataSizes) -> tuple[Task[Any], int | None]:
    """Return a task with the shapes of a configuration, and its number of examples if known.

    Text is never read; the vocabulary size is that of the packed corpus or of the tokenizer.

    Raises:
        ConfigError: Some sizes are missing, or they belong to another kind of data.
        DataError: The data cannot be read, and no sizes are given.
    """
    data, needed = config.data, set(TASK_KINDS[config.data.kind].sizes)
    given = {name for name, value in vars(sizes).items() if value is not None}
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


def of_own_rows(task: LinkPrediction, config: RunConfig, processes: int) -> LinkPrediction:
    rows = -(-task.graph.num_entities // processes)
    return LinkPrediction(_graph(rows, task.graph.num_relations), config)


def _options(names: set[str]) -> str:
    return " and ".join(f"--{name.replace('_', '-')}" for name in sorted(names))


def _vocabulary_size(data: TokenData) -> int:
    folder = expanded(data.packed or "")
    is_told = data.tokenizer or data.name or data.dataset
    if data.packed and (is_packed(folder) or not is_told):
        return read_manifest(folder).vocabulary_size
    if data.tokenizer == BPE:
        return data.vocabulary_size
    return load_tokenizer(data.tokenizer or BYTES).vocabulary_size


def _tokens(vocabulary_size: int, window: int) -> TokenSplits:
    tokens = np.zeros(window + 1, dtype=np.uint16)
    manifest = PackManifest(
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
    packed = PackedTokens(Path(NAME), manifest, tokens)
    windows = TokenWindows(packed, start=0, end=len(tokens), length=window)
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


def _frames(data: ImageSequenceData, shape: tuple[int, int, int]) -> SequenceSplits:
    names = data.scalars or (*data.azimuth_scalars, *data.zenith_scalars)
    zeros, groups = np.zeros(data.temporal_frames), np.full(data.temporal_frames, "0")
    table = FrameTable(
        NAME,
        _BlankFrames((data.temporal_frames, *shape)),
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
