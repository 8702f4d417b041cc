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
    """Epochs between two validations; there is always one after the last epoch."""
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
        ANY_EXPLAIN_FLAG,
    ] = "auto"
    """`auto`: `kronecker`, which predicted retraining best when it was measured; `cosine` for the
    graph models and losses without `kronecker`; `raw` for text and frames.

    `raw`: TracIn as published; `cosine`: divided by the norms of both gradients, so that no
    training example wins by the size of its gradient alone; `deflated`: without convolution and
    normalisation and without the mean directions that all examples share, divided by the training
    gradient's norm; `kronecker`: with every factor of a gradient whitened, without convolution and
    normalisation, divided by the training gradient's norm; `preconditioned`: in the geometry of
    Adam's second moments (needs checkpoints with the optimizer's state), measured as the worst of
    these at predicting retraining; `unrolled`: the exact derivative of the prediction's loss
    through the whole training, whose steps are repeated (of one run; needs all checkpoints with
    their training states). Text and frames have `raw` and `unrolled`."""
    direction: Annotated[Question, EXPLAIN_FLAG] = "tail"
    """Which answer is explained: why this tail, why this head (needs `data.inverse_relations`), or
    the losses of both together; score and rank of the test triple belong to the same question."""
    test_loss: Annotated[TestLoss, EXPLAIN_FLAG] = "trained"
    """Loss of the test triple: `trained`: as in training, with smoothing, every other entity counts
    as wrong; `filtered`: without smoothing and without the other known answers, as for ranks."""
    with_cosine: Annotated[bool, WINDOW_FLAG] = True
    """Report the cosine next to every raw score; takes about 10 % more time for triples, and up to
    a third more for all windows and a single prompt."""
    search: Annotated[Literal["all", "index"], WINDOW_FLAG] = "all"
    """Which training windows get a score: `all` of them, or the best `candidates` of an `index`.
    The index holds random projections of every window's gradient. It is made the first time, kept
    beside each checkpoint, and made again for other weights or data."""
    candidates: Annotated[int, WINDOW_FLAG] = Field(default=20, ge=1)
    """After a search by index, scores are computed for this many windows with the largest estimates
    and as many with the smallest; at least `top_k`."""
    search_opponents: Annotated[bool, WINDOW_FLAG] = True
    """Whether a search by index computes scores for the smallest estimates too. Without them it
    takes half the time, and the explanation has proponents only."""
    projection_rank: int = Field(default=64, ge=1)
    """Directions on each side to which the index projects the gradient of a matrix: the size of the
    index grows with the square of this number, the error of its estimates falls in proportion."""
    batch_size: Annotated[int | None, EXPLAIN_FLAG] = Field(default=None, ge=1)
    """Training triples computed at once; unset: chosen by `memory_budget_mib`."""
    memory_budget_mib: float = Field(default=512.0, gt=0)
    """Memory, in addition to models and results, that explaining may use; it sets how much is
    computed at once. For `unrolled`, memory for the states between two checkpoints: if they do not
    fit, the steps are repeated a second time."""
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
    """With `use_last_layers_only`, number of layers, counted from the output: 1: the entity scorer,
    2: also the projection, 3 or more: everything."""
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
    """Name of the run; unset: the data set, the model and the variant."""
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
