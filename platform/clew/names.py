"""Every key under which Clew writes to a tracking store: tags, metrics, parameters, artifacts.

Writers and readers (dashboard, command line, scripts) all use the keys defined here, so they
cannot differ.
"""

import re
from collections.abc import Mapping

EXPERIMENT = "clew"
PARAMETER_PREFIX = "cfg."
NEWEST = "newest"
"""Stands for the id of a run: of the one that finished last."""

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
"""Hash of the data as they were read; a model meets only data with its own."""
TAG_CONFIG_HASH = "clew.config_hash"
"""Hash of the resolved configuration."""
TAG_VARIANT = "clew.variant"
"""Precision and optimizations in short: `fp32`, `fp16`, `bf16`, `+ckpt`, `+compile`, `-cleanup`."""
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
"""Last sign of life of a running run, in seconds since 1970."""
TAG_BEST_STEP = "clew.best_step"
"""Optimizer step of the best checkpoint."""
TAG_PARAMETERS = "clew.parameters"
"""Number of trainable parameters."""
TAG_SOURCE_RUN = "clew.source_run"
"""Run of the model that this run works on."""
TAG_STUDY = "clew.study"
TAG_CELL = "clew.cell"
TAG_TRIAL = "clew.trial"
"""Number of a search's trial, on its training run."""
TAG_STOPPED_BECAUSE = "clew.stopped_because"
"""Why a search stopped a trial: `pruned` or `out of time`."""
TAG_BEST_RUN = "clew.best_run"
"""Run of a search's best trial."""
TAG_WARNINGS = "clew.warnings"
TAG_REVIEWED = "clew.reviewed"
"""`true` on a run with a review of one of its explanations."""
TAG_COMMAND = "clew.command"
"""The command that made the run, as it was typed."""
TAG_LOSS_IMPLEMENTATION = "clew.loss_implementation"
TAG_WARM_START = "clew.warm_start"
TAG_COMPILE_FAILED = "clew.compile_failed"

# Tags of a checkpoint's model entry: its path in the run's artifacts, and its step
TAG_MODEL_FOLDER = "clew.folder"
TAG_MODEL_STEP = "clew.step"

# Tags and aliases of registered models
TAG_VALIDATION = "clew.validation"
TAG_REFUSED_BECAUSE = "clew.refused_because"
TAG_FORCED_BECAUSE = "clew.forced_because"
TAG_PROMOTE_RUN = "clew.promote_run"
TAG_PROMOTED_BY = "clew.promoted_by"
"""Who made a version champion: the e-mail of the dashboard's user, else the system's user."""
TAG_ROLLED_BACK_BY = "clew.rolled_back_by"
"""Who gave the alias back to a version."""
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

# Tags of an experiment
TAG_VIEW_PREFIX = "clew.view."
"""Before the name of a saved view of the page Compare."""

# Metrics of training
TRAIN_LOSS = "train/loss"
"""Loss summed over entities, averaged over rows; over tokens or windows for other tasks."""
TRAIN_LEARNING_RATE = "train/learning_rate"
TRAIN_GRAD_NORM = "train/grad_norm"
"""Norm of the gradient before clipping."""
TRAIN_LOSS_SCALE = "train/loss_scale"
TRAIN_SKIPPED_STEPS = "train/skipped_steps"
"""Steps left out because float16 overflowed."""
TRAIN_EPOCH = "train/epoch"
"""Epochs done, as a fraction."""

# Metrics of quality: `valid/` or `test/` before one of these
MRR = "mrr"
"""Mean reciprocal rank, filtered, both sides, ties count half."""
MEAN_RANK = "mean_rank"
"""Mean filtered rank."""
HITS_AT = "hits_at_{k}"
"""Share of filtered ranks up to `k`."""
PERPLEXITY = "perplexity"
BITS_PER_BYTE = "bits_per_byte"
"""Bits a byte of the text itself, whatever the tokenizer."""
MAE = "mae"
RMSE = "rmse"
R2 = "r2"
LOSS = "loss"
LOSS_AT = "loss_at_{k}"
"""Loss by place in a window of text: from token `k` up to the next such number."""
BIAS = "bias"
"""Mean of prediction minus target."""
ABS_ERROR_QUANTILE = "abs_error_q{k}"
"""Absolute error that `k` percent of the windows stay below."""
BASELINE_MAE = "{baseline}_mae"
"""Mean absolute error of a simple prediction: `mean`, `ridge` or `persistence`."""
INTERVAL_COVERAGE = "interval_coverage"
"""Share of targets in their conformal interval."""
INTERVAL_HALF_WIDTH = "interval_half_width"
GIVEN = "given_{name}"
"""`mrr`, `mean_rank` and `hits_at_{k}` among negatives from a file."""
CLASSIFICATION = "classification_{name}"
"""`accuracy` and `f1` for true triples and the false ones of a file."""

# Metrics of time, throughput and memory
TIME_EPOCH_SECONDS = "time/epoch_seconds"
"""Without warm-up, compilation and evaluation."""
TIME_STEP_MILLISECONDS = "time/step_milliseconds"
TIME_DATA_MILLISECONDS = "time/data_milliseconds"
"""Time in a step that waits for data."""
TIME_COMPILE_SECONDS = "time/compile_seconds"
TIME_EVALUATION_SECONDS = "time/evaluation_seconds"
TIME_TOTAL_SECONDS = "time/total_seconds"
"""Of the whole training, time before a resume included."""
EXAMPLES_PER_SECOND = "throughput/examples_per_second"
TOKENS_PER_SECOND = "throughput/tokens_per_second"
FRAMES_PER_SECOND = "throughput/frames_per_second"
MFU = "throughput/mfu"
"""Share of the peak arithmetic rate of the device."""
GPU_PEAK_ALLOCATED_GIB = "memory/gpu_peak_allocated_gib"
"""Largest memory of tensors since training began."""
GPU_PEAK_RESERVED_GIB = "memory/gpu_peak_reserved_gib"
"""Largest memory taken from the driver since training began."""
PROCESS_PEAK_GIB = "memory/process_peak_gib"
"""Largest resident memory of the process since training began."""
PROCESS_GROWTH_GIB = "memory/process_growth_gib"
PREDICTED_GIB = "memory/predicted_gib"
"""What the planner predicted before training."""

# Metrics of influence
INFLUENCE_SECONDS_PER_TEST = "influence/seconds_per_test"
INFLUENCE_PAIRS_PER_SECOND = "influence/pairs_per_second"
"""Pairs of a test and a training example."""
INFLUENCE_HALF_PRECISION_ERROR = "influence/half_precision_relative_error"
INFLUENCE_HALF_PRECISION_SPEARMAN = "influence/half_precision_spearman_top_100"
VALUE_SECONDS = "value/seconds"
INFLUENCE_LDS_SAME_SEED = "influence/lds_same_seed"
INFLUENCE_LDS_OTHER_SEEDS = "influence/lds_other_seeds"
INFLUENCE_LDS_SIBLINGS = "influence/lds_siblings"
INFLUENCE_LDS_CEILING = "influence/lds_ceiling"
INFLUENCE_DELETION_DROP = "influence/deletion_log_probability_drop"

# Settings that an explanation records in addition to those of `influence`
SETTING_EMA_DECAY = "ema_decay"
"""Only if the run keeps an average of its parameters."""
SETTING_SEARCH = "search_by_index"
"""Only if an index chose the windows to score: what it did."""
NOT_OF_THE_AVERAGE = (
    "The run keeps an average of its parameters. This explanation, scores and ranks included, is "
    "of the parameters themselves; predict, evaluate and Ask use the average."
)

# Artifacts
ARTIFACT_CONFIG_YAML = "config.yaml"
ARTIFACT_CONFIG_JSON = "config.json"
ARTIFACT_HISTORY = "history.parquet"
ARTIFACT_LOG = "log.txt"
ARTIFACT_CHECKPOINTS = "checkpoints"
ARTIFACT_BEST = "best"
CHECKPOINT_MANIFEST = "manifest.json"
"""In the folder of each checkpoint: what it is."""
ARTIFACT_EVALUATION = "evaluation"
ARTIFACT_INFLUENCE = "influence"
ARTIFACT_VALUES = "fact_values"
ARTIFACT_VALIDATION = "validation"
ARTIFACT_PROMOTION = "promotion.json"
ARTIFACT_TUNE = "tune"
BEST_YAML = "best.yaml"
TRIALS_CSV = "trials.csv"
INFLUENCE_JSON = "influence.json"
INFLUENCE_CSV = "influence.csv"
INFLUENCE_PARQUET = "influence.parquet"
VALUES_CSV = "fact_values.csv"
WORST_FACTS = "worst_facts.tsv"
VALIDATION_JSON = "validation.json"


def average_notes(settings: Mapping[str, object]) -> list[str]:
    """Return notes to show with an explanation's scores; only if the run keeps an average."""
    return [NOT_OF_THE_AVERAGE] if SETTING_EMA_DECAY in settings else []


def default_model_name(dataset: str) -> str:
    """Return the name that models of a data set are registered under where none is given."""
    return f"clew-{re.sub(r'[^A-Za-z0-9_-]+', '-', dataset).strip('-') or 'model'}"


def metric(split: str, name: str) -> str:
    """Full key of a quality metric, for example `metric("valid", MRR)` = `valid/mrr`."""
    return f"{split}/{name}"


def hits_at(k: int) -> str:
    """Metric name of Hits@k without the character `@`, which MLflow refuses."""
    return HITS_AT.format(k=k)


# First lines of a list of facts marked wrong: from which data they are
LIST_DATA_SET_PREFIX = "# data set: "
LIST_FINGERPRINT_PREFIX = "# fingerprint: "
LIST_ORIGIN = (LIST_DATA_SET_PREFIX, LIST_FINGERPRINT_PREFIX)
