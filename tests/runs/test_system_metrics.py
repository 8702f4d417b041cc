"""Sampling of the machine starts late, and continues when a device disappears."""

import threading
from collections.abc import Mapping

import pytest

from clew.runs import hardware


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
    monkeypatch.setattr(hardware, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(hardware, "SAMPLING_SECONDS", 0.01)
    recorded: list[tuple[dict[str, float], int]] = []
    gone, stopped = Unplugged(), threading.Event()

    def record(values: Mapping[str, float], step: int) -> None:
        recorded.append((dict(values), step))
        if step == 2:
            stopped.set()

    monkeypatch.setattr(hardware, "available_samplers", lambda: [gone, Steady()])
    hardware.sample_machine(record, stopped)
    assert recorded == [({"system/cpu": 50.0}, step) for step in range(3)]
    assert gone.calls == 1
    assert "no longer sampled: GPU is lost" in caplog.text


def test_a_run_of_less_than_a_minute_loads_no_samplers(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(hardware, "available_samplers", lambda: [loaded.append("samplers")])
    stopped = threading.Event()
    stopped.set()
    hardware.sample_machine(lambda values, step: loaded.append("values"), stopped)
    assert hardware.FIRST_SECONDS == 60.0
    assert loaded == []
