"""Every key under which Clew writes to a tracking store: tags, metrics, parameters, artifacts.

Writers and readers (dashboard, command line, scripts) all use the keys defined here, so they
cannot differ.
"""

from collections.abc import Mapping

EXPERIMENT = "clew"
DATA_VARIABLE = "CLEW_DATA"
"""Environment variable: the folder of named data sets."""
PARAMETER_PREFIX = "cfg."

# Run kinds (tag `clew.kind`)
KIND_TRAIN = "train"
KIND_EVALUATE = "evaluate"
KIND_TRACE = "trace"
KIND_COMPARE = "compare"
KIND_PROMOTE = "promote"
KIND_VALIDATE = "validate"

# Task kinds (tag `clew.task`)
TASK_LINK_PREDICTION = "link_prediction"
TASK_LANGUAGE_MODELING = "language_modeling"
TASK_SEQUENCE_REGRESSION = "image_sequence_regression"

# Tags
TAG_KIND = "clew.kind"
TAG_TASK = "clew.task"
TAG_DATASET = "clew.dataset"
TAG_DATA_FINGERPRINT = "clew.data_fingerprint"
TAG_CONFIG_HASH = "clew.config_hash"
TAG_VARIANT = "clew.variant"
TAG_DEVICE = "clew.device"
TAG_HARDWARE = "clew.hardware"
TAG_PRECISION = "clew.precision"
TAG_UNIT = "clew.unit"
TAG_VERSION = "clew.version"
TAG_COMMIT = "clew.commit"
TAG_RESUMED_FROM = "clew.resumed_from"
TAG_RESUMED_BY = "clew.resumed_by"
TAG_HEARTBEAT = "clew.heartbeat"
TAG_BEST_STEP = "clew.best_step"
TAG_PARAMETERS = "clew.parameters"
TAG_SOURCE_RUN = "clew.source_run"
TAG_STUDY = "clew.study"
TAG_CELL = "clew.cell"
TAG_WARNINGS = "clew.warnings"
TAG_LOSS_IMPLEMENTATION = "clew.loss_implementation"
TAG_COMPILE_FAILED = "clew.compile_failed"

# Tags of a checkpoint's model entry: its path in the run's artifacts, and its step
TAG_MODEL_FOLDER = "clew.folder"
TAG_MODEL_STEP = "clew.step"

# Tags and aliases of registered models
TAG_VALIDATION = "clew.validation"
TAG_REFUSED_BECAUSE = "clew.refused_because"
TAG_FORCED_BECAUSE = "clew.forced_because"
TAG_PROMOTE_RUN = "clew.promote_run"
TAG_DECISION = "clew.decision"
TAG_PACKAGE_COMMIT = "clew.package_commit"
TAG_CHECKPOINT_STEP = "clew.checkpoint_step"
TAG_MODEL_VERSION = "clew.model_version"
TAG_WEIGHTS = "clew.weights"
TAG_TEMPERATURE = "clew.temperature"
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
TRAIN_LEARNING_RATE = "train/learning_rate"
TRAIN_GRAD_NORM = "train/grad_norm"
TRAIN_LOSS_SCALE = "train/loss_scale"
TRAIN_SKIPPED_STEPS = "train/skipped_steps"
TRAIN_EPOCH = "train/epoch"

# Metrics of quality: `valid/` or `test/` before one of these
MRR = "mrr"
MEAN_RANK = "mean_rank"
HITS_AT = "hits_at_{k}"
PERPLEXITY = "perplexity"
BITS_PER_BYTE = "bits_per_byte"
MAE = "mae"
RMSE = "rmse"
R2 = "r2"
LOSS = "loss"

# Metrics of time, throughput and memory
TIME_EPOCH_SECONDS = "time/epoch_seconds"
TIME_STEP_MILLISECONDS = "time/step_milliseconds"
TIME_DATA_MILLISECONDS = "time/data_milliseconds"
TIME_COMPILE_SECONDS = "time/compile_seconds"
TIME_EVALUATION_SECONDS = "time/evaluation_seconds"
TIME_TOTAL_SECONDS = "time/total_seconds"
EXAMPLES_PER_SECOND = "throughput/examples_per_second"
TOKENS_PER_SECOND = "throughput/tokens_per_second"
FRAMES_PER_SECOND = "throughput/frames_per_second"
MFU = "throughput/mfu"
GPU_PEAK_ALLOCATED_GIB = "memory/gpu_peak_allocated_gib"
GPU_PEAK_RESERVED_GIB = "memory/gpu_peak_reserved_gib"
PROCESS_PEAK_GIB = "memory/process_peak_gib"
PROCESS_GROWTH_GIB = "memory/process_growth_gib"
PREDICTED_GIB = "memory/predicted_gib"

# Metrics of influence
INFLUENCE_SECONDS_PER_TEST = "influence/seconds_per_test"
INFLUENCE_PAIRS_PER_SECOND = "influence/pairs_per_second"
INFLUENCE_HALF_PRECISION_ERROR = "influence/half_precision_relative_error"
INFLUENCE_HALF_PRECISION_SPEARMAN = "influence/half_precision_spearman_top_100"
INFLUENCE_LDS_SAME_SEED = "influence/lds_same_seed"
INFLUENCE_LDS_OTHER_SEEDS = "influence/lds_other_seeds"
INFLUENCE_LDS_SIBLINGS = "influence/lds_siblings"
INFLUENCE_LDS_CEILING = "influence/lds_ceiling"
INFLUENCE_DELETION_DROP = "influence/deletion_log_probability_drop"

# Settings that an explanation records in addition to those of `influence`
SETTING_EMA_DECAY = "ema_decay"
"""Only if the run keeps an average of its parameters."""
NOT_OF_THE_AVERAGE = (
    "The run keeps an average of its parameters. This explanation, scores and ranks included, is "
    "of the parameters themselves; predict, evaluate and Ask use the average."
)

# Artifacts
ARTIFACT_CONFIG_YAML = "config.yaml"
ARTIFACT_CONFIG_JSON = "config.json"
ARTIFACT_HISTORY = "history.parquet"
ARTIFACT_CHECKPOINTS = "checkpoints"
ARTIFACT_BEST = "best"
ARTIFACT_EVALUATION = "evaluation"
ARTIFACT_INFLUENCE = "influence"
ARTIFACT_VALIDATION = "validation"
ARTIFACT_PROMOTION = "promotion.json"
INFLUENCE_JSON = "influence.json"
INFLUENCE_CSV = "influence.csv"
INFLUENCE_PARQUET = "influence.parquet"
VALIDATION_JSON = "validation.json"


def average_notes(settings: Mapping[str, object]) -> list[str]:
    """Return notes to show with an explanation's scores; only if the run keeps an average."""
    return [NOT_OF_THE_AVERAGE] if SETTING_EMA_DECAY in settings else []


def metric(split: str, name: str) -> str:
    """Full key of a quality metric, for example `metric("valid", MRR)` = `valid/mrr`."""
    return f"{split}/{name}"


def hits_at(k: int) -> str:
    """Metric name of Hits@k without the character `@`, which MLflow refuses."""
    return HITS_AT.format(k=k)
