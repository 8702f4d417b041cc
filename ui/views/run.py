"""Run: everything that was recorded for one run."""

import math
from functools import partial
from urllib.parse import quote

import pandas as pd
import streamlit as st
from streamlit.column_config import LineChartColumn, NumberColumn, ProgressColumn, TextColumn

from clew import names
from clew.names import direction_of
from clew.runs import store
from clew.runs.reading import run_details
from clew.runs.reading.metrics import headline_key, number_text, pick_values, whole_number
from clew.runs.reading.runs import RunRecord, state_of
from clew.ui import access
from clew.ui.components import basics, charts, glossary, results, run_table, runs, tables

DEFAULT_MLFLOW_ADDRESS = "http://127.0.0.1:5000"
EXPERIMENT_MODE = "workflowType=machine_learning"
"""MLflow's pages have two modes; this one has runs, metrics and models in its menu."""
MAX_HEIGHT = 430
FACTS = {
    "Kind": names.TAG_KIND,
    "Variant": names.TAG_VARIANT,
    "Parameters": names.TAG_PARAMETERS,
    "Best step": names.TAG_BEST_STEP,
    "Machine": names.TAG_HARDWARE,
    "Device": names.TAG_DEVICE,
    "Commit": names.TAG_COMMIT,
    "Version of Clew": names.TAG_VERSION,
    "Decision": names.TAG_DECISION,
}
GROUPS = {
    "valid": "Quality",
    "test": "Quality",
    "train": "Training",
    "time": "Time",
    "throughput": "Time",
    "memory": "Memory",
    "influence": "Explanations",
    "importance": "Settings",
    "system": "Machine",
}
"""The group of a metric in the table, by the first part of its own key; others come last."""

by_relation = runs.for_a_minute(run_details.read_by_relation)
data_report = runs.for_a_minute(run_details.read_data_report)


def render() -> None:
    with basics.guarded("The run"):
        wanted = basics.address("id")
        found = runs.run_by_id(wanted)
        if found is not None:
            _run(found)
            return
        st.title("Run", anchor=False)
        if not runs.has_runs():
            basics.empty_store()
            return
        if wanted:
            basics.warning(f"No run {wanted} is in the store; it may have been deleted.")
        basics.link("overview", "All runs")


def _run(run: RunRecord) -> None:
    st.title(basics.markdown(runs.name_of(run)), anchor=False)
    kind = run.tags.get(names.TAG_KIND)
    with st.container(horizontal=True):
        basics.link("overview", "All runs")
        if kind == names.KIND_TRAIN:
            basics.link("compare", "Compare", runs=run.run_id)
            basics.link("models", "Promote", candidate=run.run_id)
        if kind == names.KIND_TRACE:
            basics.link("influence", "Read the explanations", run=run.run_id)
        if kind == names.KIND_COMPARE:
            basics.link("studies", "Studies")
        _describe(run)
    found, *more = map(basics.markdown, run.tags.get(names.TAG_NOTE, "").split("\n\n"))
    st.markdown("\n\n".join([f"**{found}**" if found else "", *more]))
    _results(run)
    st.header("Metrics", anchor=False)
    _metrics(run)
    left, right = st.columns([1, 1.15], gap="large")
    with left:
        _summary(run)
    with right:
        commands(run)
    _relations(run)
    _data(run)
    rows = (
        {"Related runs": _relatives, "Files": _files},
        {"Configuration": _configuration, "Log": _log},
    )
    for sections in rows:
        for column, (title, show) in zip(st.columns(2, gap="large"), sections.items(), strict=True):
            with column:
                st.header(title, anchor=False)
                show(run)


@basics.guarded("The description")
def _describe(run: RunRecord) -> None:
    key = f"described-{run.run_id}"
    if "save-description" not in st.session_state:  # the page has just been opened
        st.session_state.pop(key, None)
    with st.popover("Describe"), st.form("describe", border=False):
        # What others change meanwhile must not replace what a person is writing.
        seen: RunRecord = st.session_state.setdefault(key, run)
        lines = [f"{name}={value}" for name, value in run_details.own_tags(seen).items()]
        description = st.text_area("Description", seen.tags.get(names.TAG_NOTE, ""))
        typed = st.text_area("Tags", "\n".join(lines), help="One name=value in each line.")
        allowed = access.may("describe")
        if st.form_submit_button("Save", key="save-description", disabled=not allowed):
            access.authorize("describe")
            pairs = [line.partition("=") for line in typed.splitlines() if line.strip()]
            run_details.describe_run(seen, description, {k.strip(): v.strip() for k, _, v in pairs})
            del st.session_state[key]
            runs.forget_runs()
            st.rerun()


@basics.guarded("The summary")
def _summary(run: RunRecord) -> None:
    state = state_of(run)
    tags = dict(run.tags) | {names.TAG_VARIANT: runs.variants_of([run])[run.run_id]}
    for tag in (names.TAG_PARAMETERS, names.TAG_BEST_STEP):
        if (number := whole_number(tags.get(tag, ""))) is not None:
            tags[tag] = f"{number:,}"
    rows = {
        "State": f"{basics.STATE_SYMBOLS[state]} {state}",
        "Because": tags.get(names.TAG_STOPPED_BECAUSE, ""),
        "Started (UTC)": tables.utc(run.started_ms).strftime("%Y-%m-%d %H:%M:%S"),
        "Took": run_table.duration(run),
        **{label: tags.get(tag, "") for label, tag in FACTS.items()},
    }
    whole = run.tags.get(names.TAG_DATA_FINGERPRINT, "")
    for context, name, short in runs.data_of(run.run_id):
        fingerprint = whole if whole.startswith(short) else short
        rows[f"Data, {context}"] = f"{name}, fingerprint {fingerprint}"
    basics.pairs(rows | {"Run id": run.run_id})
    for warning in run.tags.get(names.TAG_WARNINGS, "").splitlines():
        basics.warning(warning)


@basics.guarded("The commands")
def commands(run: RunRecord) -> None:
    typed = run.tags.get(names.TAG_COMMAND, "")
    if typed and "--parent-run" not in typed:  # not started by another command
        st.markdown("**Started by**")
        basics.code(typed)
    if repeating := repeating_commands(run):
        st.markdown("**Repeat it** with its own configuration")
        basics.code(repeating)
    st.markdown("**In MLflow**")
    address, command = mlflow_page(run)
    basics.code(command)
    st.link_button("Open the run in MLflow ↗", address)


def repeating_commands(run: RunRecord) -> str:
    """Return the commands that repeat a training run; empty without a configuration of Clew."""
    if run.tags.get(names.TAG_KIND) != names.KIND_TRAIN:
        return ""
    if not results.keeps(run, names.ARTIFACT_CONFIG_YAML):
        return ""
    folder = f"run-{run.run_id[:8]}"
    return (
        f"mlflow artifacts download --run-id {run.run_id} "
        f"--artifact-path {names.ARTIFACT_CONFIG_YAML} --dst-path {folder}\n"
        f"clew train --config {folder}/{names.ARTIFACT_CONFIG_YAML}"
    )


def mlflow_page(run: RunRecord) -> tuple[str, str]:
    """Return the address of MLflow's page of a run, and the command that serves it, if needed.

    The path opens the run among experiments rather than among traces of language models.
    """
    uri = store.tracking_uri()
    is_served = store.database_path(uri) is None and uri.startswith(("http://", "https://"))
    base = store.public_address(uri) if is_served else DEFAULT_MLFLOW_ADDRESS
    run_path = f"experiments/{quote(run.experiment_id)}/runs/{quote(run.run_id)}"
    command = "" if is_served else f"mlflow ui --backend-store-uri {store.address(uri)}"
    return f"{base}/#/{run_path}?{EXPERIMENT_MODE}", command


@basics.guarded("The results")
def _results(run: RunRecord) -> None:
    is_study = run.tags.get(names.TAG_KIND) == names.KIND_COMPARE
    study = results.study_of(run.run_id) if is_study else None
    if study is not None and study.results:
        st.header("Study", anchor=False)
        results.show_studies([study])
    if results.keeps(run, names.ARTIFACT_VALIDATION, names.VALIDATION_JSON):
        st.header("Test of explanations", anchor=False)
        results.validation(results.validation_of(run.run_id))
    if results.keeps(run, names.ARTIFACT_TUNE, names.TRIALS_CSV):
        st.header("Search", anchor=False)
        results.search(run)
    if results.keeps(run, names.ARTIFACT_VALUES, names.VALUES_CSV):
        st.header("Values of facts", anchor=False)
        results.fact_values(run.run_id)


@basics.guarded("The metrics")
def _metrics(run: RunRecord) -> None:
    """Show all metrics with their trends, and the curve of the one that is chosen.

    The chosen metric is in the address under `metric`.
    """
    curves = runs.curves_of(run)
    if not curves:
        basics.note("This run recorded no metrics.")
        return
    order = list(dict.fromkeys([*GROUPS.values(), "Other"]))

    def place(key: str) -> tuple[int, bool, bool, str]:
        """In each group the metric that decides comes first, single sides last."""
        is_side = key.endswith(("_head", "_tail"))
        return order.index(group_of(key)), key != decides, is_side, key

    chosen_by = run.params.get(f"{names.PARAMETER_PREFIX}evaluation.metric", "")
    decides = chosen_by if chosen_by in curves else headline_key(run)

    keys = sorted(curves, key=place)
    several = (key for key in keys if len(curves[key]) > 1 and group_of(key) != GROUPS["system"])
    wanted = basics.address("metric")
    chosen = wanted if wanted in keys else next(several, keys[0])
    values = [[*filter(math.isfinite, curves[key]["value"].astype(float))] for key in keys]
    trends = [value if len(value) > 1 else [] for value in values]
    small = TextColumn(width="small")
    better = TextColumn(width="small", help="If larger or smaller values are better.")
    left, right = st.columns([1.15, 1])
    with left:
        tables.tick_one(
            {
                "Metric": ([glossary.label(key) for key in keys], TextColumn(width="medium")),
                "Last": ([number_text(run.metrics[key]) for key in keys], small),
                "Best": ([_best(run, key, curves[key]) for key in keys], better),
                "Trend": (trends, LineChartColumn(width="small")),
                "Of": ([group_of(key) for key in keys], small),
            },
            keys,
            key=f"metrics-{hash(tuple(keys))}-{chosen}",
            chosen=chosen,
            take=partial(basics.write_address, "metric"),
            alt="Metrics of the run",
            row_height=tables.ROW_HEIGHT,
            most=MAX_HEIGHT,
        )
    with right:
        _curve(run, chosen, curves[chosen])


def group_of(key: str) -> str:
    _, metric = glossary.whose(key)
    return GROUPS.get(metric.partition("/")[0], "Other")


def _best(run: RunRecord, key: str, curve: pd.DataFrame) -> str:
    """Return the best value of a metric, empty if neither larger nor smaller values are better."""
    found = pick_values(curve, key, "best").get(run.run_id) if direction_of(key) else None
    return "" if found is None or math.isnan(found) else number_text(found)


def _curve(run: RunRecord, key: str, curve: pd.DataFrame) -> None:
    words = glossary.words(key)
    st.markdown(f"**{basics.markdown(words.label)}**: {basics.markdown(words.help)}")
    kind = run.tags.get(names.TAG_KIND, "")
    counted = glossary.place_on_curve(key, kind)
    if len(curve) < 2:
        place = f" ({counted.lower()}: {int(curve['step'].iloc[-1]):,})"
        basics.note(f"It has one value{place * (kind != names.KIND_COMPARE)}.")  # it has no steps
        return
    name = runs.name_of(run)
    frame = curve.assign(run=name, group=name)
    spec = charts.curves(frame, key=key, order=[name], by_time=False, kind=kind)
    alt = f"Curve of {words.label}: {counted.lower()} on the x axis"
    st.vega_lite_chart(spec | {"height": charts.HEIGHT}, width="stretch", alt=alt)


@basics.guarded("The ranks by relation")
def _relations(run: RunRecord) -> None:
    splits = run_details.splits_by_relation(runs.files_of(run.run_id))
    if not splits:
        return
    st.header("Ranks by relation", anchor=False)
    split = splits[0]
    if len(splits) > 1:
        split = st.segmented_control("Split", splits, default=split, required=True, key="split")
    frame = by_relation(run.run_id, split)
    frame = frame.sort_values(["num_queries", "label", "side"], ascending=[False, True, True])
    side = "Which end of the triple the model had to name."
    about = glossary.words(names.metric("test", names.MRR)).help
    mrr = ProgressColumn(help=about, min_value=0.0, max_value=1.0, format="%.3f")
    rank = NumberColumn(format="%.1f", width="small", help="1 is perfect.")
    columns: tables.Columns = {
        "Relation": (frame["label"], TextColumn(width="medium")),
        "Asked for": (frame["side"], TextColumn(width="small", help=side)),
        "Questions": (frame["num_queries"], NumberColumn(width="small")),
        "MRR": (frame[names.MRR], mrr),
        "Mean rank": (frame[names.MEAN_RANK], rank),
    }
    for name in (names.hits_at(k) for k in (1, 3, 10)):
        if name in frame:
            label = glossary.words(names.metric("test", name)).label.partition(",")[0]
            columns[label] = (frame[name], NumberColumn(format="%.3f", width="small"))
    tables.show(columns, alt="Ranks by relation", most=MAX_HEIGHT)
    values = {heading: shown for heading, (shown, _) in columns.items()}
    tables.export(pd.DataFrame(values), "ranks_by_relation.csv")


@basics.guarded("The report on the data")
def _data(run: RunRecord) -> None:
    if not results.keeps(run, names.ARTIFACT_DATA_REPORT):
        return
    st.header("Data", anchor=False)
    if count := run.metrics.get(leaked := names.metric("test", names.NUM_LEAKED)):
        mrr = names.metric("test", names.MRR)
        keys = [mrr, names.NOT_LEAKED.format(name=mrr)]
        said = {key: number_text(run.metrics[key]) for key in keys if key in run.metrics}
        basics.tiles(
            (glossary.label(key), text, glossary.words(key).help)
            for key, text in ({leaked: f"{count:,.0f}"} | said).items()
        )
    shown = [table for table in data_report(run.run_id) if len(table)]
    for table in shown:
        tables.show(table, alt=f"The data: {table.columns[0]}", most=MAX_HEIGHT)
    if not shown:
        basics.note("Nothing in its data looks wrong.")


@basics.guarded("The related runs")
def _relatives(run: RunRecord) -> None:
    found = runs.lineage_of(run)
    if not (found.sources or found.results or found.versions):
        basics.note("It comes from no other run, and nothing has been made from it yet.")
    for how, source in found.sources:
        basics.link("run", f"{how} {runs.name_of(source)}", id=source.run_id)
    for version in found.versions:
        aliases = f" ({', '.join(version.aliases)})" if version.aliases else ""
        called = f"{version.model} version {version.version}{aliases}"
        basics.link("models", called, model=version.model)
    for how, result in found.results:
        day = tables.utc(result.started_ms).strftime("%Y-%m-%d %H:%M")
        basics.link("run", f"{how}: {runs.name_of(result)}, {day}", id=result.run_id)
        if result.tags.get(names.TAG_KIND) == names.KIND_TRACE:
            basics.link("influence", "its explanations", run=result.run_id)


@basics.guarded("The files")
def _files(run: RunRecord) -> None:
    found = runs.files_of(run.run_id)
    if not found:
        basics.note("This run keeps no files.")
        return
    sizes = [(file.file_size or 0) / 1024 for file in found]
    columns: tables.Columns = {
        "File": ([file.path for file in found], TextColumn(width="large")),
        "Size [KiB]": (sizes, NumberColumn(format="%.1f", width="small")),
    }
    tables.show(columns, alt="Files of the run", most=MAX_HEIGHT)


@basics.guarded("The configuration")
def _configuration(run: RunRecord) -> None:
    keys = sorted(run.params)
    if not keys:
        other = "; the run of its model has one" * (names.TAG_SOURCE_RUN in run.tags)
        basics.note(f"This run has no configuration{other}.")
        return
    settings = [key.removeprefix(names.PARAMETER_PREFIX) for key in keys]
    frame = pd.DataFrame({"Setting": settings, "Value": [run.params[key] for key in keys]})
    tables.show(frame, alt="Configuration of the run", most=MAX_HEIGHT)


@basics.guarded("The log")
def _log(run: RunRecord) -> None:
    kept = results.keeps(run, names.ARTIFACT_LOG)
    if not (text := results.text_of(run.run_id, names.ARTIFACT_LOG) if kept else ""):
        basics.note("This run has no log.")
        return
    st.code(text, language=None, height=MAX_HEIGHT, wrap_lines=True)
