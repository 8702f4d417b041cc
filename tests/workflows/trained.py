"""Small trainings on real data for workflow tests."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from clew.config.load import from_mapping, load
from clew.config.schema import RunConfig
from tests.image_sequences.sequence_files import Columns, write_folder
from tests.made_once import made_once

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class TrainedStore:
    """A tracking store with finished runs on UMLS.

    `strong` was trained longer than `weak`; `other` on another split of the same graph;
    `unvalidated` has no best checkpoint.
    """

    uri: str
    strong: str
    weak: str
    other: str
    unvalidated: str


def small_config(**overrides: object) -> RunConfig:
    """Return a configuration that trains within a second or two."""
    small = {
        "model.embedding_dim": 24,
        "model.output_channels": 6,
        "training.num_epochs": 4,
        "training.device": "cpu",
        "training.checkpoint_frequency": 0,
        "tracking.log_mfu": False,
    }
    named = {key.replace("__", "."): value for key, value in overrides.items()}
    return load(ROOT / "experiments/link_prediction/umls.yaml", small | named)


def write_other_split(folder: Path) -> dict[str, str]:
    """Write UMLS with its last hundred training triples left out."""
    bundled = ROOT / "platform/clew/link_prediction/bundled/umls"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        lines = (bundled / f"{split}.txt").read_text(encoding="utf-8").splitlines(keepends=True)
        kept = lines[:-100] if split == "train" else lines
        (folder / f"{split}.txt").write_text("".join(kept), encoding="utf-8")
    return {f"data__{split}": str(folder / f"{split}.txt") for split in ("train", "valid", "test")}


def filled_once(
    folder: Path, template: Path, fill: Callable[[Path], dict[str, str]]
) -> dict[str, str]:
    """Return the runs of a store by name; `fill` makes them if no test process has done so.

    Args:
        folder: The folder of the store.
        template: An empty tracking database.
        fill: Runs commands on this store; takes the folder and returns the runs.
    """

    def make(new: Path) -> dict[str, str]:
        uri = copy_store(template, new)
        with pytest.MonkeyPatch.context() as patch:
            use_store(patch, uri)
            runs = fill(new)
        dispose_of(uri)
        return runs

    return made_once(folder, make)


def dispose_of(uri: str) -> None:
    """Close the connections that MLflow keeps open to a database."""
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore as RegistryStore
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for store in (SqlAlchemyStore, RegistryStore):
        engine = getattr(store, "_engine_map", {}).pop(uri, None)
        if engine is not None:
            engine.dispose()


@dataclass(frozen=True)
class StoredRun:
    """A finished run on text or on image sequences, in its own store."""

    uri: str
    run_id: str
    folder: Path
    """The folder of the run's data."""


def text_config(folder: Path, **overrides: object) -> RunConfig:
    """Return a configuration of a small language model; its text is written the first time."""
    lines = [f"{i % 7} green bottles on a wall" for i in range(40)]
    lines[10] = "the password is zwieback.."
    corpus = folder / "corpus.txt"
    if not corpus.exists():
        corpus.write_text("\n".join(lines))
    content = {
        "data": {
            "kind": "tokens",
            "dataset": str(corpus),
            "packed": str(folder / "packed"),
        },
        "model": {
            "kind": "eigenstate_lm",
            "d_model": 16,
            "n_layers": 1,
            "num_eigenstates": 8,
            "max_seq_len": 28,
        },
        "training": {"num_epochs": 2, "batch_size": 4, "checkpoint_frequency": 1, "ema_decay": 0.5},
        "tracking": {"log_mfu": False},
    }
    return from_mapping(content, {key.replace("__", "."): v for key, v in overrides.items()})


def sequence_config(folder: Path, columns: Columns, **overrides: object) -> RunConfig:
    """Return a configuration of a small network for image sequences, and write its frames."""
    write_folder(folder / "clouds", columns)
    content = {
        "data": {
            "kind": "image_sequences",
            "path": str(folder / "clouds"),
            "temporal_frames": 3,
            "pixel_noise": 0.05,
        },
        "model": {
            "kind": "sequence_regression",
            "channels": [4, 8],
            "norm_groups": 2,
            "heads": 2,
            "patch_grid": [2, 2],
            "temporal_layers": 1,
        },
        "training": {
            "num_epochs": 2,
            "batch_size": 4,
            "checkpoint_frequency": 1,
            "device": "cpu",
        },
        "tracking": {"log_mfu": False},
    }
    return from_mapping(content, {key.replace("__", "."): v for key, v in overrides.items()})


def copy_store(template: Path, folder: Path) -> str:
    """Copy an empty tracking database into a folder for a new store, and return its URI."""
    shutil.copyfile(template, folder / "mlflow.db")
    with closing(sqlite3.connect(folder / "mlflow.db")) as base, base:
        location = (folder / "mlartifacts" / "0").as_uri()
        base.execute("UPDATE experiments SET artifact_location = ?", [location])
    return f"sqlite:///{folder / 'mlflow.db'}"


def use_store(patch: pytest.MonkeyPatch, uri: str) -> None:
    """Use a store in a test."""
    patch.setenv("MLFLOW_TRACKING_URI", uri)
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", "CLEW_SPOOL"):
        patch.delenv(name, raising=False)
