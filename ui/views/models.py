"""Models: the registered models, the version that answers questions, and promotion."""

from collections.abc import Sequence
from contextlib import suppress

import streamlit as st
from streamlit.column_config import DatetimeColumn, NumberColumn, TextColumn

from clew import names
from clew.config.schema import TASK_KINDS
from clew.runs.reading.metrics import number_text
from clew.runs.reading.models import RegisteredModel, Version
from clew.runs.reading.search import RunQuery
from clew.ui import access
from clew.ui.components import basics, glossary, jobs, runs, tables
from clew.ui.components.run_table import run_labels
from clew.ui.work import Promotion, Rollback


def render() -> None:
    st.title("Models", anchor=False)
    with basics.guarded("The promotion"):
        if job_id := basics.address("job"):  # the one that was started last
            jobs.show(job_id, progress=checks, result=outcome)
    with basics.guarded("The registered models"):
        by_name = {model.name: model for model in runs.models()}
        if not by_name:
            basics.nothing(
                "No registered models yet",
                "Promote a run below or with this command: its best checkpoint becomes a model.",
                commands="clew promote --run-id RUN_ID --name NAME",
            )
        else:
            options = list(by_name)
            if (wanted := basics.address("model")) and wanted not in by_name:
                basics.warning(f"No registered model {wanted} is in the store.")
            chosen = st.selectbox("Registered model", options, key="model", bind="query-params")
            _model(by_name.get(chosen, by_name[options[0]]))
    _promote()


def _model(model: RegisteredModel) -> None:
    current = runs.champion(model)
    if current is not None:
        show_champion(model, current)
    st.header("Versions", anchor=False)
    ticked = choose_version(runs.versions(model))
    if ticked is not None:
        lineage(ticked)
        if ticked.run is not None:
            with st.container(horizontal=True):
                basics.link("compare", "Its training run", runs=ticked.run_id)
                basics.link("ask", "Ask the champion", model=ticked.model)
    previous = str(model.aliases.get(names.ALIAS_PREVIOUS))
    if current is not None and previous == str(current.version):  # a promotion was killed
        previous = current.tags.get(f"{names.TAG_FORMER}.{names.ALIAS_CHAMPION}", "")
    if not previous.isdecimal() or model.champion is None:
        return
    with st.popover(f"Roll back to version {previous}"):
        becomes = f"version {model.champion} becomes *previous*. A second rollback undoes this."
        st.markdown(f"Version {previous} answers questions again; {becomes}")
        allowed = access.may("roll back")
        if st.button("Roll back now", key="rollback", type="primary", disabled=not allowed):
            _start(Rollback(model.name), f"Roll back {model.name}", "roll back")


def _start(wanted: Promotion | Rollback, title: str, action: access.Action) -> None:
    """Start a job, and put it into the address, so that the page shows it."""
    job = jobs.jobs().start(wanted, title=title, action=action)
    basics.write_address("job", job.job_id)
    st.rerun()


@basics.guarded("The promotion of a run")
def _promote() -> None:
    """Let a person promote a run, or only check whether it can be promoted.

    The default name comes from the run's data.
    """
    st.header("Promote a run", anchor=False)
    found = runs.runs_page(RunQuery(kind=names.KIND_TRAIN, status="FINISHED")).runs
    linked = basics.address("candidate")
    labels = run_labels(found, linked=linked)
    options = list(labels)
    first, second, third = st.columns([3, 2, 2], vertical_alignment="bottom")
    place = options.index(linked) if linked else 0 if options else None
    about = "Finished training runs, the newest first. The run's best checkpoint is promoted."
    run_id = first.selectbox("Run", options, place, labels.__getitem__, help=about)
    run = runs.run_by_id(run_id or "")
    data = run.tags.get(names.TAG_DATASET, "") if run is not None else ""
    default = names.default_model_name(data)
    name = second.text_input(
        "Model name", value=default, placeholder="clew-umls", key=f"as-{run_id}"
    ).strip()
    about = "Checks that are not final can be overruled; the reason is recorded with the version."
    force = third.text_input("Overrule, with a reason", key="force", help=about).strip()
    ready = bool(run_id and name)
    with st.container(horizontal=True):
        about, allowed = "Runs every check and writes nothing.", ready and access.may("check")
        check = st.button("Check only", key="dry", disabled=not allowed, help=about)
        allowed = ready and access.may("promote")
        promote = st.button("Promote", key="promote", type="primary", disabled=not allowed)
    if not (check or promote):
        return
    if run is None:
        message = f"no run {run_id} in the store; it may have been deleted"
        basics.problem("The run", message, done="promoted")
        return
    wanted = Promotion(run.run_id, name, dry_run=check, force=force)
    title = f"{'Check' if check else 'Promote'} run {run.run_id[:8]} as {name}"
    _start(wanted, title, "check" if check else "promote")


QUALITY = tuple(
    names.metric(split, kind.metrics[0])
    for kind in TASK_KINDS.values()
    for split in ("valid", "test")
)
"""Quality of models of each task: what chose them, and what it is on the test split."""
LINEAGE = {
    "Task": names.TAG_TASK,
    "Data": names.TAG_DATASET,
    "Data fingerprint": names.TAG_DATA_FINGERPRINT,
    "Configuration": names.TAG_CONFIG_HASH,
    "Commit": names.TAG_COMMIT,
    "Commit of the promotion": names.TAG_PACKAGE_COMMIT,
    "Version of Clew": names.TAG_VERSION,
    "Device": names.TAG_DEVICE,
    "Checkpoint, optimizer step": names.TAG_CHECKPOINT_STEP,
    "Weights": names.TAG_WEIGHTS,
    "Temperature of its probabilities": names.TAG_TEMPERATURE,
    "Half width of its intervals": names.TAG_HALF_WIDTH,
    "Promoted by run": names.TAG_PROMOTE_RUN,
    "Refused because": names.TAG_REFUSED_BECAUSE,
    "Decided by": names.TAG_GATE_METRIC,
    "Decided on": names.TAG_GATE_SPLIT,
    "Examples compared": names.TAG_GATE_EXAMPLES,
    "Interval of the difference": names.TAG_GATE_INTERVAL,
    "Promoted by": names.TAG_PROMOTED_BY,
    "Rolled back by": names.TAG_ROLLED_BACK_BY,
    "Overruled because": names.TAG_FORCED_BECAUSE,
}
"""Labels for the origin of a version, and the tags that have the values."""
ALIASES = (
    "champion answers questions; previous did before it; challenger was refused by the checks."
)
_CARD = (
    '<div class="clew-card"><h2>{name} <span class="clew-badge">champion</span></h2>'
    "<p>Version <b>{version}</b> answers questions under <code>{uri}</code>.</p>"
    '<p class="clew-muted">{detail}</p></div>'
)
_CHECK = (
    '<li><span class="clew-mark {kind}">{mark}</span><b>{name}</b> '
    '<span class="clew-muted clew-wrap">{detail}</span></li>'
)


def show_champion(model: RegisteredModel, version: Version) -> None:
    """Show which version answers questions, and how good it is."""
    metrics = measured(version)
    known = [key for key in QUALITY if key in metrics]
    told = [f"{glossary.words(key).label} {number_text(metrics[key])}" for key in known]
    told.append(f"registered {tables.utc(version.created_ms):%Y-%m-%d %H:%M} UTC")
    uri, detail = runs.champion_uri(model), " · ".join(told)
    basics.show(_CARD, name=model.name, version=version.version, uri=uri, detail=detail)


def measured(version: Version) -> dict[str, float]:
    """Return the metrics of a version that its promotion measured, or else those of its run."""
    found = {}
    for key, value in version.tags.items():
        if key.startswith(names.TAG_METRIC_PREFIX):
            with suppress(ValueError):  # people can edit tags
                found[key.removeprefix(names.TAG_METRIC_PREFIX)] = float(value)
    return found or dict(version.run.metrics if version.run is not None else {})


def choose_version(found: Sequence[Version]) -> Version | None:
    """Show a model's versions and return the one that a person ticked."""
    runs_of, numbers = [version.run for version in found], [measured(each) for each in found]
    aliases = [", ".join(version.aliases) for version in found]
    results = [version.tags.get(names.TAG_VALIDATION, "") for version in found]
    columns: tables.Columns = {
        "Version": ([version.version for version in found], None),
        "Aliases": (aliases, TextColumn(help=ALIASES)),
        "Validation": (results, TextColumn(help="The results of the promotion's checks.")),
        "Run": (["deleted" if run is None else run.name for run in runs_of], None),
        "Variant": ([run.tags.get(names.TAG_VARIANT, "") if run else "" for run in runs_of], None),
    }
    for key in QUALITY:
        column = NumberColumn(format="%.4f", help=glossary.words(key).help)
        columns[glossary.label(key)] = ([metrics.get(key) for metrics in numbers], column)
    registered = [tables.utc(version.created_ms) for version in found]
    columns["Registered (UTC)"] = (registered, DatetimeColumn(format="YYYY-MM-DD HH:mm"))
    key = f"versions-{hash(tuple((v.model, v.version) for v in found))}"
    shown = tables.with_values(columns)
    ticked = tables.ticked(shown, found, alt="Versions of the model", key=key)
    return ticked[0] if ticked else None


def lineage(version: Version) -> None:
    """Show where a version came from: its run, data, code and other tags."""
    basics.pairs(lineage_pairs(version))
    numbers = {
        glossary.label(key.removeprefix(names.TAG_METRIC_PREFIX)): value
        for key, value in sorted(version.tags.items())
        if key.startswith(names.TAG_METRIC_PREFIX)
    }
    with st.expander(f"All {len(numbers)} recorded numbers"):
        basics.pairs(numbers)


def lineage_pairs(version: Version) -> dict[str, str]:
    """Return what is known about a version's origin, by label."""
    tags = dict(version.tags) | (dict(version.run.tags) if version.run is not None else {})
    pairs = {"Run": version.run_id or "unknown"}
    pairs |= {label: tags[tag] for label, tag in LINEAGE.items() if tag in tags}
    shown = {*LINEAGE.values(), names.TAG_SOURCE_RUN, names.TAG_VALIDATION}
    return pairs | {
        key.removeprefix("clew."): value
        for key, value in sorted(version.tags.items())
        if key not in shown and not key.startswith(names.TAG_METRIC_PREFIX)
    }


def checks(job: jobs.Job) -> None:
    """Show the checks of a promotion that have been made so far."""
    items = []
    for event in job.events():
        if "passed" in event:
            kind, mark = ("clew-for", "✓") if event["passed"] else ("clew-against", "✗")
            said = {key: event.get(key, "") for key in ("name", "detail")}
            items.append(basics.fill(_CHECK, kind=kind, mark=mark, **said))
    basics.show_list(items)


def outcome(job: jobs.Job) -> None:
    """Show the result of a promotion or a rollback, and choose its model, but only once."""
    for event in job.events():
        result = event.get("result")
        if isinstance(result, dict):
            runs.models.clear()
            runs.versions.clear()
            if st.session_state.get("outcome") != job.job_id:
                st.session_state["outcome"] = job.job_id
                if result.get("name") in {model.name for model in runs.models()}:
                    st.session_state["model"] = result["name"]
            st.success(f"✓ {basics.markdown(result.get('outcome', 'done'))}")
