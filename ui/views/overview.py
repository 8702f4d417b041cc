"""Overview: how many runs in which state, what is running now, and the latest runs."""

import time
from collections.abc import Sequence

import streamlit as st

from clew import names
from clew.runs.reading.metrics import EpochProgress, headline_key, number_text, progress_of
from clew.runs.reading.runs import RunRecord, last_heartbeat, last_sign_of_life, state_of
from clew.runs.reading.search import RunQuery
from clew.ui.components import basics, glossary, run_table, runs
from clew.ui.components.tables import seconds_text

SECONDS_BETWEEN = 5
MAX_SHOWN = 8


def render() -> None:
    title, experiment = st.columns([3, 1], vertical_alignment="bottom")
    title.title("Overview", anchor=False)
    with basics.guarded("The overview"):
        if not runs.has_runs():
            basics.empty_store()
            return
        with experiment:
            experiment_ids = run_table.experiment()
        # Read once: a run that ends between two readings would be counted as running for good.
        alive = runs.live_runs(experiment_ids)
        _doors(alive)
        _numbers(experiment_ids, alive)
        running_now(experiment_ids, alive)
        st.header("Runs", anchor="runs")
        query = run_table.run_query(experiment_ids)
        chosen = run_table.choose_runs(query, key="overview", trends=True)
        if chosen is not None:
            _actions(chosen)


def _doors(alive: Sequence[RunRecord]) -> None:
    """Show where a person who asks, reviews or trains begins, and what waits there."""
    champions = [model.name for model in runs.models() if model.champion is not None]
    asks = "No model has been promoted yet; the page Models does it."
    if champions:
        asks = f"Ask {champions[0]} a question, and see why it answers as it does."
    ended = RunQuery(kind=names.KIND_TRACE, task=names.TASK_LINK_PREDICTION, status="FINISHED")
    latest = runs.runs_page(ended).runs
    waiting = [run.run_id for run in latest if names.TAG_REVIEWED not in run.tags]
    reviews = f"Waiting for a review: {len(waiting)} of the latest {len(latest)} explained runs."
    live = sum(state_of(run) == "running" for run in alive)
    with st.container(key="doors"):
        places = [place.container(border=True, height="stretch") for place in st.columns(3)]
        with places[0]:
            basics.link("ask", "Ask")
            st.caption(basics.markdown(asks))
        with places[1]:
            if waiting:
                basics.link("influence", "Review", run=waiting[0], view="Review", test="0")
            else:
                basics.link("reviews", "Review")
            st.caption(reviews if latest else "Nothing is explained yet.")
        with places[2]:
            basics.show('<p><a href="#runs">Runs ↓</a></p>')
            st.caption(f"Live now: {live}. Find, compare and promote runs.")


def _numbers(experiment_ids: tuple[str, ...], alive: Sequence[RunRecord]) -> None:
    meanings = {
        "running": "Not ended, and not known to be silent.",
        "stuck": "Its heartbeats stopped over two minutes ago.",
        "finished": "Ended as planned.",
        "stopped": "Stopped by a person, or by their search.",
        "failed": "Ended by an error, or its process died.",
    }
    number = runs.counts(experiment_ids, alive)
    shown = [("Runs", f"{number['total']:,}", "All runs of the chosen experiments.")]
    for state, meaning in meanings.items():
        label = f"{basics.STATE_SYMBOLS[state]} {state.capitalize()}"
        shown.append((label, f"{number[state]:,}", meaning))
    basics.tiles(shown)


def _actions(run_ids: list[str]) -> None:
    ticked = runs.runs_by_id(run_ids)
    trained = [run for run in ticked if run.tags.get(names.TAG_KIND) == names.KIND_TRAIN]
    traced = [run for run in ticked if run.tags.get(names.TAG_KIND) == names.KIND_TRACE]
    if not ticked:
        st.caption("Tick runs to compare them, to read their explanations or to promote one.")
        return
    with st.container(horizontal=True):
        if len(ticked) == 1:
            basics.link("run", "Open this run", id=ticked[0].run_id)
        if len(trained) > 1:
            ids = ",".join(run.run_id for run in trained)
            basics.link("compare", f"Compare {len(trained)} runs", runs=ids)
        if traced:
            basics.link("influence", "Read explanations", run=traced[0].run_id)
        if len(trained) == 1:
            basics.link("models", "Promote this run", candidate=trained[0].run_id)


def running_now(experiment_ids: tuple[str, ...], alive: Sequence[RunRecord]) -> None:
    """Show the runs that are marked as running; nothing if there are none."""
    if not alive:
        return
    st.header("Now", anchor=False)
    is_alive = any(state_of(run) == "running" for run in alive)
    known = frozenset((run.run_id, state_of(run)) for run in alive)
    st.fragment(_runs, run_every=SECONDS_BETWEEN if is_alive else None)(experiment_ids, known)


def _runs(experiment_ids: tuple[str, ...], known: frozenset[tuple[str, str]]) -> None:
    """Show the runs; once one of the `known` ones has ended or is stuck, reload the whole page."""
    with basics.guarded("The progress of runs"):
        live = sorted(runs.live_runs(experiment_ids), key=lambda run: state_of(run) == "stuck")
        if known - {(run.run_id, state_of(run)) for run in live}:
            st.rerun()
        for run in live[:MAX_SHOWN]:
            _running(run)
        if len(live) > MAX_SHOWN:
            st.caption(f"and {len(live) - MAX_SHOWN} more")


def _running(run: RunRecord) -> None:
    done = progress_of(run, runs.histories([run], names.TRAIN_EPOCH))
    title = "<b>{name}</b> <span class='clew-muted clew-small'>{detail}</span>"
    basics.show(title, name=runs.name_of(run), detail=_detail(run, done))
    if state_of(run) == "stuck":
        _stuck(run)
        return
    if done is not None:
        left = done.seconds_left
        rest = f" · about {seconds_text(left)} to go" if left else ""
        st.progress(done.share, text=f"{done.share:.0%}{rest}")
    if last_heartbeat(run) is None:
        said = "last metric" if run.last_metric_ms else "started"
        ago = seconds_text(time.time() - last_sign_of_life(run))
        st.caption(f"{said} {ago} ago; it sends no heartbeats, so whether it is alive is not known")


def _stuck(run: RunRecord) -> None:
    """Warn that a run is silent, and show what to do.

    Only a training run resumes from a checkpoint. A trial keeps none; its search continues.
    """
    silent = seconds_text(time.time() - last_sign_of_life(run))
    said = f"Stuck: silent for {silent}. Its process has probably died"
    if run.tags.get(names.TAG_KIND) == names.KIND_TRAIN and names.TAG_TRIAL not in run.tags:
        command = f"clew train --resume {run.run_id}"
        basics.warning(f"{said}; this command continues from its last checkpoint:", command=command)
    elif typed := run.tags.get(names.TAG_COMMAND):
        basics.warning(f"{said}; start it again:", command=typed)
    else:
        basics.warning(f"{said}.")


def _detail(run: RunRecord, done: EpochProgress | None) -> str:
    parts = [run.tags.get(names.TAG_VARIANT, ""), run.tags.get(names.TAG_DATASET, "")]
    if done is not None:
        parts.append(f"epoch {done.epochs:.3g} of {done.total_epochs:.3g}")
    key = headline_key(run)
    if key in run.metrics:
        parts.append(f"{glossary.words(key).label} {number_text(run.metrics[key])}")
    return " · ".join(part for part in parts if part)
