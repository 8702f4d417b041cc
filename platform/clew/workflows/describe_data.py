"""Says what is in a data set, after checking it."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from clew.config.data import DataConfig, TripleData
from clew.config.image_sequences import ImageSequenceData
from clew.config.load import from_mapping, load
from clew.errors import ConfigError
from clew.image_sequences.splits import SequenceSplits, group_names, load_sequences
from clew.link_prediction.packed import pack_graph
from clew.link_prediction.sources import files_of_folder, find_files, load_graph
from clew.link_prediction.summary import describe
from clew.link_prediction.triple_files import read_graph
from clew.link_prediction.triples import SPLITS


def data_settings(config: str, name: str, files: Mapping[str, str]) -> DataConfig:
    """Return the settings of the data set that is meant.

    Args:
        config: Configuration whose data set it is; empty: another one.
        name: Name of a data set; empty: another one.
        files: Files of triples by split; none: another one.

    Raises:
        ConfigError: not exactly one of them is given, or it is not known.
    """
    if bool(config) + bool(name) + bool(files) != 1:
        raise ConfigError(
            "give one of --config, --name and --train, to say which data set is meant"
        )
    if files:
        return from_mapping({"data": dict(files)}, source="clew data").data
    return load(config).data if config else TripleData(name=name)


def describe_data(settings: DataConfig) -> str:
    """Return the counts of a data set, one per line.

    Raises:
        ConfigError: it is text.
        DataError: the data cannot be read.
    """
    if isinstance(settings, ImageSequenceData):
        summary = describe_sequences(load_sequences(settings))
    elif isinstance(settings, TripleData):
        summary = dataclasses.asdict(describe(load_graph(settings)))
    else:
        raise ConfigError(
            f"data.kind is {settings.kind!r}; clew data describes triples and image_sequences"
        )
    return _lines(summary)


def describe_folder(folder: Path) -> str:
    """Return the counts of a data set's folder, one per line."""
    return _lines(dataclasses.asdict(describe(read_graph(folder.name, files_of_folder(folder)))))


def _lines(summary: Mapping[str, object]) -> str:
    return "\n".join(f"{key:22} {_shown(value)}" for key, value in summary.items())


def pack_data(settings: DataConfig, folder: Path) -> str:
    """Pack triples into a new folder; return what is in it, and how to train on it.

    Raises:
        ConfigError: the data are no triples, or the folder is there already.
        DataError: the data cannot be read.
    """
    if not isinstance(settings, TripleData):
        raise ConfigError(
            f"data.kind is {settings.kind!r}; clew data --pack packs triples (text is packed by "
            "clew pretokenize)"
        )
    if settings.exclude:
        raise ConfigError(
            f"data.exclude is {settings.exclude}, but all triples are packed; give it when you "
            "train on the packed folder"
        )
    graph = pack_graph(*find_files(settings), folder)
    counts = {split: len(graph.split(split)) for split in SPLITS}
    summary = {
        "name": graph.name,
        "fingerprint": graph.fingerprint,
        "entities": graph.num_entities,
        "relations": graph.num_relations,
        **{f"triples of {split}": count for split, count in counts.items()},
    }
    return f"{_lines(summary)}\ntrain on it: clew train data.packed={folder}"


def describe_sequences(splits: SequenceSplits) -> dict[str, object]:
    """Return sizes, groups, windows of each split, and the range of the targets."""
    table = splits.table
    known = table.target[np.isfinite(table.target)]
    frames, channels, height, width = table.images.shape
    windows = {f"windows to {split}": len(part) for split, part in splits.windows.items()}
    return {
        "source": table.source,
        "fingerprint": splits.fingerprint,
        "frames": frames,
        "size": f"{channels} x {height} x {width}",
        "groups": ", ".join(group_names(table)),
        "scalars": ", ".join(table.scalar_names),
        **windows,
        "smallest target": float(known.min()),
        "largest target": float(known.max()),
        "unit": table.unit,
    }


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
