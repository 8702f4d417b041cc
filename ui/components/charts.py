"""Charts of runs: quality against cost, curves, memory; data in, a specification out."""

from typing import cast

import altair as alt
import pandas as pd

from clew.ui.components import glossary, palette, theme

HEIGHT = 320
POINT_COLUMNS = ("group", "cost", "quality", "cost_deviation", "quality_deviation", "front")


def quality_against_cost(
    points: pd.DataFrame, *, cost_key: str, quality_key: str
) -> alt.LayerChart:
    """Return groups as points with their deviations, and the line of those that none beats.

    Args:
        points: Rows with `POINT_COLUMNS`; `front` says whether no other group beats it.
        cost_key: Metric on the x axis; less is better.
        quality_key: Metric on the y axis.
    """
    points = points.assign(
        low=points["quality"] - points["quality_deviation"].fillna(0),
        high=points["quality"] + points["quality_deviation"].fillna(0),
        cheap=points["cost"] - points["cost_deviation"].fillna(0),
        dear=points["cost"] + points["cost_deviation"].fillna(0),
    )
    x = alt.X("cost:Q", title=glossary.label(cost_key), scale=alt.Scale(zero=False, padding=56))
    y = alt.Y("quality:Q", title=glossary.label(quality_key), scale=_padded(points))
    # Neighbours' names stand above and below in turn, so that they do not cover each other.
    above = points["cost"].rank(method="first").astype(int) % 2 == 1
    base = alt.Chart(points.assign(above=above))
    front = (
        base.transform_filter("datum.front")
        .mark_line(strokeDash=[5, 4], color=palette.REFERENCE, interpolate="step-after")
        .encode(x=x, y=y, order=alt.Order("cost:Q"))
    )
    order = list(points["group"])
    colours = alt.Scale(domain=order, range=_colours(len(order)))
    colour = alt.Color("group:N", scale=colours, legend=None)
    tooltip = [
        alt.Tooltip("group:N", title="Variant"),
        alt.Tooltip("cost:Q", title=glossary.label(cost_key), format=".4~g"),
        alt.Tooltip("quality:Q", title=glossary.label(quality_key), format=".4~g"),
    ]
    bars = base.mark_rule(opacity=0.6).encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=colour)
    widths = base.mark_rule(opacity=0.6).encode(y=y, x=alt.X("cheap:Q"), x2="dear:Q", color=colour)
    dots = base.mark_point(size=130, filled=True, opacity=1).encode(
        x=x, y=y, color=colour, shape=alt.Shape("group:N", legend=None, sort=order), tooltip=tooltip
    )
    texts = [
        base.transform_filter(f"datum.above == {side}")
        .mark_text(align="left", dx=9, dy=dy, fontSize=12, color=theme.ink())
        .encode(x=x, y=y, text="group:N", tooltip=tooltip)
        for side, dy in (("true", -11), ("false", 14))
    ]
    layers = alt.layer(front, bars, widths, dots, *texts)
    return cast(alt.LayerChart, layers.properties(height=HEIGHT))


def _padded(points: pd.DataFrame) -> alt.Scale:
    """Return a scale around the values; they often differ by little."""
    low, high = float(points["low"].min()), float(points["high"].max())
    margin = max((high - low) * 0.2, abs(high) * 0.002, 1e-9)
    return alt.Scale(domain=[low - margin, high + margin], zero=False, nice=False)


def _colours(number: int) -> list[str]:
    return [palette.CATEGORIES[place % len(palette.CATEGORIES)] for place in range(number)]


def curves(
    frame: pd.DataFrame, *, key: str, order: list[str], by_time: bool, logarithmic: bool = False
) -> alt.Chart:
    """Return the curves of a metric, a line a run, a colour a group.

    Args:
        frame: Rows `run, group, step, seconds, value`, as `comparison.curves` returns them.
        key: The metric.
        order: Names of the groups in the order of the table, for their colours.
        by_time: Minutes since the run started on the x axis instead of optimizer steps.
        logarithmic: A logarithmic y axis; values that are not positive are left out.
    """
    frame = frame.assign(minutes=frame["seconds"] / 60)
    if logarithmic:
        frame = frame[frame["value"] > 0]
    x = alt.X("minutes:Q", title="Minutes") if by_time else alt.X("step:Q", title="Optimizer step")
    scale = alt.Scale(type="log") if logarithmic else alt.Scale(zero=False)
    chosen = alt.selection_point(fields=["group"], bind="legend")
    legend = alt.Legend(title=None, orient="bottom", columns=4, labelLimit=260)
    colours = alt.Scale(domain=order, range=_colours(len(order)))
    chart: alt.Chart = (
        alt.Chart(frame)
        .mark_line(strokeWidth=2, clip=True)
        .encode(
            x=x,
            y=alt.Y("value:Q", title=glossary.label(key), scale=scale),
            color=alt.Color("group:N", scale=colours, legend=legend),
            detail="run:N",
            opacity=alt.condition(chosen, alt.value(0.9), alt.value(0.08)),
            tooltip=[
                alt.Tooltip("run:N", title="Run"),
                alt.Tooltip("step:Q", title="Step"),
                alt.Tooltip("minutes:Q", title="Minutes", format=".1f"),
                alt.Tooltip("value:Q", title=glossary.label(key), format=".5~g"),
            ],
        )
        .add_params(chosen)
        .properties(height=HEIGHT + 40)
    )
    return chart


def memory_bars(frame: pd.DataFrame, *, order: list[str]) -> alt.Chart:
    """Return bars of peak memory; rows `group, kind, gib`."""
    chart: alt.Chart = (
        alt.Chart(frame)
        .mark_bar(cornerRadiusEnd=3)
        .encode(
            y=alt.Y("group:N", title=None, sort=order, axis=alt.Axis(labelLimit=220)),
            yOffset=alt.YOffset("kind:N"),
            x=alt.X("gib:Q", title="Peak memory [GiB]"),
            color=alt.Color(
                "kind:N",
                scale=alt.Scale(range=[palette.CATEGORIES[0], palette.CATEGORIES[5]]),
                legend=alt.Legend(title=None, orient="top"),
            ),
            tooltip=[
                alt.Tooltip("group:N", title="Variant"),
                alt.Tooltip("kind:N", title="Memory"),
                alt.Tooltip("gib:Q", title="GiB", format=".2f"),
            ],
        )
        .properties(height=alt.Step(40, **{"for": "position"}))
    )
    return chart
