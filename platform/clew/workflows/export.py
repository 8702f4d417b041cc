"""Export: embeddings with their names as Parquet, and the model as a program without Python code.

    entities.parquet    id, name, label, bias, embedding
    relations.parquet   id, name, label, inverse, embedding; row r + R is the inverse of row r
    scores.pt2          torch.export program: (head, relation) ids -> scores of all entities
    export.json         which model this is, and how far the program's scores lie from the model's

Nothing in them is pickled: the program's example inputs, which torch would pickle, are left out.
"""

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from clew import __version__
from clew.errors import described
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.vocabulary import Vocabulary
from clew.workflows.model_source import open_model
from clew.workflows.outputs import check_new_folder
from clew.workflows.predict import open_predictor

logger = logging.getLogger(__name__)

ENTITIES_FILE = "entities.parquet"
RELATIONS_FILE = "relations.parquet"
PROGRAM_FILE = "scores.pt2"
SUMMARY_FILE = "export.json"
MAX_DIFFERENCE = 1e-4
NUM_CHECKED = 65


@dataclass(frozen=True)
class ProgramCheck:
    """How the exported program compares with the model, or why there is none."""

    exported: bool
    max_difference: float | None = None
    num_queries: int = 0
    reason: str = ""


@dataclass(frozen=True)
class ExportResult:
    """What was written, and where."""

    folder: Path
    model: str
    num_entities: int
    num_relations: int
    dim: int
    program: ProgramCheck

    def table(self) -> str:
        """Return what was written, one file per line."""
        program = f"not exported: {self.program.reason}"
        if self.program.exported:
            program = (
                f"equals the model within {self.program.max_difference:.1g} on "
                f"{self.program.num_queries} queries"
            )
        return "\n".join(
            [
                f"model: {self.model}",
                f"{self.folder / ENTITIES_FILE}: {self.num_entities:,} rows of {self.dim}",
                f"{self.folder / RELATIONS_FILE}: {self.num_relations:,} rows of {self.dim}",
                f"{self.folder / PROGRAM_FILE}: {program}",
            ]
        )


class ExportedModel(nn.Module):
    """A model with its entity table: ids in, scores of all entities out."""

    def __init__(self, model: GraphModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, head: Tensor, relation: Tensor) -> Tensor:
        """Return `(batch, entity)` scores of `(batch,)` heads and relations."""
        return self.model.scores(self.model(head, relation))


def export(model: str, output_dir: Path) -> ExportResult:
    """Write a model's embeddings and program into a new folder.

    Args:
        model: A run id, `models:/name@alias`, or a checkpoint folder.
        output_dir: Where to; nothing is overwritten.

    Raises:
        UsageError: the model cannot be used, or the folder is not empty.
    """
    check_new_folder("--output-dir", output_dir)
    with open_model(model) as source:
        predictor, _ = open_predictor(source)
        trained = predictor.model
        output_dir.mkdir(parents=True, exist_ok=True)
        pq.write_table(_entity_table(trained, predictor.entities), output_dir / ENTITIES_FILE)
        pq.write_table(_relation_table(trained, predictor.relations), output_dir / RELATIONS_FILE)
        result = ExportResult(
            folder=output_dir,
            model=source.title,
            num_entities=trained.entity.num_embeddings,
            num_relations=trained.relation.num_embeddings,
            dim=trained.entity.embedding_dim,
            program=export_program(trained, output_dir / PROGRAM_FILE),
        )
        origin = {
            "model": source.title,
            "run_id": source.run_id,
            "config_hash": source.manifest.config_hash,
            "data_fingerprint": source.manifest.data_fingerprint,
            "checkpoint_step": source.manifest.step,
            "clew_version": __version__,
            "torch_version": torch.__version__,
            "program": asdict(result.program),
        }
    (output_dir / SUMMARY_FILE).write_text(json.dumps(origin, indent=1) + "\n", encoding="utf-8")
    return result


def export_program(model: GraphModel, path: Path) -> ProgramCheck:
    """Write the model as a `torch.export` program, and compare what it answers once loaded."""
    scorer = ExportedModel(model.eval())
    batch = torch.export.Dim("batch", min=1)
    try:
        program = torch.export.export(
            scorer,
            (torch.tensor([0, 0]), torch.tensor([0, 0])),
            dynamic_shapes={"head": {0: batch}, "relation": {0: batch}},
        )
        program.example_inputs = None
        torch.export.save(program, path)
        difference = _difference(scorer, path)
    except Exception as error:  # whatever torch cannot export, it says in many ways
        path.unlink(missing_ok=True)
        reason = described(error)
        logger.warning("torch.export does not work for this model: %s", reason)
        return ProgramCheck(False, reason=reason)
    if not difference <= MAX_DIFFERENCE:
        path.unlink()
        reason = f"its scores differ by {difference:.2g}, at most {MAX_DIFFERENCE:g} is allowed"
        logger.warning("the exported program is not kept: %s", reason)
        return ProgramCheck(False, difference, NUM_CHECKED + 1, reason)
    return ProgramCheck(True, difference, NUM_CHECKED + 1)


@torch.no_grad()
def _difference(scorer: ExportedModel, path: Path) -> float:
    """Return the largest difference of scores between a model and its program on disk.

    The queries are drawn with a seed of their own, and asked as one batch and one alone.
    """
    loaded = torch.export.load(path).module()
    generator = torch.Generator().manual_seed(0)
    model = scorer.model
    head, relation = (
        torch.randint(table.num_embeddings, (NUM_CHECKED,), generator=generator)
        for table in (model.entity, model.relation)
    )
    batches = [(head, relation), (head[:1], relation[:1])]
    return max(float((loaded(*b) - scorer(*b)).abs().max()) for b in batches)


def _entity_table(model: GraphModel, entities: Vocabulary) -> pa.Table:
    bias = model.tail_bias()
    columns = _name_columns(entities)
    if bias is not None:
        columns["bias"] = pa.array(bias.detach().numpy())
    return pa.table(columns | {"embedding": _rows(model.entity)})


def _relation_table(model: GraphModel, relations: Vocabulary) -> pa.Table:
    num_directions = model.relation.num_embeddings // len(relations)
    columns = {
        key: pa.concat_arrays([column] * num_directions)
        for key, column in _name_columns(relations).items()
    }
    columns["id"] = pa.array(np.arange(model.relation.num_embeddings, dtype=np.int32))
    inverse = np.arange(model.relation.num_embeddings) >= len(relations)
    return pa.table(columns | {"inverse": pa.array(inverse), "embedding": _rows(model.relation)})


def _name_columns(vocabulary: Vocabulary) -> dict[str, pa.Array]:
    labels = vocabulary.label_array
    return {
        "id": pa.array(np.arange(len(vocabulary), dtype=np.int32)),
        "name": vocabulary.name_array,
        "label": labels if labels is not None else pa.nulls(len(vocabulary), pa.string()),
    }


def _rows(table: nn.Embedding) -> pa.FixedSizeListArray:
    """Return an embedding table with one list for each row, float32."""
    values = pa.array(table.weight.detach().numpy().ravel())
    return pa.FixedSizeListArray.from_arrays(values, table.embedding_dim)
