"""The parts of a run's page: what it is, its metrics, ranks by relation, files, relatives, log."""

from functools import partial

import pandas as pd
import streamlit as st

from clew import names
from clew.ui.components import (
    address,
    charts,
    exports,
    glossary,
    links,
    markup,
    palette,
    states,
    tables,
)
from clew.ui.components.runs_table import duration, utc
from clew.ui.data.run_page import (
    Lineage,
    MlflowPage,
    RunData,
    RunFile,
)
from clew.ui.data.runs import (
    RunRecord,
    headline_key,
    number_text,
    state_of,
    variants_of,
    whole_number,
)

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
        ("State", f"{palette.STATE_SYMBOLS[state]} {state}"),
        ("Because", tags.get(names.TAG_STOPPED_BECAUSE, "")),
        ("Started (UTC)", utc(run.started_ms).strftime("%Y-%m-%d %H:%M:%S")),
        ("Took", duration(run)),
        *((label, tags.get(tag, "")) for label, tag in FACTS),
        *((f"Data, {found.context}", _data_text(found, run)) for found in data),
        ("Run id", run.run_id),
    ]
    line = '<tr><th scope="row">{label}</th><td class="clew-wrap">{value}</td></tr>'
    body = markup.join([markup.fill(line, label=k, value=v) for k, v in rows if v])
    markup.show('<table class="clew-facts"><tbody>{body}</tbody></table>', body=body)
    for warning in run.tags.get(names.TAG_WARNINGS, "").splitlines():
        states.warning(warning)


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
        states.note("This run recorded no metrics.")
        return
    shown = table.assign(group=[_group(key) for key in table.index])
    shown = shown.loc[sorted(shown.index, key=lambda key: _place(run, str(key)))]
    wanted = address.text("metric")
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
        take=partial(address.write, "metric"),
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
    st.markdown(f"**{markup.markdown(words.label)}**: {markup.markdown(words.help)}")
    kind = run.tags.get(names.TAG_KIND, "")
    counted = glossary.place_on_curve(key, kind)
    if len(curve) < 2:
        states.note(f"It has one value ({counted.lower()}: {int(curve['step'].iloc[-1]):,}).")
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
    exports.table(shown, "ranks_by_relation.csv")


def relatives(found: Lineage) -> None:
    """Show links to the sources of the run and to what was made from it."""
    if not (found.sources or found.results or found.versions):
        states.note("It comes from no other run, and nothing has been made from it yet.")
    for source in found.sources:
        links.to(
            "run", f"{source.how} {source.run.name or source.run.run_id[:8]}", id=source.run.run_id
        )
    for version in found.versions:
        aliases = f" ({', '.join(version.aliases)})" if version.aliases else ""
        links.to(
            "models", f"{version.model} version {version.version}{aliases}", model=version.model
        )
    for result in found.results:
        run = result.run
        day = utc(run.started_ms).strftime("%Y-%m-%d %H:%M")
        links.to("run", f"{result.how}: {run.name or run.run_id[:8]}, {day}", id=run.run_id)
        if run.tags.get(names.TAG_KIND) == names.KIND_TRACE:
            links.to("influence", "its explanations", run=run.run_id)


def files(found: list[RunFile]) -> None:
    """Show the run's files with their sizes."""
    if not found:
        states.note("This run keeps no files.")
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
        states.note(f"This run has no configuration{other}.")
        return
    tables.show(frame, alt="Configuration of the run", most=MAX_HEIGHT)


def log(text: str) -> None:
    """Show the log of the run."""
    if not text:
        states.note("This run has no log.")
        return
    st.code(text, language=None, height=MAX_HEIGHT, wrap_lines=True)
