"""Compare: cost and quality of precision, checkpointing and compilation, against a reference."""

from collections.abc import Sequence
from typing import Any, cast, get_args

import streamlit as st

from clew import names
from clew.runs.reading import comparison
from clew.runs.reading.metrics import Pick
from clew.runs.reading.runs import RunRecord
from clew.ui.components import basics, charts, comparison_table, glossary, run_table
from clew.ui.components.runs import has_runs, runs_by_id

MAX_RUNS = 60
PRESET_HELP = (
    "The newest training setting that was run in several variants, each with the same seeds. "
    "The reference is plain float32, if it was run."
)
FRONT_HELP = "The dashed line joins the variants that no other beats in both numbers."


def render() -> None:
    st.title("Compare", anchor=False)
    with basics.guarded("The comparison"):
        if not has_runs():
            basics.empty_store()
            return
        named = [*dict.fromkeys(filter(None, basics.address("runs").split(",")))]
        if len(named) > MAX_RUNS:
            basics.warning(f"Only the first {MAX_RUNS} of {len(named)} chosen runs are compared.")
        wanted = named[:MAX_RUNS]
        runs = runs_by_id(wanted)
        if gone := len(wanted) - len(runs):
            basics.warning(f"Left out, because the store lacks them: {gone} of {len(wanted)} runs.")
        _choose(runs)
        if runs:
            _comparison(runs)


def _choose(runs: Sequence[RunRecord]) -> None:
    found = comparison_table.preset()

    def choose() -> None:
        basics.write_address("runs", [run.run_id for run in found.runs] if found else None)
        basics.write_address("ref", None)

    with st.container(horizontal=True, vertical_alignment="center"):
        about = PRESET_HELP if found else "Needs two finished variants of one training setting."
        preset, is_off = "FP32 / FP16 / checkpointing", found is None
        st.button(preset, "preset", about, on_click=choose, type="primary", disabled=is_off)
        if found is not None:
            basics.note(_preset_text(found))
    with st.expander("Choose runs", expanded=not runs):
        query = run_table.run_query(run_table.experiment(), kind=names.KIND_TRAIN)
        ticked = run_table.choose_runs(query, key="compare")
        if ticked is not None:
            _take_over(ticked, [run.run_id for run in runs])


def _preset_text(found: comparison.Preset) -> str:
    first = found.runs[0]
    called = [first.tags.get(names.TAG_DATASET, ""), first.params.get(comparison.MODEL_KIND, "")]
    called += [first.tags.get(names.TAG_DEVICE, "")]
    called += found.apart
    variants = list(dict.fromkeys(run.tags[names.TAG_VARIANT] for run in found.runs))
    each = len(found.runs) // len(variants)
    seeds = f"{each} of each, no seed in common"
    if found.seeds:
        seeds = f"seed{'s' if each > 1 else ''} {', '.join(found.seeds)} of each"
    return f"{' · '.join(filter(None, called))}: {', '.join(variants)}; {seeds}"


def _take_over(ticked: Sequence[str], chosen: Sequence[str]) -> None:
    together = list(dict.fromkeys([*chosen, *ticked]))
    buttons = [("replace", f"Compare {len(ticked)} ticked", list(ticked))]
    if chosen:
        buttons += [
            ("add", f"Add to the {len(chosen)} chosen", together),
            ("none", "Choose none", []),
        ]
    with st.container(horizontal=True):
        for key, label, ids in buttons:
            is_off, write = not ticked and key != "none", basics.write_address
            st.button(label, key, on_click=write, args=("runs", ids), disabled=is_off)


def _comparison(runs: Sequence[RunRecord]) -> None:
    if unequal := comparison.unequal_budgets(runs):
        basics.warning(" ".join(unequal))
    setting = _setting(runs)
    found = comparison_table.compared(runs, setting)
    change = basics.choice(
        "Change against the reference",
        list(comparison_table.CHANGES),
        "change",
        help="Over the seeds that both have. ✓ marks a better value, ✗ a worse one. Grey: the 95 % "
        "interval of the change contains zero, or there are fewer than two such seeds. "
        "A metric such as bias, which should be neither large nor small, has no mark.",
    )
    picked = comparison_table.picked_texts(setting)
    comparison_table.show(found, comparison_table.CHANGES[change], picked)
    _costs(found, setting)
    _curves(runs, found)
    _parameters(runs, found)


@basics.guarded("The pictures of cost and quality")
def _costs(found: comparison.Comparison, setting: comparison_table.Setting) -> None:
    gpu = names.GPU_PEAK_ALLOCATED_GIB
    memory_key = gpu if gpu in found.metrics else names.PROCESS_PEAK_GIB
    left, right = st.columns(2)
    pictures = (
        (left, "Quality against time", names.TIME_EPOCH_SECONDS),
        (right, "Quality against memory", memory_key),
    )
    for column, title, key in pictures:
        with column:
            st.header(title, anchor=False, help=FRONT_HELP)
            shown = comparison_table.points(found, key, setting.quality)
            if shown.empty:
                basics.note("No run has both numbers.")
                continue
            spec = charts.quality_against_cost(shown, cost_key=key, quality_key=setting.quality)
            alt = f"Points: {title[0].lower()}{title[1:]}"
            st.vega_lite_chart(spec, width="stretch", alt=alt)


@basics.guarded("The curves")
def _curves(runs: Sequence[RunRecord], found: comparison.Comparison) -> None:
    st.header("Curves", anchor=False)
    metrics = sorted({key for run in runs for key in run.metrics})
    usual = [key for key in comparison_table.quality_metrics(runs) if key.startswith("valid/")]
    place = metrics.index(usual[0]) if usual else 0
    first, second, third, fourth = st.columns([2.2, 1.5, 2, 1], vertical_alignment="bottom")
    key = first.selectbox(
        "Metric", metrics, place, glossary.label, key="curve", bind="query-params"
    )
    axis = basics.choice("Over", ["steps", "time"], "over", place=second)
    about = "Weight of earlier values in each point; 0 shows the recorded values."
    smoothing = third.slider(
        "Smoothing", 0.0, 0.98, 0.0, 0.02, key="smooth", bind="query-params", help=about
    )
    logarithmic = fourth.toggle("Log scale", key="log", bind="query-params")
    frame = comparison_table.curves(runs, key or "", weight=smoothing, groups=found.groups)
    if frame.empty:
        basics.note(f"No run has values of {key}.")
        return
    order = [group.label for group in found.groups]
    spec = charts.curves(
        frame, key=key, order=order, by_time=axis == "time", logarithmic=logarithmic
    )
    alt = f"Curves of {glossary.label(key)}, one per run"
    st.vega_lite_chart(spec, width="stretch", alt=alt)


@basics.guarded("The parameters")
def _parameters(runs: Sequence[RunRecord], found: comparison.Comparison) -> None:
    st.header("Parameters that differ", anchor=False)
    frame = comparison_table.parameter_table(runs, found.groups)
    if frame.empty:
        basics.note("All of the chosen runs have the same parameters.")
        return
    st.dataframe(frame, alt="Parameters that differ", hide_index=True, placeholder="–")


def _setting(runs: Sequence[RunRecord]) -> comparison_table.Setting:
    labels, ids = comparison.distinct_labels(runs), [run.run_id for run in runs]
    first, second, third, fourth = st.columns([1.7, 1.7, 2, 1.7], vertical_alignment="bottom")
    linked, usual = basics.address("ref"), comparison_table.reference_of(runs)
    place = ids.index(linked if linked in ids else usual)
    about = "Every other row is compared with this run, or its group if seeds are together."
    reference = first.selectbox("Reference", ids, place, labels.__getitem__, help=about)
    basics.write_address("ref", None if reference == usual else reference)
    metrics = comparison_table.quality_metrics(runs)
    kept: Any = {"bind": "query-params", "format_func": glossary.label}
    quality = second.selectbox("Quality", metrics, key="quality", **kept)
    about = "Of the quality's curve: the best value (for bias or coverage the last), or the last."
    pick = basics.choice("Value", get_args(Pick), "pick", place=third, help=about)
    about = "Runs that differ only in seed are one row: mean ± standard deviation."
    grouped = fourth.toggle(
        "Seeds together", value=True, key="seeds", bind="query-params", help=about
    )
    others = "other measures of quality"
    more = st.multiselect("More columns", metrics, key="more", placeholder=others, **kept)
    chosen = cast(Pick, pick)
    return comparison_table.Setting(quality or "", reference, chosen, grouped, tuple(more))
