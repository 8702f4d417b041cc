"""Records of an influence report: what the influence engine writes and the dashboard reads.

One JSON file tells the story of a `tracin` or `batch_tracin` run: for each test triple its score,
rank and strongest proponents and opponents. The CSV and Parquet files beside it hold one row a
(test, training) pair. Nothing here needs torch.

`id` is the name that the data files use (`/m/027rn`, `DB00001`, `enzyme`), `label` the text that
people read; where a data set has no labels they are equal.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clew.errors import DataError
from clew.runs.validation_record import ValidationSummary

INFLUENCE_SCHEMA_VERSION = 1
SIGN_CONVENTION = "positive scores lower the test triple's loss (proponents)"

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
"""Parquet: the CSV's names in snake case, strings in dictionary encoding."""

SCORE_COLUMN = "tracin_score"
"""Parquet: the influence, float64."""
COSINE_COLUMN = "cosine"
"""Parquet: influence divided by the norms of both gradients; absent where it was not computed."""
TEST_INDEX_COLUMN = "test_index"
"""Parquet: place of the test triple in the JSON file's `tests`, int32."""
TRAIN_INDEX_COLUMN = "train_index"
"""Parquet: line of the training triple in the training data, from 0, int64."""
RANK_COLUMN = "rank"
"""Parquet: place among the test triple's candidates by falling score, from 1, int32."""
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

CONVE_PARTS = (
    "entity_output",
    "entity_cross",
    "entity_input",
    "relation",
    "dense",
    "convolution",
)
"""Parts of ConvE in `by_part`: scorer, scorer x lookup of the shared entity table, lookup of the
head, lookup of the relation, fully connected layer, convolution with all normalisations."""


@dataclass(frozen=True, slots=True)
class Term:
    """An entity or a relation."""

    id: str
    label: str


@dataclass(frozen=True, slots=True)
class TripleRecord:
    """A triple with names."""

    head: Term
    relation: Term
    tail: Term


@dataclass(frozen=True, slots=True)
class InfluenceEntry:
    """One training triple's influence on one test triple.

    `rank` counts from 1 among the proponents or among the opponents, strongest first. Both
    `by_checkpoint` and `by_part` add up to `influence`.
    """

    rank: int
    train: TripleRecord
    influence: float
    by_checkpoint: tuple[float, ...] = ()
    by_part: Mapping[str, float] = field(default_factory=dict)
    cosine: float | None = None
    train_index: int | None = None


@dataclass(frozen=True, slots=True)
class TestInfluence:
    """One test triple and the training triples that moved it most.

    `score` is the model's own for the triple (a logit), `rank` its filtered rank as a tail (ties
    count half), both at the last checkpoint. `truncated` says that more training triples were
    scored than the two lists hold.
    """

    __test__ = False

    test: TripleRecord
    score: float
    rank: float
    self_influence: float
    candidates: int
    truncated: bool
    proponents: tuple[InfluenceEntry, ...] = ()
    opponents: tuple[InfluenceEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointWeight:
    """A checkpoint and its weight in the sum."""

    epoch: int
    step: int
    weight: float


@dataclass(frozen=True, slots=True)
class ReportModel:
    """Which model was explained."""

    run_id: str
    task: str
    checkpoints: tuple[CheckpointWeight, ...]


@dataclass(frozen=True, slots=True)
class InfluenceReport:
    """The whole JSON file."""

    model: ReportModel
    settings: Mapping[str, Any]
    train_size: int
    seconds: float
    device: str
    tests: tuple[TestInfluence, ...]
    validation: ValidationSummary | None = None
    """What this form of score was worth when it was tested on this model, if it was."""
    sign: str = SIGN_CONVENTION
    schema_version: int = INFLUENCE_SCHEMA_VERSION


def read_influence_json(path: Path) -> InfluenceReport:
    """Read a report; a file that is none, or of another schema version, is a DataError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON ({error}); expected an influence report") from None
    return decode_influence(content, source=str(path))


def write_influence_json(report: InfluenceReport, path: Path) -> None:
    """Write a report, a test triple at a time; not-a-number and infinity are refused."""
    temporary = path.with_name(f".{path.name}.tmp")
    frame = json.dumps(_encode_frame(report), ensure_ascii=False)
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(f'{frame[:-1]}, "tests": [')
            for index, test in enumerate(report.tests):
                content = json.dumps(_encode_test(test), allow_nan=False, ensure_ascii=False)
                file.write(("" if index == 0 else ",\n") + content)
            file.write("]}\n")
    except ValueError as error:
        temporary.unlink()
        raise DataError(f"{path}: the report holds a value that JSON cannot: {error}") from None
    temporary.replace(path)


def decode_influence(content: object, *, source: str) -> InfluenceReport:
    """Build the report from parsed JSON; `source` names it in errors."""
    if not isinstance(content, dict) or "schema_version" not in content:
        raise DataError(f"{source}: no schema_version; expected an influence report")
    version = content["schema_version"]
    if version != INFLUENCE_SCHEMA_VERSION:
        raise DataError(
            f"{source}: schema_version is {version!r}, this version of Clew reads "
            f"{INFLUENCE_SCHEMA_VERSION}; write the report again or use the matching version"
        )
    try:
        return InfluenceReport(
            model=_decode_model(content["model"]),
            settings=dict(content["settings"]),
            train_size=int(content["train_size"]),
            seconds=float(content["seconds"]),
            device=str(content["device"]),
            tests=tuple(_decode_test(test) for test in content["tests"]),
            validation=_decode_validation(content.get("validation")),
            sign=str(content["sign"]),
        )
    except KeyError as error:
        raise DataError(f"{source}: {error.args[0]!r} is missing; expected schema 1") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{source}: a value of the wrong kind ({error}); expected schema 1"
        ) from None


def part_columns(parts: Sequence[str]) -> list[str]:
    """Return the Parquet columns of the parts."""
    return [PART_PREFIX + part for part in parts]


def _decode_model(content: Mapping[str, Any]) -> ReportModel:
    checkpoints = tuple(
        CheckpointWeight(int(c["epoch"]), int(c["step"]), float(c["weight"]))
        for c in content["checkpoints"]
    )
    return ReportModel(str(content["run_id"]), str(content["task"]), checkpoints)


def _decode_validation(content: object) -> ValidationSummary | None:
    return None if content is None else ValidationSummary.model_validate(content)


def _decode_test(content: Mapping[str, Any]) -> TestInfluence:
    return TestInfluence(
        test=_decode_triple(content["test"]),
        score=float(content["score"]),
        rank=float(content["rank"]),
        self_influence=float(content["self_influence"]),
        candidates=int(content["candidates"]),
        truncated=bool(content["truncated"]),
        proponents=tuple(_decode_entry(entry) for entry in content["proponents"]),
        opponents=tuple(_decode_entry(entry) for entry in content["opponents"]),
    )


def _decode_entry(content: Mapping[str, Any]) -> InfluenceEntry:
    cosine, index = content.get("cosine"), content.get("train_index")
    return InfluenceEntry(
        rank=int(content["rank"]),
        train=_decode_triple(content["train"]),
        influence=float(content["influence"]),
        by_checkpoint=tuple(float(value) for value in content["by_checkpoint"]),
        by_part={str(part): float(value) for part, value in content["by_part"].items()},
        cosine=None if cosine is None else float(cosine),
        train_index=None if index is None else int(index),
    )


def _decode_triple(content: Mapping[str, Any]) -> TripleRecord:
    head, relation, tail = (
        Term(str(content[role]["id"]), str(content[role]["label"]))
        for role in ("head", "relation", "tail")
    )
    return TripleRecord(head, relation, tail)


def _encode_frame(report: InfluenceReport) -> dict[str, Any]:
    """Return everything but the tests as JSON values, keys in the schema's order."""
    frame: dict[str, Any] = {
        "schema_version": report.schema_version,
        "sign": report.sign,
        "model": {
            "run_id": report.model.run_id,
            "task": report.model.task,
            "checkpoints": [
                {"epoch": c.epoch, "step": c.step, "weight": c.weight}
                for c in report.model.checkpoints
            ],
        },
        "settings": dict(report.settings),
        "train_size": report.train_size,
        "seconds": report.seconds,
        "device": report.device,
    }
    if report.validation is not None:
        frame["validation"] = report.validation.model_dump()
    return frame


def _encode_test(test: TestInfluence) -> dict[str, Any]:
    return {
        "test": _encode_triple(test.test),
        "score": test.score,
        "rank": test.rank,
        "self_influence": test.self_influence,
        "candidates": test.candidates,
        "truncated": test.truncated,
        "proponents": [_encode_entry(entry) for entry in test.proponents],
        "opponents": [_encode_entry(entry) for entry in test.opponents],
    }


def _encode_entry(entry: InfluenceEntry) -> dict[str, Any]:
    content: dict[str, Any] = {
        "rank": entry.rank,
        "train": _encode_triple(entry.train),
        "influence": entry.influence,
        "by_checkpoint": list(entry.by_checkpoint),
        "by_part": dict(entry.by_part),
    }
    if entry.cosine is not None:
        content["cosine"] = entry.cosine
    if entry.train_index is not None:
        content["train_index"] = entry.train_index
    return content


def _encode_triple(triple: TripleRecord) -> dict[str, Any]:
    return {
        role: {"id": term.id, "label": term.label}
        for role, term in (
            ("head", triple.head),
            ("relation", triple.relation),
            ("tail", triple.tail),
        )
    }
