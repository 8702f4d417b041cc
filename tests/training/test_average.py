"""The moving average of the parameters: its formula, its users, and resumption."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from clew.errors import CheckpointError, ConfigError
from clew.training.manifest import read_manifest
from clew.training.optimizer import ParameterAverage


def walk(decay: float, steps: int) -> tuple[ParameterAverage, list[torch.Tensor]]:
    """Change a model's weights at random, and return its average and all weights."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2, bias=False).double()
    average, seen = ParameterAverage(model, decay), []
    for step in range(1, steps + 1):
        with torch.no_grad():
            model.weight.normal_()
        seen.append(model.weight.detach().clone())
        average.update(step)
    return average, seen


def test_the_first_steps_count_alike_and_initial_weights_for_nothing() -> None:
    average, seen = walk(decay=0.9, steps=10)
    torch.testing.assert_close(average.tensors()["weight"], torch.stack(seen).mean(0))


def test_later_steps_count_by_the_decay() -> None:
    average, seen = walk(decay=0.75, steps=12)
    expected = torch.stack(seen[:4]).mean(0)
    for weights in seen[4:]:
        expected = 0.75 * expected + 0.25 * weights
    torch.testing.assert_close(average.tensors()["weight"], expected)


def test_it_is_exchanged_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.training.optimizer._ROWS_AT_ONCE", 2)
    model = nn.Linear(3, 5)
    model.scale = nn.Parameter(torch.tensor(2.0))
    average = ParameterAverage(model, 0.5)
    own = {name: p.detach().clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        for mean in average.tensors().values():
            mean.add_(1.0)
    with average.applied():
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.detach(), own[name] + 1.0)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.detach(), own[name])


def test_the_model_holds_the_average_for_a_while_and_then_its_own_again() -> None:
    model = nn.Linear(2, 2)
    average = ParameterAverage(model, 0.5)
    own, address = model.weight.detach().clone() + 1.0, model.weight.data_ptr()
    with torch.no_grad():
        model.weight.copy_(own)
    mean = average.tensors()["weight"].clone()

    def fail_to_validate() -> None:
        with average.applied():
            assert torch.equal(model.weight, mean)
            raise ValueError("validation failed")

    with pytest.raises(ValueError, match="validation failed"):
        fail_to_validate()
    assert torch.equal(model.weight, own)
    assert torch.equal(average.tensors()["weight"], mean)
    assert model.weight.data_ptr() == address


def test_without_a_decay_nothing_is_kept() -> None:
    average = ParameterAverage(nn.Linear(2, 2), None)
    average.update(1)
    assert not average.active
    assert not average.tensors()


def test_validation_and_the_best_checkpoint_are_the_averages(make_trainer: Any) -> None:
    trainer = make_trainer(training__num_epochs=2, training__ema_decay=0.8)
    trainer.train()
    folder = trainer.checkpointer.folder
    last, best = folder / "checkpoints" / "epoch-0002", folder / "best"
    means, weights = load_file(best / "model.safetensors"), load_file(last / "model.safetensors")
    average = load_file(last / "average.safetensors")
    for name, parameter in trainer.model.named_parameters():
        assert torch.equal(means[name], average[name])
        assert torch.equal(weights[name], parameter)
        assert not torch.equal(means[name], weights[name])
    assert not (best / "average.safetensors").exists()
    with trainer.average.applied(), torch.no_grad():
        found = trainer.task.metrics(trainer.model.eval(), "valid", torch.device("cpu"))
    assert read_manifest(best).metrics == pytest.approx(found)
    assert read_manifest(last).metrics == {}, "the metrics are those of other parameters"


def test_the_path_of_training_does_not_depend_on_it(make_trainer: Any) -> None:
    trainers = [make_trainer(training__ema_decay=decay) for decay in (None, 0.9)]
    weights = []
    for trainer in trainers:
        trainer.train()
        weights.append(list(trainer.model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


@pytest.mark.parametrize("decays", [(None, 0.9), (0.9, None)])
def test_a_checkpoint_without_the_average_that_a_run_keeps_is_refused(
    make_trainer: Any, decays: tuple[float | None, float | None]
) -> None:
    written = make_trainer(training__num_epochs=1, training__ema_decay=decays[0])
    written.train()
    folder: Path = written.checkpointer.folder / "checkpoints" / "epoch-0001"
    other = make_trainer(training__ema_decay=decays[1])
    before = [p.clone() for p in other.model.parameters()]
    with pytest.raises(CheckpointError, match=r"same training\.ema_decay"):
        other.checkpointer.resumable.restore(folder)
    assert all(torch.equal(a, b) for a, b in zip(before, other.model.parameters(), strict=True))


def test_an_average_of_other_shapes_is_refused_before_anything_is_taken_up() -> None:
    model = nn.Linear(3, 1)
    average = ParameterAverage(model, 0.5)
    before = {name: mean.clone() for name, mean in average.tensors().items()}
    with pytest.raises(CheckpointError, match=r"same training\.ema_decay and model"):
        average.restore({"weight": torch.zeros(1, 1), "bias": torch.zeros(1)})
    assert all(torch.equal(mean, before[name]) for name, mean in average.tensors().items())


def test_an_average_that_nobody_would_see_is_refused(config: Any) -> None:
    with pytest.raises(ConfigError, match=r"ema_decay .*evaluation\.enabled is false"):
        config(training__ema_decay=0.9, evaluation__enabled=False)
