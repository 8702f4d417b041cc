"""Delivery: requests within MLflow's limits; each message takes effect exactly once."""

from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from clew.runs import delivery
from clew.runs.base import (
    Artifact,
    Checkpoint,
    DataSet,
    Finish,
    Metrics,
    Params,
    Record,
    Tags,
)
from clew.runs.delivery import Delivery
from clew.runs.reading.runs import RunGoneError
from clew.runs.spool import Entry, Origin, Spool, groups
from clew.training import manifest
from tests.runs.kept import Kept, read_run

KEYS = st.sampled_from([f"k{i}" for i in range(60)])
MESSAGES = st.lists(
    st.one_of(
        st.builds(
            Metrics,
            st.dictionaries(KEYS, st.floats(0, 1), min_size=1),
            st.integers(0, 9),
            st.just(0),
        ),
        st.builds(Params, st.dictionaries(KEYS, st.sampled_from("ab"), min_size=1, max_size=40)),
        st.builds(Tags, st.dictionaries(KEYS, st.sampled_from("ab"), min_size=1, max_size=40)),
        st.just(Artifact("files/0/a", "")),
    ),
    max_size=30,
)


def entries(messages: list[Record]) -> list[Entry]:
    return [Entry(message, end) for end, message in enumerate(messages)]


@given(MESSAGES)
def test_groups_keep_the_order(messages: list[Record]) -> None:
    seen: list[Record] = []
    for group in groups(entries(messages)):
        assert messages[group[-1].end] is group[-1].record
        seen += [entry.record for entry in group]
        assert len(group) == 1 or not any(isinstance(e.record, Artifact) for e in group)
    assert seen == messages


def test_many_small_messages_become_one_group() -> None:
    messages: list[Record] = [Metrics({"loss": 0.5}, step, step) for step in range(2500)]
    assert [len(group) for group in groups(entries(messages))] == [1000, 1000, 500]


def test_model_files_are_those_of_a_checkpoint() -> None:
    assert delivery.MODEL_FILES == (manifest.MODEL_FILE, manifest.MANIFEST_FILE)
    assert delivery.LAST_FILE == manifest.MANIFEST_FILE


class BrokenClient:
    """A client whose n-th call of a method raises, before or after it takes effect."""

    def __init__(self, client: MlflowClient, method: str, call: int, *, after: bool) -> None:
        self._client, self._method, self._left, self._after = client, method, call, after

    def __getattr__(self, name: str) -> object:
        real = getattr(self._client, name)
        if name != self._method:
            return real

        def call(*arguments: object, **named: object) -> object:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise MlflowException("connection refused")
            result = real(*arguments, **named)
            if self._left == 0:
                raise MlflowException("connection reset: the answer was lost")
            return result

        return call


@pytest.fixture
def client(tracking_store: Path) -> MlflowClient:
    return MlflowClient()


@pytest.fixture
def journal(client: MlflowClient, checkpoint_folder: Path, tmp_path: Path) -> Iterator[Spool]:
    """Return a journal with messages of every kind for a new run."""
    experiment = client.create_experiment("clew", (tmp_path / "mlartifacts").as_uri())
    run_id = client.create_run(experiment).info.run_id
    journal = Spool.create(tmp_path / "spool", Origin(client.tracking_uri, run_id, experiment))
    journal.append(Params({"cfg.a": "1"}))
    journal.append(Tags({"clew.unit": "K"}))
    for step in range(5):
        journal.append(Metrics({"train/loss": 0.5, "valid/mrr": step / 10}, step, 1000 + step))
    journal.append(Artifact(journal.stage(checkpoint_folder / "manifest.json"), "notes"))
    staged = journal.stage(checkpoint_folder)
    folder = "checkpoints/epoch-0005"
    journal.append(Checkpoint(staged, folder, 4, {"valid/mrr": 0.4}, {"valid/mrr": 1004}))
    journal.append(DataSet("umls", "f" * 64, "umls", "training"))
    journal.append(Metrics({"train/loss": 0.25}, 5, 1005))
    journal.append(Finish("FINISHED", 2000))
    yield journal
    journal.close()


WHOLE = Kept(
    params={"cfg.a": "1"},
    tags={"clew.unit": "K"},
    metrics={
        "train/loss": [(0.5, step) for step in range(5)] + [(0.25, 5)],
        "valid/mrr": [(step / 10, step) for step in range(5)],
    },
    artifacts={
        "notes",
        "notes/manifest.json",
        "checkpoints",
        "checkpoints/epoch-0005",
        "checkpoints/epoch-0005/manifest.json",
        "checkpoints/epoch-0005/model.safetensors",
        "checkpoints/epoch-0005/optimizer.safetensors",
    },
    checkpoints=[("checkpoints/epoch-0005", 4, {"valid/mrr": 0.4})],
    datasets=[("umls", "f" * 64, "umls", "training")],
    status="FINISHED",
)


def test_everything_arrives(client: MlflowClient, journal: Spool) -> None:
    assert Delivery(client, journal).send_waiting() == 12
    assert list(journal.waiting()) == []
    assert list((journal.folder / "files").iterdir()) == []
    assert read_run(client, journal.origin.run_id) == WHOLE
    assert client.get_run(journal.origin.run_id).info.end_time == 2000


def test_everything_sent_twice_is_there_once(client: MlflowClient, journal: Spool) -> None:
    first = [entry.record for entry in journal.waiting()]
    Delivery(client, journal).send_waiting()
    repeated = Spool.create(journal.folder.parent / "again", journal.origin)
    for message in first:
        if not isinstance(message, Artifact | Checkpoint):  # their staged files are gone
            repeated.append(message)
    Delivery(client, repeated).send_waiting()
    repeated.close()
    assert read_run(client, journal.origin.run_id) == WHOLE


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("log_batch", 1),
        ("log_batch", 2),
        ("log_artifact", 1),
        ("log_artifact", 3),
        ("create_logged_model", 1),
        ("log_outputs", 1),
        ("finalize_logged_model", 1),
        ("log_inputs", 1),
        ("set_terminated", 1),
    ],
)
def test_a_call_that_fails_loses_and_doubles_nothing(
    client: MlflowClient, journal: Spool, method: str, call: int, after: bool
) -> None:
    broken = BrokenClient(client, method, call, after=after)
    with pytest.raises(MlflowException, match="connection"):
        Delivery(broken, journal).send_waiting()  # type: ignore[arg-type]
    assert journal.num_refused == 0
    Delivery(client, journal).send_waiting()
    assert read_run(client, journal.origin.run_id) == WHOLE
    assert len(client.search_logged_models([journal.origin.experiment_id])) == 1


def test_a_refused_message_goes_aside_and_the_others_arrive(
    client: MlflowClient, journal: Spool
) -> None:
    journal.append(Params({"cfg.b": "2", "cfg.c": "3"}))
    journal.append(Params({"cfg.a": "another value"}))
    journal.append(Tags({"clew.late": "yes"}))
    Delivery(client, journal).send_waiting()
    kept = read_run(client, journal.origin.run_id)
    assert kept.params == {"cfg.a": "1", "cfg.b": "2", "cfg.c": "3"}
    assert kept.tags["clew.late"] == "yes"
    assert journal.num_refused == 1
    assert "another value" in (journal.folder / "refused.jsonl").read_text()


def test_one_refused_message_does_not_take_its_neighbours_along(
    client: MlflowClient, journal: Spool
) -> None:
    Delivery(client, journal).send_waiting()
    journal.append(Tags({"clew.before": "yes"}))
    journal.append(Params({"cfg.a": "another value"}))
    journal.append(Metrics({"train/loss": 0.125}, 6, 1006))
    Delivery(client, journal).send_waiting()
    kept = read_run(client, journal.origin.run_id)
    assert kept.tags["clew.before"] == "yes"
    assert kept.metrics["train/loss"][-1] == (0.125, 6)
    assert journal.num_refused == 1


def test_what_is_for_a_deleted_run_stays(client: MlflowClient, journal: Spool) -> None:
    client.delete_run(journal.origin.run_id)
    with pytest.raises(RunGoneError, match="mlflow runs restore"):
        Delivery(client, journal).send_waiting()
    assert journal.num_refused == 0
    client.restore_run(journal.origin.run_id)
    Delivery(client, journal).send_waiting()
    assert read_run(client, journal.origin.run_id) == WHOLE


def test_a_file_taken_out_of_the_spool_does_not_block_it(
    client: MlflowClient, journal: Spool
) -> None:
    artifact = next(e.record for e in journal.waiting() if isinstance(e.record, Artifact))
    (journal.folder / artifact.staged).unlink()
    Delivery(client, journal).send_waiting()
    assert journal.num_refused == 1
    assert read_run(client, journal.origin.run_id).status == "FINISHED"


def test_weights_lie_on_the_disk_once(client: MlflowClient, journal: Spool, tmp_path: Path) -> None:
    Delivery(client, journal).send_waiting()
    files = [path.stat() for path in (tmp_path / "mlartifacts").rglob("model.safetensors")]
    assert len(files) == 2
    assert len({stat.st_ino for stat in files}) == 1


def test_a_model_entry_can_be_registered_and_read(
    client: MlflowClient, journal: Spool, tmp_path: Path
) -> None:
    Delivery(client, journal).send_waiting()
    [model] = client.search_logged_models([journal.origin.experiment_id])
    client.create_registered_model("umls")
    version = client.create_model_version("umls", model.model_uri, model_id=model.model_id)
    client.set_registered_model_alias("umls", "champion", version.version)
    (tmp_path / "out").mkdir()
    folder = mlflow.artifacts.download_artifacts(
        "models:/umls@champion", dst_path=str(tmp_path / "out"), tracking_uri=client.tracking_uri
    )
    assert sorted(path.name for path in Path(folder).iterdir()) == sorted(delivery.MODEL_FILES)
