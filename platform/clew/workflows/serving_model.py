"""The code of a registered model, as MLflow's servers run it ("models from code").

`clew promote` copies this file, the package and a model folder into the registered model. A server
loads them once; a request is a batch of queries, one per row, and gets one prediction per row.
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
from clew.link_prediction.answers import Query
from clew.runs.processor import prepare_threads


class ServedModel(PythonModel):
    """Answers queries (head, relation) or (relation, tail) with named entities."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the model; MLflow calls this once."""
        prepare_threads(os.environ)  # before this loads torch
        from clew.link_prediction.model_folder import load_predictor

        self._predictor = load_predictor(Path(context.artifacts["model"]))

    def predict(
        self,
        context: PythonModelContext,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Return one prediction for each row; a row that cannot be answered is a bad request."""
        settings = params or {}
        try:
            found = self._predictor.predict(
                [_query(row) for row in model_input.to_dict("records")],
                top_k=int(settings.get("top_k", 10)),
                filter_known=bool(settings.get("filter_known", False)),
            )
        except UsageError as error:
            raise MlflowException(str(error), error_code=INVALID_PARAMETER_VALUE) from None
        return [prediction.as_dict() for prediction in found]


def _query(row: dict[Any, Any]) -> Query:
    """Return a row's query; pandas fills what is not given with NaN."""
    head, relation, tail = (
        value if isinstance(value := row.get(name), str) else None
        for name in ("head", "relation", "tail")
    )
    return Query(relation or "", head=head or None, tail=tail or None)


set_model(ServedModel())
