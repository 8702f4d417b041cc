"""Cases that the attack found in data: converted and packed graphs, arrays, prompts, sampling."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
import torch

from clew.config.data import ImportSettings
from clew.errors import NonFiniteLossError
from clew.image_sequences import files
from clew.image_sequences.files import read_frames
from clew.image_sequences.prediction import WindowPredictor
from clew.input_files import columns_of
from clew.language_modeling.model import Sampling
from clew.language_modeling.tokenizers import FileTokenizer
from clew.link_prediction.imports import import_graph
from clew.link_prediction.sources import PACKED_KEY as KEY
from clew.link_prediction.sources import PACKED_SCHEMA as SCHEMA
from clew.link_prediction.sources import pack_graph, read_packed
from clew.link_prediction.triple_files import GraphFiles
from clew.workflows.predict_windows import read_texts
from tests.attack.cases import refused
from tests.image_sequences.sequence_files import sequence_columns, write_hdf5


def test_texts_in_hdf5_that_are_searched_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_hdf5(tmp_path / "frames.h5", sequence_columns())
    whole = path.read_bytes()
    second = whole.index(b"GCOL") + 40  # after the heap's 16-byte header and 24 bytes of text
    path.write_bytes(whole[:second] + b'"' + whole[second:])
    monkeypatch.setattr(files, "MAX_PROCESSOR_SECONDS", 0.2)
    refused(lambda: read_frames(path), "HDF5 cannot read the file")


@pytest.mark.parametrize(
    ("edge", "says"),
    [
        ("[" * 100_000, "line 1: not"),
        (
            json.dumps({"subject": "x" * 9_000 + "\n", "predicate": "p", "object": "o"}),
            "not a name",
        ),
        (json.dumps({"subject": 1, "predicate": [], "object": "o"}), "line 1: not"),
    ],
)
def test_edges_that_are_none(tmp_path: Path, edge: str, says: str) -> None:
    (tmp_path / "nodes.jsonl").write_text('{"id": "a"}\n')
    (tmp_path / "edges.jsonl").write_text(f"{edge}\n")
    refused(lambda: import_graph("g", [tmp_path], ImportSettings()), says)


def test_a_graph_of_no_edges_is_not_converted(tmp_path: Path) -> None:
    (tmp_path / "nodes.tsv").write_text("id\tname\n")
    (tmp_path / "edges.tsv").write_text("subject\tpredicate\tobject\n")
    refused(lambda: import_graph("g", [tmp_path], ImportSettings()), "edges.tsv")
    (tmp_path / "edges.tsv").write_text("\x1b[2J" * 900 + "\n")
    refused(lambda: import_graph("g", [tmp_path], ImportSettings()), "edges.tsv")


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    (tmp_path / "train.txt").write_text("a\tlikes\tb\nb\tlikes\ta\n")
    pack_graph("g", GraphFiles(tmp_path / "train.txt"), tmp_path / "packed")
    return tmp_path / "packed"


LISTS = SCHEMA.field("train").type


@pytest.mark.parametrize(
    ("train", "says"),
    [
        (pa.array([1]), "other columns"),
        (pa.array([[[0, 0, 7]]], LISTS), "an id that no name has"),
        (pa.array([[[0, 0, -1]]], LISTS), "an id that no name has"),
        (pa.array([[[0, 0, 1], None]], LISTS), "changed since it was packed"),
        (pa.array([None], LISTS), "changed since it was packed"),
    ],
)
def test_packed_triples_that_are_none(packed: Path, train: pa.Array, says: str) -> None:
    table = pa.ipc.open_file(pa.BufferReader(packed.read_bytes())).read_all()
    table = table.set_column(0, "train", train)
    packed.unlink()
    with pa.ipc.new_file(str(packed), table.schema) as writer:
        writer.write_table(table)
    refused(lambda: read_packed(packed), says)


@pytest.mark.parametrize("said", [b"{}", b"\xff", b'{"format": 1' + b"9" * 5000 + b"}", b"[]"])
def test_metadata_of_packed_triples_that_are_none(packed: Path, said: bytes) -> None:
    table = pa.ipc.open_file(pa.BufferReader(packed.read_bytes())).read_all()
    packed.unlink()
    table = table.replace_schema_metadata({KEY: said})
    with pa.ipc.new_file(str(packed), table.schema) as writer:
        writer.write_table(table)
    refused(lambda: read_packed(packed), "not written by clew data --pack")


@pytest.mark.parametrize("name", ["target", "scalars", "images"])
def test_sizes_that_no_memory_holds(tmp_path: Path, name: str) -> None:
    path = tmp_path / "frames.h5"
    shapes = {"target": (2**45,), "scalars": (4, 2**45), "images": (4, 2**30, 2**30)}
    with h5py.File(path, "w") as file:
        file["images"], file["target"] = np.zeros((4, 2, 2)), np.zeros(4)
        file.pop(name, None)
        shape = shapes[name]
        file.create_dataset(name, shape=shape, dtype="f4", chunks=(1,) * len(shape))
    refused(lambda: read_frames(path).images.read(np.array([0])), name)


def test_a_parquet_file_with_a_column_whose_name_is_no_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "values.parquet"
    pq.write_table(pa.table({"value": [1.0], "other": [2.0]}), path)
    path.write_bytes(path.read_bytes().replace(b"other", b"oth\xf4r"))
    refused(lambda: columns_of(path, "a table of values"), "not a table of values")


def test_a_zarr_array_without_axes(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="pip install 'clew[zarr]'")
    group = zarr.open_group(str(tmp_path / "x.zarr"), mode="w")
    group.create_array("images", data=np.zeros(()))
    group.create_array("target", data=np.zeros(3))
    refused(lambda: read_frames(tmp_path / "x.zarr"), r"images have shape \(\)")


def test_a_tokenizer_file_that_is_not_json_though_its_library_reads_it(tmp_path: Path) -> None:
    model = tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")
    content = tokenizers.Tokenizer(model).to_str().replace('"version":"1.0"', '"ver-Infinity0null"')
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    tokenizers.Tokenizer.from_str(content)
    refused(lambda: FileTokenizer(path), "not a tokenizer")


def test_a_tokenizer_file_whose_decoder_is_a_list(tmp_path: Path) -> None:
    settings = json.loads(tokenizers.Tokenizer(tokenizers.models.BPE()).to_str())
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(settings | {"decoder": ["ByteLevel"]}))
    assert FileTokenizer(path).byte_lengths() is None


def test_a_tokenizer_whose_token_for_the_unknown_is_none(tmp_path: Path) -> None:
    model = tokenizers.models.WordLevel({"a": 0}, unk_token="[UNK]")
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizers.Tokenizer(model).to_str())
    refused(lambda: FileTokenizer(path).encode(b"b"), "cannot encode 'b'")


def test_a_prompt_may_hold_what_separates_lines_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one\u2028two\x85three"}\n', encoding="utf-8")
    assert [text.prompt for text in read_texts(path)] == ["one\u2028two\x85three"]


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-40, 1e-7])
def test_hardly_any_temperature_takes_the_likeliest_token(temperature: float) -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    assert Sampling(temperature).draw(logits, None).tolist() == [[1]]


@pytest.mark.parametrize("top_p", [5e-324, 1e-50, 1e-9])
def test_hardly_any_nucleus_is_the_likeliest_token(top_p: float) -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    assert Sampling(1.0, top_p=top_p).draw(logits, None).tolist() == [[1]]


def test_scores_that_are_not_finite_are_said() -> None:
    logits = torch.tensor([[1.0, float("nan")]])
    refused(lambda: Sampling(1.0).draw(logits, None), "not finite", NonFiniteLossError)


@pytest.mark.parametrize("pixels", [10**400, [[10**400, 0.0]], [[1e300, 0.0]], [["a", 0.0]]])
@pytest.mark.parametrize("finite", [True, False])
def test_pixels_that_are_no_numbers_of_a_network(pixels: Any, finite: bool) -> None:
    refused(
        lambda: WindowPredictor._array("images", pixels, (1, 2), finite=finite), "not an array of"
    )
