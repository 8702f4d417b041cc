"""A checkpoint is read exactly as written or refused: every changed bit is detected."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from clew.errors import CheckpointError
from clew.training import manifest
from clew.training.checkpoints import (
    load_model,
    load_training_state,
    read_model,
    require_whole,
    rows_file,
    write_checkpoint,
)
from clew.training.manifest import read_manifest
from tests.edited import edit_manifest

FILES = (
    "average.safetensors",
    "manifest.json",
    "model.safetensors",
    "optimizer.safetensors",
    "training.json",
    "training.safetensors",
)


@pytest.fixture
def written(make_trainer: Any) -> Path:
    """Return the last checkpoint of a short training."""
    trainer = make_trainer(training__num_epochs=1, training__ema_decay=0.5)
    trainer.train()
    folder: Path = trainer.checkpointer.folder / "checkpoints" / "epoch-0001"
    assert tuple(sorted(path.name for path in folder.iterdir())) == FILES
    return folder


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def load(make_trainer: Any, folder: Path) -> None:
    make_trainer(training__ema_decay=0.5).checkpointer.resumable.restore(folder)


def test_what_was_written_is_whole(make_trainer: Any, written: Path) -> None:
    assert set(require_whole(written).sha256) == {*FILES} - {"manifest.json"}
    load(make_trainer, written)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", [-3, 0.5])
def test_one_flipped_bit_is_noticed_and_named(
    make_trainer: Any, written: Path, name: str, place: float
) -> None:
    path = written / name
    flip(path, int(path.stat().st_size * place) if place > 0 else int(place))
    for read in (require_whole, lambda folder: load(make_trainer, folder)):
        with pytest.raises(CheckpointError) as caught:
            read(written)
        (line,) = str(caught.value).splitlines()
        assert line.startswith(f"{path}: ")


def test_another_digit_of_the_manifest_is_noticed(written: Path) -> None:
    path = written / "manifest.json"
    text = path.read_text()
    weight = f'"learning_rate_weight": {json.loads(text)["learning_rate_weight"]}'
    path.write_text(text.replace(weight, '"learning_rate_weight": 0.5'))
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        read_manifest(written)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_off_or_gone_is_named(written: Path, name: str) -> None:
    path = written / name
    whole = path.read_bytes()
    for rest in (whole[:-2], whole[: len(whole) // 2], b""):
        path.write_bytes(rest)
        with pytest.raises(CheckpointError, match=f"{name}: "):
            require_whole(written)
    path.unlink()
    with pytest.raises(CheckpointError, match=name):
        require_whole(written)


def test_a_file_that_does_not_belong_to_it_is_refused(make_trainer: Any, written: Path) -> None:
    edit_manifest(written, lambda m: m.update(sha256={"model.safetensors": "0" * 64}))
    with pytest.raises(CheckpointError, match=r"training\.json"):
        load_training_state(written)


@pytest.mark.parametrize("change", [lambda m: m.pop("sha256"), lambda m: m["sha256"].clear()])
def test_checkpoints_without_digests_are_refused(
    written: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    path = written / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"manifest\.json: .*sha256"):
        require_whole(written)
    with pytest.raises(CheckpointError, match=r"manifest\.json: .*sha256"):
        load_training_state(written)


def test_a_model_that_the_manifest_does_not_name_is_refused(written: Path) -> None:
    edit_manifest(written, lambda m: m["sha256"].pop("model.safetensors"))
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        require_whole(written)


def test_rows_of_a_shard_that_are_none_are_refused(make_trainer: Any, written: Path) -> None:
    """Anybody can write a checkpoint whose digests fit."""
    save_file({"model/entity.weight": torch.tensor(1.0)}, written / rows_file(0, 1))
    edit_manifest(written, lambda said: None)
    with pytest.raises(CheckpointError):
        load_model(written, make_trainer().model)


def test_a_model_larger_than_its_file_is_refused_before_it_takes_memory(written: Path) -> None:
    with pytest.raises(CheckpointError):
        read_model(written, lambda: nn.Embedding(10**12, 1000))
    built: list[nn.Module] = []

    def build() -> nn.Module:
        while len(built) < 8:
            built.append(nn.Linear(2048, 2048))
        return nn.ModuleList(built)

    with pytest.raises(CheckpointError):
        read_model(written, build)
    assert len(built) < 8
    built.clear()
    (written / "model.safetensors").unlink()
    with pytest.raises(CheckpointError):
        read_model(written, build)
    assert not built


def test_a_model_of_many_small_parts_is_refused_before_it_takes_memory(written: Path) -> None:
    """A manifest can ask for a million layers of few weights each."""
    built = 0

    def build() -> nn.Module:
        nonlocal built
        layers = []
        for _ in range(100_000):
            layers.append(nn.Linear(1, 1))
            built += 1
        return nn.ModuleList(layers)

    with pytest.raises(CheckpointError):
        read_model(written, build)
    assert built < 20_000


def test_each_file_is_hashed_once_for_a_load(
    make_trainer: Any, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    digest: Callable[[Path], str] = manifest.sha256

    def counted(path: Path) -> str:
        hashed.append(path.name)
        return digest(path)

    trainer = make_trainer(training__ema_decay=0.5)
    monkeypatch.setattr(manifest, "sha256", counted)
    trainer.checkpointer.resumable.restore(written)
    assert sorted(hashed) == sorted({*FILES} - {"manifest.json"})
    hashed.clear()
    load_model(written, trainer.model)
    assert hashed == ["model.safetensors"]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"epoch": None}, "epoch: expected a whole number"),
        ({"step": "7"}, "step: expected a whole number"),
        ({"step": -1}, "step: expected at least 0"),
        ({"previous_step": 0.5}, "previous_step: expected a whole number"),
        ({"learning_rate_weight": "much"}, "learning_rate_weight: expected a number"),
        ({"learning_rate_weight": float("nan")}, "learning_rate_weight: .* finite number"),
        ({"metrics": [1]}, "metrics: expected keys with values"),
        ({"config": None}, "config: expected keys with values"),
        ({"colour": "red"}, "colour: Unexpected keyword argument"),
        ({"sha256": 5}, "sha256: expected keys with values"),
        ({"schema_version": 9}, "schema_version is 9, this version of Clew reads 1"),
    ],
)
def test_a_manifest_with_senseless_values_is_refused(
    written: Path, values: dict[str, Any], says: str
) -> None:
    edit_manifest(written, lambda manifest: manifest.update(values))
    with pytest.raises(CheckpointError, match=says) as caught:
        read_manifest(written)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("content", ["", "null", "[]", "7", "{", "[" * 100_000, "\x00", '"text"'])
def test_a_manifest_that_is_none_is_refused(written: Path, content: str) -> None:
    (written / "manifest.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"manifest\.json") as caught:
        read_manifest(written)
    assert len(str(caught.value).splitlines()) == 1


def test_a_manifest_of_senseless_size_is_not_even_read(written: Path) -> None:
    with (written / "manifest.json").open("wb") as file:
        file.truncate(manifest.MAX_MANIFEST_BYTES + 1)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        read_manifest(written)


def test_metrics_that_are_not_finite_are_kept(make_trainer: Any, written: Path) -> None:
    trainer = make_trainer()
    manifest = trainer.checkpointer.origin
    manifest.metrics["valid/mrr"] = float("inf")
    write_checkpoint(written.parent / "other", trainer.model, manifest)
    assert read_manifest(written.parent / "other").metrics == {"valid/mrr": float("inf")}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda v: v["progress"].update(step=None), "progress.step: expected a whole number"),
        (lambda v: v["progress"].update(step="9"), "progress.step: expected a whole number"),
        (lambda v: v["progress"].update(epoch=-1), "progress.epoch: expected at least"),
        (lambda v: v.update(world_size=0), "world_size: expected at least"),
        (lambda v: v.update(history=7), "history: expected a list"),
        (
            lambda v: v["history"][0].update(value=None),
            r"history\.0\.value: expected a number",
        ),
        (lambda v: v.update(generators=[]), "generators: expected keys with values"),
        (lambda v: v.update(scaler={"scale": "big"}), "scaler.scale"),
    ],
)
def test_a_training_state_with_senseless_values_is_refused(
    written: Path, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    path = written / "training.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    edit_manifest(written, lambda manifest: None)
    with pytest.raises(CheckpointError, match=rf"training\.json: {says}") as caught:
        load_training_state(written)
    assert len(str(caught.value).splitlines()) == 1
