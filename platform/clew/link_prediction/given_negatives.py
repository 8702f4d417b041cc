"""Ranks triples against given wrong heads and tails, by the rules of OGB's ogbl-biokg.

An `.npz` file has the arrays of OGB's splits: `head`, `relation`, `tail` `(triple,)`, `head_neg`
and `tail_neg` `(triple, negative)`, and optionally `head_type` and `tail_type` `(triple,)`. Their
values are names in the graph, as text or as numbers. With types, an entity's name is `type:number`.

The rank of a triple is 1 + #(wrong score > its own) + #(equal) / 2, the mean of the optimistic and
the pessimistic rank, as in OGB's evaluator. Known answers are not filtered out: the file defines
which answers are wrong.
"""

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from clew.errors import DataError, described
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.rank_metrics import RankingResult
from clew.link_prediction.triple_scores import Candidates, CandidateScores, score_heads, score_tails
from clew.link_prediction.triples import HEAD, RELATION, TAIL, Triples
from clew.link_prediction.vocabulary import Vocabulary
from clew.text_blocks import check_is_file, check_ratio

TRIPLE_KEYS, NEGATIVE_KEYS = ("head", "relation", "tail"), ("head_neg", "tail_neg")
TYPE_KEYS = ("head_type", "tail_type")
NAMES_AT_ONCE = 2**20
"""Number of names that are held as text at once; each takes hundreds of bytes."""


@dataclass(frozen=True)
class GivenNegatives:
    """True triples, and wrong heads and tails for each."""

    triples: Triples
    heads: Candidates
    tails: Candidates


def read_given_negatives(path: Path, entities: Vocabulary, relations: Vocabulary) -> GivenNegatives:
    """Read an `.npz` file with OGB's arrays.

    Raises:
        DataError: If the file is not an `.npz` file, an array is missing or has another shape, or
            a name is not in the graph.
    """
    arrays = _read_arrays(path)
    for key, values in arrays.items():
        if values.dtype.kind not in "iuUS":
            raise DataError(
                f"{path}, array {key}: type {values.dtype}; expected names as text or whole numbers"
            )
    count = arrays["head"].size
    if not count:
        raise DataError(f"{path}, array head: no triple; expected at least one")
    for key, values in arrays.items():
        expected = 2 if key in NEGATIVE_KEYS else 1
        if values.ndim != expected or len(values) != count:
            raise DataError(
                f"{path}, array {key}: shape {values.shape}; expected {count} rows"
                + (" of candidates" if expected == 2 else "")
            )
        if not values.size:
            raise DataError(f"{path}, array {key}: no candidate; expected wrong names in each row")

    def entity_ids(key: str) -> np.ndarray:
        return _ids(path, key, arrays, entities)

    relation = _ids(path, "relation", arrays, relations)
    triples = np.stack([entity_ids("head"), relation, entity_ids("tail")], axis=1)
    return GivenNegatives(triples.astype(np.int32), entity_ids("head_neg"), entity_ids("tail_neg"))


def rank_given(model: GraphModel, given: GivenNegatives, num_relations: int) -> RankingResult:
    """Rank each triple among its wrong heads, and among its wrong tails."""
    triples = given.triples
    heads = np.concatenate([triples[:, [HEAD]], given.heads], axis=1)
    tails = np.concatenate([triples[:, [TAIL]], given.tails], axis=1)
    return RankingResult(
        triples[:, RELATION],
        _ranks(score_heads(model, triples, heads, num_relations)),
        _ranks(score_tails(model, triples, tails)),
    )


def _ranks(scores: CandidateScores) -> np.ndarray:
    """Return the rank of the first column in each row."""
    own, wrong = scores[:, :1], scores[:, 1:]
    ranks: np.ndarray = 1.0 + (wrong > own).sum(1) + 0.5 * (wrong == own).sum(1)
    return ranks


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    check_is_file(path)
    if not zipfile.is_zipfile(path):  # NumPy would suggest to load the file as a pickle
        raise DataError(
            f"{path}: not an .npz file; expected OGB's arrays in one, or a folder with "
            "valid_negatives.txt and test_negatives.txt"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
        check_ratio(path, sum(p.compress_size for p in parts), sum(p.file_size for p in parts))
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            found = {
                k: content[k] for k in (*TRIPLE_KEYS, *NEGATIVE_KEYS, *TYPE_KEYS) if k in content
            }
    except DataError:
        raise
    except Exception as error:  # malformed zip files and NumPy headers raise almost any error
        raise DataError(f"{path}: not an .npz file of plain arrays ({described(error)})") from None
    missing = [key for key in (*TRIPLE_KEYS, *NEGATIVE_KEYS) if key not in found]
    if missing:
        raise DataError(
            f"{path}: no array {missing[0]}; expected {', '.join((*TRIPLE_KEYS, *NEGATIVE_KEYS))}"
        )
    return found


def _ids(path: Path, key: str, arrays: dict[str, np.ndarray], vocabulary: Vocabulary) -> np.ndarray:
    """Return the ids of an array's names in its shape; some rows at a time, as text is large."""
    names = {k: arrays[k] for k in (key, f"{key.removesuffix('_neg')}_type") if k in arrays}
    found = np.empty(arrays[key].shape, np.int32)
    step = max(1, NAMES_AT_ONCE // max(1, arrays[key][:1].size))
    for start in range(0, len(found), step):
        rows = slice(start, start + step)
        part = {k: array[rows] for k, array in names.items()}
        found[rows] = _ids_of_rows(path, key, part, vocabulary)
    return found


def _ids_of_rows(
    path: Path, key: str, arrays: dict[str, np.ndarray], vocabulary: Vocabulary
) -> np.ndarray:
    try:
        texts = arrays[key].astype(str)
        kind = arrays.get(f"{key.removesuffix('_neg')}_type")
        if kind is not None:
            prefix = kind.astype(str).reshape(-1, *[1] * (texts.ndim - 1))
            texts = np.char.add(np.char.add(prefix, ":"), texts)
        distinct, places = np.unique(texts, return_inverse=True)
        names = pa.array(distinct.tolist(), pa.string())
    except ValueError as error:
        raise DataError(f"{path}, array {key}: not text ({described(error)})") from None
    ids = vocabulary.find(names)
    if (ids < 0).any():
        name = str(distinct[int(np.argmin(ids))])
        raise DataError(f"{path}, array {key}: {vocabulary.unknown_name_message(name)}")
    return ids[places].reshape(texts.shape)
