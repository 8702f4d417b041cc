"""Checks and describes data, packs triples or a text, or makes a data set of published files."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from clew import names
from clew.config.data import DataConfig, ImportSettings, TripleData
from clew.config.files import presets
from clew.config.image_sequences import ImageSequenceData
from clew.config.load import from_mapping, load
from clew.errors import ConfigError, UsageError
from clew.files import as_typed, expanded
from clew.image_sequences.windows import SequenceSplits, group_names, load_sequences
from clew.language_modeling.packed_tokens import PackManifest
from clew.language_modeling.pretokenize import PackSettings, pretokenize
from clew.language_modeling.tokens import find_text
from clew.link_prediction.imports import import_graph, write_data_set
from clew.link_prediction.packed import pack_graph
from clew.link_prediction.plausibility import report as report_on
from clew.link_prediction.sources import describe, find_files, load_graph
from clew.link_prediction.triples import SPLITS
from clew.workflows.outputs import check_folder, check_new_folder


def data_settings(
    config: str, name: str, files: Mapping[str, str], overrides: Mapping[str, object]
) -> DataConfig:
    """Return the settings of the data set that the only non-empty argument names.

    Raises:
        ConfigError: None or several arguments are given, or the configuration or name is unknown.
    """
    if bool(config) + bool(name) + bool(files) != 1:
        raise ConfigError(
            "give one of --config, --name and --train, to say which data set is meant"
        )
    is_preset = config in presets() or Path(config).suffix or Path(config).is_file()
    if config and is_preset:
        return load(config, overrides).data
    given = dict(files) or {"name": name or config}
    return from_mapping({"data": given}, overrides, source="clew data").data


def describe_data(settings: DataConfig) -> str:
    """Return the counts of a data set, one per line.

    Raises:
        ConfigError: The data set is text.
        DataError: The data cannot be read.
    """
    if isinstance(settings, ImageSequenceData):
        summary = describe_sequences(load_sequences(settings))
    elif isinstance(settings, TripleData):
        graph = load_graph(settings)
        findings = [f"look at: {finding}" for finding in report_on(graph).findings]
        return "\n".join([_lines(dataclasses.asdict(describe(graph))), *findings])
    else:
        raise ConfigError(
            f"data.kind is {settings.kind!r}; clew data describes triples and image_sequences"
        )
    return _lines(summary)


def _lines(summary: Mapping[str, object]) -> str:
    return "\n".join(f"{key:22} {_shown(value)}" for key, value in summary.items())


def pack_data(settings: DataConfig, path: Path) -> str:
    """Pack triples into a new file; return its counts and the command that trains on it.

    Raises:
        ConfigError: The data are not triples, or the file exists already.
        DataError: The data cannot be read.
    """
    if not isinstance(settings, TripleData):
        raise ConfigError(
            f"data.kind is {settings.kind!r}; clew data --pack packs triples (text is packed by "
            "clew pretokenize)"
        )
    if settings.exclude:
        raise ConfigError(
            f"data.exclude is {settings.exclude}, but all triples are packed; give it when you "
            "train on the packed file"
        )
    graph = pack_graph(*find_files(settings), path)
    counts = {split: len(graph.split(split)) for split in SPLITS}
    summary = {
        "name": graph.name,
        "fingerprint": graph.fingerprint,
        "entities": graph.num_entities,
        "relations": graph.num_relations,
        **{f"triples of {split}": count for split, count in counts.items()},
    }
    return f"{_lines(summary)}\ntrain on it: clew train data.packed={as_typed(path)}"


def describe_sequences(splits: SequenceSplits) -> dict[str, object]:
    """Return the sizes, the groups, the windows of each split and the range of the targets."""
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


def import_data(paths: Sequence[Path], settings: ImportSettings, output_dir: Path | None) -> str:
    """Read files in published formats; write a data set into a new folder if one is given.

    Returns:
        What each file was taken for, what became of its rows, and the counts, one per line.

    Raises:
        ConfigError: The shares leave no training triples, or the folder is not empty.
        DataError: The files cannot be read.
    """
    check_new_folder("--output-dir", output_dir)
    place = output_dir or paths[0]
    found = import_graph(place.name.split(".")[0], paths, settings)
    lines = [f"{path}: {said}" for path, said in found.read.items()]
    became: dict[str, object] = {key: number for key, number in found.counts.items() if number}
    lines.append(_lines(became | found.notes))
    summary = dataclasses.asdict(describe(found.graph))
    report = report_on(found.graph, found)
    lines += [_lines(summary), *(f"look at: {finding}" for finding in report.findings)]
    if output_dir is not None:
        write_data_set(found, output_dir)
        report.write(output_dir / names.ARTIFACT_DATA_REPORT, read=found.read, data=summary)
        use = " data.weights=use" * (found.graph.weights is not None)
        lines.append(f"train on it: clew train data.path={as_typed(output_dir)}{use}")
    return "\n".join(lines)


MANY_TOKENS = 50_000_000
"""Tokens of a text for the smallest model of windows of 32,768 tokens."""


@dataclass(frozen=True)
class PretokenizeResult:
    """A packed corpus, and its folder."""

    output: Path
    manifest: PackManifest

    def table(self) -> str:
        """Return the counts of the packed corpus, one per line."""
        manifest = self.manifest
        windows = max(0, manifest.num_tokens - 1) // manifest.chunk_size
        facts = {
            "documents": f"{manifest.num_documents:,}",
            "bytes of text": f"{manifest.num_bytes:,}",
            "tokens": f"{manifest.num_tokens:,}",
            "bytes per token": f"{manifest.num_bytes / manifest.num_tokens:.2f}",
            f"windows of {manifest.chunk_size:,}": f"{windows:,}",
            "vocabulary": f"{manifest.vocabulary_size:,} ({manifest.tokenizer})",
            "fingerprint": manifest.fingerprint,
        }
        lines = [f"  {name:24} {value}" for name, value in facts.items()]
        # 123 million parameters are for large texts.
        small = "nano data.name=null data.tokenizer=null"
        preset = "small_32k" if manifest.num_tokens >= MANY_TOKENS else small
        train = f"train on it: clew train {preset} data.packed={as_typed(self.output)}"
        return "\n".join([f"packed into {self.output}", *lines, train])


def pretokenize_corpus(
    settings: PackSettings, output: Path, *, num_proc: int = 1, force: bool = False
) -> PretokenizeResult:
    """Pack a corpus, or continue where a killed process stopped.

    The corpus is a path, a named data set, or a data set on Hugging Face.

    Raises:
        UsageError: A number is not positive, or the corpus cannot be read.
    """
    for name, value in (
        ("chunk_size", settings.chunk_size),
        ("num_proc", num_proc),
        ("max_chunks", settings.max_chunks),
    ):
        if value is not None and value < 1:
            raise UsageError(f"{name} is {value}; expected 1 or more")
    check_folder("--output", output)
    return PretokenizeResult(
        output, pretokenize(_resolved(settings), output, num_proc=num_proc, force=force)
    )


def _resolved(settings: PackSettings) -> PackSettings:
    """Replace the name of a data set by its path, unless a file or folder has this name."""
    path = expanded(settings.dataset)
    if path.exists() or path.suffix or "/" in settings.dataset:
        return settings
    try:
        return replace(settings, dataset=str(find_text(settings.dataset)))
    except UsageError:
        return settings
