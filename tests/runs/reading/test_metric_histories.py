"""The curves of many runs are the same from a database query and run by run from a server."""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from clew.runs.reading import metrics
from clew.runs.reading.runs import RunRecord
from tests.recorded import Recorded

KEY = "valid/mrr"


def run(run_id: str, *keys: str) -> RunRecord:
    values = dict.fromkeys(keys, 1.0)
    return RunRecord(run_id, run_id, "1", "FINISHED", 1_000, None, {}, {}, values)


def plainly(
    runs: list[RunRecord], stored: dict[str, list[SimpleNamespace]], key: str
) -> pd.DataFrame:
    """Return the expected curves, computed in the simplest way."""
    frames = []
    for each in runs:
        if key in each.metrics:
            rows = sorted(stored[each.run_id], key=lambda point: (point.step, point.timestamp))
            frames.append(
                metrics.thin(
                    pd.DataFrame(
                        {
                            "run_id": each.run_id,
                            "step": [point.step for point in rows],
                            "seconds": [(point.timestamp - 1_000) / 1000 for point in rows],
                            "value": [point.value for point in rows],
                        }
                    )
                )
            )
    return pd.concat(frames, ignore_index=True)


@pytest.mark.parametrize("in_bulk", [True, False])
def test_curves_are_in_the_order_of_runs_and_steps_and_thinned(
    in_bulk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(0)
    sizes = {"b": 3, "a": 2_000, "c": 1}
    stored = {
        name: [
            SimpleNamespace(run_id=name, step=step, timestamp=2_000 + step, value=draw.random())
            for step in draw.sample(range(10_000), size)
        ]
        for name, size in sizes.items()
    }
    runs = [run("b", KEY), run("other", "train/loss"), run("a", KEY), run("c", KEY)]

    def bulk(run_ids: list[str], key: str, limit: int) -> list[SimpleNamespace]:
        assert (key, "other" in run_ids) == (KEY, False)
        return [point for name in sorted(run_ids) for point in stored[name]][:limit]

    database: Any = SimpleNamespace(get_metric_history_bulk=bulk) if in_bulk else None
    monkeypatch.setattr(metrics, "database_of", lambda connected: database)
    connected = SimpleNamespace(
        get_metric_history=lambda run_id, key: stored[run_id],
    )
    monkeypatch.setattr(metrics, "client", lambda: connected)
    found = metrics.metric_histories(runs, KEY)
    pd.testing.assert_frame_equal(found, plainly(runs, stored, KEY))
    assert metrics.MAX_POINTS <= len(found) - 4 < 1.1 * metrics.MAX_POINTS
    assert found["value"].max() == max(p.value for points in stored.values() for p in points)


def test_a_database_and_its_client_say_the_same(
    recorded: Recorded, use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from clew.runs.reading import search

    use(recorded.uri)
    runs = search.find_runs(list(recorded.runs.values()))
    at_once = metrics.metric_histories(runs, KEY)
    assert at_once["run_id"].nunique() > 1
    monkeypatch.setattr(metrics, "database_of", lambda connected: None)
    one_by_one = metrics.metric_histories(runs, KEY)
    pd.testing.assert_frame_equal(at_once, one_by_one)
    assert not np.isnan(at_once["seconds"]).any()
