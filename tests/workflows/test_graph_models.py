"""Graph models other than ConvE work with all commands that ConvE works with."""

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from clew.__main__ import run as clew
from clew.config.graph_models import GRAPH_MODELS
from tests.workflows.trained import ROOT

pytestmark = pytest.mark.slow

KINDS = GRAPH_MODELS[1:]
PARTS = {"entity_output", "entity_cross", "entity_input", "relation"}
PARTS_OF = {"tucker": PARTS | {"dense"}}
FACT = "virus,causes,disease_or_syndrome"


def newest_run(store: Path, kind: str) -> str:
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("clew")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], f"tags.`clew.kind` = '{kind}'")
    return found[0].info.run_id


@pytest.mark.parametrize("kind", KINDS)
def test_every_command_takes_every_graph_model(
    kind: str, tracking_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(ROOT / f"experiments/link_prediction/umls_{kind}.yaml")
    small = ["training.num_epochs=2", "model.embedding_dim=24", "training.device=cpu"]
    explain = ["--test", FACT, "--top-k", "5", "--output", str(tmp_path / "why")]

    assert clew(["train", "--config", config, *small, "training.checkpoint_frequency=1"]) == 0
    run_id = newest_run(tracking_store, "train")
    assert clew(["evaluate", "--model", run_id, "--split", "valid"]) == 0
    assert clew(["tracin", "--model", run_id, *explain]) == 0
    assert clew(["promote", "--run-id", run_id]) == 0
    champion = "models:/clew-umls@champion"
    ask = ["--head", "virus", "--relation", "causes", "--top-k", "3"]
    capsys.readouterr()
    assert clew(["predict", "--model", champion, *ask]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[-3:]] == [
        "1",
        "2",
        "3",
    ]
    assert clew(["export", "--model", run_id, "--output-dir", str(tmp_path / "export")]) == 0
    assert clew(["plan", "--config", config, "--memory-gib=0.001"]) == 0

    report = json.loads(next((tmp_path / "why").rglob("influence.json")).read_text())
    (entry, *_) = report["tests"][0]["proponents"]
    assert set(entry["by_part"]) == PARTS_OF.get(kind, PARTS)
    assert sum(entry["by_part"].values()) == pytest.approx(entry["influence"], rel=1e-3)
    exported = pd.read_parquet(tmp_path / "export" / "entities.parquet")
    assert np.stack(exported["embedding"]).shape == (135, 24)


@pytest.mark.parametrize(
    ("kind", "precision"), list(zip(KINDS, itertools.cycle(["float32", "bfloat16"]), strict=False))
)
def test_fused_and_plain_loss_train_alike(kind: str, precision: str, tracking_store: Path) -> None:
    """Each model is tested in one precision; tests/oracles shows that both give equal losses."""
    from mlflow import MlflowClient

    config = str(ROOT / f"experiments/link_prediction/umls_{kind}.yaml")
    losses = []
    for implementation in ("plain", "fused"):
        settings = [
            "training.max_steps=8",
            "model.embedding_dim=24",
            "training.device=cpu",
            "evaluation.enabled=false",
            "tracking.log_mfu=false",
            f"loss.implementation={implementation}",
            f"optimizations.use_mixed_precision={precision == 'bfloat16'}",
        ]
        assert clew(["train", "--config", config, *settings]) == 0
        run = MlflowClient().get_run(newest_run(tracking_store, "train"))
        losses.append(run.data.metrics["train/loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5 if precision == "float32" else 2e-2)
