"""Writes the folder that MLflow serves: a pyfunc "model from code" with its files and its package.

No object is pickled: MLflow copies the code file and runs it again when the model is loaded. The
package is copied too, so that a version gives the same answers after the project changes. The
requests and answers of each task are described with MLflow's signatures.
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
from clew import names
from clew.errors import TrackingError, described

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
MORE = {names.TASK_LANGUAGE_MODELING: ("tokenizers",)}
"""Additional requirements of a task."""


def save_servable(
    folder: Path,
    *,
    task: str,
    code: Path,
    model_folder: Path,
    work: Path,
    example: Mapping[str, Any],
) -> Path:
    """Save a model folder in the format that `mlflow models serve` can serve.

    Args:
        folder: The folder to write; it must not exist.
        task: Task of the model; it determines the form of requests and answers.
        code: The Python file that MLflow runs to get the model.
        model_folder: The folder that the code finds as `model` among its artifacts.
        work: An empty folder for copies.
        example: A query that the model can answer, stored as MLflow's input example.
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
            signature=_signature(task),
            input_example=_frame([example]),
            pip_requirements=[
                f"{name}=={_public_version(name)}" for name in (*PACKAGES, *MORE.get(task, ()))
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
    """Copy the package's Python files, but not its data sets."""
    source = Path(clew.__file__).parent
    for path in sorted(source.rglob("*.py")):
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


def _signature(task: str) -> Any:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array, Object, Property

    text, whole, real, truth = DataType.string, DataType.long, DataType.double, DataType.boolean

    def optional(kind: Any, name: str) -> ColSpec:
        return ColSpec(kind, name, required=False)

    if task == names.TASK_LINK_PREDICTION:  # a query with its answers
        answer = Object(
            [
                Property("rank", whole),
                Property("head", text, required=False),
                Property("tail", text, required=False),
                Property("label", text),
                Property("score", real),
                Property("probability", real, required=False),
                Property("known", truth, required=False),
            ]
        )
        inputs = [optional(text, "head"), ColSpec(text, "relation"), optional(text, "tail")]
        said = [optional(whole, "num_known"), optional(text, "warning")]
        outputs = [*inputs, *said, ColSpec(Array(answer), "answers")]
        params = [ParamSpec("top_k", whole, 10), ParamSpec("filter_known", truth, False)]
    elif task == names.TASK_LANGUAGE_MODELING:  # a prompt; the text that follows
        inputs, outputs = [ColSpec(text, "prompt")], [ColSpec(text, "text")]
        params = [ParamSpec("max_tokens", whole, 200), ParamSpec("temperature", real, 1.0)]
        params += [ParamSpec("top_p", real, 1.0), ParamSpec("seed", whole, 0)]
    else:  # a window of frames; a value with an interval
        row = Array(real)
        inputs = [ColSpec(Array(Array(Array(row))), "images")]
        inputs += [optional(Array(row), "scalars"), optional(real, "present")]
        outputs = [ColSpec(real, "prediction"), optional(real, "lower"), optional(real, "upper")]
        params = [ParamSpec("confidence", real, 0.9)]
    return ModelSignature(Schema([*inputs]), Schema([*outputs]), ParamSchema(params))
