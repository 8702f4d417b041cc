"""torch.compile: separate cost, keys of the eager model, and errors before training."""

import functools
import shutil
from typing import Any

import numpy as np
import pytest
import torch

from clew import names
from clew.config.load import from_mapping
from clew.errors import ConfigError
from clew.training import setup
from clew.training.checkpoints import load_tensors
from clew.training.precision import Precision
from clew.training.progress import WARM_UP_STEPS, count_flops, peak_flops_per_second
from clew.training.setup import measure_before_training, prepare_process, warm_up
from clew.workflows.subjects import build_task

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "c++", "clang++"))), reason="needs a C++ compiler"
)


@pytest.mark.slow
@needs_compiler
# Inductor parses with a deprecated node of Python's own ast module.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0")  # torch says so
def test_compiled_training_is_eager_training_with_the_same_keys(
    make_trainer: Any, toy_task: Any
) -> None:
    # Not Adam: it enlarges the rounding errors of a zero gradient, that of the bias before a norm.
    common = {"training__num_epochs": 2, "optimizer__kind": "sgd", "optimizer__learning_rate": 0.1}
    settings = common | {"optimizations__torch_compile": True}
    eager = make_trainer(toy_task(batch_norm=True), **common)
    compiled = make_trainer(toy_task(batch_norm=True), **settings)
    values = measure_before_training(compiled)
    assert values[names.TIME_COMPILE_SECONDS] > 0.1
    eager.train()
    compiled.train()
    ours, theirs = (
        load_tensors(t.checkpointer.folder / "checkpoints/epoch-0002/model.safetensors")
        for t in (compiled, eager)
    )
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=1e-5, msg=name)


def test_the_reports_say_that_the_model_is_compiled(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, said = make_trainer(optimizations__torch_compile=True), []
    monkeypatch.setattr(setup, "apply_compile", lambda *_: said.append(trainer.reports.doing))
    monkeypatch.setattr(setup, "warm_up", lambda *_: 0.0)
    measure_before_training(trainer)
    assert "compiling" in said[0]


def test_without_a_compiler_the_error_comes_first(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup.shutil, "which", lambda name: None)
    settings = {"optimizations__torch_compile": True}
    with pytest.raises(ConfigError, match=r"torch_compile .*g\+\+, c\+\+, clang\+\+"):
        measure_before_training(make_trainer(**settings))


def test_a_compiler_that_fails_stops_training_unless_it_was_optional(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise torch._dynamo.exc.TorchDynamoException("no such instruction")

    compile_with = functools.partialmethod(torch.nn.Module.compile, backend=fail)
    monkeypatch.setattr(torch.nn.Module, "compile", compile_with)
    monkeypatch.setattr(setup.shutil, "which", lambda name: name)
    settings = {"optimizations__torch_compile": True}
    with pytest.raises(ConfigError, match="no such instruction"):
        measure_before_training(make_trainer(**settings))
    optional = settings | {"optimizations__torch_compile_optional": True}
    trainer = make_trainer(**optional)
    values = measure_before_training(trainer)
    assert names.TIME_COMPILE_SECONDS not in values
    tags = trainer.history.tracker.tag_values
    assert "no such instruction" in tags["clew.compile_failed"]
    assert tags[names.TAG_VARIANT] == "fp32"
    trainer.train()


def test_warming_up_leaves_no_trace(make_trainer: Any, toy_task: Any) -> None:
    trainer = make_trainer(toy_task(dropout=0.5, batch_norm=True))
    before = {name: t.clone() for name, t in trainer.model.state_dict().items()}
    generator = torch.get_rng_state()
    batch = trainer.task.train_examples().batch(np.arange(8))
    trainer.model.train()
    seconds = warm_up(trainer.task, trainer.model, trainer.precision, [batch])
    assert seconds > 0
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(p.grad is None for p in trainer.model.parameters())
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_flops_are_counted_by_tracing_where_the_peak_is_known(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """6 x 8 + 8 x 1 weights: 2 FLOP forward, and backward 2 for weights and 2 for activations.

    The first layer's input needs no gradient.
    """
    settings = {"tracking__log_mfu": True, "optimizations__torch_compile": False}
    monkeypatch.setattr(setup, "peak_flops_per_second", lambda *_, **__: 1e12)
    trainer = make_trainer(**settings)
    measure_before_training(trainer)
    assert trainer.throughput.flops_per_example == 2 * (2 * 48 + 3 * 8)
    assert trainer.throughput.peak_flops_per_second == 1e12


def test_a_processor_has_no_peak_rate(make_trainer: Any) -> None:
    trainer = make_trainer(tracking__log_mfu=True)
    measure_before_training(trainer)
    trainer.train()
    assert names.MFU not in {key for key, _, _ in trainer.history.tracker.metric_values}


@pytest.mark.parametrize(
    ("name", "half"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("Tesla T4", 65e12),
        ("Tesla V100-SXM2-16GB", None),
        ("a card of tomorrow", None),
    ],
)
def test_the_peak_rate_of_a_gpu_is_that_of_its_data_sheet(
    monkeypatch: pytest.MonkeyPatch, name: str, half: float | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    precision = Precision(None, torch.device("cpu"))
    precision.dtype, precision.device = torch.float16, torch.device("cuda")
    assert peak_flops_per_second(precision, tf32=False) == half


def test_no_tensor_is_made_to_count_flops() -> None:
    """A real pass of this model would need thousands of GiB."""
    sizes = {"embedding_dim": 2**20, "embedding_height": 2**10, "output_channels": 1}
    kernel = {"kernel_height": 1, "kernel_width": 1}
    config = from_mapping({"data": {"name": "umls"}, "model": {**sizes, **kernel}})
    task, precision = build_task(config), Precision(None, torch.device("cpu"))
    assert count_flops(task, precision, task.train_examples().batch(np.arange(2))) > 6 * 2**28


def test_throughput_leaves_warm_up_steps_out(make_trainer: Any) -> None:
    trainer = make_trainer(training__num_epochs=2, evaluation__enabled=False)
    seen: list[tuple[int, int]] = []
    original = trainer.throughput.close_epoch

    def close_epoch() -> dict[str, float]:
        timed = trainer.throughput.timed_steps, trainer.throughput.timed_units.get("examples", 0)
        seen.append(timed)
        return original()

    trainer.throughput.close_epoch = close_epoch
    trainer.train()
    assert seen == [(5 - WARM_UP_STEPS, 37 - 8 * WARM_UP_STEPS), (5, 37)]
    rates = [
        v for k, v, _ in trainer.history.tracker.metric_values if k == names.EXAMPLES_PER_SECOND
    ]
    assert len(rates) == 2
    assert all(rate > 0 for rate in rates)


@pytest.mark.parametrize("deterministic", [True, False])
def test_determinism_is_switched_without_the_compiler(
    config: Any, monkeypatch: pytest.MonkeyPatch, deterministic: bool
) -> None:
    def importing(mode: bool) -> None:
        raise AssertionError("this imports torch's compiler")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "use_deterministic_algorithms", importing)
        try:
            prepare_process(config(training__deterministic=deterministic))
            assert torch.are_deterministic_algorithms_enabled() is deterministic
        finally:
            torch.set_deterministic_debug_mode("default")
