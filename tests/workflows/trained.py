"""Small trainings on real data for workflow tests."""

from dataclasses import dataclass
from pathlib import Path

from clew.config.load import load
from clew.config.schema import RunConfig

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


def dispose_of(uri: str) -> None:
    """Close what MLflow keeps open of a database."""
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore as RegistryStore
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for store in (SqlAlchemyStore, RegistryStore):
        engine = getattr(store, "_engine_map", {}).pop(uri, None)
        if engine is not None:
            engine.dispose()
