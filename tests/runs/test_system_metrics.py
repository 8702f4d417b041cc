"""Sampling of the machine starts late, and continues when a device disappears."""

import time
from collections.abc import Mapping

import pytest

from clew.runs import observers
from clew.runs.observers import SystemMetrics


class Steady:
    def collect_metrics(self) -> object:
        return None

    def aggregate_metrics(self) -> Mapping[str, float]:
        return {"cpu": 50.0}

    def clear_metrics(self) -> None:
        pass


class Unplugged(Steady):
    calls = 0

    def collect_metrics(self) -> object:
        self.calls += 1
        raise OSError("GPU is lost")


def test_a_device_that_goes_away_ends_its_metrics_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(observers, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(observers, "SAMPLING_SECONDS", 0.01)
    recorded: list[tuple[dict[str, float], int]] = []
    gone = Unplugged()
    monkeypatch.setattr(observers, "available_samplers", lambda: [gone, Steady()])
    sampling = SystemMetrics(lambda values, step: recorded.append((dict(values), step)))
    sampling.start()
    while len(recorded) < 3:
        time.sleep(0.01)
    sampling.stop()
    count = len(recorded)
    assert recorded == [({"system/cpu": 50.0}, step) for step in range(count)]
    assert gone.calls == 1
    assert "no longer sampled: GPU is lost" in caplog.text
    time.sleep(0.05)
    assert len(recorded) == count


def test_a_run_of_less_than_a_minute_loads_no_samplers(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(observers, "available_samplers", lambda: [loaded.append("samplers")])
    sampling = SystemMetrics(lambda values, step: loaded.append("values"))
    sampling.start()
    sampling.stop()
    assert observers.FIRST_SECONDS == 60.0
    assert loaded == []
