"""An explained triple as a message of the Translator Reasoner API, TRAPI 1.5.

In the message (https://github.com/NCATSTranslator/ReasonerAPI), the predicted triple is the answer
to a query. Its edge refers to support graphs: one graph of the strongest proponents, and one graph
for each path between head and tail. Every fact in them has its influence as an attribute, with its
form and unit in the description. TRAPI cannot say that a triple is denied, so denied facts are left
out.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from clew import biolink
from clew.errors import ConfigError, counted, extra, quoted
from clew.runs.reading.explanation import SharedExplanation, triple_of
from clew.runs.reading.facts import TRAIN_KEY, FactPath, Paths

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
"""A JSON object of the message."""


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
    found = explanation.paths
    denied, on_paths = (
        facts["relation_id"].astype(str).map(biolink.is_denied).astype(bool)
        for facts in (explanation.facts, found.facts)
    )
    helping = explanation.facts[~denied & (explanation.facts["influence"] > 0)]
    proponents = helping.head(MAX_PROPONENTS)
    left_out = set(found.facts.loc[on_paths, "rank"])
    paths = [path for path in found.found[:MAX_PATHS] if not left_out & set(path.ranks)]
    shown = pd.concat([proponents, found.facts_of(paths).drop(columns="rank")])
    shown = shown.drop_duplicates(TRAIN_KEY)
    ids = {triple_of(fact): f"fact-{n}" for n, (_, fact) in enumerate(shown.iterrows(), 1)}
    graphs = _support_graphs(proponents, found, paths, ids)
    head, tail = (biolink.as_curie(str(test[end])) for end in ("head_id", "tail_id"))
    edges = {PREDICTION: _predicted(test, list(graphs))}
    meaning = f"{explanation.head.form.sentence} {POSITIVE}"
    edges |= {ids[triple_of(fact)]: _fact(fact, meaning) for _, fact in shown.iterrows()}
    question = {"subject": HEAD, "object": TAIL, "knowledge_type": "inferred"}
    question |= {"predicates": [edges[PREDICTION]["predicate"]]}
    ends = {HEAD: [_binding(head)], TAIL: [_binding(tail)]}
    analyses = [_analysis(float(test["rank"]), list(graphs))]
    missing = int(denied.sum())
    note = f" (without {counted(missing, 'denied fact')}, as TRAPI has no denials)" * bool(missing)
    return {
        "message": {
            "query_graph": {
                "nodes": {HEAD: {"ids": [head]}, TAIL: {"ids": [tail]}},
                "edges": {ANSWER: question},
            },
            "knowledge_graph": {"nodes": _nodes(explanation, shown), "edges": edges},
            "results": [{"node_bindings": ends, "analyses": analyses}],
            "auxiliary_graphs": graphs,
        },
        "schema_version": TRAPI_VERSION,
        "biolink_version": biolink.terms().version,
        "status": "Success",
        "description": f"Clew: the training facts behind an answer, {explanation.title}{note}. "
        + " ".join([explanation.head.label.sentence, *explanation.head.notes()]),
    }


def _analysis(rank: float, support_graphs: list[str]) -> Content:
    return {
        "resource_id": RESOURCE,
        **({"score": 1 / rank} if rank >= 1 else {}),
        "scoring_method": "reciprocal of the filtered rank",
        "edge_bindings": {ANSWER: [_binding(PREDICTION)]},
        "support_graphs": support_graphs,
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
                "name": str(row[end]),
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
    predicate, qualifiers = biolink.predicate_of(label)
    if biolink.predicate_of(name)[0] != biolink.RELATED_TO:
        predicate, qualifiers = biolink.predicate_of(name)
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
