"""Exported files against their model, with the program in a process without Clew."""

import contextlib
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn

import clew
from clew.__main__ import run as run_command
from clew.config.graph_models import ConvEModel, GraphModelConfig, GraphModelSettings
from clew.errors import ConfigError, DataError, UsageError
from clew.link_prediction.models.base import build_graph_model
from clew.link_prediction.models.conve import ConvE
from clew.workflows.export import (
    Writer,
    export,
    export_program,
    onnx_program,
    torch_program,
    write_embeddings,
)
from clew.workflows.model_source import open_model
from clew.workflows.predict import open_predictor
from clew.workflows.train import train
from tests.workflows.trained import StoredRun, TrainedStore, small_config


@pytest.fixture(scope="module")
def exported(trained_runs: TrainedStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export with the command line."""
    folder, printed = tmp_path_factory.mktemp("export") / "files", io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setenv("MLFLOW_TRACKING_URI", trained_runs.uri)
        options = ["--model", trained_runs.strong, "--output-dir", str(folder), "--onnx"]
        assert run_command(["export", *options]) == 0
    assert "equals the model within" in printed.getvalue()
    return folder


def test_embeddings_are_those_of_the_model(trained: TrainedStore, exported: Path) -> None:
    with open_model(trained.strong) as source:
        predictor, _ = open_predictor(source)
    model, num_relations = predictor.model, len(predictor.relations)
    entities = pd.read_parquet(exported / "entities.parquet")
    assert list(entities["name"]) == list(predictor.entities)
    assert list(entities["id"]) == list(range(len(predictor.entities)))
    np.testing.assert_array_equal(np.stack(entities["embedding"]), model.entity.weight.detach())
    np.testing.assert_array_equal(entities["bias"], model.entity_bias.detach())
    relations = pd.read_parquet(exported / "relations.parquet")
    assert list(relations["id"]) == list(range(2 * num_relations))
    assert list(relations["name"]) == 2 * list(predictor.relations)
    assert list(relations["inverse"]) == num_relations * [False] + num_relations * [True]
    np.testing.assert_array_equal(np.stack(relations["embedding"]), model.relation.weight.detach())


def read_word2vec(path: Path) -> dict[str, np.ndarray]:
    """Read the format as gensim does: the first line has sizes, a line has a name and numbers."""
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    rows, columns = map(int, first.split())
    found = {line.split(" ")[0]: np.float32(line.split(" ")[1:]) for line in lines}
    assert len(found) == rows
    assert {len(values) for values in found.values()} == {columns}
    return found


@pytest.mark.parametrize("form", ["parquet", "numpy", "word2vec", "projector"])
def test_embeddings_alone_are_the_same_in_each_format(
    trained: TrainedStore, tmp_path: Path, form: str
) -> None:
    folder = tmp_path / "out"
    options = ["--model", trained.strong, "--output-dir", str(folder), "--embeddings", form]
    assert run_command(["export", *options]) == 0
    expected = clew.load(trained.strong).embeddings
    match form:
        case "parquet":
            names, vectors = [
                pd.read_parquet(folder / "entities.parquet")[c] for c in ("name", "embedding")
            ]
            names, vectors = list(names), np.stack(vectors)
        case "word2vec":
            found = read_word2vec(folder / "entities.txt")
            names, vectors = list(found), np.stack(list(found.values()))
            assert len(read_word2vec(folder / "relations.txt")) == 92
        case _:
            names = list(pd.read_csv(folder / "entities.tsv", sep="\t")["name"])
            vectors = (
                np.load(folder / "entities.npy")
                if form == "numpy"
                else np.loadtxt(folder / "entities_vectors.tsv", dtype=np.float32)
            )
    assert names == list(expected.index)
    np.testing.assert_array_equal(vectors, expected.to_numpy())
    assert not (folder / "scores.pt2").exists()


def test_names_that_become_equal_are_refused(tmp_path: Path) -> None:
    table = pa.table(
        {"name": ["a b", "a_b"], "embedding": pa.array([[1.0], [2.0]], pa.list_(pa.float32(), 1))}
    )
    with pytest.raises(DataError):
        write_embeddings(tmp_path, "entities", table, "word2vec")
    assert write_embeddings(tmp_path, "entities", table, "numpy") == [
        "entities.npy",
        "entities.tsv",
    ]


def test_a_name_that_says_true_is_no_inverse(tmp_path: Path) -> None:
    vectors = pa.array([[1.0], [2.0]], pa.list_(pa.float32(), 1))
    table = pa.table({"name": ["a", "b"], "kind": ["True", "Drug"], "embedding": vectors})
    write_embeddings(tmp_path, "entities", table, "word2vec")
    assert list(read_word2vec(tmp_path / "entities.txt")) == ["a", "b"]


def test_a_format_that_cannot_hold_the_names_leaves_no_folder(
    tracking_store: Path, tmp_path: Path
) -> None:
    facts = {
        "train": "a\tis near\tb\nb\tis_near\tc\nc\tis near\ta\n",
        "valid": "a\tis_near\tc\n",
        "test": "b\tis near\ta\n",
    }
    for split, lines in facts.items():
        (tmp_path / f"{split}.txt").write_text(lines)
    files = {f"data__{split}": str(tmp_path / f"{split}.txt") for split in facts}
    train(small_config(**files, training__num_epochs=1), output_dir=tmp_path / "run")
    model, folder = str(tmp_path / "run/best"), tmp_path / "out"
    with pytest.raises(DataError, match="relations"):
        export(model, folder, "word2vec")
    assert export(model, folder, "numpy").folder == folder


WITH_TORCH = """
scores = torch.export.load(path).module()
rows = scores(torch.tensor([3, 7, 9]), torch.tensor([0, 50, 91]))
"""
WITH_ONNX_RUNTIME = """
import numpy, onnxruntime
inputs = {"head": numpy.array([3, 7, 9]), "relation": numpy.array([0, 50, 91])}
[rows] = onnxruntime.InferenceSession(path).run(["scores"], inputs)
"""


@pytest.mark.parametrize(
    ("name", "reading"), [("scores.pt2", WITH_TORCH), ("scores.onnx", WITH_ONNX_RUNTIME)]
)
def test_the_program_needs_no_clew(
    trained: TrainedStore, exported: Path, tmp_path: Path, name: str, reading: str
) -> None:
    program = f"""
import json, sys, torch
path = {str(exported / name)!r}
{reading}
assert not any(name.startswith("clew") for name in sys.modules)
print(json.dumps(rows.tolist()))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    with open_model(trained.strong) as source:
        model = open_predictor(source)[0].model
    with torch.no_grad():
        queries = model.queries(torch.tensor([3, 7, 9]), torch.tensor([0, 50, 91]))
        expected = queries @ model.entity.weight.T + model.entity_bias
    np.testing.assert_allclose(json.loads(done.stdout), expected, atol=1e-5)


def test_nothing_is_pickled(exported: Path) -> None:
    assert {path.suffix for path in exported.iterdir()} == {*(".parquet", ".pt2", ".onnx", ".json")}
    with zipfile.ZipFile(exported / "scores.pt2") as archive:
        for info in archive.infolist():
            assert not info.filename.endswith(".pkl")
            if info.filename.endswith(".pt"):
                assert info.file_size == 0


def test_the_summary_says_which_model_it_is(trained: TrainedStore, exported: Path) -> None:
    content = json.loads((exported / "export.json").read_text(encoding="utf-8"))
    assert content["run_id"] == trained.strong
    assert set(content["programs"]) == {"scores.pt2", "scores.onnx"}
    for program in content["programs"].values():
        assert program["exported"] is True
        assert program["max_difference"] < 1e-5
    assert content["data_fingerprint"]


def test_nothing_is_overwritten(trained: TrainedStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="exists and is not empty"):
        export(trained.strong, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(ConfigError, match="file is not a folder"):
        export(trained.strong, tmp_path / "file")


@pytest.mark.parametrize("write", [torch_program, onnx_program])
@pytest.mark.parametrize(
    "settings", get_args(GraphModelConfig), ids=lambda settings: settings.__name__
)
def test_each_model_becomes_an_equal_program(
    tmp_path: Path, settings: type[GraphModelSettings], write: Writer
) -> None:
    torch.manual_seed(0)
    model = build_graph_model(settings(embedding_dim=12), 15, 6)
    check = export_program(model, tmp_path / "scores", write)
    assert check.exported, check.reason
    assert check.num_examples == 66


def test_without_the_packages_for_onnx_nothing_is_written(
    trained: TrainedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UsageError, match=r"clew\[onnx\]"):
        export(trained.strong, tmp_path / "files", onnx=True)
    assert not (tmp_path / "files").exists()


def test_what_torch_cannot_export_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: object, **settings: object) -> None:
        raise RuntimeError("data-dependent control flow")

    monkeypatch.setattr(torch.export, "export", refuse)
    model = ConvE(5, 4, ConvEModel(embedding_dim=12, output_channels=2))
    check = export_program(model, tmp_path / "scores.pt2")
    assert not check.exported
    assert "data-dependent control flow" in check.reason
    assert "data-dependent control flow" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_answers_otherwise_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong:
        def module(self) -> nn.Module:
            return lambda head, relation: torch.zeros(len(head), 5)  # type: ignore[return-value]

    monkeypatch.setattr(torch.export, "export", lambda *a, **k: type("Program", (), {})())
    monkeypatch.setattr(torch.export, "save", lambda program, path: path.write_bytes(b"x"))
    monkeypatch.setattr(torch.export, "load", lambda path: Wrong())
    check = export_program(
        ConvE(5, 4, ConvEModel(embedding_dim=12, output_channels=2)), tmp_path / "scores.pt2"
    )
    assert not check.exported
    assert "its results differ by" in check.reason
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["text", "sequences"])
def test_only_graph_models_are_exported(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    run: StoredRun = request.getfixturevalue(kind)
    with pytest.raises(ConfigError):
        export(run.run_id, tmp_path / "files")
    assert not (tmp_path / "files").exists()


def test_command_line_needs_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["export", "--model=x"]) == 2
    assert "--output-dir" in capsys.readouterr().err
