"""Whether larger or smaller values of each metric are better."""

from fnmatch import fnmatchcase
from typing import Literal

from clew import names
from clew.errors import ConfigError, quoted

Direction = Literal["larger", "smaller"]

# Patterns of a key's last part, or of its last two parts if the pattern contains a slash. The parts
# before them (`champion/`, `ratio/<variant>/`) do not change the direction. Metrics of ranks have
# the side as a suffix, and errors of baselines have the baseline's name as a prefix.
_SMALLER = (
    names.LOSS,
    names.LOSS_AT.format(k="*"),
    names.MEAN_RANK,
    f"{names.MEAN_RANK}_*",
    names.GIVEN.format(name=names.MEAN_RANK),
    names.PERPLEXITY,
    names.BITS_PER_BYTE,
    names.MAE,
    names.BASELINE_MAE.format(baseline="*"),
    names.RMSE,
    names.ABS_ERROR_QUANTILE.format(k="*"),
    names.INTERVAL_HALF_WIDTH,
    "time/*",
    "memory/*",
    names.TRAIN_SKIPPED_STEPS,
    names.INFLUENCE_SECONDS_PER_TEST,
    names.INFLUENCE_HALF_PRECISION_ERROR,
)
_LARGER = (
    names.MRR,
    f"{names.MRR}_*",
    names.GIVEN.format(name=names.MRR),
    names.GIVEN.format(name=names.HITS_AT.format(k="*")),
    names.CLASSIFICATION.format(name="*"),
    names.HITS_AT.format(k="*"),
    names.R2,
    "throughput/*",
    names.INFLUENCE_PAIRS_PER_SECOND,
    names.INFLUENCE_HALF_PRECISION_SPEARMAN,
    names.INFLUENCE_LDS_SAME_SEED,
    names.INFLUENCE_LDS_OTHER_SEEDS,
    names.INFLUENCE_DELETION_DROP,
)


def direction_of(key: str) -> Direction | None:
    """Return whether larger or smaller values of a metric are better.

    None if neither is better (a bias, a coverage, a learning rate), or if the metric is unknown.
    """
    parts = key.split("/")
    last = (parts[-1], "/".join(parts[-2:]))
    if any(fnmatchcase(part, pattern) for part in last for pattern in _SMALLER):
        return "smaller"
    if any(fnmatchcase(part, pattern) for part in last for pattern in _LARGER):
        return "larger"
    return None


def maximizes(key: str) -> bool:
    """Return whether larger values of a metric are better, to choose by this metric.

    Raises:
        ConfigError: If neither larger nor smaller values are known to be better.
    """
    direction = direction_of(key)
    if direction is None:
        raise ConfigError(
            f"metric {quoted(key)} cannot be used to choose: neither larger nor smaller values are "
            f"known to be better; use another metric, such as {names.metric('valid', names.MRR)}"
        )
    return direction == "larger"
