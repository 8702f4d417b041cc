"""Exports an explanation as a message of the Translator Reasoner API (TRAPI 1.5).

The predicted triple is the answer to a query. Its edge refers to support graphs: one graph of the
strongest proponents, and one graph for each path between head and tail. Every fact in them has its
influence as an attribute, with its form and unit in the description. TRAPI cannot say that a triple
is denied, so denied facts are left out. See https://github.com/NCATSTranslator/ReasonerAPI.
"""

from collections.abc import Iterable

import pandas as pd
from pydantic import BaseModel

from clew.biolink.curies import as_curie
from clew.biolink.terms import NAMED_THING, category_of, is_denied, predicate_of, terms
from clew.errors import ConfigError, quoted
from clew.runs.reading.facts import FactPath
from clew.runs.sharing.explanation import SharedExplanation

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


class Attribute(BaseModel):
    """A value with its type."""

    attribute_type_id: str
    value: str | int | float | list[str]
    original_attribute_name: str | None = None
    description: str | None = None


class Node(BaseModel):
    """An entity."""

    name: str
    categories: list[str]
    attributes: list[Attribute]


class Qualifier(BaseModel):
    """A value that makes a predicate more precise."""

    qualifier_type_id: str
    qualifier_value: str


class Source(BaseModel):
    """The source of a triple."""

    resource_id: str
    resource_role: str = "primary_knowledge_source"


class Edge(BaseModel):
    """A triple."""

    subject: str
    predicate: str
    object: str
    qualifiers: list[Qualifier] | None = None
    sources: list[Source] = [Source(resource_id=RESOURCE)]
    attributes: list[Attribute]


class Graph(BaseModel):
    """The entities and triples of the message."""

    nodes: dict[str, Node]
    edges: dict[str, Edge]


class QueryNode(BaseModel):
    """An entity of the question."""

    ids: list[str]


class QueryEdge(BaseModel):
    """The relation of the question."""

    subject: str = HEAD
    object: str = TAIL
    predicates: list[str]
    knowledge_type: str = "inferred"


class QueryGraph(BaseModel):
    """The question."""

    nodes: dict[str, QueryNode]
    edges: dict[str, QueryEdge]


class Binding(BaseModel):
    """An entity or a triple of the answer."""

    id: str
    attributes: list[Attribute] = []


class Analysis(BaseModel):
    """The model's score of the answer, with its support."""

    resource_id: str = RESOURCE
    score: float | None
    scoring_method: str = "reciprocal of the filtered rank"
    edge_bindings: dict[str, list[Binding]]
    support_graphs: list[str]


class Result(BaseModel):
    """The answer."""

    node_bindings: dict[str, list[Binding]]
    analyses: list[Analysis]


class SupportGraph(BaseModel):
    """Triples that support another triple."""

    edges: list[str]
    attributes: list[Attribute]


class Message(BaseModel):
    """Question, knowledge graph and answer."""

    query_graph: QueryGraph
    knowledge_graph: Graph
    results: list[Result]
    auxiliary_graphs: dict[str, SupportGraph]


class Response(BaseModel):
    """The complete TRAPI document."""

    message: Message
    schema_version: str = TRAPI_VERSION
    biolink_version: str
    status: str = "Success"
    description: str


def trapi_json(explanation: SharedExplanation) -> str:
    return trapi_response(explanation).model_dump_json(exclude_none=True, indent=1) + "\n"


def trapi_response(explanation: SharedExplanation) -> Response:
    """Raises ConfigError if the explained triple is denied."""
    test = explanation.test
    if is_denied(str(test["relation_id"])):
        raise ConfigError(
            f"{quoted(explanation.title)} is a denial, which a TRAPI message cannot state; write "
            "the explanation as html"
        )
    denied = explanation.facts["relation_id"].astype(str).map(is_denied).astype(bool)
    left_out = set(explanation.facts.loc[denied, "rank"])
    paths = [path for path in explanation.paths[:MAX_PATHS] if not left_out & set(path.ranks)]
    helping = explanation.facts[~denied & (explanation.facts["influence"] > 0)]
    proponents = helping.head(MAX_PROPONENTS)
    ranks = {int(rank) for rank in proponents["rank"]} | {r for path in paths for r in path.ranks}
    shown = helping[helping["rank"].isin(ranks)]
    graphs = _support_graphs(proponents, paths)
    head, tail = (as_curie(str(test[end])) for end in ("head_id", "tail_id"))
    edges = {PREDICTION: _predicted(test, list(graphs))}
    note = f"{explanation.head.form.sentence} {POSITIVE}"
    edges |= {_edge_id(int(fact["rank"])): _fact(fact, note) for _, fact in shown.iterrows()}
    rank = float(test["rank"])
    analysis = Analysis(
        score=1 / rank if rank >= 1 else None,
        edge_bindings={ANSWER: [Binding(id=PREDICTION)]},
        support_graphs=list(graphs),
    )
    message = Message(
        query_graph=QueryGraph(
            nodes={HEAD: QueryNode(ids=[head]), TAIL: QueryNode(ids=[tail])},
            edges={ANSWER: QueryEdge(predicates=[edges[PREDICTION].predicate])},
        ),
        knowledge_graph=Graph(nodes=_nodes(explanation, shown), edges=edges),
        results=[
            Result(
                node_bindings={HEAD: [Binding(id=head)], TAIL: [Binding(id=tail)]},
                analyses=[analysis],
            )
        ],
        auxiliary_graphs=graphs,
    )
    noun = "fact" if len(left_out) == 1 else "facts"
    note = f" (without {len(left_out)} denied {noun}, as TRAPI has no denials)" if left_out else ""
    return Response(
        message=message,
        biolink_version=terms().version,
        description=f"Clew: the training facts behind a model's answer, {explanation.title}{note}",
    )


def _nodes(explanation: SharedExplanation, facts: pd.DataFrame) -> dict[str, Node]:
    found: dict[str, Node] = {}
    rows = [explanation.test, *(fact for _, fact in facts.iterrows())]
    for row in rows:
        for end in ("head", "tail"):
            name = str(row[f"{end}_id"])
            kind = explanation.kinds.get(name, "")
            said = [_named("biolink:category", "kind", kind)] if kind else []
            node = Node(
                name=str(row[end]), categories=[category_of(kind) or NAMED_THING], attributes=said
            )
            found.setdefault(as_curie(name), node)
    return found


def _predicted(test: pd.Series, graphs: list[str]) -> Edge:
    numbers = {"score": test["score"], "rank": test["rank"]}
    attributes = [
        Attribute(attribute_type_id="biolink:support_graphs", value=graphs),
        *_origin("prediction", "computational_model"),
        *(_named(NUMBER, name, float(value)) for name, value in numbers.items() if pd.notna(value)),
    ]
    return _edge(test, attributes)


def _fact(fact: pd.Series, note: str) -> Edge:
    influence = _named(NUMBER, "influence", float(fact["influence"]), note)
    rank = _named("biolink:has_count", "rank by influence", int(fact["rank"]))
    return _edge(fact, [influence, rank, *_origin("not_provided", "not_provided")])


def _edge(row: pd.Series, attributes: list[Attribute]) -> Edge:
    name, label = str(row["relation_id"]), str(row["relation"])
    predicate, qualifiers = predicate_of(label)
    if predicate_of(name)[0] != "biolink:related_to":
        predicate, qualifiers = predicate_of(name)
    return Edge(
        subject=as_curie(str(row["head_id"])),
        predicate=predicate,
        object=as_curie(str(row["tail_id"])),
        qualifiers=[
            Qualifier(qualifier_type_id=key, qualifier_value=value) for key, value in qualifiers
        ]
        or None,
        attributes=[*attributes, _named("biolink:original_predicate", "relation", name)],
    )


def _origin(level: str, agent: str) -> list[Attribute]:
    kinds = {"biolink:knowledge_level": level, "biolink:agent_type": agent}
    return [Attribute(attribute_type_id=key, value=value) for key, value in kinds.items()]


def _named(
    kind: str, name: str, value: str | int | float, description: str | None = None
) -> Attribute:
    return Attribute(
        attribute_type_id=kind, value=value, original_attribute_name=name, description=description
    )


def _support_graphs(proponents: pd.DataFrame, paths: Iterable[FactPath]) -> dict[str, SupportGraph]:
    strongest = [_edge_id(int(rank)) for rank in proponents["rank"]]
    graphs = {PROPONENTS: SupportGraph(edges=strongest, attributes=[])} if strongest else {}
    for number, path in enumerate(paths, 1):
        weakest = _named(NUMBER, "weakest influence", path.weakest)
        edges = [_edge_id(rank) for rank in path.ranks]
        graphs[f"path-{number}"] = SupportGraph(edges=edges, attributes=[weakest])
    return graphs


def _edge_id(rank: int) -> str:
    return f"fact-{rank}"
