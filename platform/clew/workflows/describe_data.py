"""Says what is in a data set, after checking it."""

import dataclasses

import numpy as np

from clew.config.data import TripleData
from clew.config.image_sequences import ImageSequenceData
from clew.config.load import load
from clew.errors import ConfigError
from clew.image_sequences.splits import SequenceSplits, group_names, load_sequences
from clew.link_prediction.sources import load_graph
from clew.link_prediction.summary import describe


def describe_data(config: str | None, name: str | None) -> str:
    """Return the counts of a configuration's data section, or of a named data set, one per line.

    Raises:
        ConfigError: none or both of them given, or the configuration's data are text.
        DataError: the data cannot be read.
    """
    if (config is None) == (name is None):
        raise ConfigError("give either --config or --name, to say which data set is meant")
    settings = load(config).data if config is not None else TripleData(name=name)
    if isinstance(settings, ImageSequenceData):
        summary = describe_sequences(load_sequences(settings))
    elif isinstance(settings, TripleData):
        summary = dataclasses.asdict(describe(load_graph(settings)))
    else:
        raise ConfigError(
            f"{config}: data.kind is {settings.kind!r}; clew data describes triples and "
            "image_sequences"
        )
    return "\n".join(f"{key:22} {_shown(value)}" for key, value in summary.items())


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
