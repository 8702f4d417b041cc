"""The memory planner: sliders for a configuration, and its budget as stacked bars."""

from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd
import streamlit as st

from clew.config.schema import RunConfig
from ui.components import markup, palette, states
from ui.data.jobs import Job

SLIDERS: dict[str, dict[str, list[int]]] = {
    "conve": {
        "embedding_dim": [32, 64, 96, 128, 200, 256, 288, 400, 512],
        "output_channels": [8, 16, 32, 64, 128],
    },
    "eigenstate_lm": {
        "d_model": [128, 256, 512, 768, 1024, 1280, 1536],
        "n_layers": [1, 2, 4, 6, 8, 12, 16],
        "max_seq_len": [128, 256, 512, 1024, 2048, 4096, 8192, 32768],
    },
}
"""Dimensions with a slider for each kind of model; another kind has its batch size alone."""
BATCH_SIZES = [2**power for power in range(15)]
COMPANIONS = {
    "embedding_dim": {"embedding_height": "null", "embedding_width": "null"},
    "d_model": {"num_gates": "null"},
}
"""Keys that follow from a dimension that was moved."""
SWITCHES = {
    "use_mixed_precision": "Mixed precision",
    "use_gradient_checkpointing": "Gradient checkpointing",
}


@dataclass(frozen=True)
class PlanRequest:
    """What a person wants planned."""

    config: str
    assignments: tuple[str, ...]
    memory_gib: float


def request(chosen: str, config: RunConfig) -> PlanRequest | None:
    """Let a person move the sliders; return a request once the button is pressed."""
    with st.form("plan", border=True):
        left, right = st.columns(2)
        with left:
            batch_size = _slider("Batch size", BATCH_SIZES, config.training.batch_size, "batch")
            moved = _dimensions(config)
        with right:
            memory_gib = st.number_input(
                "Memory of the card or machine, GiB", 0.5, 1024.0, 16.0, 0.5, key="gib"
            )
            switched = {
                key: st.toggle(label, getattr(config.optimizations, key), key=key)
                for key, label in SWITCHES.items()
            }
        if not st.form_submit_button("Plan", type="primary"):
            return None
    settings: dict[str, Any] = {"training.batch_size": batch_size}
    settings |= {f"optimizations.{key}": str(on).lower() for key, on in switched.items()}
    for key, value in moved.items():
        settings |= {f"model.{k}": v for k, v in COMPANIONS.get(key, {}).items()}
        settings[f"model.{key}"] = value
    return PlanRequest(chosen, tuple(f"{k}={v}" for k, v in settings.items()), memory_gib)


def _dimensions(config: RunConfig) -> dict[str, int]:
    """Return the dimensions that were moved away from the configuration's."""
    moved: dict[str, int] = {}
    for key, steps in SLIDERS.get(config.model.kind, {}).items():
        present = int(getattr(config.model, key))
        value = _slider(key.replace("_", " ").capitalize(), steps, present, key)
        if value != present:
            moved[key] = value
    return moved


def _slider(label: str, steps: list[int], present: int, key: str) -> int:
    options = sorted({*steps, present})
    return int(st.select_slider(label, options, value=present, key=key))


def budget(job: Job) -> None:
    """Show the budget that a job has planned."""
    result = job.result()
    if result is None:
        states.warning("The planner said nothing that can be shown; see what it said above.")
        return
    first, limit = result["variants"][0], float(result["limit_gib"])
    columns = st.columns(3)
    columns[0].metric("Predicted peak", f"{first['total_gib']:.2f} GiB")
    columns[1].metric("There is", f"{limit:.2f} GiB")
    largest, searched = result["largest_batch_size"], result["searched_batch_size"]
    columns[2].metric("Largest batch", f"{'≥ ' if largest == searched else ''}{largest or 'none'}")
    fits = first["total_gib"] <= limit
    st.markdown(
        markdown_verdict(fits) + f" Planned for device `{markup.markdown(result['device'])}`."
    )
    st.altair_chart(stacked_bars(result), width="stretch")


def markdown_verdict(fits: bool) -> str:
    """Return in words whether a configuration fits."""
    return "✓ It fits." if fits else "✗ It does not fit: see which change would."


def stacked_bars(result: dict[str, Any]) -> alt.LayerChart:
    """Return a bar for each variant, its parts stacked, beside a line for the memory there is."""
    parts = pd.DataFrame(
        [
            {"variant": variant["name"], "part": part, "gib": gib, "order": order}
            for variant in result["variants"]
            for order, (part, gib) in enumerate(variant["parts_gib"].items())
        ]
    )
    order = list(result["variants"][0]["parts_gib"])
    colours = [*palette.CATEGORIES, palette.NEUTRAL][: len(order)]
    bars = (
        alt.Chart(parts)
        .mark_bar()
        .encode(
            x=alt.X("sum(gib):Q", title="GiB"),
            y=alt.Y("variant:N", title=None, sort=None, axis=alt.Axis(labelLimit=220)),
            color=alt.Color("part:N", scale=alt.Scale(domain=order, range=colours), title=None),
            order=alt.Order("order:Q"),
            tooltip=["variant", "part", alt.Tooltip("gib:Q", format=".3f", title="GiB")],
        )
    )
    limit = pd.DataFrame({"gib": [float(result["limit_gib"])]})
    rule = (
        alt.Chart(limit)
        .mark_rule(color=palette.AGAINST, strokeWidth=2)
        .encode(x="gib:Q", tooltip=[alt.Tooltip("gib:Q", format=".2f", title="GiB there are")])
    )
    height = 40 * len(result["variants"]) + 60
    chart: alt.LayerChart = (bars + rule).properties(height=height)
    return chart
