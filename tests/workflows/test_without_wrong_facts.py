"""From a review in the store to a model that is trained without the facts marked wrong."""

from pathlib import Path

import pytest

from clew import names
from clew.__main__ import run as run_command
from clew.config.data import TripleData
from clew.errors import CheckpointError
from clew.link_prediction.sources import load_graph
from clew.link_prediction.triples import KnowledgeGraph
from clew.runs.reading.disagreements import wrong_facts_tsv
from clew.runs.reading.reviews import (
    Fact,
    Review,
    append_review,
    by_data,
    read_reviews,
)
from clew.runs.reading.runs import find_run
from clew.workflows.evaluate import evaluate
from clew.workflows.explaining.tracin import tracin
from clew.workflows.predict import asked, predict
from clew.workflows.train import train
from tests.workflows.trained import TrainedStore, small_config


@pytest.fixture
def wrong() -> Fact:
    graph = load_graph(TripleData(name="umls"))
    return Fact(*names_of(graph, 7))


def names_of(graph: KnowledgeGraph, row: int) -> tuple[str, str, str]:
    head, relation, tail = graph.train[row]
    return graph.entities.name(head), graph.relations.name(relation), graph.entities.name(tail)


@pytest.fixture
def listed(trained: TrainedStore, wrong: Fact, tmp_path: Path) -> Path:
    """Return the dashboard's list of wrong facts, from a review of an explanation of `strong`."""
    traced = tracin(trained.strong, f"{wrong.head},{wrong.relation},{wrong.tail}", {}).run_id
    assert traced is not None
    for name in ("Ada", "Grace"):
        append_review(Review(traced, wrong, "implausible", name, wrong=(wrong,)))
    ((origin, reviews),) = by_data(read_reviews(traced).records, [find_run(traced)]).items()
    path = tmp_path / "wrong_facts.tsv"
    path.write_text(wrong_facts_tsv(reviews, origin), encoding="utf-8")
    return path


def test_the_next_model_is_trained_evaluated_and_asked_without_them(
    trained: TrainedStore, wrong: Fact, listed: Path
) -> None:
    run_id = train(small_config(data__exclude=str(listed), training__num_epochs=1)).run_id
    assert run_id is not None
    prints = [find_run(run).tags[names.TAG_DATA_FINGERPRINT] for run in (trained.strong, run_id)]
    assert prints[0] != prints[1]
    assert "test/mrr" in evaluate(run_id, "test").metrics
    question = asked(wrong.head, wrong.relation, wrong.tail)
    before, after = (predict(run, [question]).predictions[0] for run in (trained.strong, run_id))
    assert before.place is not None
    assert after.place is not None
    assert (before.place.known, after.place.known) == (True, False)
    assert before.num_known == (after.num_known or 0) + 1
    listed.unlink()
    with pytest.raises(ValueError, match="wrong_facts"):
        evaluate(run_id, "test")


def test_other_data_behind_the_same_list_are_refused(trained: TrainedStore, listed: Path) -> None:
    run_id = train(small_config(data__exclude=str(listed), training__num_epochs=1)).run_id
    assert run_id is not None
    first = listed.read_text(encoding="utf-8")
    more = names_of(load_graph(TripleData(name="umls")), 8)
    listed.write_text(first + "\t".join(more) + "\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match="has fingerprint"):
        evaluate(run_id, "test")


def test_a_wrong_list_is_one_line(
    trained: TrainedStore, listed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed.write_text(listed.read_text(encoding="utf-8") + "cell\tisa\tcell\n", encoding="utf-8")
    assert run_command(["train", "--config=umls", f"data.exclude={listed}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "wrong_facts.tsv, line 4: 'cell\\tisa\\tcell' is not a training triple of umls" in line
