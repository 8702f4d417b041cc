"""Base class of the code of a registered model, which MLflow's servers run ("models from code").

`clew promote` copies the code file of a subject, the package and a model folder into the registered
model. A server loads them once. A request is a batch of rows and gets one answer per row.
"""

import logging
import math
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import INTERNAL_ERROR, INVALID_PARAMETER_VALUE
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from pydantic import BaseModel, ConfigDict, ValidationError

from clew.errors import UsageError, described
from clew.runs.hardware import prepare_threads
from clew.runs.request_door import MISTAKE, close_door

__all__ = ["Row", "ServedModel", "Settings", "set_model"]

Row = Mapping[str, Any]
"""A row of a request; it contains only the values that were given."""
MAX_ROWS = 1000
logger = logging.getLogger(__name__)


class Settings(BaseModel):
    """The parameters of a request; subclasses define their types, limits and defaults."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


SettingsT = TypeVar("SettingsT", bound=Settings)


class ServedModel(PythonModel, Generic[SettingsT]):
    """A model that answers rows, and reports mistakes in a request in one line.

    A subclass defines `expects` (what a request should contain, as text for error messages), the
    `columns` of its rows and the class of its `settings`.
    """

    expects: ClassVar[str]
    columns: ClassVar[Set[str]]
    settings: type[SettingsT]

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Load the files that the subject's `write_folder` has written."""

    @abstractmethod
    def answer(self, rows: Sequence[Row], settings: SettingsT) -> list[dict[str, Any]]:
        """Return one answer per row.

        Raises:
            UsageError: A row cannot be answered.
        """

    def load_context(self, context: PythonModelContext) -> None:
        """Load the model; MLflow calls this once."""
        prepare_threads(os.environ)  # before anything loads torch
        close_door(self.expects, self.columns, self.settings.model_fields.keys())
        self.load(Path(context.artifacts["model"]))

    def predict(
        self,
        context: PythonModelContext,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Return one answer per row; if a row cannot be answered, the request is refused."""
        try:
            return self.answer(_rows(model_input), self.settings.model_validate(params or {}))
        except ValidationError as error:
            line = f"parameter {described(error)}; expected {self.expects}"
            raise _mistake(line, INVALID_PARAMETER_VALUE) from None
        except UsageError as error:
            raise _mistake(described(error), INVALID_PARAMETER_VALUE) from None
        except Exception:
            logger.exception("a request could not be answered")
            line = "the model failed on this request; see the server's log"
            raise _mistake(line, INTERNAL_ERROR) from None


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
