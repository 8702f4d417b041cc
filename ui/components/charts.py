"""Charts as Vega-Lite specifications: of runs, explanations, reviews and predictions.

They are written without Altair, which needs a tenth of a second per chart to build and check the
same specification, and takes longer to import than the page Compare should take to draw.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from clew import names
from clew.runs.reading.metrics import number_text
from clew.ui.components import basics, glossary

HEIGHT = 320
SIGNS = {"domain": ["helps", "opposes"], "range": [basics.FOR, basics.AGAINST]}
ABOVE = {"title": None, "orient": "top"}

Spec = dict[str, Any]
"""A Vega-Lite specification whose `data` is a frame."""


def number(field: str, **more: object) -> Spec:
    return {"field": field, "type": "quantitative", **more}


def name(field: str, **more: object) -> Spec:
    return {"field": field, "type": "nominal", **more}


def _tooltip(named: Mapping[str, str], **numbers: str | tuple[str, str]) -> list[Spec]:
    """Return what is said of a mark: fields with their titles, and numbers with their formats."""
    said = [name(field, title=title) for field, title in named.items()]
    for field, shown in numbers.items():
        title, form = (shown, "") if isinstance(shown, str) else shown
        said.append(number(field, title=title) | ({"format": form} if form else {}))
    return said


def _layer(mark: Spec, *, where: str = "", **encoding: Any) -> Spec:
    """Return the marks of the rows that pass a filter, if there is one, and how they look."""
    chosen = {"transform": [{"filter": where}]} if where else {}
    return {**chosen, "mark": mark, "encoding": encoding}


def quality_against_cost(points: pd.DataFrame, *, cost_key: str, quality_key: str) -> Spec:
    """Return groups as points with their deviations, and a line through those that none beats.

    `points` are those of `comparison_table.points`.
    """
    deviation, spread = points["quality_deviation"].fillna(0), points["cost_deviation"].fillna(0)
    points = points.assign(
        low=points["quality"] - deviation,
        high=points["quality"] + deviation,
        cheap=points["cost"] - spread,
        costly=points["cost"] + spread,
        # Neighbours' names are above and below in turn, so that they do not overlap.
        above=points["cost"].rank(method="first").astype(int) % 2 == 1,
    )
    first, last = _around(points["cheap"], points["costly"], 0.15, 0.02)
    first = max(first, min(float(points["cheap"].min()), 0.0))  # no cost is below zero
    # Names are on the inner side of their points: the picture's edge would cut them off.
    points = points.assign(early=points["cost"] <= (first + last) / 2)
    cost, quality = glossary.label(cost_key), glossary.label(quality_key)
    x = number("cost", title=cost, scale=_from_to(first, last))
    # The values often differ only a little.
    scale = _from_to(*_around(points["low"], points["high"], 0.2, 0.002))
    y = number("quality", title=quality, scale=scale)
    order = list(points["group"])
    colour = name("group", legend=None, scale=_colours(order))
    tooltip = _tooltip({"group": "Variant"}, cost=(cost, ".4~g"), quality=(quality, ".4~g"))
    rule = {"type": "rule", "opacity": 0.6}
    line = {"type": "line", "strokeDash": [5, 4], "color": basics.REFERENCE}
    point = {"type": "point", "size": 130, "filled": True, "opacity": 1}
    shape = name("group", legend=None, sort=order)
    text = {"type": "text", "fontSize": 12, "color": basics.ink()}
    steps = line | {"interpolate": "step-after"}
    layers = [
        _layer(steps, where="datum.front", x=x, y=y, order=number("cost")),
        _layer(rule, x=x, y=number("low"), y2={"field": "high"}, color=colour),
        _layer(rule, y=y, x=number("cheap"), x2={"field": "costly"}, color=colour),
        _layer(point, x=x, y=y, color=colour, shape=shape, tooltip=tooltip),
    ]
    for above, dy in (("true", -11), ("false", 14)):
        for early, dx, align in (("true", 9, "left"), ("false", -9, "right")):
            beside = text | {"dy": dy, "dx": dx, "align": align}
            where = f"datum.above == {above} && datum.early == {early}"
            layers.append(
                _layer(beside, where=where, x=x, y=y, text=name("group"), tooltip=tooltip)
            )
    return {"data": points, "height": HEIGHT, "layer": layers}


def trials(frame: pd.DataFrame, settings: Sequence[str], title: str) -> Spec:
    """Return the trials of a search in parallel coordinates: a line each, an axis for a setting.

    Numbers over two orders of magnitude or more are placed by their logarithm.
    """
    frame = frame[frame["value"].notna()].rename(columns={"value": title})
    axes = [*settings, title]
    rows, ends = [], []
    for axis in axes:
        shown, places = frame[axis].map(setting_text), pd.to_numeric(frame[axis], errors="coerce")
        if places.isna().any():
            places = shown.rank(method="dense")
        elif places.min() > 0 and places.max() >= 100 * places.min():
            places = np.log10(places)
        heights = (places - places.min()) / (float(places.max() - places.min()) or 1.0)
        columns = (frame["trial"], frame[title], shown, heights)
        for trial, result, said, at in zip(*columns, strict=True):
            rows.append({"trial": trial, "result": result, "axis": axis, "text": said, "at": at})
        for at, place in ((-0.14, int(places.argmin())), (1.14, int(places.argmax()))):
            ends.append({"axis": axis, "at": at, "text": shown.iloc[place]})
    across = name("axis", sort=axes, title=None, axis={"labelAngle": 0, "labelLimit": 140})
    up = number("at", axis=None, scale={"domain": [-0.2, 1.2]})
    colour = number("result", title=title, scale={"range": [basics.REFERENCE, basics.FOR]})
    tooltip = _tooltip({"trial": "Trial", "axis": "Setting", "text": "Value"}, result=title)
    line = {"type": "line", "point": True, "strokeWidth": 1.5, "opacity": 0.8}
    text = {"type": "text", "fontSize": 11, "color": basics.ink()}
    lines = _layer(line, x=across, y=up, detail=name("trial"), color=colour, tooltip=tooltip)
    texts = _layer(text, x=across, y=up, text=name("text"))
    layers = [lines | {"data": {"values": rows}}, texts | {"data": {"values": ends}}]
    return {"height": HEIGHT, "layer": layers}


def setting_text(value: object) -> str:
    """Return a setting of a trial as people read it: numbers with four digits."""
    try:
        return str(value) if str(value).isdecimal() else number_text(float(str(value)))
    except ValueError:
        return str(value)


def _around(lows: pd.Series, highs: pd.Series, share: float, least: float) -> tuple[float, float]:
    """Return the ends of an axis: a share of the range, or of the largest value, beyond both."""
    low, high = float(lows.min()), float(highs.max())
    margin = max((high - low) * share, abs(high) * least, 1e-9)
    return low - margin, high + margin


def _from_to(first: float, last: float) -> Spec:
    return {"domain": [first, last], "zero": False, "nice": False}


def _colours(order: Sequence[str]) -> Spec:
    colours = [basics.COLOURS[place % len(basics.COLOURS)] for place in range(len(order))]
    return {"domain": list(order), "range": colours}


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

    The frame has rows `run, group, step, seconds, value`; `order` has the groups as in the table,
    for their colours. `by_time` shows minutes since the run started instead of optimizer steps, or
    of a search's trials, by the `kind` of the runs. `logarithmic` leaves out what is not positive.
    """
    frame = frame[np.isfinite(frame["value"].astype(float))].assign(minutes=frame["seconds"] / 60)
    if logarithmic:
        frame = frame[frame["value"] > 0]
    counted, label = glossary.place_on_curve(key, kind), glossary.label(key)
    x = number("minutes", title="Minutes") if by_time else number("step", title=counted)
    scale = {"type": "log"} if logarithmic else {"zero": False}
    legend = {"title": None, "orient": "bottom", "columns": 4, "labelLimit": 260}
    clicked = {"type": "point", "fields": ["group"]}
    return {
        "data": frame,
        "height": HEIGHT + 40,
        "mark": {"type": "line", "strokeWidth": 2, "clip": True},
        "params": [{"name": "chosen", "select": clicked, "bind": "legend"}],
        "encoding": {
            "x": x,
            "y": number("value", title=label, scale=scale),
            "color": name("group", scale=_colours(order), legend=legend),
            "detail": name("run"),
            "opacity": {"condition": {"param": "chosen", "value": 0.9}, "value": 0.08},
            "tooltip": _tooltip(
                {"run": "Run"}, step=counted, minutes=("Minutes", ".1f"), value=(label, ".5~g")
            ),
        },
    }


def _bars(frame: pd.DataFrame, field: str, step: int, **encoding: object) -> Spec:
    """Return horizontal bars, one for each value of a field, in the order of the frame."""
    axis = {"labelLimit": 260, "labelOverlap": False, "labelColor": basics.ink()}
    y = name(field, sort=list(dict.fromkeys(frame[field])), title=None, axis=axis)
    return {
        "data": frame,
        "height": {"step": step, "for": "position"},
        "mark": {"type": "bar", "cornerRadius": 2},
        "encoding": {"y": y, **encoding},
    }


def fact_text(head: object, relation: object, tail: object) -> str:
    return f"{head} – {relation} → {tail}"


def fact_texts(facts: pd.DataFrame) -> list[str]:
    """Return facts as texts; those that have one text, by their names in the data instead."""
    terms = ["head", "relation", "tail"]
    texts, named = (
        pd.Series([fact_text(*each) for each in facts[of].astype(object).to_numpy()], dtype=str)
        for of in (terms, [f"{term}_id" for term in terms])
    )
    return texts.where(~texts.duplicated(keep=False), named).tolist()


def share_bars(row: pd.Series, columns: Sequence[str], title: str) -> Spec:
    """Return how a fact's influence splits, by part of the model or by checkpoint."""
    values = row[[*columns]].to_numpy(float)
    frame = pd.DataFrame({"part": [*map(glossary.part, columns)], "value": values})
    frame["text"] = [f"{basics.sign_symbol(value)} {value:.3g}" for value in frame["value"]]
    frame["sign"] = ["helps" if value > 0 else "opposes" for value in frame["value"]]
    return _bars(
        frame,
        "part",
        26,
        x=number("value", title=title),
        color=name("sign", scale=SIGNS, legend=None),
        tooltip=_tooltip({"part": "Share", "text": title}),
    )


def group_bars(groups: pd.DataFrame, title: str) -> Spec:
    """Return sums of helping and opposing influence by group."""
    long = groups.melt(["group", "facts"], ["helping", "opposing"], "sign", "value")
    return _bars(
        long.replace({"sign": {"helping": "helps", "opposing": "opposes"}}),
        "group",
        30,
        x=number("value", title=f"Sum of {title}"),
        color=name("sign", scale=SIGNS, legend=ABOVE),
        tooltip=_tooltip({"group": "Group"}, facts="Facts", value=("Sum", ".4~g")),
    )


def verdict_bars(frame: pd.DataFrame) -> Spec:
    """Return the verdicts by relation or by run; rows `group, verdict, reviews`."""
    texts = {verdict: f"{symbol} {verdict}" for verdict, symbol in basics.VERDICT_SYMBOLS.items()}
    scale = {"domain": [*texts.values()], "range": [*basics.VERDICT_COLOURS.values()]}
    return _bars(
        frame.assign(verdict=frame["verdict"].map(texts)),
        "group",
        38,
        x=number("reviews", title="Reviews", axis={"tickMinStep": 1}),
        color=name("verdict", scale=scale, legend=ABOVE),
        order=name("verdict"),
        tooltip=_tooltip({"group": "Of", "verdict": "Verdict"}, reviews="Reviews"),
    )


def predictions(frame: pd.DataFrame, title: str) -> Spec:
    """Return the predictions over frames: a line and an interval for each group.

    The columns of the frame are `last_frame, group, prediction, lower, upper`; the last two can be
    null.
    """
    groups = list(dict.fromkeys(frame["group"]))
    legend = ABOVE if 1 < len(groups) <= len(basics.COLOURS) else None
    colour = name("group", scale=_colours(groups), legend=legend)
    x = number("last_frame", title="Last frame", axis={"tickMinStep": 1})
    y = number("prediction", title=title, scale={"zero": False})
    called = {"prediction": "Prediction", "lower": "From", "upper": "To"}
    values = {field: (title, ".5~g") for field, title in called.items()}
    frames = number("last_frame", title="Last frame")
    tooltip = [frames, *_tooltip({"group": "Group"}, **values)]
    area, low = {"type": "area", "opacity": 0.18}, number("lower", title=title)
    band = _layer(area, x=x, y=low, y2={"field": "upper"}, color=colour)
    drawn = {"type": "line", "point": {"size": 36}}
    line = _layer(drawn, x=x, y=y, color=colour, tooltip=tooltip)
    layers = [line] if frame["lower"].isna().all() else [band, line]
    return {"data": frame, "height": HEIGHT + 20, "layer": layers}
