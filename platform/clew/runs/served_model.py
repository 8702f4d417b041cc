"""The code of a registered model, which MLflow's servers run ("models from code").

`clew promote` copies the code file, the package and a model folder into the registered model. A
server loads them once. A request is a batch of rows and gets one answer per row.
"""

import logging
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import INTERNAL_ERROR, INVALID_PARAMETER_VALUE
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from pydantic import ValidationError

from clew.errors import UsageError, described
from clew.runs.hardware import prepare_threads
from clew.runs.request_door import MISTAKE, close_door
from clew.subject import Row, Settings, Subject

__all__ = ["ServedModel", "set_model"]

MAX_ROWS = 1000
logger = logging.getLogger(__name__)


class ServedModel(PythonModel):
    """A model that answers rows, and reports mistakes in a request in one line."""

    def __init__(self, subject_in: Callable[[Path], Subject[Any, Any, Any]]) -> None:
        self._subject_in = subject_in

    def load_context(self, context: PythonModelContext) -> None:
        """Load the model; MLflow calls this once."""
        prepare_threads(os.environ)  # before anything loads torch
        folder = Path(context.artifacts["model"])
        self._subject = subject = self._subject_in(folder)
        columns = {name.removesuffix("?") for name in subject.inputs}
        close_door(subject.expects, columns, subject.settings.model_fields.keys())
        self._loaded = subject.load(folder)

    def predict(
        self,
        context: PythonModelContext,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Return one answer per row, or an `error`; refuse a request that has only errors."""
        try:
            settings = self._subject.settings.model_validate(params or {})
            return self._answers(_rows(model_input), settings)
        except ValidationError as error:
            line = f"parameter {described(error)}; expected {self._subject.expects}"
            raise _mistake(line, INVALID_PARAMETER_VALUE) from None
        except UsageError as error:
            raise _mistake(described(error), INVALID_PARAMETER_VALUE) from None
        except Exception:
            logger.exception("a request could not be answered")
            line = "the model failed on this request; see the server's log"
            raise _mistake(line, INTERNAL_ERROR) from None

    def _answers(self, rows: list[Row], settings: Settings) -> list[dict[str, Any]]:
        """Answer the rows together; if one of them cannot be answered, one by one."""
        try:
            return self._subject.answer(self._loaded, rows, settings)
        except UsageError as error:
            first = error
        answers: list[dict[str, Any]] = []
        for row in rows if len(rows) > 1 else ():
            try:
                answers += self._subject.answer(self._loaded, [row], settings)
            except UsageError as error:
                answers.append({"error": described(error)})
        if all("error" in answer for answer in answers):
            raise first
        return answers


def _rows(frame: pd.DataFrame) -> list[Row]:
    """Return the rows of a table, without the NaN that pandas inserts for missing values.

    Raises:
        UsageError: There are too many rows.
    """
    if len(frame) > MAX_ROWS:
        raise UsageError(f"{len(frame)} rows; expected at most {MAX_ROWS} in one request")
    return [
        {str(name): value for name, value in row.items() if not _is_missing(value)}
        for row in frame.to_dict("records")
    ]


def _is_missing(value: object) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def _mistake(line: str, code: int) -> MlflowException:
    """Return an MLflow error; the door sends only `line`, not MLflow's longer message."""
    return MlflowException(line, error_code=code, **{MISTAKE: line})
