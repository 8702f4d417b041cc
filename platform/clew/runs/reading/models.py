"""Reads the model registry: models, versions, aliases, and the source run of each version."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
from mlflow.entities.model_registry import ModelVersion

from clew import names
from clew.errors import DataError, TrackingError
from clew.files import working_folder
from clew.input_files import columns_of, read_columns
from clew.runs import store
from clew.runs.base import RegisteredVersion
from clew.runs.reading.runs import RunRecord, client, fetched
from clew.runs.reading.search import find_runs, quoted
from clew.runs.registry import Registry

VOCABULARY_FOLDER = "vocabulary"
MODEL_FOLDER = "artifacts/model"
"""Folder with the checkpoint, names and known triples of a registered version."""
KNOWN_FILE = "known.parquet"
NAMES = "a file of a model's names"
"""Description of the expected file, for error messages."""
NUM_EXAMPLES = 3

End = Literal["head", "tail"]
Terms = tuple[tuple[str, str], ...]
"""Pairs of name and label."""


@dataclass(frozen=True)
class Version:
    """One version of a registered model."""

    model: str
    version: int
    run_id: str
    created_ms: int
    aliases: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    run: RunRecord | None = None
    """The source run of the version; None if it was not requested or no longer exists."""


@dataclass(frozen=True)
class RegisteredModel:
    """A registered model with its aliases."""

    name: str
    aliases: Mapping[str, int]

    @property
    def champion(self) -> int | None:
        """Number of the version that answers questions; None if there is none."""
        return self.aliases.get(names.ALIAS_CHAMPION)


class Entry(NamedTuple):
    """One way to find an entity: by name and label, or by a synonym."""

    name: str
    label: str
    kind: str = ""
    synonym: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.synonym,) if self.synonym else (self.name, self.label)


@dataclass(frozen=True)
class ModelNames:
    """Names that a model knows, as (name, label) pairs sorted by label."""

    entities: Terms
    relations: Terms
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Kind of each entity by its name, if the data contain kinds."""
    synonyms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Synonyms of each entity by its name, if the data contain synonyms."""

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """All entries that a search can find: names with labels, and synonyms, sorted by kind."""
        own = [Entry(*term, kind=self.kinds.get(term[0], "")) for term in self.entities]
        said = self.synonyms
        others = [e._replace(synonym=text) for e in own for text in said.get(e.name, ())]
        return tuple(sorted([*own, *others], key=lambda entry: (not entry.kind, entry.kind)))


MAX_MODELS, MAX_VERSIONS = 1_000, 10_000
"""How many are listed; MLflow refuses to list more than 1,000 models at once."""


def list_models() -> list[RegisteredModel]:
    with store.using("the list of registered models"):
        found = client().search_registered_models(max_results=MAX_MODELS)
        return [
            RegisteredModel(model.name, {alias: int(v) for alias, v in model.aliases.items()})
            for model in sorted(found, key=lambda model: model.name)
        ]


def list_versions(model: RegisteredModel) -> list[Version]:
    """Return the versions of a model with their source runs, the latest version first."""
    with store.using(f"the versions of model {model.name}"):
        wanted, order = f"name = {quoted(model.name)}", ["version_number DESC"]
        found = client().search_model_versions(wanted, max_results=MAX_VERSIONS, order_by=order)
    made_by = [version.run_id for version in found if version.run_id]
    runs = {run.run_id: run for run in find_runs(made_by)}
    return [version_of(version, model.aliases, runs.get(version.run_id or "")) for version in found]


def version_of(
    found: ModelVersion, aliases: Mapping[str, int], run: RunRecord | None = None
) -> Version:
    """Convert an MLflow version to a `Version`, with the aliases that point to it."""
    number, created_ms = int(found.version), int(found.creation_timestamp or 0)
    own = tuple(sorted(alias for alias, version in aliases.items() if int(version) == number))
    tags = dict(found.tags or {})
    return Version(found.name, number, found.run_id or "", created_ms, own, tags, run)


def read_vocabulary(run_id: str) -> ModelNames:
    with fetched(run_id, VOCABULARY_FOLDER) as path:
        return _names_in(path)


def read_version_vocabulary(model: RegisteredModel, version: int) -> ModelNames:
    """Return the names that a registered version knows, even if its training run was deleted."""
    with _of_version(model, version, VOCABULARY_FOLDER) as path:
        return _names_in(path)


def _names_in(path: Path) -> ModelNames:
    entities, relations = path / "entities.parquet", path / "relations.parquet"
    terms = _terms(entities), _terms(relations)
    synonyms = {name: tuple(text.split("|")) for name, text in _said(entities, "synonyms").items()}
    return ModelNames(*terms, _said(entities, "category"), synonyms)


def _terms(path: Path) -> Terms:
    if not path.is_file():
        raise TrackingError(f"{path.name} is missing from the model's {VOCABULARY_FOLDER}")
    columns = read_columns(path, dict.fromkeys(("name", "label"), pa.string()), NAMES).to_pydict()
    pairs = ((str(n), str(label or n)) for n, label in zip(*columns.values(), strict=True))
    return tuple(sorted(pairs, key=lambda pair: pair[1].casefold()))


def _said(path: Path, column: str) -> dict[str, str]:
    """Return the values of a column by entity name; empty if the data have no such column."""
    if column not in columns_of(path, NAMES):
        return {}
    columns = read_columns(path, dict.fromkeys(("name", column), pa.string()), NAMES).to_pydict()
    return {name: text for name, text in zip(*columns.values(), strict=True) if text}


@dataclass(frozen=True)
class Learned:
    """What a version was trained on: examples, and the kinds of the ends of each relation."""

    examples: tuple[tuple[str, str, str], ...]
    """Questions with a training triple of each of the most frequent relations: the first asks for
    tails, the second for heads, the third about a whole triple. What is asked for is empty."""
    uses: Mapping[str, Mapping[End, Mapping[str, int]]]
    """By relation and end, how often it has an entity of each kind; empty: the kind is unknown."""
    tails_only: bool = False
    """Whether the version is known to answer no questions for heads."""

    def number(self, relation: str, **kinds: str) -> int:
        """Return how often a relation has ends of the given kinds; without kinds, its facts."""
        use = self.uses.get(relation, {})
        found = [counts.get(kinds[end], 0) for end, counts in use.items() if kinds.get(end)]
        return min(found) if found else sum(use.get("head", {}).values())

    def usual(self, relation: str, end: End) -> set[str]:
        """Return the kinds of at least 2 % of a relation's heads, or tails."""
        counts = self.uses.get(relation, {}).get(end, {})
        return {kind for kind, count in counts.items() if count >= 0.02 * sum(counts.values())}


def read_learned(model: RegisteredModel, version: int) -> Learned:
    """Return what a version keeps of its training triples."""
    ids = dict.fromkeys(("head", "relation", "tail"), pa.int32())
    with _of_version(model, version, KNOWN_FILE) as known:
        triples = read_columns(known, ids, "a file of known triples").to_pandas()
    with _of_version(model, version, VOCABULARY_FOLDER) as folder:
        files = [folder / f"{kind}.parquet" for kind in ("entities", "relations")]
        tables = [read_columns(file, {"name": pa.string()}, NAMES) for file in files]
        kind_of = _said(files[0], "category")
    entities, relations = (table["name"].to_numpy().astype(str) for table in tables)
    kinds = pd.Categorical([kind_of.get(name, "") for name in entities])
    # A middle row of each of the most frequent relations; the triples are sorted by relation.
    _, starts, counts = np.unique(triples["relation"], return_index=True, return_counts=True)
    most = np.argsort(-counts, kind="stable")[:NUM_EXAMPLES]
    rows = triples.iloc[starts[most] + counts[most] // 2]
    uses: dict[str, dict[End, dict[str, int]]] = {name: {} for name in relations}
    try:
        for end in get_args(End):
            counted = triples.groupby(["relation", kinds.codes[triples[end]]]).size()
            for (relation, code), count in counted.items():
                found = uses[relations[relation]].setdefault(end, {})
                found[str(kinds.categories[code])] = int(count)
        names_of = (entities[rows["head"]], relations[rows["relation"]], entities[rows["tail"]])
        facts = enumerate(zip(*(found.tolist() for found in names_of), strict=True))
        asked = [("" if i == 1 else h, r, "" if i == 0 else t) for i, (h, r, t) in facts]
        return Learned(tuple(asked), uses)
    except IndexError:
        problem = f"the triples of {model.name} version {version} do not match its names"
        raise DataError(f"{problem}; promote it again") from None


@contextmanager
def _of_version(model: RegisteredModel, version: int, path: str) -> Iterator[Path]:
    wanted = RegisteredVersion(model.name, str(version), "", {})
    with working_folder("artifact", holds=wanted.uri) as folder:
        yield Registry().download(wanted, folder, f"{MODEL_FOLDER}/{path}")


def complete(entries: Sequence[Entry], text: str, limit: int = 50) -> list[Entry]:
    """Return the entries whose name, label or synonym contains `text`, one per entity.

    Exact matches come first, then entries whose label or synonym starts with `text`. Among equal
    matches, a label comes before a synonym.
    """
    wanted = text.strip().casefold()
    folded = [(entry, [each.casefold() for each in entry.texts]) for entry in entries]
    holding = [found for found in folded if any(wanted in each for each in found[1])]

    def order(found: tuple[Entry, list[str]]) -> tuple[bool, bool, bool]:
        entry, texts = found
        return wanted not in texts, not texts[-1].startswith(wanted), bool(entry.synonym)

    first: dict[str, Entry] = {}
    for entry, _ in sorted(holding, key=order):
        first.setdefault(entry.name, entry)
    return list(first.values())[:limit]
