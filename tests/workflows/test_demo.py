"""The demo's own run: the shared settings of its two trainings, and their comparison."""

from collections.abc import Callable
from pathlib import Path

import pytest

from clew.config.load import load
from clew.runs.reading.explanation import open_explanation
from clew.runs.reading.runs import find_run
from clew.runs.reading.search import RunQuery, search_runs
from clew.workflows import demo
from clew.workflows.demo import COLUMNS, CONFIG, VARIANTS, record
from clew.workflows.train import TrainResult
from tests.memory_tracker import MemoryTracker
from tests.recorded import Recorded

SPEED = "throughput/examples_per_second"


def test_parameters_are_what_both_share_and_metrics_how_they_compare(
    recorded: Recorded, use: Callable[[str], None]
) -> None:
    use(recorded.uri)
    results = []
    for variant in ("fp32", "bf16"):
        run = find_run(recorded.runs[f"{variant} 1"])
        results.append(TrainResult(run.run_id, variant, dict(run.metrics)))
    tracker = MemoryTracker()
    record(tracker, [load(CONFIG, variant) for variant in VARIANTS], results)
    assert tracker.parameters["cfg.data.name"] == "umls"
    assert "cfg.optimizations.torch_compile" in tracker.parameters
    assert "cfg.optimizations.use_mixed_precision" not in tracker.parameters
    found = {key: value for key, value, _ in tracker.metric_values}
    plain, half = (result.metrics[SPEED] for result in results)
    assert found[f"fp32/{SPEED}"] == plain
    assert found[f"bf16/{SPEED}"] == half
    assert found[f"ratio/bf16/{SPEED}"] == pytest.approx(half / plain)
    assert len(found) == 3 * len(COLUMNS)


@pytest.mark.slow
def test_the_demo_says_how_far_its_explanation_was_tested(
    recorded: Recorded,
    use: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store = recorded.copy(tmp_path / "store")
    use(store.uri)
    run_id = store.runs["fp32 1"]
    said = list(demo.explanation(load(CONFIG, {}), [TrainResult(run_id, "fp32", {})]))
    (trace,) = search_runs(RunQuery(kind="trace", source_run=run_id), limit=1).runs
    assert open_explanation(trace.run_id, 0).head.label.sentence in said
