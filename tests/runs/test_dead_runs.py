"""The next command of the same kind ends the runs whose process died on this machine."""

from collections.abc import Callable

from mlflow import MlflowClient

from clew import names
from clew.runs.tracker import MlflowTracker
from tests.runs.kept import read_run

Open = Callable[..., MlflowTracker]


def test_a_dead_run_is_ended_by_the_next_of_its_kind(open_run: Open) -> None:
    dead = {}
    for kind in (names.KIND_TRACE, names.KIND_COMPARE, names.KIND_TRAIN):
        tracker = open_run(kind=kind)
        tracker.metrics({"influence/seconds_per_test": 1.0}, 1)
        dead[kind] = tracker.run_id
        die(tracker)
    client = MlflowClient()
    open_run(kind=names.KIND_TRACE).finish("FINISHED")
    status = {kind: client.get_run(run_id).info.status for kind, run_id in dead.items()}
    others = dict.fromkeys((names.KIND_COMPARE, names.KIND_TRAIN), "RUNNING")
    assert status == {names.KIND_TRACE: "FAILED", **others}
    alive = open_run(kind=names.KIND_COMPARE)
    open_run(kind=names.KIND_COMPARE).finish("FINISHED")
    assert client.get_run(dead[names.KIND_COMPARE]).info.status == "FAILED"
    assert client.get_run(alive.run_id).info.status == "RUNNING"
    open_run(kind=names.KIND_TRAIN).finish("FINISHED")
    assert client.get_run(dead[names.KIND_TRAIN]).info.status == "RUNNING", "it can be resumed"
    assert read_run(client, dead[names.KIND_TRACE]).metrics == {
        "influence/seconds_per_test": [(1.0, 1)]
    }


def die(tracker: MlflowTracker) -> None:
    """Leave a run in the state of a killed process."""
    tracker._is_ending.set()
    if tracker._sampling is not None:
        tracker._sampling.join()
    tracker._forwarder._closing.set()
    tracker._forwarder.join()
    tracker._log.end()
    tracker._spool.close(keep=True)
    tracker._ended = True
