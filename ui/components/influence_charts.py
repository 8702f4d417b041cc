"""Charts of explanations: bars with a sign, parts and checkpoints, agreement, verdicts."""

from collections.abc import Iterable

import altair as alt
import pandas as pd

from clew.ui.components import glossary, palette

MAX_RANKS = 1000
"""How many facts are drawn by their positions in two explanations."""
SIGNS = alt.Scale(domain=["helps", "opposes"], range=[palette.FOR, palette.AGAINST])
ABOVE = alt.Legend(title=None, orient="top")


def _by_name(column: str, order: list[str]) -> alt.Y:
    axis = alt.Axis(labelLimit=260, labelOverlap=False, labelColor=palette.ink())
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
        f"{palette.sign_symbol(value)} {text}"
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
        labelColor=palette.ink(),
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
        text=[f"{palette.sign_symbol(value)} {value:.3g}" for value in shares["value"]],
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
        .mark_line(strokeDash=[4, 4], color=palette.REFERENCE)
        .encode(x=alt.X("position:Q", scale=scale), y=alt.Y("other:Q", scale=scale))
    )
    dots = (
        alt.Chart(frame)
        .mark_circle(size=45, opacity=0.7, color=palette.FOR)
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
    shown = frame.assign(verdict=[f"{palette.VERDICT_SYMBOLS[v]} {v}" for v in frame["verdict"]])
    domain = [f"{symbol} {verdict}" for verdict, symbol in palette.VERDICT_SYMBOLS.items()]
    scale = alt.Scale(domain=domain, range=list(palette.VERDICT_COLOURS.values()))
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
