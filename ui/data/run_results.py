"""Results for the page of a run: the test of explanations, the search, the values of facts."""

import pandas as pd
import streamlit as st

from clew import names
from clew.runs.reading.results import (
    TRIAL_COLUMNS,
    read_best_configuration,
    read_fact_values,
    read_result,
    read_trials,
    read_worst_facts,
)
from clew.runs.validation_record import SIBLINGS, Measured, ValidationRecord
from clew.ui.data.run_page import files_of
from clew.ui.data.runs import RunRecord

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
