"""Graphs as a subject: requests are queries by name, answers are ranked entities.

A model folder has all that answering needs: a checkpoint, the names and the known triples.

    model.safetensors  manifest.json      the checkpoint
    vocabulary/entities.parquet           id, name, label
    vocabulary/relations.parquet
    known.parquet                         training triples: head, relation, tail as ids
    calibration.json                      fitted temperature; only if there was data to fit it
    answer_sets.parquet                   surprises for answer sets; only if there was data

Prediction from this folder needs no data set and no tracking store. A registered model contains
such a folder.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from clew import names
from clew.config.data import TripleData
from clew.config.graph_models import GRAPH_MODELS, GraphModelSettings
from clew.config.load import from_mapping
from clew.config.schema import RunConfig
from clew.errors import CheckpointError, ConfigError, DataError, counted
from clew.files import working_folder
from clew.input_files import read_columns
from clew.link_prediction.calibration import AnswerSets, Calibration
from clew.link_prediction.candidates import Limits, scored_triples
from clew.link_prediction.models.base import GraphModel, build_graph_model
from clew.link_prediction.prediction import Predictor, Query
from clew.link_prediction.sources import load_graph
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import HEAD, RELATION, TAIL, FilterIndex, KnowledgeGraph, Triples
from clew.link_prediction.vocabulary import Vocabulary
from clew.subject import Forms, Row, Settings, Subject
from clew.training.checkpoints import copy_weights, read_model
from clew.training.manifest import MANIFEST_FILE, read_manifest

VOCABULARY_FOLDER = "vocabulary"
ENTITIES_FILE = "entities.parquet"
RELATIONS_FILE = "relations.parquet"
KNOWN_FILE = "known.parquet"
CALIBRATION_FILE = "calibration.json"
ANSWER_SETS_FILE = "answer_sets.parquet"
NUM_QUERIES = 8
"""Number of queries that a candidate must answer before it is promoted."""
OF_TRIPLE = ("score", "probability", "head_rank", "tail_rank")
"""Numbers that answer a row with a whole triple."""
TOLERANCE = 1e-4
"""Allowed difference between a served score and the checkpoint's."""

SCORES_OF_ANSWER = 1000
"""Number of scores that take as long as an answer with its names."""
ASKED_AT_ONCE = 1024
"""Questions whose known answers are in memory together."""
MOST_COUNTS = 100_000_000
"""Entities times relations up to which the most frequent answers are ranked."""
SEEDS_DIFFER = {
    "umls": "umls_long 0.953 ± 0.003 over five",
    "codex-s": "codex_s_complex 0.470 ± 0.007 over three",
    "WN18RR": "wn18rr_complex 0.476 ± 0.002 over three",
    "FB15k-237": "fb15k237_complex 0.364 ± 0.001 over three",
}
"""A preset's test MRR over seeds, by data set: see docs/train.md."""


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
    intended_use = (
        "ranks candidate answers to questions about the entities of its graph, for people who "
        "check them; a high rank is no evidence that an answer is true"
    )
    columns: ClassVar[Mapping[str, str]] = dict.fromkeys(("head", "relation", "tail"), "string")
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
    most_work = 100_000_000
    unit_of_work = f"scores (rows x candidates, and {SCORES_OF_ANSWER} for each answer)"

    def build_task(self, config: RunConfig) -> LinkPrediction:
        assert isinstance(config.data, TripleData)
        return LinkPrediction(load_graph(config.data), config)

    def describe_data(self, task: LinkPrediction) -> str:
        graph = task.graph
        return (
            f"{counted(graph.num_entities, 'entity')}, {counted(graph.num_relations, 'relation')}; "
            f"{len(graph.train):,} triples to train, {len(graph.valid):,} to validate, "
            f"{len(graph.test):,} to test"
        )

    def findings(self, task: LinkPrediction) -> list[str]:
        return [str(finding) for finding in task.data_report.findings]

    def summary(self, task: LinkPrediction, metrics: Mapping[str, float], split: str) -> list[str]:
        shown = {"MRR": names.MRR, **{f"Hits@{k}": names.hits_at(k) for k in (1, 10)}}
        found = {title: metrics[names.metric(split, name)] for title, name in shown.items()}
        values = ", ".join(f"{title} {value:.3f}" for title, value in found.items())
        lines = [
            f"quality: {values} on the {split} triples, among {task.graph.num_entities:,} entities"
        ]
        triples = task.graph.test if split == "test" else task.graph.valid
        guessed = most_frequent_mrr(task.graph, triples)
        if guessed is not None:
            times = found["MRR"] / guessed
            worth = (
                f"{times:.1f} times as good" if times > 1 else "no better: do not use this model"
            )
            lines.append(
                f"against each relation's most frequent answers, MRR {guessed:.3f}: {worth}"
            )
        if split == "test" and task.dataset in SEEDS_DIFFER:
            lines.append(f"one seed; test MRR of the preset {SEEDS_DIFFER[task.dataset]} seeds")
        return lines

    def verbs(self, task: LinkPrediction) -> list[list[str]]:
        graph = task.graph
        head, relation, tail = (graph.test if len(graph.test) else graph.train)[0].tolist()
        query = graph.entities.name(head), graph.relations.name(relation)
        fact = ",".join((*query, graph.entities.name(tail)))
        asked = ["predict", "--head", query[0], "--relation", query[1]]
        return [asked, ["tracin", "--test", fact]]

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

    def work(
        self, loaded: Predictor, num_rows: int, num_bytes: int, settings: QuerySettings
    ) -> int:
        num_answers = min(settings.top_k, loaded.num_entities)
        return max(num_rows, 1) * (loaded.num_entities + SCORES_OF_ANSWER * num_answers)

    def answer(
        self, loaded: Predictor, rows: Sequence[Row], settings: QuerySettings
    ) -> list[dict[str, Any]]:
        for row in rows:
            if any(not isinstance(value, str) for value in row.values()):
                raise ConfigError(f"a row holds {str(dict(row))[:100]}; expected {self.expects}")
        limits = Limits(settings.head_kind, settings.tail_kind, seen=settings.seen)
        queries = [Query(row.get("relation", ""), row.get("head"), row.get("tail")) for row in rows]
        questions = [query for query in queries if not query.is_triple]
        top_k, only_new = settings.top_k, settings.filter_known
        found = iter(loaded.predict(questions, top_k=top_k, filter_known=only_new, limits=limits))
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


def most_frequent_mrr(graph: KnowledgeGraph, triples: Triples) -> float | None:
    """Return the filtered MRR of ranking entities by how often a relation has them in training.

    None for graphs so large that counting would take long.
    """
    if graph.num_entities * graph.num_relations > MOST_COUNTS or not len(triples):
        return None
    known = FilterIndex.of_questions(graph, triples)
    train, asked = graph.with_inverses(graph.train), graph.with_inverses(triples)
    total = 0.0
    for relation in np.unique(asked[:, RELATION]):
        tails = train[train[:, RELATION] == relation, TAIL]
        counts = np.bincount(tails, minlength=graph.num_entities)
        ordered, same = np.sort(counts), asked[asked[:, RELATION] == relation]
        # The known answers to all questions at once would take gigabytes.
        for own in np.array_split(same, -(-len(same) // ASKED_AT_ONCE)):
            answer = counts[own[:, TAIL]]
            row, entity = known.lookup(own[:, HEAD], own[:, RELATION])
            row, entity = (x[entity != own[row, TAIL]] for x in (row, entity))
            # The rank is the mean of the optimistic and the pessimistic one, as for models.
            at_least = len(ordered) - np.searchsorted(ordered, answer, "left")
            above = len(ordered) - np.searchsorted(ordered, answer, "right")
            at_least -= np.bincount(row[counts[entity] >= answer[row]], minlength=len(own))
            above -= np.bincount(row[counts[entity] > answer[row]], minlength=len(own))
            total += float((2.0 / (at_least + above + 1)).sum())
    return total / len(asked)


def _scored(loaded: Predictor, query: Query, limits: Limits) -> dict[str, Any]:
    """Return the score, probability and ranks of a whole triple."""
    (row,) = scored_triples(loaded, [(query.head, query.relation, query.tail)], limits).to_pylist()
    return {name: row[name] for name in ("head", "relation", "tail", *OF_TRIPLE, "known")}


def write_model_folder(
    folder: Path,
    *,
    checkpoint: Path,
    vocabulary: Path,
    known: Triples | None = None,
    calibration: Calibration | None = None,
) -> Path:
    """Copy a checkpoint and everything else that prediction needs into a new folder."""
    folder.mkdir(parents=True)
    copy_weights(checkpoint, folder)
    (folder / VOCABULARY_FOLDER).mkdir()
    for name in (ENTITIES_FILE, RELATIONS_FILE):
        shutil.copy2(vocabulary / name, folder / VOCABULARY_FOLDER / name)
    if known is not None:
        write_known(folder / KNOWN_FILE, known)
    if calibration is not None:
        calibration.write(folder / CALIBRATION_FILE)
    return folder


def load_predictor(folder: Path) -> Predictor:
    """Load a folder written by `write_model_folder`."""
    entities, relations = read_vocabularies(folder / VOCABULARY_FOLDER)
    calibration, answer_sets = folder / CALIBRATION_FILE, folder / ANSWER_SETS_FILE
    known = folder / KNOWN_FILE
    triples = read_known(known) if known.is_file() else None
    limits = len(entities), len(relations), len(entities)
    if triples is not None and not ((triples >= 0) & (triples < limits)).all():
        raise DataError(f"{known}: contains an id that the model's vocabulary does not have")
    return Predictor(
        load_graph_model(folder, len(entities), len(relations)),
        entities,
        relations,
        known=None if triples is None else FilterIndex.in_both_directions(triples, len(relations)),
        calibration=Calibration.read(calibration) if calibration.is_file() else None,
        answer_sets=AnswerSets.read(answer_sets) if answer_sets.is_file() else None,
    )


def read_vocabularies(folder: Path) -> tuple[Vocabulary, Vocabulary]:
    return (
        Vocabulary.read(folder / ENTITIES_FILE, "entity"),
        Vocabulary.read(folder / RELATIONS_FILE, "relation"),
    )


def load_graph_model(checkpoint: Path, num_entities: int, num_relations: int) -> GraphModel:
    """Build the model of a link-prediction checkpoint, and load its parameters."""
    manifest = read_manifest(checkpoint)
    config = from_mapping(manifest.config, source=str(checkpoint / MANIFEST_FILE))
    if not (isinstance(config.data, TripleData) and isinstance(config.model, GraphModelSettings)):
        raise CheckpointError(
            f"{checkpoint}: a {config.model.kind} model on {config.data.kind}, expected "
            f"{' or '.join(GRAPH_MODELS)} on triples; only link prediction answers queries by name"
        )
    num_rows = num_relations * (2 if config.data.inverse_relations else 1)
    settings = config.model
    return read_model(checkpoint, lambda: build_graph_model(settings, num_entities, num_rows))


def write_known(path: Path, triples: Triples) -> None:
    """Write training triples as ids, sorted, so that they compress well."""
    ordered = triples[np.lexsort((triples[:, TAIL], triples[:, HEAD], triples[:, RELATION]))]
    columns = {name: ordered[:, i] for i, name in enumerate(("head", "relation", "tail"))}
    pq.write_table(pa.table(columns), path, compression="zstd")


def read_known(path: Path) -> Triples:
    types = dict.fromkeys(("head", "relation", "tail"), pa.int32())
    table = read_columns(path, types, "a file of known triples")
    if any(column.null_count for column in table.columns):
        raise DataError(f"{path}: an id is missing; expected three in each row")
    return np.stack([column.to_numpy() for column in table.columns], axis=1)
