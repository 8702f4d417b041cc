"""Reviews: the cached records, the form for one, and training again without wrong facts."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pandas as pd
import streamlit as st
from markupsafe import Markup
from streamlit.column_config import CheckboxColumn, TextColumn

from clew import names
from clew.errors import DataError, refusing
from clew.files import DATA_VARIABLE, expanded, is_in_one_of, write_whole
from clew.runs import store
from clew.runs.reading.disagreements import Disagreement, decision_on, find_disagreements
from clew.runs.reading.facts import TRAIN_KEY
from clew.runs.reading.reviews import (
    MAX_COMMENT_CHARACTERS,
    VERDICTS,
    Fact,
    Kept,
    Review,
    append_review,
    latest_of_each,
    read_reviews,
)
from clew.runs.reading.runs import RunRecord
from clew.runs.reading.search import RunQuery
from clew.spreadsheets import FactList
from clew.ui import access
from clew.ui.components import basics, jobs
from clew.ui.components.charts import fact_text, fact_texts
from clew.ui.components.graph import UNFOLDED, config_here
from clew.ui.components.run_table import run_labels
from clew.ui.components.runs import every_run, name_of, runs_by_id, runs_page
from clew.ui.work import LEFT_OUT, Training

NUM_LATEST = 50
MAX_CACHED = 1024
JUDGED = "judged"
_SAID = (
    '<li><span class="clew-mark">{symbol}</span><b>{said}</b> '
    '<span class="clew-muted">{who} · {when}</span><div class="clew-wrap">{comment}</div></li>'
)
NUM_FACTS, EDITOR_HEIGHT = 20, 214
CONVINCING = "convincing"
WRONG = "wrong"
MEANINGS = {
    "plausible": "The facts are a sensible reason to believe the triple.",
    "implausible": "They are not: off topic, by chance, or wrong.",
    "unsure": "I cannot tell.",
}
Said = TypeVar("Said", bound=str)
SUFFIX = " without the facts marked wrong"
"""End of the names of runs that are trained again."""
NOISE = (
    "One run each says little: another seed changes their metrics too. To be sure, train both "
    "with several seeds and compare those. In the ranks of the new run, the facts left out are no "
    "longer known answers."
)


def reviewable_runs() -> list[RunRecord]:
    """Return the latest runs that explain triples, and all older ones with a review.

    The newest comes first.
    """
    query = RunQuery(kind=names.KIND_TRACE, task=names.TASK_LINK_PREDICTION)
    found = [*runs_page(query, size=NUM_LATEST).runs, *every_run(replace(query, reviewed=True))]
    each = {run.run_id: run for run in found}
    return sorted(each.values(), key=lambda run: run.started_ms, reverse=True)


reviews_of = st.cache_data(ttl=10, max_entries=MAX_CACHED, show_spinner=False)(read_reviews)


def reviews_of_all(run_ids: Iterable[str]) -> Kept:
    found = [reviews_of(run_id) for run_id in run_ids]
    return Kept(
        tuple(review for kept in found for review in kept.records),
        tuple(problem for kept in found for problem in kept.problems),
    )


def add_decision(
    key: str, verdict: str, person: str, comment: str, runs: Sequence[RunRecord]
) -> Review:
    """Write a person's final review of what is to be decided, after reading the store again.

    `person` counts if nobody has to sign in; the disagreement is searched in reviews of `runs`.

    Raises:
        AccessError: The person may not decide, or not about a fact that one person has marked.
        DataError: There is nothing to decide, or `person` is empty.
    """
    for run in runs:
        reviews_of.clear(run.run_id)
    found = find_disagreements(reviews_of_all(run.run_id for run in runs).records, runs)
    about = next((each for each in found if each.key == key), None)
    if about is None:
        raise DataError(f"no reviewers disagree about {key} any more; there is nothing to decide")
    person = access.authorize(decided_as(about)) or person
    written = append_review(about.final_review(verdict, person, comment))
    reviews_of.clear(written.run_id)
    return written


def decided_as(about: Disagreement) -> access.Action:
    return "confirm" if about.needs_promoter else "decide"


def add_review(review: Review) -> Review:
    """Write a review to its run; a signed-in person is its reviewer."""
    person = access.authorize("review")
    written = append_review(replace(review, reviewer=person or review.reviewer))
    reviews_of.clear(review.run_id)
    return written


def judged(reviews: Iterable[Review]) -> set[object]:
    """Return the explanations that this person judged: under their name, or since they came."""
    name = access.person() or str(st.session_state.get("reviewer", "")).strip()
    named = {each.about for each in reviews if name and each.reviewer == name and not each.final}
    return named.union(st.session_state.get(JUDGED, ()))


def visible(reviews: Sequence[Review]) -> list[Review]:
    """Return the reviews that may be shown: to reviewers what they have judged themselves."""
    mine = judged(reviews)
    is_reader = not access.may("review")
    return [review for review in reviews if is_reader or review.about in mine]


def fact_of(row: pd.Series) -> Fact:
    return Fact(*(str(row[key]) for key in (*TRAIN_KEY, "head", "relation", "tail")))


def form(run_id: str, test: pd.Series, shown: pd.DataFrame, following: int | None) -> None:
    """Let a person record a verdict, tick facts and comment; write it to the run.

    `following` is the place of the next explanation to judge, None if there is none.
    `shown` are the training facts that can be ticked. Input that is not saved yet is restored when
    the person returns to the form.
    """
    key = f"review-{run_id}-{test.name}"
    with st.container(border=True):
        st.markdown("**Is this a plausible reason to believe the triple?**")
        # First, so that they are in view; a verdict saves what is ticked and written below.
        with st.container(horizontal=True):
            verdict = verdict_buttons(VERDICTS, MEANINGS, key, "review", by_number=True)
            st.button(
                "Next",
                key=f"{key}-next",
                shortcut="n",
                disabled=following is None,
                help="The next explanation of this run that you have not judged.",
                on_click=open_test,
                args=(following,),
            )
        st.caption("A verdict saves the facts that you ticked and your comment.")
        ticked = _ticked(key, shown)
        comment = comment_box("Comment", key)
        reviewer = basics.name_box()
    if verdict is None:
        return
    convincing, wrong = (
        tuple(fact_of(row) for _, row in shown[ticked[column].to_numpy(bool)].iterrows())
        for column in (CONVINCING, WRONG)
    )
    with basics.guarded("The review", done="saved"):
        review = Review(run_id, fact_of(test), verdict, reviewer, comment, convincing, wrong)
        saved = add_review(review)
        st.session_state[JUDGED] = {*st.session_state.get(JUDGED, ()), saved.about}
        later = "A later review of yours counts instead of this one."
        st.success(f"Saved with the run. {later if saved.reviewer else ''}")


def _ticked(key: str, shown: pd.DataFrame) -> pd.DataFrame:
    """Let a person tick facts, starting from what was ticked before the form left the page."""
    if f"{key}-facts" not in st.session_state:  # the form was not on the page before
        signs = [basics.sign_symbol(value) for value in shown["influence"]]
        columns = {CONVINCING: False, WRONG: False, "±": signs, "Training fact": fact_texts(shown)}
        unticked = pd.DataFrame(columns, index=range(len(shown)))
        st.session_state[f"{key}-begun"] = st.session_state.get(f"{key}-ticked", unticked)
    ticked: pd.DataFrame = st.data_editor(
        st.session_state[f"{key}-begun"],
        key=f"{key}-facts",
        alt="The strongest facts, to be ticked as convincing or wrong",
        hide_index=True,
        height=min(EDITOR_HEIGHT, 38 + 35 * len(shown)),
        disabled=["±", "Training fact"],
        column_config={
            CONVINCING: CheckboxColumn(width=90),
            WRONG: CheckboxColumn(width=65),
            "±": TextColumn(width=30),
            "Training fact": TextColumn(width=760),
        },
    )
    st.session_state[f"{key}-ticked"] = ticked
    return ticked


def comment_box(label: str, key: str) -> str:
    key, most = f"{key}-comment", MAX_COMMENT_CHARACTERS
    given = st.text_area(label, key=key, height=68, max_chars=most, persist_state="session")
    return (given or "").strip()


def verdict_buttons(
    verdicts: Sequence[Said],
    meanings: Mapping[str, str],
    key: str,
    action: access.Action,
    *,
    by_number: bool = False,
) -> Said | None:
    """Show a button for each verdict, in the container in use; return the one that was given.

    `by_number` lets the keys 1, 2, 3 press them too.
    """
    pressed, is_off = None, not access.may(action)
    for number, verdict in enumerate(verdicts, start=1):
        label, about = f"{basics.OPINION_SYMBOLS[verdict]} {verdict}", meanings[verdict]
        typed = str(number) if by_number else None
        if st.button(label, f"{key}-{verdict}", about, disabled=is_off, shortcut=typed):
            pressed = verdict
    return pressed


def open_test(place: int | None) -> None:
    """Put an explained triple into the address, without what is selected in another one."""
    basics.write_address("test", place)
    for key in ("fact", "path", "check", "entity", UNFOLDED):
        basics.write_address(key, None)


def next_to_judge(run_id: str, tests: pd.DataFrame, place: int) -> int | None:
    """Return the place of the next triple, after the last comes the first, that needs a verdict."""
    done = judged(reviews_of(run_id).records)
    places = [int(each) for each in tests.index]
    at = places.index(place)
    triples = dict(zip(places, tests[TRAIN_KEY].astype(str).itertuples(index=False), strict=True))
    later = (*places[at + 1 :], *places[:at])
    return next((each for each in later if (run_id, tuple(triples[each])) not in done), None)


def earlier(run_id: str, test: pd.Series) -> None:
    """Show earlier reviews of this explanation and the decision, after the person's own verdict."""
    triple, reviews = fact_of(test).triple, reviews_of(run_id).records
    given = [each for each in latest_of_each(reviews) if each.test.triple == triple]
    shown = visible(given)
    items = [said(each, each.said) for each in shown]
    if shown and (made := decision_on(triple, reviews)) is not None:
        items.append(said(made, made.said, before="decided: "))
    basics.show_list(items)
    if len(shown) < len(given):
        basics.note("What others said of it is shown after your own verdict.")


def said(review: Review, verdict: str, *, before: str = "", more: str = "") -> Markup:
    """Return a review as an item of a list: its verdict, by whom, why."""
    told = {"symbol": basics.OPINION_SYMBOLS[verdict], "said": f"{before}{verdict}{more}"}
    who, when = review.reviewer or "somebody", f"{review.created[:16].replace('T', ' ')} UTC"
    return basics.fill(_SAID, who=who, when=when, comment=review.comment, **told)


def triple_text(fact: Fact) -> str:
    return fact_text(*fact.labels)


def explained_runs(reviews: Iterable[Review], runs: Iterable[RunRecord]) -> list[RunRecord]:
    """Return the training runs whose explanations, from `runs`, were reviewed, the newest first."""
    sources = {run.run_id: run.tags.get(names.TAG_SOURCE_RUN, "") for run in runs}
    found = runs_by_id(sorted({sources[review.run_id] for review in reviews} - {""}))
    return sorted(found, key=lambda run: -run.started_ms)


def train_without(run: RunRecord, listed: str) -> jobs.Job:
    """Start training a run's configuration again without the facts of a list.

    The list has the format of `data.exclude`. It stays in a file, because later commands on the new
    run read its data again.

    Raises:
        ClewError: The person may not train, or the configuration or its list cannot be used.
    """
    access.authorize("train")  # before the list is written
    config = config_here(run.run_id)
    data, tracking = config["data"], config["tracking"]
    data["exclude"] = str(_kept(listed, data.get("exclude")))
    title = f"{name_of(run).removesuffix(SUFFIX)}{SUFFIX}"
    tracking["run_name"] = title
    if access.is_configured():  # its folder could be any folder of this server
        tracking["tensorboard"] = False
    return jobs.jobs().start(Training(config), title=f"Train {title}", action="train")


def _kept(listed: str, earlier: str | None) -> Path:
    """Write a list to a file named after its content, after the facts that were left out before.

    Only the earlier list keeps its lines about the data, because the new facts are from the same
    data without the earlier ones.
    """
    if earlier:
        path = store.project_root() / expanded(earlier)
        if access.is_configured() and not is_in_one_of(path, jobs.folders_of_data()):
            raise DataError(f"data.exclude of this run is not in ${DATA_VARIABLE}; put it there")
        what = f"{earlier}: the facts that this run left out cannot be read"
        advice = "; put the list back, or repeat a run on all facts"
        with refusing(what, OSError, UnicodeDecodeError, advice=advice):
            text = path.read_text(encoding="utf-8")
        before = FactList.parse(text)
        listed = replace(before, facts=before.facts + FactList.parse(listed).facts).text()
    digest = hashlib.sha256(listed.encode()).hexdigest()[:12]
    path = store.project_root() / LEFT_OUT / f"wrong_facts_{digest}.tsv"
    write_whole(path, listed)
    return path


def offer_training(runs: Sequence[RunRecord], listed: str, *, key: str) -> None:
    """Let a person train one of the explained models again, without the facts of a list.

    The address then names the training, so that the page shows it.
    """
    if not runs:
        basics.note("The store has no training run of the explained models to repeat.")
        return
    labels = run_labels(runs)
    about = "The models whose explanations were reviewed, the newest first."
    duration = "Starts training on this machine with the same configuration and seed; it takes "
    duration += "about as long as the first one did."
    label, is_off = "Train again without these facts", not access.may("train")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        chosen = st.selectbox(
            "Run to repeat", [*labels], 0, labels.__getitem__, f"repeat-{key}", about
        )
        pressed = st.button(label, f"train-{key}", duration, disabled=is_off)
    if pressed:
        run = next(run for run in runs if run.run_id == chosen)
        with basics.guarded("The training", done="started"):
            job = train_without(run, listed)
            basics.write_address("training", job.job_id)
            basics.write_address("before", run.run_id)
            st.rerun()


def retrained() -> None:
    """Show the training that the address names, if it names one, and then links to both runs."""
    job_id, before = basics.address("training"), basics.address("before")
    if not job_id:
        return
    st.header("Trained again", anchor=False)

    def working(job: jobs.Job) -> None:
        if job.state == "running":
            basics.link("overview", "Its progress")

    def finished(job: jobs.Job) -> None:
        if job.state == "done":
            with st.container(horizontal=True):
                both = f"{before},{job.run_id()}"
                basics.link("compare", "Compare both runs", runs=both, ref=before)
                basics.link("run", "The new run", id=job.run_id())
            basics.note(NOISE)

    jobs.show(job_id, progress=working, result=finished)
