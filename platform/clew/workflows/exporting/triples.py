"""Exports a graph model as named embeddings and a program that returns scores.

entities.parquet    id, name, label, bias, embedding
relations.parquet   id, name, label, inverse, embedding; row r + R is the inverse of row r
scores.pt2          (head, relation) ids -> scores of all entities
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.vocabulary import Vocabulary
from clew.workflows.exporting.program import Exported, ProgramCheck, rows_of, write_program
from clew.workflows.model_source import ModelSource
from clew.workflows.predicting.predict import open_predictor

ENTITIES_FILE = "entities.parquet"
RELATIONS_FILE = "relations.parquet"
PROGRAM_FILE = "scores.pt2"
NUM_CHECKED = 65
INPUTS = {
    "head": "(batch,) int64: id of an entity",
    "relation": "(batch,) int64: id of a relation, or of an inverse one",
}
OUTPUTS = {"scores": "(batch, entity) float32: score of each entity as the tail"}


class ExportedModel(nn.Module):
    """A graph model that takes ids and returns the scores of all entities."""

    def __init__(self, model: GraphModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, head: Tensor, relation: Tensor) -> Tensor:
        """Return `(batch, entity)` scores of `(batch,)` heads and relations."""
        return self.model.scores(self.model.queries(head, relation))


def export_triples(source: ModelSource, folder: Path) -> Exported:
    """Write a graph model into a folder."""
    predictor, _ = open_predictor(source)
    model = predictor.model
    pq.write_table(_entity_table(model, predictor.entities), folder / ENTITIES_FILE)
    pq.write_table(_relation_table(model, predictor.relations), folder / RELATIONS_FILE)
    dim = model.entity.embedding_dim
    return Exported(
        files={
            ENTITIES_FILE: f"{model.entity.num_embeddings:,} rows of {dim}",
            RELATIONS_FILE: f"{model.relation.num_embeddings:,} rows of {dim}",
        },
        program_file=PROGRAM_FILE,
        program=export_program(model, folder / PROGRAM_FILE),
        said={"inputs": INPUTS, "outputs": OUTPUTS},
    )


def export_program(model: GraphModel, path: Path) -> ProgramCheck:
    """Write the model as a program, and compare both on random queries with a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    head, relation = (
        torch.randint(table.num_embeddings, (NUM_CHECKED,), generator=generator)
        for table in (model.entity, model.relation)
    )
    batch = torch.export.Dim("batch", min=1)
    return write_program(
        ExportedModel(model.eval()),
        path,
        [(head, relation), (head[:1], relation[:1])],
        dynamic={"head": {0: batch}, "relation": {0: batch}},
    )


def _entity_table(model: GraphModel, entities: Vocabulary) -> pa.Table:
    bias = model.tail_bias()
    columns = _name_columns(entities)
    if bias is not None:
        columns["bias"] = pa.array(bias.detach().numpy())
    return pa.table(columns | {"embedding": rows_of(model.entity)})


def _relation_table(model: GraphModel, relations: Vocabulary) -> pa.Table:
    num_directions = model.relation.num_embeddings // len(relations)
    columns = {
        key: pa.concat_arrays([column] * num_directions)
        for key, column in _name_columns(relations).items()
    }
    columns["id"] = pa.array(np.arange(model.relation.num_embeddings, dtype=np.int32))
    inverse = np.arange(model.relation.num_embeddings) >= len(relations)
    return pa.table(columns | {"inverse": pa.array(inverse), "embedding": rows_of(model.relation)})


def _name_columns(vocabulary: Vocabulary) -> dict[str, pa.Array]:
    labels = vocabulary.label_array
    return {
        "id": pa.array(np.arange(len(vocabulary), dtype=np.int32)),
        "name": vocabulary.name_array,
        "label": labels if labels is not None else pa.nulls(len(vocabulary), pa.string()),
    }
