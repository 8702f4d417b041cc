"""Results on the page of a run: tables of a test of explanations, a search, values of facts."""

from typing import Any

import pandas as pd
import streamlit as st

from clew import names
from clew.runs.validation_record import ValidationRecord
from clew.ui.components import exports, glossary, links, states, tables
from clew.ui.components.palette import STATE_SYMBOLS, sign_symbol
from clew.ui.data.run_results import correlations, deletions, settings_of
from clew.ui.data.runs import RunRecord, number_text

MAX_HEIGHT = 430
QUESTIONS = {"tail": "why this tail", "head": "why this head", "both": "both ends"}
TRIAL_SYMBOLS = {"complete": "✓", "pruned": "■", "failed": STATE_SYMBOLS["failed"], "stopped": "■"}


def validation(record: ValidationRecord) -> None:
    """Show how well each form of score predicted retraining, and what deletions cost."""
    states.note(
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
    exports.table(shown, "validation.csv")
    if record.deletions:
        _deletions(record)


def _deletions(record: ValidationRecord) -> None:
    """Show how far the answers fell without their strongest facts."""
    counted = "" if record.num_deletions is None else f" of {record.num_deletions:,} test triples"
    states.note(
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
    exports.table(shown, "deletions.csv")


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
            exports.button("Best configuration (YAML)", best, names.BEST_YAML, "text/yaml")
            links.to("run", "The best trial", id=str(row["run_id"]))
        st.code(f"clew train --config {names.BEST_YAML}", language="bash")
    else:
        states.note("No trial was completed, so there are no best settings.")
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
    exports.table(trials, names.TRIALS_CSV)


def _setting(value: str) -> str:
    try:
        return value if value.isdecimal() else number_text(float(value))
    except ValueError:
        return value


def fact_values(facts: pd.DataFrame, worst: str) -> None:
    """Show the facts with the highest and lowest values, and offer a list of the worst."""
    states.note(
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
    exports.button("Worst facts (TSV)", worst, names.WORST_FACTS, "text/tab-separated")
    command = f"clew train --config CONFIG data.exclude={names.WORST_FACTS}"
    st.code(command, language="bash", wrap_lines=True)
