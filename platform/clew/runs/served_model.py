"""The code of a registered model, which MLflow's servers run ("models from code").

`clew promote` copies the code file, the package and a model folder into the registered model. A
server loads them once. A request is a batch of rows and gets one answer per row.
"""

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import INTERNAL_ERROR, INVALID_PARAMETER_VALUE
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from pandas.api.types import is_scalar
from pydantic import ValidationError

from clew.errors import UsageError, described
from clew.runs.hardware import prepare_threads
from clew.runs.request_door import MISTAKE, NUM_STEPS, Budget, close_door, limit
from clew.subject import Row, Settings, Subject, go_on

__all__ = ["ServedModel", "set_model"]

MAX_ROWS = 1000
WORK_VARIABLE = "CLEW_REQUEST_WORK"
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
        self._most_work = limit(WORK_VARIABLE, subject.most_work, "a number")
        unit, is_shared = subject.unit_of_work, subject.shares_work
        budget = Budget(self._most_work, unit, self._work, is_shared=is_shared)
        close_door(subject.expects, columns, subject.settings.model_fields.keys(), budget)
        self._loaded = subject.load(folder)

    def _work(self, num_rows: int, num_bytes: int, params: Mapping[str, Any]) -> int:
        """Return how much work a request is; 0 if its parameters are invalid."""
        try:
            settings = self._subject.settings.model_validate(params)
        except ValidationError:
            return 0
        return self._subject.work(self._loaded, num_rows, num_bytes, settings)

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
        except InterruptedError:
            raise
        except Exception:
            logger.exception("a request could not be answered")
            line = "the model failed on this request; see the server's log"
            raise _mistake(line, INTERNAL_ERROR) from None

    def _answers(self, rows: list[Row], settings: Settings) -> list[dict[str, Any]]:
        """Answer the rows in steps, between which the request can end."""
        work = self._subject.work(self._loaded, len(rows), 0, settings)
        size = max(1, len(rows) * self._most_work // (NUM_STEPS * work))
        parts = [rows[start : start + size] for start in range(0, len(rows), size)]
        answers = [answer for part in parts for answer in self._step(part, settings)]
        if answers and all("error" in answer for answer in answers):
            raise UsageError(answers[0]["error"])
        return answers

    def _step(self, rows: list[Row], settings: Settings) -> list[dict[str, Any]]:
        """Answer rows together; if one of them cannot be answered, one by one."""
        go_on()
        try:
            return self._subject.answer(self._loaded, rows, settings)
        except UsageError as error:
            if len(rows) == 1:
                return [{"error": described(error)}]
        return [answer for row in rows for answer in self._step([row], settings)]


def _rows(frame: pd.DataFrame) -> list[Row]:
    """Return the rows of a table, without the NaN that pandas inserts for missing values.

    Raises:
        UsageError: There are too many rows.
    """
    if len(frame) > MAX_ROWS:
        raise UsageError(f"{len(frame)} rows; expected at most {MAX_ROWS} in one request")
    return [
        {str(k): v for k, v in row.items() if not (is_scalar(v) and pd.isna(v))}
        for row in frame.to_dict("records")
    ]


def _mistake(line: str, code: int) -> MlflowException:
    """Return an MLflow error; the door sends only `line`, not MLflow's longer message."""
    return MlflowException(line, error_code=code, **{MISTAKE: line})
