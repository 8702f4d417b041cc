"""Registered models: versions with their tags, files and aliases, and the folder that is served.

MLflow serves a pyfunc "model from code" with its files and its package. No object is pickled:
MLflow copies the code file and runs it again when the model is loaded. The package is copied too,
so that a version gives the same answers after the project changes.
"""

import re
import shutil
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from mlflow import artifacts
from mlflow.entities import LoggedModelStatus
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from clew import names
from clew.errors import ConfigError, PromotionRefused, TrackingError, described
from clew.runs import store
from clew.runs.base import RegisteredVersion
from clew.runs.reading.runs import client
from clew.subject import Form, Forms, Subject

SERVABLE = "servable"
"""Name and type of MLflow's logged models that are registered as versions."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. \-]{0,199}")
_ALIAS = re.compile(r"[A-Za-z0-9_\-]{1,100}")
_VERSION_ALIAS = re.compile(r"v\d+", re.IGNORECASE)
PACKAGES = (
    "mlflow",
    "jaxtyping",
    "numpy",
    "pandas",
    "psutil",
    "pyarrow",
    "pydantic",
    "pyyaml",
    "safetensors",
    "scipy",
    "torch",
)
"""Requirements for answering queries, recorded with the versions of this environment."""


def check_name(name: str) -> None:
    """Check that a model name can be used in the registry and in `models:/` addresses."""
    if not _NAME.fullmatch(name) or name.strip() != name:
        raise ConfigError(
            f"model name {name!r} is not allowed; use up to 200 letters, digits, `_`, `-`, `.` and "
            "spaces, starting with a letter, digit or `_` (no `/`, no `:`)"
        )


def check_alias(alias: str, *, reserved: frozenset[str] = frozenset()) -> None:
    """Check that the registry accepts an alias and that it is not reserved for another use."""
    if not _ALIAS.fullmatch(alias) or alias.lower() == "latest" or _VERSION_ALIAS.fullmatch(alias):
        advice = "use letters, digits, `_` and `-`, not `latest` and not `v` with a number"
        raise ConfigError(f"alias {alias!r} is not allowed; {advice}")
    if alias in reserved:
        advice = "give the alias that the model competes for, for example champion"
        raise ConfigError(f"alias {alias!r} is set by the promotion itself; {advice}")


class Registry:
    """The registry of the tracking store in use."""

    def __init__(self) -> None:
        self.client = client()

    def aliases(self, name: str) -> dict[str, str]:
        """Return the aliases with their version numbers; empty if there is no such model."""
        with store.using(f"reading model {name!r}"):
            try:
                found = self.client.get_registered_model(name).aliases
            except MlflowException as error:
                if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                    return {}
                raise
        return {alias: str(number) for alias, number in dict(found).items()}

    def version(self, name: str, number: str) -> RegisteredVersion:
        with store.using(f"reading version {number} of model {name!r}"):
            try:
                return _version_of(self.client.get_model_version(name, number))
            except MlflowException as error:
                if error.error_code not in store.MISSING:
                    raise
        advice = f"list them with the dashboard, or register one with `clew promote --name {name}`"
        raise TrackingError(f"model {name!r} has no version {number} in {store.in_use()}; {advice}")

    def version_at(self, name: str, alias: str) -> RegisteredVersion:
        """Return the version that an alias points to."""
        aliases = self.aliases(name)
        if alias in aliases:
            return self.version(name, aliases[alias])
        with store.using("listing registered models"):
            models = self.client.search_registered_models(max_results=1000)
        known = [str(model.name) for model in models]
        if name not in known:
            there = f"registered: {', '.join(known) or 'none'}; register one with `clew promote`"
            raise TrackingError(f"no model {name!r} is registered in {store.in_use()}; {there}")
        raise TrackingError(
            f"model {name!r} has no alias {alias!r}; it has {', '.join(sorted(aliases)) or 'none'}"
        )

    def abandon(self, promote_run: str, reason: str) -> None:
        """Mark what a dead promotion left as failed: versions without an alias, cut off uploads."""
        mine = f"tags.`{names.TAG_PROMOTE_RUN}` = '{promote_run}'"
        with store.using(f"ending what promotion {promote_run} began"):
            places = [each.experiment_id for each in self.client.search_experiments()]
            for model in self.client.search_logged_models(places, mine):
                if model.status == LoggedModelStatus.PENDING:
                    self.client.finalize_logged_model(model.model_id, LoggedModelStatus.FAILED)
            found = [_version_of(v) for v in self.client.search_model_versions(mine)]
        for version in found:
            in_use = version.number in self.aliases(version.name).values()
            if version.tags.get(names.TAG_VALIDATION) != names.VALIDATION_FAILED and not in_use:
                verdict = {names.TAG_REFUSED_BECAUSE: reason}
                self.tag(version, verdict | {names.TAG_VALIDATION: names.VALIDATION_FAILED})

    def register(
        self, name: str, folder: Path, *, run_id: str, tags: Mapping[str, str]
    ) -> RegisteredVersion:
        """Upload a saved model and register it as a version after the upload is complete."""
        tags = dict(tags)
        with store.using(f"registering a version of model {name!r}"):
            experiment_id = self.client.get_run(run_id).info.experiment_id
            model = self.client.create_logged_model(
                experiment_id, name=SERVABLE, source_run_id=run_id, tags=tags, model_type=SERVABLE
            )
            try:
                self.client.log_model_artifacts(model.model_id, str(folder))
            except Exception:
                with suppress(MlflowException, SQLAlchemyError, OSError):
                    self.client.finalize_logged_model(model.model_id, LoggedModelStatus.FAILED)
                raise
            self.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
            try:
                self.client.create_registered_model(name)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            source, model_id = f"models:/{model.model_id}", model.model_id
            created = self.client.create_model_version(
                name, source, run_id=run_id, tags=tags, model_id=model_id
            )
            return _version_of(created)

    def tag(self, version: RegisteredVersion, tags: Mapping[str, str]) -> None:
        with store.using(f"tagging {version.uri}"):
            for key, value in tags.items():
                self.client.set_model_version_tag(version.name, version.number, key, value)

    def describe(self, version: RegisteredVersion, card: str) -> None:
        """Give a version its model card, unless a person has described it."""
        with store.using(f"describing {version.uri}"):
            if not self.client.get_model_version(version.name, version.number).description:
                self.client.update_model_version(version.name, version.number, card)

    def set_alias(self, name: str, alias: str, number: str) -> None:
        with store.using(f"moving alias {alias!r} of model {name!r}"):
            self.client.set_registered_model_alias(name, alias, number)

    def move_alias(self, name: str, alias: str, number: str, *, expected: str | None) -> None:
        """Point an alias to a version if it is where it is expected: set it, then read it back.

        The model gets the champion's card too, unless a person has described the model.
        """
        self.require_alias(name, alias, expected)
        self.set_alias(name, alias, number)
        self.require_alias(name, alias, number)
        if alias != names.ALIAS_CHAMPION:
            return
        with store.using(f"describing model {name!r}"):
            now = self.client.get_registered_model(name).description or ""
            versions = [each for each in (number, expected) if each is not None]
            cards = [self.client.get_model_version(name, v).description or "" for v in versions]
            if not now or now in cards:
                self.client.update_registered_model(name, cards[0])

    def require_alias(self, name: str, alias: str, expected: str | None) -> None:
        if (found := self.aliases(name).get(alias)) != expected:
            raise PromotionRefused(
                f"alias {alias!r} of model {name!r} is at version {found or 'none'}, expected "
                f"{expected or 'none'}: somebody else moved it meanwhile; run the command again to "
                "compete with the current version"
            )

    def download(self, version: RegisteredVersion, folder: Path, part: str = "") -> Path:
        """Copy the files of a version, or of the file or folder `part` in it, into `folder`.

        Returns:
            The path of the copy; nothing exists there if the version has no such part.
        """
        folder.mkdir(parents=True, exist_ok=True)
        uri = self.client.tracking_uri
        with store.using(f"downloading {version.uri}"):
            # MLflow would look up `models:/` addresses in its global store, not in this store.
            location = self.client.get_model_version_download_uri(version.name, version.number)
            if part:
                place, _, name = f"{location.rstrip('/')}/{part}".rpartition("/")
                beside = artifacts.list_artifacts(artifact_uri=place, tracking_uri=uri)
                if name not in {Path(item.path).name for item in beside}:
                    return folder / name
                location = f"{place}/{name}"
            copy = artifacts.download_artifacts(
                artifact_uri=location, dst_path=str(folder), tracking_uri=uri
            )
            return Path(copy)


def _version_of(found: ModelVersion) -> RegisteredVersion:
    name, number, run_id = str(found.name), str(found.version), str(found.run_id or "")
    return RegisteredVersion(name, number, run_id, dict(found.tags))


def save_servable(
    folder: Path,
    *,
    subject: Subject[Any, Any, Any],
    code: Path,
    model_folder: Path,
    work: Path,
    example: Mapping[str, Any],
) -> Path:
    """Save a model folder in the format that `mlflow models serve` can serve.

    MLflow runs the file `code`, which finds `model_folder` as `model` among its artifacts. `work`
    is an empty folder for copies.
    """
    source = work / "model"
    shutil.copytree(model_folder, source)
    package = _copy_package(work / "code")
    with warnings.catch_warnings(action="ignore"):  # they only concern MLflow's own code
        import pandas as pd
        from mlflow import pyfunc

        pyfunc.save_model(
            folder,
            python_model=str(code),
            artifacts={"model": str(source)},
            code_paths=[str(package)],
            signature=_signature(subject),
            input_example=pd.DataFrame([dict(example)]),
            pip_requirements=[
                # Without a local build label, such as `+cpu`.
                f"{name}=={metadata.version(name).partition('+')[0]}"
                for name in (*PACKAGES, *subject.packages)
            ],
        )
    return folder


def ask_servable(folder: Path, queries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Load a saved model as a server does, and return its answers to the queries."""
    before = list(sys.path)
    with warnings.catch_warnings(action="ignore"):
        import pandas as pd
        from mlflow import pyfunc

        try:
            model = pyfunc.load_model(str(folder))
            return list(model.predict(pd.DataFrame([dict(query) for query in queries])))
        except Exception as error:
            raise TrackingError(f"MLflow cannot serve {folder.name}: {described(error)}") from error
        finally:
            sys.path[:] = before  # MLflow inserted the model's own copy of the package


def _copy_package(target: Path) -> Path:
    """Copy the package's Python files and the terms that they read, but not its data sets."""
    source = Path(names.__file__).parent
    for path in [source / "biolink.json", *sorted(source.rglob("*.py"))]:
        copy = target / source.name / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    return target / source.name


def _signature(subject: Subject[Any, Any, Any]) -> Any:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array, Object, Property

    def parts(kind: Any, form: Forms) -> list[Any]:
        return [
            kind(type_of(each), name=name.removesuffix("?"), required=not name.endswith("?"))
            for name, each in form.items()
        ]

    def type_of(form: Form) -> Any:
        if isinstance(form, str):
            return DataType[form]
        if isinstance(form, Mapping):
            return Object(parts(lambda dtype, **said: Property(dtype=dtype, **said), form))
        return Array(type_of(form[0]))

    kinds = {int: "long", float: "double", bool: "boolean", str: "string"}
    params = [
        ParamSpec(name, DataType[kinds[field.annotation]], field.default)
        for name, field in subject.settings.model_fields.items()
    ]
    # An answer has its parts, or an error.
    answer = {f"{name.removesuffix('?')}?": form for name, form in subject.outputs.items()}
    forms = (subject.inputs, answer | {"error?": "string"})
    inputs, outputs = (Schema(parts(ColSpec, form)) for form in forms)
    return ModelSignature(inputs, outputs, ParamSchema(params))
