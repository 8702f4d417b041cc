"""The controls of the page Compare; every value is in the address."""

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from clew import names
from clew.ui.components import address, glossary, states
from clew.ui.components.comparison_table import Change
from clew.ui.data.comparison import (
    IGNORED_PARAMETERS,
    MODEL_KIND,
    Pick,
    Preset,
    Setting,
    curve_metrics,
    distinct_labels,
    quality_metrics,
    reference_of,
    setting_name,
)
from clew.ui.data.runs import RunRecord

PRESET_HELP = (
    "The newest training setting that was run in several variants, each with the same seeds. "
    "The reference is plain float32, if it was run."
)
FRONT_HELP = "The dashed line joins the variants that no other beats in both numbers."
PICKS: dict[str, Pick] = {"best": "best", "last": "last", "at a step": "step"}
CHANGES: dict[str, Change] = {"ratios": "ratio", "differences": "delta", "both": "both"}


@dataclass(frozen=True)
class Curve:
    """Which curves are shown, and how."""

    key: str
    by_time: bool
    smoothing: float
    logarithmic: bool


def preset_button(found: Preset | None) -> None:
    """Show the button that compares precisions and checkpointing, and which runs it takes."""

    def choose() -> None:
        address.write("runs", [run.run_id for run in found.runs] if found else None)
        address.write("ref", None)

    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "FP32 / FP16 / checkpointing",
            key="preset",
            type="primary",
            on_click=choose,
            disabled=found is None,
            help=PRESET_HELP if found else "Needs two finished variants of one training setting.",
        )
        if found is not None:
            states.note(preset_text(found))


def preset_text(found: Preset) -> str:
    """Return the setting, the variants and the seeds of the preset, in words."""
    first = found.runs[0]
    called = [first.tags.get(names.TAG_DATASET, ""), first.params.get(MODEL_KIND, "")]
    called += [first.tags.get(names.TAG_DEVICE, "")]
    called += [f"{setting_name(key)} {value or 'unset'}" for key, value in found.apart.items()]
    variants = list(dict.fromkeys(run.tags[names.TAG_VARIANT] for run in found.runs))
    each = len(found.runs) // len(variants)
    seeds = f"{each} of each, no seed in common"
    if found.seeds:
        seeds = f"seed{'s' if each > 1 else ''} {', '.join(found.seeds)} of each"
    return f"{' · '.join(filter(None, called))}: {', '.join(variants)}; {seeds}"


def take_over(ticked: Sequence[str], chosen: Sequence[str]) -> None:
    """Show the buttons that compare the ticked runs, alone or with those already chosen."""
    together = list(dict.fromkeys([*chosen, *ticked]))
    with st.container(horizontal=True):
        st.button(
            f"Compare {len(ticked)} ticked",
            key="replace",
            disabled=not ticked,
            on_click=address.write,
            args=("runs", list(ticked)),
        )
        if chosen:
            st.button(
                f"Add to the {len(chosen)} chosen",
                key="add",
                disabled=not ticked,
                on_click=address.write,
                args=("runs", together),
            )
            st.button("Choose none", key="none", on_click=address.write, args=("runs", None))


def setting(runs: Sequence[RunRecord]) -> Setting:
    """Let a person set reference, quality metric and how values are picked."""
    labels = distinct_labels(runs)
    first, second, third, fourth = st.columns([1.7, 1.7, 2, 1.7], vertical_alignment="bottom")
    ids = [run.run_id for run in runs]
    linked = address.text("ref")
    reference = first.selectbox(
        "Reference",
        ids,
        index=ids.index(linked if linked in ids else reference_of(runs)),
        format_func=lambda run_id: labels[run_id],
        help="Every other row is compared with this run, or its group if seeds are together.",
    )
    address.write("ref", None if reference == reference_of(runs) else reference)
    metrics = quality_metrics(runs)
    quality = second.selectbox(
        "Quality", metrics, key="quality", bind="query-params", format_func=glossary.label
    )
    pick = third.segmented_control(
        "Value",
        list(PICKS),
        key="pick",
        default="best",
        required=True,
        bind="query-params",
        help="The value of the quality's curve: the best (for bias or coverage the last), the "
        "last, or the last up to a step.",
    )
    grouped = fourth.toggle(
        "Seeds together",
        value=True,
        key="seeds",
        bind="query-params",
        help="Runs that differ only in seed are one row: mean ± standard deviation.",
    )
    further = st.multiselect(
        "More columns",
        metrics,
        key="more",
        bind="query-params",
        format_func=glossary.label,
        placeholder="other measures of quality",
    )
    step = None
    if pick == "at a step":
        step = int(st.number_input("Step", 0, value=1000, key="step", bind="query-params"))
    return Setting(
        quality=quality or "",
        reference=reference,
        pick=PICKS.get(pick or "best", "best"),
        step=step,
        by_seed=grouped,
        further=tuple(further),
    )


def change() -> Change:
    """Let a person choose how changes against the reference are written."""
    chosen = st.segmented_control(
        "Change against the reference",
        list(CHANGES),
        key="change",
        default="ratios",
        required=True,
        bind="query-params",
        help="✓ marks a better value, ✗ a worse one. Grey: the change is no larger than the "
        "variation over seeds, or that variation is unknown because one side has a single seed. "
        "A metric such as bias, which should be neither large nor small, has no mark.",
    )
    return CHANGES[chosen or "ratios"]


def curve(runs: Sequence[RunRecord]) -> Curve:
    """Let a person choose the curves."""
    metrics = curve_metrics(runs)
    usual = next((key for key in quality_metrics(runs) if key.startswith("valid/")), None)
    first, second, third, fourth = st.columns([2.2, 1.5, 2, 1], vertical_alignment="bottom")
    key = first.selectbox(
        "Metric",
        metrics,
        index=metrics.index(usual) if usual else 0,
        key="curve",
        bind="query-params",
        format_func=glossary.label,
    )
    axis = second.segmented_control(
        "Over",
        ["steps", "time"],
        key="over",
        default="steps",
        required=True,
        bind="query-params",
    )
    smoothing = third.slider(
        "Smoothing",
        0.0,
        0.98,
        0.0,
        0.02,
        key="smooth",
        bind="query-params",
        help="Weight of earlier values in each point; 0 shows the recorded values.",
    )
    logarithmic = fourth.toggle("Log scale", key="log", bind="query-params")
    return Curve(key or "", axis == "time", smoothing, logarithmic)


def parameters(runs: Sequence[RunRecord]) -> tuple[list[str], bool]:
    """Let a person choose which parameters are left out, and whether equal ones are shown."""
    first, second = st.columns([4, 1], vertical_alignment="bottom")
    keys = sorted({key for run in runs for key in run.params})
    ignored = first.multiselect(
        "Ignore",
        keys,
        default=[key for key in IGNORED_PARAMETERS if key in keys],
        key="ignore",
        bind="query-params",
        format_func=lambda key: key.removeprefix("cfg."),
        help="Parameters that are left out of the table.",
    )
    return ignored, second.toggle("Equal ones too", key="equal", bind="query-params")
