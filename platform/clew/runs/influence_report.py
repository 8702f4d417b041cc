"""An influence report: the models of its JSON file.

The JSON file says of a `tracin` or `batch_tracin` run, for each test triple, its score, its rank
and its strongest proponents and opponents. The influence engine writes with these models, the
dashboard reads with them; the tables beside it are in `influence_columns`. Nothing here needs
torch.

`id` is the name that the data files use (`/m/027rn`, `DB00001`, `enzyme`), `label` the text that
people read; where a data set has no labels they are equal.
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
    `by_checkpoint` and `by_part` add up to `influence`. Of an ensemble, `influence` is the mean
    over its runs, `spread` the standard deviation (n - 1), `runs_agreeing` the number of runs whose
    score has the mean's sign.
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

    `score` is the model's own for the triple (a logit), `rank` the filtered rank of the answer that
    is explained (ties count half), both at the last checkpoint; with direction `both` they are the
    means over tail and head, in version 1 they are of the tail. `truncated` says that more training
    triples were scored than the two lists of an `ExplainedTriple` hold. `self_influence` is None
    for the unrolled score, which has none.
    """

    test: TripleRecord
    score: float
    rank: float
    self_influence: float | None = field(default=None, kw_only=True)
    candidates: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class ExplainedTriple(ScoredTriple):
    """One test triple and the training triples that moved it most."""

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
    """Which model was explained.

    Of an ensemble, `run_id` is its first run, `runs` are all of them, and a checkpoint's weight is
    the mean over them.
    """

    run_id: str
    task: str
    checkpoints: tuple[CheckpointWeight, ...]
    runs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFrame:
    """What a report says besides its test triples.

    Version 1 knew one direction of the loss, both, and no ensembles; it is read as it is.
    """

    schema_version: Literal[1, 2] = 2
    sign: str = SIGN_CONVENTION
    model: ReportModel
    settings: dict[str, Any]
    train_size: int
    seconds: float
    device: str
    validation: ValidationSummary | None = None
    """What this form of score was worth when it was tested on this model, if it was."""


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
        DataError: the file is no report, or of another schema version.
    """
    return _read(path, _REPORT)


def read_influence_outline(path: Path) -> ReportOutline:
    """Read a report without its training triples, which are nearly all of a large file.

    Raises:
        DataError: as `read_influence_json`.
    """
    return _read(path, _OUTLINE)


def read_explained_triple(path: Path, index: int) -> tuple[ReportFrame, ExplainedTriple]:
    """Read one test triple with its training triples; the others are passed over.

    Raises:
        DataError: as `read_influence_json`, or there is no such test triple.
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
    """Write a report, one test triple per line, whole or not at all.

    Raises:
        DataError: a value is not a number or infinite.
    """
    try:
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            frame = _FRAME.dump_python(report)
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
        raise DataError(f"{path}: the report holds a value that JSON cannot: {error}") from None


def _read(path: Path, adapter: TypeAdapter[R]) -> R:
    try:
        return adapter.validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        raise DataError(f"{path}: {_problem(error)}") from None


def _problem(error: ValidationError) -> str:
    """Say what makes a file no report."""
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
            return f"no test triple {problems[-1]['loc'][1]}; it has {first['loc'][1]}"
        return f"{first['loc'][-1]!r} is missing; expected schema 1 or 2"
    return f"a value of the wrong kind ({described(error)}); expected schema 1 or 2"
