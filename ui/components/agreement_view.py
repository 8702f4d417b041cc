"""Two explanations of the same prediction side by side: how far they agree, and what moved."""

from typing import Any

import pandas as pd
import streamlit as st

from clew.ui.components import glossary, influence_charts
from clew.ui.data.influence import Agreement

MAX_MOVED = 200
HEIGHT = 320


def show(found: Agreement, names: tuple[str, str]) -> None:
    """Show the agreement in numbers, as a picture and as a table."""
    shown = [(f"Top {size} in both", f"{share:.0%}") for size, share in found.overlap.items()]
    columns = st.columns(len(shown) + 2)
    spearman = "–" if found.spearman is None else f"{found.spearman:.3f}"
    columns[0].metric("Spearman", spearman, help=glossary.SPEARMAN, border=True)
    columns[1].metric(
        "Common facts", f"{found.common:,}", help="Facts that both reports contain.", border=True
    )
    for column, (label, value) in zip(columns[2:], shown, strict=True):
        column.metric(label, value, help=glossary.OVERLAP, border=True)
    if not found.common:
        return
    left, right = st.columns(2)
    left.altair_chart(
        influence_charts.rank_scatter(found.facts, names),
        width="stretch",
        alt=f"Points: the position of each fact in {names[0]} against that in {names[1]}",
    )
    right.dataframe(
        moved(found, names),
        alt="The facts that moved most",
        hide_index=True,
        height=HEIGHT,
        column_config=_columns(names),
    )


def moved(found: Agreement, names: tuple[str, str]) -> pd.DataFrame:
    """Return the facts that moved most, of those near the top of either explanation."""
    near = found.facts[["position", "other_position"]].min(axis=1) <= MAX_MOVED
    facts = found.facts[near]
    order = facts["moved"].abs().sort_values(ascending=False, kind="stable").index[:MAX_MOVED]
    facts = facts.loc[order]
    return pd.DataFrame(
        {
            "Training fact": influence_charts.fact_texts(facts),
            f"Position, {names[0]}": facts["position"].to_numpy(),
            f"Position, {names[1]}": facts["other_position"].to_numpy(),
            "Moved": facts["moved"].to_numpy(),
        }
    )


def _columns(names: tuple[str, str]) -> dict[str, Any]:
    return {
        "Training fact": st.column_config.TextColumn(width="large"),
        **{
            f"Position, {name}": st.column_config.NumberColumn(
                help="Counted from the most helpful fact to the most opposing one."
            )
            for name in names
        },
        "Moved": st.column_config.NumberColumn(
            format="%+d",
            help=f"How many places lower the fact is in {names[1]} than in {names[0]}.",
        ),
    }
