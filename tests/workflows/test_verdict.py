"""The last words of a training: at most eight lines, with the baselines that exist."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew import names
from clew.config.schema import RunConfig
from clew.image_sequences.subject import ImageSequences
from clew.language_modeling.subject import frequency_loss
from clew.link_prediction.sources import load_graph
from clew.link_prediction.subject import Graphs, most_frequent_mrr
from clew.runs.reading.runs import find_run
from clew.workflows.subjects import build_task
from clew.workflows.train import train
from tests.image_sequences.sequence_files import sequence_columns
from tests.workflows.trained import sequence_config, small_config, text_config

SHORT = {"training__num_epochs": 1}


def graphs(folder: Path) -> RunConfig:
    return small_config(**SHORT)


def texts(folder: Path) -> RunConfig:
    return text_config(folder, **SHORT)


def frames(folder: Path) -> RunConfig:
    return sequence_config(folder, sequence_columns(), **SHORT)


@pytest.mark.parametrize(
    ("config", "baselines", "verbs"),
    [
        (graphs, ["most frequent"], ["predict", "tracin"]),
        (texts, ["frequencies"], ["predict", "trace-text"]),
        (frames, ["ridge", "mean"], ["predict", "trace-sequence"]),
    ],
)
def test_the_last_words_have_eight_lines(
    config: Any, baselines: list[str], verbs: list[str], tracking_store: Path, tmp_path: Path
) -> None:
    result = train(config(tmp_path), output_dir=tmp_path / "kept")
    short = result.table().splitlines()
    assert len(short) <= 8
    assert all(name in result.table() for name in baselines)
    assert f"{tmp_path / 'kept'}" in result.table()
    for verb in verbs:
        assert f"clew {verb} --model {result.run_id}" in result.table()
    written = find_run(str(result.run_id)).tags[names.TAG_NOTE].split("\n\n")
    assert written == [line for line in short[1:] if not line.startswith("files:")]
    everything = result.table(everything=True).splitlines()
    assert everything[: len(short)] == short
    named = [line.split()[0] for line in everything[len(short) :] if line.startswith("  ")]
    assert sorted(named) == sorted(result.metrics)


def test_a_run_without_validation_names_no_command_that_needs_its_best_checkpoint(
    tracking_store: Path, tmp_path: Path
) -> None:
    config = small_config(**SHORT, evaluation__enabled=False)
    words = train(config, output_dir=tmp_path / "kept").table()
    assert "evaluation.enabled=true" in words
    assert "clew tracin --model" in words
    assert "clew predict" not in words


@pytest.mark.parametrize("asked_at_once", [1, 7, 1000])
def test_the_most_frequent_answers_are_ranked_as_in_a_plain_loop(
    asked_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.link_prediction.subject.ASKED_AT_ONCE", asked_at_once)
    graph = load_graph(small_config().data)  # type: ignore[arg-type]
    known = {
        tuple(row) for split in (graph.train, graph.valid, graph.test) for row in split.tolist()
    }
    train = graph.train.tolist()
    counts: dict[tuple[int, int, int], int] = {}
    for head, relation, tail in train:
        for key in ((0, relation, head), (1, relation, tail)):
            counts[key] = counts.get(key, 0) + 1
    asked = graph.test[:40]
    reciprocal = []
    for head, relation, tail in asked.tolist():
        for side, answer in ((0, head), (1, tail)):
            own = counts.get((side, relation, answer), 0)
            above = equal = 0
            for entity in range(graph.num_entities):
                triple = (entity, relation, tail) if side == 0 else (head, relation, entity)
                if entity != answer and triple not in known:
                    count = counts.get((side, relation, entity), 0)
                    above, equal = above + (count > own), equal + (count == own)
            reciprocal.append(1 / (1 + above + equal / 2))
    assert most_frequent_mrr(graph, asked) == pytest.approx(np.mean(reciprocal))


def test_the_loss_by_frequency_is_that_of_a_plain_loop(tmp_path: Path) -> None:
    task = build_task(text_config(tmp_path))
    windows = task.splits.windows  # type: ignore[attr-defined]
    train, text = (windows[split].stream.tolist() for split in ("train", "test"))
    total = len(train) + task.vocabulary_size  # type: ignore[attr-defined]
    losses = [-math.log((train.count(token) + 1) / total) for token in text]
    assert frequency_loss(task, "test") == pytest.approx(np.mean(losses))  # type: ignore[arg-type]


def test_a_network_that_persistence_beats_is_not_to_be_used(tmp_path: Path) -> None:
    task: Any = build_task(frames(tmp_path))
    errors = {"mae": 2.0, "r2": 0.1, "persistence_mae": 1.5, "ridge_mae": 3.0}

    def worth(**better: float) -> str:
        metrics = {f"test/{name}": value for name, value in (errors | better).items()}
        return ImageSequences().summary(task, metrics, "test")[1]

    refused = "do not use"
    assert refused in worth()
    assert refused not in worth(mae=1.0)


def test_what_seeds_differ_by_is_known_for_the_test_split_alone() -> None:
    task: Any = build_task(small_config())
    metrics = {
        f"{s}/{m}": 0.5 for s in ("valid", "test") for m in ("mrr", "hits_at_1", "hits_at_10")
    }
    valid, test = (Graphs().summary(task, metrics, s) for s in ("valid", "test"))
    assert len(test) == len(valid) + 1
