"""Columns of the tables of an influence report: CSV for spreadsheets, Parquet for programs.

Both tables have one row per (test, training) pair. The influence engine writes them; the dashboard
and `clew.api` read them.
"""

from collections.abc import Sequence

CSV_COLUMNS = (
    "TestHead",
    "TestHead_label",
    "TestRel",
    "TestRel_label",
    "TestTail",
    "TestTail_label",
    "TrainHead",
    "TrainHead_label",
    "TrainRel",
    "TrainRel_label",
    "TrainTail",
    "TrainTail_label",
    "TracInScore",
)
"""Header of the CSV file, in order."""
ENSEMBLE_CSV_COLUMNS = (*CSV_COLUMNS, "Spread", "RunsAgreeing")
"""Header of the CSV file of an ensemble."""
VALUES_CSV_COLUMNS = ("TrainIndex", *CSV_COLUMNS[6:12], "Value")
"""Header of the CSV file with the values of training facts."""

TERM_COLUMNS = (
    "test_head",
    "test_head_label",
    "test_rel",
    "test_rel_label",
    "test_tail",
    "test_tail_label",
    "train_head",
    "train_head_label",
    "train_rel",
    "train_rel_label",
    "train_tail",
    "train_tail_label",
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
TEST_INDEX_COLUMN = "test_index"
"""Parquet: position of the test triple in the JSON file's `tests`, int32."""
TRAIN_INDEX_COLUMN = "train_index"
"""Parquet: row of the training triple in the training data, from 0, int64."""
RANK_COLUMN = "rank"
"""Parquet: position among the test triple's candidates in descending order of score, from 1, int32:
the strongest opponent is last. Every other rank counts its own side, strongest first."""
ID_COLUMNS = (
    "test_head_id",
    "test_rel_id",
    "test_tail_id",
    "train_head_id",
    "train_rel_id",
    "train_tail_id",
)
"""Parquet: integer ids in the model's vocabularies, int32."""
PART_PREFIX = "part_"
"""Parquet: `part_dense` and so on, float32; the parts add up to the score."""
CHECKPOINT_PREFIX = "checkpoint_"
"""Parquet: `checkpoint_<step>`, float32; the checkpoints add up to the score."""


def part_columns(parts: Sequence[str]) -> list[str]:
    return [PART_PREFIX + part for part in parts]
