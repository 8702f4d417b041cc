"""Checks and describes data, packs triples or a text, or makes a data set from KGX files."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int

from clew.biolink import DENIED, PREFIX
from clew.config.data import DataConfig, TripleData
from clew.config.files import presets
from clew.config.image_sequences import ImageSequenceData
from clew.config.load import from_mapping, load
from clew.errors import ConfigError, UsageError, quoted
from clew.files import as_typed, expanded, replacing
from clew.image_sequences.windows import SequenceSplits, group_names, load_sequences
from clew.language_modeling.packed_tokens import PackManifest
from clew.language_modeling.pretokenize import PackSettings, pretokenize
from clew.language_modeling.tokens import find_text
from clew.link_prediction.kgx import (
    LIST_SEPARATOR,
    QUALIFIER_ENDS,
    QUALIFIERS,
    KgxGraph,
    Negated,
    read_kgx,
)
from clew.link_prediction.packed import pack_graph
from clew.link_prediction.sources import describe, files_of_folder, find_files, load_graph
from clew.link_prediction.triple_files import read_graph
from clew.link_prediction.triples import SPLITS
from clew.workflows.outputs import check_folder, check_new_folder

MEANINGS = ("knowledge_level", "agent_type", "logical_interpretation", "clinical_approval_status")
"""Columns of KGX, apart from qualifiers, that change what an edge says."""
CodedEdges = Int[np.ndarray, "triple 3"]


def data_settings(
    config: str, name: str, files: Mapping[str, str], overrides: Mapping[str, object]
) -> DataConfig:
    """Return the settings of the data set that the only non-empty argument names.

    Args:
        config: A configuration that names the data set, or else the data set's name.
        name: Name of the data set.
        files: Files of triples by split.
        overrides: Settings that replace those of the configuration.

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
        summary = dataclasses.asdict(describe(load_graph(settings)))
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


@dataclass(frozen=True)
class KgxRequest:
    """A folder of KGX files to convert, and how to split its triples."""

    folder: Path
    output_dir: Path
    qualifiers: bool = False
    negated: Negated = "drop"
    valid_fraction: float = 0.05
    test_fraction: float = 0.05
    seed: int = 0


def convert_kgx(request: KgxRequest) -> str:
    """Write a data set into a new folder; return its counts, one per line.

    Raises:
        ConfigError: The shares leave no training triples, or the folder is not empty.
        DataError: The files are not valid KGX.
    """
    if request.valid_fraction + request.test_fraction >= 1:
        raise ConfigError(
            f"valid_fraction {request.valid_fraction} + test_fraction {request.test_fraction} "
            "leave nothing to train on; their sum must be below 1"
        )
    check_new_folder("--output-dir", request.output_dir)
    graph = read_kgx(request.folder, qualifiers=request.qualifiers, negated=request.negated)
    with replacing(request.output_dir) as folder:
        folder.mkdir(parents=True)
        for split, rows in split_triples(graph, request).items():
            if len(rows):
                _write_triples(folder / f"{split}.txt", graph, rows)
        _write_names(folder, graph)
    files = files_of_folder(request.output_dir)
    summary = describe(read_graph(request.output_dir.name, files))
    return _lines(_what_became_of_edges(graph, request) | dataclasses.asdict(summary))


def _what_became_of_edges(graph: KgxGraph, request: KgxRequest) -> dict[str, object]:
    """Return the number of edges, and what of them is not in the data set or not used."""
    told: dict[str, object] = {"edges": graph.num_edges}
    if graph.num_denied:
        became = {
            "drop": "dropped; --negated relation gives them relations of their own",
            "relation": "in relations of their own",
        }
        told["denied"] = f"{graph.num_denied:,} edges (negated), {became[request.negated]}"
    if graph.num_deprecated:
        told["deprecated"] = f"{graph.num_deprecated:,} edges, dropped"
    others = []
    for column, values in sorted(graph.ignored.items()):
        if column == QUALIFIERS or column.endswith(QUALIFIER_ENDS):
            end = "; --qualifiers makes it part of the relation"
        elif column in MEANINGS:
            end = ""
        else:
            others.append(f"{column} ({values.total():,})")
            continue
        listed = ", ".join(
            f"{count:,} {quoted(value)[1:-1]}" for value, count in values.most_common(5)
        )
        more = ", …" if len(values) > 5 else ""
        told[column] = f"not used, on {values.total():,} edges: {listed}{more}{end}"
    if others:
        told["other columns"] = f"not used (edges with a value): {', '.join(others)}"
    return told


def split_triples(graph: KgxGraph, request: KgxRequest) -> dict[str, CodedEdges]:
    """Return the triples of each split, chosen at random.

    Every entity and relation stays in at least one training triple. Triples between the same two
    entities, in either direction, stay in one split, so that no test triple is a reversed training
    triple.
    """
    triples = graph.triples
    ends = np.sort(triples[:, [0, 2]], axis=1)
    _, pair, sizes = np.unique(ends, axis=0, return_inverse=True, return_counts=True)
    groups = np.split(np.argsort(pair.reshape(-1), kind="stable"), np.cumsum(sizes)[:-1])
    left = _Left(
        np.bincount(triples[:, [0, 2]].ravel(), minlength=len(graph.entities)),
        np.bincount(triples[:, 1], minlength=len(graph.relations)),
    )
    order = iter(np.random.default_rng(request.seed).permutation(len(groups)))
    found, held_out = {}, np.zeros(len(triples), bool)
    fractions = {"valid": request.valid_fraction, "test": request.test_fraction}
    for split, fraction in fractions.items():
        rows: list[int] = []
        while (
            len(rows) < round(fraction * len(triples)) and (group := next(order, None)) is not None
        ):
            if left.take(triples[groups[group]]):
                rows += groups[group].tolist()
        held_out[rows] = True
        found[split] = triples[sorted(rows)]
    return {"train": triples[~held_out]} | found


@dataclass(frozen=True)
class _Left:
    """How often each entity and each relation occurs in the remaining training triples."""

    entities: Int[np.ndarray, " entity"]
    relations: Int[np.ndarray, " relation"]

    def take(self, rows: CodedEdges) -> bool:
        """Remove triples, unless an entity or a relation would then have none left."""
        taken = [
            (self.entities, *np.unique(rows[:, [0, 2]], return_counts=True)),
            (self.relations, *np.unique(rows[:, 1], return_counts=True)),
        ]
        if any((counts[ids] <= numbers).any() for counts, ids, numbers in taken):
            return False
        for counts, ids, numbers in taken:
            counts[ids] -= numbers
        return True


def _write_triples(path: Path, graph: KgxGraph, rows: CodedEdges) -> None:
    entities, relations = graph.entities, graph.relations
    with path.open("w", encoding="utf-8") as file:
        for head, relation, tail in rows.tolist():
            file.write(f"{entities[head]}\t{relations[relation]}\t{entities[tail]}\n")


def _write_names(folder: Path, graph: KgxGraph) -> None:
    with (folder / "entity_names.tsv").open("w", encoding="utf-8") as file:
        for entity in graph.entities:
            name, kind = graph.names.get(entity) or entity, graph.kinds.get(entity, "")
            synonyms = LIST_SEPARATOR.join(graph.synonyms.get(entity, ()))
            file.write(f"{entity}\t{name}\t{kind}\t{synonyms}\n")
    labels = {relation: relation_label(relation) for relation in graph.relations}
    text = json.dumps(labels, indent=1, ensure_ascii=False) + "\n"
    (folder / "edge_map.json").write_text(text, encoding="utf-8")


def relation_label(relation: str) -> str:
    """Return a readable predicate, such as `affects (object aspect qualifier: activity)`."""
    predicate, *qualifiers = relation.split(";")
    words = predicate.removeprefix(PREFIX).replace("_", " ")
    qualifiers = ["denied" if part == DENIED else part for part in qualifiers]
    parts = [part.replace(PREFIX, "").replace("_", " ").replace("=", ": ") for part in qualifiers]
    return f"{words} ({', '.join(parts)})" if parts else words


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
        train = f"train on it: clew train --config small_32k data.packed={as_typed(self.output)}"
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
