"""Makes a data set of KGX files: triples in three splits, with the names and kinds of entities."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int

from clew.biolink.terms import PREFIX
from clew.errors import ConfigError
from clew.files import replacing
from clew.link_prediction.kgx import LIST_SEPARATOR, KgxGraph, read_kgx
from clew.workflows.describe_data import describe_folder
from clew.workflows.outputs import check_new_folder

CodedEdges = Int[np.ndarray, "triple 3"]


@dataclass(frozen=True)
class KgxRequest:
    """Which files become a data set, and how their triples are split."""

    folder: Path
    output_dir: Path
    qualifiers: bool = False
    valid_fraction: float = 0.05
    test_fraction: float = 0.05
    seed: int = 0


def convert_kgx(request: KgxRequest) -> str:
    """Write the data set into a new folder; return what is in it, one count a line.

    Raises:
        ConfigError: the shares leave nothing to train on, or the folder is not empty.
        DataError: the files are not what they should be.
    """
    if request.valid_fraction + request.test_fraction >= 1:
        raise ConfigError(
            f"valid_fraction {request.valid_fraction} + test_fraction {request.test_fraction} "
            "leave nothing to train on; their sum must be below 1"
        )
    check_new_folder("--output-dir", request.output_dir)
    graph = read_kgx(request.folder, qualifiers=request.qualifiers)
    with replacing(request.output_dir) as folder:
        folder.mkdir(parents=True)
        for split, rows in split_triples(graph, request).items():
            if len(rows):
                _write_triples(folder / f"{split}.txt", graph, rows)
        _write_names(folder, graph)
    return f"{'edges':22} {graph.num_edges:,}\n" + describe_folder(request.output_dir)


def split_triples(graph: KgxGraph, request: KgxRequest) -> dict[str, CodedEdges]:
    """Return the triples of each split, chosen at random.

    A triple stays in training where its relation or an end would otherwise be in no training
    triple. Triples between the same two entities, whichever way they point, stay together, so
    that no test triple is a training triple read backwards.
    """
    triples = graph.triples
    ends = np.sort(triples[:, [0, 2]], axis=1)
    _, pair, sizes = np.unique(ends, axis=0, return_inverse=True, return_counts=True)
    groups = np.split(np.argsort(pair.reshape(-1), kind="stable"), np.cumsum(sizes)[:-1])
    left = _Left(
        np.bincount(triples[:, [0, 2]].ravel(), minlength=len(graph.entities)),
        np.bincount(triples[:, 1], minlength=len(graph.relations)),
    )
    order = iter(np.random.default_rng(request.seed).permutation(len(groups)))
    found, held_out = {}, np.zeros(len(triples), bool)
    fractions = {"valid": request.valid_fraction, "test": request.test_fraction}
    for split, fraction in fractions.items():
        rows: list[int] = []
        while (
            len(rows) < round(fraction * len(triples)) and (group := next(order, None)) is not None
        ):
            if left.take(triples[groups[group]]):
                rows += groups[group].tolist()
        held_out[rows] = True
        found[split] = triples[sorted(rows)]
    return {"train": triples[~held_out]} | found


@dataclass(frozen=True)
class _Left:
    """How often each entity and each relation is in what is left to train on."""

    entities: Int[np.ndarray, " entity"]
    relations: Int[np.ndarray, " relation"]

    def take(self, rows: CodedEdges) -> bool:
        """Take triples away, unless nothing of an entity or a relation would be left."""
        taken = [
            (self.entities, *np.unique(rows[:, [0, 2]], return_counts=True)),
            (self.relations, *np.unique(rows[:, 1], return_counts=True)),
        ]
        if any((counts[ids] <= numbers).any() for counts, ids, numbers in taken):
            return False
        for counts, ids, numbers in taken:
            counts[ids] -= numbers
        return True


def _write_triples(path: Path, graph: KgxGraph, rows: CodedEdges) -> None:
    entities, relations = graph.entities, graph.relations
    with path.open("w", encoding="utf-8") as file:
        for head, relation, tail in rows.tolist():
            file.write(f"{entities[head]}\t{relations[relation]}\t{entities[tail]}\n")


def _write_names(folder: Path, graph: KgxGraph) -> None:
    """Write names, kinds and synonyms of entities, and what the predicates are called."""
    with (folder / "entity_names.tsv").open("w", encoding="utf-8") as file:
        for entity in graph.entities:
            name, kind = graph.names.get(entity) or entity, graph.kinds.get(entity, "")
            synonyms = LIST_SEPARATOR.join(graph.synonyms.get(entity, ()))
            file.write(f"{entity}\t{name}\t{kind}\t{synonyms}\n")
    labels = {relation: relation_label(relation) for relation in graph.relations}
    text = json.dumps(labels, indent=1, ensure_ascii=False) + "\n"
    (folder / "edge_map.json").write_text(text, encoding="utf-8")


def relation_label(relation: str) -> str:
    """Return a predicate as people read it: `affects (object aspect qualifier: activity)`."""
    predicate, *qualifiers = relation.split(";")
    words = predicate.removeprefix(PREFIX).replace("_", " ")
    parts = [part.replace(PREFIX, "").replace("_", " ").replace("=", ": ") for part in qualifiers]
    return f"{words} ({', '.join(parts)})" if parts else words
