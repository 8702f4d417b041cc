"""Data models of an influence report's JSON file.

The JSON file of a `tracin` or `batch_tracin` run has, for each test triple, the score, the rank and
the strongest proponents and opponents. The influence engine writes the file with these models, and
the dashboard reads it with them. The columns of the tables next to the file are in
`influence_forms`. This module does not need torch.

`id` is the name in the data files (`/m/027rn`, `DB00001`, `enzyme`), and `label` is the readable
name; they are equal if a data set has no labels.
"""

import json
import operator
from collections.abc import Collection
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import GetPydanticSchema, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import core_schema

from clew.errors import DataError, counted, described, quoted
from clew.files import replacing
from clew.names import model_notes
from clew.runs import influence_forms as forms
from clew.runs.validation_record import Label, ValidationSummary, label_of

R = TypeVar("R")
SIGN_CONVENTION = "positive scores lower the test triple's loss (proponents)"

CONVE_PARTS = ("entity_output", "entity_cross", "entity_input", "relation", "dense", "convolution")
"""Parts of ConvE in `by_part`, in this order: scorer; scorer x lookup of the shared entity table;
lookup of the head; lookup of the relation; fully connected layer; convolution with all
normalisations."""


@dataclass(frozen=True, slots=True)
class Term:
    """An entity or a relation."""

    id: str
    label: str

    def told(self, shared: Collection[str]) -> str:
        """Return the label, with the id if it is one of those that several terms share."""
        return f"{self.label} ({self.id})" if self.label in shared else self.label


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
    counterpart: Literal["inverse", "duplicate"] | None = None
    """What the fact is of the test triple, by the pairs of relations that say the same."""


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
    untrained: tuple[str, ...] | None = field(default=None, kw_only=True)
    """Labels of the ends that no training triple has, if there are any."""


@dataclass(frozen=True, slots=True)
class PathStep:
    """A training triple between two entities of a path that are next to each other."""

    train: TripleRecord
    train_index: int
    influence: float | None = None
    """In the form of the report; None if this form gives scores to the listed triples only."""
    runs_agreeing: int | None = None
    """As of an `InfluenceEntry`."""


@dataclass(frozen=True, slots=True)
class PathRecord:
    """A path through the training graph from the head of a test triple to its tail.

    `steps` has, for each two entities next to each other, the training triples between them, the
    strongest first, and `counts` how many there are in the graph: a step can hold fewer of them.
    `cost` is smaller for a path of fewer steps through entities with fewer facts.
    """

    cost: float
    steps: tuple[tuple[PathStep, ...], ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        counts, held = self.counts, [*map(len, self.steps)]
        if len(counts) != len(held) or any(map(operator.lt, counts, held)) or not all(held):
            raise ValueError(f"counts {counts} of a path whose steps hold {held} facts")

    def chain(self, head: Term, shared: Collection[str] = ()) -> str:
        """Return the path in one line from `head` on; an arrow points to the tail of a fact."""
        here, text = head, head.told(shared)
        for facts, count in zip(self.steps, self.counts, strict=True):
            fact = facts[0].train
            forward = fact.head == here
            here = fact.tail if forward else fact.head
            more = f" (+{count - 1:,})" if count > 1 else ""
            relation = f"{fact.relation.label}{more}"
            end = here.told(shared)
            text += f" —{relation}→ {end}" if forward else f" ←{relation}— {end}"
        return text


@dataclass(frozen=True, slots=True)
class FoundPaths:
    """The cheapest paths of a test triple; there is none if `paths` is empty.

    All training triples except the test triple were searched for paths of up to `max_steps` steps.
    At most `limit` paths are kept. `max_steps` is 0 if head and tail are the same entity.
    """

    max_steps: int
    limit: int
    paths: tuple[PathRecord, ...]

    @property
    def sentence(self) -> str:
        """Return how many paths there are, and what was searched."""
        if not self.max_steps:
            return "Paths are between two different entities, so none was searched."
        searched = f"of up to {self.max_steps} training facts"
        if not self.paths:
            return f"No path {searched} connects the two ends; all training facts were searched."
        if len(self.paths) == self.limit:
            return f"The {self.limit} most specific paths {searched}:"
        return f"{counted(len(self.paths), 'path')} {searched}, the most specific first:"


@dataclass(frozen=True, slots=True)
class ExplainedTriple(ScoredTriple):
    """One test triple, and the training triples with the strongest influence on it."""

    proponents: tuple[InfluenceEntry, ...] = ()
    opponents: tuple[InfluenceEntry, ...] = ()
    paths: FoundPaths | None = None
    """None: no paths were searched, as in the reports of the first version of the schema."""


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

    @property
    def reference(self) -> str:
        """The model as a command takes it."""
        return ",".join(self.runs) or self.run_id


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
    """Test of these scores, made before them; None if there was none."""

    @property
    def form(self) -> forms.Form:
        return forms.form_of(self.settings)

    def notes(self) -> list[str]:
        """Return notes on the scores: what they do not describe."""
        return model_notes(self.settings)

    @property
    def label(self) -> Label:
        """Whether the scores predict training without facts, as far as that was tested."""
        return label_of(self.validation, self.settings, self.model.reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluenceReport(ReportFrame):
    """The whole JSON file."""

    tests: tuple[ExplainedTriple, ...]

    def is_disputed(self, entry: InfluenceEntry) -> bool:
        """Whether a run of the ensemble gives a fact another sign than the mean has."""
        return entry.runs_agreeing is not None and entry.runs_agreeing < len(self.model.runs)

    @property
    def agreement(self) -> list[str]:
        """A sentence on how far the runs of an ensemble agree on the listed facts."""
        listed = [entry for test in self.tests for entry in (*test.proponents, *test.opponents)]
        disputed = sum(map(self.is_disputed, listed))
        return forms.agreement_sentence(len(self.model.runs), len(listed), disputed)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOutline(ReportFrame):
    """The JSON file without its training triples."""

    tests: tuple[ScoredTriple, ...]


_FRAME = TypeAdapter(ReportFrame)
_LABEL = TypeAdapter(Label)
_TEST = TypeAdapter(ExplainedTriple)
_REPORT = TypeAdapter(InfluenceReport)
_OUTLINE = TypeAdapter(ReportOutline)


def read_influence_json(path: Path) -> InfluenceReport:
    return read_report(path, _REPORT)


def read_influence_outline(path: Path) -> ReportOutline:
    """Read a report without its training triples, which are most of a large file."""
    return read_report(path, _OUTLINE)


def read_explained_triple(path: Path, index: int) -> tuple[ReportFrame, ExplainedTriple]:
    """Read one test triple with its training triples, and skip all other test triples."""
    passed_over = core_schema.typed_dict_schema({})

    def only_one(_: object, handler: Any) -> core_schema.CoreSchema:
        items = [passed_over] * index + [handler.generate_schema(ExplainedTriple), passed_over]
        return core_schema.tuple_schema(items, variadic_item_index=index + 1)

    @dataclass(frozen=True, slots=True, kw_only=True)
    class OneOfReport(ReportFrame):
        tests: Annotated[tuple[Any, ...], GetPydanticSchema(only_one)]

    report = read_report(path, TypeAdapter(OneOfReport))
    return report, report.tests[index]


def write_influence_json(report: InfluenceReport, path: Path) -> None:
    """Write a report with one test triple per line, completely or not at all."""
    try:
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            frame = _FRAME.dump_python(report)
            frame["form"] = report.form.as_dict()
            frame["label"] = _LABEL.dump_python(report.label)
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


def read_report(
    path: Path,
    adapter: TypeAdapter[R],
    expected: str = "an influence report",
    versions: str = "1 and 2",
) -> R:
    """Read a file; what is `expected`, in which `versions`, is for the message."""
    try:
        return adapter.validate_json(path.read_bytes())
    except OSError as error:
        reason = described(error)
    except ValidationError as error:
        reason, problems = described(error), error.errors(include_url=False)
        place = problems[0]["loc"]
        if problems[0]["type"] == "missing" and place[:-1] == ("tests",):
            reason = f"no test triple {problems[-1]['loc'][1]}; the report has {place[1]}"
        for problem in problems:
            if problem["loc"] == ("schema_version",):
                reason = (
                    f"schema_version is {quoted(problem['input'])}, this version of Clew reads "
                    f"{versions}; write the file again or use the matching version"
                )
    raise DataError(f"{path}: cannot be read as {expected} ({reason})")
