"""Searches over a real SQLite store: filters, pages, counts, states."""

from collections.abc import Callable
from pathlib import Path

import pytest

from clew.errors import TrackingError, UsageError
from clew.runs.reading import search
from clew.runs.reading.metrics import metric_histories
from clew.runs.reading.runs import RunRecord, state_of
from clew.runs.reading.search import RunQuery
from tests.recorded import NUM_EPOCHS, Recorded
from tests.ui.seed_many import MODELS, large_store


@pytest.fixture(scope="module")
def made_large(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return large_store(recorded, tmp_path_factory.mktemp("large") / "store", 150)


@pytest.fixture
def large(made_large: Recorded, use: Callable[[str], None]) -> None:
    """Use a store with 150 runs."""
    use(made_large.uri)


@pytest.fixture(scope="module")
def made_odd(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    chosen = MODELS[:5]
    store = recorded.copy(tmp_path_factory.mktemp("odd") / "store").keep_only(*chosen)
    names = ("it's", 'a "quoted" one', "both ' and \"", "plain", "50%")
    for run, name in zip(chosen, names, strict=True):
        store.client.update_run(store.runs[run], name=name)
    return store


@pytest.fixture
def odd(made_odd: None, use: Callable[[str], None]) -> None:
    """Use a store with runs that have unusual names."""
    use(made_odd.uri)


@pytest.fixture
def store(recorded: Recorded, tmp_path: Path, use: Callable[[str], None]) -> Recorded:
    store = recorded.copy(tmp_path / "store")
    use(store.uri)
    return store


def test_every_run_is_on_one_page(large: None) -> None:
    found: list[str] = []
    for offset in range(0, 200, 40):
        page = search.search_runs(RunQuery(), offset=offset, limit=40)
        found += [run.run_id for run in page.runs]
        assert page.more == (offset + 40 < 150)
    assert len(found) == len(set(found)) == 150


@pytest.mark.parametrize(
    "query",
    [RunQuery(), RunQuery(text="variant=bf16"), RunQuery(status="FAILED"), RunQuery(text="none")],
)
@pytest.mark.parametrize("is_database", [True, False])
def test_counting_agrees_with_reading(
    large: None, query: RunQuery, is_database: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_database:
        monkeypatch.setattr(search, "database_of", lambda connected: None)
    everything = search.search_runs(query, limit=1000)
    assert search.count_runs(query) == len(everything.runs)


@pytest.mark.parametrize("is_database", [True, False])
def test_the_keys_of_a_store_are_those_of_its_runs(
    large: None, is_database: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_database:
        monkeypatch.setattr(search, "database_of", lambda connected: None)
    run = search.search_runs(RunQuery(), limit=1).runs[0]
    keys = search.known_keys()
    assert run.metrics.keys() <= keys.metrics
    assert run.params.keys() <= keys.params
    assert run.tags.keys() <= keys.tags


def setting(run: RunRecord, key: str) -> str:
    return run.params[f"cfg.{key}"]


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("seed=12", lambda run: setting(run, "training.seed") == "12"),
        ("lr=5e-3 state:failed", lambda run: run.status == "FAILED"),
        ("embedding-dim=24.0 mrr>.15", lambda run: run.metrics["valid/mrr"] > 0.15),
        ("test/mrr<=.15", lambda run: run.metrics["test/mrr"] <= 0.15),
        ("data:uml variant=bf16", lambda run: run.tags["clew.variant"] == "bf16"),
        ("variant!=bf16", lambda run: run.tags["clew.variant"] != "bf16"),
        ("use_mixed_precision=True", lambda run: "bf16" in run.tags["clew.variant"]),
        ("model.kind=distmult", lambda run: False),
    ],
)
def test_what_is_typed_is_what_is_found(
    large: None, text: str, holds: Callable[[RunRecord], bool]
) -> None:
    """The slow way: read every run, and keep those that fit."""
    every = search.search_runs(RunQuery(), limit=1000).runs
    found = search.search_runs(RunQuery(text=text), limit=1000).runs
    assert [run.run_id for run in found] == [run.run_id for run in every if holds(run)]


@pytest.mark.parametrize(
    "text",
    ["mrr>high", "mrr>nan", "seed>3", "state=done", "dim=3", "decay=0", "x:'", "tags.a`b=1"],
)
def test_what_cannot_be_understood_is_refused(large: None, text: str) -> None:
    with pytest.raises(UsageError):
        search.search_runs(RunQuery(text=text))


@pytest.mark.parametrize("size", [0, 1, 2, 63, 64, 65, 129, 1000])
@pytest.mark.parametrize("near", [0, 1, 2, 64, 990, 1000, 5000])
def test_the_first_offset_past_the_end(size: int, near: int) -> None:
    calls = []

    def reaches(offset: int) -> bool:
        assert offset >= 0
        calls.append(offset)
        return offset < size

    assert search.first_unreached(reaches, near) == size
    assert len(calls) < 27
    if near == size:
        assert len(calls) <= 2


def test_a_store_of_more_experiments_than_a_page_is_read_whole(
    store: Recorded,
) -> None:
    every_run = {run.run_id for run in search.search_runs(RunQuery(), limit=1000).runs}
    before = {*search.list_experiments()}
    newer = [(1000 + number, f"new {number}", 2**60 + number) for number in range(1100)]
    with store.database() as base:
        base.executemany(
            "INSERT INTO experiments (experiment_id, name, creation_time, last_update_time, "
            "artifact_location, lifecycle_stage) SELECT ?1, ?2, ?3, ?3, artifact_location, "
            "lifecycle_stage FROM experiments WHERE experiment_id = 0",
            newer,
        )
    found = [*search.list_experiments()]
    assert len(found) == len(set(found)) == len(before) + len(newer)
    assert before <= set(found)
    found_runs = search.search_runs(RunQuery(), limit=1000).runs
    assert {run.run_id for run in found_runs} == every_run
    assert search.find_runs([store.runs["fp32 1"]])


def test_filters_combine(large: None) -> None:
    query = RunQuery(status="FINISHED", kind="train", text="variant=bf16+ckpt CKPT")
    runs = search.search_runs(query, limit=100).runs
    assert runs
    assert {run.tags["clew.variant"] for run in runs} == {"bf16+ckpt"}
    assert {run.status for run in runs} == {"FINISHED"}


def test_the_server_orders(large: None) -> None:
    query = RunQuery(order_by="metrics.`valid/mrr` DESC")
    runs = search.search_runs(query, limit=30).runs
    values = [run.metrics["valid/mrr"] for run in runs]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("text", ["it's", 'a "quoted" one', "plain", "PLAIN", "both '"])
def test_any_text_can_be_searched_for(odd: None, text: str) -> None:
    found = search.search_runs(RunQuery(text=text)).runs
    assert len(found) == 1


def test_text_is_no_filter_language(odd: None) -> None:
    attack = "x' OR attributes.status = 'FINISHED"
    assert search.search_runs(RunQuery(text=attack)).runs == ()


def test_a_run_is_found_by_its_id(odd: None) -> None:
    wanted = search.search_runs(RunQuery()).runs[2].run_id
    (found,) = search.search_runs(RunQuery(text=wanted)).runs
    assert found.run_id == wanted


def test_runs_by_id_keep_their_order(large: None) -> None:
    ids = [run.run_id for run in search.search_runs(RunQuery(), limit=120).runs]
    wanted = [*reversed(ids), "0" * 32, "no'id"]
    assert [run.run_id for run in search.find_runs(wanted)] == list(reversed(ids))


def test_a_deleted_run_is_gone(store: Recorded) -> None:
    store.keep_only(*MODELS[:2])
    gone, kept = (store.runs[name] for name in MODELS[:2])
    store.client.delete_run(gone)
    assert [run.run_id for run in search.find_runs([gone, kept])] == [kept]
    assert search.count_runs(RunQuery()) == 1


def test_histories(recorded: Recorded, use: Callable[[str], None]) -> None:
    use(recorded.uri)
    ids = [recorded.runs["fp32 0"], recorded.runs["killed"]]
    runs = search.find_runs(ids)
    frame = metric_histories(runs, "valid/mrr")
    assert frame.groupby("run_id").size().to_dict() == {ids[0]: NUM_EPOCHS, ids[1]: 1}
    first = frame[frame["run_id"] == ids[0]]
    assert first["step"].is_monotonic_increasing
    point = recorded.client.get_metric_history(ids[0], "valid/mrr")[0]
    assert first["seconds"].iloc[0] == (point.timestamp - runs[0].started_ms) / 1000
    assert metric_histories(runs, "no/metric").empty


def record(status: str, **tags: str) -> RunRecord:
    return RunRecord("id", "name", "1", status, 1_000_000, None, tags, {}, {})


@pytest.mark.parametrize(
    ("run", "state"),
    [
        (record("FINISHED"), "finished"),
        (record("RUNNING", **{"clew.heartbeat": "1900"}), "running"),
        (record("RUNNING", **{"clew.heartbeat": "1500"}), "stuck"),
        (record("RUNNING", **{"clew.heartbeat": "nonsense"}), "running"),
        (record("RUNNING"), "running"),
        (record("KILLED", **{"clew.heartbeat": "1900"}), "stopped"),
    ],
)
def test_states(run: RunRecord, state: str) -> None:
    assert state_of(run, now=2000.0) == state


def test_a_store_that_is_none(tmp_path: Path, use: Callable[[str], None]) -> None:
    path = tmp_path / "mlflow.db"
    path.write_bytes(b"no database" * 1000)
    use(f"sqlite:///{path}")
    with pytest.raises(TrackingError, match=r"mlflow\.db: .*file is not a database"):
        search.search_runs(RunQuery())
