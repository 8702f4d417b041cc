"""Serving code of a registered graph model: it answers the query of each row with entities."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from clew.errors import ConfigError
from clew.runs.served_model import Row, ServedModel, Settings, set_model


class QuerySettings(Settings):
    """Number of answers per query, and whether known answers are left out."""

    top_k: Annotated[int, Field(ge=1, le=10_000)] = 10
    filter_known: bool = False


class ServedQueries(ServedModel[QuerySettings]):
    """Answers queries (head, relation) or (relation, tail) with named entities."""

    expects = (
        "rows with the texts relation and either head or tail, and among params top_k "
        "(1 to 10000) and filter_known (true or false)"
    )
    columns = frozenset({"head", "relation", "tail"})
    settings = QuerySettings

    def load(self, folder: Path) -> None:
        from clew.link_prediction.model_folder import load_predictor

        self._predictor = load_predictor(folder)

    def answer(self, rows: Sequence[Row], settings: QuerySettings) -> list[dict[str, Any]]:
        """Return the best entities for each query."""
        from clew.link_prediction.prediction import Query

        for row in rows:
            if any(not isinstance(value, str) for value in row.values()):
                raise ConfigError(f"a row holds {str(dict(row))[:100]}; expected {self.expects}")
        queries = [
            Query(
                row.get("relation", ""), head=row.get("head") or None, tail=row.get("tail") or None
            )
            for row in rows
        ]
        found = self._predictor.predict(
            queries, top_k=settings.top_k, filter_known=settings.filter_known
        )
        return [prediction.as_dict() for prediction in found]


set_model(ServedQueries())
