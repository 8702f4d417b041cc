"""`clew plan`, what `train` says of memory, and `training.batch_size: auto`."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from clew import names
from clew.cli import cli
from clew.config.load import from_mapping
from clew.config.schema import RunConfig
from clew.config.training import TrainingConfig
from clew.errors import ConfigError, OutOfMemoryError
from clew.training import memory_plan
from clew.training.trainer import Trainer
from clew.workflows import memory_guard
from clew.workflows import planner as planner_module
from clew.workflows.auto_batch import resolve_batch_size
from clew.workflows.plan import plan
from clew.workflows.planner import Planner, largest_that
from clew.workflows.train import train
from tests.workflows.trained import small_config

CPU = torch.device("cpu")


@pytest.fixture
def tensors_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out of predictions what moves: the process, which other tests grow, and its heap."""
    monkeypatch.setattr(memory_plan, "process_gib", lambda: 0.1)
    monkeypatch.setattr(memory_plan, "_heap_peak", lambda *_: 0)


def changed(**settings: Any) -> RunConfig:
    return small_config(**{"evaluation__enabled": False, "training__num_epochs": 1, **settings})


@pytest.mark.parametrize("most", [1, 7, 100, 4096])
@pytest.mark.parametrize("guess", [0, 1, 50, 4000, 10**9])
@pytest.mark.parametrize("limit", [0, 1, 2, 63, 100, 1000, 10**6])
def test_the_largest_that_fits_is_found_to_a_sixteenth(most: int, guess: int, limit: int) -> None:
    found = largest_that(lambda n: n <= limit, least=1, most=most, guess=guess)
    best = min(limit, most)
    assert found <= best
    assert found + max(1, found // 16) >= best


def test_a_plan_as_json_and_as_a_table(tmp_path: Path) -> None:
    options = ["--batch-size=64", "--memory-gib=100", "model.embedding_dim=48"]
    done = CliRunner().invoke(cli, ["plan", *options, "--json"], catch_exceptions=False)
    content = json.loads(done.output)
    first = content["variants"][0]
    assert first["name"] == "as configured"
    assert sum(first["parts_gib"].values()) == pytest.approx(first["total_gib"])
    assert content["largest_batch_size"] == content["searched_batch_size"] == 1560  # all queries
    assert {v["name"] for v in content["variants"]} >= {
        "with mixed precision",
        "half the microbatch",
    }
    table = CliRunner().invoke(cli, ["plan", *options], catch_exceptions=False).output
    assert "fits into 100.00 GiB; the largest microbatch that does: 1560" in table


def test_a_plan_that_does_not_fit_says_so() -> None:
    result = plan(changed(), memory_gib=0.001)
    assert result.largest_batch_size == 0
    assert "does not fit into 0.00 GiB; the largest microbatch that does: none" in result.table()


def test_a_plan_of_an_automatic_batch_is_for_what_it_finds() -> None:
    result = plan(changed(training__batch_size="auto", training__effective_batch_size=512))
    assert (result.batch_size, result.gradient_accumulation) == (512, 1)


def test_a_plan_is_for_one_process_or_more() -> None:
    with pytest.raises(ConfigError, match="0 processes given"):
        plan(changed(), world_size=0)


@pytest.mark.parametrize("text", ["nothing", "0", "-1", "nan", "inf"])
def test_a_memory_that_is_no_number_is_refused(text: str) -> None:
    done = CliRunner().invoke(cli, ["plan", f"--memory-gib={text}"])
    assert isinstance(done.exception, ConfigError)


def test_training_logs_what_was_predicted(
    tracking_store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="clew"):
        metrics = train(changed()).metrics
    assert metrics[names.PREDICTED_GIB] > 0.1
    assert re.search(r"memory on cpu: \d+\.\d\d GiB predicted at the peak", caplog.text)


def test_a_certain_lack_of_memory_is_warned_of(
    tracking_store: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_guard, "limit_gib", lambda device: 0.01)
    train(changed())
    assert "training will run out of memory" in caplog.text


def test_a_failed_prediction_stops_nothing(
    tracking_store: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no fake kernel")

    monkeypatch.setattr(planner_module, "predict_step", fail)
    assert names.PREDICTED_GIB not in train(changed()).metrics
    assert "memory was not predicted (RuntimeError: no fake kernel)" in caplog.text


def test_out_of_memory_shows_the_budget_and_three_changes_that_fit(
    tracking_store: Path, tensors_alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(trainer: Trainer[Any]) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 10 bytes")

    def between_half_and_whole(device: torch.device) -> float:
        planner = Planner(config, device)
        half = planner.predict({"training.batch_size": 512})
        return (planner.predict().total_gib + half.total_gib) / 2

    config = changed(training__batch_size=1024, model__output_channels=32)
    monkeypatch.setattr(Trainer, "train", fail)
    monkeypatch.setattr(memory_guard, "limit_gib", between_half_and_whole)
    with pytest.raises(OutOfMemoryError) as caught:
        train(config)
    message = str(caught.value)
    assert re.match(r"out of memory on cpu at \d+\.\d\d GiB: \d+\.\d\d GiB predicted", message)
    changes = message.partition("what would fit into")[2].split(";")
    assert len(changes) == 3, message
    assert any("training.batch_size=512 training.gradient_accumulation=2" in c for c in changes), (
        message
    )


def losses(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the exact training loss of every optimizer step."""
    seen: list[float] = []
    log = Trainer._log

    def spy(trainer: Trainer[Any], total: float, count: float, *rest: Any) -> None:
        seen.append(total / count)
        log(trainer, total, count, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_log", spy)
        train(config)
    return seen


def test_auto_trains_with_the_losses_of_the_explicit_setting(
    tracking_store: Path, tensors_alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved: list[TrainingConfig] = []

    def resolve(config: RunConfig, device: torch.device, world: object) -> RunConfig:
        limit = Planner(changed(training__batch_size=128), device).predict().total_gib + 1e-4
        found = resolve_batch_size(config, device, limit=limit)
        resolved.append(found.training)
        return found

    monkeypatch.setattr("clew.workflows.train.resolve_batch_size", resolve)
    automatic = changed(training__batch_size="auto", training__effective_batch_size=512)
    found = losses(automatic, monkeypatch)
    chosen = resolved[0]
    assert chosen.batch_size * chosen.gradient_accumulation == 512
    assert chosen.batch_size <= 256
    explicit = changed(
        training__batch_size=chosen.batch_size,
        training__gradient_accumulation=chosen.gradient_accumulation,
    )
    assert found == losses(explicit, monkeypatch)
    assert len(found) == 4, "1,560 queries in steps of 512"


def test_auto_refuses_what_cannot_fit() -> None:
    with pytest.raises(OutOfMemoryError, match=r"auto, but 0\.00 GiB hold no microbatch of 2"):
        resolve_batch_size(changed(training__batch_size="auto"), CPU, limit=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": "auto", "gradient_accumulation": 4}, "give effective_batch_size"),
        ({"batch_size": 8, "effective_batch_size": 64}, "set batch_size to auto"),
        ({"batch_size": "automatic"}, "batch_size"),
        ({"batch_size": -1}, "batch_size"),
    ],
)
def test_batch_sizes_that_contradict_each_other(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_mapping({"data": {"name": "umls"}, "training": settings})
