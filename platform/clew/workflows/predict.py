"""Answers queries by name with the best entities, and lists the best pairs of a relation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd
import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from clew.config.data import TripleData, require_shared
from clew.errors import DataError, UsageError, counted, described, quoted
from clew.files import working_folder
from clew.input_files import read_lines
from clew.link_prediction.calibration import Calibration
from clew.link_prediction.candidates import EVERYTHING, Limits, list_pairs, scored_triples
from clew.link_prediction.prediction import Answer, Prediction, Predictor, Query
from clew.link_prediction.rank_metrics import SIDES
from clew.link_prediction.sources import load_graph
from clew.link_prediction.subject import (
    VOCABULARY_FOLDER,
    load_graph_model,
    load_predictor,
    read_vocabularies,
)
from clew.link_prediction.triples import FilterIndex, KnowledgeGraph
from clew.workflows.model_source import (
    ModelSource,
    check_fingerprint,
    open_model,
    recorded,
    require_data,
)
from clew.workflows.outputs import check_table, write_table

ASKED = "?"
"""Placeholder for the unknown end of a query in a file."""
Part = Literal["head", "relation", "tail"]
_PARTS = TypeAdapter(dict[Part, str | None])


@dataclass(frozen=True)
class Asked:
    """A query, its file and line, and what is wrong with this line."""

    query: Query
    where: str = ""
    error: str = ""


@dataclass(frozen=True)
class Unanswered:
    """A query of a file that the model cannot answer."""

    query: Query
    error: UsageError

    def as_dict(self) -> dict[str, Any]:
        named = {key: value for key, value in vars(self.query).items() if value}
        return named | {"error": str(self.error)}


@dataclass(frozen=True)
class PredictResult:
    """Predictions, and notes about all of them."""

    model: str
    predictions: tuple[Prediction | Unanswered, ...]
    temperature: float | None
    is_calibrated: bool
    notes: tuple[str, ...]

    def table(self) -> str:
        shown = [f"model: {self.model}"]
        shown += [f"note: {note}" for note in self.notes]
        for prediction in self.predictions:
            shown += ["", *_table_of(prediction)]
        return "\n".join(shown)

    def rows(self) -> pa.Table:
        """Return a row for each answer, and one with its error for each query that has none.

        `query` counts the queries as they were given: a whole triple has the answers for its tail,
        then those for its head. `asks_for` is the end that an answer is for.
        """
        found, number = [], 0
        for prediction in self.predictions:
            content, query = prediction.as_dict(), prediction.query
            number += not (query.about and query.tail)
            if isinstance(prediction, Prediction):
                content["asks_for"] = query.asks_for
            place, _ = content.pop("asked", {}), content.pop("answer_set", None)
            own = {f"asked_{key}": place[key] for key in ("rank", "score", "probability") if place}
            for answer in content.pop("answers", None) or [{}]:
                found.append({"query": number} | content | answer | own)
        return pa.Table.from_pandas(pd.DataFrame(found), preserve_index=False)

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "calibrated": self.is_calibrated,
            "temperature": self.temperature,
            "notes": list(self.notes),
            "predictions": [prediction.as_dict() for prediction in self.predictions],
        }


def predict(
    model: str,
    queries: Sequence[Asked],
    *,
    top_k: int = 10,
    filter_known: bool = False,
    level: float | None = None,
    limits: Limits = EVERYTHING,
    apart: bool = False,
) -> PredictResult:
    """Answer queries with a trained model; one that it cannot answer does not stop the others.

    The settings are those of `Predictor.predict`.
    """
    with open_model(model) as source:
        predictor, notes = open_predictor(source)
        asked = [_questions(item, predictor) for item in queries]
        bad = [item for item in asked if isinstance(item, Unanswered)]
        if len(bad) == len(asked):
            raise bad[0].error
        if bad:
            notes.append(f"{len(bad):,} of {len(asked):,} queries have no answer; see their error")
        asking = [query for item in asked if not isinstance(item, Unanswered) for query in item]
        if not predictor.has_inverses and any(q.query.is_triple for q in queries):
            notes.append(
                "a whole triple is ranked only by its tail, because this model was trained "
                "without inverse relations"
            )
        if level is not None:
            calibrate_answer_sets(predictor, source)
        found = predictor.predict(
            asking, top_k=top_k, filter_known=filter_known, level=level, limits=limits, apart=apart
        )
        left, calibration = iter(found), predictor.calibration
        notes.append(about_probabilities(calibration, limits))
        return PredictResult(
            model=source.title,
            predictions=tuple(
                part
                for item in asked
                for part in ([item] if isinstance(item, Unanswered) else islice(left, len(item)))
            ),
            temperature=calibration.temperature if calibration else None,
            is_calibrated=calibration is not None and not calibration.not_fitted_because,
            notes=tuple(notes),
        )


def about_probabilities(calibration: Calibration | None, limits: Limits) -> str:
    """Say what the probabilities of answers are, and how they were made."""
    if calibration is None:
        return (
            "no probabilities: no calibration was fitted for this model; `clew promote` fits one "
            "on the validation split"
        )
    among, of_all = (" among the candidates", "among all entities, ") if limits else ("", "")
    return (
        f"a probability{among} is the model's own: that this is the answer, if no answer known "
        f"from training is; {of_all}{calibration.describe()}"
    )


def _questions(item: Asked, predictor: Predictor) -> list[Query] | Unanswered:
    try:
        if item.error:
            raise DataError(item.error)
        ways = item.query.ways(heads=predictor.has_inverses)
        return [predictor.resolve(question).query for question in ways]
    except UsageError as error:
        where = f"{item.where}: " if item.where else ""
        return Unanswered(item.query, type(error)(f"{where}{error}"))


def open_predictor(source: ModelSource) -> tuple[Predictor, list[str]]:
    """Load a model with its names and known answers, and return notes about what is missing.

    A registered model contains everything. For a run or a checkpoint, the known answers are read
    from the data set. Without the data set, the names that the run recorded are enough to answer.
    """
    only = "only link prediction answers queries by name and has embeddings with names"
    require_data(source, TripleData, only)
    if (source.checkpoint / VOCABULARY_FOLDER).is_dir():
        return load_predictor(source.checkpoint), []
    try:
        graph = _own_graph(source)
    except UsageError as error:
        with working_folder("names") as work:
            entities, relations = read_vocabularies(recorded(source, VOCABULARY_FOLDER, work))
        model = load_graph_model(source.checkpoint, len(entities), len(relations))
        return Predictor(model, entities, relations), [f"known answers cannot be marked: {error}"]
    model = load_graph_model(source.checkpoint, graph.num_entities, graph.num_relations)
    known = FilterIndex.in_both_directions(graph.train, graph.num_relations)
    return Predictor(model, graph.entities, graph.relations, known=known), []


def calibrate_answer_sets(predictor: Predictor, source: ModelSource) -> None:
    """Calibrate answer sets on the model's data, unless the model contains the calibration."""
    if predictor.answer_sets is not None:
        return
    try:
        graph = _own_graph(source)
    except UsageError as error:
        raise type(error)(
            f"answer sets are calibrated on the model's data: {error}; promote its run again where "
            "the data are, or leave out --conformal"
        ) from None
    if not len(graph.valid):
        raise DataError(
            f"{source.title}: its data have no validation triples, on which answer sets are "
            "calibrated; leave out --conformal"
        )
    predictor.answer_sets = predictor.measure_answer_sets(graph.valid, graph.test)


def _own_graph(source: ModelSource) -> KnowledgeGraph:
    assert isinstance(source.config.data, TripleData)
    require_shared(source.config.data)
    graph = load_graph(source.config.data)
    check_fingerprint(source, graph.fingerprint)
    return graph


def _table_of(prediction: Prediction | Unanswered) -> Iterator[str]:
    query = prediction.query
    yield f"{query.head or ASKED}  {query.relation or ASKED}  {query.tail or ASKED}"
    if isinstance(prediction, Unanswered):
        yield f"error: {prediction.error}"
        return
    answer_set = prediction.answer_set
    if prediction.warning:
        yield f"warning: {prediction.warning}"
    if answer_set is not None:
        yield answer_set.sentence
    in_set = "" if answer_set is None else f"{'in set':6}  "
    yield f"{'rank':>6}  {'score':>9}  {'probability':>11}  {'known':5}  {in_set}{query.asks_for}"
    yield from map(_line, prediction.answers)
    if (place := prediction.place) is not None:
        but = "" if place.known is None else " (all but other answers known from training)"
        yield f"rank of this triple among {place.num_candidates:,}{but}:"
        yield _line(place)


def _line(row: Answer) -> str:
    probability = "" if row.probability is None else f"{row.probability:.4f}"
    known = {True: "yes", False: "no", None: "?"}[row.known]
    in_set = {True: "yes     ", False: "no      ", None: ""}[row.in_set]
    label = "" if row.label == row.name else f"  {row.label}"
    return (
        f"{row.rank:6g}  {row.score:9.4f}  {probability:>11}  {known:5}  {in_set}{row.name}{label}"
    )


NAMED = ("head", "head_label", "tail", "tail_label")
SHOWN = ("rank", *NAMED, "score", "probability", "head_rank", "tail_rank", "known", "error")
MOST_SHOWN = 20


@dataclass(frozen=True)
class ListResult:
    """A table of pairs, and where it was written."""

    model: str
    rows: pa.Table
    output: Path | None
    notes: tuple[str, ...]

    def table(self) -> str:
        """Return the first rows as text, and the file."""
        shown = self.rows.select([name for name in SHOWN if name in self.rows.column_names])
        frame = shown.slice(0, MOST_SHOWN).to_pandas().dropna(axis="columns", how="all")
        texts = frame.select_dtypes(exclude="number").columns
        frame[texts] = frame[texts].fillna("")
        labels = [f"{side}_label" for side in SIDES]
        same = [label for label in labels if frame[label].isin(["", *frame[label[:4]]]).all()]
        frame = frame.drop(columns=same)
        lines = [f"model: {self.model}", *(f"note: {note}" for note in self.notes), ""]
        lines.append(frame.to_string(index=False, na_rep=""))
        if self.rows.num_rows > MOST_SHOWN:
            lines.append(f"… {self.rows.num_rows - MOST_SHOWN:,} more rows")
        if self.output:
            lines += ["", f"{self.output}: {counted(self.rows.num_rows, 'row')}"]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values; the rows only if they were not written to a file."""
        content = {"model": self.model, "notes": list(self.notes)}
        if self.output:
            return content | {"output": str(self.output), "num_rows": self.rows.num_rows}
        return content | {"rows": self.rows.to_pylist()}


def predict_list(
    model: str,
    asked: str | Sequence[Asked],
    *,
    top_k: int = 10,
    filter_known: bool = True,
    limits: Limits = EVERYTHING,
    output: Path | None = None,
) -> ListResult:
    """Return the best pairs of a relation, or given triples with scores; write them as a file.

    A triple that cannot be scored has its reason in the column `error`.
    """
    check_table("--output", output)
    with open_model(model) as source:
        predictor, notes = open_predictor(source)
        if isinstance(asked, str):
            rows = list_pairs(
                predictor, asked, top_k=top_k, filter_known=filter_known, limits=limits
            )
        else:
            triples = [(item.query.head, item.query.relation, item.query.tail) for item in asked]
            wrong = {i: f"{item.where}: {item.error}" for i, item in enumerate(asked) if item.error}
            rows = scored_triples(predictor, triples, limits, wrong)
            if bad := rows.num_rows - rows["error"].null_count:
                notes.append(f"{bad:,} of {rows.num_rows:,} rows have no score; see their error")
        notes.append(about_probabilities(predictor.calibration, limits))
        if predictor.calibration is not None and predictor.has_inverses:
            notes.append("the probability of a pair is the mean of its tail's and its head's")
        if output is not None:
            write_table(output, rows)
        return ListResult(source.title, rows, output, tuple(notes))


def asked(head: str, relation: str, tail: str) -> Asked:
    """Return a query from command-line values; an empty value means not given."""
    return Asked(Query(relation, head=head or None, tail=tail or None))


def read_queries(path: Path) -> list[Asked]:
    """Read a file of queries: JSON objects, one per line, or `head<TAB>relation<TAB>tail`.

    In tab-separated lines, `?` is the unknown end, and an unknown tail can be left out. A line with
    both ends is a whole triple. A line that is no query has an `error`.
    """
    found = [
        _of_line(line, f"{path}, line {number}")
        for number, line in enumerate(read_lines(path), start=1)
        if line.strip()
    ]
    if not found:
        raise DataError(
            f"{path}: contains no query; expected one query per line, such as head<TAB>relation"
        )
    if all(item.error for item in found):
        raise DataError(f"{found[0].where}: {found[0].error}")
    return found


def _of_line(line: str, where: str) -> Asked:
    try:
        is_json = line.lstrip().startswith("{")
        parts = _PARTS.validate_json(line) if is_json else _parts_of_tabs(line)
        head, tail = parts.get("head") or None, parts.get("tail") or None
        query = Query(parts.get("relation") or "", head=head, tail=tail)
        _ = query.is_triple or query.asks_for
        return Asked(query, where)
    except ValidationError as error:
        said = f"{described(error)}; expected texts under head, relation and tail"
        return Asked(Query(""), where, said)
    except UsageError as error:
        return Asked(Query(""), where, str(error))


def _parts_of_tabs(line: str) -> Mapping[Part, str | None]:
    fields = [field.strip() for field in line.split("\t")]
    if len(fields) not in (2, 3):
        raise DataError(
            f"{quoted(line.strip())} has {len(fields)} tab-separated columns; expected head, "
            f"relation and tail, with {ASKED} for the unknown end"
        )
    parts = ["" if field == ASKED else field for field in fields]
    return dict(zip(get_args(Part), parts, strict=False))
