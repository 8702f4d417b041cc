"""Checkpoints: damaged as they lie, or without digests, as older versions wrote them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from clew.config.load import from_mapping
from clew.errors import CheckpointError
from clew.runs.base import MemoryTracker
from clew.training.checkpoints import (
    MANIFEST_FILE,
    TRAINING_STATE_FILE,
    load_training_state,
    read_manifest,
    require_whole,
)
from clew.training.distributed import World
from clew.training.setup import build_trainer
from clew.workflows.model_source import load_source, open_model
from clew.workflows.resume import find_in_folder
from clew.workflows.tasks import build_task
from tests.attack.cases import attempt, fuzz
from tests.attack.damage import damaged_bytes, damaged_json
from tests.attack.material import Material
from tests.edited import edit_manifest

pytestmark = pytest.mark.slow

Load = Callable[[Path], object]


@pytest.fixture(scope="module")
def folder(material: Material, place: Path) -> Path:
    """A copy that each case damages; its files' content is restored by `fresh`."""
    return Path(shutil.copytree(material.checkpoint, place / "checkpoints/epoch-0002"))


@pytest.fixture(scope="module")
def restore(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Load a checkpoint into the trainer of its own configuration."""
    manifest = read_manifest(folder)
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
    return trainer.checkpointer.resumable.restore


def evaluate(folder: Path) -> object:
    with open_model(str(folder)) as source:
        return load_source(source).metrics("valid")


def fresh(folder: Path, material: Material) -> None:
    shutil.rmtree(folder)
    shutil.copytree(material.checkpoint, folder)


def test_changed_bytes_are_never_loaded(folder: Path, material: Material, restore: Load) -> None:
    names = sorted(path.name for path in material.checkpoint.iterdir())

    def case(draw: DrawFn) -> None:
        fresh(folder, material)
        name = draw(st.sampled_from(names))
        content = (folder / name).read_bytes()
        changed = draw(damaged_bytes(content, most=2))
        (folder / name).write_bytes(changed)
        load = draw(st.sampled_from([require_whole, load_training_state, restore, resume_point]))
        refused = attempt(lambda: load(folder))
        if load in (require_whole, resume_point) and changed != content:
            same = name == MANIFEST_FILE and _same_json(changed, content)
            assert same or isinstance(refused, CheckpointError)

    fuzz(0.04, case)


def _same_json(one: bytes, other: bytes) -> bool:
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


def resume_point(folder: Path) -> object:
    return find_in_folder(folder.parent, None, {})


def test_values_of_a_manifest(folder: Path, material: Material, restore: Load) -> None:
    content = json.loads((material.checkpoint / MANIFEST_FILE).read_bytes())
    del content["sha256"]

    def case(draw: DrawFn) -> None:
        fresh(folder, material)
        (folder / MANIFEST_FILE).write_bytes(draw(damaged_json(content)))
        load = draw(st.sampled_from([require_whole, restore, resume_point]))
        attempt(lambda: load(folder))

    fuzz(0.04, case)


def test_values_of_a_training_state(folder: Path, material: Material, restore: Load) -> None:
    content = json.loads((material.checkpoint / TRAINING_STATE_FILE).read_bytes())
    content["history"] = content["history"][:3]

    def case(draw: DrawFn) -> None:
        fresh(folder, material)
        edit_manifest(folder, lambda manifest: None)
        (folder / TRAINING_STATE_FILE).write_bytes(draw(damaged_json(content)))
        attempt(lambda: restore(folder))

    fuzz(0.04, case)


def test_tensors_without_digests(folder: Path, material: Material, restore: Load) -> None:
    names = sorted(path.name for path in material.checkpoint.glob("*.safetensors"))

    def case(draw: DrawFn) -> None:
        fresh(folder, material)
        edit_manifest(folder, lambda manifest: None)
        path = folder / draw(st.sampled_from(names))
        content = path.read_bytes()
        head = 8 + int.from_bytes(content[:8], "little")
        path.write_bytes(draw(damaged_bytes(content[:head])) + content[head:])
        attempt(lambda: restore(folder))

    fuzz(0.02, case)


def test_models_that_are_evaluated(folder: Path, material: Material) -> None:
    content = json.loads((material.checkpoint / MANIFEST_FILE).read_bytes())
    del content["sha256"]

    def case(draw: DrawFn) -> None:
        fresh(folder, material)
        (folder / MANIFEST_FILE).write_bytes(draw(damaged_json(content)))
        attempt(lambda: evaluate(folder))

    fuzz(0.003, case)
