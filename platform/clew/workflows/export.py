"""Exports a graph model as a program without Python code, and its named embeddings.

    entities.parquet    id, name, label, kind, bias, embedding
    relations.parquet   id, name, label, inverse, embedding; row r + R is the inverse of row r
    scores.pt2          (head, relation) ids -> scores of all entities
    scores.onnx         the same for ONNX Runtime, if asked for
    export.json         the model, inputs and outputs of the program, and how far its results lie
                        from the model's

scores.pt2 contains no pickled data: its example inputs, which PyTorch would pickle, are left out.
It contains only PyTorch operators, so that it runs without Clew.

With a format, only the embeddings are written, for both tables:

    numpy       entities.npy, and entities.tsv with the name, label and kind of each row
    word2vec    entities.txt: number of rows and columns, then a name and its numbers on each line
    projector   entities_vectors.tsv, entities.tsv and projector_config.pbtxt for TensorBoard
"""

import importlib
import logging
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from clew import __version__
from clew.config.data import TripleData
from clew.errors import ConfigError, DataError, described, extra
from clew.files import write_json, write_whole
from clew.link_prediction.models.base import EntityScorer, GraphModel
from clew.link_prediction.vocabulary import Vocabulary
from clew.workflows.model_source import ModelSource, open_model
from clew.workflows.outputs import check_new_folder
from clew.workflows.predict import open_predictor

logger = logging.getLogger(__name__)

SUMMARY_FILE = "export.json"
PROGRAM_FILE, ONNX_FILE = "scores.pt2", "scores.onnx"
NUM_CHECKED = 65
MAX_DIFFERENCE = 1e-5
"""Allowed difference from the model's result, relative to the largest result if that exceeds 1."""
PROJECTOR_FILE = "projector_config.pbtxt"
Format = Literal["parquet", "numpy", "word2vec", "projector"]
INPUTS = {
    "head": "(batch,) int64: id of an entity",
    "relation": "(batch,) int64: id of a relation, or of an inverse one",
}
OUTPUTS = {"scores": "(batch, entity) float32: score of each entity as the tail"}
Scores = Callable[[Tensor, Tensor], Tensor]
Writer = Callable[[ExportedProgram, Path], Scores]
"""Writes a program to a file, and returns the program that it reads from there."""


@dataclass(frozen=True)
class ProgramCheck:
    """The difference between the exported program and the model, or why there is no program."""

    exported: bool
    max_difference: float | None = None
    num_examples: int = 0
    reason: str = ""

    def line(self) -> str:
        """Return one line of text for the table of files."""
        if not self.exported:
            return f"not exported: {self.reason}"
        return (
            f"equals the model within {self.max_difference:.1g} on {self.num_examples:,} examples"
        )


@dataclass(frozen=True)
class ExportResult:
    """The files that were written, and their folder."""

    folder: Path
    model: str
    files: Mapping[str, str]
    """Name of each file other than a program to a short description."""
    programs: Mapping[str, ProgramCheck] = field(default_factory=dict)
    """By file; empty if only the embeddings were requested."""

    def table(self) -> str:
        """Return the model and the files, one per line."""
        files = {**self.files, **{name: one.line() for name, one in self.programs.items()}}
        lines = [f"{self.folder / name}: {what}" for name, what in files.items()]
        return "\n".join([f"model: {self.model}", *lines])


def export(
    model: str, output_dir: Path, embeddings: Format | None = None, *, onnx: bool = False
) -> ExportResult:
    """Write a graph model's program and its embeddings into a new folder.

    With a format, only the embeddings are written. With `onnx`, the program is written for ONNX
    Runtime too.
    """
    if onnx:
        with extra("onnx"):
            for package in ("onnxruntime", "onnxscript"):
                importlib.import_module(package)
    check_new_folder("--output-dir", output_dir)
    with open_model(model) as source:
        if not isinstance(source.config.data, TripleData):
            raise ConfigError(
                f"{source.title} is not a graph model; clew export writes only those. Promote it "
                "and use mlflow models serve, or see Export in docs/serve.md"
            )
        predictor, _ = open_predictor(source)
        network = predictor.model
        entities, relations, bias = predictor.entities, predictor.relations, network.tail_bias()
        more = {
            "bias": None if bias is None else pa.array(bias.detach().numpy()),
            "kind": entities.category_array,
        }
        inverse = pa.array(np.arange(network.relation.num_embeddings) >= len(relations))
        tables = {
            "entities": embedding_table(entities, network.entity, more),
            "relations": embedding_table(relations, network.relation, {"inverse": inverse}),
        }
        if embeddings == "word2vec":
            for name, table in tables.items():
                words_of(name, table)  # before anything is written
        output_dir.mkdir(parents=True, exist_ok=True)
        files: dict[str, str] = {}
        for name, table in tables.items():
            rows = f"{table.num_rows:,} rows of {table['embedding'].type.list_size}"
            written = write_embeddings(output_dir, name, table, embeddings or "parquet")
            files |= dict.fromkeys(written, rows)
        if embeddings is not None:
            return ExportResult(output_dir, source.title, files)
        writers = {PROGRAM_FILE: torch_program} | ({ONNX_FILE: onnx_program} if onnx else {})
        programs = {
            name: export_program(network, output_dir / name, write)
            for name, write in writers.items()
        }
        write_json(output_dir / SUMMARY_FILE, _summary(source, programs))
        return ExportResult(output_dir, source.title, files, programs)


def _summary(source: ModelSource, programs: Mapping[str, ProgramCheck]) -> dict[str, object]:
    return {
        "model": source.title,
        "task": source.manifest.task,
        "run_id": source.run_id,
        "config_hash": source.manifest.config_hash,
        "data_fingerprint": source.manifest.data_fingerprint,
        "checkpoint_step": source.manifest.step,
        "clew_version": __version__,
        "torch_version": torch.__version__,
        "programs": {name: asdict(program) for name, program in programs.items()},
        "inputs": INPUTS,
        "outputs": OUTPUTS,
    }


def torch_program(program: ExportedProgram, path: Path) -> Scores:
    program.example_inputs = None
    torch.export.save(program, path)
    return torch.export.load(path).module()


def onnx_program(program: ExportedProgram, path: Path) -> Scores:
    from onnxruntime import InferenceSession

    # It warns, for each operator of torchvision, that torchvision is not installed.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    written = torch.onnx.export(
        program, dynamo=True, input_names=list(INPUTS), output_names=list(OUTPUTS), verbose=False
    )
    assert written is not None
    written.save(path)
    session = InferenceSession(path)

    def scores(head: Tensor, relation: Tensor) -> Tensor:
        inputs = {"head": head.numpy(), "relation": relation.numpy()}
        return torch.from_numpy(session.run(None, inputs)[0])

    return scores


@torch.no_grad()
def export_program(model: GraphModel, path: Path, write: Writer = torch_program) -> ProgramCheck:
    """Write the model as a program; keep it if its answers to random queries equal the model's."""
    generator = torch.Generator().manual_seed(0)
    head, relation = (
        torch.randint(table.num_embeddings, (NUM_CHECKED,), generator=generator)
        for table in (model.entity, model.relation)
    )
    module, examples = EntityScorer(model.eval()), [(head, relation), (head[:1], relation[:1])]
    batch = torch.export.Dim("batch", min=1)
    shapes = {"head": {0: batch}, "relation": {0: batch}}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 raises it in its own code
            loaded = write(torch.export.export(module, examples[0], dynamic_shapes=shapes), path)
        pairs = [(loaded(*inputs), module(*inputs)) for inputs in examples]
    except Exception as error:  # torch raises many types of error for models it cannot export
        path.unlink(missing_ok=True)
        logger.warning("%s cannot be written for this model: %s", path.name, described(error))
        return ProgramCheck(False, reason=described(error))
    difference = float(torch.stack([(one - other).abs().max() for one, other in pairs]).max())
    allowed = MAX_DIFFERENCE * max(1.0, *(float(other.abs().max()) for _, other in pairs))
    num_examples = sum(len(inputs[0]) for inputs in examples)
    if not difference <= allowed:
        path.unlink()
        reason = f"its results differ by {difference:.2g}, at most {allowed:.1g} is allowed"
        logger.warning("the exported program is not kept: %s", reason)
        return ProgramCheck(False, difference, num_examples, reason)
    return ProgramCheck(True, difference, num_examples)


def words_of(name: str, table: pa.Table) -> list[str]:
    """Return the name of each row without spaces, which word2vec's format needs.

    Raises:
        DataError: Two of them are equal.
    """
    names = (re.sub(r"\s+", "_", given.strip()) for given in table["name"].to_pylist())
    has_inverses = "inverse" in table.column_names
    ends = table["inverse"].to_pylist() if has_inverses else [False] * len(table)
    words = [word + "_inverse" * end for word, end in zip(names, ends, strict=True)]
    if len(set(words)) < len(words):
        raise DataError(
            f"two {name} have one name in word2vec's format, without spaces; use another format"
        )
    return words


def write_embeddings(folder: Path, name: str, table: pa.Table, form: Format) -> list[str]:
    """Write a table of embeddings in a format, and return the names of its files."""
    if form == "parquet":
        pq.write_table(table, folder / f"{name}.parquet")
        return [f"{name}.parquet"]
    vectors = table["embedding"].combine_chunks().flatten().to_numpy()
    vectors = vectors.reshape(table.num_rows, -1)
    if form == "word2vec":
        words = words_of(name, table)
        with (folder / f"{name}.txt").open("w", encoding="utf-8") as file:
            file.write(f"{len(vectors)} {vectors.shape[1]}\n")
            for word, row in zip(words, vectors, strict=True):
                file.write(" ".join([word, *map(str, row)]) + "\n")
        return [f"{name}.txt"]
    columns = [key for key in ("name", "label", "kind", "inverse") if key in table.column_names]
    told = [
        ["" if value is None else " ".join(str(value).split()) for value in row.values()]
        for row in table.select(columns).to_pylist()
    ]
    lines = ["\t".join(row) for row in [columns, *told]]
    write_whole(folder / f"{name}.tsv", "\n".join(lines) + "\n")
    if form == "numpy":
        np.save(folder / f"{name}.npy", vectors)
        return [f"{name}.npy", f"{name}.tsv"]
    np.savetxt(folder / f"{name}_vectors.tsv", vectors, fmt="%.9g", delimiter="\t")
    with (folder / PROJECTOR_FILE).open("a", encoding="utf-8") as file:
        file.write(
            f'embeddings {{\n  tensor_name: "{name}"\n  tensor_path: "{name}_vectors.tsv"\n'
            f'  metadata_path: "{name}.tsv"\n}}\n'
        )
    return [f"{name}_vectors.tsv", f"{name}.tsv", PROJECTOR_FILE]


def embedding_table(
    vocabulary: Vocabulary, embedding: nn.Embedding, more: Mapping[str, pa.Array | None]
) -> pa.Table:
    """Return a row for each name and, if there are more rows than names, for its inverse."""
    num_rows, values = embedding.num_embeddings, pa.array(embedding.weight.detach().numpy().ravel())
    times = num_rows // len(vocabulary)
    label = vocabulary.label_array
    label = pa.nulls(len(vocabulary), pa.string()) if label is None else label
    columns = {
        "id": pa.array(np.arange(num_rows, dtype=np.int32)),
        "name": pa.concat_arrays([vocabulary.name_array] * times),
        "label": pa.concat_arrays([label] * times),
        **{name: column for name, column in more.items() if column is not None},
        "embedding": pa.FixedSizeListArray.from_arrays(values, embedding.embedding_dim),
    }
    return pa.table(columns)
