"""Charts of explanations: bars with a sign, parts and checkpoints, agreement, verdicts."""

from collections.abc import Iterable
from typing import Any

import altair as alt
import pandas as pd
import streamlit as st

from clew.runs.reading.facts import Agreement
from clew.ui.components import basics, glossary

MAX_RANKS = 1000
"""How many facts are drawn by their positions in two explanations."""
SIGNS = alt.Scale(domain=["helps", "opposes"], range=[basics.FOR, basics.AGAINST])
ABOVE = alt.Legend(title=None, orient="top")


def _by_name(column: str, order: list[str]) -> alt.Y:
    axis = alt.Axis(labelLimit=260, labelOverlap=False, labelColor=basics.ink())
    return alt.Y(f"{column}:N", sort=order, title=None, axis=axis)


def _by_sign(legend: alt.Legend = ABOVE) -> alt.Color:
    return alt.Color("sign:N", scale=SIGNS, legend=legend)


def _signs(values: Iterable[float]) -> list[str]:
    return ["helps" if value > 0 else "opposes" for value in values]


def fact_text(head: object, relation: object, tail: object) -> str:
    return f"{head} – {relation} → {tail}"


def fact_texts(facts: pd.DataFrame) -> list[str]:
    triples = facts[["head", "relation", "tail"]].astype(object).to_numpy()
    return [fact_text(head, relation, tail) for head, relation, tail in triples]


def fact_bars(facts: pd.DataFrame, column: str, title: str, selected: int | None) -> alt.Chart:
    """Return the strongest facts as bars; colour, direction and symbol show the sign.

    Args:
        facts: Rows as `influence.facts_of` returns them, in the order to show.
        column: `influence` or `cosine`.
        title: Name of the numbers.
        selected: Place of the fact that is selected.
    """
    values = facts[column].to_numpy(float)
    texts = [
        f"{basics.sign_symbol(value)} {text}"
        for value, text in zip(values, fact_texts(facts), strict=True)
    ]
    frame = pd.DataFrame({"fact": texts, "rank": facts["rank"].to_numpy(), "value": values})
    frame["sign"] = _signs(values)
    frame["chosen"] = facts["place"].to_numpy() == selected
    # Two facts can have the same text: the place keeps their bars apart; only the text is shown.
    frame["place"] = [f"{place}|{text}" for place, text in zip(facts["place"], texts, strict=True)]
    labels = alt.Axis(
        labelExpr="slice(datum.value, indexof(datum.value, '|') + 1)",
        labelAlign="left",
        labelBaseline="bottom",
        labelPadding=-4,
        labelOffset=1,
        labelLimit=560,
        labelColor=basics.ink(),
        labelOverlap=False,
        ticks=False,
        domain=False,
        zindex=1,
    )
    chart: alt.Chart = (
        alt.Chart(frame)
        .mark_bar(cornerRadius=2, height=9, yOffset=8)
        .encode(
            y=alt.Y("place:N", sort=list(frame["place"]), title=None, axis=labels),
            x=alt.X("value:Q", title=title),
            color=_by_sign(alt.Legend(title=None, orient="top", symbolType="square")),
            opacity=alt.condition("datum.chosen", alt.value(1.0), alt.value(0.75)),
            tooltip=[
                alt.Tooltip("fact:N", title="Training fact"),
                alt.Tooltip("rank:Q", title="Rank on its side"),
                alt.Tooltip("value:Q", title=title, format=".4~g"),
            ],
        )
        .properties(height=alt.Step(32))
    )
    return chart


def share_bars(shares: pd.DataFrame, title: str) -> alt.Chart:
    """Return how a fact's influence splits; rows `part, value` in the order to show."""
    frame = shares.assign(
        sign=_signs(shares["value"]),
        text=[f"{basics.sign_symbol(value)} {value:.3g}" for value in shares["value"]],
    )
    chart: alt.Chart = (
        alt.Chart(frame)
        .mark_bar(cornerRadius=2)
        .encode(
            y=_by_name("part", list(frame["part"])),
            x=alt.X("value:Q", title=title),
            color=alt.Color("sign:N", scale=SIGNS, legend=None),
            tooltip=[alt.Tooltip("part:N", title="Share"), alt.Tooltip("text:N", title=title)],
        )
        .properties(height=alt.Step(26))
    )
    return chart


def group_bars(groups: pd.DataFrame, name: str) -> alt.Chart:
    """Return sums of helping and opposing influence by group."""
    long = groups.melt(["group", "facts"], ["helping", "opposing"], "sign", "value")
    long["sign"] = long["sign"].map({"helping": "helps", "opposing": "opposes"})
    chart: alt.Chart = (
        alt.Chart(long)
        .mark_bar(cornerRadius=2)
        .encode(
            y=_by_name("group", list(groups["group"])),
            x=alt.X("value:Q", title=f"Sum of {name}"),
            color=_by_sign(),
            tooltip=[
                alt.Tooltip("group:N", title="Group"),
                alt.Tooltip("facts:Q", title="Facts"),
                alt.Tooltip("value:Q", title="Sum", format=".4~g"),
            ],
        )
        .properties(height=alt.Step(30))
    )
    return chart


def place_bars(windows: pd.DataFrame, column: str, title: str, selected: int) -> alt.Chart:
    """Return the influence of training windows over their places in the training text.

    Args:
        windows: Rows as `windows.text_windows` returns them.
        column: `influence` or `cosine`.
        title: Name of the numbers.
        selected: Place of the open window in the list.
    """
    frame = windows[["rank", "window", "first_token"]].assign(
        value=windows[column],
        sign=_signs(windows[column]),
        chosen=windows["place"] == selected,
        zero=0,
    )
    chart: alt.Chart = (
        alt.Chart(frame)
        .mark_rule(strokeWidth=4, strokeCap="round")
        .encode(
            x=alt.X("first_token:Q", title="First token of the window"),
            y=alt.Y("value:Q", title=title),
            y2="zero:Q",
            color=_by_sign(),
            opacity=alt.condition("datum.chosen", alt.value(1.0), alt.value(0.6)),
            tooltip=[
                alt.Tooltip("window:Q", title="Window", format=","),
                alt.Tooltip("rank:Q", title="Rank on its side"),
                alt.Tooltip("value:Q", title=title, format=".4~g"),
            ],
        )
        .properties(height=220)
    )
    return chart


def rank_scatter(facts: pd.DataFrame, names: tuple[str, str]) -> alt.LayerChart:
    """Return the positions of the facts in two explanations against each other."""
    shown = facts.nsmallest(MAX_RANKS, "position")
    frame = pd.DataFrame(
        {
            "fact": fact_texts(shown),
            "position": shown["position"].to_numpy(),
            "other": shown["other_position"].to_numpy(),
            "moved": shown["moved"].abs().to_numpy(),
        }
    )
    largest = int(max(frame["position"].max(), frame["other"].max()))
    scale = alt.Scale(domain=[1, largest], type="symlog")
    diagonal = (
        alt.Chart(pd.DataFrame({"position": [1, largest], "other": [1, largest]}))
        .mark_line(strokeDash=[4, 4], color=basics.REFERENCE)
        .encode(x=alt.X("position:Q", scale=scale), y=alt.Y("other:Q", scale=scale))
    )
    dots = (
        alt.Chart(frame)
        .mark_circle(size=45, opacity=0.7, color=basics.FOR)
        .encode(
            x=alt.X("position:Q", title=f"Position in {names[0]}", scale=scale),
            y=alt.Y("other:Q", title=f"Position in {names[1]}", scale=scale),
            tooltip=[
                alt.Tooltip("fact:N", title="Training fact"),
                alt.Tooltip("position:Q", title=names[0]),
                alt.Tooltip("other:Q", title=names[1]),
            ],
        )
    )
    chart: alt.LayerChart = (diagonal + dots).properties(height=320)
    return chart


def verdict_bars(frame: pd.DataFrame) -> alt.Chart:
    """Return the verdicts by relation or by run; rows `group, verdict, reviews`."""
    shown = frame.assign(verdict=[f"{basics.VERDICT_SYMBOLS[v]} {v}" for v in frame["verdict"]])
    domain = [f"{symbol} {verdict}" for verdict, symbol in basics.VERDICT_SYMBOLS.items()]
    scale = alt.Scale(domain=domain, range=list(basics.VERDICT_COLOURS.values()))
    chart: alt.Chart = (
        alt.Chart(shown)
        .mark_bar()
        .encode(
            y=_by_name("group", list(dict.fromkeys(shown["group"]))),
            x=alt.X("reviews:Q", title="Reviews", axis=alt.Axis(tickMinStep=1)),
            color=alt.Color("verdict:N", scale=scale, legend=ABOVE),
            order=alt.Order("verdict:N"),
            tooltip=[
                alt.Tooltip("group:N", title="Of"),
                alt.Tooltip("verdict:N", title="Verdict"),
                alt.Tooltip("reviews:Q", title="Reviews"),
            ],
        )
        .properties(height=alt.Step(38))
    )
    return chart


def split_frame(row: pd.Series, columns: list[str], *, by_part: bool) -> pd.DataFrame:
    """Return one fact's influence by part of the model, or by checkpoint, for `share_bars`."""
    if by_part:
        labels = [glossary.part(column) for column in columns]
    else:
        labels = [f"step {column.rpartition('_')[2]}" for column in columns]
    return pd.DataFrame({"part": labels, "value": [float(row[column]) for column in columns]})


MAX_MOVED = 200
HEIGHT = 320


def show_agreement(found: Agreement, names: tuple[str, str]) -> None:
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
        rank_scatter(found.facts, names),
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
            "Training fact": fact_texts(facts),
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
