"""What a run found: tests of explanations, searches, values of facts, studies."""

import logging

import pandas as pd
import streamlit as st
from streamlit.column_config import NumberColumn, TextColumn

from clew import names
from clew.errors import ClewError
from clew.runs.reading import run_details
from clew.runs.reading.facts import distinct
from clew.runs.reading.metrics import number_text
from clew.runs.reading.runs import RunRecord
from clew.runs.reading.search import RunQuery
from clew.runs.validation_record import ValidationRecord
from clew.ui.components import basics, charts, glossary, tables
from clew.ui.components.runs import files_of, for_a_minute, runs_page

NUM_FACTS = 20
validation_of = for_a_minute(run_details.read_result)
trials_of = for_a_minute(run_details.read_trials)
text_of = for_a_minute(run_details.read_text)
MAX_HEIGHT = 430
QUESTIONS = {"tail": "why this tail", "head": "why this head", "both": "both ends"}
TRIAL_SYMBOLS = {"complete": "✓", "pruned": "■", "failed": "✗", "stopped": "■"}
logger = logging.getLogger(__name__)
NUM_STUDIES = 100


def keeps(run: RunRecord, *path: str) -> bool:
    """Return whether a run keeps a file; a search keeps its files once it has ended."""
    return any(file.path == "/".join(path) for file in files_of(run.run_id))


@for_a_minute
def extreme_values(run_id: str) -> pd.DataFrame:
    """Return the facts with the highest and lowest values."""
    found = run_details.read_fact_values(run_id)
    ends = pd.concat([found.head(NUM_FACTS), found.iloc[NUM_FACTS:].tail(NUM_FACTS)])
    columns = {"±": ends["Value"].map(basics.sign_symbol), "Value": ends["Value"]}
    triples = {}
    for end, name in {"head": "Head", "relation": "Rel", "tail": "Tail"}.items():
        triples[f"{end}_id"] = own = ends[f"Train{name}"]
        label = ends[f"Train{name}_label"]
        triples[end] = label.where(label != "", own)
    named = distinct(pd.DataFrame(triples))
    columns |= {end.capitalize(): named[end] for end in ("head", "relation", "tail")}
    if "Confirmed" in ends:
        tried = ends["WithoutIt"] != "nan"
        verdicts = ends["Confirmed"].map({"True": "yes", "False": "no"})
        columns["Confirmed by training without it"] = verdicts.where(tried, "not tried")
    return pd.DataFrame(columns)


def validation(record: ValidationRecord) -> None:
    """Show how well each form predicted retraining, and what deletions cost."""
    for sentence in record.labels():
        basics.note(sentence)
    basics.note(
        f"{record.num_retrainings:,} training runs without some of the facts "
        f"({QUESTIONS[record.direction]}, {record.test_loss} loss). Correlation of the effects "
        "that a form of score predicted with those of these runs, and in brackets its "
        "difference from the best baseline; 1 is perfect, 0 is chance. Intervals are 95 %, over "
        "triples and subsets. Deletions: the larger the fall, the more the answer relied on them."
    )
    st.markdown("\n".join(record.markdown()))


def search(run: RunRecord) -> None:
    """Show the trials of a search, and the best settings if a trial was completed."""
    trials, is_best = trials_of(run.run_id), keeps(run, names.ARTIFACT_TUNE, names.BEST_YAML)
    settings = [str(name) for name in trials if name not in {*run_details.TRIAL_COLUMNS, "problem"}]
    metric = run.params.get(f"{names.PARAMETER_PREFIX}evaluation.metric", "")
    found = trials[trials["run_id"] == run.tags.get(names.TAG_BEST_RUN, "")]
    if is_best and len(found):
        row, best = found.iloc[0], text_of(run.run_id, names.ARTIFACT_TUNE, names.BEST_YAML)
        called = basics.markdown(glossary.label(metric))
        place = f"after epoch {row['epoch']:.0f}, in trial {row['trial']:.0f}"
        st.markdown(f"**Best settings**: {called} {number_text(row['value'])} {place}")
        shares = [run.metrics.get(names.IMPORTANCE.format(setting=name)) for name in settings]
        best_settings: tables.Columns = {
            "Setting": (settings, None),
            "Value": ([charts.setting_text(row[name]) for name in settings], None),
        }
        if any(share is not None for share in shares):
            about = "Share of a setting in what made trials good (PED-ANOVA over all trials)."
            best_settings["Importance"] = (shares, NumberColumn(format="percent", help=about))
        tables.show(best_settings, alt="Best settings")
        with st.container(horizontal=True, vertical_alignment="center"):
            tables.download("Best configuration (YAML)", best, names.BEST_YAML)
            basics.link("run", "The best trial", id=str(row["run_id"]))
        basics.code(f"clew train --config {names.BEST_YAML}")
    else:
        basics.note("No trial was completed, so there are no best settings.")
    if trials["value"].notna().sum() > 1:
        spec = charts.trials(trials, settings, glossary.label(metric))
        alt = "Trials of the search as lines through their settings, coloured by their result"
        st.vega_lite_chart(spec, width="stretch", alt=alt)
    states = [f"{TRIAL_SYMBOLS.get(state, '')} {state}" for state in trials["state"]]
    columns: tables.Columns = {
        "Trial": (trials["trial"], None),
        "State": (states, None),
        glossary.label(metric): (trials["value"], NumberColumn(format="%.4g")),
        "After epoch": (trials["epoch"], None),
        **{name: (trials[name].map(charts.setting_text), None) for name in settings},
        "Took [s]": (trials["seconds"], NumberColumn(format="%.1f")),
    }
    if trials["problem"].any():
        columns["Problem"] = (trials["problem"], None)
    tables.show(columns, alt="Trials of the search", most=MAX_HEIGHT)
    tables.export(trials, names.TRIALS_CSV)


def fact_values(run_id: str) -> None:
    """Show the facts with the highest and lowest values, and offer a list of the worst."""
    basics.note(
        "How training on a fact changed all predictions together: positive (▲) made them better, "
        "negative (▼) worse. Values that no retraining has confirmed can be artifacts, the largest "
        "first: look facts up before you leave any out. The highest and the lowest values:"
    )
    shown = extreme_values(run_id)
    worst = text_of(run_id, names.ARTIFACT_VALUES, names.WORST_FACTS)
    unit = "Nats of the loss for each unit of a fact's weight."
    columns = {
        "±": TextColumn(width=30),
        "Value": NumberColumn(format="%.4g", width="small", help=unit),
    }
    tables.show(shown, alt="Values of facts", column_config=columns, most=MAX_HEIGHT)
    tables.download("Lowest values (TSV)", worst, names.WORST_FACTS)


def show_studies(found: list[run_details.StudyResult]) -> None:
    """Show a row for each variant and measure of the studies."""
    rows = [(study, row) for study in found for row in study.results]
    ratios = [None if row.variant == study.reference else row.ratio for study, row in rows]
    short = NumberColumn(format="%.3g", width="small")
    tables.show(
        {
            "Study": ([study.study for study, _ in rows], None),
            "Variant": ([row.variant for _, row in rows], TextColumn(width="medium")),
            "Measure": ([row.label for _, row in rows], None),
            "Median": ([row.median for _, row in rows], NumberColumn(format="%.4g", width="small")),
            "Ratio": ([ratio and ratio.value for ratio in ratios], short),
            "95 % from": ([ratio and ratio.low for ratio in ratios], short),
            "95 % to": ([ratio and ratio.high for ratio in ratios], short),
            "Reference": ([study.reference for study, _ in rows], None),
            "Machine": ([study.machine for study, _ in rows], None),
        },
        alt="Variants of the studies",
        most=700,
    )
    basics.note(
        "Median: over rounds, a seed each. Ratio: the geometric mean of the rounds' ratios to the "
        "reference, with its 95 % interval over rounds; a single round has no interval."
    )


def studies() -> list[run_details.StudyResult]:
    """Return the latest finished run of each study on each machine, the latest first."""
    runs = runs_page(RunQuery(kind=names.KIND_COMPARE), size=NUM_STUDIES).runs
    latest: dict[tuple[str, str], run_details.StudyResult] = {}
    for run in runs:
        found = study_of(run.run_id) if run.status == "FINISHED" else None
        if found is not None and found.results:
            latest.setdefault((found.study, found.machine), found)
    return list(latest.values())


@st.cache_data(ttl=600, max_entries=256, show_spinner="Reading the studies …")
def study_of(run_id: str) -> run_details.StudyResult | None:
    """Return a study, or None for a comparison of another kind, which has no report."""
    try:
        return run_details.read_study(run_id)
    except ClewError as error:
        logger.info("%s", error)
        return None
