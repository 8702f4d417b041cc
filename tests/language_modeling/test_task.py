"""The language-modelling task, and its whole training runs."""

import copy
import itertools
import json
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tokenizers
import torch
from torch import Tensor

from clew.config.load import from_mapping
from clew.config.schema import RunConfig
from clew.errors import ConfigError, DataError
from clew.language_modeling.subject import Texts
from clew.language_modeling.task import LanguageModeling
from clew.language_modeling.tokens import TokenBatch, continuation_batch, load_tokens
from clew.names import direction_of
from clew.training.distributed import World
from clew.training.manifest import Manifest
from clew.training.setup import build_trainer, measure_before_training
from clew.training.trainer import Trainer
from clew.workflows.subjects import build_task
from tests.memory_tracker import MemoryTracker

CPU = torch.device("cpu")
TEXT = "".join(f"{i % 7} green bottles hanging on the wall\n" for i in range(120))


@pytest.fixture
def make_config(tmp_path: Path) -> Any:
    (tmp_path / "corpus.txt").write_text(TEXT)
    content = {
        "data": {
            "kind": "tokens",
            "dataset": str(tmp_path / "corpus.txt"),
            "packed": str(tmp_path / "packed"),
        },
        "model": {
            "kind": "eigenstate_lm",
            "d_model": 16,
            "n_layers": 2,
            "num_eigenstates": 8,
            "max_seq_len": 32,
            "chunk_size": 8,
            "dropout": 0.1,
        },
        "optimizer": {"kind": "adamw", "learning_rate": 0.01, "weight_decay": 0.1},
        "schedule": {"kind": "warmup_cosine"},
        "training": {
            "batch_size": 8,
            "gradient_accumulation": 4,
            "num_epochs": 2,
            "log_every_steps": 1,
            "device": "cpu",
        },
        "tracking": {"log_mfu": False},
    }

    def make(**overrides: Any) -> RunConfig:
        return from_mapping(content, {k.replace("__", "."): v for k, v in overrides.items()})

    return make


def language_task(config: RunConfig) -> LanguageModeling:
    task = build_task(config)
    assert isinstance(task, LanguageModeling)
    return task


def some_batch(task: LanguageModeling) -> TokenBatch:
    return task.train_examples().batch(np.array([5, 0, 17]))


def trainer_of(config: RunConfig, folder: Path, world: World | None = None) -> Trainer[Any]:
    task = language_task(config)
    return build_trainer(
        config,
        task,
        MemoryTracker(),
        device=CPU,
        world=world or World(),
        folder=folder,
        origin=Manifest(0, 0, 0.0, task.kind, {}, "hash", task.data_fingerprint),
        keep_all_checkpoints=True,
    )


def losses_of(trainer: Trainer[Any]) -> list[float]:
    return [e.value for e in trainer.history.entries if e.key == "train/loss"]


def test_what_checkpointing_computes_twice_does_not_count_as_work(make_config: Any, tmp_path: Path):
    counted = []
    for checkpointing in (False, True):
        config = make_config(
            tracking__log_mfu=True, optimizations__use_gradient_checkpointing=checkpointing
        )
        trainer = trainer_of(config, tmp_path)
        measure_before_training(trainer)
        counted.append(trainer.throughput.flops_per_example)
    assert counted[0] == counted[1]


@pytest.mark.parametrize("further_tokens", [0, 2])
@pytest.mark.parametrize("implementation", ["plain", "chunked"])
def test_the_examples_losses_add_up_to_the_batchs(
    make_config: Any, implementation: str, further_tokens: int
):
    task = language_task(
        make_config(
            loss__kind="language",
            loss__implementation=implementation,
            model__further_tokens=further_tokens,
        )
    )
    model, batch = task.build_model().double().eval(), some_batch(task)
    total = task.loss(model, batch)
    torch.testing.assert_close(task.example_losses(model, batch).sum(), total.total)
    assert total.count == batch.count == 3 * 32


def test_further_tokens_are_predicted_from_the_same_hidden_vector(make_config: Any):
    config = make_config(loss__kind="language", loss__further_weight=0.25, model__further_tokens=2)
    task = language_task(config)
    model, batch = task.build_model().double().eval(), some_batch(task)
    for ahead in model.further:
        torch.testing.assert_close(ahead.weight, torch.eye(16, dtype=torch.float64))
        torch.nn.init.normal_(ahead.weight)
    hidden, expected = model(batch.inputs), 0.0
    for window in range(3):
        for time in range(32):
            for distance, weight in enumerate((1.0, 0.25, 0.25)):
                if time + distance < 32:
                    ahead = model.further[distance - 1] if distance else torch.nn.Identity()
                    scores = model.embedding.weight @ ahead(hidden[window, time])
                    wanted = batch.targets[window, time + distance]
                    expected -= weight * scores.log_softmax(0)[wanted]
    torch.testing.assert_close(task.loss(model, batch).total, expected)


def test_a_continuation_asks_about_the_next_token_alone(make_config: Any):
    tasks = [language_task(make_config(model__further_tokens=n)) for n in (0, 2)]
    model = tasks[1].build_model().eval()
    batch = continuation_batch(tasks[0].splits.tokenizer, "green", " bottles")
    plain, further = (task.loss(model, batch) for task in tasks)
    assert plain.total.item() == further.total.item()
    assert tasks[1].metrics(model, "valid", CPU) == tasks[0].metrics(model, "valid", CPU)


def test_every_metric_is_better_when_smaller(make_config: Any):
    task = language_task(make_config())
    model = task.build_model().eval()
    values = task.metrics(model, "valid", CPU) | task.metrics(model, "test", CPU)
    assert "test/loss_at_00000" in values
    assert {direction_of(key) for key in values} == {"smaller"}


def test_chunked_and_plain_losses_have_equal_gradients(make_config: Any):
    gradients = []
    model = language_task(make_config(model__further_tokens=1)).build_model().double().eval()
    for implementation in ("plain", "chunked"):
        config = make_config(
            loss__kind="language", loss__implementation=implementation, model__further_tokens=1
        )
        task, own = language_task(config), copy.deepcopy(model)
        task.loss(own, some_batch(task)).total.backward()
        gradients.append({n: p.grad for n, p in own.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], msg=name)


def test_examples_do_not_influence_each_other(make_config: Any):
    task = language_task(make_config())
    model = task.build_model().double().eval()
    together = task.example_losses(model, some_batch(task))
    alone = [task.example_losses(model, task.train_examples().batch(np.array([i])))[0]
             for i in (5, 0, 17)]  # fmt: skip
    torch.testing.assert_close(together, torch.stack(alone))


def test_a_run_learns_and_reports(make_config: Any, tmp_path: Path):
    config = make_config(training__num_epochs=6, training__gradient_accumulation=1)
    trainer = trainer_of(config, tmp_path / "run")
    trainer.record(measure_before_training(trainer))
    trainer.train()
    tracker = trainer.history.tracker
    assert isinstance(tracker, MemoryTracker)
    values = {key: value for key, value, _ in tracker.metric_values}
    found = [v for key, v, _ in tracker.metric_values if key == "valid/bits_per_byte"]
    assert len(found) == 6
    assert found[-1] < 0.7 * found[0] < 8
    assert values["throughput/tokens_per_second"] > 0
    assert values["valid/perplexity"] == pytest.approx(np.exp(values["valid/loss"]))
    assert {"valid/loss_at_00000", "valid/loss_at_00016"} <= values.keys()
    values = trainer.task.metrics(trainer.model.eval(), "test", CPU)
    assert values["test/bits_per_byte"] > 0
    trainer.task.write_report("test", tmp_path / "report")
    buckets = json.loads((tmp_path / "report" / "test_loss_by_position.json").read_text())
    assert [b["first"] for b in buckets] == [0, 1, 2, 4, 8, 16]
    assert "⟶" in (tmp_path / "report" / "test_samples.txt").read_text()


def test_accumulation_and_recomputation_change_no_number(make_config: Any, tmp_path: Path):
    # Without dropout, whose masks depend on the grouping of windows.
    options = {"model__dropout": 0.0}
    reference = make_config(training__batch_size=32, training__gradient_accumulation=1, **options)
    expected = trainer_of(reference, tmp_path / "a")
    expected.train()
    for i, more in enumerate(
        [{}, {"training__batch_size": 16, "training__gradient_accumulation": 2}]
    ):
        config = make_config(optimizations__use_gradient_checkpointing="true", **options, **more)
        trainer = trainer_of(config, tmp_path / f"b{i}")
        trainer.train()
        assert losses_of(trainer) == pytest.approx(losses_of(expected), rel=2e-5)


@pytest.mark.parametrize("further_tokens", [0, 1])
def test_a_resumed_run_repeats_the_uninterrupted_one(
    further_tokens: int, make_config: Any, tmp_path: Path
):
    config = make_config(
        training__checkpoint_every_steps=2,
        training__gradient_accumulation=2,
        model__further_tokens=further_tokens,
    )
    whole = trainer_of(config, tmp_path / "whole")
    whole.train()
    again = trainer_of(config, tmp_path / "again")
    again.checkpointer.resumable.restore(tmp_path / "whole" / "checkpoints" / "step-00000004")
    again.train()
    assert losses_of(again) == losses_of(whole)
    for (name, a), b in zip(
        whole.model.state_dict().items(), again.model.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b), name


def test_mixed_precision_keeps_scan_and_loss_in_float32(make_config: Any, tmp_path: Path):
    torch.manual_seed(0)
    task = language_task(make_config())
    model, batch, kinds = task.build_model().eval(), some_batch(task), []

    def watch(module: torch.nn.Module, inputs: Any, output: Tensor) -> None:
        kinds.append(inputs[0].dtype)

    for block in model.blocks:
        block.mixer.output.register_forward_hook(watch)
    single = task.loss(model, batch).total
    kinds.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = task.loss(model, batch)
    assert kinds == [torch.float32] * 2
    assert half.total.dtype == torch.float32
    assert half.total.item() == pytest.approx(single.item(), rel=0.01)


def test_weight_decay_leaves_eigenvalues_alone(make_config: Any, tmp_path: Path):
    trainer = trainer_of(make_config(), tmp_path)
    decays = {}
    for group in trainer.optimizer.param_groups:
        decays |= {id(p): group["weight_decay"] for p in group["params"]}
    for name, parameter in trainer.model.named_parameters():
        expected = 0.0 if parameter.dim() == 1 else 0.1
        assert decays.pop(id(parameter)) == expected, name
    assert not decays


def test_windows_longer_than_the_text_are_refused(make_config: Any):
    with pytest.raises(DataError):
        build_task(make_config(model__max_seq_len=100_000))


def test_another_task_is_refused(make_config: Any):
    config = make_config()
    splits = load_tokens(config.data, window=32)
    with pytest.raises(ConfigError):
        LanguageModeling(splits, from_mapping({"data": {"name": "umls"}}))


def test_a_corpus_without_test_text_has_no_test_metrics(make_config: Any):
    task = language_task(make_config(data__test_fraction=0))
    assert task.metrics(task.build_model().eval(), "test", CPU) == {}


def documents_of(folder: Path) -> dict[str, str]:
    """Write lines as documents, and return the settings of a task that reads them."""
    path = folder / "corpus.jsonl"
    lines = TEXT.splitlines()
    path.write_text(
        "".join(json.dumps({"text": line[: 3 + i % 30]}) + "\n" for i, line in enumerate(lines))
    )
    return {"data__dataset": str(path), "data__packed": str(folder / "documents")}


@pytest.mark.parametrize("implementation", ["plain", "chunked"])
def test_with_a_reset_a_windows_loss_is_that_of_its_documents(
    make_config: Any, tmp_path: Path, implementation: str
):
    """Documents one by one; the token after an end belongs to the document that it ends."""
    options = documents_of(tmp_path) | {"loss__kind": "language"}
    config = make_config(
        model__reset_at_documents=True, loss__implementation=implementation, **options
    )
    task = language_task(config)
    model, batch = task.build_model().double().eval(), some_batch(task)
    plain = language_task(make_config(**options)).build_model().double().eval()
    plain.load_state_dict(model.state_dict())
    expected = 0.0
    for row in batch.tokens:
        ends = (row[:-1] == task.splits.tokenizer.end_of_text).nonzero()[:, 0].tolist()
        assert ends, "not the case that this test is about"
        cuts = [0, *(end + 1 for end in ends), len(row) - 1]
        for start, end in itertools.pairwise(cuts):
            if end > start:
                part = row[start : end + 1].unsqueeze(0)
                expected += task.loss(plain, TokenBatch(part, torch.zeros(1))).total.item()
    assert task.loss(model, batch).total.item() == pytest.approx(expected, rel=1e-9)
    assert task.loss(plain, batch).total.item() != pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_a_model_that_resets_trains_and_is_evaluated(make_config: Any, tmp_path: Path):
    config = make_config(
        model__reset_at_documents=True,
        model__convolution_width=3,
        optimizations__use_gradient_checkpointing=True,
        training__num_epochs=6,
        **documents_of(tmp_path),
    )
    trainer = trainer_of(config, tmp_path / "run")
    trainer.train()
    losses = losses_of(trainer)
    assert losses[-1] < 0.9 * losses[0]
    task = language_task(config)
    metrics = task.metrics(trainer.model.eval(), "test", CPU)
    assert np.isfinite(list(metrics.values())).all()


def test_bits_per_byte_are_of_the_very_text(make_config: Any, tmp_path: Path):
    """Words of very different lengths: the mean of the corpus would be far from the test text."""
    words = {"a": 0, "incomprehensibilities": 1, "[UNK]": 2}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "words.json"))
    (tmp_path / "words.txt").write_text("a " * 900 + "incomprehensibilities " * 100)
    config = make_config(
        data__dataset=str(tmp_path / "words.txt"),
        data__packed=str(tmp_path / "words"),
        data__tokenizer=str(tmp_path / "words.json"),
    )
    task = language_task(config)
    metrics = task.metrics(task.build_model().eval(), "test", CPU)
    stream = task.splits.windows["test"].stream
    num_bytes = 22 * (len(stream) - 2)  # all but the first token, and the end of text
    nats = metrics["test/loss"] * (len(stream) - 1)
    assert metrics["test/bits_per_byte"] == pytest.approx(nats / np.log(2) / num_bytes, rel=0.01)


def test_held_out_text_of_empty_documents_alone_is_none(tmp_path: Path):
    """Nothing can be divided by its bytes."""
    path = tmp_path / "a.jsonl"
    full, empty = json.dumps({"text": "some words in a line"}), json.dumps({"text": ""})
    path.write_text("\n".join([full] * 40 + [empty] * 200))
    config = from_mapping(
        {
            "data": {"kind": "tokens", "dataset": str(path), "packed": str(tmp_path / "packed")},
            "model": {"d_model": 8, "n_layers": 1, "max_seq_len": 16, "num_eigenstates": 4},
        }
    )
    task = build_task(config)
    assert isinstance(task, LanguageModeling)
    model = task.build_model()
    for split in ("valid", "test"):
        assert not task.has_examples(split)
        assert task.metrics(model, split, torch.device("cpu")) == {}
    (row, *_) = Texts().example_rows(task)
    assert row["prompt"] == "some words in a line"


def test_the_next_commands_name_a_prompt_if_no_text_can_be_one() -> None:
    """Every piece of such a text has a token for unknown text, or only spaces."""
    texts = Texts()
    for rows in ([], [{"prompt": "\n\n"}]):
        with mock.patch.object(texts, "example_rows", return_value=rows):
            assert all(verb[2] for verb in texts.verbs(mock.Mock()))
