"""Promotions on a real store that are killed after each write, or race: no partial state."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from clew import names
from clew.runs import alias_moves
from clew.runs.alias_moves import CLAIM_PREFIX
from clew.runs.delivery import sync_spool
from clew.runs.registry import Registry
from clew.workflows.promoting.gate import Gate
from clew.workflows.promoting.promote import PromotionRequest, promote
from tests.workflows.promoting import accept, skip_serving
from tests.workflows.test_promote import (
    Change,
    Crown,
    aliases,
    champion,
    change_weights,
    changed_run,
)
from tests.workflows.trained import ROOT, TrainedStore

pytestmark = pytest.mark.slow

__all__ = ["champion", "changed_run"]

PROMOTION = (
    "get_registered_model",
    "create_run",
    "get_registered_model",
    "search_model_versions",
    "create_logged_model",
    "log_model_artifacts",
    "finalize_logged_model",
    "create_registered_model",
    "create_model_version",
    "set_model_version_tag",
    "set_model_version_tag",
    "get_registered_model",
    "set_registered_model_tag",
    "get_registered_model",
    "set_registered_model_tag",
    "set_registered_model_alias",
    "get_registered_model",
    "set_registered_model_alias",
    "delete_registered_model_tag",
)
"""The steps of a promotion that replaces a champion."""
DECIDED = 16
"""The alias has moved after this number of steps."""
READS = {"get_registered_model", "search_model_versions"}
KILLED_AFTER = (0, *(n for n, step in enumerate(PROMOTION, 1) if step not in READS))
"""Numbers of steps that end with a write; a death after a read leaves the state before it."""
CHECKED_AGAIN = {0, 9, 18}
"""At these, the repeated promotion runs its checks: no version, an undecided one, a champion."""
NUM_RACES = 3


def run_promotions(groups: list[dict[str, object]], folder: Path) -> dict[int, list[str]]:
    """Run promotions in separate processes, and return their outputs by group."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.workflows.promoting"],
        input=json.dumps({"folder": str(folder), "groups": groups}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {
        number: [path.read_text() for path in sorted(folder.glob(f"{number}-*"))]
        for number in range(len(groups))
    }


def claims(name: str) -> list[str]:
    state = Registry.connect().state(name)
    return [key for key in (state.tags if state else {}) if key.startswith(CLAIM_PREFIX)]


def validations(name: str) -> dict[str, str]:
    found = MlflowClient().search_model_versions(f"name = '{name}'")
    return {str(v.version): v.tags.get(names.TAG_VALIDATION, "") for v in found}


def running_promotions(uri: str) -> list[str]:
    client = MlflowClient(uri)
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    wanted = f"tags.`{names.TAG_KIND}` = 'promote' AND attributes.status = 'RUNNING'"
    return [run.info.run_id for run in client.search_runs(ids, wanted)]


@pytest.mark.timeout(900)
def test_a_promotion_killed_after_any_write_is_whole_when_repeated(
    trained: TrainedStore, champion: Crown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in KILLED_AFTER:
        champion(f"killed {step}", trained.weak)
    groups = [
        {"name": f"killed {step}", "runs": [trained.strong], "kill_at": step}
        for step in KILLED_AFTER
    ]
    traces = run_promotions(groups, tmp_path / "traces")
    for number, step in enumerate(KILLED_AFTER):
        assert tuple("".join(traces[number]).split()) == PROMOTION[:step]
        found = aliases(f"killed {step}")
        assert found["champion"] == ("2" if step >= DECIDED else "1")
        assert found.get("previous") in (None, "1")
    left = running_promotions(trained.uri)
    assert left
    # Run the same command again after the claims of dead processes have expired.
    later = time.time() + 1000
    monkeypatch.setattr(alias_moves.time, "time", lambda: later)
    for step in KILLED_AFTER:
        with monkeypatch.context() as patch:
            if step not in CHECKED_AGAIN:
                patch.setattr(Gate, "checks", accept)
                patch.setattr(Gate, "served", skip_serving)
            result = promote(PromotionRequest(trained.strong, name=f"killed {step}"))
        assert result.number == "2"
        assert aliases(f"killed {step}") == {"champion": "2", "previous": "1"}
        assert claims(f"killed {step}") == []
        assert validations(f"killed {step}") == {"1": "passed", "2": "passed"}
    assert running_promotions(trained.uri) == []
    client = MlflowClient(trained.uri)
    assert {client.get_run(run_id).info.status for run_id in left} == {"KILLED"}
    experiment = client.get_run(trained.strong).info.experiment_id
    uploads = client.search_logged_models([experiment], "name = 'servable'")
    assert {str(model.status) for model in uploads} == {"READY", "FAILED"}


@pytest.mark.parametrize("synced", [False, True], ids=["", "after clew sync"])
def test_another_promotion_ends_what_a_killed_one_left(
    trained: TrainedStore, champion: Crown, tmp_path: Path, synced: bool
) -> None:
    """A version without a verdict gets one even if nobody repeats the command."""
    name = f"left {synced}"
    champion(name, trained.weak)
    groups = [{"name": name, "runs": [trained.strong], "kill_at": 9}]
    run_promotions(groups, tmp_path / "traces")
    assert validations(name) == {"1": "passed", "2": "pending"}
    (left,) = running_promotions(trained.uri)
    if synced:
        sync_spool()
        assert running_promotions(trained.uri) == []
    promote(PromotionRequest(trained.other, name=f"elsewhere {synced}"))
    assert validations(name) == {"1": "passed", "2": "failed"}
    run = MlflowClient(trained.uri).get_run(left)
    assert run.info.status == "KILLED"
    assert "ended before a decision" in run.data.tags[names.TAG_DECISION]


def add_version(name: str, run_id: str) -> None:
    """Register a version of a run by a copy, in the state that an interrupted promotion leaves."""
    client, template = MlflowClient(), f"template {run_id}"
    if Registry.connect().state(template) is None:
        promote(PromotionRequest(run_id, name=template, force="not to be asked"))
    version = client.get_model_version(template, "1")
    client.create_model_version(
        name, version.source, run_id, dict(version.tags), model_id=version.model_id
    )


@pytest.mark.timeout(900)
def test_of_three_promotions_at_once_one_wins_and_the_others_hear_of_it(
    trained: TrainedStore,
    champion: Crown,
    changed_run: Callable[[Change], str],
    tmp_path: Path,
) -> None:
    changed = changed_run(lambda folder: change_weights(folder, lambda w: w.mul_(2)))
    runs = [trained.strong, trained.other, changed]
    races = [f"race {number}" for number in range(NUM_RACES)]
    for name in races:
        champion(name, trained.weak)
        for run_id in runs:
            add_version(name, run_id)
    outcomes = run_promotions([{"name": n, "runs": runs} for n in races], tmp_path / "outcomes")
    for number, name in enumerate(races):
        won = [text for text in outcomes[number] if text.startswith("promoted: version")]
        lost = [text for text in outcomes[number] if "somebody else moved it meanwhile" in text]
        assert (len(won), len(lost)) == (1, 2), outcomes[number]
        winner = won[0].split()[2]
        found = aliases(name)
        assert (found["champion"], found["previous"]) == (winner, "1")
        assert found["challenger"] in {"2", "3", "4"} - {winner}
        assert claims(name) == []
        verdicts = validations(name)
        assert verdicts.pop(winner) == "passed"
        assert sorted(verdicts.values()) == ["failed", "failed", "passed"]
    assert running_promotions(trained.uri) == []


def test_three_promotions_of_one_run_at_once_agree(
    trained: TrainedStore, champion: Crown, tmp_path: Path
) -> None:
    """No promotion marks a version as failed that another has just made champion."""
    champion("one run", trained.weak)
    add_version("one run", trained.strong)
    group: dict[str, object] = {"name": "one run", "runs": [trained.strong] * 3}
    outcomes = sorted(run_promotions([group], tmp_path / "outcomes")[0])
    assert [text.split(":")[0] for text in outcomes] == ["nothing to do"] * 2 + ["promoted"]
    assert "another process promoted it in the meantime" in outcomes[0]
    assert aliases("one run") == {"champion": "2", "previous": "1"}
    assert validations("one run") == {"1": "passed", "2": "passed"}
