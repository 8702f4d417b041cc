"""One pass over the training triples: tile by tile into the scores that are kept.

Tiles hold triples of one relation with neighbouring heads where possible, because rows that share
(head, relation) share their whole trunk, and so do inverse rows that share (tail, relation).
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from clew.influence.ensemble import MeanOfRuns
from clew.influence.scores import Everything, Scored, Strongest, require_finite
from clew.influence.summation import Summation
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.triples import HEAD, RELATION, TAIL, Triples
from clew.training.memory import MemoryCleanup

logger = logging.getLogger(__name__)

LARGEST_TILE, SMALLEST_TILE = 1024, 16
FLOAT_BYTES = 4
TEST_SHARE = 0.5
"""Share of the budget that the factors of test triples may use."""
DETAILS_LIMIT_MIB = 1024.0


@dataclass(frozen=True)
class Plan:
    """Sizes chosen to stay within a memory budget."""

    tile_triples: int
    tests_per_pass: int
    predicted_mib: float


@dataclass(frozen=True, eq=False)
class Explanation:
    """Scores of training triples for each test triple."""

    proponents: Scored
    opponents: Scored
    """Strongest first."""
    complete: bool
    """Whether every score was kept: `proponents` and `opponents` are then the same list of all
    candidates, in descending order of influence."""
    self_influence: Float[np.ndarray, "test"]
    """NaN where the score has none."""
    parts: tuple[str, ...]
    num_pairs: int

    def only(self, test: int) -> "Explanation":
        """Return the explanation of one test triple."""
        proponents = self.proponents.only(test)
        return replace(
            self,
            proponents=proponents,
            opponents=proponents if self.complete else self.opponents.only(test),
            self_influence=self.self_influence[test : test + 1],
        )


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


def explain_in_tiles(
    summation: Summation | MeanOfRuns,
    train: Triples,
    candidates: np.ndarray | None,
    *,
    tile_triples: int,
    top_k: int,
    numbers_per_pair: int,
    cleanup: MemoryCleanup,
    progress: Callable[[int, int], None],
) -> Explanation:
    """Score the training triples for the test triples of one sum over checkpoints.

    Args:
        summation: Holds the test triples.
        train: All training triples.
        candidates: Pairs to include, `(test, train)`, bool; None: all.
        tile_triples: Training triples in a tile.
        top_k: Proponents and opponents of each test triple to keep; 0: every score.
        numbers_per_pair: Contributions of a pair, kept with every score if memory allows.
        cleanup: Returns cached memory after some of the tiles.
        progress: Called with the number of training triples done and in total.
    """
    own = summation.test_self_influence.cpu().numpy()
    union = None if candidates is None else np.flatnonzero(candidates.any(0))
    total = len(train) if union is None else len(union)
    everything = Everything(details=bool(top_k) or _fits(len(own), total, numbers_per_pair))
    strongest = (Strongest(top_k, 1), Strongest(top_k, -1)) if top_k else None
    done = 0
    for count, indices in enumerate(tiles(train, union, tile_triples)):
        tile = summation.tile(indices)
        for sink in strongest or (everything,):
            sink.add(tile)
        done += len(indices)
        progress(done, total)
        cleanup.after_step(count)
    if strongest is not None:
        proponents, opponents = (sink.result() for sink in strongest)
    else:
        proponents = opponents = everything.result()
    require_finite(proponents, opponents)
    pairs = total * len(own)
    return Explanation(proponents, opponents, not top_k, own, summation.parts, num_pairs=pairs)


def _fits(num_tests: int, num_train: int, numbers_per_pair: int) -> bool:
    """Whether the contributions of all pairs fit into memory; warn if they do not."""
    size_mib = 4.0 * num_tests * num_train * numbers_per_pair / 2**20
    if size_mib > DETAILS_LIMIT_MIB:
        logger.warning(
            "contributions by part and checkpoint of %d x %d scores would need %.0f MiB and "
            "are left out; the scores are complete",
            num_tests,
            num_train,
            size_mib,
        )
    return size_mib <= DETAILS_LIMIT_MIB
