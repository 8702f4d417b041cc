"""One run: its summary, curves, files, data, log and related runs."""

from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

import pandas as pd
import streamlit as st

from clew import names
from clew.names import direction_of
from clew.runs import store
from clew.runs.reading.metrics import (
    headline_key,
    number_text,
    pick_values,
    run_histories,
    whole_number,
)
from clew.runs.reading.run_details import (
    Lineage,
    RunData,
    RunFile,
    lineage,
    list_data,
    list_files,
    read_by_relation,
    read_log,
)
from clew.runs.reading.runs import RunRecord, state_of
from clew.ui.components import basics, charts, glossary, tables
from clew.ui.components.runs import variants_of
from clew.ui.components.tables import duration, utc

SECONDS_FRESH = 10
DEFAULT_MLFLOW_ADDRESS = "http://127.0.0.1:5000"
EXPERIMENT_MODE = "workflowType=machine_learning"
"""MLflow's pages have two modes; this one has runs, metrics and models in its menu."""


@dataclass(frozen=True)
class MlflowPage:
    """The address of MLflow's page of a run, and the command that serves it, if one is needed."""

    address: str
    command: str


@st.cache_data(ttl=SECONDS_FRESH, max_entries=32, show_spinner=False)
def curves_of(run: RunRecord) -> dict[str, pd.DataFrame]:
    """Return the curves of all metrics, by key: rows `run_id, step, seconds, value`."""
    return run_histories(run)


@st.cache_data(ttl=SECONDS_FRESH, max_entries=64, show_spinner=False)
def files_of(run_id: str) -> list[RunFile]:
    """Return a run's files, by path."""
    return list_files(run_id)


@st.cache_data(ttl=60, max_entries=64, show_spinner=False)
def data_of(run_id: str) -> list[RunData]:
    """Return the data sets that a run read."""
    return list_data(run_id)


@st.cache_data(ttl=SECONDS_FRESH, max_entries=64, show_spinner=False)
def lineage_of(run: RunRecord) -> Lineage:
    """Return the sources of a run and what was made from it."""
    return lineage(run)


@st.cache_data(ttl=60, max_entries=32, show_spinner=False)
def by_relation(run_id: str, split: str) -> pd.DataFrame:
    """Return the quality of each side of each relation, the most frequent relation first."""
    order = ["num_queries", "label", "side"]
    return read_by_relation(run_id, split).sort_values(order, ascending=[False, True, True])


@st.cache_data(ttl=60, max_entries=32, show_spinner=False)
def _log(run_id: str) -> str:
    return read_log(run_id)


def metric_table(run: RunRecord) -> pd.DataFrame:
    """Return one row per metric, its key as index: `last`, `best`, `trend`, `values` (how many)."""
    rows = {}
    for key, curve in curves_of(run).items():
        best = pick_values(curve, key, "best") if direction_of(key) else {}
        rows[key] = {
            "last": run.metrics[key],
            "best": best.get(run.run_id),
            "trend": [float(value) for value in curve["value"]],
            "values": len(curve),
        }
    return pd.DataFrame.from_dict(rows, orient="index", columns=["last", "best", "trend", "values"])


def log_of(run_id: str) -> str:
    """Return the log of a run, empty if it keeps none."""
    kept = any(file.path == names.ARTIFACT_LOG for file in files_of(run_id))
    return _log(run_id) if kept else ""


def repeating_commands(run: RunRecord) -> str:
    """Return the commands that repeat a training, empty if it keeps no configuration of Clew."""
    if run.tags.get(names.TAG_KIND) != names.KIND_TRAIN:
        return ""
    if not any(file.path == names.ARTIFACT_CONFIG_YAML for file in files_of(run.run_id)):
        return ""
    folder = f"run-{run.run_id[:8]}"
    return (
        f"mlflow artifacts download --run-id {run.run_id} "
        f"--artifact-path {names.ARTIFACT_CONFIG_YAML} --dst-path {folder}\n"
        f"clew train --config {folder}/{names.ARTIFACT_CONFIG_YAML}"
    )


def mlflow_page(run: RunRecord) -> MlflowPage:
    """Return where MLflow shows a run: on the tracking server, or on one that must be started.

    The path opens the run among experiments rather than among traces of language models.
    """
    uri = store.tracking_uri()
    is_served = store.database_path(uri) is None and uri.startswith(("http://", "https://"))
    base = store.public_address(uri) if is_served else DEFAULT_MLFLOW_ADDRESS
    run_path = f"experiments/{quote(run.experiment_id)}/runs/{quote(run.run_id)}"
    command = "" if is_served else f"mlflow ui --backend-store-uri {store.address(uri)}"
    return MlflowPage(f"{base}/#/{run_path}?{EXPERIMENT_MODE}", command)


MAX_HEIGHT = 430
FACTS = (
    ("Kind", names.TAG_KIND),
    ("Variant", names.TAG_VARIANT),
    ("Parameters", names.TAG_PARAMETERS),
    ("Best step", names.TAG_BEST_STEP),
    ("Machine", names.TAG_HARDWARE),
    ("Device", names.TAG_DEVICE),
    ("Commit", names.TAG_COMMIT),
    ("Version of Clew", names.TAG_VERSION),
    ("Decision", names.TAG_DECISION),
)
COUNTS = (names.TAG_PARAMETERS, names.TAG_BEST_STEP)
GROUPS = {
    "valid": "Quality",
    "test": "Quality",
    "train": "Training",
    "time": "Time",
    "throughput": "Time",
    "memory": "Memory",
    "influence": "Explanations",
    "system": "Machine",
}
"""The group of a metric in the table, by the first part of its own key; others come last."""


def summary(run: RunRecord, data: list[RunData]) -> None:
    state = state_of(run)
    tags = dict(run.tags) | {names.TAG_VARIANT: variants_of([run])[run.run_id]}
    counts = {tag: whole_number(tags.get(tag, "")) for tag in COUNTS}
    tags |= {tag: f"{number:,}" for tag, number in counts.items() if number is not None}
    rows = [
        ("State", f"{basics.STATE_SYMBOLS[state]} {state}"),
        ("Because", tags.get(names.TAG_STOPPED_BECAUSE, "")),
        ("Started (UTC)", utc(run.started_ms).strftime("%Y-%m-%d %H:%M:%S")),
        ("Took", duration(run)),
        *((label, tags.get(tag, "")) for label, tag in FACTS),
        *((f"Data, {found.context}", _data_text(found, run)) for found in data),
        ("Run id", run.run_id),
    ]
    line = '<tr><th scope="row">{label}</th><td class="clew-wrap">{value}</td></tr>'
    body = basics.join([basics.fill(line, label=k, value=v) for k, v in rows if v])
    basics.show('<table class="clew-facts"><tbody>{body}</tbody></table>', body=body)
    for warning in run.tags.get(names.TAG_WARNINGS, "").splitlines():
        basics.warning(warning)


def _data_text(found: RunData, run: RunRecord) -> str:
    fingerprint = run.tags.get(names.TAG_DATA_FINGERPRINT, "")
    whole = fingerprint if fingerprint.startswith(found.fingerprint) else found.fingerprint
    return f"{found.name}, fingerprint {whole}"


def commands(run: RunRecord, repeating: str, mlflow: MlflowPage) -> None:
    typed = run.tags.get(names.TAG_COMMAND, "")
    if typed and "--parent-run" not in typed:  # not started by another command
        st.markdown("**Started by**")
        st.code(typed, language="bash", wrap_lines=True)
    if repeating:
        st.markdown("**Repeat it** with its own configuration")
        st.code(repeating, language="bash", wrap_lines=True)
    st.markdown("**In MLflow**")
    if mlflow.command:
        st.code(mlflow.command, language="bash", wrap_lines=True)
    st.link_button("Open the run in MLflow ↗", mlflow.address)


def metrics(run: RunRecord, table: pd.DataFrame, curves: dict[str, pd.DataFrame]) -> None:
    """Show all metrics with their trends, and the curve of the one that is chosen.

    The chosen metric is in the address under `metric`.
    """
    if table.empty:
        basics.note("This run recorded no metrics.")
        return
    shown = table.assign(group=[_group(key) for key in table.index])
    shown = shown.loc[sorted(shown.index, key=lambda key: _place(run, str(key)))]
    wanted = basics.address("metric")
    chosen = wanted if wanted in shown.index else _first_curve(shown)
    left, right = st.columns([1.15, 1])
    with left:
        _metric_table(shown, chosen)
    with right:
        _curve(run, chosen, curves[chosen])


def _group(key: str) -> str:
    _, metric = glossary.whose(key)
    return GROUPS.get(metric.partition("/")[0], "Other")


def _place(run: RunRecord, key: str) -> tuple[int, bool, bool, str]:
    """Return the sort key of a metric: in each group the headline first, single sides last."""
    order = list(dict.fromkeys(GROUPS.values()))
    group = _group(key)
    rank = order.index(group) if group in order else len(order)
    return rank, key != headline_key(run), key.endswith(("_head", "_tail")), key


def _first_curve(shown: pd.DataFrame) -> str:
    """Return the first metric with several values, not of the machine; else the first metric."""
    several = shown.index[(shown["values"] > 1) & (shown["group"] != GROUPS["system"])]
    return str(several[0] if len(several) else shown.index[0])


def _metric_table(shown: pd.DataFrame, chosen: str) -> None:
    keys = [str(key) for key in shown.index]
    tables.tick_one(
        pd.DataFrame(
            {
                "Metric": [glossary.label(name) for name in keys],
                "Last": [number_text(value) for value in shown["last"]],
                "Best": ["" if pd.isna(v) else number_text(v) for v in shown["best"]],
                "Trend": [trend if len(trend) > 1 else [] for trend in shown["trend"]],
                "Of": list(shown["group"]),
            }
        ),
        keys,
        key=f"metrics-{hash(tuple(keys))}-{chosen}",
        chosen=chosen,
        take=partial(basics.write_address, "metric"),
        alt="Metrics of the run",
        column_config={
            "Metric": st.column_config.TextColumn(width="medium"),
            "Best": st.column_config.TextColumn(
                width="small", help="If larger or smaller values are better."
            ),
            "Last": st.column_config.TextColumn(width="small"),
            "Trend": st.column_config.LineChartColumn(width="small"),
            "Of": st.column_config.TextColumn(width="small"),
        },
        row_height=tables.ROW_HEIGHT,
        most=MAX_HEIGHT,
    )


def _curve(run: RunRecord, key: str, curve: pd.DataFrame) -> None:
    words = glossary.words(key)
    st.markdown(f"**{basics.markdown(words.label)}**: {basics.markdown(words.help)}")
    kind = run.tags.get(names.TAG_KIND, "")
    counted = glossary.place_on_curve(key, kind)
    if len(curve) < 2:
        basics.note(f"It has one value ({counted.lower()}: {int(curve['step'].iloc[-1]):,}).")
        return
    name = run.name or run.run_id[:8]
    frame = curve.assign(run=name, group=name)
    spec = charts.curves(frame, key=key, order=[name], by_time=False, kind=kind)
    alt = f"Curve of {words.label}: {counted.lower()} on the x axis"
    st.vega_lite_chart(spec | {"height": charts.HEIGHT}, width="stretch", alt=alt)


def relations(frame: pd.DataFrame) -> None:
    """Show the quality of each side of each relation."""
    columns = {
        "label": st.column_config.TextColumn("Relation", width="medium"),
        "side": st.column_config.TextColumn(
            "Asked for", width="small", help="Which end of the triple the model had to name."
        ),
        "num_queries": st.column_config.NumberColumn("Questions", width="small"),
        names.MRR: st.column_config.ProgressColumn(
            "MRR",
            help=glossary.words(names.metric("test", names.MRR)).help,
            min_value=0.0,
            max_value=1.0,
            format="%.3f",
        ),
        names.MEAN_RANK: st.column_config.NumberColumn(
            "Mean rank", format="%.1f", width="small", help="1 is perfect."
        ),
    }
    hits = [names.hits_at(k) for k in (1, 3, 10) if names.hits_at(k) in frame]
    for name in hits:
        label = glossary.words(names.metric("test", name)).label.partition(",")[0]
        columns[name] = st.column_config.NumberColumn(label, format="%.3f", width="small")
    headings = {name: str(config["label"]) for name, config in columns.items()}
    shown = frame[[*columns]].rename(columns=headings)
    configured = {headings[name]: config for name, config in columns.items()}
    tables.show(shown, alt="Ranks by relation", column_config=configured, most=MAX_HEIGHT)
    tables.export(shown, "ranks_by_relation.csv")


def relatives(found: Lineage) -> None:
    """Show links to the sources of the run and to what was made from it."""
    if not (found.sources or found.results or found.versions):
        basics.note("It comes from no other run, and nothing has been made from it yet.")
    for source in found.sources:
        basics.link(
            "run", f"{source.how} {source.run.name or source.run.run_id[:8]}", id=source.run.run_id
        )
    for version in found.versions:
        aliases = f" ({', '.join(version.aliases)})" if version.aliases else ""
        basics.link(
            "models", f"{version.model} version {version.version}{aliases}", model=version.model
        )
    for result in found.results:
        run = result.run
        day = utc(run.started_ms).strftime("%Y-%m-%d %H:%M")
        basics.link("run", f"{result.how}: {run.name or run.run_id[:8]}, {day}", id=run.run_id)
        if run.tags.get(names.TAG_KIND) == names.KIND_TRACE:
            basics.link("influence", "its explanations", run=run.run_id)


def files(found: list[RunFile]) -> None:
    """Show the run's files with their sizes."""
    if not found:
        basics.note("This run keeps no files.")
        return
    frame = pd.DataFrame(
        {"File": [f.path for f in found], "Size [KiB]": [f.size_bytes / 1024 for f in found]}
    )
    columns = {
        "File": st.column_config.TextColumn(width="large"),
        "Size [KiB]": st.column_config.NumberColumn(format="%.1f", width="small"),
    }
    tables.show(frame, alt="Files of the run", column_config=columns, most=MAX_HEIGHT)


def configuration(run: RunRecord) -> None:
    """Show the resolved configuration, one setting per row."""
    prefix = names.PARAMETER_PREFIX
    frame = pd.DataFrame(
        {
            "Setting": [key.removeprefix(prefix) for key in sorted(run.params)],
            "Value": [run.params[key] for key in sorted(run.params)],
        }
    )
    if frame.empty:
        other = "" if run.is_foreign else "; the run of its model has one"
        basics.note(f"This run has no configuration{other}.")
        return
    tables.show(frame, alt="Configuration of the run", most=MAX_HEIGHT)


def log(text: str) -> None:
    """Show the log of the run."""
    if not text:
        basics.note("This run has no log.")
        return
    st.code(text, language=None, height=MAX_HEIGHT, wrap_lines=True)
