"""Answers of graph models: triples, and the reasons for one.

The reasons come first from the facts near the triple, then from all facts.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.column_config import LinkColumn, NumberColumn, ProgressColumn, TextColumn
from streamlit.delta_generator import DeltaGenerator

from clew import names
from clew.biolink import page_of
from clew.errors import UsageError
from clew.runs.influence_forms import DISPUTED_COLUMN, MOST_FACTS_TUNED, TUNED_MODELS
from clew.runs.reading.facts import ONE_RUN, agreement, evidence, place_text, scored
from clew.runs.reading.models import Learned, ModelNames
from clew.runs.reading.reports import ReportFiles, ReportHead
from clew.ui import access, work
from clew.ui.components import basics, explanations, jobs, runs, tables
from clew.ui.components.facts import notes, trust

MAX_HEIGHT = 758
SMALLEST_SHOWN = 1e-4
PROBABILITY = (
    "Probability that this is the answer, if none known from training is; fitted on the "
    "validation data. Known answers have none."
)
ABOUT = (
    "{name} is {place} of {candidates:,} candidates (entities except other answers known from "
    "training){probability}{in_set}; {known}."
)
COLUMNS = {
    "Rank": NumberColumn(help="Of a new answer among the new ones, of a known one among all."),
    "Score": NumberColumn(
        format="%.3f", help="The model's own score (a logit): larger is more likely."
    ),
    "Probability": ProgressColumn(format="percent", help=PROBABILITY, min_value=0, max_value=1),
    "In the set": TextColumn(help="Whether the answer set has it."),
    "Known": TextColumn(help="Whether the training data have it."),
    "Page": LinkColumn(display_text="open", help="The page of its database."),
}
NUM_FACTS = 5
TUNED = "tuned"
FINE_TUNING = (
    "A second opinion: the derivative through a short fine-tuning of the finished model. It takes "
    "far longer."
)
BETTER = (
    "For such models these scores predicted training without the facts a little better on average."
)
_FACT = '<li class="{kind}"><span class="clew-mark clew-for">{sign}</span>{triple}</li>'


@st.cache_resource(max_entries=64, show_spinner=False)
def prepare_reasons(model: str, run_id: str) -> jobs.Job:
    """Start the work that all explanations of a champion share, while a person reads answers.

    The result is cached, so that this runs once for each champion, known by its training run.
    """
    return jobs.jobs().start(work.Preparation(model), title=f"Prepare {run_id}", action="ask")


Explain = Callable[[work.Why], None]


@dataclass(frozen=True)
class About:
    """What answers are shown with."""

    vocabulary: ModelNames
    learned: Learned
    explain: Explain
    most: int
    """Number of new answers to show."""
    beside: DeltaGenerator
    """Where the buttons are that explain the ticked answers."""


def answers(job: jobs.Job, about: About) -> None:
    content = job.result()
    if job.state != "done" or content is None:
        return
    for note in map(str, content.get("notes", [])):
        basics.note(f"{note[:1].upper()}{note[1:]}.")
    for number, prediction in enumerate(content.get("predictions", [])):
        _prediction(prediction, about, key=f"{job.job_id}-{number}")


def _prediction(prediction: dict[str, Any], shown_with: About, *, key: str) -> None:
    """Show the best new answers of fitting kinds, and below them the known ones."""
    vocabulary, explain, beside = shown_with.vocabulary, shown_with.explain, shown_with.beside
    given = "head" if "head" in prediction else "tail"
    end: work.End = "tail" if given == "head" else "head"
    relation, entity = str(prediction.get("relation", "")), str(prediction.get(given, ""))
    label, entities = dict(vocabulary.relations).get(relation), dict(vocabulary.entities)
    shown = {given: entities.get(entity, entity), end: "?"}
    st.html(basics.triple(shown["head"], label or relation, shown["tail"]))
    _warnings(prediction)

    def why(answer: dict[str, Any]) -> work.Why:
        other = str(answer.get(end, ""))
        head, tail = (entity, other) if end == "tail" else (other, entity)
        return work.Why(head, relation, tail, end)

    asked = prediction.get("asked")
    if isinstance(asked, dict):
        _about(asked, end)
        with beside:
            why_button(f"Why this rank as {end}?", why(asked), explain, key=f"why-rank-{key}")
    found = [answer for answer in prediction.get("answers", []) if isinstance(answer, dict)]
    kinds, usual = vocabulary.kinds, shown_with.learned.usual(relation, end)
    fitting = [each for each in found if not usual or kinds.get(str(each.get(end)), "") in usual]
    if len(fitting) < len(found) and st.toggle("Answers of other kinds too", key=f"kinds-{key}"):
        fitting = found
    merged = one_of_each_name(fitting, end)
    new = [answer for answer in merged if not answer.get("known")][: shown_with.most]
    known = [answer for answer in merged if answer.get("known")]
    # The answer whose explanation is in the address is ticked at first; else the best new one.
    wanted = basics.address("why") and basics.address("for")
    linked = next((each for each in merged if wanted == f"{end},{each.get(end)}"), None)
    tables.export(frame(found, end, kinds), f"answers_{end}.csv")
    ticked: list[dict[str, Any]] = []
    for rows, called in ((new, "new answers"), (known, "known answers")):
        if not rows:
            continue
        best = rows[0] if rows is new and not wanted else None
        table = frame(rows, end, kinds)
        if "–" not in set(table["Known"]):  # its title says it of all rows
            table = table.drop(columns="Known")
        with st.container() if rows is new else st.expander(f"{len(rows):,} {called}"):
            ticked += tables.ticked(
                table,
                rows,
                key=f"answers-{key}-{called}",
                first=linked if linked in rows else best,
                alt=f"The {called}, the best first",
                most=MAX_HEIGHT,
                column_config=COLUMNS,
            )
    with beside:
        for answer in ticked:
            name, own = basics.markdown(name_of(answer, end)), f"why-{key}-{answer.get(end)}"
            why_button(f"Why {name}?", why(answer), explain, key=own)
        if not ticked:
            article = "another" if basics.address("why") else "a"
            st.caption(f"Tick {article} {end} to ask why.")


def _warnings(prediction: dict[str, Any]) -> None:
    if prediction.get("warning"):
        basics.warning(str(prediction["warning"]))
    if isinstance(answer_set := prediction.get("answer_set"), dict):
        size, *more = re.split(r"(?<=\w)[;.] ", str(answer_set.get("sentence", "")))
        st.markdown(basics.markdown(f"{size}."), help=basics.markdown(". ".join(more[-3:])))


def one_of_each_name(found: Sequence[dict[str, Any]], end: str) -> list[dict[str, Any]]:
    """Return the answers with those of one name as one, the best, with all their `ids`.

    If one of them is known, it is the best known one.
    """
    merged: dict[str, dict[str, Any]] = {}
    for answer in found:
        own = str(answer.get(end, ""))
        name = str(answer.get("label") or own)
        kept = merged.setdefault(name, answer | {"ids": []})
        kept["ids"].append(own)
        if answer.get("known") and not kept.get("known"):
            merged[name] = merged.pop(name) | answer  # at the place of the known one
    return list(merged.values())


def name_of(answer: dict[str, Any], end: str) -> str:
    """Return the name of an answer, with its identifier if others have the same name."""
    own = str(answer.get(end, ""))
    name = str(answer.get("label") or own)
    return f"{name} ({own})" if len(answer.get("ids", [])) > 1 else name


def kind_text(kind: str) -> str:
    """Return a kind as words: `biological process` for `biolink:BiologicalProcess`."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.rpartition(":")[2])
    return words.replace("_", " ").lower()


def _about(asked: dict[str, Any], end: str) -> None:
    probability, known, in_set = (asked.get(key) for key in ("probability", "known", "in_set"))
    told = {
        True: "the training data have this triple",
        False: "the training data lack this triple",
        None: "it is not known if the training data have this triple",
    }
    said = "in the answer set" if in_set else "not in the answer set"
    new = f", would be {said} if it were new" if known else f", {said}"  # sets have no known answer
    text = ABOUT.format(
        name=asked.get("label") or asked.get(end, ""),
        place=place_text(float(asked["rank"])),
        candidates=int(asked["num_candidates"]),
        probability="" if probability is None else f", probability {percent(probability)}",
        in_set="" if in_set is None else new,
        known=told[known],
    )
    st.markdown(basics.markdown(text))


def percent(probability: float) -> str:
    """Return a probability in percent; `below` or `above` if it would be rounded to 0 or 100."""
    if 0 < probability < SMALLEST_SHOWN:
        return f"below {SMALLEST_SHOWN:.2%}"
    if 0 < 1 - probability < SMALLEST_SHOWN:
        return f"above {1 - SMALLEST_SHOWN:.2%}"
    return f"{probability:.0%}" if 0.1 <= probability < 0.99 else f"{probability:.2%}"


def frame(found: Sequence[dict[str, Any]], end: str, kinds: Mapping[str, str]) -> pd.DataFrame:
    """Return the answers as a table; `end` is the end of the triple that was asked for."""
    names = [str(answer.get(end, "")) for answer in found]
    known = {True: "● known", False: "new", None: "–"}
    in_set = {True: "✓", False: "", None: None}
    table = pd.DataFrame(
        {
            "Rank": [answer.get("rank") for answer in found],
            "Answer": [str(answer.get("label") or answer.get(end, "")) for answer in found],
            "Kind": [kind_text(kinds[name]) if name in kinds else None for name in names],
            "Probability": [answer.get("probability") for answer in found],
            "Score": [answer.get("score") for answer in found],
            "In the set": [in_set[answer.get("in_set")] for answer in found],
            "Known": [known.get(answer.get("known"), "–") for answer in found],
            "Id": [", ".join(answer.get("ids", [answer.get(end, "")])) for answer in found],
            "Page": [page_of(name) for name in names],
        }
    ).dropna(axis="columns", how="all")
    idle = {"Score"} & {*table} if "Probability" in table else set()
    return table.drop(columns=[*idle, *(["Id"] if table["Id"].equals(table["Answer"]) else [])])


def why_button(label: str, why: work.Why, explain: Explain, *, key: str) -> None:
    """Show a button that starts the explanation of a triple."""
    start, allowed = basics.attempt(partial(explain, why)), access.may("explain")
    st.button(label, key, type="primary", on_click=start, disabled=not allowed)


def first_answer(job: jobs.Job) -> None:
    """Show the explanation from the facts near the triple, until all facts have been compared."""
    path = job.folder / work.FIRST_ANSWER_FILE
    if job.state == "done" or not path.is_file():
        return
    files = ReportFiles(json=path)
    head = explanations.report_head(files)
    test, facts = explanations.triple_at(head, 0), explanations.facts_of(files, 0)
    near = scored(test, facts)
    others = (head.train_size or near) - near
    fate = "are still being compared" if job.state == "running" else "were not compared"
    st.markdown(
        f"**First answer**, from the {near:,} training facts with "
        f"{basics.markdown(test['head'])} or {basics.markdown(test['tail'])}. The other "
        f"{others:,} {fate}; there may be stronger ones."
    )
    _strongest(facts)


def explanation(job: jobs.Job) -> None:
    """Show the result of a finished trace in words, and link to the whole explanation."""
    if job.state != "done":
        return
    run_id = job.run_id()
    if not run_id:
        basics.note("Done: the explanation is the newest one on the page Influence.")
        return
    with basics.guarded("The explanation"):
        files = explanations.report_of_run(run_id)
        head = explanations.with_validation(explanations.report_head(files))
        test, facts = explanations.triple_at(head, 0), explanations.facts_of(files, 0)
        st.markdown(
            f"**Whole answer**, from all {scored(test, facts):,} training facts. "
            + basics.markdown(evidence(test, facts, explanations.paths_of(files, 0)))
        )
        _strongest(facts)
        trust(head, run_id, test)
        if not head.model.runs:
            basics.note(ONE_RUN)
        notes(head.settings)
        basics.link("influence", "Read the explanation", run=run_id)
        if head.form.key != TUNED:
            _by_fine_tuning(job, head, run_id, facts)


def _by_fine_tuning(first: jobs.Job, head: ReportHead, run_id: str, facts: pd.DataFrame) -> None:
    """Score all facts by fine-tuning too, and compare the strongest ones.

    It starts by itself for models whose retraining these scores predict better on average.
    """
    assert isinstance(first.asked, work.Why)
    tuned, called = replace(first.asked, score=TUNED), f"{first.title} by fine-tuning"
    run, allowed = runs.run_by_id(head.model.run_id), access.may("explain")
    kind = run.params.get(f"{names.PARAMETER_PREFIX}model.kind") if run else None
    is_better = kind in TUNED_MODELS and head.train_size <= MOST_FACTS_TUNED

    def start() -> None:
        job = jobs.jobs().start(tuned, title=called, action="explain")
        basics.write_address("tuned", job.job_id)

    def compared(job: jobs.Job) -> None:
        other = job.run_id()
        files = explanations.report_of_run(other)
        theirs = explanations.with_validation(explanations.report_head(files))
        others = explanations.facts_of(files, 0)
        for number, share in [*agreement(facts, others).overlap.items()][:1]:
            same = f"{round(number * share)} of the {number} most helpful facts are the same."
            st.markdown(f"**By fine-tuning**: {same} {BETTER if is_better else ''}")
        _strongest(others)
        trust(theirs, other, explanations.triple_at(theirs, 0))
        basics.link("influence", "Compare them", run=run_id, other=other, view="Another run")

    def of_address() -> jobs.Job | None:
        job_id = basics.address("tuned")
        found = jobs.jobs().find(job_id) if job_id else None
        return found if found is not None and found.asked == tuned else None

    if of_address() is None and is_better and allowed and not head.model.runs:
        with suppress(UsageError):  # too many commands run: it can be started later
            start()
    job = of_address()
    if job is not None and job.state == "failed":
        basics.note(f"Not scored by fine-tuning: {job.message()}")
    elif job is not None:
        jobs.show(job.job_id, result=lambda job: compared(job) if job.state == "done" else None)
    if job is None or job.state not in {"running", "done"}:
        about, action = FINE_TUNING, basics.attempt(start)
        st.button("Score by fine-tuning too", on_click=action, disabled=not allowed, help=about)


def _strongest(facts: pd.DataFrame) -> None:
    helping = facts[facts["influence"] > 0].head(NUM_FACTS)
    if helping.empty:
        basics.note("None of them made it more likely.")
        return
    items = [
        basics.fact(_FACT, fact, kind="clew-muted" if fact.get(DISPUTED_COLUMN) else "")
        for _, fact in helping.iterrows()
    ]
    basics.show_list(items)
