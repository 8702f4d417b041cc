"""Compare: cost and quality of precision, checkpointing and compilation, against a reference."""

from collections.abc import Sequence

import streamlit as st

from clew import names
from clew.ui.components import (
    address,
    charts,
    compare_controls,
    comparison_table,
    glossary,
    markup,
    runs_table,
    states,
    view_controls,
)
from clew.ui.data.comparison import (
    Comparison,
    Setting,
    compared,
    curves,
    memory,
    parameter_table,
    picked_texts,
    points,
    preset,
    views,
)
from clew.ui.data.runs import RunRecord, has_runs, runs_by_id

MAX_RUNS = 60


def render() -> None:
    """Show the page."""
    markup.style()
    st.title("Compare", anchor=False)
    place = st.container()
    with states.guarded("The comparison"):
        if not has_runs():
            states.empty_store()
            return
        saved = views()
        view = view_controls.opened(saved)
        wanted = address.texts("runs")[:MAX_RUNS]
        runs = runs_by_id(wanted)
        view_controls.missing_runs(view, wanted, len(runs))
        _choose(runs)
        if runs:
            _comparison(runs)
        # Last, because every widget must first put its value into the address that is saved.
        with place:
            view_controls.bar(saved, view, runs)


def _choose(runs: Sequence[RunRecord]) -> None:
    compare_controls.preset_button(preset())
    with st.expander("Choose runs", expanded=not runs):
        query = runs_table.run_query(runs_table.experiment(), kinds=False)
        ticked = runs_table.choose(query, key="compare")
        if ticked is not None:
            compare_controls.take_over(ticked, [run.run_id for run in runs])


def _comparison(runs: Sequence[RunRecord]) -> None:
    _different_data(runs)
    setting = compare_controls.setting(runs)
    comparison = compared(runs, setting)
    change = compare_controls.change()
    comparison_table.show(comparison, change, picked_texts(setting))
    with states.guarded("The pictures of cost and quality"):
        _costs(comparison, setting)
    with states.guarded("The curves"):
        _curves(runs, comparison)
    with states.guarded("The parameters"):
        _parameters(runs, comparison)


def _different_data(runs: Sequence[RunRecord]) -> None:
    data = {
        run.tags[names.TAG_DATA_FINGERPRINT]: run.tags.get(names.TAG_DATASET, "")
        for run in runs
        if names.TAG_DATA_FINGERPRINT in run.tags
    }
    if len(data) > 1:
        called = ", ".join(sorted(set(data.values())))
        states.note(f"These runs use different data ({called}): compare only their costs.")


def _costs(comparison: Comparison, setting: Setting) -> None:
    gpu = names.GPU_PEAK_ALLOCATED_GIB
    memory_key = gpu if gpu in comparison.metrics else names.PROCESS_PEAK_GIB
    left, right = st.columns(2)
    pictures = (
        (left, "Quality against time", names.TIME_EPOCH_SECONDS),
        (right, "Quality against memory", memory_key),
    )
    for column, title, key in pictures:
        with column:
            st.header(title, anchor=False, help=compare_controls.FRONT_HELP)
            shown = points(comparison, key, setting.quality)
            if shown.empty:
                states.note("No run has both numbers.")
                continue
            spec = charts.quality_against_cost(shown, cost_key=key, quality_key=setting.quality)
            alt = f"Points: {title[0].lower()}{title[1:]}"
            st.vega_lite_chart(spec, width="stretch", alt=alt)
    bars = memory(comparison)
    if not bars.empty:
        st.header("Peak memory", anchor=False)
        order = [group.label for group in comparison.groups]
        alt = "Bars: peak memory of each variant"
        st.vega_lite_chart(charts.memory_bars(bars, order=order), width="stretch", alt=alt)


def _curves(runs: Sequence[RunRecord], comparison: Comparison) -> None:
    st.header("Curves", anchor=False)
    wanted = compare_controls.curve(runs)
    frame = curves(runs, wanted.key, weight=wanted.smoothing, groups=comparison.groups)
    if frame.empty:
        states.note(f"No run has values of {wanted.key}.")
        return
    order = [group.label for group in comparison.groups]
    spec = charts.curves(
        frame,
        key=wanted.key,
        order=order,
        by_time=wanted.by_time,
        logarithmic=wanted.logarithmic,
    )
    alt = f"Curves of {glossary.label(wanted.key)}, one per run"
    st.vega_lite_chart(spec, width="stretch", alt=alt)


def _parameters(runs: Sequence[RunRecord], comparison: Comparison) -> None:
    st.header("Parameters that differ", anchor=False)
    ignore, everything = compare_controls.parameters(runs)
    frame = parameter_table(runs, comparison.groups, ignore=ignore, everything=everything)
    if frame.empty:
        states.note("All of the chosen runs have the same parameters.")
        return
    st.dataframe(frame, alt="Parameters that differ", hide_index=True, placeholder="–")
