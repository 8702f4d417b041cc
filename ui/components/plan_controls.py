"""The memory planner: the settings of a configuration, and its budget as stacked bars.

The settings, their bounds and their descriptions come from the schema of the configuration.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import altair as alt
import pandas as pd
import streamlit as st
from annotated_types import Ge, MultipleOf
from pydantic.fields import FieldInfo

from clew.config.base import TRAIN_FLAG, Section
from clew.config.devices import GPU_GB
from clew.config.kinds import TASK_KINDS
from clew.config.schema import RunConfig
from clew.ui import access
from clew.ui.components import markup, palette, states
from clew.ui.data.jobs import Job

NUM_COLUMNS = 4
ANOTHER = "another"
"""The choice of a device that is not in the list."""
TRAINING = ("batch_size", "gradient_accumulation")
OPTIMIZATIONS = ("use_mixed_precision", "use_gradient_checkpointing")
SIZES_HELP = {
    "num_entities": "Entities of the graph.",
    "num_relations": "Relations of the graph, inverses not counted.",
    "vocabulary_size": "Tokens of the vocabulary.",
    "frame_shape": "Channels x height x width of a frame, such as 1x440x640.",
}


@dataclass(frozen=True)
class PlanRequest:
    """What a person wants to plan."""

    changes: dict[str, str]
    """Settings that were changed, `section.key` to value."""
    device: str
    """Name of a GPU; if empty, a device with `memory_gib` of memory."""
    memory_gib: float
    sizes: dict[str, str]
    """Sizes to plan with instead of the data."""


def model_kind(config: RunConfig) -> str:
    """Let a person choose among the models that fit the configuration's data."""
    kinds = TASK_KINDS[config.data.kind].models
    if len(kinds) == 1:
        return kinds[0]
    chosen = st.selectbox(
        "Model", kinds, kinds.index(config.model.kind), key=f"kind {config.data.kind}"
    )
    return chosen or config.model.kind


def request(key: str, config: RunConfig) -> PlanRequest | None:
    """Let a person change settings; return a request once the button is pressed.

    `key` is different for each configuration, so that each has its own form.
    """
    fields = shown_fields(config)
    with st.form(f"plan {key}", border=True):
        places = st.columns(NUM_COLUMNS)
        device = places[0].selectbox(
            "Device", (ANOTHER, *GPU_GB), format_func=_device, key="device"
        )
        memory_gib = places[1].number_input(
            "Memory of another device, GiB", 0.5, 1024.0, 16.0, 0.5, key="gib"
        )
        given = {}
        for number, (name, (field, value)) in enumerate(fields.items(), 2):
            with places[number % NUM_COLUMNS]:
                given[name] = _widget(name, field, value, f"{key} {name}")
        sizes = {}
        with st.expander("Without the data"):
            st.caption("Sizes to plan with instead of the data set; empty: the data set is read.")
            for size in TASK_KINDS[config.data.kind].sizes:
                sizes[size] = st.text_input(
                    _words(size), key=f"{key} {size}", help=SIZES_HELP[size]
                ).strip()
        if not st.form_submit_button("Plan", type="primary", disabled=not access.may("plan")):
            return None
    changes = {
        name: given[name] for name, (_, value) in fields.items() if given[name] != _text(value)
    }
    sizes = {size: text for size, text in sizes.items() if text}
    return PlanRequest(changes, "" if device == ANOTHER else device, memory_gib, sizes)


def _device(name: str) -> str:
    return name if name == ANOTHER else f"{name}, {GPU_GB[name]} GB"


def shown_fields(config: RunConfig) -> dict[str, tuple[FieldInfo, Any]]:
    """Return the settings that determine memory, `section.key` to field and present value.

    For the model, they are integers, lists of integers, and choices. For the data, they are
    integers that have their own command-line option.
    """
    found: list[tuple[str, Section, str]] = []
    found += [("training", config.training, key) for key in TRAINING]
    found += [("optimizations", config.optimizations, key) for key in OPTIMIZATIONS]
    data: Section = config.data
    found += [
        ("data", data, key)
        for key, field in type(data).model_fields.items()
        if field.annotation is int and TRAIN_FLAG in field.metadata
    ]
    model: Section = config.model
    found += [
        ("model", model, key)
        for key, field in type(model).model_fields.items()
        if field.annotation is int or _choices(field) or _is_list(getattr(model, key))
    ]
    return {
        f"{name}.{key}": (type(section).model_fields[key], getattr(section, key))
        for name, section, key in found
    }


def _choices(field: FieldInfo) -> tuple[str, ...]:
    """Return the values of a field with a choice, nothing for other fields."""
    values = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return values if len(values) > 1 else ()


def _is_list(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, int) for item in value)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _words(key: str) -> str:
    return key.replace("num_", "").replace("_", " ").capitalize()


def _widget(name: str, field: FieldInfo, value: Any, key: str) -> str:
    label = _words(name.partition(".")[2])
    if isinstance(value, bool):
        return _text(st.toggle(label, value, key=key, help=field.description))
    if choices := _choices(field):
        return str(
            st.selectbox(label, choices, choices.index(value), key=key, help=field.description)
        )
    if _is_list(value):
        given = st.text_input(label, str(list(value)), key=key, help=field.description)
        return given if given.startswith("[") else f"[{given}]"
    least = next((int(str(m.ge)) for m in field.metadata if isinstance(m, Ge)), 0)
    step = next((int(str(m.multiple_of)) for m in field.metadata if isinstance(m, MultipleOf)), 1)
    return str(st.number_input(label, least, None, value, step, key=key, help=field.description))


def budget(job: Job) -> None:
    result = job.result()
    if result is None:
        states.warning("The planner gave no result that can be shown; its message is above.")
        return
    first, limit = result["variants"][0], float(result["limit_gib"])
    columns = st.columns(3)
    columns[0].metric("Predicted peak", f"{first['total_gib']:.2f} GiB")
    columns[1].metric("On device", f"{limit:.2f} GiB")
    largest, searched = result["largest_batch_size"], result["searched_batch_size"]
    columns[2].metric("Largest batch", f"{'≥ ' if largest == searched else ''}{largest or 'none'}")
    fits = first["total_gib"] <= limit
    verdict = "✓ It fits." if fits else "✗ It does not fit: see which change would."
    st.markdown(f"{verdict} Planned for device `{markup.markdown(result['device'])}`.")
    alt = "Bars: the memory that each change would need, by part, and the memory of the device"
    st.altair_chart(stacked_bars(result), width="stretch", alt=alt)


def stacked_bars(result: dict[str, Any]) -> alt.LayerChart:
    """Return a bar for each variant, its parts stacked, and a line for the available memory.

    The axis fits the bars. With more than twice the memory of the longest bar, the line is left
    out.
    """
    parts = pd.DataFrame(
        [
            {"variant": variant["name"], "part": part, "gib": gib, "order": order}
            for variant in result["variants"]
            for order, (part, gib) in enumerate(variant["parts_gib"].items())
        ]
    )
    longest, there_is = float(parts.groupby("variant")["gib"].sum().max()), result["limit_gib"]
    end = 1.05 * (there_is if longest < there_is <= 2 * longest else longest)
    order = list(result["variants"][0]["parts_gib"])
    colours = [*palette.CATEGORIES, palette.NEUTRAL][: len(order)]
    bars = (
        alt.Chart(parts)
        .mark_bar()
        .encode(
            x=alt.X("sum(gib):Q", title="GiB", scale=alt.Scale(domain=[0, end], nice=False)),
            y=alt.Y("variant:N", title=None, sort=None, axis=alt.Axis(labelLimit=220)),
            color=alt.Color("part:N", scale=alt.Scale(domain=order, range=colours), title=None),
            order=alt.Order("order:Q"),
            tooltip=["variant", "part", alt.Tooltip("gib:Q", format=".3f", title="GiB")],
        )
    )
    limit = pd.DataFrame({"gib": [float(there_is)] if there_is <= end else []}, dtype=float)
    rule = (
        alt.Chart(limit)
        .mark_rule(color=palette.AGAINST, strokeWidth=2)
        .encode(x="gib:Q", tooltip=[alt.Tooltip("gib:Q", format=".2f", title="GiB on device")])
    )
    height = 40 * len(result["variants"]) + 60
    chart: alt.LayerChart = (bars + rule).properties(height=height)
    return chart
