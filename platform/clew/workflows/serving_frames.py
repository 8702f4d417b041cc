"""The code of a registered model of image sequences, as MLflow's servers run it.

A request is a batch of windows of frames, one per row, and gets a value with an interval for each.
"""

import os
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from clew.errors import UsageError
from clew.runs.processor import prepare_threads


class ServedModel(PythonModel):
    """Predicts windows of frames."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the model; MLflow calls this once."""
        prepare_threads(os.environ)  # before this loads torch
        from clew.image_sequences.requests import WindowPredictor

        self._predictor = WindowPredictor.load(Path(context.artifacts["model"]))

    def predict(
        self,
        context: PythonModelContext,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Return one value for each row; a row that cannot be answered is a bad request."""
        confidence = float((params or {}).get("confidence", 0.9))
        try:
            return [
                self._predictor.predict(
                    row["images"],
                    row.get("scalars", ()),
                    row.get("present"),
                    confidence=confidence,
                )
                for row in model_input.to_dict("records")
            ]
        except UsageError as error:
            raise MlflowException(str(error), error_code=INVALID_PARAMETER_VALUE) from None


set_model(ServedModel())
