"""Exports an explanation as a message of the Translator Reasoner API (TRAPI 1.5).

The predicted triple is the answer to a query. Its edge refers to support graphs: one graph of the
strongest proponents, and one graph for each path between head and tail. Every fact in them has its
influence as an attribute, with its form and unit in the description. TRAPI cannot say that a triple
is denied, so denied facts are left out. See https://github.com/NCATSTranslator/ReasonerAPI.
"""

import json
from collections.abc import Iterable
from typing import Any

import pandas as pd

from clew.biolink import (
    NAMED_THING,
    RELATED_TO,
    as_curie,
    category_of,
    is_denied,
    predicate_of,
    terms,
)
from clew.errors import ConfigError, extra, quoted
from clew.runs.reading.explanation import SharedExplanation
from clew.runs.reading.facts import FactPath

TRAPI_VERSION = "1.5.0"
RESOURCE = "infores:clew"
"""Source of the statements. The name is not registered in the infores catalogue."""
HEAD, TAIL, ANSWER = "n0", "n1", "e0"
PREDICTION = "prediction"
NUMBER = "biolink:has_quantitative_value"
PROPONENTS = "proponents"
MAX_PROPONENTS = 50
MAX_PATHS = 10
POSITIVE = "Positive: the fact made the prediction more likely. An estimate, and no probability."

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
    if is_denied(str(test["relation_id"])):
        raise ConfigError(
            f"{quoted(explanation.title)} is a denial, which a TRAPI message cannot state; write "
            "the explanation as html"
        )
    denied = explanation.facts["relation_id"].astype(str).map(is_denied).astype(bool)
    helping = explanation.facts[~denied & (explanation.facts["influence"] > 0)]
    proponents = helping.head(MAX_PROPONENTS)
    left_out = set(explanation.facts.loc[denied, "rank"])
    paths = [path for path in explanation.paths[:MAX_PATHS] if not left_out & set(path.ranks)]
    ranks = {int(rank) for rank in proponents["rank"]} | {r for path in paths for r in path.ranks}
    shown = helping[helping["rank"].isin(ranks)]
    graphs = _support_graphs(proponents, paths)
    head, tail = (as_curie(str(test[end])) for end in ("head_id", "tail_id"))
    edges = {PREDICTION: _predicted(test, list(graphs))}
    meaning = f"{explanation.head.form.sentence} {POSITIVE}"
    edges |= {_edge_id(int(fact["rank"])): _fact(fact, meaning) for _, fact in shown.iterrows()}
    rank = float(test["rank"])
    question = {
        "subject": HEAD,
        "object": TAIL,
        "predicates": [edges[PREDICTION]["predicate"]],
        "knowledge_type": "inferred",
    }
    analysis = {
        "resource_id": RESOURCE,
        **({"score": 1 / rank} if rank >= 1 else {}),
        "scoring_method": "reciprocal of the filtered rank",
        "edge_bindings": {ANSWER: [_binding(PREDICTION)]},
        "support_graphs": list(graphs),
    }
    noun = "fact" if len(left_out) == 1 else "facts"
    note = f" (without {len(left_out)} denied {noun}, as TRAPI has no denials)" if left_out else ""
    return {
        "message": {
            "query_graph": {
                "nodes": {HEAD: {"ids": [head]}, TAIL: {"ids": [tail]}},
                "edges": {ANSWER: question},
            },
            "knowledge_graph": {"nodes": _nodes(explanation, shown), "edges": edges},
            "results": [
                {
                    "node_bindings": {HEAD: [_binding(head)], TAIL: [_binding(tail)]},
                    "analyses": [analysis],
                }
            ],
            "auxiliary_graphs": graphs,
        },
        "schema_version": TRAPI_VERSION,
        "biolink_version": terms().version,
        "status": "Success",
        "description": f"Clew: the training facts behind an answer, {explanation.title}{note}",
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
                "categories": [category_of(kind) or NAMED_THING],
                "attributes": [_named("biolink:category", "kind", kind)] if kind else [],
            }
            found.setdefault(as_curie(name), node)
    return found


def _predicted(test: pd.Series, graphs: list[str]) -> Content:
    numbers = {"score": test["score"], "rank": test["rank"]}
    attributes = [
        {"attribute_type_id": "biolink:support_graphs", "value": graphs},
        *_origin("prediction", "computational_model"),
        *(_named(NUMBER, name, float(value)) for name, value in numbers.items() if pd.notna(value)),
    ]
    return _edge(test, attributes)


def _fact(fact: pd.Series, meaning: str) -> Content:
    """Return a training fact as an edge; its knowledge level says that its origin is unknown."""
    influence = _named(NUMBER, "influence", float(fact["influence"]))
    rank = _named("biolink:has_count", "rank by influence", int(fact["rank"]))
    origin = _origin("not_provided", "not_provided")
    return _edge(fact, [influence | {"description": meaning}, rank, *origin])


def _edge(row: pd.Series, attributes: list[Content]) -> Content:
    name, label = str(row["relation_id"]), str(row["relation"])
    predicate, qualifiers = predicate_of(label)
    if predicate_of(name)[0] != RELATED_TO:
        predicate, qualifiers = predicate_of(name)
    listed = [{"qualifier_type_id": k, "qualifier_value": value} for k, value in qualifiers]
    return {
        "subject": as_curie(str(row["head_id"])),
        "predicate": predicate,
        "object": as_curie(str(row["tail_id"])),
        **({"qualifiers": listed} if listed else {}),
        "sources": [{"resource_id": RESOURCE, "resource_role": "primary_knowledge_source"}],
        "attributes": [*attributes, _named("biolink:original_predicate", "relation", name)],
    }


def _origin(level: str, agent: str) -> list[Content]:
    kinds = {"biolink:knowledge_level": level, "biolink:agent_type": agent}
    return [{"attribute_type_id": key, "value": value} for key, value in kinds.items()]


def _named(kind: str, name: str, value: str | float) -> Content:
    """Return an attribute with its original name, which can be more specific than `kind`."""
    return {"attribute_type_id": kind, "value": value, "original_attribute_name": name}


def _support_graphs(proponents: pd.DataFrame, paths: Iterable[FactPath]) -> dict[str, Content]:
    strongest = [_edge_id(int(rank)) for rank in proponents["rank"]]
    graphs: dict[str, Content] = {}
    if strongest:
        graphs[PROPONENTS] = {"edges": strongest, "attributes": []}
    for number, path in enumerate(paths, 1):
        weakest = _named(NUMBER, "weakest influence", path.weakest)
        edges = [_edge_id(rank) for rank in path.ranks]
        graphs[f"path-{number}"] = {"edges": edges, "attributes": [weakest]}
    return graphs


def _edge_id(rank: int) -> str:
    return f"fact-{rank}"
