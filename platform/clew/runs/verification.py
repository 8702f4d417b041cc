"""Records of what happened to an explained answer when facts were taken away.

`clew verify` writes `influence/verification.json` into the run of the explanation. How well its
fine-tuning agrees with whole retraining is kept with the run of the model. No torch here.
"""

import html
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from clew import names
from clew.config.services import Question
from clew.errors import DataError, described
from clew.files import write_whole
from clew.runs.influence_report import TripleRecord
from clew.runs.reading.runs import fetched, keep_folder, list_artifacts
from clew.runs.validation_record import Measured

Kind = Literal["strongest", "siblings", "touching"]
MIN_TESTS = 3
"""Number of explained triples from which on a size factor is used."""
MOST_SHOWN = 4
SHOWN_PERCENT = 10
CALLED: dict[Kind, tuple[str, str]] = {
    "strongest": ("its strongest fact", "its {} strongest facts"),
    "siblings": ("its only sibling", "{} siblings (same relation and head or tail)"),
    "touching": ("a random fact that touches head or tail", "{} random facts that touch an end"),
}


def names_of(triple: TripleRecord) -> tuple[str, str, str]:
    """Return a triple by its names in the data."""
    return triple.head.id, triple.relation.id, triple.tail.id


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Answer(_Record):
    """The place of an answer: means over the seeds of trainings and, for `both`, over both ends."""

    rank: float
    """Filtered rank; ties count half."""
    log_probability: float
    """Among all entities, by softmax, in nats."""


class Effect(_Record):
    """An answer after training without facts, against the same training with all facts."""

    before: Answer
    after: Answer
    fall: Measured
    """Fall of the log-probability; its interval is over the seeds of this kind of training."""


class Removal(_Record):
    """A group of facts that was taken away."""

    kind: Kind
    facts: tuple[int, ...]
    """Their places among the training triples."""
    tuned: Effect
    """By going on from the finished model."""
    whole: Effect | None = None
    """By training again from the start."""

    @property
    def named(self) -> str:
        one, several = CALLED[self.kind]
        return one if len(self.facts) == 1 else several.format(len(self.facts))


class Recipe(_Record):
    """How a finished model is trained on; the rest is as in its own training."""

    epochs: int
    learning_rate: float


class Agreement(_Record):
    """How well falls by fine-tuning predict those by whole retraining, on one model."""

    correlation: float
    """Spearman's, over all groups of facts."""
    factor: float
    """Whole fall for each unit of the fine-tuned one (least squares through zero)."""
    low: float
    high: float
    num_groups: int
    num_tests: int

    @property
    def corrects(self) -> bool:
        """Whether the size of falls is corrected; with few tests the interval says little."""
        return self.num_tests >= MIN_TESTS and self.low > 0

    @property
    def sentence(self) -> str:
        used = "sizes are corrected by it" if self.corrects else "sizes are not corrected"
        return (
            f"On this model fine-tuning agreed with whole retraining with a rank correlation of "
            f"{self.correlation:.2f} ({self.num_groups} groups of facts, {self.num_tests} "
            f"explanations); whole effects were {self.factor:.2f} times as large (95 %: "
            f"{self.low:.2f} to {self.high:.2f}), {used}."
        )


class Pair(_Record):
    """The falls of one group by both trainings."""

    test: tuple[str, str, str]
    facts: tuple[int, ...]
    tuned: float
    whole: float


class KeptAgreement(_Record):
    """What is kept with the run of a model, for one recipe."""

    schema_version: Literal[1] = 1
    recipe: Recipe
    pairs: tuple[Pair, ...]
    agreement: Agreement


class VerifiedTriple(_Record):
    """One explained triple, and what happened to its answer."""

    test: TripleRecord
    direction: Question
    model: Answer
    """The answer of the model itself."""
    removals: tuple[Removal, ...]

    @property
    def title(self) -> str:
        return " · ".join(
            term.label for term in (self.test.head, self.test.relation, self.test.tail)
        )

    @property
    def names(self) -> tuple[str, str, str]:
        return names_of(self.test)

    def of(self, kind: Kind) -> Removal | None:
        """Return the largest group of a kind."""
        found = [removal for removal in self.removals if removal.kind == kind]
        return max(found, key=lambda removal: len(removal.facts), default=None)


class Verification(_Record):
    """The content of `verification.json`."""

    schema_version: Literal[1] = 1
    source_run: str
    """Run of the model."""
    step: int
    """Optimizer step of the checkpoint."""
    recipe: Recipe
    seeds: int
    tests: tuple[VerifiedTriple, ...]
    agreement: Agreement | None = None

    def fall(self, removal: Removal) -> tuple[Effect, Measured]:
        """Return the best known effect: whole, or fine-tuned with its size corrected."""
        if removal.whole is not None:
            return removal.whole, removal.whole.fall
        fall, scale = removal.tuned.fall, self.agreement
        if scale is None or not scale.corrects:
            return removal.tuned, fall
        half_width = None
        if fall.half_width is not None:
            of_scale = (scale.high - scale.low) / 2 * fall.mean
            half_width = math.hypot(scale.factor * fall.half_width, of_scale)
        return removal.tuned, Measured(mean=scale.factor * fall.mean, half_width=half_width)

    def sentence(self, removal: Removal) -> str:
        """Return what happened without a group of facts."""
        effect, fall = self.fall(removal)
        rank, later = effect.before.rank, effect.after.rank
        moved = f"falls from rank {rank:.3g} to {later:.3g}"
        if rank == later:
            moved = f"stays at rank {rank:.3g}"
        elif later < rank:
            moved = f"rises from rank {rank:.3g} to {later:.3g}"
        log = effect.before.log_probability
        between = ""
        if fall.half_width is not None:
            ends = [_percent(log - fall.mean + sign * fall.half_width) for sign in (-1, 1)]
            between = f", 95 %: {ends[0]} to {ends[1]}"
        return (
            f"Without {removal.named} the answer {moved} (probability {_percent(log)} % to "
            f"{_percent(log - fall.mean)} %{between})."
        )

    def verdict(self, test: VerifiedTriple) -> str:
        """Return whether the strongest facts matter more than random ones near the triple."""
        strongest, chance = test.of("strongest"), test.of("touching")
        if strongest is None:
            return "Nothing to check: the explanation has no fact that made the answer likelier."
        if chance is None:
            return "Not compared: no training fact touches head or tail."
        (_, found), (_, by_chance) = self.fall(strongest), self.fall(chance)
        more = found.mean - by_chance.mean
        width = math.hypot(found.half_width or 0.0, by_chance.half_width or 0.0)
        said = f"{strongest.named} cost {more:+.2f} of log-probability against {chance.named}"
        if found.half_width is None:
            return f"One seed, so without an interval: {said}."
        outcome = "Confirmed" if more > width else "Contradicted" if more < -width else "Open"
        return f"{outcome}: {said} (± {width:.2f})."

    @property
    def method(self) -> str:
        """How it was found, and how well that is known to agree with whole retraining."""
        whole = any(removal.whole for test in self.tests for removal in test.removals)
        how = (
            f"By going on from the finished model for {self.recipe.epochs} epochs at a rate of "
            f"{self.recipe.learning_rate:.2g} without the facts"
        )
        if whole:
            how = "By training again from the start without the facts"
        trust = "; on this model it was not compared with whole retraining."
        if self.agreement is not None:
            trust = f". {self.agreement.sentence}"
        return f"{how}, against the same with all facts, {self.seeds} seeds{trust}"

    def lines(self, test: VerifiedTriple) -> Iterator[str]:
        yield from (self.sentence(removal) for removal in test.removals)
        yield self.verdict(test)
        yield self.method

    def __str__(self) -> str:
        if len(self.tests) == 1:
            (test,) = self.tests
            rank, percent = test.model.rank, _percent(test.model.log_probability)
            asked = "both ends have" if test.direction == "both" else f"the {test.direction} has"
            head = f"{test.title}: {asked} rank {rank:.3g} and probability {percent} % in the model"
            return "\n".join([head, *self.lines(test)])
        shown = [f"{test.title}: {self.verdict(test)}" for test in self.tests[:MOST_SHOWN]]
        if len(self.tests) > MOST_SHOWN:
            shown.append(f"... and {len(self.tests) - MOST_SHOWN} more explanations")
        outcomes = [self.verdict(test).partition(":")[0] for test in self.tests]
        counts = ", ".join(f"{outcomes.count(o)} {o.lower()}" for o in dict.fromkeys(outcomes))
        return "\n".join([*shown, f"Of {len(self.tests)} explanations: {counts}.", self.method])

    def _repr_html_(self) -> str:
        parts = []
        for test in self.tests:
            items = "".join(f"<li>{html.escape(line)}</li>" for line in self.lines(test))
            parts.append(f"<h4>{html.escape(test.title)}</h4><ul>{items}</ul>")
        return "".join(parts)

    def about(self, triple: Sequence[str]) -> VerifiedTriple | None:
        """Return what is known of a triple, which is given by its names in the data."""
        return next((test for test in self.tests if test.names == tuple(triple)), None)


def said_of(found: Verification | None, triple: Sequence[str]) -> tuple[str, ...]:
    """Return what is known of a triple in sentences; empty if it was not verified."""
    test = None if found is None else found.about(triple)
    return () if found is None or test is None else tuple(found.lines(test))


def _percent(log_probability: float) -> str:
    percent = 100 * math.exp(min(0.0, log_probability))
    return f"{percent:.0f}" if percent >= SHOWN_PERCENT else f"{percent:.2g}"


R = TypeVar("R", bound=_Record)


def read_verification(run_id: str) -> Verification | None:
    """Return what was verified of an explanation; None if nothing was."""
    return _read(run_id, names.ARTIFACT_INFLUENCE, names.VERIFICATION_JSON, Verification)


def read_agreement(run_id: str) -> KeptAgreement | None:
    """Return the agreement that is kept with the run of a model; None if there is none."""
    return _read(run_id, names.ARTIFACT_VERIFICATION, names.AGREEMENT_JSON, KeptAgreement)


def _read(run_id: str, folder: str, name: str, kind: type[R]) -> R | None:
    if name not in list_artifacts(run_id, folder):
        return None
    with fetched(run_id, f"{folder}/{name}") as path:
        try:
            return kind.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise DataError(f"run {run_id}: {folder}/{name}: {described(error)}") from None


def keep(run_id: str, record: Verification | KeptAgreement, work: Path) -> None:
    """Keep a record with the run of an explanation or of a model."""
    folder, name = names.ARTIFACT_INFLUENCE, names.VERIFICATION_JSON
    if isinstance(record, KeptAgreement):
        folder, name = names.ARTIFACT_VERIFICATION, names.AGREEMENT_JSON
    write_whole(work / folder / name, record.model_dump_json(indent=1) + "\n")
    keep_folder(run_id, work / folder, folder)
