"""What each form of the influence score is called, its unit, and what one number of it says.

Every surface takes its words from here: pages, commands, reports, the Python API and the files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

NO_UNIT = "no unit"
SELF_INFLUENCE = (
    "The prediction's influence on itself, before any division by norms: the squared length of its "
    "own gradient as this form takes it, times the learning rates, summed over the checkpoints. It "
    "says how much there was to learn about the prediction, and is no change of a loss. Large "
    "values are often rare, odd or wrong."
)
_ORDER = "Only the order and the relative size within one prediction's list mean something."
NATS = "nats"
"""Unit of the loss of triples and text."""
UNIT_OF_THE_LOSS = "units of the loss"
"""Unit where it depends on `loss.kind`, as for frames."""
_TERMS = [(side, end) for side in ("Test", "Train") for end in ("Head", "Rel", "Tail")]
CSV_COLUMNS = (
    *(f"{side}{end}{label}" for side, end in _TERMS for label in ("", "_label")),
    "TracInScore",
)
"""Header of the CSV file: `TestHead`, `TestHead_label`, ... `TrainTail_label`, `TracInScore`."""
ENSEMBLE_CSV_COLUMNS = (*CSV_COLUMNS, "Spread", "RunsAgreeing")
"""Header of the CSV file of an ensemble."""
CSV_COUNTERPART = "Counterpart"
"""Last column of the CSV file if a fact in it is the inverse or duplicate of its test triple."""
VALUES_CSV_COLUMNS = ("TrainIndex", *CSV_COLUMNS[6:12], "Value")
"""Header of the CSV file with the values of training facts."""
TERM_COLUMNS = tuple(
    f"{side}_{end}{label}".lower() for side, end in _TERMS for label in ("", "_label")
)
"""Parquet: the columns of the CSV file in snake case, dictionary-encoded strings."""
SCORE_COLUMN = "tracin_score"
"""Parquet: the influence, float64, in the form that the JSON file names under `form`."""
COSINE_COLUMN = "cosine"
"""Parquet: influence divided by the norms of both gradients; absent if it was not computed."""
SPREAD_COLUMN = "spread"
"""Parquet, ensembles: standard deviation of the runs' scores (n - 1), float32."""
AGREEING_COLUMN = "runs_agreeing"
"""Parquet, ensembles: number of runs whose score has the mean's sign, int32."""
DISPUTED_COLUMN = "disputed"
"""Column of shown facts, ensembles: whether a run has another sign than the mean."""
COUNTERPART_COLUMN = "counterpart"
"""Parquet: `inverse` or `duplicate` if the fact is this of the test triple, else empty."""
TEST_INDEX_COLUMN = "test_index"
"""Parquet: position of the test triple in the JSON file's `tests`, int32."""
TRAIN_INDEX_COLUMN = "train_index"
"""Parquet: row of the training triple in the training data, from 0, int64."""
RANK_COLUMN = "rank"
"""Parquet: position among the test triple's candidates in descending order of score, from 1, int32:
the strongest opponent is last. Every other rank counts its own side, strongest first."""
ID_COLUMNS = tuple(f"{side}_{end}_id".lower() for side, end in _TERMS)
"""Parquet: integer ids in the model's vocabularies, int32."""
PART_PREFIX = "part_"
"""Parquet: `part_dense` and so on, float32; the parts add up to the score."""
CHECKPOINT_PREFIX = "checkpoint_"
"""Parquet: `checkpoint_<step>`, float32; the checkpoints add up to the score."""
SPLIT = (PART_PREFIX, CHECKPOINT_PREFIX)


def agreement_sentence(runs: int, listed: int, disputed: int) -> list[str]:
    """Return a sentence on how many listed facts the runs of an ensemble dispute; none for one."""
    if not runs:
        return []
    grey = "; the others are grey where colours are shown" * bool(disputed)
    return [
        f"Means over {runs} training runs that differ only in their random seed. All agree on the "
        f"sign of {listed - disputed:,} of the {listed:,} facts listed{grey}."
    ]


@dataclass(frozen=True)
class Form:
    """One form of the influence score, a value of `influence.score`."""

    key: str
    unit: str
    meaning: str
    """What one number says, in a sentence or two."""

    @property
    def heading(self) -> str:
        """Heading of a column or an axis: `Influence (raw) [loss]`, `Influence (kronecker)`."""
        unit = f" [{self.unit}]" if self.has_unit else ""
        return f"Influence ({self.key}){unit}" if self.key else "Influence"

    @property
    def self_heading(self) -> str:
        """Heading of the self-influence: `Self-influence (kronecker)`."""
        return f"Self-influence ({self.key})" if self.key else "Self-influence"

    @property
    def sentence(self) -> str:
        return f"{self.named}: {self.meaning}"

    @property
    def named(self) -> str:
        """Name and unit in words: `Influence (raw), in nats`, `Influence (kronecker), no unit`."""
        unit = f"in {self.unit}" if self.has_unit else self.unit or "unit unknown"
        return f"{self.heading.partition(' [')[0]}, {unit}"

    @property
    def has_unit(self) -> bool:
        return self.unit not in {NO_UNIT, ""}

    def as_dict(self) -> dict[str, str]:
        return {"name": self.key, "unit": self.unit, "meaning": self.meaning}


FORMS = {
    key: Form(key, *said.split(": ", maxsplit=1))
    for key, said in {
        "raw": f"{NATS}: TracIn as published, the fall of the prediction's loss by plain gradient "
        "descent on this example at the run's learning rates, to first order, summed over the "
        "checkpoints. It can be far larger than the loss itself if training did not take such "
        "steps.",
        "cosine": f"{NO_UNIT}: raw divided by the lengths of both gradients, from -1 to 1: how far "
        "training on this fact and on the prediction pull in the same direction.",
        "deflated": f"{NO_UNIT}: how far this fact's gradient, without what all facts share, "
        "points to a lower loss of the prediction, divided by that gradient's length. "
        f"{_ORDER}",
        "kronecker": f"{NO_UNIT}: how far this fact's gradient, whitened so that directions which "
        "are large in every gradient count less, points to a lower loss of the prediction, divided "
        f"by that gradient's length. {_ORDER}",
        "preconditioned": f"{NATS}: the fall of the prediction's loss by Adam's steps on this "
        "fact, to first order, summed over the checkpoints.",
        "unrolled": f"{NATS}: minus the derivative of the prediction's loss with respect to the "
        "example's weight (1 in training) through all of training: what this run's prediction "
        "would lose for each unit of weight taken away, to first order.",
        "tuned": f"{NATS}: minus the derivative of the prediction's loss with respect to the "
        "fact's weight through a short fine-tuning of the finished model, the mean over "
        "fine-tunings: what the prediction would lose there for each unit of weight taken away, to "
        "first order.",
    }.items()
}
TUNED_MODELS = ("conve", "complex")
"""Kinds of models whose tuned scores predicted retraining better on average: `tuned_recipe`."""
MOST_FACTS_TUNED = 10_000
"""Training facts of a graph up to which they take minutes at most; measured with 5,216."""
UNKNOWN = Form("", "", "the file does not name the form; only the order means something.")


def form_of(settings: Mapping[str, Any], *, loss_unit: str = NATS) -> Form:
    """Return the form of a report by its settings; the oldest reports have raw scores only."""
    form = FORMS.get(str(settings.get("score", "raw")), UNKNOWN) if settings else UNKNOWN
    return replace(form, unit=loss_unit) if form.has_unit else form
