"""Filters of runs: widgets whose values are in the address."""

import streamlit as st

from clew import names
from clew.ui.data.runs import RunQuery, choices, experiments

ORDERS = {
    "newest first": "attributes.start_time DESC",
    "oldest first": "attributes.start_time ASC",
    "best validation MRR": "metrics.`valid/mrr` DESC",
    "fewest bits per byte": "metrics.`valid/bits_per_byte` ASC",
    "smallest validation MAE": "metrics.`valid/mae` ASC",
    "fastest epoch": "metrics.`time/epoch_seconds` ASC",
    "least GPU memory": "metrics.`memory/gpu_peak_allocated_gib` ASC",
}
KINDS = (
    names.KIND_TRAIN,
    names.KIND_TRACE,
    names.KIND_EVALUATE,
    names.KIND_PROMOTE,
    names.KIND_COMPARE,
    names.KIND_VALIDATE,
    names.KIND_TUNE,
    names.KIND_VALUE,
)
STATES = {"running": "RUNNING", "finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
ALL = "all"


def experiment() -> tuple[str, ...]:
    """Let a person choose an experiment; return its id, nothing for all of them."""
    found = {experiment.name: experiment.experiment_id for experiment in experiments()}
    chosen = st.selectbox(
        "Experiment",
        [ALL, *found],
        key="experiment",
        bind="query-params",
        help="A named set of runs.",
    )
    return (found[chosen],) if chosen in found else ()


def run_query(experiment_ids: tuple[str, ...], *, kinds: bool = True) -> RunQuery:
    """Let a person narrow the runs down, and return what they want to see."""
    columns = st.columns([2.4, 1.2, 1.3, 1.3, 1.7, 1.2][: 6 if kinds else 5])
    text = columns[0].text_input(
        "Search",
        key="search",
        bind="query-params",
        type="search",
        placeholder="part of a name, or a run id",
    )
    state = columns[1].selectbox("State", [ALL, *STATES], key="state", bind="query-params")
    variants = [ALL, *choices(experiment_ids, names.TAG_VARIANT)]
    variant = columns[2].selectbox("Variant", variants, key="variant", bind="query-params")
    datasets = [ALL, *choices(experiment_ids, names.TAG_DATASET)]
    dataset = columns[3].selectbox("Data", datasets, key="data", bind="query-params")
    order = columns[4].selectbox("Order", list(ORDERS), key="order", bind="query-params")
    kind = names.KIND_TRAIN
    if kinds:
        kind = columns[5].selectbox("Kind", [ALL, *KINDS], key="kind", bind="query-params")
    return RunQuery(
        experiment_ids=experiment_ids,
        text=text,
        kind=_unless_all(kind),
        dataset=_unless_all(dataset),
        variant=_unless_all(variant),
        status=STATES.get(state, ""),
        order_by=ORDERS[order],
    )


def _unless_all(value: str) -> str:
    return "" if value == ALL else value
