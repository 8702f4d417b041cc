"""Damaged checkpoints, with the digests from before the damage or of what they hold now."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from clew.config.load import from_mapping
from clew.errors import CheckpointError
from clew.training.checkpoints import (
    TRAINING_STATE_FILE,
    load_training_state,
    require_whole,
)
from clew.training.distributed import World
from clew.training.manifest import MANIFEST_FILE, read_manifest
from clew.training.setup import build_trainer
from clew.workflows.model_source import load_source, open_model
from clew.workflows.resume import find_in_folder
from clew.workflows.subjects import build_task
from tests.attack.cases import attempt, fuzz, replaced
from tests.attack.damage import damaged_bytes, damaged_json
from tests.attack.material import Material
from tests.edited import edit_manifest, with_digest_if_read
from tests.memory_tracker import MemoryTracker
from tests.workflows.trained import use_store

pytestmark = pytest.mark.slow

Load = Callable[[Path], object]


@pytest.fixture(scope="module", autouse=True)
def in_use(material: Material) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        use_store(patch, f"sqlite:///{material.folder / 'mlflow.db'}")
        yield


def copied(material: Material, place: Path) -> Path:
    """Copy a checkpoint and the best checkpoint, and return the copy of the first."""
    kept = material.checkpoint.parents[1]
    shutil.copytree(kept / "best", place / "best")
    return Path(shutil.copytree(material.checkpoint, place / "checkpoints/epoch-0002"))


@pytest.fixture(scope="module")
def whole(material: Material, place: Path) -> Path:
    """Return a checkpoint of which tests damage one file at a time."""
    return copied(material, place / "whole")


@pytest.fixture(scope="module")
def signed(material: Material, place: Path) -> Path:
    """Return a checkpoint whose digests are made to fit the damage, so that it is read."""
    return copied(material, place / "signed")


@pytest.fixture(scope="module")
def restore(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Return a function that loads a checkpoint into the trainer of its own configuration."""
    manifest = read_manifest(whole)
    config = from_mapping(manifest.config)
    trainer = build_trainer(
        config,
        build_task(config),
        MemoryTracker(),
        device=torch.device("cpu"),
        world=World(),
        folder=tmp_path_factory.mktemp("trained"),
        origin=manifest,
    )

    def restored(folder: Path) -> None:
        trainer.history.tracker = MemoryTracker()  # a new one: a tracker keeps everything
        trainer.checkpointer.resumable.restore(folder)

    return restored


def evaluate(folder: Path) -> object:
    with open_model(str(folder)) as source:
        return load_source(source).metrics("valid")


def resume_point(folder: Path) -> object:
    return find_in_folder(folder.parent, None, {})


def test_changed_bytes_are_never_loaded(whole: Path, restore: Load) -> None:
    contents = {path.name: path.read_bytes() for path in sorted(whole.iterdir())}
    assert resume_point(whole)

    def case(draw: DrawFn) -> None:
        name = draw(st.sampled_from(sorted(contents)))
        changed = draw(damaged_bytes(contents[name], most=2))
        load = draw(st.sampled_from([require_whole, load_training_state, restore, resume_point]))
        with replaced(whole / name, changed):
            refused = attempt(lambda: load(whole))
        if load in (require_whole, resume_point) and changed != contents[name]:
            same = name == MANIFEST_FILE and _same_json(changed, contents[name])
            assert same or isinstance(refused, CheckpointError), refused

    fuzz(0.035, case)


def _same_json(one: bytes, other: bytes) -> bool:
    try:
        return bool(json.loads(one) == json.loads(other))
    except (ValueError, RecursionError):
        return False


def drawn_manifest(draw: DrawFn, content: dict[str, Any]) -> bytes:
    """Return a manifest with damage, often in its configuration, which is the largest part."""
    if draw(st.booleans()):
        return with_digest_if_read(draw(damaged_json(content)))
    config = draw(damaged_json(content["config"]))
    rest = json.dumps({key: value for key, value in content.items() if key != "config"})
    return with_digest_if_read(rest.encode()[:-1] + b', "config": ' + config + b"}")


@contextmanager
def signed_with(folder: Path, name: str, content: bytes) -> Iterator[None]:
    """Replace a file inside this context, and its digest in the manifest."""
    manifest = (folder / MANIFEST_FILE).read_bytes()
    with replaced(folder / name, content), replaced(folder / MANIFEST_FILE, manifest):
        edit_manifest(folder, lambda manifest: None)
        yield


def test_values_of_a_manifest(signed: Path, restore: Load) -> None:
    content = json.loads((signed / MANIFEST_FILE).read_bytes())

    def case(draw: DrawFn) -> None:
        load = draw(st.sampled_from([require_whole, restore, resume_point]))
        with replaced(signed / MANIFEST_FILE, drawn_manifest(draw, content)):
            attempt(lambda: load(signed))

    fuzz(0.035, case)


def test_values_of_a_training_state(signed: Path, restore: Load) -> None:
    content = json.loads((signed / TRAINING_STATE_FILE).read_bytes())
    content["history"] = content["history"][:3]

    def case(draw: DrawFn) -> None:
        with signed_with(signed, TRAINING_STATE_FILE, draw(damaged_json(content))):
            attempt(lambda: restore(signed))

    fuzz(0.035, case)


def test_tensors_with_fitting_digests(signed: Path, restore: Load) -> None:
    contents = {path.name: path.read_bytes() for path in sorted(signed.glob("*.safetensors"))}

    def case(draw: DrawFn) -> None:
        name = draw(st.sampled_from(sorted(contents)))
        content = contents[name]
        head = 8 + int.from_bytes(content[:8], "little")
        damaged = draw(damaged_bytes(content[:head])) + content[head:]
        with signed_with(signed, name, damaged):
            attempt(lambda: restore(signed))

    fuzz(0.02, case)


def test_models_that_are_evaluated(signed: Path) -> None:
    content = json.loads((signed / MANIFEST_FILE).read_bytes())

    def case(draw: DrawFn) -> None:
        with replaced(signed / MANIFEST_FILE, drawn_manifest(draw, content)):
            attempt(lambda: evaluate(signed))

    fuzz(0.003, case)
