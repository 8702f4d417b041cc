"""Makes the folder that MLflow serves: a pyfunc "model from code" with its files and its package.

No object is pickled: MLflow copies the code file and runs it again when the model is loaded. The
package goes with it, so that a version keeps answering as it did when the project moves on.
Requests and answers are described in MLflow's words, for each task.
"""

import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
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
"""What the package needs to answer queries; recorded in the versions of this environment."""
MORE = {names.TASK_LANGUAGE_MODELING: ("tokenizers",)}
"""What it needs beyond that, for a task."""


def save_servable(
    folder: Path,
    *,
    task: str,
    code: Path,
    model_folder: Path,
    work: Path,
    example: Mapping[str, Any],
) -> Path:
    """Save a model folder as something that `mlflow models serve` can serve.

    Args:
        folder: Where to; must not exist.
        task: Of the model; it decides what requests and answers look like.
        code: The Python file that MLflow runs to get the model.
        model_folder: What the code finds under the name `model` among its artifacts.
        work: An empty folder for copies.
        example: A query that the model can answer, kept as MLflow's input example.
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
            signature=SIGNATURES[task](),
            input_example=_frame([example]),
            pip_requirements=[
                f"{name}=={_public_version(name)}" for name in (*PACKAGES, *MORE.get(task, ()))
            ],
        )
    return folder


def ask_servable(folder: Path, queries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Load a saved model as a server does, and return what it answers.

    Raises:
        TrackingError: MLflow cannot load it, or it cannot answer.
    """
    before = list(sys.path)
    with _pyfunc() as pyfunc:
        try:
            model = pyfunc.load_model(str(folder))
            return list(model.predict(_frame(queries)))
        except Exception as error:
            raise TrackingError(f"MLflow cannot serve {folder.name}: {described(error)}") from error
        finally:
            sys.path[:] = before  # MLflow put the model's own copy of the package first


def _copy_package(target: Path) -> Path:
    """Copy the package's Python files; its data sets stay behind."""
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
    """Return an installed version without the build that only its own index has (`+cpu`)."""
    return version(package).partition("+")[0]


@contextmanager
def _pyfunc() -> Iterator[ModuleType]:
    """Give MLflow's pyfunc; what warns in here are its own type hints and its use of pandas."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import pyfunc

        yield pyfunc


def _queries() -> Any:
    """A row is a query with its answers."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array, Object, Property

    def optional(name: str, kind: DataType) -> Property:
        return Property(name, kind, required=False)

    answer = Object(
        [
            Property("rank", DataType.long),
            optional("head", DataType.string),
            optional("tail", DataType.string),
            Property("label", DataType.string),
            Property("score", DataType.double),
            optional("probability", DataType.double),
            optional("known", DataType.boolean),
        ]
    )
    ends = [ColSpec(DataType.string, name, required=False) for name in ("head", "tail")]
    relation = ColSpec(DataType.string, "relation")
    said = [
        ColSpec(DataType.long, "num_known", required=False),
        ColSpec(DataType.string, "warning", required=False),
    ]
    return ModelSignature(
        inputs=Schema([ends[0], relation, ends[1]]),
        outputs=Schema([ends[0], relation, ends[1], *said, ColSpec(Array(answer), "answers")]),
        params=ParamSchema(
            [
                ParamSpec("top_k", DataType.long, 10),
                ParamSpec("filter_known", DataType.boolean, False),
            ]
        ),
    )


def _prompts() -> Any:
    """A row is a prompt; its answer is the text that follows."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

    return ModelSignature(
        inputs=Schema([ColSpec(DataType.string, "prompt")]),
        outputs=Schema([ColSpec(DataType.string, "text")]),
        params=ParamSchema(
            [
                ParamSpec("max_tokens", DataType.long, 200),
                ParamSpec("temperature", DataType.double, 1.0),
                ParamSpec("top_p", DataType.double, 1.0),
                ParamSpec("seed", DataType.long, 0),
            ]
        ),
    )


def _windows() -> Any:
    """A row is a window of frames; its answer is a value with an interval."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array

    row = Array(DataType.double)
    pixels = ColSpec(Array(Array(Array(row))), "images")
    scalars = ColSpec(Array(row), "scalars", required=False)
    present = ColSpec(DataType.double, "present", required=False)
    bounds = [ColSpec(DataType.double, name, required=False) for name in ("lower", "upper")]
    return ModelSignature(
        inputs=Schema([pixels, scalars, present]),
        outputs=Schema([ColSpec(DataType.double, "prediction"), *bounds]),
        params=ParamSchema([ParamSpec("confidence", DataType.double, 0.9)]),
    )


SIGNATURES: dict[str, Callable[[], Any]] = {
    names.TASK_LINK_PREDICTION: _queries,
    names.TASK_LANGUAGE_MODELING: _prompts,
    names.TASK_SEQUENCE_REGRESSION: _windows,
}
"""Make the MLflow signature of each task's models."""
