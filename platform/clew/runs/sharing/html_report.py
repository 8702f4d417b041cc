"""Writes an explanation as one HTML file to share: picture, paths, facts, how far to trust it.

The file is self-contained, with no scripts and no external resources. Names come from the data, and
all of them are escaped.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

import pandas as pd
from markupsafe import Markup

from clew import names
from clew.biolink.curies import page_of
from clew.runs.influence_forms import ESTIMATE
from clew.runs.reading.facts import answer, evidence, facts_of_paths, no_path, scored, summary
from clew.runs.reading.layout import looks
from clew.runs.sharing.explanation import SharedExplanation
from clew.runs.sharing.picture import draw

NUM_DRAWN_PATHS = 8
NUM_DRAWN_FACTS = 9
NUM_PATHS = 12
NUM_FACTS = 25
NO_PROOF = (
    "Influence estimates which training facts changed the model's prediction. It does not show why "
    "the prediction is true. A model can be right for a bad reason, and wrong for a good reason."
)
UNTESTED = (
    "It has not been tested on this model whether these scores predict what happens when facts are "
    "left out of the training. The command `clew validate-influence` runs this test."
)
NO_TEST_IN_FILES = (
    "The files from which this page was made do not say whether these scores predict what happens "
    "when facts are left out of the training. The command `clew validate-influence` tests this."
)
STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1c2a30; background: #fff; max-width: 62rem;
  margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.55rem; line-height: 1.3; margin-bottom: 0.2rem; }
h2 { font-size: 1.15rem; margin: 1.9rem 0 0.4rem; }
p { margin: 0.4rem 0; } svg { width: 100%; height: auto; }
svg text { fill: #1c2a30; paint-order: stroke; stroke: #fff; stroke-width: 3px; }
svg text.edge { fill: #3c4b52; }
table { border-collapse: collapse; width: 100%; font-size: 0.92rem; }
th, td { text-align: left; vertical-align: top; padding: 0.3rem 0.6rem 0.3rem 0;
  border-bottom: 1px solid #d9dfe2; overflow-wrap: anywhere; }
td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.id { color: #55656d; font-size: 0.82rem; } .for { color: #005f95; } .against { color: #a84300; }
.legend span { margin-right: 1rem; display: inline-block; }
th:last-child:not(:first-child):not([scope]) { text-align: right; }
a { color: #00617a; } footer { margin-top: 2.2rem; color: #55656d; font-size: 0.85rem; }
@media print { body { margin: 0; } h2 { break-after: avoid; } tr { break-inside: avoid; } }
"""
_PAGE = Markup(
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    "<title>{title}</title><style>{style}</style></head><body><main>{body}</main></body></html>\n"
)
_FACT = Markup(
    '<tr><td class="number">{rank}</td><td>{head} <span class="id">{relation} →</span> {tail}</td>'
    '<td class="number {side}">{sign} {value:.4g}</td></tr>'
)


def html_report(explanation: SharedExplanation, *, now: datetime | None = None) -> str:
    parts = [
        _prediction(explanation),
        _picture(explanation),
        _paths(explanation),
        _facts(explanation),
        _trust(explanation),
        _reviews(explanation),
        _origin(explanation, now or datetime.now(UTC)),
    ]
    title = f"Why: {explanation.title}"
    return str(_PAGE.format(title=title, style=Markup(STYLE), body=Markup("").join(parts)))


def _prediction(explanation: SharedExplanation) -> Markup:
    test = explanation.test
    said = Markup(
        "<h1>{head} <span class='id'>{relation} →</span> {tail}</h1><p>{answer} {evidence}</p>"
    )
    return said.format(
        head=_entity(test, "head"),
        tail=_entity(test, "tail"),
        relation=test["relation"],
        answer=answer(test, explanation.head.settings),
        evidence=evidence(test, explanation.facts, explanation.paths),
    )


def _entity(row: pd.Series, end: str) -> Markup:
    name, key = str(row[end]), str(row[f"{end}_id"])
    if name == key and page_of(key) is None:
        return Markup("{}").format(name)
    shown = Markup("{}").format(key)
    if page := page_of(key):
        shown = Markup('<a href="{}" rel="noreferrer">{}</a>').format(page, key)
    return Markup('{} <span class="id">{}</span>').format(name, shown)


def _picture(explanation: SharedExplanation) -> Markup:
    facts = facts_of_paths(explanation.facts, explanation.paths[:NUM_DRAWN_PATHS])
    if facts.empty:
        strength = explanation.facts["influence"].abs().sort_values(ascending=False)
        facts = explanation.facts.loc[strength.index[:NUM_DRAWN_FACTS]]
    entities = {str(key) for end in ("head_id", "tail_id") for key in facts[end]}
    entities |= {str(explanation.test["head_id"]), str(explanation.test["tail_id"])}
    mark = Markup('<span><b style="color:{colour}" aria-hidden="true">{mark}</b> {kind}</span>')
    legend = [
        mark.format(colour=look.colour, mark=look.mark, kind=kind)
        for kind, look in looks(explanation.kinds, entities).items()
    ]
    signs = Markup(
        '<span class="for">▲ made the prediction more likely</span> '
        '<span class="against">▼ made it less likely</span> <span>╌ the prediction</span> '
    )
    return Markup(
        '<figure style="margin:1rem 0">{}<figcaption class="legend">{}{}</figcaption></figure>'
    ).format(draw(explanation.test, facts, explanation.kinds), signs, Markup(" ").join(legend))


def _paths(explanation: SharedExplanation) -> Markup:
    head, tail = explanation.test["head"], explanation.test["tail"]
    if not explanation.paths:
        return Markup("<h2>Paths</h2><p>{}</p>").format(
            no_path(explanation.test, explanation.facts)
        )
    item = Markup("<li>{sentence} <span class='id'>(weakest influence {weakest:.3g})</span></li>")
    items = [
        item.format(sentence=path.sentence, weakest=path.weakest)
        for path in explanation.paths[:NUM_PATHS]
    ]
    return Markup("<h2>Paths from {} to {}</h2><ol>{}</ol>").format(head, tail, _joined(items))


def _facts(explanation: SharedExplanation) -> Markup:
    facts = explanation.facts
    helping = facts[facts["influence"] > 0].head(NUM_FACTS)
    opposing = facts[facts["influence"] < 0].head(NUM_FACTS // 2)
    form = explanation.head.form
    parts = [Markup("<h2>Training facts</h2><p>{}</p>").format(form.sentence)]
    for title, rows in (("Made it more likely", helping), ("Made it less likely", opposing)):
        if len(rows):
            body = _joined(_fact(row) for _, row in rows.iterrows())
            parts.append(
                Markup(
                    "<table><thead><tr><th>Rank</th><th>{}</th><th>{}</th></tr></thead>"
                    "<tbody>{}</tbody></table><p></p>"
                ).format(title, form.heading, body)
            )
    said = summary(facts, scored(explanation.test, facts), explanation.head.train_size)
    return _joined([*parts, Markup("<p>{}</p>").format(said)])


def _fact(row: pd.Series) -> Markup:
    value = float(row["influence"])
    return _FACT.format(
        rank=int(row["rank"]),
        head=_entity(row, "head"),
        relation=row["relation"],
        tail=_entity(row, "tail"),
        side="for" if value > 0 else "against",
        sign="▲" if value > 0 else "▼",
        value=value,
    )


def _trust(explanation: SharedExplanation) -> Markup:
    head = explanation.head
    untested = UNTESTED if explanation.run else NO_TEST_IN_FILES
    said = [NO_PROOF, ESTIMATE, head.validation.sentence if head.validation else untested]
    if head.runs and "runs_agreeing" in explanation.facts:
        top = explanation.facts.head(NUM_FACTS)
        agreed = int((top["runs_agreeing"] == len(head.runs)).sum())
        said.append(
            f"The scores are means over {len(head.runs)} training runs that differ only in their "
            f"random seed. Of the {len(top)} facts that helped most, {agreed} have the same sign "
            "in all runs."
        )
    else:
        said.append(
            "The scores come from one training run. With another random seed, some of the facts "
            "would be different."
        )
    said += names.average_notes(head.settings)
    said += [head.problem] if head.problem else []
    return Markup("<h2>How far to trust it</h2><ul>{}</ul>").format(
        _joined(Markup("<li>{}</li>").format(sentence) for sentence in said)
    )


def _reviews(explanation: SharedExplanation) -> Markup:
    if not explanation.reviews:
        return Markup("")
    row = Markup("<li><b>{}</b>, {}: {}{}</li>")
    items = [
        row.format(
            review.verdict,
            review.reviewer or "somebody",
            review.created[:10],
            f" – {review.comment}" * bool(review.comment),
        )
        for review in explanation.reviews
    ]
    if decision := explanation.decision:
        why = f" – {decision.comment}" * bool(decision.comment)
        verdict = f"decided: {decision.verdict}"
        items.append(row.format(verdict, decision.person, decision.created[:10], why))
    return Markup("<h2>What reviewers said</h2><ul>{}</ul>").format(_joined(items))


def _origin(explanation: SharedExplanation, now: datetime) -> Markup:
    tags = explanation.model.tags if explanation.model else {}
    tags = tags or (explanation.run.tags if explanation.run else {})
    settings = explanation.head.settings
    rows = {
        "Model": explanation.model.name if explanation.model else explanation.head.run_id,
        "Run of the model": explanation.head.run_id,
        "Run of the explanation": explanation.run.run_id if explanation.run else "",
        "Data": tags.get(names.TAG_DATASET, ""),
        "Fingerprint of the data": tags.get(names.TAG_DATA_FINGERPRINT, ""),
        "Form of the influence": f"{explanation.head.form.key or 'unknown'}, of the "
        f"{settings.get('direction', 'tail')}",
        "Version of Clew": tags.get(names.TAG_VERSION, ""),
        "Checkpoints": ", ".join(str(c.step) for c in explanation.head.checkpoints),
    }
    line = Markup("<tr><th scope='row'>{}</th><td>{}</td></tr>")
    body = _joined(line.format(key, value) for key, value in rows.items() if value)
    return Markup(
        "<h2>Where this explanation comes from</h2><table><tbody>{}</tbody></table>"
        "<footer>Written by Clew on {} UTC.</footer>"
    ).format(body, f"{now:%Y-%m-%d %H:%M}")


def _joined(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)
