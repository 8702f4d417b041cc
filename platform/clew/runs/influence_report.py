"""Data models of an influence report's JSON file.

The JSON file of a `tracin` or `batch_tracin` run has, for each test triple, the score, the rank and
the strongest proponents and opponents. The influence engine writes the file with these models, and
the dashboard reads it with them. The columns of the tables next to the file are in
`influence_columns`. This module does not need torch.

`id` is the name in the data files (`/m/027rn`, `DB00001`, `enzyme`), and `label` is the readable
name; they are equal if a data set has no labels.
"""

import json
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import GetPydanticSchema, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import core_schema

from clew.errors import DataError, described, quoted
from clew.files import replacing
from clew.runs.influence_forms import form_of
from clew.runs.validation_record import ValidationSummary

R = TypeVar("R")
SIGN_CONVENTION = "positive scores lower the test triple's loss (proponents)"

CONVE_PARTS = (
    "entity_output",
    "entity_cross",
    "entity_input",
    "relation",
    "dense",
    "convolution",
)
"""Parts of ConvE in `by_part`, in this order: scorer; scorer x lookup of the shared entity table;
lookup of the head; lookup of the relation; fully connected layer; convolution with all
normalisations."""


@dataclass(frozen=True, slots=True)
class Term:
    """An entity or a relation."""

    id: str
    label: str


@dataclass(frozen=True, slots=True)
class TripleRecord:
    """A triple with the ids and labels of its terms."""

    head: Term
    relation: Term
    tail: Term


@dataclass(frozen=True, slots=True)
class InfluenceEntry:
    """One training triple's influence on one test triple, in the form `settings.score`.

    `rank` counts from 1 among the proponents or among the opponents, strongest first. Both
    `by_checkpoint` and `by_part` add up to `influence`. For an ensemble, `influence` is the mean
    over the runs, `spread` is the standard deviation (n - 1), and `runs_agreeing` is the number of
    runs whose score has the same sign as the mean.
    """

    rank: int
    train: TripleRecord
    influence: float
    by_checkpoint: tuple[float, ...] = ()
    by_part: dict[str, float] = field(default_factory=dict)
    cosine: float | None = None
    train_index: int | None = None
    spread: float | None = None
    runs_agreeing: int | None = None


@dataclass(frozen=True, slots=True)
class ScoredTriple:
    """One test triple.

    `score` is the model's own score of the triple (a logit), no influence; `rank` is the filtered
    rank of the explained answer (ties count half), both at the last checkpoint. With direction
    `both`, they are means over tail and head; in version 1 of the schema, they belong to the tail.
    `truncated` is True if more training triples were scored than the two lists of an
    `ExplainedTriple` contain.
    `self_influence` is no change of a loss, see `influence_forms.SELF_INFLUENCE`; it is None for
    unrolled scores, which do not define it.
    """

    test: TripleRecord
    score: float
    rank: float
    self_influence: float | None = field(default=None, kw_only=True)
    candidates: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class ExplainedTriple(ScoredTriple):
    """One test triple, and the training triples with the strongest influence on it."""

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
    """The model that was explained.

    For an ensemble, `run_id` is the first run, `runs` are all runs, and the weight of a checkpoint
    is the mean over the runs.
    """

    run_id: str
    task: str
    checkpoints: tuple[CheckpointWeight, ...]
    runs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFrame:
    """All fields of a report except the test triples.

    Version 1 of the schema has only one direction of the loss, `both`, and no ensembles. It is read
    without conversion.
    """

    schema_version: Literal[1, 2] = 2
    sign: str = SIGN_CONVENTION
    model: ReportModel
    settings: dict[str, Any]
    train_size: int
    seconds: float
    device: str
    validation: ValidationSummary | None = None
    """Result of the test of this form of score on this model; None if it was not tested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluenceReport(ReportFrame):
    """The whole JSON file."""

    tests: tuple[ExplainedTriple, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOutline(ReportFrame):
    """The JSON file without its training triples."""

    tests: tuple[ScoredTriple, ...]


_FRAME = TypeAdapter(ReportFrame)
_TEST = TypeAdapter(ExplainedTriple)
_REPORT = TypeAdapter(InfluenceReport)
_OUTLINE = TypeAdapter(ReportOutline)


def read_influence_json(path: Path) -> InfluenceReport:
    """Read a whole report.

    Raises:
        DataError: The file is not a report, or it has another schema version.
    """
    return _read(path, _REPORT)


def read_influence_outline(path: Path) -> ReportOutline:
    """Read a report without its training triples, which are most of a large file.

    Raises:
        DataError: The file is not a report, or it has another schema version.
    """
    return _read(path, _OUTLINE)


def read_explained_triple(path: Path, index: int) -> tuple[ReportFrame, ExplainedTriple]:
    """Read one test triple with its training triples, and skip all other test triples.

    Raises:
        DataError: The file is not a report, it has another schema version, or there is no such
            test triple.
    """
    passed_over = core_schema.typed_dict_schema({})

    def only_one(_: object, handler: Any) -> core_schema.CoreSchema:
        items = [passed_over] * index + [handler.generate_schema(ExplainedTriple), passed_over]
        return core_schema.tuple_schema(items, variadic_item_index=index + 1)

    @dataclass(frozen=True, slots=True, kw_only=True)
    class OneOfReport(ReportFrame):
        tests: Annotated[tuple[Any, ...], GetPydanticSchema(only_one)]

    report = _read(path, TypeAdapter(OneOfReport))
    return report, report.tests[index]


def write_influence_json(report: InfluenceReport, path: Path) -> None:
    """Write a report with one test triple per line, completely or not at all.

    Raises:
        DataError: A value is NaN or infinite.
    """
    try:
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            frame = _FRAME.dump_python(report)
            frame["form"] = form_of(report.settings).as_dict()
            if report.validation is None:
                del frame["validation"]
            if not report.model.runs:
                del frame["model"]["runs"]
            file.write(f'{json.dumps(frame, ensure_ascii=False)[:-1]}, "tests": [')
            for index, test in enumerate(report.tests):
                content = _TEST.dump_python(test, exclude_none=True)
                text = json.dumps(content, allow_nan=False, ensure_ascii=False)
                file.write(("" if index == 0 else ",\n") + text)
            file.write("]}\n")
    except ValueError as error:
        raise DataError(f"{path}: JSON cannot represent a value of the report: {error}") from None


def _read(path: Path, adapter: TypeAdapter[R]) -> R:
    try:
        return adapter.validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        raise DataError(f"{path}: {_problem(error)}") from None


def _problem(error: ValidationError) -> str:
    """Return why a file is not a report."""
    problems = error.errors(include_url=False)
    first = problems[0]
    if first["type"] == "json_invalid":
        return f"not valid JSON ({first['msg']}); expected an influence report"
    if not first["loc"]:
        return "no schema_version; expected an influence report"
    for problem in problems:
        if problem["loc"] == ("schema_version",):
            return (
                f"schema_version is {quoted(problem['input'])}, this version of Clew reads 1 and "
                "2; write the report again or use the matching version"
            )
    if first["type"] == "missing":
        if first["loc"][:-1] == ("tests",):
            return f"no test triple {problems[-1]['loc'][1]}; the report has {first['loc'][1]}"
        return f"{first['loc'][-1]!r} is missing; expected schema 1 or 2"
    return f"a value of the wrong kind ({described(error)}); expected schema 1 or 2"
