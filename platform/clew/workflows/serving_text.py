"""The code of a registered language model, as MLflow's servers run it ("models from code").

A request is a batch of prompts, one per row, and gets the text that follows each of them.
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
    """Continues prompts."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the model; MLflow calls this once."""
        prepare_threads(os.environ)  # before this loads torch
        from clew.language_modeling.model_folder import load_text_folder

        self._model = load_text_folder(Path(context.artifacts["model"]))

    def predict(
        self,
        context: PythonModelContext,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Return the text that follows each row's prompt; the same seed gives the same text."""
        from clew.language_modeling.generation import Sampling
        from clew.language_modeling.writer import continuation

        settings = {"max_tokens": 200, "temperature": 1.0, "top_p": 1.0, "seed": 0}
        settings |= params or {}
        try:
            return [
                {
                    "text": continuation(
                        self._model,
                        str(prompt),
                        max_tokens=int(settings["max_tokens"]),
                        sampling=Sampling(
                            float(settings["temperature"]), top_p=float(settings["top_p"])
                        ),
                        seed=int(settings["seed"]),
                    )
                }
                for prompt in model_input["prompt"]
            ]
        except UsageError as error:
            raise MlflowException(str(error), error_code=INVALID_PARAMETER_VALUE) from None


set_model(ServedModel())
