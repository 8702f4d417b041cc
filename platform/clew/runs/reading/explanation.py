"""An explained triple with all that an export needs, its HTML page, and its TRAPI message.

The page has the picture, paths, facts and how far to trust them, with no scripts and no external
resources. Names come from the data, and the template escapes all of them.

In the message of the Translator Reasoner API (https://github.com/NCATSTranslator/ReasonerAPI), the
predicted triple is the answer to a query. Its edge refers to support graphs: one graph of the
strongest proponents, and one graph for each path between head and tail. Every fact in them has its
influence as an attribute, with its form and unit in the description. TRAPI cannot say that a triple
is denied, so denied facts are left out.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from clew import biolink, names
from clew.errors import ConfigError, TrackingError, counted, extra, quoted
from clew.files import expanded, working_folder, write_whole
from clew.runs.influence_forms import DISPUTED_COLUMN, TRAIN_INDEX_COLUMN
from clew.runs.reading import reports
from clew.runs.reading.disagreements import decision_on
from clew.runs.reading.facts import (
    ONE_RUN,
    TRAIN_KEY,
    FactPath,
    Paths,
    agreement_of,
    answer,
    averaged,
    evidence,
    scored,
    summary,
    with_agreement,
)
from clew.runs.reading.models import read_vocabulary
from clew.runs.reading.picture import MARK, draw, looks
from clew.runs.reading.reports import ReportFiles, ReportHead
from clew.runs.reading.reviews import Review, latest_of_each, read_reviews
from clew.runs.reading.run_details import find_validation
from clew.runs.reading.runs import RunRecord, find_run, keep_folder, list_artifacts
from clew.runs.verification import Verification, marked_in, read_kept

NUM_DRAWN_PATHS = 8
NUM_DRAWN_FACTS = 9
NUM_FACTS = 25
NO_PROOF = (
    "Influence estimates which training facts changed the model's prediction. It does not show why "
    "the prediction is true. A model can be right for a bad reason, and wrong for a good reason."
)
TRAPI_VERSION = "1.5.0"
RESOURCE = "infores:clew"
"""Source of the statements. The name is not registered in the infores catalogue."""
HEAD, TAIL, ANSWER = "n0", "n1", "e0"
PREDICTION = "prediction"
NUMBER = "biolink:has_quantitative_value"
PROPONENTS = "proponents"
MAX_PROPONENTS = 50
MAX_PATHS = 10
POSITIVE = "Positive: the fact made the prediction more likely. An estimate, not a probability."

Content = dict[str, Any]
"""A JSON object of a TRAPI message."""


@dataclass(frozen=True)
class SharedExplanation:
    """A test triple, the training facts that influenced it, and their origin."""

    test: pd.Series
    """A row of the report's tests."""
    facts: pd.DataFrame
    """The training facts of the triple, most helpful first."""
    paths: Paths
    head: ReportHead
    run: RunRecord | None = None
    """The run that made the explanation; None if it was read from files."""
    model: RunRecord | None = None
    """The run of the explained model; None if it does not exist any more."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Kinds of entities by their ids; empty if the data contain no kinds."""
    reviews: tuple[Review, ...] = ()
    """The last review of each person, and of the final ones the last, which counts."""
    verified: Verification | None = None
    """What happened to this triple without its strongest facts; None if nobody has tried."""

    @property
    def title(self) -> str:
        return " ".join(str(self.test[key]) for key in ("head", "relation", "tail"))


def open_explanation(source: str, index: int) -> SharedExplanation:
    """Return an explained triple of a trace run, or of a local `influence.json` file.

    `index` is the position of the triple in the report, from 0. Beside a local JSON file, other
    files of the report are not required.
    """
    path = expanded(source)
    if path.suffix == ".json" or path.is_dir():
        report = path / names.INFLUENCE_JSON if path.is_dir() else path
        table = path / names.INFLUENCE_PARQUET
        if not report.is_file():
            advice = "give a trace run, a folder that tracin wrote, or its JSON file"
            raise ConfigError(f"{path}: no {report.name} there; {advice}")
        files = ReportFiles(json=report, parquet=table if table.is_file() else None)
        return explanation_in(files, index)
    with working_folder("report", holds=f"run {source}") as folder:
        files = reports.report_files(source, folder)
        if files.text is not None or files.sequence is not None:
            raise ConfigError(f"run {source} explains no triples; give a run that explains triples")
        return with_run(explanation_in(files, index), source)


def explanation_in(files: ReportFiles, index: int) -> SharedExplanation:
    """Return an explained triple with only the data in the report files."""
    head = reports.read_head(files)
    if index not in head.tests.index:
        raise ConfigError(
            f"--test is {index}; expected a position in the report, from 0 to {len(head.tests) - 1}"
        )
    test: pd.Series = head.tests.loc[index]  # type: ignore[assignment]
    facts = with_agreement(reports.read_facts(files, index), len(head.model.runs))
    return SharedExplanation(test, facts, reports.read_paths(files, index), head)


def with_run(explanation: SharedExplanation, run_id: str) -> SharedExplanation:
    """Return an explanation with what the store has about it."""
    run = find_run(run_id)
    model, kinds = None, dict[str, str]()
    with suppress(TrackingError):  # the model's run may be deleted, or have no vocabulary
        if source := run.tags.get(names.TAG_SOURCE_RUN, ""):
            model = find_run(source)
            kinds = dict(read_vocabulary(model.run_id).kinds)
    triple, head = triple_of(explanation.test), explanation.head
    tested = find_validation(head.model, head.settings) or head.validation
    every = read_reviews(run_id).records
    reviews = [review for review in latest_of_each(every) if review.test.triple == triple]
    reviews += [decided] if (decided := decision_on(triple, every)) else []
    checked = read_kept(Verification, run_id)
    verified = checked.of(triple) if checked else None
    found = replace(explanation, run=run, model=model, kinds=kinds, reviews=tuple(reviews))
    return replace(found, head=replace(head, validation=tested), verified=verified)


def triple_of(test: pd.Series) -> tuple[str, str, str]:
    """Return the triple of a test or of a training fact, with the names in the data set."""
    return (str(test["head_id"]), str(test["relation_id"]), str(test["tail_id"]))


def picture_of(explanation: SharedExplanation) -> Markup:
    """Draw an explanation's paths, or without any its strongest facts, as SVG.

    The facts that a check took away are marked, and the caption says what happened.
    """
    drawn = _drawn(explanation)
    marked, said = marked_in(explanation.verified, drawn.get(TRAIN_INDEX_COLUMN, ()))
    caption = f"{MARK} {said}" if said else ""
    return draw(explanation.test, drawn, explanation.kinds, marked=marked, caption=caption)


def redraw(found: Verification, work: Path) -> None:
    """Draw the kept pictures of checked explanations again; `work` is a folder for files."""
    run_id, folder = found.run_id, work / "pictures"
    files = reports.report_files(run_id, work)
    kept = list_artifacts(run_id, names.ARTIFACT_INFLUENCE)
    for index in range(len(reports.read_head(files).tests)):
        if (name := f"picture-{index}.svg") in kept:
            shown = explanation_in(files, index)
            if found.of(triple_of(shown.test)):
                write_whole(folder / name, picture_of(with_run(shown, run_id)))
    if folder.is_dir():
        keep_folder(run_id, folder, names.ARTIFACT_INFLUENCE)


def _drawn(explanation: SharedExplanation) -> pd.DataFrame:
    paths, facts = explanation.paths, explanation.facts
    drawn = paths.facts_of(paths.found[:NUM_DRAWN_PATHS], told=True)
    if drawn.empty:
        strongest = facts["influence"].abs().sort_values(ascending=False).index
        drawn = facts.loc[strongest[:NUM_DRAWN_FACTS]]
    return drawn


def html_report(explanation: SharedExplanation, *, now: datetime | None = None) -> str:
    test, head, facts = explanation.test, explanation.head, explanation.facts
    paths, drawn = explanation.paths, _drawn(explanation)
    entities = {str(key) for end in ("head_id", "tail_id") for key in (*drawn[end], test[end])}
    helping = facts[facts["influence"] > 0].head(NUM_FACTS)
    opposing = facts[facts["influence"] < 0].head(NUM_FACTS // 2)
    listed = pd.concat([helping, opposing])
    agreed = agreement_of(listed, len(head.model.runs)) or [ONE_RUN]
    template = Environment(
        loader=PackageLoader("clew.runs.reading", "."), autoescape=True
    ).get_template("report.html")
    return template.render(
        shown=explanation,
        test=test,
        answer=answer(test, head.settings, len(head.model.runs)),
        evidence=evidence(test, facts, paths),
        picture=picture_of(explanation),
        looks=looks(explanation.kinds, entities),
        disputed=DISPUTED_COLUMN in drawn and drawn[DISPUTED_COLUMN].any(),
        paths=paths,
        form=head.form,
        fall=head.label.fall,
        sides=(
            ("Made it more likely", "for", "▲", helping.to_dict("records")),
            ("Made it less likely", "against", "▼", opposing.to_dict("records")),
        ),
        summary=summary(facts, scored(test, facts), head.train_size),
        weaker=len(facts) - len(listed),
        trust=[NO_PROOF, head.label.sentence, *agreed, *head.notes()],
        origin=_origin(explanation),
        now=f"{now or datetime.now(UTC):%Y-%m-%d %H:%M}",
        page_of=biolink.page_of,
    )


def _origin(explanation: SharedExplanation) -> dict[str, str]:
    head, run, model = explanation.head, explanation.run, explanation.model
    tags = run.tags if run else {}
    asked = head.settings.get("direction", "both")  # of the oldest reports, which do not say it
    return {
        "Model": model.name if model else head.model.run_id,
        "Run of the model": ", ".join(head.model.runs) or head.model.run_id,
        "Run of the explanation": run.run_id if run else "",
        "Data": tags.get(names.TAG_DATASET, ""),
        "Fingerprint of the data": tags.get(names.TAG_DATA_FINGERPRINT, ""),
        "Form of the influence": f"{head.form.key or 'unknown'}, of "
        + ("both ends" if asked == "both" else f"the {asked}"),
        "Version of Clew": tags.get(names.TAG_VERSION, ""),
        "Checkpoints": ", ".join(str(c.step) for c in head.model.checkpoints),
    }


def trapi_json(explanation: SharedExplanation) -> str:
    """Return an explanation as the JSON text of a TRAPI response, checked by reasoner-pydantic."""
    with extra("trapi"):
        from reasoner_pydantic import Response
    content = _response(explanation)
    Response.model_validate(content, context={"normalize": False})
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _response(explanation: SharedExplanation) -> Content:
    test = explanation.test
    if biolink.is_denied(str(test["relation_id"])):
        problem = f"{quoted(explanation.title)} is a denial, which a TRAPI message cannot state"
        raise ConfigError(f"{problem}; write the explanation as html")
    found, facts = explanation.paths, explanation.facts
    helping = facts[facts["influence"] > 0].head(MAX_PROPONENTS)
    denied, on_paths = (
        each[each["relation_id"].astype(str).map(biolink.is_denied).astype(bool)]
        for each in (helping, found.facts_of(found.found[:MAX_PATHS]))
    )
    proponents, left_out = helping.drop(index=denied.index), set(on_paths["rank"])
    paths = [path for path in found.found[:MAX_PATHS] if not left_out & set(path.ranks)]
    shown = pd.concat([proponents, found.facts_of(paths).drop(columns="rank")])
    shown = shown.drop_duplicates(TRAIN_KEY)
    ids = {triple_of(fact): f"fact-{n}" for n, (_, fact) in enumerate(shown.iterrows(), 1)}
    graphs = _support_graphs(proponents, found, paths, ids)
    head, tail = (biolink.as_curie(str(test[end])) for end in ("head_id", "tail_id"))
    edges = {PREDICTION: _predicted(test, list(graphs))}
    meaning = f"{explanation.head.form.sentence} {POSITIVE}"
    edges |= {ids[triple_of(fact)]: _fact(fact, meaning) for _, fact in shown.iterrows()}
    question: Content = {"subject": HEAD, "object": TAIL, "knowledge_type": "inferred"}
    question["predicates"] = [edges[PREDICTION]["predicate"]]
    ends = {HEAD: [_binding(head)], TAIL: [_binding(tail)]}
    rank, over = test["rank"], averaged(explanation.head.settings, len(explanation.head.model.runs))
    analysis = {
        "resource_id": RESOURCE,
        **({"score": 1 / float(rank)} if rank >= 1 else {}),
        "scoring_method": f"reciprocal of the filtered rank{over}",
        "edge_bindings": {ANSWER: [_binding(PREDICTION)]},
        "support_graphs": list(graphs),
    }
    missing = len(pd.concat([denied, on_paths]).drop_duplicates(TRAIN_KEY))
    note = f" (without {counted(missing, 'denied fact')}, as TRAPI has no denials)" * bool(missing)
    return {
        "message": {
            "query_graph": {
                "nodes": {HEAD: {"ids": [head]}, TAIL: {"ids": [tail]}},
                "edges": {ANSWER: question},
            },
            "knowledge_graph": {"nodes": _nodes(explanation, shown), "edges": edges},
            "results": [{"node_bindings": ends, "analyses": [analysis]}],
            "auxiliary_graphs": graphs,
        },
        "schema_version": TRAPI_VERSION,
        "biolink_version": biolink.terms().version,
        "status": "Success",
        "description": f"Clew: the training facts behind an answer, {explanation.title}{note}. "
        + " ".join([explanation.head.label.sentence, *explanation.head.notes()]),
    }


def _binding(key: str) -> Content:
    return {"id": key, "attributes": []}


def _nodes(explanation: SharedExplanation, facts: pd.DataFrame) -> dict[str, Content]:
    found: dict[str, Content] = {}
    for row in [explanation.test, *(fact for _, fact in facts.iterrows())]:
        for end in ("head", "tail"):
            name = str(row[f"{end}_id"])
            kind = explanation.kinds.get(name, "")
            node = {
                "name": str(row[end]).removesuffix(f" ({name})"),  # see `facts.distinct`
                "categories": [biolink.category_of(kind) or biolink.NAMED_THING],
                "attributes": [_named("biolink:category", "kind", kind)] if kind else [],
            }
            found.setdefault(biolink.as_curie(name), node)
    return found


def _predicted(test: pd.Series, graphs: list[str]) -> Content:
    numbers = {"score": test["score"], "rank": test["rank"]}
    attributes = [
        {"attribute_type_id": "biolink:support_graphs", "value": graphs},
        *_knowledge("prediction", "computational_model"),
        *(_named(NUMBER, name, float(value)) for name, value in numbers.items() if pd.notna(value)),
    ]
    return _edge(test, attributes)


def _fact(fact: pd.Series, meaning: str) -> Content:
    """Return a training fact as an edge; its knowledge level says that its origin is unknown."""
    value = float(fact["influence"])
    influence = [_named(NUMBER, "influence", value) | {"description": meaning}]
    origin = _knowledge("not_provided", "not_provided")
    if not math.isfinite(value):
        influence = []
    elif pd.notna(fact["rank"]):
        influence.append(_named("biolink:has_count", "rank by influence", int(fact["rank"])))
    return _edge(fact, [*influence, *origin])


def _edge(row: pd.Series, attributes: list[Content]) -> Content:
    name, label = str(row["relation_id"]), str(row["relation"])
    is_known = biolink.predicate_of(name)[0] != biolink.RELATED_TO
    predicate, qualifiers = biolink.predicate_of(name if is_known else label)
    listed = [{"qualifier_type_id": k, "qualifier_value": value} for k, value in qualifiers]
    return {
        "subject": biolink.as_curie(str(row["head_id"])),
        "predicate": predicate,
        "object": biolink.as_curie(str(row["tail_id"])),
        **({"qualifiers": listed} if listed else {}),
        "sources": [{"resource_id": RESOURCE, "resource_role": "primary_knowledge_source"}],
        "attributes": [*attributes, _named("biolink:original_predicate", "relation", name)],
    }


def _knowledge(level: str, agent: str) -> list[Content]:
    kinds = {"biolink:knowledge_level": level, "biolink:agent_type": agent}
    return [{"attribute_type_id": key, "value": value} for key, value in kinds.items()]


def _named(kind: str, name: str, value: str | float) -> Content:
    """Return an attribute with its original name, which can be more specific than `kind`."""
    return {"attribute_type_id": kind, "value": value, "original_attribute_name": name}


def _support_graphs(
    proponents: pd.DataFrame,
    found: Paths,
    paths: Sequence[FactPath],
    ids: Mapping[tuple[str, str, str], str],
) -> dict[str, Content]:
    graphs: dict[str, Content] = {}
    if len(proponents):
        strongest = [ids[triple_of(fact)] for _, fact in proponents.iterrows()]
        graphs[PROPONENTS] = {"edges": strongest, "attributes": []}
    for number, path in enumerate(paths, 1):
        facts = found.facts.set_index("rank").loc[list(path.ranks)]
        name = f"influence{path.of}"
        total = [] if math.isnan(path.influence) else [_named(NUMBER, name, path.influence)]
        edges = [ids[triple_of(fact)] for _, fact in facts.iterrows()]
        graphs[f"path-{number}"] = {"edges": edges, "attributes": total}
    return graphs
