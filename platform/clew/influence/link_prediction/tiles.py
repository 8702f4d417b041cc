"""How much is computed at once: tiles of training triples, and test triples per pass.

Tiles hold triples of one relation with neighbouring heads where possible, because rows that share
(head, relation) share their whole trunk, and so do inverse rows that share (tail, relation).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.triples import HEAD, RELATION, TAIL, Triples

LARGEST_TILE, SMALLEST_TILE = 1024, 16
FLOAT_BYTES = 4
TEST_SHARE = 0.5
"""Share of the budget that the factors of test triples may use."""


@dataclass(frozen=True)
class Plan:
    """Sizes chosen to stay within a memory budget."""

    tile_triples: int
    tests_per_pass: int
    predicted_mib: float


def plan_tiles(
    model: GraphModel,
    *,
    num_tests: int,
    num_checkpoints: int,
    num_directions: int,
    num_parts: int,
    keep_features: bool,
    budget_mib: float,
    tile_triples: int | None = None,
) -> Plan:
    """Choose the tile size, and the number of tests per pass over the training triples.

    A row needs memory for its scores and feature maps; a test for these at every checkpoint; a
    pair of triples for one product per part and direction, and for the sums.
    """
    budget = budget_mib * 2**20
    num_entities, dim = model.entity.weight.shape
    tables = 3 if model.squared_distance else 1  # deltas, and their two weighted forms
    features = (1 + keep_features) * model.floats_per_query
    row = FLOAT_BYTES * (tables * num_entities + features + 12 * dim)
    test = num_checkpoints * num_directions * row
    tests = int(max(1, min(num_tests, TEST_SHARE * budget // test)))
    pair = FLOAT_BYTES * num_parts * (2 * num_directions**2 + 4) + 16 * (num_checkpoints + 2)
    triple = num_directions * row + tests * pair
    fitting = int((budget - tests * test) // triple)
    chosen = tile_triples or max(SMALLEST_TILE, min(LARGEST_TILE, fitting))
    return Plan(chosen, tests, (tests * test + chosen * triple) / 2**20)


def tiles(triples: Triples, candidates: np.ndarray | None, size: int) -> Iterator[np.ndarray]:
    """Yield indices of training triples, `size` at a time, in an order that shares trunks.

    Args:
        triples: All training triples.
        candidates: Indices to include; None: all.
        size: Triples in a tile.
    """
    chosen = np.arange(len(triples)) if candidates is None else candidates
    part = triples[chosen]
    order = chosen[np.lexsort((part[:, TAIL], part[:, HEAD], part[:, RELATION]))]
    for start in range(0, len(order), size):
        yield order[start : start + size]
