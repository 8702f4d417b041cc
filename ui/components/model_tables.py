"""Registered models in tables and cards: versions, lineage, the checks of a promotion."""

from collections.abc import Sequence
from contextlib import suppress

import pandas as pd
import streamlit as st

from clew import names
from clew.config.schema import TASK_KINDS
from clew.ui.components import glossary, markup, tables
from clew.ui.components.runs_table import utc
from clew.ui.data import models
from clew.ui.data.jobs import Job
from clew.ui.data.models import RegisteredModel, Version
from clew.ui.data.runs import number_text

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
    "Promoted by": names.TAG_PROMOTED_BY,
    "Compared by": names.TAG_GATE_METRIC,
    "Compared on": names.TAG_GATE_EXAMPLES,
    "Improvement, interval": names.TAG_GATE_INTERVAL,
    "Rolled back by": names.TAG_ROLLED_BACK_BY,
    "Overruled because": names.TAG_FORCED_BECAUSE,
}
"""Labels for the origin of a version, and the tags that have the values."""
_CARD = (
    '<div class="clew-card"><h2>{name} <span class="clew-badge">champion</span></h2>'
    "<p>Version <b>{version}</b> answers questions under <code>{uri}</code>.</p>"
    '<p class="clew-muted">{detail}</p></div>'
)
_CHECK = (
    '<li><span class="clew-mark {kind}">{mark}</span><b>{name}</b> '
    '<span class="clew-muted clew-wrap">{detail}</span></li>'
)
_ORIGIN = (
    '<div class="clew-scroll" tabindex="0" role="region" aria-label="Origin">'
    '<table class="clew-table">{rows}</table></div>'
)
_PAIR = '<tr><td>{key}</td><td style="text-align:left" class="clew-wrap">{value}</td></tr>'


def champion(model: RegisteredModel, version: Version) -> None:
    """Show which version answers questions, and how good it is."""
    markup.show(
        _CARD,
        name=model.name,
        version=version.version,
        uri=models.champion_uri(model),
        detail=" · ".join(
            [*_qualities(version), f"registered {utc(version.created_ms):%Y-%m-%d %H:%M}"]
        ),
    )


def measured(version: Version) -> dict[str, float]:
    """Return the metrics of a version that its promotion measured, or else those of its run."""
    found = {}
    for key, value in version.tags.items():
        if key.startswith(names.TAG_METRIC_PREFIX):
            with suppress(ValueError):  # people can edit tags
                found[key.removeprefix(names.TAG_METRIC_PREFIX)] = float(value)
    return found or dict(version.run.metrics if version.run is not None else {})


def _qualities(version: Version) -> list[str]:
    metrics = measured(version)
    return [
        f"{glossary.words(key).label} {number_text(metrics[key])}"
        for key in QUALITY
        if key in metrics
    ]


def versions(found: Sequence[Version]) -> Version | None:
    """Show a model's versions and return the one that a person ticked."""
    frame = pd.DataFrame([_row(version) for version in found])
    ticked = tables.ticked(
        frame.dropna(axis="columns", how="all"),
        found,
        alt="Versions of the model",
        key=f"versions-{hash(tuple((v.model, v.version) for v in found))}",
        placeholder="–",
        column_config={
            "Aliases": st.column_config.TextColumn(
                help="champion answers questions; previous did before it; challenger was refused "
                "by the checks."
            ),
            "Validation": st.column_config.TextColumn(
                help="The results of the promotion's checks."
            ),
            "Registered (UTC)": st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm"),
            "Epoch [s]": st.column_config.NumberColumn(format="%.4g"),
        }
        | {
            glossary.label(key): st.column_config.NumberColumn(
                format="%.4f", help=glossary.words(key).help
            )
            for key in QUALITY
        },
    )
    return ticked[0] if ticked else None


def _row(version: Version) -> dict[str, object]:
    run, metrics = version.run, measured(version)
    row: dict[str, object] = {
        "Version": version.version,
        "Aliases": ", ".join(version.aliases),
        "Validation": version.tags.get(names.TAG_VALIDATION, ""),
        "Run": "deleted" if run is None else run.name,
        "Variant": "" if run is None else run.tags.get(names.TAG_VARIANT, ""),
    }
    row |= {glossary.label(key): metrics.get(key) for key in QUALITY}
    row["Registered (UTC)"] = utc(version.created_ms)
    return row


def lineage(version: Version) -> None:
    """Show where a version came from: its run, data, code and other tags."""
    pairs = lineage_pairs(version)
    rows = [markup.fill(_PAIR, key=key, value=value) for key, value in pairs.items()]
    markup.show(_ORIGIN, rows=markup.join(rows))
    numbers = recorded_numbers(version)
    if len(numbers):
        with st.expander(f"All {len(numbers)} recorded numbers"):
            tables.show(numbers, alt="Recorded numbers")


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


def recorded_numbers(version: Version) -> pd.DataFrame:
    """Return the metrics that were recorded with a version when it was promoted."""
    found = {
        key.removeprefix(names.TAG_METRIC_PREFIX): value
        for key, value in sorted(version.tags.items())
        if key.startswith(names.TAG_METRIC_PREFIX)
    }
    labels = [glossary.label(key) for key in found]
    return pd.DataFrame({"Metric": labels, "Key": list(found), "Value": list(found.values())})


def checks(job: Job) -> None:
    """Show the checks of a promotion that have been made so far."""
    items = [
        markup.fill(
            _CHECK,
            kind="clew-for" if event["passed"] else "clew-against",
            mark="✓" if event["passed"] else "✗",
            name=event.get("name", ""),
            detail=event.get("detail", ""),
        )
        for event in job.events()
        if "passed" in event
    ]
    markup.show_list(items)


def outcome(job: Job) -> None:
    """Show the result of a promotion or a rollback, and choose its model, but only once."""
    for event in job.events():
        result = event.get("result")
        if isinstance(result, dict):
            models.forget()
            if st.session_state.get("outcome") != job.job_id:
                st.session_state["outcome"] = job.job_id
                if result.get("name") in {model.name for model in models.models()}:
                    st.session_state["model"] = result["name"]
            st.success(f"✓ {markup.markdown(result.get('outcome', 'done'))}")
