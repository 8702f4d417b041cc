"""Summary statistics of a knowledge graph."""

from dataclasses import dataclass

import numpy as np

from clew.link_prediction.filters import FilterIndex
from clew.link_prediction.triples import HEAD, RELATION, SPLITS, TAIL, KnowledgeGraph, Triples


@dataclass(frozen=True)
class GraphSummary:
    """Statistics of a graph; degrees count both ends of every training triple."""

    name: str
    fingerprint: str
    num_entities: int
    num_relations: int
    num_train: int
    num_valid: int
    num_test: int
    num_unseen_entities: int
    """Number of entities in validation or test triples, but in no training triple."""
    num_unseen_relations: int
    """The same of relations. What is in no training triple is never trained."""
    num_untrained: int
    """Number of validation and test triples with such an entity or relation."""
    num_unused_entities: int
    """Number of entities that are in no triple (only with a dictionary)."""
    num_duplicates: int
    """Number of triples that repeat an earlier one of the same split, over all splits."""
    num_leaked: int
    """Number of distinct validation and test triples that are also training triples."""
    num_entity_labels: int
    num_relation_labels: int
    mean_degree: float
    """Over entities of training triples."""
    median_degree: float
    """Over entities of training triples."""
    max_degree: int
    hub: str
    """Label of the entity with the largest degree."""


def describe(graph: KnowledgeGraph) -> GraphSummary:
    degrees = _degrees(graph, graph.train)
    held_out = np.concatenate([graph.valid, graph.test])
    ends, relations = held_out[:, [HEAD, TAIL]], held_out[:, RELATION]
    is_trained = degrees > 0, np.isin(np.arange(graph.num_relations), graph.train[:, RELATION])
    seen = degrees[degrees > 0]
    train, valid, test = (_num_distinct(graph, graph.split(split)) for split in SPLITS)
    num_triples = sum(len(graph.split(split)) for split in SPLITS)
    return GraphSummary(
        name=graph.name,
        fingerprint=graph.fingerprint,
        num_entities=graph.num_entities,
        num_relations=graph.num_relations,
        num_train=len(graph.train),
        num_valid=len(graph.valid),
        num_test=len(graph.test),
        num_unseen_entities=int((~is_trained[0][np.unique(ends)]).sum()),
        num_unseen_relations=int((~is_trained[1][np.unique(relations)]).sum()),
        num_untrained=int((~(is_trained[0][ends].all(1) & is_trained[1][relations])).sum()),
        num_unused_entities=int((degrees + _degrees(graph, held_out) == 0).sum()),
        num_duplicates=num_triples - train - valid - test,
        num_leaked=sum(
            train + distinct - _num_distinct(graph, np.concatenate([graph.train, triples]))
            for distinct, triples in ((valid, graph.valid), (test, graph.test))
        ),
        num_entity_labels=graph.entities.num_labels,
        num_relation_labels=graph.relations.num_labels,
        mean_degree=float(seen.mean()),
        median_degree=float(np.median(seen)),
        max_degree=int(seen.max()),
        hub=graph.entities.label(int(degrees.argmax())),
    )


def _degrees(graph: KnowledgeGraph, triples: Triples) -> np.ndarray:
    return np.bincount(triples[:, [HEAD, TAIL]].ravel(), minlength=graph.num_entities)


def _num_distinct(graph: KnowledgeGraph, triples: Triples) -> int:
    return len(FilterIndex.from_triples(triples, graph.num_relations).tails)
