"""An explained triple with all that an export needs, and its HTML page to share.

The page has the picture, paths, facts and how far to trust them, with no scripts and no external
resources. Names come from the data, and the template escapes all of them.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
from jinja2 import Environment, PackageLoader

from clew import names
from clew.biolink import page_of
from clew.errors import ConfigError, TrackingError
from clew.files import expanded
from clew.runs.influence_forms import ESTIMATE
from clew.runs.reading.facts import (
    FactPath,
    answer,
    evidence,
    facts_of_paths,
    find_paths,
    no_path,
    scored,
    summary,
)
from clew.runs.reading.models import read_vocabulary
from clew.runs.reading.picture import draw, looks
from clew.runs.reading.reports import ReportFiles, ReportHead, read_facts, read_head, report_files
from clew.runs.reading.results import find_validation
from clew.runs.reading.reviews import Review, read_reviews
from clew.runs.reading.runs import RunRecord, find_run


@dataclass(frozen=True)
class SharedExplanation:
    """A test triple, the training facts that influenced it, and their origin."""

    test: pd.Series
    """A row of the report's tests."""
    facts: pd.DataFrame
    """The training facts of the triple, most helpful first."""
    paths: tuple[FactPath, ...]
    head: ReportHead
    run: RunRecord | None = None
    """The run that made the explanation; None if it was read from files."""
    model: RunRecord | None = None
    """The run of the explained model; None if it does not exist any more."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Kinds of entities by their ids; empty if the data contain no kinds."""
    reviews: tuple[Review, ...] = ()
    """Reviews of the explanation; the last final one counts, if there is one."""

    @property
    def title(self) -> str:
        return " ".join(str(self.test[key]) for key in ("head", "relation", "tail"))


def open_explanation(source: str, index: int) -> SharedExplanation:
    """Return an explained triple of a trace run, or of a local `influence.json` file.

    Args:
        source: Id of the run, or path of the file or its folder.
        index: Position of the triple in the report, from 0.
    """
    path = expanded(source)
    if path.suffix == ".json" or path.is_dir():
        return _explanation_in(_files_at(path), index)
    with tempfile.TemporaryDirectory(prefix="clew-report-") as folder:
        files = report_files(source, Path(folder))
        if files.text is not None or files.sequence is not None:
            raise ConfigError(f"run {source} explains no triples; give a run that explains triples")
        return _with_run(_explanation_in(files, index), source)


def _explanation_in(files: ReportFiles, index: int) -> SharedExplanation:
    """Return an explained triple with only the data in the report files."""
    head = read_head(files)
    if index not in head.tests.index:
        raise ConfigError(
            f"--test is {index}; expected a position in the report, from 0 to {len(head.tests) - 1}"
        )
    test: pd.Series = head.tests.loc[index]  # type: ignore[assignment]
    facts = read_facts(files, index)
    return SharedExplanation(test, facts, tuple(find_paths(test, facts)), head)


def _with_run(explanation: SharedExplanation, run_id: str) -> SharedExplanation:
    run = find_run(run_id)
    model = _model_run(run)
    triple, head = triple_of(explanation.test), explanation.head
    validation = head.validation or find_validation(head.run_id, head.settings, ensemble=head.runs)
    reviews = read_reviews(run_id).records
    return replace(
        explanation,
        head=replace(head, validation=validation),
        run=run,
        model=model,
        kinds={} if model is None else _kinds(model),
        reviews=tuple(r for r in reviews if r.verdict and r.test.triple == triple),
    )


def _files_at(path: Path) -> ReportFiles:
    """Return a report's files in a folder; only the JSON file is required."""
    folder = path if path.is_dir() else path.parent
    found = [folder / name for name in (names.INFLUENCE_PARQUET, names.INFLUENCE_CSV)]
    parquet, csv = (file if path.is_dir() and file.is_file() else None for file in found)
    json = folder / names.INFLUENCE_JSON if path.is_dir() else path
    if not json.is_file():
        raise ConfigError(
            f"{path}: no {json.name} there; give a trace run, a folder that tracin wrote, or its "
            "JSON file"
        )
    return ReportFiles(json=json, parquet=parquet, csv=csv)


def _model_run(run: RunRecord) -> RunRecord | None:
    source = run.tags.get(names.TAG_SOURCE_RUN, "")
    try:
        return find_run(source) if source else None
    except TrackingError:  # the run was deleted, but the explanation is still readable
        return None


def _kinds(model: RunRecord) -> Mapping[str, str]:
    try:
        return read_vocabulary(model.run_id).kinds
    except TrackingError:  # a run without a vocabulary has no kinds
        return {}


def triple_of(test: pd.Series) -> tuple[str, str, str]:
    """Return the triple of a row of a report's tests, with the names in the data set."""
    return (str(test["head_id"]), str(test["relation_id"]), str(test["tail_id"]))


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
        loader=PackageLoader("clew.runs.reading", "."), autoescape=True
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
