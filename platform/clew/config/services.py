"""Sections `evaluation`, `influence` and `tracking`, and what commands can be asked."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from clew.config.base import COMMAS, EXPLAIN_FLAG, FILTER_FLAG, NO_CLEANUP, Flag, Section
from clew.errors import masked
from clew.names import maximizes

Question = Literal["tail", "head", "both"]
"""Which answer of a triple is explained: its tail, its head or both."""
TestLoss = Literal["trained", "filtered"]
Names = tuple[str, str, str]
"""A triple by name."""
Form = Literal["raw", "cosine", "deflated", "kronecker", "preconditioned", "unrolled", "tuned"]
"""Form of the scores of an explanation."""

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
    score: Annotated[Literal["auto", Form], ANY_EXPLAIN_FLAG] = "auto"
    """`auto`: `kronecker`, which predicted retraining best on average; `cosine` for
    losses with terms for each triple; `raw` for distance models, text and frames.

    `raw`: TracIn as published. `cosine`: `raw` divided by the norms of both gradients, so that a
    training example with a large gradient has no advantage. `deflated`: without convolution and
    normalisation and without the mean directions that all examples share, divided by the training
    gradient's norm. `kronecker`: with every factor of a gradient whitened, without convolution and
    normalisation, divided by the training gradient's norm. `preconditioned`: in the geometry of
    Adam's second moments (needs checkpoints with the optimizer's state). `unrolled`: the exact
    derivative of the prediction's loss through the whole training run, whose steps are repeated (of
    one run; needs all checkpoints with their training states). `tuned`: the same derivative through
    a short fine-tuning of the finished model, as in `clew verify`, instead of the training run (of
    one run of a graph model). For text and frames, only `raw` and `unrolled` are available."""
    seeds: Annotated[int, EXPLAIN_FLAG] = Field(default=1, ge=1)
    """Runs whose mean is explained: the model's own, and others with the next seeds, which are
    trained unless the store has them. A fact on whose sign they disagree is grey."""
    tuning_epochs: int | None = Field(default=None, ge=1)
    """`tuned`: epochs of the fine-tuning; unset: a sixth of the run's."""
    tuning_learning_rate: float | None = Field(default=None, gt=0)
    """`tuned`: learning rate of the fine-tuning; unset: 0.4 times the run's."""
    tuning_seeds: int | None = Field(default=None, ge=1)
    """`tuned`: fine-tunings whose derivatives are averaged; no check has their seeds; unset: 2."""
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
    enable_memory_cleanup: Annotated[bool, Flag(EXPLAIN_FLAG.verbs, off=NO_CLEANUP)] = True
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

    def _check(self) -> None:
        if self.seeds > 1 and self.goes_through_steps:
            raise ValueError(
                f"seeds is {self.seeds}, but score {self.score} explains one run; leave seeds at "
                "1, or choose another score"
            )


class ValidationRequest(Section):
    """The model whose explanations are tested, and the size of the test."""

    model: str
    """Run id, `models:/name@alias`, or a folder of checkpoints of a graph model."""
    subsets: Annotated[int, Field(ge=2)] = 40
    """Random subsets of facts for each share that is dropped."""
    seeds: Annotated[int, Field(ge=0)] = 2
    """Other seeds with which each subset is trained."""
    drop: Annotated[tuple[Annotated[float, Field(gt=0, le=0.9)], ...], COMMAS] = (0.05, 0.5)
    """Shares of the facts that subsets drop, separated by commas."""
    tests: Annotated[int, Field(ge=1)] = 100
    """Number of test triples, chosen at random."""
    deletions: Annotated[int, Field(ge=0)] = 30
    """Number of test triples with rank 1 whose strongest facts are deleted."""
    scores: Annotated[tuple[Form, ...], COMMAS] = ()
    """Forms of score to test, separated by commas (default: all that the run allows, except
    unrolled and tuned, which take longer)."""
    direction: Question = "tail"
    """Which answer is explained, and checked after retraining."""
    test_loss: TestLoss = "trained"
    """Which loss is explained: trained, or filtered."""
    max_hours: Annotated[float, Field(gt=0)] = 1.0
    """Refuse to start if the estimate is longer than this."""
    output_dir: Path | None = None
    """Folder that keeps each finished retraining (default: runs/validate_influence/RUN_ID)."""

    @property
    def settings(self) -> dict[str, object]:
        """Settings of the explanations, by their full names."""
        return {
            "influence.top_k": 0,
            "influence.direction": self.direction,
            "influence.test_loss": self.test_loss,
        }


class ValueRequest(Section):
    """The predictions by which training facts are valued, and the model that makes them."""

    model: str
    """Run id, `models:/name@alias`, or a folder of checkpoints of a graph model."""
    test: str | tuple[Names, ...] = ""
    """File of triples whose losses are summed (default: the validation triples)."""
    weights: Path | tuple[float, ...] | None = None
    """File with a number on each line: the weight of each triple's loss (default: their mean)."""
    direction: Question = "both"
    """Which answers' losses count: tail, head, or both (tails alone in a model without inverse
    relations)."""
    score: Literal["tuned", "unrolled"] = "tuned"
    """What is differentiated: tuned, short fine-tunings of the finished model; or unrolled, the
    whole training run, which takes longer and says more about this run's seed. Tuned values are
    smaller than what training again without a fact changes."""
    worst: Annotated[int, Field(ge=0)] = 100
    """Number of facts with the lowest values to list in worst_facts.tsv, to look them up."""
    confirm: Annotated[int, Field(ge=0)] = 0
    """Number of facts at each end of the list to train again without, one run each and one run for
    all of an end; worst_facts.tsv then lists only confirmed ones."""
    output_dir: Path | None = None
    """New folder for copies of fact_values.csv and worst_facts.tsv."""


class DataSizes(Section):
    """Sizes to plan with instead of data."""

    num_entities: Annotated[int | None, Field(ge=1, lt=2**31)] = None
    """Plan for this many entities, without the data."""
    num_relations: Annotated[int | None, Field(ge=1, lt=2**31)] = None
    """Plan for this many relations, without inverses and without the data."""
    vocabulary_size: Annotated[int | None, Field(ge=1)] = None
    """Plan for a vocabulary of this size (default: that of the packed text or its tokenizer)."""
    frame_shape: str = ""
    """Plan for frames of CHANNELSxHEIGHTxWIDTH, such as 1x440x640, without the data."""

    @field_validator("frame_shape")
    @classmethod
    def _check_shape(cls, given: str) -> str:
        if given and not re.fullmatch(r"[1-9]\d*x[1-9]\d*x[1-9]\d*", given):
            raise ValueError("expected CHANNELSxHEIGHTxWIDTH, such as 1x440x640")
        return given


class ClusterRequest(Section):
    """A cluster of Ray, and the resources that a unit of work needs on a node."""

    cluster: str = ""
    """Work on a cluster of Ray: HOST:PORT of its head, auto for the one that runs here, or local to
    start one here (default: in this process)."""
    cpus_per_task: Annotated[float, Field(gt=0)] = 1.0
    """With --cluster: processor cores for each task (a cell, a trial or some test triples)."""
    gpus_per_task: Annotated[float | None, Field(ge=0)] = None
    """With --cluster: GPUs for each task (default: 1 if the cluster has GPUs, else 0)."""
    memory_gib_per_task: Annotated[float | None, Field(gt=0)] = None
    """With --cluster: memory to reserve for each task (default: none)."""

    def needs(self, nodes: list[dict[str, Any]]) -> dict[str, float]:
        """Return the resources of a unit by Ray's names."""
        has_gpus = any(node["Resources"].get("GPU", 0) for node in nodes)
        gpus = float(has_gpus) if self.gpus_per_task is None else self.gpus_per_task
        memory = (self.memory_gib_per_task or 0) * 2**30
        needs = {"CPU": self.cpus_per_task, "GPU": gpus, "memory": memory}
        return {kind: need for kind, need in needs.items() if need}


class SearchBudget(Section):
    """What `clew tune` varies, and for how long."""

    space: str = ""
    """YAML file, or the name of a search space that ships with Clew (default: the one for the
    configuration's kind of data)."""
    minutes: Annotated[float, Field(gt=0)] = 60.0
    """Minutes that this command may take; then the running trial is stopped."""
    trials: Annotated[int | None, Field(ge=1)] = None
    """Stop after this many trials in all, including those of earlier commands."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the search; training.seed is the seed of training."""
    output_dir: Path | None = None
    """Folder that keeps the trials and the best configuration (default: in runs/tune)."""


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
