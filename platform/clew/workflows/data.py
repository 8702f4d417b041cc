"""Checks and describes data, packs triples or a text, or makes a data set of published files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from clew import names
from clew.config.data import DataConfig, ImportSettings, PackSettings, TripleData
from clew.config.files import presets
from clew.config.image_sequences import ImageSequenceData
from clew.config.load import from_mapping, load
from clew.errors import ConfigError, UsageError, counted
from clew.files import as_typed, expanded
from clew.image_sequences.files import FINGERPRINT_FRAMES
from clew.image_sequences.windows import SequenceSplits, group_names, load_sequences
from clew.language_modeling.pretokenize import pretokenize
from clew.language_modeling.tokens import find_text
from clew.link_prediction.imports import import_graph, write_data_set
from clew.link_prediction.plausibility import report as report_on
from clew.link_prediction.sources import (
    describe,
    find_files,
    is_read_plainly,
    load_graph,
    pack_graph,
)
from clew.link_prediction.triples import SPLITS
from clew.workflows.outputs import check_folder, check_new_folder


def data_settings(
    config: str, name: str, files: Mapping[str, str], overrides: Mapping[str, object]
) -> DataConfig:
    """Return the settings of the data set that one argument, or overrides alone, name."""
    named = bool(config) + bool(name) + bool(files)
    if named > 1 or not (named or overrides):
        raise ConfigError(
            "give one of --config, --name and --train, or a file, to say which data set is meant"
        )
    is_preset = config in presets() or Path(config).suffix or Path(config).is_file()
    if config and is_preset:
        return load(config, overrides).data
    given = dict(files) or ({"name": name or config} if named else {})
    return from_mapping({"data": given}, overrides, source="clew data").data


def describe_data(settings: DataConfig) -> str:
    """Return the counts of a data set, one per line."""
    if isinstance(settings, ImageSequenceData):
        return describe_sequences(load_sequences(settings), settings)
    if isinstance(settings, TripleData):
        graph = load_graph(settings)
        findings = [f"look at: {finding}" for finding in report_on(graph).findings]
        return "\n".join([_lines(describe(graph)), *findings])
    raise ConfigError(
        f"data.kind is {settings.kind!r}; clew data describes triples and image_sequences"
    )


def _lines(summary: Mapping[str, object]) -> str:
    return "\n".join(f"{key:22} {_shown(value)}" for key, value in summary.items())


def pack_data(settings: DataConfig, path: Path) -> str:
    """Pack triples into a new file; return its counts and the command that trains on it."""
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
    name, files = find_files(settings)
    if not is_read_plainly(settings, files):
        raise ConfigError(
            f"{files.train}: --pack takes files of head<TAB>relation<TAB>tail as they are; make a "
            "data set first: clew data FILE --output-dir FOLDER"
        )
    graph = pack_graph(name, files, path)
    summary = {
        "name": graph.name,
        "fingerprint": graph.fingerprint,
        "entities": graph.num_entities,
        "relations": graph.num_relations,
        **{f"triples of {split}": len(graph.split(split)) for split in SPLITS},
    }
    return f"{_lines(summary)}\ntrain on it: clew train data.packed={as_typed(path)}"


def describe_sequences(splits: SequenceSplits, settings: ImageSequenceData) -> str:
    """Return what is predicted from what, the groups of each split, and what to look at."""
    table, windows = splits.table, splits.windows
    known, groups = np.isfinite(table.target), counted(len(group_names(table.group)), "group")
    count, channels, height, width = table.images.shape
    chosen = np.unique(np.linspace(0, count - 1, FINGERPRINT_FRAMES).astype(int))
    broken = int((~np.isfinite(table.images.read(chosen))).any(axis=(1, 2, 3)).sum())
    missing, seen = counted(int((~known).sum()), "frame"), counted(len(chosen), "frame")
    summary: dict[str, object] = {
        "source": table.source,
        "fingerprint": splits.fingerprint,
        "frames": f"{count:,} of {channels} x {height} x {width} in {groups}",
        "scalars": ", ".join(table.scalar_names) or "none",
        "target": f"{table.target_name} in {table.unit or 'an unknown unit'}, "
        f"{table.target[known].min():.4g} to {table.target[known].max():.4g}",
        "target ahead": f"{table.target_ahead:g} {'frames' if table.time is None else 'of time'} "
        "after a window's last frame",
        "missing": f"{missing} without target; broken pixels in {broken} of {seen}",
    }
    for split, part in windows.items():
        own = group_names(part.groups)
        shown = ", ".join(own[:8]) + (f" and {len(own) - 8} more" if len(own) > 8 else "")
        size = f"{counted(len(part), 'window')} of {settings.temporal_frames} frames"
        summary[split] = f"{size}: {'groups' if len(own) > 1 else 'group'} {shown}"
    findings = []
    if not settings.hold_out_validation:
        findings.append(
            f"group {windows['test'].groups[0]} validates and tests, so valid/ metrics may choose "
            "nothing and predictions get no intervals; data.hold_out_validation=true gives "
            "validation a group of its own"
        )
    if settings.windows_cross_groups:
        findings.append(
            "windows begin in the group before, so splits share frames; "
            "data.windows_cross_groups=false keeps them apart"
        )
    if settings.embargo is not None and settings.embargo < table.target_ahead:
        findings.append(
            f"targets are {table.target_ahead:g} ahead, but data.embargo={settings.embargo:g} "
            "keeps windows whose target lies in another split; leave data.embargo out"
        )
    return "\n".join([_lines(summary), *(f"look at: {finding}" for finding in findings)])


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def import_data(paths: Sequence[Path], settings: ImportSettings, output_dir: Path | None) -> str:
    """Read files in published formats; write a data set into a new folder if one is given.

    Return what each file was taken for, what became of its rows, and the counts, one per line.
    """
    check_new_folder("--output-dir", output_dir)
    place = output_dir or paths[0]
    found = import_graph(place.name.split(".")[0], paths, settings)
    lines = [f"{path}: {said}" for path, said in found.read.items()]
    became: dict[str, object] = {key: number for key, number in found.counts.items() if number}
    lines.append(_lines(became | found.notes))
    summary = describe(found.graph)
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


def pretokenize_corpus(
    settings: PackSettings, output: Path, *, num_proc: int = 1, force: bool = False
) -> str:
    """Pack a corpus, or continue where a killed process stopped; return its counts.

    The corpus is a path, a named data set, or a data set on Hugging Face.
    """
    check_folder("--output", output)
    manifest = pretokenize(_resolved(settings), output, num_proc=num_proc, force=force)
    windows = max(0, manifest.num_tokens - 1) // manifest.chunk_size
    facts = {
        "documents": manifest.num_documents,
        "bytes of text": manifest.num_bytes,
        "tokens": manifest.num_tokens,
        "bytes per token": manifest.num_bytes / manifest.num_tokens,
        f"windows of {manifest.chunk_size:,}": windows,
        "vocabulary": f"{manifest.vocabulary_size:,} ({manifest.tokenizer})",
        "fingerprint": manifest.fingerprint,
    }
    # 123 million parameters are for large texts.
    small = "nano data.name=null data.tokenizer=null"
    preset = "small_32k" if manifest.num_tokens >= MANY_TOKENS else small
    train = f"train on it: clew train {preset} data.packed={as_typed(output)}"
    return "\n".join([f"packed into {output}", _lines(facts), train])


def _resolved(settings: PackSettings) -> PackSettings:
    """Replace the name of a data set by its path, unless a file or folder has this name."""
    path = expanded(settings.dataset)
    if path.exists() or path.suffix or "/" in settings.dataset:
        return settings
    try:
        return settings.model_copy(update={"dataset": str(find_text(settings.dataset))})
    except UsageError:
        return settings
