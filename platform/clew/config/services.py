"""Sections `evaluation`, `influence` and `tracking`."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from clew.config.base import EXPLAIN_FLAG, FILTER_FLAG, Flag, Section
from clew.masking import masked
from clew.names import maximizes

Question = Literal["tail", "head", "both"]
"""Which answer of a triple is explained: its tail, its head or both."""
TestLoss = Literal["trained", "filtered"]

WINDOW_FLAG = Flag(("trace_text", "trace_sequence"))
ANY_EXPLAIN_FLAG = Flag((*EXPLAIN_FLAG.verbs, *WINDOW_FLAG.verbs))


class EvaluationConfig(Section):
    """Quality on validation and test examples."""

    enabled: bool = True
    """Whether to evaluate; without evaluation there is no best checkpoint."""
    metric: str = "valid/mrr"
    """Metric that selects the best checkpoint, and that early stopping and a plateau schedule
    use."""
    every_epochs: int = Field(default=1, ge=1)
    """Epochs between two validations; there is always a validation after the last epoch."""
    batch_size: int = Field(default=512, ge=1)
    """Number of examples or queries evaluated at once."""
    chunk_mib: float = Field(default=64.0, gt=0)
    """Memory budget for the scores kept at once while ranking, in MiB."""
    test_after_training: bool = True
    """Evaluate the best checkpoint on the test split after training."""

    @property
    def maximize(self) -> bool:
        return maximizes(self.metric)


class InfluenceConfig(Section):
    """How `tracin`, `batch_tracin`, `trace_text` and `trace_sequence` explain predictions."""

    top_k: Annotated[int, ANY_EXPLAIN_FLAG] = Field(default=10, ge=0)
    """Number of proponents and of opponents to keep for each test example; 0: keep every score."""
    score: Annotated[
        Literal[
            "auto", "raw", "cosine", "deflated", "kronecker", "preconditioned", "unrolled", "tuned"
        ],
        ANY_EXPLAIN_FLAG,
    ] = "auto"
    """`auto`: `kronecker`, which predicted retraining best when it was measured; `cosine` for
    graph models and losses without `kronecker`; `raw` for text and frames.

    `raw`: TracIn as published. `cosine`: `raw` divided by the norms of both gradients, so that a
    training example with a large gradient has no advantage. `deflated`: without convolution and
    normalisation and without the mean directions that all examples share, divided by the training
    gradient's norm. `kronecker`: with every factor of a gradient whitened, without convolution and
    normalisation, divided by the training gradient's norm. `preconditioned`: in the geometry of
    Adam's second moments (needs checkpoints with the optimizer's state); it predicted retraining
    worst when it was measured. `unrolled`: the exact derivative of the prediction's loss through
    the whole training run, whose steps are repeated (of one run; needs all checkpoints with their
    training states). `tuned`: the same derivative through a short fine-tuning of the finished
    model, the one of `clew verify`, instead of the training (of one run of a graph model). For text
    and frames, only `raw` and `unrolled` are available."""
    tuning_epochs: int | None = Field(default=None, ge=1)
    """`tuned`: epochs of the fine-tuning; unset: a sixth of the training's."""
    tuning_learning_rate: float | None = Field(default=None, gt=0)
    """`tuned`: learning rate of the fine-tuning; unset: .4 of the training's."""
    tuning_seeds: int | None = Field(default=None, ge=1)
    """`tuned`: fine-tunings whose derivatives are averaged, with the next seeds; unset: 2."""
    direction: Annotated[Question, EXPLAIN_FLAG] = "tail"
    """Which answer is explained: the tail, the head (needs `data.inverse_relations`), or both, by
    the sum of their losses. The score and rank of the test triple are for the same answer."""
    test_loss: Annotated[TestLoss, EXPLAIN_FLAG] = "trained"
    """Loss of the test triple: as in training (`trained`), or as for ranks (`filtered`). `trained`
    has label smoothing, and every other entity is a negative. `filtered` has no smoothing and
    leaves out the other known answers."""
    with_cosine: Annotated[bool, WINDOW_FLAG] = True
    """Report the cosine next to every raw score; takes about 10 % more time for triples, and up to
    a third more for all windows and a single prompt."""
    search: Annotated[Literal["all", "index"], WINDOW_FLAG] = "all"
    """Which training windows get a score: `all` windows, or the best `candidates` of an `index`.
    The index contains random projections of every window's gradient. It is built the first time,
    kept next to each checkpoint, and built again for other weights or data."""
    candidates: Annotated[int, WINDOW_FLAG] = Field(default=20, ge=1)
    """After a search by index, scores are computed for this many windows with the largest estimates
    and for the same number with the smallest estimates; at least `top_k`."""
    search_opponents: Annotated[bool, WINDOW_FLAG] = True
    """Whether a search by index also computes scores for the smallest estimates. If false, it
    takes half the time, and the explanation has only proponents."""
    projection_rank: int = Field(default=64, ge=1)
    """Number of directions on each side to which the index projects the gradient of a matrix. The
    size of the index grows with the square of this number. The error of the estimates is inversely
    proportional to this number."""
    batch_size: Annotated[int | None, EXPLAIN_FLAG] = Field(default=None, ge=1)
    """Number of training triples computed at once; unset: chosen from `memory_budget_mib`."""
    memory_budget_mib: float = Field(default=512.0, gt=0)
    """Memory that explaining can use in addition to models and results, in MiB; it sets how much is
    computed at once. For `unrolled` and `tuned`, memory for the states between two checkpoints; if
    they do not fit, the steps are repeated a second time."""
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
    """With `use_last_layers_only`, number of layers, counted from the output: 1 is the entity
    scorer, 2 adds the projection, 3 or more are all layers."""
    n_hops: Annotated[int, FILTER_FLAG] = Field(default=2, ge=1)
    """`batch_tracin`: candidates are the first n edges of any path from the test's head or tail."""
    min_degree: Annotated[int, FILTER_FLAG] = Field(default=1, ge=1)
    """`batch_tracin`: paths avoid entities with fewer edges, except the test's head and tail."""
    strict_path_filtering: Annotated[bool, FILTER_FLAG] = False
    """`batch_tracin`: use only edges on a path of at most `2 * n_hops` edges from head to tail."""
    tests_per_group: int = Field(default=100, ge=1)
    """`batch_tracin`: number of tests computed together; a killed run continues after the last
    complete group."""

    @property
    def goes_through_steps(self) -> bool:
        """Whether scores are derivatives through training steps, not sums over checkpoints."""
        return self.score in {"unrolled", "tuned"}


class TrackingConfig(Section):
    """Where and how a run is recorded."""

    experiment: Annotated[str, AfterValidator(masked)] = "clew"
    """Name of the experiment."""
    run_name: Annotated[str, AfterValidator(masked)] | None = None
    """Name of the run; unset: the data set, the model and the variant."""
    log_system_metrics: bool = True
    """Record CPU, memory, disk, network and GPU with MLflow's samplers under `system/`, if the run
    takes longer than a minute."""
    log_mfu: bool = True
    """On a GPU whose peak rate is known from its data sheet: count the model's floating-point
    operations once and report the share of that rate."""
    profile_steps: int = Field(default=0, ge=0)
    """Trace this many optimizer steps, after the first five, with torch's profiler; the Chrome
    trace and a table of operators become artifacts in `profile/`."""
    log_checkpoints: bool = True
    """Upload checkpoints as artifacts and register each checkpoint as a model entry."""
    tensorboard: bool = False
    """Also write the metrics to TensorBoard event files; show them with
    `tensorboard --logdir runs/`."""
    tensorboard_dir: str = "runs"
    """Folder for the TensorBoard files, with one subfolder per run."""
