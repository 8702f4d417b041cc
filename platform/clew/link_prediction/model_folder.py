"""A folder with all that answering queries needs: a checkpoint, the names and the known triples.

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
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clew.config.data import TripleData
from clew.config.graph_models import GRAPH_MODELS, GraphModelSettings
from clew.config.load import from_mapping
from clew.errors import CheckpointError, DataError
from clew.input_files import read_columns
from clew.link_prediction.calibration import AnswerSets, Calibration
from clew.link_prediction.models.base import GraphModel, build_graph_model
from clew.link_prediction.prediction import Predictor
from clew.link_prediction.triples import HEAD, RELATION, TAIL, FilterIndex, Triples
from clew.link_prediction.vocabulary import Vocabulary
from clew.training.checkpoints import copy_weights, read_model
from clew.training.manifest import MANIFEST_FILE, read_manifest

VOCABULARY_FOLDER = "vocabulary"
ENTITIES_FILE = "entities.parquet"
RELATIONS_FILE = "relations.parquet"
KNOWN_FILE = "known.parquet"
CALIBRATION_FILE = "calibration.json"
ANSWER_SETS_FILE = "answer_sets.parquet"


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
