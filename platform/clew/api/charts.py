"""The chart of an explanation; outside the dashboard, only this module imports Altair."""

from collections.abc import Sequence

import altair as alt
import pandas as pd

from clew.api.arguments import Count, checked
from clew.api.explanations import FACT, TEST

FOR, AGAINST = "#1F88CB", "#D55E00"
"""Okabe and Ito's blue (a little lighter) and vermilion, a pair safe for colour-blind people."""
SIDES = alt.Scale(domain=["proponent", "opponent"], range=[FOR, AGAINST])
BAR_PIXELS = 18
LABEL_PIXELS = 420

Chart = alt.Chart | alt.VConcatChart


@checked
def influence_chart(
    frame: pd.DataFrame, titles: Sequence[str], heading: str, *, num_examples: Count
) -> Chart:
    """Return bars of the strongest examples, one panel with a title for each prediction.

    The frame is a table of `clew.api.explanations`, the heading the name and unit of its scores.
    """
    drawn = frame[frame["rank"] <= num_examples]
    panels = [_panel(drawn[drawn[TEST] == i], title, heading) for i, title in enumerate(titles)]
    return panels[0] if len(panels) == 1 else alt.vconcat(*panels)


def _panel(rows: pd.DataFrame, title: str, heading: str) -> alt.Chart:
    """Return the bars of one prediction, proponents above opponents."""
    drawn = rows[["side", "rank", "influence"]].copy()
    # Two examples can have the same text; the number before the text keeps their bars separate.
    drawn["example"] = [f"{place}. {text}" for place, text in enumerate(rows[FACT], start=1)]
    chart: alt.Chart = (
        alt.Chart(drawn, title=alt.Title(title, anchor="start"), height=alt.Step(BAR_PIXELS))
        .mark_bar()
        .encode(
            x=alt.X("influence:Q", title=heading),
            y=alt.Y("example:N", sort=None, title=None, axis=alt.Axis(labelLimit=LABEL_PIXELS)),
            color=alt.Color("side:N", scale=SIDES, title=None),
            tooltip=["example:N", "side:N", "rank:Q", alt.Tooltip("influence:Q", format=".4g")],
        )
    )
    return chart
