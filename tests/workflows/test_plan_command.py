"""`clew plan`, messages of `train` about memory, and `training.batch_size: auto`."""

import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import pytest
import torch
from click.testing import CliRunner

from clew import names
from clew.cli import cli
from clew.config.load import from_mapping, with_settings
from clew.config.schema import RunConfig
from clew.config.services import DataSizes
from clew.config.training import TrainingConfig
from clew.errors import ConfigError, OutOfMemoryError, UsageError
from clew.training.distributed import World
from clew.training.hardware import GPUS, Hardware, find_device, fit_to_hardware
from clew.training.memory_plan import MemoryPlanner
from clew.training.trainer import StepLoss, Trainer
from clew.workflows import memory_guard
from clew.workflows.memory_guard import resolve_batch_size
from clew.workflows.plan import plan
from clew.workflows.subjects import build_task
from clew.workflows.train import train
from tests.workflows.trained import small_config

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


@pytest.fixture
def tensors_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exclude this process's memory from predictions, because other tests have enlarged it."""
    monkeypatch.setattr(MemoryPlanner, "process_gib", 0.1)


def total_gib(config: RunConfig, **settings: Any) -> float:
    config = with_settings(config, {k.replace("__", "."): v for k, v in settings.items()})
    return MemoryPlanner(build_task(config), CPU).predict(config).total_gib


def changed(**settings: Any) -> RunConfig:
    return small_config(**{"evaluation__enabled": False, "training__num_epochs": 1, **settings})


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
    assert "fits into 100.00 GiB; the largest microbatch that fits: 1560" in table


def test_a_plan_says_that_compiling_is_not_in_it() -> None:
    compiled = plan(small_config(optimizations__torch_compile=True))
    assert "torch_compile is on, but these numbers are without it" in compiled.table()
    assert "torch_compile" not in plan(small_config()).table()


def test_a_plan_that_does_not_fit_says_so() -> None:
    result = plan(changed(), memory_gib=0.001)
    assert result.largest_batch_size == 0
    assert "does not fit into 0.00 GiB; the largest microbatch that fits: none" in result.table()


def test_a_plan_of_an_automatic_batch_is_for_what_it_finds() -> None:
    automatic = changed(training__batch_size="auto", training__effective_batch_size=512)
    result = plan(automatic, memory_gib=100.0)
    assert (result.batch_size, result.gradient_accumulation) == (512, 1)


def test_a_plan_is_for_one_process_or_more() -> None:
    done = CliRunner().invoke(cli, ["plan", "--devices=0"])
    assert isinstance(done.exception, ConfigError)
    assert "--devices" in str(done.exception)


def test_processes_on_the_processor_share_its_memory() -> None:
    alone, many = (plan(changed(), device="cpu", world_size=n).limit_gib for n in (1, 4))
    assert many < alone / 2  # free memory changes in between
    on_gpus = [plan(changed(), device="T4", world_size=n).limit_gib for n in (1, 4)]
    assert on_gpus[0] == on_gpus[1]


@pytest.mark.parametrize("text", ["nothing", "0", "-1", "nan", "inf"])
def test_a_memory_that_is_no_number_is_refused(text: str) -> None:
    done = CliRunner().invoke(cli, ["plan", f"--memory-gib={text}"])
    assert isinstance(done.exception, ConfigError)


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("H100 80GB", 74.5),
        ("NVIDIA A100-40GB", 37.25),
        ("Tesla T4", 14.9),
        ("rtx 4090", 22.35),
        ("an unknown card of 16 GiB", 16.0),
        *((name, card.memory_gb * 1e9 / 2**30) for name, card in GPUS.items()),
    ],
)
def test_a_gpu_that_is_not_there_is_known_by_name_or_by_its_size(name: str, gib: float) -> None:
    target = find_device(name)
    assert (target.name, target.device.type) == (name, "cuda")
    assert target.memory_gib == pytest.approx(gib, abs=0.01)


def test_a_device_that_nobody_knows_is_refused_with_those_that_are_known() -> None:
    done = CliRunner().invoke(cli, ["plan", "--device=H900"])
    assert isinstance(done.exception, ConfigError)
    message = str(done.exception)
    assert "--device is 'H900'; expected cpu, cuda" in message
    assert "H100 (80 GB)" in message
    assert "\n" not in message


def planned(*options: str) -> dict[str, Any]:
    """Return a plan for a memory that is too small for anything, so no batch size is searched."""
    words = ["plan", "--json", "--memory-gib=0.001", *options]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    content: dict[str, Any] = json.loads(done.output)
    return content


@pytest.mark.usefixtures("tensors_alone")
def test_a_graph_is_planned_by_its_sizes_as_with_its_data() -> None:
    graph = build_task(changed()).graph  # type: ignore[attr-defined]
    sizes = DataSizes(num_entities=graph.num_entities, num_relations=graph.num_relations)
    with_data, without = (
        plan(changed(), memory_gib=9.0),
        plan(changed(), memory_gib=9.0, sizes=sizes),
    )
    for ours, its in zip(without.variants, with_data.variants, strict=True):
        ours_gib, its_gib = ours.memory.parts_gib, its.memory.parts_gib
        # Without the data, the number of examples to put in order is unknown.
        assert ours_gib.pop("loader") == pytest.approx(its_gib.pop("loader"), abs=1e-4)
        assert sum(ours_gib.values()) == pytest.approx(sum(its_gib.values()), rel=1e-3)


def test_a_graph_of_a_million_entities_is_planned_without_its_data() -> None:
    content = planned("--config=experiments/link_prediction/wn18rr.yaml", "--num-entities=1000000",
                      "--num-relations=100", "--device=H100 80GB", "--batch-size=1024",
                      "model.embedding_dim=200",
                      "model.embedding_height=10", "model.embedding_width=20")  # fmt: skip
    assert content["device"] == "H100 80GB"
    parts = content["variants"][0]["parts_gib"]
    assert parts["weights"] == pytest.approx(1e6 * 4 * 200 / 2**30, rel=0.05)
    assert 4 * parts["weights"] < content["variants"][0]["total_gib"] < 8 * parts["weights"]


def test_text_is_planned_without_its_text() -> None:
    config = "--config=experiments/language_modeling/small_32k.yaml"
    small, large = (
        planned(config, "model.n_layers=2", "--device=A100", *size)
        for size in (["--vocabulary-size=10000"], [])  # the preset's tokenizer has 50,257 tokens
    )
    more = [v["variants"][0]["parts_gib"]["weights"] for v in (small, large)]
    assert (more[1] - more[0]) * 2**30 == 4 * 1024 * 40_257


def test_images_are_planned_by_the_shape_of_a_frame() -> None:
    config = "--config=experiments/image_sequences/colab_optimized.yaml"
    totals = [
        planned(config, f"--frame-shape={shape}", "--device=T4")["variants"][0]["total_gib"]
        for shape in ("1x32x48", "3x64x96")
    ]
    assert totals[1] > 2 * totals[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--num-entities=5"], "--num-entities given, and data.kind is triples; expected --num-en"),
        (["--frame-shape=1x2x3"], "expected --num-entities and --num-relations"),
        (["--frame-shape=2x3"], "--frame-shape is '2x3'; expected CHANNELSxHEIGHTxWIDTH"),
        (["--set=data.name=nowhere"], "to plan without data, give --num-entities and --num-rel"),
        (
            ["--config=experiments/language_modeling/nano.yaml", "--num-entities=5"],
            "--num-entities given, and data.kind is tokens; expected --vocabulary-size",
        ),
    ],
)
def test_sizes_that_do_not_fit_the_data_are_refused(options: list[str], message: str) -> None:
    done = CliRunner().invoke(cli, ["plan", *options])
    assert isinstance(done.exception, UsageError)
    assert message in str(done.exception)


@pytest.fixture
def few_steps_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predict the memory of a training of a few steps as that of a long one."""
    monkeypatch.setattr(memory_guard, "FEW_STEPS", 1)


def test_training_logs_what_was_predicted(
    tracking_store: Path, few_steps_count: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="clew"):
        metrics = train(changed()).metrics
    assert metrics[names.PREDICTED_GIB] > 0.1
    assert re.search(r"memory on cpu: \d+\.\d\d GiB predicted at the peak", caplog.text)


def test_a_certain_lack_of_memory_is_warned_of(
    tracking_store: Path,
    few_steps_count: None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_guard, "free_gib", lambda device: 0.01)
    train(changed())
    assert "training will run out of memory" in caplog.text


def test_a_failed_prediction_stops_nothing(
    tracking_store: Path,
    few_steps_count: None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no fake kernel")

    monkeypatch.setattr(MemoryPlanner, "predict", fail)
    assert names.PREDICTED_GIB not in train(changed()).metrics
    assert "memory was not predicted (RuntimeError: no fake kernel)" in caplog.text


def test_the_memory_of_a_few_steps_is_not_predicted(tracking_store: Path) -> None:
    assert names.PREDICTED_GIB not in train(changed()).metrics


@pytest.mark.usefixtures("tensors_alone")
@pytest.mark.parametrize("size", [10**6, "auto"])
def test_a_batch_is_no_larger_than_the_data(
    tracking_store: Path, few_steps_count: None, tmp_path: Path, size: object
) -> None:
    """A million examples of four facts took minutes to plan."""
    facts = tmp_path / "facts.tsv"
    facts.write_text("a\tr\tb\nb\tr\tc\nc\tr\ta\na\tr\tc\n", encoding="utf-8")
    settings = {"training.batch_size": size, "training.device": "cpu"}
    if size == "auto":
        settings["training.effective_batch_size"] = 10**6
    config = from_mapping(
        {"data": {"train": str(facts)}, "evaluation": {"enabled": False}}, settings
    )
    planned = plan(config)
    assert planned.batch_size == 8  # each fact is asked both ways
    result = train(config)
    assert result.run_id is not None
    tags = mlflow.get_run(result.run_id).data.tags
    assert "batch_size" in tags[names.TAG_WARNINGS]
    assert result.metrics[names.PREDICTED_GIB] < 2.0


def test_the_run_says_what_the_hardware_does_not_do(
    tracking_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Hardware("a processor", CPU, float16=False, bfloat16=False, tf32=False)
    monkeypatch.setattr(Hardware, "of", lambda _: replace(slow, compiles_bfloat16=False))
    config = changed(optimizations__use_mixed_precision=True, optimizations__torch_compile=True)
    result = train(config)
    assert result.run_id is not None
    run = mlflow.get_run(result.run_id).data
    assert run.params["cfg.optimizations.torch_compile"] == "false"
    warnings = run.tags[names.TAG_WARNINGS].splitlines()
    assert [line.partition(":")[0] for line in warnings] == [
        "optimizations.torch_compile is false in this run",
        "use_mixed_precision",
    ]
    fitted, _ = fit_to_hardware(config, Hardware.of(CPU))
    assert run.tags[names.TAG_CONFIG_HASH] == fitted.config_hash  # --resume finds it
    assert set(plan(changed()).remarks) == {warnings[1]}  # of the variant with mixed precision
    with pytest.raises(ConfigError):
        train(config, strict=True)


def test_a_variant_without_an_option_says_nothing_of_the_configuration() -> None:
    half = {"use_mixed_precision": True, "mixed_precision_dtype": "bfloat16"}
    config = changed(**{f"optimizations__{key}": value for key, value in half.items()})
    shown = plan(config, device="H100 80GB").remarks
    assert not any("mixed_precision_dtype" in remark for remark in shown)


def test_out_of_memory_shows_the_budget_and_three_changes_that_fit(
    tracking_store: Path, tensors_alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(trainer: Trainer[Any]) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 10 bytes")

    def between_half_and_whole(device: torch.device) -> float:
        return (total_gib(config) + total_gib(config, training__batch_size=512)) / 2

    config = changed(training__batch_size=1024, model__output_channels=32)
    monkeypatch.setattr(Trainer, "train", fail)
    monkeypatch.setattr(memory_guard, "free_gib", between_half_and_whole)
    with pytest.raises(OutOfMemoryError) as caught:
        train(config)
    message = str(caught.value)
    assert re.match(r"out of memory on cpu at \d+\.\d\d GiB: \d+\.\d\d GiB predicted", message)
    changes = message.partition("what would fit into")[2].split("; docs/")[0].split(";")
    assert len(changes) == 3, message
    assert any("training.batch_size=512 training.gradient_accumulation=2" in c for c in changes), (
        message
    )


def losses(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the exact training loss of every optimizer step."""
    seen: list[float] = []
    log = Trainer._log

    def spy(trainer: Trainer[Any], total: StepLoss, count: float, *rest: Any) -> None:
        seen.append(float(total.total) / count)
        log(trainer, total, count, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_log", spy)
        train(config)
    return seen


def test_auto_trains_with_the_losses_of_the_explicit_setting(
    tracking_store: Path, tensors_alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved: list[TrainingConfig] = []

    def resolve(config: RunConfig, device: torch.device, world: World) -> RunConfig:
        limit = total_gib(changed(training__batch_size=128, training__gradient_accumulation=4))
        limit += 1e-4
        with monkeypatch.context() as patch:
            patch.setattr(memory_guard, "free_gib", lambda device: limit / memory_guard.USED_SHARE)
            found = resolve_batch_size(config, device, world)
        resolved.append(found.training)
        return found

    monkeypatch.setattr("clew.workflows.train.resolve_batch_size", resolve)
    automatic = changed(training__batch_size="auto", training__effective_batch_size=512)
    found = losses(automatic, monkeypatch)
    chosen = resolved[0]
    assert (chosen.batch_size, chosen.gradient_accumulation) == (128, 4)
    explicit = changed(
        training__batch_size=chosen.batch_size,
        training__gradient_accumulation=chosen.gradient_accumulation,
    )
    assert found == losses(explicit, monkeypatch)
    assert len(found) == 4, "1,560 queries in steps of 512"


def test_auto_refuses_what_cannot_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_guard, "free_gib", lambda device: 1e-6)
    with pytest.raises(OutOfMemoryError, match=r"no microbatch of 2 .* fits into 0\.00 GiB"):
        resolve_batch_size(changed(training__batch_size="auto"), CPU, World())


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
