"""Extracts the densest part of a data set: a graph of few entities and many facts.

The entity with the fewest facts is removed repeatedly until so many remain, as in a k-core.
"""

import os
from collections import defaultdict
from heapq import heapify, heappop, heappush
from pathlib import Path

import numpy as np

NUM_ENTITIES = {"FB15k-237": 104, "codex-s": 104, "drugmechdb": 800, "WN18RR": 800}
"""Entities that remain of each data set: as many as the kinship graph has, or, where these have few
facts, those with fewer than 6,000."""
SHARES = {"train": 0.85, "valid": 0.05, "test": 0.1}


def write_dense_part(data_set: str, folder: Path) -> dict[str, object]:
    """Write the densest part of a data set under $CLEW_DATA, and return the settings to use it.

    The facts are divided among the splits at random.
    """
    source = Path(os.environ["CLEW_DATA"]) / data_set
    lines = [
        line
        for split in ("train", "valid", "test")
        for line in (source / f"{split}.txt").read_text(encoding="utf-8").splitlines()
    ]
    facts = np.array([line.split("\t") for line in lines])
    facts = facts[densest(facts[:, 0], facts[:, 2], NUM_ENTITIES[data_set])]
    split_of = np.random.default_rng(0).choice([*SHARES], len(facts), p=[*SHARES.values()])
    folder.mkdir(parents=True)
    files: dict[str, object] = {}
    for split in SHARES:
        path = folder / f"{split}.txt"
        np.savetxt(path, facts[split_of == split], "%s", delimiter="\t", encoding="utf-8")
        files[f"data.{split}"] = str(path)
    return files


def densest(heads: np.ndarray, tails: np.ndarray, num_entities: int) -> np.ndarray:
    """Return the indices of the facts between the remaining entities."""
    facts_of: dict[str, set[int]] = defaultdict(set)
    for place, (head, tail) in enumerate(zip(heads, tails, strict=True)):
        facts_of[head].add(place)
        facts_of[tail].add(place)
    queue = [(len(facts), entity) for entity, facts in facts_of.items()]
    heapify(queue)
    while len(facts_of) > num_entities:
        count, entity = heappop(queue)
        if count != len(facts_of.get(entity, ())):
            continue  # outdated: the entity was removed, or queued again with fewer facts
        for place in facts_of.pop(entity):
            other = tails[place] if heads[place] == entity else heads[place]
            if other != entity:
                facts_of[other].remove(place)
                heappush(queue, (len(facts_of[other]), other))
    return np.array(sorted(set().union(*facts_of.values())))
