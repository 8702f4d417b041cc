"""Writes the best pairs of a relation, or given triples with their scores, as a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from clew.errors import ConfigError, counted
from clew.files import replacing
from clew.link_prediction.candidate_lists import list_pairs, scored_triples
from clew.link_prediction.candidates import EVERYTHING, Limits
from clew.link_prediction.rank_metrics import SIDES
from clew.spreadsheets import changed, disarmed
from clew.workflows.model_source import open_model
from clew.workflows.outputs import check_file
from clew.workflows.predict import Asked, about_probabilities, open_predictor

NAMED = ("head", "head_label", "tail", "tail_label")
SHOWN = ("rank", *NAMED, "score", "probability", "head_rank", "tail_rank", "known", "error")
FORMATS = (".parquet", ".tsv", ".csv", ".json")
MOST_SHOWN = 20


@dataclass(frozen=True)
class ListResult:
    """A table of pairs, and where it was written."""

    model: str
    rows: pa.Table
    output: Path | None
    notes: tuple[str, ...]

    def table(self) -> str:
        """Return the first rows as text, and the file."""
        shown = self.rows.select([name for name in SHOWN if name in self.rows.column_names])
        frame = shown.slice(0, MOST_SHOWN).to_pandas().dropna(axis="columns", how="all")
        texts = frame.select_dtypes(exclude="number").columns
        frame[texts] = frame[texts].fillna("")
        labels = [f"{side}_label" for side in SIDES]
        same = [label for label in labels if frame[label].isin(["", *frame[label[:4]]]).all()]
        frame = frame.drop(columns=same)
        lines = [f"model: {self.model}", *(f"note: {note}" for note in self.notes), ""]
        lines.append(frame.to_string(index=False, na_rep=""))
        if self.rows.num_rows > MOST_SHOWN:
            lines.append(f"… {self.rows.num_rows - MOST_SHOWN:,} more rows")
        if self.output:
            lines += ["", f"{self.output}: {counted(self.rows.num_rows, 'row')}"]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values; the rows only if they were not written to a file."""
        content = {"model": self.model, "notes": list(self.notes)}
        if self.output:
            return content | {"output": str(self.output), "num_rows": self.rows.num_rows}
        return content | {"rows": self.rows.to_pylist()}


def predict_list(
    model: str,
    asked: str | Sequence[Asked],
    *,
    top_k: int = 10,
    filter_known: bool = True,
    limits: Limits = EVERYTHING,
    output: Path | None = None,
) -> ListResult:
    """Return the best pairs of a relation, or given triples with scores; write them as a file.

    A triple that cannot be scored has its reason in the column `error`.
    """
    check_table("--output", output)
    with open_model(model) as source:
        predictor, notes = open_predictor(source)
        if isinstance(asked, str):
            rows = list_pairs(
                predictor, asked, top_k=top_k, filter_known=filter_known, limits=limits
            )
        else:
            triples = [(item.query.head, item.query.relation, item.query.tail) for item in asked]
            wrong = {i: f"{item.where}: {item.error}" for i, item in enumerate(asked) if item.error}
            rows = scored_triples(predictor, triples, limits, wrong)
            if num_bad := rows.num_rows - rows["error"].null_count:
                notes.append(
                    f"{num_bad:,} of {rows.num_rows:,} rows have no score; see their error"
                )
        notes.append(about_probabilities(predictor.calibration, limits))
        if predictor.calibration is not None and predictor.has_inverses:
            notes.append("the probability of a pair is the mean of its tail's and its head's")
        if output is not None:
            write_table(output, rows)
        return ListResult(source.title, rows, output, tuple(notes))


def check_table(option: str, path: Path | None) -> None:
    """Refuse a file whose format is unknown, or that cannot be written."""
    if path is not None and path.suffix not in FORMATS:
        raise ConfigError(f"{option} {path}: expected a name that ends with {', '.join(FORMATS)}")
    check_file(option, path)


def write_table(path: Path, rows: pa.Table) -> None:
    """Write a table in the format that its name ends with."""
    with replacing(path) as temporary:
        if path.suffix == ".parquet":
            pq.write_table(rows, temporary, compression="zstd")
        elif path.suffix == ".json":
            rows.to_pandas().to_json(temporary, orient="records", indent=1, double_precision=7)
        else:
            for number, column in enumerate(rows.columns):
                if pa.types.is_string(column.type):
                    safe = changed(column.combine_chunks(), disarmed)
                    rows = rows.set_column(number, rows.column_names[number], safe)
            options = pa.csv.WriteOptions(delimiter="\t" if path.suffix == ".tsv" else ",")
            pa.csv.write_csv(rows, temporary, options)
