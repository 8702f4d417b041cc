"""Graphs as a subject: requests are queries by name, answers are ranked entities."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from clew.config.data import TripleData
from clew.config.schema import RunConfig
from clew.errors import ConfigError
from clew.files import working_folder
from clew.link_prediction.calibration import Calibration
from clew.link_prediction.candidate_lists import scored_triples
from clew.link_prediction.candidates import Limits
from clew.link_prediction.model_folder import (
    ANSWER_SETS_FILE,
    VOCABULARY_FOLDER,
    load_predictor,
    write_model_folder,
)
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.prediction import Predictor, Query
from clew.link_prediction.sources import load_graph
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import HEAD, RELATION, TAIL, FilterIndex
from clew.subject import Forms, Row, Settings, Subject

NUM_QUERIES = 8
"""Number of queries that a candidate must answer before it is promoted."""
OF_TRIPLE = ("score", "probability", "head_rank", "tail_rank")
"""Numbers that answer a row with a whole triple."""
TOLERANCE = 1e-4
"""Allowed difference between a served score and the checkpoint's."""


class QuerySettings(Settings):
    """Number of answers per query, whether known answers are left out, and the candidates."""

    top_k: Annotated[int, Field(ge=1, le=10_000)] = 10
    filter_known: bool = False
    head_kind: str = ""
    tail_kind: str = ""
    seen: bool = False


class Graphs(Subject[LinkPrediction, Predictor, QuerySettings]):
    """Link prediction in a knowledge graph."""

    asked_with = "--relation and --head or --tail, or --input"
    examples = "triples"
    uncalibrated = "no validation triples, so no probabilities"
    expects = (
        "rows with the texts relation and head, tail or both, and among params top_k (1 to 10000), "
        "filter_known and seen (true or false), head_kind and tail_kind"
    )
    inputs: ClassVar[Forms] = {"head?": "string", "relation": "string", "tail?": "string"}
    outputs: ClassVar[Forms] = {
        **inputs,
        **dict.fromkeys((f"{name}?" for name in OF_TRIPLE), "double"),
        "known?": "boolean",
        "num_known?": "long",
        "warning?": "string",
        "answers": [
            {
                "rank": "long",
                "head?": "string",
                "tail?": "string",
                "label": "string",
                "score": "double",
                "probability?": "double",
                "known?": "boolean",
            }
        ],
    }
    settings = QuerySettings

    def build_task(self, config: RunConfig) -> LinkPrediction:
        assert isinstance(config.data, TripleData)
        return LinkPrediction(load_graph(config.data), config)

    def num_test_examples(self, task: LinkPrediction) -> int:
        return len(task.graph.test)

    def calibrate(self, task: LinkPrediction, model: GraphModel) -> Calibration | None:
        """Fit the temperature of the answers on the validation triples."""
        graph = task.graph
        known = FilterIndex.in_both_directions(graph.train, graph.num_relations)
        predictor = Predictor(model, graph.entities, graph.relations, known=known)
        return predictor.calibrate(graph.valid)

    def write_folder(
        self, task: LinkPrediction, folder: Path, checkpoint: Path, calibration: Calibration | None
    ) -> None:
        """Write checkpoint, names, known triples, calibration and the data for answer sets."""
        graph = task.graph
        with working_folder("record") as work:
            task.write_artifacts(work)
            write_model_folder(
                folder,
                checkpoint=checkpoint,
                vocabulary=work / VOCABULARY_FOLDER,
                known=graph.train,
                calibration=calibration,
            )
        if len(graph.valid):
            measured = load_predictor(folder).measure_answer_sets(graph.valid, graph.test)
            measured.write(folder / ANSWER_SETS_FILE)

    def example_rows(self, task: LinkPrediction) -> list[dict[str, Any]]:
        """Return queries from the first training triples: for tails and, if possible, for heads."""
        entities, relations = task.graph.entities, task.graph.relations
        rows: list[dict[str, Any]] = []
        for triple in task.graph.train[: NUM_QUERIES // 2]:
            relation = relations.name(triple[RELATION])
            rows.append({"head": entities.name(triple[HEAD]), "relation": relation})
            if task.inverse_relations:
                rows.append({"tail": entities.name(triple[TAIL]), "relation": relation})
        return rows

    def load(self, folder: Path) -> Predictor:
        return load_predictor(folder)

    def answer(
        self, loaded: Predictor, rows: Sequence[Row], settings: QuerySettings
    ) -> list[dict[str, Any]]:
        for row in rows:
            if any(not isinstance(value, str) for value in row.values()):
                raise ConfigError(f"a row holds {str(dict(row))[:100]}; expected {self.expects}")
        limits = Limits(settings.head_kind, settings.tail_kind, seen=settings.seen)
        queries = [
            Query(
                row.get("relation", ""), head=row.get("head") or None, tail=row.get("tail") or None
            )
            for row in rows
        ]
        found = iter(
            loaded.predict(
                [query for query in queries if not query.is_triple],
                top_k=settings.top_k,
                filter_known=settings.filter_known,
                limits=limits,
            )
        )
        return [
            _scored(loaded, query, limits) if query.is_triple else next(found).as_dict()
            for query in queries
        ]

    def agree(self, one: Row, other: Row) -> bool:
        """Compare the entities, their order and their scores."""
        pairs = list(zip(one["answers"], other["answers"], strict=False))
        return len(one["answers"]) == len(other["answers"]) and all(
            {k: v for k, v in a.items() if isinstance(v, str)}
            == {k: v for k, v in b.items() if isinstance(v, str)}
            and abs(a["score"] - b["score"]) <= TOLERANCE
            for a, b in pairs
        )


def _scored(loaded: Predictor, query: Query, limits: Limits) -> dict[str, Any]:
    """Return the score, probability and ranks of a whole triple."""
    (row,) = scored_triples(loaded, [(query.head, query.relation, query.tail)], limits).to_pylist()
    return {name: row[name] for name in ("head", "relation", "tail", *OF_TRIPLE, "known")}
