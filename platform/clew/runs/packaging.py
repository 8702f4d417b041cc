"""Writes the folder that MLflow serves: a pyfunc "model from code" with its files and its package.

No object is pickled: MLflow copies the code file and runs it again when the model is loaded. The
package is copied too, so that a version gives the same answers after the project changes. The
requests and answers of each subject are described with MLflow's signatures.
"""

import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import clew
from clew.errors import TrackingError, described
from clew.subject import Form, Forms, Subject

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
    with _pyfunc() as pyfunc:
        pyfunc.save_model(
            folder,
            python_model=str(code),
            artifacts={"model": str(source)},
            code_paths=[str(package)],
            signature=_signature(subject),
            input_example=_frame([example]),
            pip_requirements=[
                f"{name}=={_public_version(name)}" for name in (*PACKAGES, *subject.packages)
            ],
        )
    return folder


def ask_servable(folder: Path, queries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Load a saved model as a server does, and return its answers to the queries.

    Raises:
        TrackingError: MLflow cannot load the model, or the model cannot answer.
    """
    before = list(sys.path)
    with _pyfunc() as pyfunc:
        try:
            model = pyfunc.load_model(str(folder))
            return list(model.predict(_frame(queries)))
        except Exception as error:
            raise TrackingError(f"MLflow cannot serve {folder.name}: {described(error)}") from error
        finally:
            sys.path[:] = before  # MLflow inserted the model's own copy of the package


def _copy_package(target: Path) -> Path:
    """Copy the package's Python files and the terms that they read, but not its data sets."""
    source = Path(clew.__file__).parent
    for path in [source / "biolink.json", *sorted(source.rglob("*.py"))]:
        copy = target / source.name / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    return target / source.name


def _frame(queries: Sequence[Mapping[str, Any]]) -> Any:
    import pandas as pd

    return pd.DataFrame([dict(query) for query in queries])


def _public_version(package: str) -> str:
    """Return an installed version without its local build label, such as `+cpu`."""
    return version(package).partition("+")[0]


@contextmanager
def _pyfunc() -> Iterator[ModuleType]:
    """Provide MLflow's pyfunc without warnings, which only concern MLflow's own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import pyfunc

        yield pyfunc


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

    numbers = {
        int: DataType.long,
        float: DataType.double,
        bool: DataType.boolean,
        str: DataType.string,
    }
    params = [
        ParamSpec(name, numbers[field.annotation], field.default)
        for name, field in subject.settings.model_fields.items()
    ]
    # An answer has its parts, or an error.
    answer = {f"{name.removesuffix('?')}?": form for name, form in subject.outputs.items()}
    answer["error?"] = "string"
    inputs, outputs = (Schema(parts(ColSpec, form)) for form in (subject.inputs, answer))
    return ModelSignature(inputs, outputs, ParamSchema(params))
