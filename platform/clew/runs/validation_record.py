"""Records of how well a model's influence scores predict the effect of retraining.

`clew validate-influence` writes a record as `validation/validation.json` of a run of kind
`validate`. Every explanation says with `label_of` whether its scores were tested, and with what
result. This module does not need torch.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clew.config.services import Question, TestLoss
from clew.errors import counted
from clew.runs.influence_forms import form_of

SIBLINGS = "siblings"
BASELINES = {
    SIBLINGS: "counting siblings",
    "touching": "touching an end of the triple",
    "adamic_adar": "shared neighbours (Adamic-Adar)",
    "random": "random numbers",
}
"""What forms of score are compared with, in words."""
Seeds = Literal["same", "other"]
FormName = Annotated[str, Field(pattern="^[a-z_]+$")]
FEWEST_SUBSETS = 10
FEWEST_TESTS = 10
WIDEST = 0.15
"""Largest half-width of a correlation's interval with which a test says something."""
ONLY_TESTED: Mapping[str, tuple[object, ...]] = {
    "use_last_layers_only": (False,),
    "use_mixed_precision": (False,),
    "tuning_epochs": (None,),
    "tuning_learning_rate": (None,),
    "tuning_seeds": (None, 2),
}
"""Settings that no option of `clew validate-influence` chooses, with the values that it tests."""


class StrictRecord(BaseModel):
    """A part of a JSON file, which holds nothing else and does not change."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Recipe(StrictRecord):
    """How a finished model is trained on; the rest is as in its own training."""

    epochs: int
    learning_rate: float


class Measured(StrictRecord):
    """A mean, and the half-width of its 95 % interval.

    That of a correlation or a factor is over test triples and subsets; else it is Student's t over
    test triples.
    """

    mean: float
    half_width: float | None
    """None for a single test triple or subset."""

    def above(self, value: float) -> bool:
        """Return whether the whole interval lies above a value; False without an interval."""
        return self.half_width is not None and self.mean - self.half_width > value

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + ("" if self.half_width is None else f" ± {self.half_width:.3f}")


class ScoreSettings(StrictRecord):
    """What changes scores besides their form: a test counts only for exactly these settings."""

    direction: Question
    test_loss: TestLoss
    precision: str
    num_last_layers: int | None
    """None: all layers."""
    checkpoints: tuple[tuple[int, float], ...]
    """Step and weight of each."""
    tuning: Recipe | None = None
    """Of tuned scores, with the number of fine-tunings; None if the form is not tuned."""
    tuning_seeds: int | None = None
    first_tuning_seed: int | None = None

    @classmethod
    def of_report(
        cls, settings: Mapping[str, Any], checkpoints: Iterable[tuple[int, float]]
    ) -> "ScoreSettings | None":
        """Return those of a report; None for the settings of another version."""
        some = settings.get("use_last_layers_only")
        try:
            return cls(
                direction=settings["direction"],
                test_loss=settings["test_loss"],
                precision=settings["precision"],
                num_last_layers=settings["num_last_layers"] if some else None,
                checkpoints=tuple(checkpoints),
                tuning=settings.get("tuning"),
                tuning_seeds=settings["tuning_seeds"] if "tuning" in settings else None,
                first_tuning_seed=settings.get("first_tuning_seed"),
            )
        except (KeyError, ValidationError):
            return None


class DatamodellingScore(StrictRecord):
    """Rank correlation of a form's summed scores with the effect of leaving out random subsets."""

    form: FormName
    drop: float
    """Share of the facts that each retraining leaves out."""
    seeds: Seeds
    """Retraining with the run's own seed (`same`), or the mean over other seeds (`other`)."""
    correlation: Measured
    over_baseline: Measured | None = None
    """Difference to the strongest baseline's correlation on the same test triples and subsets."""


class Ceiling(StrictRecord):
    """The correlation of perfect scores with this number of other seeds; None with too few."""

    drop: float
    correlation: float | None


class DeletionEffect(StrictRecord):
    """Effect of deleting the strongest facts, compared with no deletion and the same seeds."""

    form: FormName
    num_facts: int
    """Number of facts deleted for each test triple."""
    log_probability: Measured
    """Decrease of the answer's log-probability; the mean of both answers if both are explained."""
    reciprocal_rank: Measured
    """Decrease of the answer's reciprocal rank."""
    for_each_unit: Measured | None = None
    """Decrease of the log-probability for each unit of the deleted facts' summed score."""


class ValidationSummary(StrictRecord):
    """Short result of the test of one form of score, to keep with an explanation."""

    run_id: str
    score: DatamodellingScore | None = None
    """None if the test had other forms."""
    baseline: DatamodellingScore | None = None
    """The strongest baseline that was measured, by its correlation."""
    num_tests: int = 0
    num_subsets: int = 0
    num_other_seeds: int = 0
    """0: the test trained with the run's own seed, so it is about this run only."""
    ceiling: float | None = None
    deletion: DeletionEffect | None = None
    """That of the fewest facts whose scores have a unit; None: too little was deleted."""

    @property
    def counts(self) -> bool:
        """Whether the test is large enough to say something."""
        width = None if self.score is None else self.score.correlation.half_width
        enough = self.num_subsets >= FEWEST_SUBSETS and self.num_tests >= FEWEST_TESTS
        return enough and width is not None and width <= WIDEST


Verdict = Literal[
    "not tested", "too few to say", "no better than chance", "worse", "alike", "better"
]


@dataclass(frozen=True)
class Label:
    """Whether scores predict training without facts, as far as it was tested."""

    verdict: Verdict
    """`better`, `alike` and `worse` compare with the strongest baseline that was measured."""
    sentence: str
    fall: Measured | None = None
    """Expected fall of the answer's log-probability without facts, for each unit of their summed
    score; None: not known."""


def label_of(
    found: ValidationSummary | None, settings: Mapping[str, Any], model: str | None
) -> Label:
    """Return the label of an explanation.

    Args:
        found: Test of exactly these settings; None: there was none.
        settings: Settings of the explanation, form included; empty if a file does not have them.
        model: The explained model, as a command takes it; None for text and frames.
    """
    form = form_of(settings).key
    if found is None or found.score is None or found.baseline is None:
        said = f"Not tested: whether {form} scores with these settings predict training without "
        said += f"the examples ({_test_of(form, settings, model)})."
        unknown = "Not known whether it was tested: the file does not say which scores these are."
        return Label("not tested", said if form else unknown)
    score, baseline, seeds = found.score, found.baseline, found.num_other_seeds
    about = f"the data ({seeds} other seed{'s' * (seeds > 1)})" if seeds else "this run (own seed)"
    extent = (
        f"{found.num_subsets} subsets without {100 * score.drop:.3g}% of the facts, "
        f"{found.num_tests} test triples"
    )
    if not found.counts:
        return Label(
            "too few to say",
            f"Too few to say: {form} was tested about {about} with {extent}, rank correlation "
            f"{_with_interval(score.correlation)}; a test needs {FEWEST_SUBSETS} subsets, "
            f"{FEWEST_TESTS} test triples and an interval of ± {_short(WIDEST)} "
            f"({_test_of(form, settings, model)}).",
        )
    reached, more = score.correlation, score.over_baseline or baseline.correlation
    verdict: Verdict = "alike"
    if not reached.above(0.0):
        verdict = "no better than chance"
    elif more.above(0.0):
        verdict = "better"
    elif Measured(mean=-more.mean, half_width=more.half_width).above(0.0):
        verdict = "worse"
    said = {"alike": "not clearly better"}.get(verdict, verdict)
    compared = "" if verdict == "no better than chance" else " than the strongest baseline"
    unit = "expected fall of the log-probability not known"
    fall = found.deletion.for_each_unit if found.deletion else None
    if found.deletion and fall:
        facts = counted(found.deletion.num_facts, "fact")
        size = f"{fall.mean:.2g} ± {fall.half_width:.1g} for each unit of score ({facts} deleted)"
        unit = f"expected fall of the log-probability {size}"
    ceiling = "" if found.ceiling is None else f"; ceiling {_short(found.ceiling)}"
    return Label(
        verdict,
        f"Tested about {about}: {form} predicts retraining {said}{compared}, rank correlation "
        f"{_with_interval(reached)} against {_short(baseline.correlation.mean)} by "
        f"{BASELINES.get(baseline.form, baseline.form)} (difference {_with_interval(more)}"
        f"{ceiling}); {extent}, intervals over both; {unit}.",
        fall,
    )


def _test_of(form: str, settings: Mapping[str, Any], model: str | None) -> str:
    """Return the command that tests such scores, or that there is none."""
    if model is None:
        return "no command tests text and frames yet"
    if any(settings.get(name, given[0]) not in given for name, given in ONLY_TESTED.items()):
        return "no option of clew validate-influence chooses their layers, precision or fine-tuning"
    command = f"clew validate-influence --model {model or 'RUN'}"
    for name, default in (("direction", "tail"), ("test_loss", "trained")):
        if (asked := settings.get(name, default)) != default:
            command += f" --{name.replace('_', '-')} {asked}"
    return command + f" --scores {form}" * (form in {"unrolled", "tuned"})


class ValidationRecord(StrictRecord):
    """The complete result of a test of explanations."""

    schema_version: Literal[1] = 1
    source_run: str
    ensemble: tuple[str, ...] = ()
    """Runs whose scores were averaged, including the source run; empty for a single run."""
    direction: Question = "both"
    """The question that the scores explain."""
    test_loss: TestLoss = "trained"
    """The loss of that question that the scores explain."""
    settings: ScoreSettings | None = None
    """Settings of the scores; None if they are not known, and then no explanation counts it."""
    data_fingerprint: str
    config_hash: str
    num_tests: int
    num_subsets: int
    num_other_seeds: int
    num_retrainings: int
    num_deletions: int = 0
    """Number of test triples whose strongest facts were deleted."""
    largest_difference: float
    """Largest difference of log-probabilities between the run and a retraining on all facts."""
    scores: tuple[DatamodellingScore, ...]
    ceilings: tuple[Ceiling, ...] = Field(min_length=1)
    deletions: tuple[DeletionEffect, ...]

    @property
    def drop(self) -> float:
        return max(ceiling.drop for ceiling in self.ceilings)

    def score(self, form: str, seeds: Seeds) -> DatamodellingScore | None:
        """Return a form's datamodelling score at the largest share; None if not measured."""
        wanted = (form, seeds, self.drop)
        return next((s for s in self.scores if (s.form, s.seeds, s.drop) == wanted), None)

    def summary(self, form: str, run_id: str) -> ValidationSummary:
        """Return the short result of one form of score."""
        enough = self.num_deletions >= FEWEST_TESTS
        tried = [d for d in self.deletions if enough and d.form == form]
        own = [d for d in tried if d.for_each_unit and d.for_each_unit.above(0.0)]
        seeds: Seeds = "other" if self.num_other_seeds else "same"
        baselines = [found for name in BASELINES if (found := self.score(name, seeds))]
        return ValidationSummary(
            run_id=run_id,
            score=self.score(form, seeds),
            baseline=max(baselines, key=lambda score: score.correlation.mean, default=None),
            num_tests=self.num_tests,
            num_subsets=self.num_subsets,
            num_other_seeds=self.num_other_seeds,
            ceiling=next(c.correlation for c in self.ceilings if c.drop == self.drop),
            deletion=min(own, key=lambda effect: effect.num_facts, default=None),
        )

    def fall(self, form: str) -> float | None:
        """Return the mean fall of log-probability with the most facts deleted, if measured."""
        effects = [effect for effect in self.deletions if effect.form == form]
        most = max(effects, key=lambda effect: effect.num_facts, default=None)
        return None if most is None else most.log_probability.mean

    def labels(self) -> list[str]:
        """Return a sentence on each form of score that was tested."""
        forms = dict.fromkeys(s.form for s in self.scores if s.form not in BASELINES)
        model, asked = ",".join(self.ensemble) or self.source_run, vars(self)
        return [label_of(self.summary(f, ""), asked | {"score": f}, model).sentence for f in forms]

    def markdown(self) -> Iterator[str]:
        """Yield lines of Markdown: a table of datamodelling scores and, if any, of deletions."""
        columns = list(dict.fromkeys((s.drop, s.seeds) for s in self.scores))
        said = [f"{100 * d:.3g}% dropped, {of} seed{'s' * (of == 'other')}" for d, of in columns]
        yield from _head("form", said)
        found = {
            (s.form, s.drop, s.seeds): f"{s.correlation}"
            + (f" ({s.over_baseline})" if s.over_baseline else "")
            for s in self.scores
        }
        for form in dict.fromkeys(s.form for s in self.scores):
            yield _row(form, [found[form, *column] for column in columns])
        known = {(c.drop, "other"): c.correlation for c in self.ceilings}
        shown = [known.get(column) for column in columns]
        if any(each is not None for each in known.values()):
            yield _row("ceiling", ["" if each is None else f"{each:.3f}" for each in shown])
        else:
            yield from ("", "A ceiling needs at least two other seeds.")
        if not self.deletions:
            return
        numbers = sorted({effect.num_facts for effect in self.deletions})
        yield from ("", f"Deletions, for {self.num_deletions} test triples ranked first:")
        yield ""
        of = "deleted: fall of log-probability [nats] (1 / rank)"
        yield from _head("strongest of", [f"{number} {of}" for number in numbers])
        effects = {(e.form, e.num_facts): e for e in self.deletions}
        for form in dict.fromkeys(effect.form for effect in self.deletions):
            own = [effects[form, number] for number in numbers]
            yield _row(form, [f"{e.log_probability} ({e.reciprocal_rank})" for e in own])


def _head(first: str, columns: list[str]) -> Iterator[str]:
    yield _row(first, columns)
    yield "|---" * (len(columns) + 1) + "|"


def _row(first: str, cells: list[str]) -> str:
    return f"| {first} | {' | '.join(cells)} |"


def _short(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"  # + 0.0: no -0.00


def _with_interval(found: Measured) -> str:
    return f"{_short(found.mean)} ± {'?' if found.half_width is None else _short(found.half_width)}"
