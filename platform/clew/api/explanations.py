"""`clew.attribute`: the training examples behind a prediction, as tables and as a chart.

`clew.value_facts`: the effect of each training fact on the total loss of many predictions.
"""

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import Field, SkipValidation
from tqdm import tqdm

from clew.api.arguments import Count, Triple, checked, named_triples
from clew.api.models import AnyModel, Model, reference_of
from clew.config.load import full_settings
from clew.config.services import Question, ValueRequest
from clew.errors import ConfigError, extra, quoted
from clew.link_prediction.triples import HEAD, RELATION, TAIL
from clew.runs.influence_forms import AGREEING_COLUMN, SPLIT, Form
from clew.runs.influence_report import InfluenceReport, TripleRecord
from clew.runs.reading.picture import PLAIN
from clew.runs.verification import Verification
from clew.runs.window_report import SequenceInfluenceReport, WindowReport, numbers_of
from clew.workflows.explaining.members import Progress
from clew.workflows.explaining.trace_windows import trace_sequences, trace_texts
from clew.workflows.explaining.tracin import in_words, tracin
from clew.workflows.explaining.value_facts import FactValues
from clew.workflows.explaining.value_facts import value_facts as value_all
from clew.workflows.predict_windows import Text

if TYPE_CHECKING:
    from clew.api.charts import Chart

SHOWN_ROWS = 10
Report = InfluenceReport | WindowReport[Any]


@dataclass(frozen=True)
class Attribution:
    """An explanation: the training examples that influenced a prediction most.

    A row is a training fact for graphs, and a training window for text and image sequences.
    Examples that made the explained prediction more likely are its *proponents*; examples that made
    it less likely are its *opponents*. `influence` is in the form that `form` names, with its unit:
    by default, for most graph models, `kronecker`, the inner product of whitened gradients divided
    by the length of the example's own. It has no unit, so compare it only within one prediction.

    The arithmetic is exact. What a score says about training without an example is an estimate;
    `report.label` says whether it was tested for this form and model, and with what result.
    """

    report: Report = field(repr=False)
    """The complete explanation, as it is recorded."""
    run_id: str | None
    """Id of the run, of kind `trace`, that records the explanation; None if it is not recorded."""
    _frame: pd.DataFrame = field(repr=False)

    @property
    def form(self) -> Form:
        """Name (`key`), `unit` and `meaning` of the numbers in the column `influence`."""
        return self.report.form

    @property
    def proponents(self) -> pd.DataFrame:
        """Examples with a positive influence, the strongest of each prediction first."""
        return self._side("proponent")

    @property
    def opponents(self) -> pd.DataFrame:
        """Examples with a negative influence, the strongest of each prediction first."""
        return self._side("opponent")

    def to_frame(self) -> pd.DataFrame:
        """Return both sides in one table, with ids and the shares of checkpoints and parts.

        `head`, `relation` and `tail` are labels; `head_id`, `relation_id` and `tail_id` are the
        names in the data files. The `checkpoint_STEP` columns add up to `influence`, and so do the
        `part_NAME` columns. `counterpart` says if a fact is the explained triple's `inverse` or
        `duplicate`, by the pairs of relations that say the same. `expected_fall` is there if a test
        has found a unit of effect: of the log-probability, without the fact (`report.label.fall`).
        Of several runs, `spread` is the standard deviation, and `runs_agreeing` counts those whose
        score has the sign of the mean.
        """
        return self._frame.copy()

    @checked
    def verify(self, *, seeds: Count = 2, whole: bool = False) -> Verification:
        """Return what happens without the strongest facts, as `clew verify` finds it.

        Args:
            seeds: Number of seeds to train with.
            whole: Also train again from the start, as the reference.

        Raises:
            UsageError: If the explanation is not a recorded one of triples.
        """
        from clew.workflows.verify import VerifyRequest, verify

        titles = len(self._titles())
        request = VerifyRequest(reference_of(self), top_tests=titles, seeds=seeds, whole=whole)
        with progress_of("training runs") as progress:
            return verify(request, progress=progress)

    def plot(self, num_examples: int = SHOWN_ROWS) -> "Chart":
        """Return an Altair chart with one panel per prediction and one bar per strong example.

        Args:
            num_examples: Largest number of proponents, and of opponents, to draw.

        Raises:
            ConfigError: If `num_examples` is not a whole number of at least 1.
        """
        with extra("ui"):
            from clew.api.charts import influence_chart

        heading = self.form.heading
        return influence_chart(self._frame, self._titles(), heading, num_examples=num_examples)

    def _side(self, side: str) -> pd.DataFrame:
        """Return the rows of one side with the readable columns."""
        rows = self._frame[self._frame["side"] == side]
        read = [n for n in map(str, rows) if not (n.startswith(SPLIT) or n.endswith("_id"))]
        return rows[read].drop(columns=["side", FACT]).reset_index(drop=True)

    def _titles(self) -> list[str]:
        """Return a text for each prediction that says what is explained."""
        if isinstance(self.report, InfluenceReport):
            return [in_words(test.test) for test in self.report.tests]
        return [" ".join(line.strip() for line in self.report.headline())]

    def __repr__(self) -> str:
        titles = [f"{title}: {self.form.named}" for title in self._titles()]
        said = [*self.report.notes(), *self._agreement, self.report.label.sentence]
        return "\n".join([f"Attribution, run {self.run_id}", *titles, *said])

    @property
    def _agreement(self) -> list[str]:
        return self.report.agreement if isinstance(self.report, InfluenceReport) else []

    def _repr_html_(self) -> str:
        """Show the strongest examples of each prediction in a notebook."""
        parts = []
        for number, title in enumerate(self._titles()):
            parts.append(f"<h4>{html.escape(title)}</h4>")
            for name, table in (("proponents", self.proponents), ("opponents", self.opponents)):
                rows = table[table[TEST] == number].drop(columns=TEST).head(SHOWN_ROWS)
                shown = rows.to_html(index=False, border=0) if len(rows) else "<p>none</p>"
                parts.append(f"<h5>{name}</h5>{self._greyed(shown, rows)}")
        said = [self.report.sign, self.form.sentence, *self.report.notes(), *self._agreement]
        said.append(self.report.label.sentence)
        return f"{''.join(parts)}{''.join(f'<p>{html.escape(text)}</p>' for text in said)}"

    def _greyed(self, shown: str, rows: pd.DataFrame) -> str:
        """Return the HTML of rows with those in grey on whose sign the runs disagree."""
        if not isinstance(self.report, InfluenceReport) or AGREEING_COLUMN not in rows:
            return shown
        head, *body = shown.split("<tr>")  # the row of the headings has a style of its own
        disputed = rows[AGREEING_COLUMN] < len(self.report.model.runs)
        marks = [f'<tr style="color: {PLAIN.colour}">' if grey else "<tr>" for grey in disputed]
        return head + "".join(mark + row for mark, row in zip(marks, body, strict=True))


@checked
def attribute(
    model: SkipValidation[AnyModel],
    triples: SkipValidation[pd.DataFrame | Iterable[Triple] | None] = None,
    *,
    prompt: str | None = None,
    continuation: str = "",
    frame: int | None = None,
    top_k: Annotated[int, Field(ge=0)] = 20,
    seeds: Count | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Attribution:
    """Find the training examples behind a prediction, and record the result as a run.

    The arguments determine what is explained: triples of a graph, the continuation of a prompt, or,
    with neither, a window of image frames.

    Args:
        model: A loaded model, a run, a run id, `newest`, `models:/name@alias` or a folder; all
            checkpoints of the model's run are needed.
        triples: `(head, relation, tail)` by name, for link prediction; or a table with these
            columns.
        prompt: Text before the continuation, for a language model.
        continuation: Text to explain; if empty, the model writes the continuation.
        frame: Last frame of the window, for image sequences; None: the window with the largest
            error.
        top_k: Number of proponents, and of opponents, to keep for each prediction; 0: all, but of
            more than 100,000 scores these tables have the strongest, the run's Parquet file all.
        seeds: Number of runs of a graph model whose mean is explained; those that are missing are
            trained like the model's, with other seeds. None: as its configuration says, or 1.
        overrides: Other settings, such as `{"influence.score": "cosine"}`.

    Raises:
        UsageError: If the model, its checkpoints or the examples to explain cannot be used.
    """
    given = [one for one in (triples, prompt, frame) if one is not None]
    if len(given) > 1:
        raise ConfigError("more than one of triples, prompt and frame is given; give one of them")
    if continuation and prompt is None:
        raise ConfigError("a continuation is given without a prompt; give the text before it")
    if not given and isinstance(model, Model) and model.explained_with:  # others choose a window
        raise ConfigError(f"{model.title} is a {model.task} model; give {model.explained_with}")
    reference = reference_of(model)
    settings = {"influence.top_k": top_k} | full_settings(overrides or {})
    if seeds is not None:
        settings["influence.seeds"] = seeds
    if triples is not None:
        named = named_triples(triples)
        with progress_of("triples") as progress, progress_of("training runs") as trained:
            traced = tracin(reference, named, settings, progress=progress, trained=trained)
        return Attribution(traced.report, traced.run_id, triple_table(traced.report))
    with progress_of("windows") as progress:
        if prompt is not None:
            texts = [Text(prompt, continuation)]
            (text,) = trace_texts(reference, texts, settings, progress=progress)
            return Attribution(text.report, text.run_id, window_table(text.report))
        (frames,) = trace_sequences(reference, [frame], settings, progress=progress)
        return Attribution(frames.report, frames.run_id, window_table(frames.report))


@contextmanager
def progress_of(unit: str) -> Iterator[Progress]:
    """Yield a function that updates a progress bar, which is shown only on a terminal."""
    with tqdm(unit=f" {unit}", delay=1.0, disable=None, leave=False) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show


TEST = "test"
"""Column with the number of the explained prediction, from 0."""
FACT = "example"
"""Column with the training example as one line."""

Row = dict[str, object]


def triple_table(report: InfluenceReport) -> pd.DataFrame:
    """Return the training facts of all explained triples, with labels, names and influence."""
    steps = [checkpoint.step for checkpoint in report.model.checkpoints]
    rows = [
        {TEST: number, "side": side, **_words(entry.train), **numbers_of(entry, steps)}
        | {"counterpart": entry.counterpart or ""}
        for number, test in enumerate(report.tests)
        for side, entries in (("proponent", test.proponents), ("opponent", test.opponents))
        for entry in entries
    ]
    table = _table(rows, ["head", "relation", "tail", "counterpart"])
    if fall := report.label.fall:
        expected = table["influence"] * fall.mean
        table.insert(list(table.columns).index("influence") + 1, "expected_fall", expected)
    return table


def window_table(report: WindowReport[Any]) -> pd.DataFrame:
    """Return the training windows of an explained text or an explained window of frames."""
    own = ["window", "first_token", "text"]
    if isinstance(report, SequenceInfluenceReport):
        own = ["window", "last_frame", "group", "target"]
    rows: list[Row] = [
        {
            **{TEST: 0, "side": side, FACT: report.shown(window)},
            **{name: getattr(window, name) for name in own},
            **numbers_of(window, report.steps),
        }
        for side, windows in (("proponent", report.proponents), ("opponent", report.opponents))
        for window in windows
    ]
    return _table(rows, own)


def _words(triple: TripleRecord) -> Row:
    """Return a fact's labels, the labels as one line, and the names in the data files."""
    terms = {"head": triple.head, "relation": triple.relation, "tail": triple.tail}
    return {
        **{role: term.label for role, term in terms.items()},
        FACT: " · ".join(term.label for term in terms.values()),
        **{f"{role}_id": term.id for role, term in terms.items()},
    }


def _table(rows: list[Row], own: list[str]) -> pd.DataFrame:
    """Return rows as a table; a table without rows has the columns that are always present."""
    columns = [TEST, "side", "rank", *own, "influence", *(key for row in rows for key in row), FACT]
    return pd.DataFrame(rows, columns=list(dict.fromkeys(columns)))


@checked
def value_facts(
    model: SkipValidation[AnyModel],
    triples: SkipValidation[pd.DataFrame | Iterable[Triple] | None] = None,
    *,
    weights: SkipValidation[Sequence[float] | None] = None,
    direction: Question = "both",
    score: Literal["tuned", "unrolled"] = "tuned",
    confirm: Annotated[int, Field(ge=0)] = 0,
) -> pd.DataFrame:
    """Compute the value of every training fact for the losses of many triples, in one pass.

    The sum of the losses is differentiated through training steps. The result is recorded as a run
    of kind `value`.

    Args:
        model: A loaded model, a run, a run id, `newest`, `models:/name@alias` or a folder. It must
            be a graph model that one process trained; see `influence.score=unrolled`.
        triples: `(head, relation, tail)` by name, or a table with these columns; None: the
            validation triples.
        weights: The weight of each triple's loss; None: the mean of the losses.
        direction: Whose losses count: those of tails, of heads, or of both.
        score: `tuned`: through short fine-tunings of the finished model, with smaller values;
            `unrolled`: through the whole training run.
        confirm: Number of facts at each end of the list to train again without, one run each.

    Returns:
        A table with a row for each training fact, the most helpful first. The columns are
        `train_index`, the labels `head`, `relation` and `tail`, the names `head_id`, `relation_id`
        and `tail_id`, and `value`: how much the weight of the fact and its copies lowers the sum of
        the losses, in nats for each unit of weight, to first order. With `confirm`, `without_it` is
        the rise of the sum after training without the fact (NaN: not tried), and `confirmed`
        whether it has the value's sign and about its size. Others can be artifacts.

    Raises:
        UsageError: If the model, the triples or their weights cannot be used, or the training
            cannot be repeated.
    """
    if weights is not None and triples is None:
        raise ConfigError("weights are given without triples; give the triples that they are for")
    tests = () if triples is None else tuple(named_triples(triples))
    numbers = None if weights is None else _numbers(weights, len(tests))
    given = {"direction": direction, "score": score, "confirm": confirm}
    request = ValueRequest(model=reference_of(model), test=tests, weights=numbers, **given)
    with progress_of("steps") as progress, progress_of("retrainings") as retrained:
        return _facts_table(value_all(request, progress=progress, retrained=retrained))


def _numbers(weights: Sequence[float], count: int) -> tuple[float, ...]:
    try:
        numbers = np.array(weights, float)
    except (TypeError, ValueError):
        numbers = np.array(np.nan)
    if numbers.ndim != 1:
        raise ConfigError(f"weights is {quoted(weights)}; expected a number for each triple")
    if len(numbers) != count:
        raise ConfigError(
            f"weights: {len(numbers)} given for {count} triples; expected one for each"
        )
    if not np.isfinite(numbers).all():
        raise ConfigError(f"weights: {quoted(weights)} given; expected finite numbers")
    return tuple(numbers.tolist())


def _facts_table(found: FactValues) -> pd.DataFrame:
    graph = found.graph
    columns: dict[str, object] = {"train_index": range(len(found.values))}
    for name, place in (("head", HEAD), ("relation", RELATION), ("tail", TAIL)):
        vocabulary = graph.relations if place == RELATION else graph.entities
        ids = graph.train[:, place].tolist()
        columns[name] = [vocabulary.label(id) for id in ids]
        columns[f"{name}_id"] = [vocabulary.name(id) for id in ids]
    columns["value"] = found.values
    if found.request.confirm:
        columns |= {"without_it": found.without, "confirmed": found.confirmed}
    table = pd.DataFrame(columns)
    return table.sort_values("value", ascending=False, kind="stable", ignore_index=True)
