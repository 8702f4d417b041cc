"""Charts of runs as Vega-Lite specifications: quality against cost, curves, memory.

They are written without Altair, which needs a tenth of a second per chart to build and check the
same specification, and takes longer to import than the page Compare should take to draw.
"""

from typing import Any

import pandas as pd

from clew import names
from clew.ui.components import basics, glossary

HEIGHT = 320

Spec = dict[str, Any]
"""A Vega-Lite specification whose `data` is a frame."""


def number(field: str, **more: object) -> Spec:
    return {"field": field, "type": "quantitative", **more}


def name(field: str, **more: object) -> Spec:
    return {"field": field, "type": "nominal", **more}


def quality_against_cost(points: pd.DataFrame, *, cost_key: str, quality_key: str) -> Spec:
    """Return groups as points with their deviations, and a line through those that none beats.

    Args:
        points: Rows as `comparison.points` returns them.
        cost_key: Metric on the x axis; less is better.
        quality_key: Metric on the y axis.
    """
    points = _with_deviations(points)
    first, last = _cost_axis(points)
    # Names are on the inner side of their points: the picture's edge would cut them off.
    points = points.assign(early=points["cost"] <= (first + last) / 2)
    cost, quality = glossary.label(cost_key), glossary.label(quality_key)
    x = number("cost", title=cost, scale=_from_to(first, last))
    y = number("quality", title=quality, scale=_padded(points))
    order = list(points["group"])
    colour = name("group", legend=None, scale={"domain": order, "range": _colours(len(order))})
    tooltip = [
        name("group", title="Variant"),
        number("cost", title=cost, format=".4~g"),
        number("quality", title=quality, format=".4~g"),
    ]
    rule = {"type": "rule", "opacity": 0.6}
    layers: list[Spec] = [
        {
            "transform": [{"filter": "datum.front"}],
            "mark": {
                "type": "line",
                "strokeDash": [5, 4],
                "color": basics.REFERENCE,
                "interpolate": "step-after",
            },
            "encoding": {"x": x, "y": y, "order": number("cost")},
        },
        {
            "mark": rule,
            "encoding": {"x": x, "y": number("low"), "y2": {"field": "high"}, "color": colour},
        },
        {
            "mark": rule,
            "encoding": {"y": y, "x": number("cheap"), "x2": {"field": "costly"}, "color": colour},
        },
        {
            "mark": {"type": "point", "size": 130, "filled": True, "opacity": 1},
            "encoding": {
                "x": x,
                "y": y,
                "color": colour,
                "shape": name("group", legend=None, sort=order),
                "tooltip": tooltip,
            },
        },
    ]
    layers += _names_beside({"x": x, "y": y, "text": name("group"), "tooltip": tooltip})
    return {"data": points, "height": HEIGHT, "layer": layers}


def _with_deviations(points: pd.DataFrame) -> pd.DataFrame:
    quality, cost = points["quality_deviation"].fillna(0), points["cost_deviation"].fillna(0)
    return points.assign(
        low=points["quality"] - quality,
        high=points["quality"] + quality,
        cheap=points["cost"] - cost,
        costly=points["cost"] + cost,
        # Neighbours' names are above and below in turn, so that they do not overlap.
        above=points["cost"].rank(method="first").astype(int) % 2 == 1,
    )


def _names_beside(encoding: Spec) -> list[Spec]:
    text = {"type": "text", "fontSize": 12, "color": basics.ink()}
    return [
        {
            "transform": [{"filter": f"datum.above == {above} && datum.early == {early}"}],
            "mark": text | {"dy": dy, "dx": dx, "align": align},
            "encoding": encoding,
        }
        for above, dy in (("true", -11), ("false", 14))
        for early, dx, align in (("true", 9, "left"), ("false", -9, "right"))
    ]


def _cost_axis(points: pd.DataFrame) -> tuple[float, float]:
    """Return the ends of an axis of costs; no cost is below zero."""
    low, high = float(points["cheap"].min()), float(points["costly"].max())
    margin = max((high - low) * 0.15, abs(high) * 0.02, 1e-9)
    return max(low - margin, min(low, 0.0)), high + margin


def _from_to(first: float, last: float) -> Spec:
    return {"domain": [first, last], "zero": False, "nice": False}


def _padded(points: pd.DataFrame) -> Spec:
    """Return a scale close around the values, which often differ only a little."""
    low, high = float(points["low"].min()), float(points["high"].max())
    margin = max((high - low) * 0.2, abs(high) * 0.002, 1e-9)
    return _from_to(low - margin, high + margin)


def _colours(count: int) -> list[str]:
    return [basics.CATEGORIES[place % len(basics.CATEGORIES)] for place in range(count)]


def curves(
    frame: pd.DataFrame,
    *,
    key: str,
    order: list[str],
    by_time: bool,
    logarithmic: bool = False,
    kind: str = names.KIND_TRAIN,
) -> Spec:
    """Return the curves of a metric: one line per run, one colour per group.

    Args:
        frame: Rows `run, group, step, seconds, value`, as `comparison.curves` returns them.
        key: The metric.
        order: Names of the groups in the order of the table, for their colours.
        by_time: Show minutes since the run started on the x axis instead of optimizer steps.
        logarithmic: Use a logarithmic y axis; values that are not positive are left out.
        kind: Kind of the runs; a search counts trials instead of steps.
    """
    frame = frame.assign(minutes=frame["seconds"] / 60)
    if logarithmic:
        frame = frame[frame["value"] > 0]
    counted = glossary.place_on_curve(key, kind)
    time, step = number("minutes", title="Minutes"), number("step", title=counted)
    label, colours = glossary.label(key), {"domain": order, "range": _colours(len(order))}
    legend = {"title": None, "orient": "bottom", "columns": 4, "labelLimit": 260}
    clicked = {"type": "point", "fields": ["group"]}
    return {
        "data": frame,
        "height": HEIGHT + 40,
        "mark": {"type": "line", "strokeWidth": 2, "clip": True},
        "params": [{"name": "chosen", "select": clicked, "bind": "legend"}],
        "encoding": {
            "x": time if by_time else step,
            "y": number(
                "value", title=label, scale={"type": "log"} if logarithmic else {"zero": False}
            ),
            "color": name("group", scale=colours, legend=legend),
            "detail": name("run"),
            "opacity": {"condition": {"param": "chosen", "value": 0.9}, "value": 0.08},
            "tooltip": [
                name("run", title="Run"),
                number("step", title=counted),
                number("minutes", title="Minutes", format=".1f"),
                number("value", title=label, format=".5~g"),
            ],
        },
    }


def memory_bars(frame: pd.DataFrame, *, order: list[str]) -> Spec:
    """Return bars of peak memory; rows `group, kind, gib`."""
    colours = {"range": [basics.CATEGORIES[0], basics.CATEGORIES[5]]}
    return {
        "data": frame,
        "height": {"step": 40, "for": "position"},
        "mark": {"type": "bar", "cornerRadiusEnd": 3},
        "encoding": {
            "y": name("group", title=None, sort=order, axis={"labelLimit": 220}),
            "yOffset": name("kind"),
            "x": number("gib", title="Peak memory [GiB]"),
            "color": name("kind", scale=colours, legend={"title": None, "orient": "top"}),
            "tooltip": [
                name("group", title="Variant"),
                name("kind", title="Memory"),
                number("gib", title="GiB", format=".2f"),
            ],
        },
    }
