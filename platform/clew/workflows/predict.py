"""Predict: queries by name in, the best entities with scores and probabilities out."""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.config.data import TripleData
from clew.errors import CheckpointError, ConfigError, DataError, UsageError
from clew.files import working_folder
from clew.link_prediction.answers import Prediction, Query
from clew.link_prediction.model_folder import (
    ENTITIES_FILE,
    VOCABULARY_FOLDER,
    index_known,
    load_graph_model,
    load_predictor,
    read_vocabularies,
)
from clew.link_prediction.prediction import Predictor
from clew.link_prediction.sources import load_graph
from clew.link_prediction.vocabulary import Vocabulary
from clew.runs.reading.runs import download_artifact
from clew.workflows.model_source import ModelSource, check_fingerprint, open_model

logger = logging.getLogger(__name__)

ASKED = "?"
"""Stands for the end that is asked for in a file of queries."""


@dataclass(frozen=True)
class PredictResult:
    """Predictions, and what is to be said of all of them."""

    model: str
    predictions: tuple[Prediction, ...]
    temperature: float | None
    notes: tuple[str, ...]

    def table(self) -> str:
        """Return a table for each query."""
        shown = [f"model: {self.model}"]
        shown += [f"note: {note}" for note in self.notes]
        for prediction in self.predictions:
            shown += ["", *_table_of(prediction)]
        return "\n".join(shown)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "model": self.model,
            "calibrated": self.temperature is not None,
            "temperature": self.temperature,
            "notes": list(self.notes),
            "predictions": [prediction.as_dict() for prediction in self.predictions],
        }


@dataclass(frozen=True)
class Asked:
    """A query, and where it was asked, for error messages."""

    query: Query
    where: str = ""


def predict(
    model: str, queries: Sequence[Asked], *, top_k: int = 10, filter_known: bool = False
) -> PredictResult:
    """Answer queries with a trained model.

    Args:
        model: A run id, `models:/name@alias`, or a checkpoint folder.
        queries: What is asked.
        top_k: Answers to each query.
        filter_known: Leave answers out that are known in training.

    Raises:
        UsageError: the model or a name cannot be found; near matches are proposed.
    """
    with open_model(model) as source:
        predictor, notes = open_predictor(source)
        for item in queries:
            try:
                predictor.resolve(item.query)
            except UsageError as error:
                raise type(error)(f"{item.where}: {error}" if item.where else str(error)) from None
        found = predictor.predict(
            [item.query for item in queries], top_k=top_k, filter_known=filter_known
        )
        calibration = predictor.calibration
        if calibration is None:
            notes.append(
                "no probabilities: no calibration was fitted for this model; `clew promote` fits "
                "one on the validation split"
            )
        return PredictResult(
            model=source.title,
            predictions=tuple(found),
            temperature=calibration.temperature if calibration else None,
            notes=tuple(notes),
        )


def asked(head: str, relation: str, tail: str) -> Asked:
    """Return a query from what a person gave; empty means not given."""
    return Asked(Query(relation, head=head or None, tail=tail or None))


def read_queries(path: Path) -> list[Asked]:
    """Read a file of queries: JSON objects, one per line, or `head<TAB>relation<TAB>tail`.

    In tab-separated lines the end that is asked for is `?`, or missing if it is the tail.

    Raises:
        DataError: a line is neither.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text ({error})") from None
    found = [
        Asked(_query_of_line(line, where), where)
        for number, line in enumerate(lines, start=1)
        if line.strip() and (where := f"{path}, line {number}")
    ]
    if not found:
        raise DataError(
            f"{path}: holds no query; expected one query per line, for example head<TAB>relation"
        )
    return found


def open_predictor(source: ModelSource) -> tuple[Predictor, list[str]]:
    """Load a model with its names, and say what could not be had.

    A registered model contains everything. For a run or a checkpoint, the data set says what is
    known from training; without it, the names that the run recorded are enough to answer.

    Raises:
        UsageError: the model is not of link prediction, or neither data nor names are available.
    """
    data = source.config.data
    if not isinstance(data, TripleData):
        raise ConfigError(
            f"{source.title} is a {source.manifest.task} model; only link prediction answers "
            "queries by name and has embeddings with names: give the id of such a run"
        )
    if (source.checkpoint / VOCABULARY_FOLDER).is_dir():
        return load_predictor(source.checkpoint), []
    try:
        graph = load_graph(data)
        check_fingerprint(source, graph.fingerprint)
    except UsageError as error:
        entities, relations = _recorded_names(source)
        model = load_graph_model(source.checkpoint, len(entities), len(relations))
        return Predictor(model, entities, relations), [f"known answers cannot be marked: {error}"]
    model = load_graph_model(source.checkpoint, graph.num_entities, graph.num_relations)
    known = index_known(graph.train, graph.num_relations)
    return Predictor(model, graph.entities, graph.relations, known=known), []


def _recorded_names(source: ModelSource) -> tuple[Vocabulary, Vocabulary]:
    """Return the names next to a checkpoint, or those that its run recorded."""
    for folder in list(source.checkpoint.parents)[:2]:
        if (folder / VOCABULARY_FOLDER / ENTITIES_FILE).is_file():
            return read_vocabularies(folder / VOCABULARY_FOLDER)
    if source.run_id is None:
        raise CheckpointError(
            f"{source.title}: neither its data set nor a folder {VOCABULARY_FOLDER} with names is "
            "there; ask the run by its id instead"
        )
    with working_folder("names") as work:
        path = download_artifact(source.run_id, VOCABULARY_FOLDER, work)
        return read_vocabularies(path)


def _query_of_line(line: str, where: str) -> Query:
    if line.lstrip().startswith("{"):
        return _query_of_json(line, where)
    fields = [field.strip() for field in line.split("\t")]
    if len(fields) not in (2, 3):
        raise DataError(
            f"{where}: {line.strip()!r} has {len(fields)} tab-separated columns; expected head, "
            f"relation and tail, with {ASKED} for the end asked for"
        )
    head, relation, tail = (None if field == ASKED else field for field in (*fields, ASKED)[:3])
    return _checked(Query(relation or "", head=head or None, tail=tail or None), where)


def _query_of_json(line: str, where: str) -> Query:
    try:
        content = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not valid JSON ({error})") from None
    unknown = sorted(content.keys() - {"head", "relation", "tail"})
    if unknown or not all(isinstance(v, str | None) for v in content.values()):
        raise DataError(
            f"{where}: {line.strip()!r}; expected texts under head, relation and tail"
            + (f", not {unknown[0]!r}" if unknown else "")
        )
    query = Query(
        content.get("relation") or "",
        head=content.get("head") or None,
        tail=content.get("tail") or None,
    )
    return _checked(query, where)


def _checked(query: Query, where: str) -> Query:
    try:
        _ = query.asks_for
    except UsageError as error:
        raise DataError(f"{where}: {error}") from None
    return query


def _table_of(prediction: Prediction) -> Iterator[str]:
    query = prediction.query
    yield f"{query.head or ASKED}  {query.relation}  {query.tail or ASKED}"
    yield f"{'rank':>4}  {'score':>9}  {'probability':>11}  {'known':5}  {query.asks_for}"
    for answer in prediction.answers:
        probability = "" if answer.probability is None else f"{answer.probability:.4f}"
        known = {True: "yes", False: "no", None: "?"}[answer.known]
        label = "" if answer.label == answer.name else f"  {answer.label}"
        yield (
            f"{answer.rank:4}  {answer.score:9.4f}  {probability:>11}  {known:5}  "
            f"{answer.name}{label}"
        )
