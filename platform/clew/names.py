"""Every key under which Clew writes to a tracking store: tags, metrics, parameters, artifacts.

Writers and readers (dashboard, command line, scripts) all use the keys defined here, so they
cannot differ.
"""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

from clew.errors import ConfigError, quoted

EXPERIMENT = "clew"
PARAMETER_PREFIX = "cfg."
NEWEST = "newest"
"""Can be given instead of a run id; it means the run that finished last."""

# Run kinds (tag `clew.kind`)
KIND_TRAIN = "train"
KIND_EVALUATE = "evaluate"
KIND_TRACE = "trace"
KIND_COMPARE = "compare"
KIND_PROMOTE = "promote"
KIND_VALIDATE = "validate"
KIND_TUNE = "tune"
KIND_VALUE = "value"

# Task kinds (tag `clew.task`)
TASK_LINK_PREDICTION = "link_prediction"
TASK_LANGUAGE_MODELING = "language_modeling"
TASK_SEQUENCE_REGRESSION = "image_sequence_regression"

# Tags
TAG_KIND = "clew.kind"
"""What the run did: `train`, `evaluate`, `trace`, `compare`, `promote`, `validate`, `tune`
or `value`."""
TAG_TASK = "clew.task"
"""`link_prediction`, `language_modeling` or `image_sequence_regression`."""
TAG_DATASET = "clew.dataset"
"""Name of the data set."""
TAG_DATA_FINGERPRINT = "clew.data_fingerprint"
"""Hash of the data as they were read; a model is only used with data of the same hash."""
TAG_CONFIG_HASH = "clew.config_hash"
"""Hash of the resolved configuration."""
TAG_VARIANT = "clew.variant"
"""Short form of precision and optimizations, such as `fp32`, `bf16+ckpt` or `fp16+compile`.

Parts: `fp32`, `fp16`, `bf16`, `+tf32` (on a GPU), `+ckpt`, `+compile` and `-cleanup`.
"""
TAG_DEVICE = "clew.device"
"""Name of the GPU, or `cpu`."""
TAG_HARDWARE = "clew.hardware"
"""Processor, cores, memory and GPUs."""
TAG_UNIT = "clew.unit"
"""Unit of the target of image sequences."""
TAG_VERSION = "clew.version"
"""Version of Clew."""
TAG_COMMIT = "clew.commit"
"""Commit of the code."""
TAG_RESUMED_FROM = "clew.resumed_from"
TAG_HEARTBEAT = "clew.heartbeat"
"""Time of the last heartbeat of a running run, in seconds since 1970."""
TAG_BEST_STEP = "clew.best_step"
"""Optimizer step of the best checkpoint."""
TAG_PARAMETERS = "clew.parameters"
"""Number of trainable parameters."""
TAG_SOURCE_RUN = "clew.source_run"
"""Training run of the model that this run uses."""
TAG_STUDY = "clew.study"
TAG_CELL = "clew.cell"
TAG_TRIAL = "clew.trial"
"""Number of a trial in a search; a tag of the trial's training run."""
TAG_MEMBER_OF = "clew.member_of"
"""Run of which this one has the configuration, with another seed, for an explanation of both."""
TAG_STOPPED_BECAUSE = "clew.stopped_because"
"""Why a run did not finish: the error that ended it, `stopped by the user`, or, for the trial of a
search, `pruned` or `out of time`."""
TAG_ENDED_AS = "clew.ended_as"
"""`FAILED` or `KILLED`: how a run ended that did not finish. `mlflow run` first sets the status of
every such run to FAILED."""
TAG_BEST_RUN = "clew.best_run"
"""Run of a search's best trial."""
TAG_WARNINGS = "clew.warnings"
TAG_REVIEWED = "clew.reviewed"
"""`true` if one of the run's explanations has a review."""
TAG_COMMAND = "clew.command"
"""The command that made the run, as it was typed."""
TAG_NOTE = "mlflow.note.content"
"""The run's description: what it found, or what a person wrote instead."""
TAG_LOSS_IMPLEMENTATION = "clew.loss_implementation"
TAG_WARM_START = "clew.warm_start"
TAG_COMPILE_FAILED = "clew.compile_failed"

# Tags of a checkpoint's model entry: the path in the run's artifacts, and the step
TAG_MODEL_FOLDER = "clew.folder"
TAG_MODEL_STEP = "clew.step"

# Tags and aliases of registered models
TAG_VALIDATION = "clew.validation"
TAG_REFUSED_BECAUSE = "clew.refused_because"
TAG_FORCED_BECAUSE = "clew.forced_because"
TAG_PROMOTE_RUN = "clew.promote_run"
TAG_PROMOTED_BY = "clew.promoted_by"
"""Who made a version the champion: the e-mail of the dashboard's user, else the system's user."""
TAG_ROLLED_BACK_BY = "clew.rolled_back_by"
"""Who moved the alias back to a version."""
TAG_FORMER = "clew.former"
"""Followed by an alias: number of the version that was the one before, until this one became it."""
TAG_GATE_METRIC = "clew.gate.metric"
"""Metric by which a version was compared with the champion of that time."""
TAG_GATE_SPLIT = "clew.gate.split"
TAG_GATE_EXAMPLES = "clew.gate.examples"
"""Number of examples on which both were compared."""
TAG_GATE_INTERVAL = "clew.gate.interval"
"""Confidence interval of the improvement; above zero for a version that was promoted."""
TAG_DECISION = "clew.decision"
TAG_PACKAGE_COMMIT = "clew.package_commit"
TAG_CHECKPOINT_STEP = "clew.checkpoint_step"
TAG_MODEL_VERSION = "clew.model_version"
TAG_WEIGHTS = "clew.weights"
TAG_TEMPERATURE = "clew.temperature"
TAG_HALF_WIDTH = "clew.half_width"
TAG_METRIC_PREFIX = "clew.metric."
VALIDATION_PENDING = "pending"
VALIDATION_PASSED = "passed"
VALIDATION_FAILED = "failed"
VALIDATION_FORCED = "forced"
ALIAS_CHAMPION = "champion"
ALIAS_PREVIOUS = "previous"
ALIAS_CHALLENGER = "challenger"

# Metrics of training
TRAIN_LOSS = "train/loss"
"""Loss summed over entities and averaged over rows; other tasks average over tokens or windows."""
TRAIN_LEARNING_RATE = "train/learning_rate"
TRAIN_GRAD_NORM = "train/grad_norm"
"""Norm of the gradient before clipping."""
TRAIN_LOSS_SCALE = "train/loss_scale"
TRAIN_SKIPPED_STEPS = "train/skipped_steps"
"""Number of steps skipped because float16 overflowed."""
TRAIN_EPOCH = "train/epoch"
"""Epochs done, as a fraction."""

# Metrics of quality, with the prefix `valid/` or `test/`
MRR = "mrr"
"""Mean filtered reciprocal rank over heads and tails; equal scores share their mean rank."""
NOT_LEAKED = "{name}_not_leaked"
"""`mrr` or another rank metric over the triples that `num_leaked` does not count."""
NUM_LEAKED = "num_leaked"
"""Number of triples whose inverse, mirror (symmetric relation) or duplicate is in training."""
MEAN_RANK = "mean_rank"
"""Mean filtered rank."""
HITS_AT = "hits_at_{k}"
"""Share of filtered ranks up to `k`."""
PERPLEXITY = "perplexity"
BITS_PER_BYTE = "bits_per_byte"
"""Bits per byte of the text; independent of the tokenizer."""
MAE = "mae"
RMSE = "rmse"
R2 = "r2"
LOSS = "loss"
LOSS_AT = "loss_at_{k}"
"""Loss by position in a window of text: from token `k` to the token before the next `k`."""
BIAS = "bias"
"""Mean of prediction minus target."""
ABS_ERROR_QUANTILE = "abs_error_q{k}"
"""The `k` percent quantile of the absolute error over windows."""
BASELINE_MAE = "{baseline}_mae"
"""Mean absolute error of a simple prediction: `mean`, `ridge` or `persistence`."""
INTERVAL_COVERAGE = "interval_coverage"
"""Share of targets that are inside their conformal interval."""
INTERVAL_HALF_WIDTH = "interval_half_width"
GIVEN = "given_{name}"
"""`mrr`, `mean_rank` and `hits_at_{k}`, ranked against negatives from a file."""
SEEN = "seen_{name}"
"""`mrr`, `mean_rank` and `hits_at_{k}`, ranked among the entities that training has at that end of
the relation (type-constrained ranks)."""
CLASSIFICATION = "classification_{name}"
"""`accuracy` and `f1` for true triples against false triples from a file."""

# Metrics of time, throughput and memory
TIME_EPOCH_SECONDS = "time/epoch_seconds"
"""Time of an epoch without warm-up, compilation and evaluation."""
TIME_STEP_MILLISECONDS = "time/step_milliseconds"
TIME_DATA_MILLISECONDS = "time/data_milliseconds"
"""Time per step spent waiting for data."""
TIME_COMPILE_SECONDS = "time/compile_seconds"
TIME_EVALUATION_SECONDS = "time/evaluation_seconds"
TIME_TOTAL_SECONDS = "time/total_seconds"
"""Time of the whole training run, including the time before a resume."""
EXAMPLES_PER_SECOND = "throughput/examples_per_second"
TOKENS_PER_SECOND = "throughput/tokens_per_second"
FRAMES_PER_SECOND = "throughput/frames_per_second"
MFU = "throughput/mfu"
"""Model FLOPs utilization: share of the peak rate that a GPU's data sheet states."""
GPU_PEAK_ALLOCATED_GIB = "memory/gpu_peak_allocated_gib"
"""Peak memory of tensors since training began."""
GPU_PEAK_RESERVED_GIB = "memory/gpu_peak_reserved_gib"
"""Peak memory reserved from the driver since training began."""
PROCESS_PEAK_GIB = "memory/process_peak_gib"
"""Peak resident memory of the process since training began."""
PROCESS_GROWTH_GIB = "memory/process_growth_gib"
PREDICTED_GIB = "memory/predicted_gib"
"""Memory that the planner predicted before training."""

# Metrics of influence
INFLUENCE_SECONDS_PER_TEST = "influence/seconds_per_test"
INFLUENCE_PAIRS_PER_SECOND = "influence/pairs_per_second"
"""Pairs of one test example and one training example, scored per second."""
INFLUENCE_HALF_PRECISION_ERROR = "influence/half_precision_relative_error"
INFLUENCE_HALF_PRECISION_SPEARMAN = "influence/half_precision_spearman_top_100"
VALUE_SECONDS = "value/seconds"
VALUE_TOGETHER = ("value/rise_without_highest", "value/rise_without_lowest")
"""Rise of the loss after training without the tried facts of an end, all together."""
INFLUENCE_LDS_SAME_SEED = "influence/lds_same_seed"
INFLUENCE_LDS_OTHER_SEEDS = "influence/lds_other_seeds"
INFLUENCE_LDS_SIBLINGS = "influence/lds_siblings"
INFLUENCE_LDS_CEILING = "influence/lds_ceiling"
INFLUENCE_DELETION_DROP = "influence/deletion_log_probability_drop"

# Settings that an explanation records in addition to those of `influence`
SETTING_EMA_DECAY = "ema_decay"
"""Recorded only if the run keeps an average of its parameters."""
SETTING_BEST = "best_checkpoint"
"""Whether checkpoints are known by `epoch` or `step`, and that of the `last` and of the `best` one
of each explained run; recorded only if they are not the same."""
SETTING_SEARCH = "search_by_index"
"""Description of the search, recorded only if an index chose the windows to score."""
NOT_OF_THE_AVERAGE = (
    "The run keeps an average of its parameters. This explanation, scores and ranks included, is "
    "of the parameters themselves; predict, evaluate and Ask use the average."
)
NOT_OF_THE_BEST = (
    "The model's score, rank, loss and probability are those of the last checkpoint, after {last}; "
    "predict, evaluate and Ask use the best one, after {best}."
)

# Artifacts
ARTIFACT_CONFIG_YAML = "config.yaml"
ARTIFACT_CONFIG_JSON = "config.json"
ARTIFACT_HISTORY = "history.parquet"
ARTIFACT_LOG = "log.txt"
ARTIFACT_CHECKPOINTS = "checkpoints"
ARTIFACT_BEST = "best"
CHECKPOINT_MANIFEST = "manifest.json"
"""File in the folder of each checkpoint that describes the checkpoint."""
ARTIFACT_EVALUATION = "evaluation"
ARTIFACT_DATA_REPORT = "data_report.json"
"""What looks wrong in the data of a training run, and relations that are inverses or duplicates."""
ARTIFACT_INFLUENCE = "influence"
ARTIFACT_VALUES = "fact_values"
ARTIFACT_VALIDATION = "validation"
ARTIFACT_PROMOTION = "promotion.json"
ARTIFACT_TUNE = "tune"
BEST_YAML = "best.yaml"
TRIALS_CSV = "trials.csv"
IMPORTANCE = "importance/{setting}"
"""Share of a setting in what made a search's trials good."""
INFLUENCE_JSON = "influence.json"
INFLUENCE_CSV = "influence.csv"
INFLUENCE_PARQUET = "influence.parquet"
VALUES_CSV = "fact_values.csv"
WORST_FACTS = "worst_facts.tsv"
VALIDATION_JSON = "validation.json"


def of_the_last_layers(count: int) -> str:
    """Return a note on scores that leave out the parameters of other layers."""
    layers = "last layer" if count == 1 else f"last {count} layers"
    return f"Only the parameters of the {layers} count: coarser scores than those of all."


def model_notes(settings: Mapping[str, Any]) -> list[str]:
    """Return notes to show with an explanation: which parameters and loss it is of, or not of."""
    found = [NOT_OF_THE_AVERAGE] if SETTING_EMA_DECAY in settings else []
    if settings.get("test_loss") == "filtered":
        found.append("Scores are of the filtered loss: unsmoothed, without other known answers.")
    if settings.get("use_last_layers_only"):  # of a graph model, whose layers are three
        count = settings["num_last_layers"]
        found += [of_the_last_layers(count)] if count < 3 else []
    if best := settings.get(SETTING_BEST):
        last, first = (
            f"{best['unit']}{'s' * (len(places) > 1)} {', '.join(map(str, places))}"
            for places in (list(dict.fromkeys(best[key])) for key in ("last", "best"))
        )
        found.append(NOT_OF_THE_BEST.format(last=last, best=first))
    return found


def default_model_name(dataset: str) -> str:
    """Return the default name under which models of a data set are registered."""
    return f"clew-{re.sub(r'[^A-Za-z0-9_-]+', '-', dataset).strip('-') or 'model'}"


def metric(split: str, name: str) -> str:
    """Return the full key of a quality metric: `metric("valid", MRR)` is `valid/mrr`."""
    return f"{split}/{name}"


def hits_at(k: int) -> str:
    """Return the metric name of Hits@k without the character `@`, which MLflow refuses."""
    return HITS_AT.format(k=k)


# First lines of a list of facts marked wrong: the data set that the facts belong to, and whether
# apostrophes in front of names keep spreadsheets from running them
LIST_DATA_SET_PREFIX = "# data set: "
LIST_FINGERPRINT_PREFIX = "# fingerprint: "
LIST_APOSTROPHES_PREFIX = "# apostrophes: "
LIST_ORIGIN = (LIST_DATA_SET_PREFIX, LIST_FINGERPRINT_PREFIX, LIST_APOSTROPHES_PREFIX)


Direction = Literal["larger", "smaller"]
"""Which values of a metric are better.

The two lists are patterns of a key's last part, or of its last two parts if the pattern contains a
slash. The parts before them (`champion/`, `ratio/<variant>/`) do not change the direction. Metrics
of ranks have the side as a suffix, and errors of baselines have the baseline's name as a prefix.
"""

_OF_RANKS = ("{name}", "{name}_*", GIVEN, SEEN)
_SMALLER = (
    LOSS,
    LOSS_AT.format(k="*"),
    *(form.format(name=MEAN_RANK) for form in _OF_RANKS),
    PERPLEXITY,
    BITS_PER_BYTE,
    MAE,
    BASELINE_MAE.format(baseline="*"),
    RMSE,
    ABS_ERROR_QUANTILE.format(k="*"),
    INTERVAL_HALF_WIDTH,
    "time/*",
    "memory/*",
    TRAIN_SKIPPED_STEPS,
    INFLUENCE_SECONDS_PER_TEST,
    INFLUENCE_HALF_PRECISION_ERROR,
)
_LARGER = (
    *(form.format(name=name) for form in _OF_RANKS for name in (MRR, HITS_AT.format(k="*"))),
    CLASSIFICATION.format(name="*"),
    R2,
    "throughput/*",
    INFLUENCE_PAIRS_PER_SECOND,
    INFLUENCE_HALF_PRECISION_SPEARMAN,
    INFLUENCE_LDS_SAME_SEED,
    INFLUENCE_LDS_OTHER_SEEDS,
    INFLUENCE_DELETION_DROP,
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
            f"known to be better; use another metric, such as {metric('valid', MRR)}"
        )
    return direction == "larger"
