"""The training facts of an explanation: table, graph and bars that share one selection.

The place of the selected fact is in the address under `fact`. A click in one of them changes the
address, and the others are drawn again.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st
from markupsafe import Markup

from clew.runs.influence_forms import Form
from clew.ui.components import (
    address,
    exports,
    glossary,
    graph,
    influence_charts,
    markup,
    palette,
    tables,
)
from clew.ui.data.influence import checkpoint_columns, part_columns, strongest
from clew.ui.data.runs import number_text

MAX_ROWS = 1000
NUM_BARS = 16
_EFFECT = (
    '<p><b class="{kind}">{symbol} {effect}</b> '
    '<span class="clew-muted">· {column} {value} · rank {rank} on its side</span></p>'
)


def selected(facts: pd.DataFrame) -> int | None:
    """Return the place of the selected fact, None if it is not among `facts`."""
    place = address.number("fact")
    return place if place is not None and (facts["place"] == place).any() else None


def _select(place: int | None) -> None:
    address.write("fact", place)
    st.session_state["fact-version"] = st.session_state.get("fact-version", 0) + 1


def table(facts: pd.DataFrame, column: str, form: Form, *, key: str) -> None:
    """Show the facts in a table; a click on a row selects its fact."""
    shown = strongest(facts, column, MAX_ROWS)
    tables.tick_one(
        _frame(shown, column, form),
        [int(place) for place in shown["place"]],
        key=f"{key}-table-{st.session_state.get('fact-version', 0)}",
        chosen=selected(shown),
        take=_select,
        alt="Training facts by their influence",
        column_config=_columns(column, form),
        most=graph.HEIGHT,
        placeholder="–",
    )
    if len(shown) < len(facts):
        st.caption(
            f"The {len(shown):,} strongest of {len(facts):,} facts; search or filter for others."
        )
    exports.table(facts, "facts.csv")


def _frame(facts: pd.DataFrame, column: str, form: Form) -> pd.DataFrame:
    values = facts[column].to_numpy(float)
    frame = pd.DataFrame(
        {
            "Rank": facts["rank"].to_numpy(),
            "±": [palette.sign_symbol(value) for value in values],
            glossary.score(column, form).label: values,
            "Head": facts["head"].astype(str).to_numpy(),
            "Relation": facts["relation"].astype(str).to_numpy(),
            "Tail": facts["tail"].astype(str).to_numpy(),
            "Hops": facts["hops"].to_numpy(),
        }
    )
    if "agreement" in facts:  # of an ensemble
        frame["Runs agree"] = facts["agreement"].to_numpy()
        frame["Spread"] = facts["spread"].to_numpy(float)
    if parts := part_columns(facts):
        frame["By part"] = facts[parts].to_numpy(float).round(6).tolist()
    if checkpoints := checkpoint_columns(facts):
        frame["By checkpoint"] = facts[checkpoints].to_numpy(float).round(6).tolist()
    return frame


def _columns(column: str, form: Form) -> dict[str, Any]:
    score = glossary.score(column, form)
    order = ", ".join(glossary.PARTS.values())
    return {
        "Rank": st.column_config.NumberColumn(
            width=54,
            help="Place among the facts of the same side: ▲ 1 helped the prediction most, ▼ 1 "
            "spoke most against it.",
        ),
        "±": st.column_config.TextColumn(
            width=30, help="▲ made the prediction more likely, ▼ less likely."
        ),
        "Head": st.column_config.TextColumn(width=112),
        "Relation": st.column_config.TextColumn(width=92),
        "Tail": st.column_config.TextColumn(width=112),
        "Hops": st.column_config.NumberColumn(width=46, help=glossary.HOPS),
        score.label: st.column_config.NumberColumn(format="%.4g", width=132, help=score.help),
        "Runs agree": st.column_config.TextColumn(width=72, help=glossary.RUNS_AGREE),
        "Spread": st.column_config.NumberColumn(format="%.2g", width=60, help=glossary.SPREAD),
        "By part": st.column_config.BarChartColumn(
            width=58, help=f"Share of each part of the model, in this order: {order}."
        ),
        "By checkpoint": st.column_config.BarChartColumn(
            width=68, help="Share of each checkpoint, the earliest first."
        ),
    }


def picture(
    test: pd.Series,
    facts: pd.DataFrame,
    column: str,
    *,
    number: int,
    key: str,
    kinds: Mapping[str, str],
) -> None:
    """Show the test triple with its strongest facts; a click on an edge selects its fact."""
    shown = strongest(facts, column, number)
    by_strength = shown[column].abs().sort_values(ascending=False, kind="stable").index
    place = selected(facts)
    graph.show(
        test,
        shown.loc[by_strength],
        column=column,
        selected=() if place is None else (place,),
        kinds=kinds,
        key=f"{key}-graph-{st.session_state.get('fact-version', 0)}",
        take=_select,
        alt="Graph of the test triple and its strongest training facts",
    )


def bars(facts: pd.DataFrame, column: str, form: Form) -> None:
    """Show the strongest facts of either sign as bars."""
    shown = strongest(facts, column, NUM_BARS)
    title = glossary.score(column, form).label
    chart = influence_charts.fact_bars(shown, column, title, selected(facts))
    alt = f"Bars: {column} of the strongest training facts"
    st.altair_chart(chart, width="stretch", alt=alt)


def details(facts: pd.DataFrame, column: str, form: Form) -> None:
    """Show how the selected fact's influence splits."""
    place = selected(facts)
    if place is None:
        st.caption("Click an edge of the graph or tick a row to see details of one fact.")
        return
    row: pd.Series = facts[facts["place"] == place].iloc[0]
    markup.show(
        '<div class="clew-card"><h3>{triple}</h3>{effect}</div>',
        triple=markup.triple(row["head"], row["relation"], row["tail"]),
        effect=effect(row, column, form, of="prediction"),
    )
    splits(row, form)


def effect(row: pd.Series, column: str, form: Form, *, of: str) -> Markup:
    """Return in words how a fact or a window changed a prediction, or whatever `of` names."""
    value = float(row[column])
    return markup.fill(
        _EFFECT,
        kind="clew-for" if value > 0 else "clew-against",
        symbol=palette.sign_symbol(value),
        effect=f"made the {of} more likely" if value > 0 else "made it less likely",
        column=glossary.score(column, form).label,
        value=number_text(value),
        rank=f"{int(row['rank']):,}",
    )


def splits(row: pd.Series, form: Form) -> None:
    """Show how an influence splits by part of the model and by checkpoint."""
    columns = row.to_frame().T
    left, right = st.columns(2)
    halves = (
        (left, f"{form.heading} by part of the model", part_columns(columns), True),
        (right, f"{form.heading} by checkpoint", checkpoint_columns(columns), False),
    )
    for place, title, found, by_part in halves:
        if found:
            split = influence_charts.split_frame(row, found, by_part=by_part)
            chart = influence_charts.share_bars(split, title)
            place.altair_chart(chart, width="stretch", alt=f"Bars: {title}")
