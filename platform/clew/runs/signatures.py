"""What requests to a served model and its answers look like, for each task, in MLflow's words."""

from collections.abc import Callable
from typing import Any

from clew import names


def signature_of(task: str) -> Any:
    """Return the MLflow signature of a task's models."""
    return SIGNATURES[task]()


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
