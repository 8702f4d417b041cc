"""What a run found: tests of explanations, searches, values of facts, studies."""

import logging
from typing import Any

import pandas as pd
import streamlit as st

from clew import names
from clew.errors import ClewError
from clew.runs.reading.metrics import number_text
from clew.runs.reading.results import (
    TRIAL_COLUMNS,
    StudyResult,
    StudyRow,
    read_best_configuration,
    read_fact_values,
    read_result,
    read_study,
    read_trials,
    read_worst_facts,
)
from clew.runs.reading.runs import RunRecord
from clew.runs.reading.search import RunQuery
from clew.runs.validation_record import SIBLINGS, Measured, ValidationRecord
from clew.ui.components import basics, glossary, tables
from clew.ui.components.basics import STATE_SYMBOLS, sign_symbol
from clew.ui.components.run_report import files_of
from clew.ui.components.runs import runs_page

NUM_FACTS = 20
BASELINES = {
    SIBLINGS: "counting siblings",
    "touching": "touching an end of the triple",
    "adamic_adar": "shared neighbours (Adamic-Adar)",
    "random": "random numbers",
}
"""The baselines that the forms of score are compared with."""


def keeps(run: RunRecord, *path: str) -> bool:
    """Return whether a run keeps a file; a search keeps its files once it has ended."""
    return any(file.path == "/".join(path) for file in files_of(run.run_id))


@st.cache_data(ttl=60, max_entries=32, show_spinner=False)
def validation_of(run_id: str) -> ValidationRecord:
    """Return the result of a test of explanations."""
    return read_result(run_id)


def correlations(record: ValidationRecord) -> pd.DataFrame:
    """Return how well each form predicted retraining, the largest share of dropped facts first.

    Columns: `form`, `drop` in percent, `seeds`, `mean`, `low`, `high`; `more_mean`, `more_low` and
    `more_high`, the difference from counting siblings; `verdict` on that difference.
    """
    rows = []
    for score in record.scores:
        more = score.over_siblings
        rows.append(
            {
                "form": BASELINES.get(score.form, score.form),
                "drop": 100 * score.drop,
                "seeds": f"{score.seeds} seed{'s' * (score.seeds == 'other')}",
                **_interval(score.correlation),
                **{f"more_{key}": value for key, value in _interval(more).items()},
                "verdict": "–" if score.form == SIBLINGS else _verdict(more),
            }
        )
    for ceiling in record.ceilings:
        if ceiling.correlation is not None:
            rows.append(
                {
                    "form": "retraining itself: the ceiling",
                    "drop": 100 * ceiling.drop,
                    "seeds": "other seeds",
                    "mean": ceiling.correlation,
                    "verdict": "–",
                }
            )
    frame = pd.DataFrame(rows)
    order = ["drop", "seeds", "mean"]
    return frame.sort_values(order, ascending=[False, True, False], kind="stable")


def deletions(record: ValidationRecord) -> pd.DataFrame:
    """Return how far the answers fell without the strongest facts of each form, the most first.

    Columns: `form`, `facts`; `mean`, `low`, `high` of the fall of the log-probability; and those
    of the fall of the reciprocal rank, with the prefix `rank_`.
    """
    rows = [
        {
            "form": BASELINES.get(effect.form, effect.form),
            "facts": effect.num_facts,
            **_interval(effect.log_probability),
            **{f"rank_{key}": value for key, value in _interval(effect.reciprocal_rank).items()},
        }
        for effect in record.deletions
    ]
    return pd.DataFrame(rows).sort_values(["facts", "mean"], ascending=False, kind="stable")


def _interval(measured: Measured | None) -> dict[str, float | None]:
    if measured is None:
        return {"mean": None, "low": None, "high": None}
    half = measured.half_width
    ends = (None, None) if half is None else (measured.mean - half, measured.mean + half)
    return {"mean": measured.mean, "low": ends[0], "high": ends[1]}


def _verdict(more: Measured | None) -> str:
    if more is None or more.half_width is None:
        return "? Not known"
    if abs(more.mean) <= more.half_width:
        return "? No clear difference"
    return "✓ Better" if more.mean > 0 else "✗ Worse"


@st.cache_data(ttl=60, max_entries=32, show_spinner=False)
def trials_of(run_id: str) -> pd.DataFrame:
    """Return the trials of a search."""
    return read_trials(run_id)


def settings_of(trials: pd.DataFrame) -> list[str]:
    return [str(column) for column in trials if column not in {*TRIAL_COLUMNS, "problem"}]


def best_configuration(run: RunRecord) -> str:
    """Return the best configuration as YAML; empty if no trial was completed."""
    found = keeps(run, names.ARTIFACT_TUNE, names.BEST_YAML)
    return _best_configuration(run.run_id) if found else ""


@st.cache_data(ttl=60, max_entries=32, show_spinner=False)
def _best_configuration(run_id: str) -> str:
    return read_best_configuration(run_id)


@st.cache_data(ttl=60, max_entries=8, show_spinner=False)
def extreme_values(run_id: str) -> pd.DataFrame:
    """Return the facts with the highest and lowest values: `head, relation, tail, value`."""
    found = read_fact_values(run_id)
    ends = pd.concat([found.head(NUM_FACTS), found.iloc[NUM_FACTS:].tail(NUM_FACTS)])
    labels = {"head": "Head", "relation": "Rel", "tail": "Tail"}
    return pd.DataFrame(
        {
            **{
                name: ends[f"Train{label}_label"].where(
                    ends[f"Train{label}_label"] != "", ends[f"Train{label}"]
                )
                for name, label in labels.items()
            },
            "value": ends["Value"],
        }
    )


@st.cache_data(ttl=60, max_entries=32, show_spinner=False)
def worst_facts(run_id: str) -> str:
    """Return the list of the facts with the lowest values, in the format of `data.exclude`."""
    return read_worst_facts(run_id)


MAX_HEIGHT = 430
QUESTIONS = {"tail": "why this tail", "head": "why this head", "both": "both ends"}
TRIAL_SYMBOLS = {"complete": "✓", "pruned": "■", "failed": STATE_SYMBOLS["failed"], "stopped": "■"}


def validation(record: ValidationRecord) -> None:
    """Show how well each form of score predicted retraining, and what deletions cost."""
    basics.note(
        f"{record.num_retrainings:,} trainings without some of the facts, tested with "
        f"{record.num_tests:,} test triples ({QUESTIONS[record.direction]}, "
        f"{record.test_loss} loss). Correlation: of the effects that a form of score predicted "
        "with those of these trainings; 1 is perfect, 0 is chance. Intervals are 95 %. A form that "
        "is not better than counting siblings (facts with the same relation and head, or tail) "
        "adds little to such a count."
    )
    shown = correlations(record).rename(
        columns={
            "form": "Form of score",
            "drop": "Dropped [%]",
            "seeds": "Trained with",
            "mean": "Correlation",
            "low": "95 % from",
            "high": "95 % to",
            "verdict": "Against siblings",
            "more_mean": "Above siblings",
            "more_low": "Above siblings, 95 % from",
            "more_high": "Above siblings, 95 % to",
        }
    )
    columns = {
        "Form of score": st.column_config.TextColumn(width=200),
        "Dropped [%]": st.column_config.NumberColumn(
            format="%.3g", width="small", help="Share of the training facts left out at random."
        ),
        "Trained with": st.column_config.TextColumn(
            width="small", help="The same seed as the run itself, or others."
        ),
        **_numbers(shown, "Correlation", "95 %", "Above siblings"),
    }
    tables.show(
        shown,
        alt="Forms of score and retraining",
        column_config=columns,
        most=MAX_HEIGHT,
        placeholder="–",
    )
    tables.export(shown, "validation.csv")
    if record.deletions:
        _deletions(record)


def _deletions(record: ValidationRecord) -> None:
    """Show how far the answers fell without their strongest facts."""
    counted = "" if record.num_deletions is None else f" of {record.num_deletions:,} test triples"
    basics.note(
        f"Deletions: the strongest facts{counted} were left out, and the model was trained again. "
        "The larger the fall, the more the answer relied on them. Intervals are 95 %."
    )
    shown = deletions(record).rename(
        columns={
            "form": "Strongest by",
            "facts": "Facts deleted",
            "mean": "Fall of log-probability [nats]",
            "low": "95 % from",
            "high": "95 % to",
            "rank_mean": "Fall of 1 / rank",
            "rank_low": "Fall of 1 / rank, 95 % from",
            "rank_high": "Fall of 1 / rank, 95 % to",
        }
    )
    columns = {
        "Strongest by": st.column_config.TextColumn(width=200),
        **_numbers(shown, "Fall of", "95 %"),
    }
    tables.show(shown, alt="Deleted facts", column_config=columns, most=MAX_HEIGHT, placeholder="–")
    tables.export(shown, "deletions.csv")


def _numbers(frame: pd.DataFrame, *starts: str) -> dict[str, Any]:
    """Return the look of columns that start so; ends of intervals have short headings."""
    return {
        name: st.column_config.NumberColumn(name.split(", ")[-1], format="%.3f", width="small")
        for name in map(str, frame)
        if name.startswith(starts)
    }


def search(run: RunRecord, trials: pd.DataFrame, best: str) -> None:
    metric = run.params.get(f"{names.PARAMETER_PREFIX}evaluation.metric", "")
    found = trials[trials["run_id"] == run.tags.get(names.TAG_BEST_RUN, "")]
    if best and len(found):
        row = found.iloc[0]
        st.markdown(
            f"**Best settings**: {glossary.label(metric)} {number_text(row['value'])} after epoch "
            f"{row['epoch']:.0f}, in trial {row['trial']:.0f}"
        )
        settings = [(name, _setting(row[name])) for name in settings_of(trials)]
        tables.show(pd.DataFrame(settings, columns=["Setting", "Value"]), alt="Best settings")
        with st.container(horizontal=True, vertical_alignment="center"):
            tables.download("Best configuration (YAML)", best, names.BEST_YAML, "text/yaml")
            basics.link("run", "The best trial", id=str(row["run_id"]))
        st.code(f"clew train --config {names.BEST_YAML}", language="bash")
    else:
        basics.note("No trial was completed, so there are no best settings.")
    shown = pd.DataFrame(
        {
            "Trial": trials["trial"],
            "State": [f"{TRIAL_SYMBOLS.get(state, '')} {state}" for state in trials["state"]],
            glossary.label(metric): trials["value"],
            "After epoch": trials["epoch"],
            **{name: trials[name].map(_setting) for name in settings_of(trials)},
            "Took [s]": trials["seconds"],
            **({"Problem": trials["problem"]} if trials["problem"].any() else {}),
        }
    )
    columns = {
        glossary.label(metric): st.column_config.NumberColumn(format="%.4g"),
        "Took [s]": st.column_config.NumberColumn(format="%.1f"),
    }
    tables.show(
        shown,
        alt="Trials of the search",
        column_config=columns,
        most=MAX_HEIGHT,
        placeholder="–",
    )
    tables.export(trials, names.TRIALS_CSV)


def _setting(value: str) -> str:
    try:
        return value if value.isdecimal() else number_text(float(value))
    except ValueError:
        return value


def fact_values(facts: pd.DataFrame, worst: str) -> None:
    """Show the facts with the highest and lowest values, and offer a list of the worst."""
    basics.note(
        "How training on a fact changed all predictions together: positive (▲) made them better, "
        "negative (▼) worse. Only the order and the relative size matter. The facts with the "
        "highest and the lowest values:"
    )
    shown = facts.rename(columns=str.capitalize)[["Value", "Head", "Relation", "Tail"]]
    shown.insert(0, "±", [sign_symbol(value) for value in shown["Value"]])
    columns = {
        "±": st.column_config.TextColumn(width=30),
        "Value": st.column_config.NumberColumn(
            format="%.4g", width="small", help="Nats of the loss for each unit of a fact's weight."
        ),
    }
    tables.show(shown, alt="Values of facts", column_config=columns, most=MAX_HEIGHT)
    tables.download("Worst facts (TSV)", worst, names.WORST_FACTS, "text/tab-separated")
    command = f"clew train --config CONFIG data.exclude={names.WORST_FACTS}"
    st.code(command, language="bash", wrap_lines=True)


def show_studies(found: list[StudyResult]) -> None:
    """Show a row for each variant and measure of the studies."""
    shown = pd.DataFrame(
        {
            "Study": study.study,
            "Variant": row.variant,
            "Measure": row.label,
            "Median": row.median,
            **_ratio(row, study.reference),
            "Reference": study.reference,
            "Machine": study.machine,
        }
        for study in found
        for row in study.results
    )
    columns = {
        "Variant": st.column_config.TextColumn(width="medium"),
        "Median": st.column_config.NumberColumn(format="%.4g", width="small"),
        **{
            name: st.column_config.NumberColumn(format="%.3g", width="small")
            for name in ("Ratio", "95 % from", "95 % to")
        },
    }
    tables.show(
        shown, alt="Variants of the studies", column_config=columns, most=700, placeholder="–"
    )
    basics.note(
        "Median: over rounds, a seed each. Ratio: the geometric mean of the rounds' ratios to the "
        "reference, with its 95 % interval over rounds; a single round has no interval."
    )


def _ratio(row: StudyRow, reference: str) -> dict[str, float | None]:
    ratio = None if row.variant == reference else row.ratio
    if ratio is None:
        return {"Ratio": None, "95 % from": None, "95 % to": None}
    return {"Ratio": ratio.value, "95 % from": ratio.low, "95 % to": ratio.high}


logger = logging.getLogger(__name__)

NUM_STUDIES = 100


def studies() -> list[StudyResult]:
    """Return the latest finished run of each study on each machine, the latest first."""
    runs = runs_page(RunQuery(kind=names.KIND_COMPARE), size=NUM_STUDIES).runs
    latest: dict[tuple[str, str], StudyResult] = {}
    for run in runs:
        found = study_of(run.run_id) if run.status == "FINISHED" else None
        if found is not None and found.results:
            latest.setdefault((found.study, found.machine), found)
    return list(latest.values())


@st.cache_data(ttl=600, max_entries=256, show_spinner="Reading the studies …")
def study_of(run_id: str) -> StudyResult | None:
    """Return a study, or None for a comparison of another kind, which has no report."""
    try:
        return read_study(run_id)
    except ClewError as error:
        logger.info("%s", error)
        return None
