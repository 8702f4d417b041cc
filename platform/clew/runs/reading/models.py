"""Reads the model registry: models, versions, aliases, and where each version came from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from mlflow.entities.model_registry import ModelVersion

from clew import names
from clew.errors import DataError, TrackingError, described
from clew.runs import store
from clew.runs.reading.runs import RunRecord, client, download_artifact
from clew.runs.reading.search import find_runs, quoted

VOCABULARY_FOLDER = "vocabulary"
MAX_VERSIONS = 200


@dataclass(frozen=True)
class Version:
    """One version of a registered model."""

    model: str
    version: int
    run_id: str
    created_ms: int
    status: str
    aliases: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    run: RunRecord | None = None
    """The training run that it came from; None when that is gone."""


@dataclass(frozen=True)
class RegisteredModel:
    """A registered model with its aliases."""

    name: str
    description: str
    aliases: Mapping[str, int]
    created_ms: int

    @property
    def champion(self) -> int | None:
        """Version that answers questions."""
        return self.aliases.get(names.ALIAS_CHAMPION)


@dataclass(frozen=True)
class Vocabulary:
    """Names that a model knows: (name, label) pairs, sorted by label."""

    entities: tuple[tuple[str, str], ...]
    relations: tuple[tuple[str, str], ...]


def list_models(*, uri: str | None = None) -> list[RegisteredModel]:
    """Return the registered models, by name."""
    with store.using("the list of registered models", uri):
        found = client(uri).search_registered_models(max_results=200)
        return [
            RegisteredModel(
                name=model.name,
                description=model.description or "",
                aliases={alias: int(version) for alias, version in model.aliases.items()},
                created_ms=int(model.creation_timestamp or 0),
            )
            for model in sorted(found, key=lambda model: model.name)
        ]


def list_versions(model: RegisteredModel, *, uri: str | None = None) -> list[Version]:
    """Return the versions of a model with the runs they came from, the latest first."""
    with store.using(f"the versions of model {model.name}", uri):
        found = client(uri).search_model_versions(
            f"name = {quoted(model.name)}",
            max_results=MAX_VERSIONS,
            order_by=["version_number DESC"],
        )
    versions = [_version(version, model) for version in found]
    wanted = {version.run_id for version in versions if version.run_id}
    runs = {run.run_id: run for run in find_runs(sorted(wanted), uri=uri)}
    return [
        Version(**{**vars(version), "run": runs.get(version.run_id)})
        for version in sorted(versions, key=lambda version: -version.version)
    ]


def _version(found: ModelVersion, model: RegisteredModel) -> Version:
    number = int(found.version)
    return Version(
        model=model.name,
        version=number,
        run_id=found.run_id or "",
        created_ms=int(found.creation_timestamp or 0),
        status=str(found.status or ""),
        aliases=tuple(sorted(a for a, version in model.aliases.items() if version == number)),
        tags=dict(found.tags or {}),
    )


def read_vocabulary(run_id: str, folder: Path, *, uri: str | None = None) -> Vocabulary:
    """Return the names that the model of a training run knows, fetched into `folder`.

    Raises:
        TrackingError: the run is gone, or keeps no names.
        DataError: the files are not what they should be.
    """
    path = download_artifact(run_id, VOCABULARY_FOLDER, folder, uri)
    return Vocabulary(_terms(path / "entities.parquet"), _terms(path / "relations.parquet"))


def _terms(path: Path) -> tuple[tuple[str, str], ...]:
    try:
        columns = pq.read_table(path, columns=["name", "label"]).to_pydict()
    except FileNotFoundError:
        raise TrackingError(f"{path.name} is missing from the run's {VOCABULARY_FOLDER}") from None
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({described(error)})") from None
    pairs = ((str(n), str(label or n)) for n, label in zip(*columns.values(), strict=True))
    return tuple(sorted(pairs, key=lambda pair: pair[1].casefold()))


def complete(
    terms: tuple[tuple[str, str], ...], text: str, limit: int = 50
) -> list[tuple[str, str]]:
    """Return the terms whose label or name holds `text`; those that begin with it come first."""
    wanted = text.strip().casefold()
    if not wanted:
        return list(terms[:limit])
    holding = [
        pair for pair in terms if wanted in pair[1].casefold() or wanted in pair[0].casefold()
    ]
    holding.sort(key=lambda pair: not pair[1].casefold().startswith(wanted))
    return holding[:limit]
