"""Records of what happened to an explained answer when facts were taken away.

`clew verify` writes one into the run of the explanation, and how well its fine-tuning agrees with
whole retraining into the run of the model. This module does not need torch.
"""

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

from clew.config.services import Question
from clew.errors import counted
from clew.files import write_whole
from clew.runs.influence_report import TripleRecord
from clew.runs.reading.facts import rank_text
from clew.runs.reading.runs import keep_folder, list_artifacts, read_record
from clew.runs.validation_record import Measured, Recipe, StrictRecord

Kind = Literal["strongest", "siblings", "touching"]
Names = tuple[str, str, str]
MIN_TESTS = 3
"""Number of explained triples from which on the size of effects is corrected."""
MOST_SHOWN = 4
NOT_COMPARED = "On this model it was not compared with whole retraining"
SCALE = (
    "Ranks leave out other answers known in any split; probabilities are among all entities, not "
    "calibrated."
)
CALLED: dict[Kind, tuple[str, str]] = {
    "strongest": ("its strongest fact", "its {} strongest facts"),
    "siblings": ("a sibling", "{} siblings (same relation and head or tail)"),
    "touching": ("a random fact that touches head or tail", "{} random facts that touch an end"),
}
ALL_CALLED: dict[Kind, tuple[str, str]] = {
    "siblings": (
        "its only other sibling",
        "all {} other siblings (same relation and head or tail)",
    ),
    "touching": ("the only other fact that touches an end", "all {} other facts that touch an end"),
}
"""Controls that are no random part. They never hold the triple or one of its strongest facts."""


def names_of(triple: TripleRecord) -> Names:
    """Return a triple by its names in the data."""
    return triple.head.id, triple.relation.id, triple.tail.id


class _Record(StrictRecord):
    FILE: ClassVar[str]
    """Where a run keeps it."""


class Answer(_Record):
    """Filtered rank and log-probability (softmax over all entities), as means over seeds."""

    rank: float
    log_probability: float


class Effect(_Record):
    """An answer after training without facts, against the same run with all facts."""

    before: Answer
    after: Answer
    fall: Measured
    """Fall of the log-probability, with an interval over seeds."""


class Removal(_Record):
    """A group of facts that was taken away."""

    kind: Kind
    facts: tuple[int, ...]
    """Their places among the training triples."""
    tuned: Effect
    whole: Effect | None = None
    drawn_from: int | None = None
    """Number of facts of which a control is a random part, or all; None if it is not known."""
    others: int = 0
    """Number of facts of other explanations that were taken away in the same fine-tuning."""

    @property
    def named(self) -> str:
        is_all = self.drawn_from == len(self.facts)
        one, several = (ALL_CALLED if is_all else CALLED)[self.kind]
        return one if len(self.facts) == 1 else several.format(len(self.facts))


class Pair(_Record):
    """The falls that one group caused by both ways of training."""

    test: Names
    facts: tuple[int, ...]
    tuned: float
    whole: float


class Agreement(_Record):
    """How well falls by fine-tuning predict those by whole retraining, on one model."""

    FILE = "verification/agreement.json"

    recipe: Recipe
    pairs: tuple[Pair, ...]
    correlation: float
    factor: float
    """Whole fall for each unit of the fine-tuned one (least squares through zero)."""
    low: float
    high: float

    @property
    def num_tests(self) -> int:
        return len({pair.test for pair in self.pairs})

    @property
    def corrects(self) -> bool:
        """Whether the size of falls is corrected; with few tests the interval says little."""
        return self.num_tests >= MIN_TESTS and self.low > 0

    @property
    def sentence(self) -> str:
        between = f" (95 %: {self.low:.2f} to {self.high:.2f})"
        return (
            f"On this model fine-tuning agreed with whole retraining with a rank correlation of "
            f"{self.correlation:.2f} ({len(self.pairs)} groups of facts of "
            f"{counted(self.num_tests, 'explanation')}); whole effects were {self.factor:.2f} "
            f"times as large{between * (self.num_tests >= MIN_TESTS)}"
        )


class VerifiedTriple(_Record):
    """One explained triple, and what happened to its answer."""

    test: TripleRecord
    direction: Question
    model: Answer
    removals: tuple[Removal, ...]
    scored: int | None = None
    """Number of training facts that the explanation scored; None if it is not known."""

    @property
    def title(self) -> str:
        test = self.test
        return f"{test.head.label} · {test.relation.label} · {test.tail.label}"

    def of(self, kind: Kind) -> Removal | None:
        """Return the largest group of a kind."""
        found = [removal for removal in self.removals if removal.kind == kind]
        return max(found, key=lambda removal: len(removal.facts), default=None)


class Verification(_Record):
    """What happened to the answers of an explanation."""

    FILE = "influence/verification.json"

    schema_version: Literal[1] = 1
    run_id: str
    source_run: str
    """Run of the model."""
    recipe: Recipe
    seeds: int
    runs: int = 1
    """Number of members of an ensemble, over which effects are means."""
    tests: tuple[VerifiedTriple, ...]
    notes: tuple[str, ...] = ()
    """Whether predictions come from other parameters; a report says it of itself."""
    agreement: Agreement | None = None
    earlier: tuple["Verification", ...] = ()
    """Checks of other triples of the report, each with its own seeds and recipe."""

    def beside(self, kept: "Verification | None") -> "Verification":
        """Return this record with what an earlier one has of other triples."""
        seen = {names_of(test.test) for test in self.tests}
        others = []
        for one in (kept, *kept.earlier) if kept else ():
            tests = tuple(test for test in one.tests if names_of(test.test) not in seen)
            others.append(one.model_copy(update={"tests": tests, "earlier": ()}))
        return self.model_copy(update={"earlier": tuple(one for one in others if one.tests)})

    @property
    def is_whole(self) -> bool:
        return any(removal.whole for test in self.tests for removal in test.removals)

    def fall(self, removal: Removal) -> tuple[Effect, Measured]:
        """Return the best known effect: whole, or fine-tuned with its size corrected."""
        effect, scale = removal.whole or removal.tuned, self.agreement
        fall = effect.fall
        if removal.whole is not None or scale is None or not scale.corrects:
            return effect, fall
        half_width = None
        if fall.half_width is not None:
            of_scale = (scale.high - scale.low) / 2 * fall.mean
            half_width = math.hypot(scale.factor * fall.half_width, of_scale)
        return effect, Measured(mean=scale.factor * fall.mean, half_width=half_width)

    def of(self, triple: Sequence[str]) -> "Verification | None":
        """Return what is known of one triple alone; None if nothing is."""
        for one in (self, *self.earlier):
            for test in one.tests:
                if names_of(test.test) == tuple(triple):
                    return one.model_copy(update={"tests": (test,), "earlier": ()})
        return None

    def sentence(self, removal: Removal, named: str = "") -> str:
        """Return what happened without a group of facts, which can be `named` differently."""
        effect, fall = self.fall(removal)
        ranks, log = [effect.before.rank, effect.after.rank], effect.before.log_probability
        rank, later = map(rank_text, ranks)
        moved = f"{'falls' if ranks[1] > ranks[0] else 'rises'} from rank {rank} to {later}"
        if rank == later:
            moved = f"stays at rank {rank}"
        both_ends = any(test.direction == "both" for test in self.tests)
        if both_ends or self.seeds > 1 or (self.runs > 1 and not self.is_whole):
            moved += " on average"
        between, width = "", fall.half_width
        if width is not None:
            low, high = (_percent(log - fall.mean + change) for change in (-width, width))
            between = f", 95 %: {low} to {high}"
        after = f"{_percent(log - fall.mean)} %{between}"
        named = named or removal.named
        return f"Without {named} the answer {moved} (probability {_percent(log)} % to {after})."

    def verdict(self, test: VerifiedTriple) -> str:
        """Return whether the strongest facts matter more than other facts near the triple.

        It is open if less than half as many others are left as were taken away: fewer facts cost
        less, whichever they are.
        """
        strongest, chance = test.of("strongest"), test.of("touching")
        if strongest is None:
            which = "no scored fact"
            if test.scored is not None:
                which = f"none of the {counted(test.scored, 'scored fact')}"
            return f"Nothing to compare: {which} raised the answer."
        if chance is None or 2 * len(chance.facts) < len(strongest.facts):
            left = counted(len(chance.facts) if chance else 0, "other fact")
            return f"Open: {left} at its ends, too few to compare with {strongest.named}."
        (_, found), (_, by_chance) = self.fall(strongest), self.fall(chance)
        more = found.mean - by_chance.mean
        width = math.hypot(found.half_width or 0.0, by_chance.half_width or 0.0)
        said = f"{strongest.named} cost {more:+.2f} more log-probability than {chance.named}"
        if found.half_width is None:
            return f"No interval (one seed): {said}."
        outcome = "Confirmed" if more > width else "Contradicted" if more < -width else "Open"
        how = "" if self.is_whole else " by fine-tuning"
        return f"{outcome}{how}: {said} (± {width:.2f})."

    @property
    def method(self) -> str:
        """How it was found, and how well that is known to agree with whole retraining."""
        known = self.agreement.sentence if self.agreement else NOT_COMPARED
        if self.is_whole:
            how, about = "Each model was trained again", "the data; intervals are over seeds alone"
        else:
            epochs, rate = counted(self.recipe.epochs, "more epoch"), self.recipe.learning_rate
            how = f"The finished model was trained for {epochs} at a rate of {rate:.2g}"
            corrected = self.agreement is not None and self.agreement.corrects
            known += f"; sizes are {'corrected by it, ranks not' if corrected else 'not corrected'}"
            over = "seeds and the factor below" if corrected else "seeds alone"
            about = f"{'this run' if self.runs == 1 else 'these runs'}; intervals are over {over}"
        of_each = f" for each of {self.runs} runs" * (self.runs > 1 and not self.is_whole)
        said = f"{how} without the facts, and compared with the same on all facts: "
        said += f"{counted(self.seeds, 'seed')}{of_each}. {SCALE}"
        if any(removal.others for test in self.tests for removal in test.removals):
            said += " Explanations whose ends are apart shared fine-tunings."
        return f"{said} This is about {about}. {known}."

    @property
    def said(self) -> tuple[str, ...]:
        """What happened to the first triple in sentences, the verdict first."""
        return tuple(self.lines(self.tests[0]))

    def heading(self, test: VerifiedTriple) -> str:
        """Return what the model itself answers; the ranks of `lines` are of models trained on."""
        asked = "the ends have" if test.direction == "both" else f"the {test.direction} has"
        rank, percent = rank_text(test.model.rank), _percent(test.model.log_probability)
        mean = " on average" * (test.direction == "both" or self.runs > 1)
        kind = " (geometric mean)" * bool(mean)
        of = f"{self.runs} models" if self.runs > 1 else "model"
        answer = f"rank {rank}{mean} and probability {percent} %{kind}"
        before = "training again" if self.is_whole else "fine-tuning"
        return f"{test.title}: {asked} {answer} in the {of}, before {before}"

    def lines(self, test: VerifiedTriple) -> Iterator[str]:
        yield self.verdict(test)
        yield from (self.sentence(removal) for removal in test.removals)
        yield self.method

    def __str__(self) -> str:
        if len(self.tests) == 1:
            (test,) = self.tests
            return "\n".join([self.heading(test), *self.lines(test), *self.notes])
        shown = [f"{test.title}: {self.verdict(test)}" for test in self.tests[:MOST_SHOWN]]
        outcomes = [self.verdict(test).partition(":")[0] for test in self.tests]
        counts = ", ".join(f"{outcomes.count(o)} {o.lower()}" for o in dict.fromkeys(outcomes))
        said = [*shown, f"Of {len(self.tests)} explanations: {counts}.", self.method]
        return "\n".join([*said, *self.notes])

    def _repr_html_(self) -> str:
        said = ["\n".join([test.title, *self.lines(test)]) for test in self.tests]
        return html.escape("\n\n".join([*said, *self.notes])).replace("\n", "<br>")


def marked_in(checked: Verification | None, drawn: Iterable[int]) -> tuple[set[int], str]:
    """Return which drawn facts were taken away together, and what happened to the first triple.

    Of the groups of strongest facts, it is the one that is drawn most completely, and of several
    the largest. Without a check, both are empty.
    """
    facts, every = set(drawn), checked.tests[0].removals if checked else ()
    groups = [(len(facts.intersection(one.facts)) / len(one.facts), one) for one in every]
    groups = [(share, one) for share, one in groups if one.kind == "strongest"]
    if checked is None or not groups:
        return set(), ""
    share, best = max(groups, key=lambda pair: (pair[0], len(pair[1].facts)))
    found = facts.intersection(best.facts)
    named = f"{best.named} ({len(found) or 'none'} drawn and marked)"
    if share == 1:
        named = f"the {len(found)} marked facts" if len(found) > 1 else "the marked fact"
    how = "training again from the start" if checked.is_whole else "fine-tuning"
    return found, f"{checked.sentence(best, named)} Found by {how}."


def _percent(log_probability: float) -> str:
    percent = 100 * math.exp(min(0.0, log_probability))
    if 10 <= percent < 99:
        return f"{percent:.0f}"
    return f"{percent:.2g}" if percent < 10 else f"{math.floor(100 * percent) / 100:g}"


R = TypeVar("R", bound=_Record)


def read_kept(kind: type[R], run_id: str) -> R | None:
    """Return what a run keeps of a kind; None if it keeps nothing."""
    folder, _, name = kind.FILE.partition("/")
    is_kept = name in list_artifacts(run_id, folder)
    return read_record(run_id, kind.FILE, kind, "a result of clew verify") if is_kept else None


def keep(record: Verification | Agreement, run_id: str, work: Path) -> None:
    """Keep a record with the run of an explanation or of a model.

    The pictures of checked explanations are drawn again, now with what was found.
    """
    path = work / record.FILE
    write_whole(path, record.model_dump_json(indent=1) + "\n")
    keep_folder(run_id, path.parent, path.parent.name)
    if isinstance(record, Verification):
        from clew.runs.reading.explanation import redraw

        redraw(record, work)
