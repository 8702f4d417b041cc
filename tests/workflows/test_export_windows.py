"""Exported language models and models of image sequences, in processes without Clew."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from clew.config.image_sequences import ImageSequenceData
from clew.errors import ConfigError
from clew.image_sequences.windows import ScalarEncoding
from clew.language_modeling.model import Sampling
from clew.workflows.exporting import frames as frames_module
from clew.workflows.exporting.export import export
from clew.workflows.exporting.program import ProgramCheck
from clew.workflows.model_source import load_source, open_model
from clew.workflows.predicting.frames import predict_frames
from clew.workflows.predicting.text import TextRequest, predict_text
from tests.image_sequences.sequence_files import Columns, sequence_columns, write_folder
from tests.workflows.conftest import run_of
from tests.workflows.test_predict_frames import new_frames
from tests.workflows.trained import StoredRun, sequence_config, text_config

PROMPT = "3 green"
CONTINUE = """
import json, sys, torch
program = torch.export.load(sys.argv[1]).module()
sizes, tokens = json.loads(sys.argv[2]), json.loads(sys.argv[3])
state = [torch.zeros(size) for size in sizes[:2]] + [torch.zeros(sizes[2], dtype=torch.int64)]
given, written = torch.tensor([tokens]), []
for _ in range(40):
    logits, *state = program(given, *state)
    given = logits[:, -1:].argmax(-1)
    written.append(int(given))
assert not any(name.startswith("clew") for name in sys.modules)
print(json.dumps(written))
"""
PREDICT = """
import json, sys, numpy, torch
program = torch.export.load(sys.argv[1]).module()
found = program(*(torch.from_numpy(numpy.load(path)) for path in sys.argv[2:]))
assert not any(name.startswith("clew") for name in sys.modules)
print(json.dumps(found.tolist()))
"""


def python(*arguments: str, where: Path | None = None) -> str:
    """Run Python in a process whose functions are not wrapped in shape checks."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=where, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def exported(run_id: str, folder: Path) -> dict[str, object]:
    """Export with the command line, and return the summary."""
    said = python("-m", "clew", "export", f"--model={run_id}", f"--output-dir={folder}")
    assert "equals the model within" in said
    (program,) = folder.glob("*.pt2")
    with zipfile.ZipFile(program) as archive:
        for info in archive.infolist():
            assert not info.filename.endswith(".pkl")
    return json.loads((folder / "export.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_a_language_model_continues_a_prompt_without_clew(text: StoredRun, tmp_path: Path) -> None:
    run_id = run_of(
        text_config(
            text.folder,
            model__convolution_width=3,
            model__n_layers=2,
            model__reset_at_documents=True,
            model__transition="gated",
        )
    )
    said = exported(run_id, tmp_path / "files")
    assert said["tokenizer"] == "bytes"
    sizes = [[2, 1, 8, 2], [2, 2, 1, 2, 16], [1]]
    program, tokens = str(tmp_path / "files/logits.pt2"), json.dumps(list(PROMPT.encode()))
    written = python("-c", CONTINUE, program, json.dumps(sizes), tokens, where=tmp_path)
    request = TextRequest(PROMPT, 40, Sampling(temperature=0.0))
    expected = "".join(predict_text(run_id, request))
    tokens_written = [token for token in json.loads(written) if token != said["end_of_text"]]
    assert bytes(tokens_written).decode("utf-8", "replace") == expected
    table = pd.read_parquet(tmp_path / "files/tokens.parquet")
    with open_model(run_id) as source:
        weight = load_source(source).model.embedding.weight  # type: ignore[union-attr]
    np.testing.assert_array_equal(np.stack(table["embedding"]), weight.detach().cpu())
    assert table["text"][ord("g")] == "g"
    assert pd.isna(table["text"][256])


@pytest.mark.slow
def test_the_tokenizer_comes_with_the_program(text: StoredRun, tmp_path: Path) -> None:
    settings = {"data__tokenizer": "bpe", "data__vocabulary_size": 270}
    (tmp_path / "bpe").mkdir()
    said = exported(run_of(text_config(tmp_path / "bpe", **settings)), tmp_path / "files")
    assert needs_no_clew(tmp_path / "files/logits.pt2")
    packed = tmp_path / "bpe/packed/tokenizer.json"
    assert (tmp_path / "files/tokenizer.json").read_bytes() == packed.read_bytes()
    assert said["tokenizer"] == "tokenizer.json"
    assert "zwie" not in set(pd.read_parquet(tmp_path / "files/tokens.parquet")["text"][:256])


def needs_no_clew(program: Path) -> bool:
    """Return whether all operators of an exported program are torch's."""
    operators = {str(node.target) for node in torch.export.load(program).graph.nodes}
    return not any(operator.startswith("clew") for operator in operators)


def windows(columns: Columns, ends: list[int], *, change: bool) -> list[np.ndarray]:
    """Return the program's inputs for windows of three frames."""
    frames = np.array(ends)[:, None] + np.arange(-2, 1)
    inputs = [columns["images"][frames][:, :, None], columns["scalars"][frames]]
    return [*inputs, columns["present"][ends]] if change else inputs


def predicted_in_a_process(program: Path, inputs: list[np.ndarray], folder: Path) -> list[float]:
    """Run the program in a process that never imports Clew."""
    files = [str(folder / f"{number}.npy") for number in range(len(inputs))]
    for file, values in zip(files, inputs, strict=True):
        np.save(file, values)
    found: list[float] = json.loads(python("-c", PREDICT, str(program), *files, where=folder))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "predicts"),
    [("transformer", "value"), ("cnn", "change"), ("ssm", "value"), ("gnn", "value")],
)
def test_frames_are_predicted_without_clew(
    sequences: StoredRun, tmp_path: Path, architecture: str, predicts: str
) -> None:
    config = sequence_config(
        tmp_path,
        sequence_columns(),
        model__architecture=architecture,
        model__predicts=predicts,
        data__zenith_scalars=["zenith"],
        data__azimuth_scalars=["azimuth"],
        training__num_epochs=1,
    )
    run_id, change = run_of(config), predicts == "change"
    in_processes = architecture == "ssm"  # whose scan is Clew's own operator while it trains
    folder = tmp_path / "files"
    said = exported(run_id, folder) if in_processes else export(run_id, folder).exported.said
    columns = sequence_columns(groups=2, frames_in_group=7, seed=1) if change else new_frames()
    frames = write_folder(tmp_path / "new", columns)
    result = predict_frames(run_id, frames, tmp_path / "out.parquet")
    table = pd.read_parquet(tmp_path / "out.parquet")
    inputs = windows(columns, table["last_frame"].tolist(), change=change)
    program = folder / "predictions.pt2"
    assert needs_no_clew(program)
    if in_processes:
        found = predicted_in_a_process(program, inputs, tmp_path)
    else:
        loaded = torch.export.load(program).module()
        found = loaded(*(torch.from_numpy(values) for values in inputs)).tolist()
    np.testing.assert_allclose(found, table["prediction"], rtol=1e-5)
    assert result.intervals is not None
    assert said["intervals"]["half_width"] == pytest.approx(  # type: ignore[index]
        result.intervals.half_width, rel=1e-5
    )


def test_frames_that_torch_cannot_export_are_refused(
    sequences: StoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = ProgramCheck(False, reason="data-dependent control flow")
    monkeypatch.setattr(frames_module, "write_program", lambda *a, **k: refused)
    with pytest.raises(ConfigError, match=r"cannot be exported \(data-dependent control flow\)"):
        export(sequences.run_id, tmp_path / "files")
    assert list(tmp_path.iterdir()) == []


def test_scalars_are_encoded_in_torch_as_in_numpy() -> None:
    names = ("zenith", "azimuth", "height")
    config = ImageSequenceData(
        path="x", scalars=names[::-1], azimuth_scalars=["azimuth"], zenith_scalars=["zenith"]
    )
    encoding = ScalarEncoding.from_config(names, config, "here")
    scalars = sequence_columns()["scalars"]
    expected = encoding.encode(scalars)
    found = encoding.encode_tensor(torch.from_numpy(scalars))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-7, rtol=0)
    none = ScalarEncoding((), ())
    assert none.encode_tensor(torch.zeros(4, 3, 0)).shape == none.encode(np.zeros((4, 3, 0))).shape
