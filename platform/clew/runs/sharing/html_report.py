"""Writes an explanation as one HTML file to share: picture, paths, facts, how far to trust it.

The file is self-contained, with no scripts and no external resources. Names come from the data, and
the template escapes all of them.
"""

from datetime import UTC, datetime

from jinja2 import Environment, PackageLoader

from clew import names
from clew.biolink import page_of
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
ONE_RUN = (
    "The scores come from one training run. With another random seed, some of the facts would be "
    "different."
)


def html_report(explanation: SharedExplanation, *, now: datetime | None = None) -> str:
    test, head, facts = explanation.test, explanation.head, explanation.facts
    values = facts["influence"]
    drawn = facts_of_paths(facts, explanation.paths[:NUM_DRAWN_PATHS])
    if drawn.empty:
        drawn = facts.loc[values.abs().sort_values(ascending=False).index[:NUM_DRAWN_FACTS]]
    entities = {str(key) for end in ("head_id", "tail_id") for key in (*drawn[end], test[end])}
    helping, opposing = facts[values > 0].head(NUM_FACTS), facts[values < 0].head(NUM_FACTS // 2)
    template = Environment(
        loader=PackageLoader("clew.runs.sharing", "."), autoescape=True
    ).get_template("report.html")
    return template.render(
        shown=explanation,
        test=test,
        answer=answer(test, head.settings),
        evidence=evidence(test, facts, explanation.paths),
        picture=draw(test, drawn, explanation.kinds),
        looks=looks(explanation.kinds, entities),
        paths=explanation.paths[:NUM_PATHS],
        no_path=no_path(test, facts),
        form=head.form,
        sides=(
            ("Made it more likely", "for", "▲", helping.to_dict("records")),
            ("Made it less likely", "against", "▼", opposing.to_dict("records")),
        ),
        summary=summary(facts, scored(test, facts), head.train_size),
        trust=_trust(explanation),
        origin=_origin(explanation),
        now=f"{now or datetime.now(UTC):%Y-%m-%d %H:%M}",
        page_of=page_of,
    )


def _trust(explanation: SharedExplanation) -> list[str]:
    """Return sentences on how far to trust the explanation: tests, ensembles, limitations."""
    head, facts = explanation.head, explanation.facts
    untested = UNTESTED if explanation.run else NO_TEST_IN_FILES
    said = [NO_PROOF, ESTIMATE, head.validation.sentence if head.validation else untested]
    if head.runs and "runs_agreeing" in facts:
        top = facts[facts["influence"] > 0].head(NUM_FACTS)
        agreed = int((top["runs_agreeing"] == len(head.runs)).sum())
        said.append(
            f"The scores are means over {len(head.runs)} training runs that differ only in their "
            f"random seed. Of the {len(top)} facts that helped most, {agreed} have the same sign "
            "in all runs."
        )
    else:
        said.append(ONE_RUN)
    return said + names.average_notes(head.settings) + ([head.problem] if head.problem else [])


def _origin(explanation: SharedExplanation) -> dict[str, str]:
    head, run, model = explanation.head, explanation.run, explanation.model
    tags = (model.tags if model else {}) or (run.tags if run else {})
    return {
        "Model": model.name if model else head.run_id,
        "Run of the model": head.run_id,
        "Run of the explanation": run.run_id if run else "",
        "Data": tags.get(names.TAG_DATASET, ""),
        "Fingerprint of the data": tags.get(names.TAG_DATA_FINGERPRINT, ""),
        "Form of the influence": f"{head.form.key or 'unknown'}, of the "
        f"{head.settings.get('direction', 'tail')}",
        "Version of Clew": tags.get(names.TAG_VERSION, ""),
        "Checkpoints": ", ".join(str(c.step) for c in head.checkpoints),
    }
