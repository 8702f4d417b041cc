"""A prediction in words, and its training facts: table, graph and bars with one selection.

The place of the selected fact is in the address under `fact`. A click in one of them changes the
address, and the others are drawn again.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import streamlit as st
from markupsafe import Markup
from streamlit.column_config import NumberColumn, TextColumn

from clew.biolink import is_denied
from clew.names import SETTING_BEST, model_notes
from clew.runs import influence_forms as forms
from clew.runs.reading.explanation import SharedExplanation, html_report, trapi_json, triple_of
from clew.runs.reading.facts import ONE_RUN, agreement_of, answer, evidence, scored, summary
from clew.runs.reading.metrics import number_text
from clew.runs.reading.reports import ReportHead
from clew.runs.validation_record import Measured
from clew.ui import access
from clew.ui.components import basics, charts, glossary, graph, jobs, tables
from clew.ui.components.explanations import strongest, verification_of
from clew.ui.work import Check

MAX_ROWS = 1000
SIDES = "▲ made the {of} more likely, ▼ less likely."
RANKS = (
    "Place among the {things} of the same side: ▲ 1 helped the {of} most, ▼ 1 spoke most against "
    "it."
)
CHECKPOINTS = "Saved states of the model over which the influence is summed."
_EFFECT = (
    '<p><b class="{kind}">{symbol} {effect}</b> '
    '<span class="clew-muted">· {column} {value} · rank {rank} on its side</span></p>'
)


def check(run_id: str, test: pd.Series) -> None:
    """Show what happens without the strongest facts, and let a person start to find out."""
    triple = triple_of(test)
    found = verification_of(run_id, triple)
    said = found.said if found else ()
    st.markdown("\n".join(f"- {basics.markdown(sentence)}" for sentence in said))
    about = "Trains the model on for a short while without these facts, on this machine."
    allowed = access.may("explain")
    if not said and st.button("Check it", type="primary", disabled=not allowed, help=about):
        with basics.guarded("The check", done="started"):
            title = f"Check {' · '.join(triple)}"
            job = jobs.jobs().start(Check(run_id, triple), title=title, action="explain")
            basics.write_address("check", job.job_id)
    if job_id := basics.address("check"):

        def finished(job: jobs.Job) -> None:
            if job.state == "done" and not said:
                verification_of.clear()
                basics.write_address("check", None)  # its messages are no longer needed
                st.rerun()

        jobs.show(job_id, result=finished)


def selected(facts: pd.DataFrame) -> int | None:
    """Return the place of the selected fact, None if it is not among `facts`."""
    place = basics.address_number("fact")
    return place if place is not None and (facts["place"] == place).any() else None


def select(place: int | None) -> None:
    basics.write_address("fact", place)
    st.session_state["fact-version"] = st.session_state.get("fact-version", 0) + 1


def table(
    facts: pd.DataFrame, column: str, form: forms.Form, *, fall: Measured | None, key: str
) -> None:
    """Show the facts in a table; a click on a row selects its fact."""
    shown, score = strongest(facts, column, MAX_ROWS), glossary.score(column, form)
    values = shown[column].to_numpy(float)
    of = {"things": "facts", "of": "prediction"}
    columns: tables.Columns = {
        "Rank": (shown["rank"], NumberColumn(width=54, help=RANKS.format(**of))),
        "±": ([*map(basics.sign_symbol, values)], TextColumn(width=30, help=SIDES.format(**of))),
        score.label: (values, NumberColumn(format="%.4g", width=132, help=score.help)),
        "Head": (shown["head"].astype(str), TextColumn(width=112)),
        "Relation": (shown["relation"].astype(str), TextColumn(width=92)),
        "Tail": (shown["tail"].astype(str), TextColumn(width=112)),
    }
    if fall and column == "influence":
        expected = NumberColumn(format="%+.2g", width=72, help=glossary.FALL.format(fall=fall))
        columns["Fall"] = (values * fall.mean, expected)
    if "counterpart" in shown and shown["counterpart"].any():
        columns["Leaks"] = (shown["counterpart"], TextColumn(width=72, help=glossary.COUNTERPART))
    grey = list[bool]()
    if "agreement" in shown:  # of an ensemble
        agree = TextColumn(width=72, help=glossary.RUNS_AGREE)
        spread = NumberColumn(format="%.2g", width=60, help=glossary.SPREAD)
        columns |= {"Runs agree": (shown["agreement"], agree), "Spread": (shown["spread"], spread)}
        grey = shown[forms.DISPUTED_COLUMN].tolist()
    tables.tick_one(
        columns,
        [int(place) for place in shown["place"]],
        key=f"{key}-table-{st.session_state.get('fact-version', 0)}",
        chosen=selected(shown),
        take=select,
        grey=grey,
        alt="Training facts by their influence",
        most=graph.HEIGHT,
    )
    if len(shown) < len(facts):
        st.caption(
            f"The {len(shown):,} strongest of {len(facts):,} facts; search or filter for others."
        )
    tables.export(facts, "facts.csv")


def details(facts: pd.DataFrame, column: str, form: forms.Form) -> None:
    place = selected(facts)
    if place is None:
        st.caption("Click an edge of the graph or tick a row to see details of one fact.")
        return
    row: pd.Series = facts[facts["place"] == place].iloc[0]
    said = effect(row, column, form, of="prediction")
    named = basics.triple(row["head"], row["relation"], row["tail"])
    basics.show('<div class="clew-card"><h3>{triple}</h3>{said}</div>', triple=named, said=said)
    splits(row, form)


def effect(row: pd.Series, column: str, form: forms.Form, *, of: str) -> Markup:
    """Return in words how a fact or a window changed a prediction, or whatever `of` names."""
    value = float(row[column])
    symbol = basics.sign_symbol(value)
    signs = {
        "▲": ("clew-for", f"made the {of} more likely"),
        "▼": ("clew-against", "made it less likely"),
    }
    kind, said = signs.get(symbol, ("", "did not change it"))
    score = {"column": glossary.score(column, form).label, "value": number_text(value)}
    rank = f"{int(row['rank']):,}"
    return basics.fill(_EFFECT, kind=kind, symbol=symbol, effect=said, rank=rank, **score)


def splits(row: pd.Series, form: forms.Form) -> None:
    by = ((forms.PART_PREFIX, "part of the model"), (forms.CHECKPOINT_PREFIX, "checkpoint"))
    for place, (prefix, called) in zip(st.columns(2), by, strict=True):
        found = [str(column) for column in row.index if str(column).startswith(prefix)]
        if prefix == forms.CHECKPOINT_PREFIX:
            found.sort(key=lambda column: int(column.removeprefix(prefix) or 0))
        if found:
            title = f"{form.heading} by {called}"
            chart = charts.share_bars(row, found, title)
            place.vega_lite_chart(chart, width="stretch", alt=f"Bars: {title}")


_CARD = (
    '<div class="clew-card"><h2>{triple} <span class="clew-small clew-muted">{numbers}</span></h2>'
    '<p class="clew-small clew-ids">{ids}</p>'
    '<p>{answer} {evidence}</p><p class="clew-muted clew-small">{why} '
    '<span title="{meaning}">{form}</span></p>'
    '<details class="clew-small"><summary>Details</summary>{details}</details></div>'
)
_NUMBER = '<span title="{help}">{label} {value}</span>'


def card(explanation: SharedExplanation) -> None:
    """Show what the model predicts, the numbers, and the reasons in sentences."""
    test, facts, head = explanation.test, explanation.facts, explanation.head
    numbers = [
        ("rank", test["rank"], glossary.RANK),
        ("model's score", test["score"], glossary.SCORE),
        (head.form.self_heading.lower(), test["self_influence"], forms.SELF_INFLUENCE),
        ("checkpoints", len(head.model.checkpoints) or math.nan, CHECKPOINTS),
    ]
    spans = [
        basics.fill(_NUMBER, label=label, value=number(value), help=meaning)
        for label, value, meaning in numbers
    ]
    first, details = spans[:2], [basics.join(spans[2:], " · ")]
    best = {key: value for key, value in head.settings.items() if key == SETTING_BEST}
    for note in model_notes(best):  # beside the numbers that it is about
        of = {"label": "of the last checkpoint,", "value": "not of the best"}
        first.append(basics.fill(_NUMBER, **of, help=note))
        details.append(basics.fill("<br>{note}", note=note))
    alone = not head.model.runs
    basics.show(
        _CARD,
        triple=basics.triple(test["head"], test["relation"], test["tail"]),
        numbers=basics.join(first, " · "),
        details=basics.join(details, ""),
        ids=identifiers(test, explanation.kinds),
        answer=answer(test, head.settings, len(head.model.runs)),
        evidence=evidence(test, facts, explanation.paths),
        why=summary(facts, scored(test, facts), head.train_size),
        form=f"{head.form.named}, an estimate{' from one training run' * alone}.",
        meaning=head.form.sentence + f" {ONE_RUN}" * alone,
    )
    notes({key: value for key, value in head.settings.items() if key not in best})
    for note in agreement_of(facts, len(head.model.runs)):
        basics.note(note)


def trust(head: ReportHead, run_id: str, test: pd.Series) -> None:
    """Say how far to trust an explanation: its label, and what a check of it found."""
    basics.note(head.label.sentence)
    if checked := verification_of(run_id, triple_of(test)):
        basics.note(checked.said[0])


def identifiers(test: pd.Series, kinds: Mapping[str, str]) -> Markup:
    """Return the identifiers of a triple's ends, with their kinds; empty if they add nothing."""
    keys = [(str(test[f"{end}_id"]), str(test[end])) for end in ("head", "tail")]
    ends = [graph.identified(key, name, kinds.get(key, "")) for key, name in keys]
    return basics.join([end for end in ends if end], " · ")


def share(shown: SharedExplanation, explanation: Callable[[], SharedExplanation]) -> None:
    """Offer an explanation as an HTML page and as a TRAPI message."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", shown.title).strip("-")[:80] or "explanation"
    page, message = "Report to mail (HTML)", "TRAPI message (JSON)"
    tables.download(page, lambda: html_report(explanation()), f"{name}.html")
    if not is_denied(str(shown.test["relation_id"])):  # TRAPI cannot state a denial
        tables.download(message, lambda: trapi_json(explanation()), f"{name}.json")
    st.caption("The report is one file: picture, paths, facts, how far to trust them.")


def notes(settings: Mapping[str, Any]) -> None:
    """Show notes if the numbers of an explanation are not of the parameters that predict."""
    for note in model_notes(settings):
        basics.note(note)


def number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if float(value).is_integer() else number_text(value, 3)
