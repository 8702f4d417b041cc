"""Sections `evaluation`, `influence` and `tracking`: what happens around training."""

from typing import Annotated, Literal

from pydantic import Field

from clew.config.base import EXPLAIN_FLAG, FILTER_FLAG, Flag, Section
from clew.config.directions import maximizes

Question = Literal["tail", "head", "both"]
"""Which answer of a triple is explained."""
TestLoss = Literal["trained", "filtered"]

WINDOW_FLAG = Flag(("trace_text", "trace_sequence"))
ANY_EXPLAIN_FLAG = Flag((*EXPLAIN_FLAG.verbs, *WINDOW_FLAG.verbs))


class EvaluationConfig(Section):
    """Quality on validation and test examples."""

    enabled: bool = True
    """Whether to evaluate; without evaluation there is no best checkpoint."""
    metric: str = "valid/mrr"
    """Metric that selects the best checkpoint, stops early and controls a plateau schedule."""
    every_epochs: int = Field(default=1, ge=1)
    """Epochs between two validations; the last epoch is always followed by one."""
    batch_size: int = Field(default=512, ge=1)
    """Examples or queries evaluated at once."""
    chunk_mib: float = Field(default=64.0, gt=0)
    """Memory budget for the scores held at once while ranking, in MiB."""
    test_after_training: bool = True
    """Evaluate the best checkpoint on the test split at the end."""

    @property
    def maximize(self) -> bool:
        """Whether larger values of `metric` are better."""
        return maximizes(self.metric)


class InfluenceConfig(Section):
    """How `tracin`, `batch_tracin`, `trace_text` and `trace_sequence` explain predictions."""

    top_k: Annotated[int, ANY_EXPLAIN_FLAG] = Field(default=10, ge=0)
    """Number of proponents and of opponents to keep for each test example; 0: keep every score."""
    score: Annotated[
        Literal["auto", "raw", "cosine", "deflated", "kronecker", "preconditioned", "unrolled"],
        EXPLAIN_FLAG,
    ] = "auto"
    """`auto`: the form that was measured to predict retraining best, `kronecker`; `cosine` for the
    graph models and losses that it is not defined for; `raw` for text and frames.

    `raw`: TracIn as published; `cosine`: divided by the norms of both gradients, so that no
    training example wins by the size of its gradient alone; `deflated`: without convolution and
    normalisation and without the mean directions that all examples share, divided by the training
    gradient's norm; `kronecker`: with every factor of a gradient whitened, without convolution and
    normalisation, divided by the training gradient's norm; `preconditioned`: in the geometry of
    Adam's second moments (needs checkpoints with the optimizer's state), measured as the worst of
    these at predicting retraining; `unrolled`: the exact derivative of the prediction's loss
    through the whole training, which is taken again (`tracin` of one run; needs all checkpoints
    with their training states)."""
    direction: Annotated[Question, EXPLAIN_FLAG] = "tail"
    """Which answer is explained: why this tail, why this head (needs `data.inverse_relations`), or
    the losses of both together; score and rank of the test triple are of the same question."""
    test_loss: Annotated[TestLoss, EXPLAIN_FLAG] = "trained"
    """Loss of the test triple: `trained`: as in training, smoothed, every other entity a wrong
    answer; `filtered`: not smoothed, without the other known answers, as ranks are."""
    with_cosine: Annotated[bool, WINDOW_FLAG] = True
    """Report the cosine next to every raw score; takes about 10 % more time for triples and, for
    windows that are all scored for a single prompt, as much as a third."""
    search: Annotated[Literal["all", "index"], WINDOW_FLAG] = "all"
    """Training windows whose scores are computed: `all` of them, or the best `candidates` of an
    `index`: random projections of every window's gradient, which are made the first time, kept
    beside each checkpoint, and made again where they are of other weights or data."""
    candidates: Annotated[int, WINDOW_FLAG] = Field(default=20, ge=1)
    """Windows with the largest, and as many with the smallest estimates, whose scores are computed
    after a search by index; at least `top_k`."""
    projection_rank: int = Field(default=64, ge=1)
    """Directions on each side to which the index projects the gradient of a matrix: its size grows
    with the square, the error of estimates falls in proportion."""
    batch_size: Annotated[int | None, EXPLAIN_FLAG] = Field(default=None, ge=1)
    """Training triples computed at once; unset: chosen by `memory_budget_mib`."""
    memory_budget_mib: float = Field(default=512.0, gt=0)
    """Memory, in addition to models and results, that the engine may use; it sets its tiles. For
    `unrolled`, memory for the states between two checkpoints: where they do not fit, the steps are
    taken a second time."""
    use_mixed_precision: Annotated[bool, ANY_EXPLAIN_FLAG] = False
    """Compute large matrix products with half-precision operands; the deviation from float32 on a
    sample is measured and recorded."""
    mixed_precision_dtype: Literal["auto", "float16", "bfloat16"] = "auto"
    """Half-precision type; `auto`: float16 on a GPU, bfloat16 on the CPU."""
    use_gradient_checkpointing: Annotated[bool, EXPLAIN_FLAG] = False
    """Recompute feature maps for the backward pass instead of keeping them."""
    enable_memory_cleanup: Annotated[
        bool, Flag(EXPLAIN_FLAG.verbs, off="disable_memory_cleanup")
    ] = True
    """Return cached memory to the driver regularly (GPU only; results do not change)."""
    use_last_layers_only: Annotated[bool, EXPLAIN_FLAG] = False
    """Use only the parameters of the last layers: faster, but a different, coarser score."""
    num_last_layers: Annotated[int, EXPLAIN_FLAG] = Field(default=2, ge=1)
    """Number of layers to use then, counted from the output: 1: the entity scorer, 2: also the
    projection, 3 or more: everything."""
    n_hops: Annotated[int, FILTER_FLAG] = Field(default=2, ge=1)
    """`batch_tracin`: candidates are the first n edges of any path from the test's head or tail."""
    min_degree: Annotated[int, FILTER_FLAG] = Field(default=1, ge=1)
    """`batch_tracin`: paths avoid entities with fewer edges, except the test's head and tail."""
    strict_path_filtering: Annotated[bool, FILTER_FLAG] = False
    """`batch_tracin`: use only edges on a path of at most `2 * n_hops` between head and tail."""
    tests_per_group: int = Field(default=100, ge=1)
    """`batch_tracin`: tests computed together; a killed run continues after the last full group."""


class TrackingConfig(Section):
    """Where and how a run is recorded."""

    experiment: str = "clew"
    """Name of the experiment."""
    run_name: str | None = None
    """Name of the run; unset: the variant and the data set."""
    log_system_metrics: bool = True
    """MLflow's own sampling of CPU, memory, disk, network and GPU, under `system/`, once the run
    has lasted a minute."""
    log_mfu: bool = True
    """Count the model's floating-point operations once and report the share of the peak reached."""
    profile_steps: int = Field(default=0, ge=0)
    """Trace this many optimizer steps, after the first five, with torch's profiler; the Chrome
    trace and a table of operators become artifacts in `profile/`."""
    log_checkpoints: bool = True
    """Upload checkpoints as artifacts and register each as a model entry."""
    tensorboard: bool = False
    """Write the metrics to TensorBoard event files as well: `tensorboard --logdir runs/`."""
    tensorboard_dir: str = "runs"
    """Folder for these files, with one subfolder per run."""
