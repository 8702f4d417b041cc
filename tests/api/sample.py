"""A sample program that uses all types of the API; `make lint` checks it and a test runs it."""

from pathlib import Path
from typing import assert_type

import pandas as pd

import clew


def train_and_ask(folder: Path) -> clew.Attribution:
    """Train a small model, query it and explain a prediction."""
    run = clew.train(
        "umls",
        epochs=2,
        overrides={
            "model.embedding_dim": 24,
            "model.output_channels": 6,
            "training.device": "cpu",
            "training.checkpoint_frequency": 1,
            "tracking.log_mfu": False,
        },
        output_dir=folder,
    )
    assert_type(run, clew.Run)
    assert_type(run.metrics, dict[str, float])
    assert_type(run.run_id, str | None)
    assert_type(run.history, pd.DataFrame)
    model = run.load()
    assert_type(model, clew.Model)
    assert_type(clew.load(folder), clew.Model)
    assert isinstance(model, clew.TripleModel)
    assert_type(model.predict(head="virus", relation="causes", top_k=3), pd.DataFrame)
    assert_type(model.place("virus", "causes", "pathologic_function"), pd.DataFrame)
    assert_type(clew.evaluate(model, "valid").metrics, dict[str, float])
    assert_type(clew.plan("umls", device="cpu", memory_gib=0.001), clew.MemoryPlan)
    why = clew.attribute(run, [("virus", "causes", "pathologic_function")], top_k=5)
    assert_type(why.proponents, pd.DataFrame)
    assert_type(why.to_frame(), pd.DataFrame)
    return why
