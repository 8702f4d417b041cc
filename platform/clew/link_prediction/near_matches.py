"""Finds the names that are most similar to a mistyped name, fast even among a million names.

Comparing with every name letter by letter would take minutes. Names are therefore first ranked by
the pairs of adjacent bytes that they share with the query (Dice's coefficient). This is one table
look-up for a whole block of names. Only the best names are then compared letter by letter.
"""

from difflib import SequenceMatcher

import numpy as np
import pyarrow as pa

BLOCK_NAMES = 65_536
NUM_CANDIDATES = 256
MINIMUM_RATIO = 0.6


def near_matches(query: str, names: pa.StringArray, *, limit: int = 3) -> list[str]:
    """Return up to `limit` of the names `(name,)`, the most similar to the query first."""
    scores = _pair_scores(query, names)
    count = min(NUM_CANDIDATES, len(scores))
    best = np.argpartition(-scores, count - 1)[:count] if count else np.empty(0, np.int64)
    matcher = SequenceMatcher(b=query.casefold(), autojunk=False)
    rated = []
    for name in names.take(pa.array(best)).to_pylist():
        matcher.set_seq1((name or "").casefold())
        if matcher.quick_ratio() >= MINIMUM_RATIO and matcher.ratio() >= MINIMUM_RATIO:
            rated.append((-matcher.ratio(), name))
    return [name for _, name in sorted(rated)[:limit]]


def _pair_scores(query: str, names: pa.StringArray) -> np.ndarray:
    """Return the Dice coefficient of each name's byte pairs with the query's, float32 `(name,)`."""
    wanted = _pair_table(query)
    num_wanted = max(len(query.encode("utf-8", "replace")) - 1, 1)
    scores = np.empty(len(names), np.float32)
    for start in range(0, len(names), BLOCK_NAMES):
        block = names.slice(start, BLOCK_NAMES)
        common, pairs = _count_pairs(block, wanted)
        scores[start : start + len(block)] = 2 * common / (pairs + num_wanted)
    return scores


def _pair_table(query: str) -> np.ndarray:
    """Return which pairs of bytes occur in the query in any letter case, bool `(65536,)`."""
    table = np.zeros(2**16, bool)
    for text in (query, query.lower(), query.upper(), query.title()):
        table[_pairs(np.frombuffer(text.encode("utf-8", "replace"), np.uint8))] = True
    return table


def _pairs(content: np.ndarray) -> np.ndarray:
    pairs: np.ndarray = (content[:-1].astype(np.uint16) << 8) | content[1:]
    return pairs


def _count_pairs(names: pa.StringArray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    _, offset_buffer, text = names.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[names.offset :][: len(names) + 1]
    content = np.frombuffer(text or b"", np.uint8)[offsets[0] : offsets[-1]]
    offsets = offsets - offsets[0]
    hits = np.zeros(len(content) + 1, np.int32)
    np.cumsum(wanted[_pairs(content)], out=hits[1:-1] if len(content) else hits[:0])
    pairs = np.maximum(np.diff(offsets) - 1, 0)
    return hits[offsets[:-1] + pairs] - hits[offsets[:-1]], pairs
