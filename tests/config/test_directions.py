"""The better direction of every metric except those of a task, which the task's tests cover."""

import pytest

from clew import names
from clew.config.schema import TASK_KINDS
from clew.errors import ConfigError
from clew.names import direction_of, maximizes

FOLDERS = ("train/", "time/", "throughput/", "memory/", "influence/")
RECORDED = sorted(
    key for key in vars(names).values() if isinstance(key, str) and key.startswith(FOLDERS)
)
NEITHER = {
    names.TRAIN_LEARNING_RATE,
    names.TRAIN_GRAD_NORM,
    names.TRAIN_LOSS_SCALE,
    names.TRAIN_EPOCH,
    names.INFLUENCE_LDS_SIBLINGS,
    names.INFLUENCE_LDS_CEILING,
}


@pytest.mark.parametrize("key", RECORDED)
def test_what_runs_record_beside_quality(key: str) -> None:
    costs = key.startswith(("time/", "memory/")) or "seconds_per" in key
    if key in NEITHER:
        assert direction_of(key) is None
    else:
        worse = costs or key.endswith(("loss", "skipped_steps", "error"))
        assert direction_of(key) == ("smaller" if worse else "larger")


def test_what_stands_before_a_key_changes_nothing() -> None:
    assert direction_of("champion/test/mean_rank_head") == "smaller"
    assert direction_of("ratio/fp16 +ckpt/memory/process_peak_gib") == "smaller"
    assert direction_of("ratio/fp16/throughput/frames_per_second") == "larger"


def test_every_metric_that_may_choose_a_checkpoint_can() -> None:
    for kind in TASK_KINDS.values():
        for name in kind.metrics:
            maximizes(names.metric("valid", name))


@pytest.mark.parametrize("key", ["test/bias", "train/learning_rate", "somebody/own", "test/rank"])
def test_a_metric_that_says_nothing_of_good_and_bad_cannot_choose(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"metric '{key}' cannot be used to choose"):
        maximizes(key)
