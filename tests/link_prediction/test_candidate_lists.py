"""Lists of a relation's best pairs against every pair scored alone and sorted."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
import torch

from clew.config.load import from_mapping
from clew.errors import ConfigError, DataError
from clew.link_prediction import candidates as candidate_lists
from clew.link_prediction.calibration import Calibration
from clew.link_prediction.candidates import COLUMNS, Limits, list_pairs, table_of_pairs
from clew.link_prediction.models.base import GraphModel, build_graph_model
from clew.link_prediction.prediction import Predictor, Query
from clew.link_prediction.triples import FilterIndex
from clew.link_prediction.vocabulary import Vocabulary

NUM_ENTITIES, NUM_RELATIONS = 14, 2
KNOWN = np.array([[0, 1, 4], [0, 1, 5], [2, 0, 4], [3, 1, 4], [0, 1, 4], [9, 1, 1]], np.int32)
CALIBRATION = Calibration(1.7, 8, 3.0, 2.5, 0.3, 0.1)
KINDS = ["Drug", "Disease", None, "Drug", "Disease", "Gene"] * 3


def entities() -> Vocabulary:
    names = [f"MONDO:{i:07}" for i in range(NUM_ENTITIES)]
    kinds = pa.array(KINDS[:NUM_ENTITIES], pa.string())
    labels = pa.array(["Aspirin", *[None] * (NUM_ENTITIES - 1)], pa.string())
    return Vocabulary("entity", pa.array(names), labels, category_array=kinds)


def model(*, inverses: bool = True, whole: bool = False) -> GraphModel:
    """Return a model with random weights; whole numbers make equal scores equal in any order."""
    torch.manual_seed(5)
    settings = from_mapping(
        {"data": {"name": "umls"}, "model": {"kind": "distmult", "embedding_dim": 6}}
    )
    rows = NUM_RELATIONS * (2 if inverses else 1)
    built = build_graph_model(settings.model, NUM_ENTITIES, rows)
    with torch.no_grad():
        for values in built.parameters():
            values.copy_(torch.randint(-2, 3, values.shape) if whole else torch.randn(values.shape))
    return built.eval()


def predictor(
    net: GraphModel, calibration: Calibration | None = CALIBRATION, *, known: bool = True
) -> Predictor:
    index = FilterIndex.in_both_directions(KNOWN, NUM_RELATIONS) if known else None
    names = Vocabulary.from_names("relation", ["causes", "treats"])
    return Predictor(net, entities(), names, known=index, calibration=calibration)


def one_by_one(
    asking: Predictor, heads: list[int], tails: list[int], *, filter_known: bool
) -> list[tuple[float, int, int]]:
    """Score each pair of `treats` with loops over single scores; return keys and pairs in order."""
    known = {tuple(row) for row in KNOWN.tolist()}
    temperature = asking.calibration.temperature if asking.calibration else None
    net, relation = asking.model, 1

    def score(given: int, row: int, answer: int) -> float:
        with torch.no_grad():
            query = net.queries(torch.tensor([given]), torch.tensor([row]))
            return float(net.scores(query)[0, answer])

    def value(given: int, row: int, answer: int, others: list[int]) -> float:
        own = score(given, row, answer)
        if temperature is None:
            return own
        weights = [np.exp(score(given, row, other) / temperature) for other in others]
        mine = np.exp(own / temperature)
        return float(mine / (sum(weights) + mine))

    found = []
    for head, tail in itertools.product(heads, tails):
        if filter_known and (head, relation, tail) in known:
            continue
        new_tails = [t for t in tails if (head, relation, t) not in known and t != tail]
        values = [value(head, relation, tail, new_tails)]
        if asking.has_inverses:
            new_heads = [h for h in heads if (h, relation, tail) not in known and h != head]
            values.append(value(tail, relation + NUM_RELATIONS, head, new_heads))
        found.append((float(np.mean(values)), head, tail))
    return sorted(found, key=lambda row: (-np.float32(row[0]), row[1], row[2]))


@pytest.mark.parametrize("block_mib", [64.0, 50 / 2**20, 1e-9])
@pytest.mark.parametrize("filter_known", [True, False])
@pytest.mark.parametrize(
    ("inverses", "whole", "calibration"),
    [
        (True, False, CALIBRATION),
        (False, False, CALIBRATION),
        (True, False, None),
        (True, True, None),
        (False, True, None),
    ],
)
def test_a_list_equals_all_pairs_scored_one_by_one_and_sorted(
    monkeypatch: pytest.MonkeyPatch,
    block_mib: float,
    filter_known: bool,
    inverses: bool,
    whole: bool,
    calibration: Calibration | None,
) -> None:
    monkeypatch.setattr(candidate_lists, "BLOCK_MIB", block_mib)
    asking = predictor(model(inverses=inverses, whole=whole), calibration)
    limits = Limits(head_kind="drug", tail_kind="Disease")
    heads, tails = ([i for i in range(NUM_ENTITIES) if KINDS[i] == k] for k in ("Drug", "Disease"))
    expected = one_by_one(asking, heads, tails, filter_known=filter_known)
    if whole:
        assert len({key for key, _, _ in expected[:9]}) < 9  # there are ties
    for top_k in (1, 7, 100):
        found = list_pairs(
            asking, "treats", top_k=top_k, filter_known=filter_known, limits=limits
        ).to_pylist()
        names = [(asking.entities.name(h), asking.entities.name(t)) for _, h, t in expected]
        assert [(row["head"], row["tail"]) for row in found] == names[:top_k]
        key = "probability" if calibration else "score"
        assert [row[key] for row in found] == pytest.approx(
            [k for k, _, _ in expected[:top_k]], rel=1e-5
        )
        assert [row["rank"] for row in found] == list(range(1, len(found) + 1))


def test_a_row_tells_what_the_two_questions_tell() -> None:
    asking = predictor(model())
    found = list_pairs(asking, "treats", top_k=1000).to_pylist()
    assert len(found) == NUM_ENTITIES**2 - 4
    for row in found[:20]:
        query = Query("treats", head=row["head"], tail=row["tail"])
        of_tail, of_head = (p.place for p in asking.predict(query.ways(), top_k=1))
        assert of_tail is not None
        assert of_head is not None
        assert (row["tail_rank"], row["head_rank"]) == (of_tail.rank, of_head.rank)
        assert (row["num_tails"], row["num_heads"]) == (
            of_tail.num_candidates,
            of_head.num_candidates,
        )
        probabilities = of_tail.probability, of_head.probability
        assert (row["tail_probability"], row["head_probability"]) == pytest.approx(probabilities)
        assert row["score"] == pytest.approx((of_tail.score + of_head.score) / 2, rel=1e-5)
        assert row["known"] is False
    first = next(row for row in found if row["head"] == "MONDO:0000000")
    assert (first["head_label"], first["head_kind"]) == ("Aspirin", "Drug")
    assert first["head_link"].endswith("0000000")


def test_rows_of_triples_come_in_their_order() -> None:
    asking = predictor(model())
    triples = np.array([[3, 1, 4], [0, 0, 1], [2, 1, 2], [3, 1, 4]], np.int64)
    table = table_of_pairs(asking, triples, Limits())
    assert table["relation"].to_pylist() == ["treats", "causes", "treats", "treats"]
    assert table["known"].to_pylist() == [True, False, False, True]
    assert table.slice(0, 1).equals(table.slice(3, 1))
    assert table_of_pairs(asking, triples[:0], Limits()).schema == COLUMNS


def test_candidates_of_a_list() -> None:
    asking = predictor(model())
    seen = list_pairs(asking, "treats", top_k=99, filter_known=False, limits=Limits(seen=True))
    assert seen.num_rows == 3 * 3
    assert set(seen["head"].to_pylist()) == {asking.entities.name(i) for i in (0, 3, 9)}
    assert set(seen["tail"].to_pylist()) == {asking.entities.name(i) for i in (1, 4, 5)}
    some = Limits(heads=["Aspirin", "no such name"], tail_kind="Gene")
    table = list_pairs(asking, "treats", top_k=99, limits=some)
    assert set(table["head_label"].to_pylist()) == {"Aspirin"}
    assert set(table["tail_kind"].to_pylist()) == {"Gene"}
    assert set(table["num_heads"].to_pylist()) == {1}


@pytest.mark.parametrize(
    "limits",
    [Limits(head_kind="Planet"), Limits(tails=["nothing"]), Limits(heads=[])],
)
def test_a_list_without_candidates(limits: Limits) -> None:
    with pytest.raises(DataError):
        list_pairs(predictor(model()), "treats", top_k=3, limits=limits)


def test_what_a_list_needs() -> None:
    asking = predictor(model(), known=False)
    with pytest.raises(DataError):
        list_pairs(asking, "treats", top_k=3)
    with pytest.raises(DataError):
        list_pairs(asking, "treats", top_k=3, filter_known=False, limits=Limits(seen=True))
    with pytest.raises(DataError):
        list_pairs(asking, "trets", top_k=3, filter_known=False)
    with pytest.raises(ConfigError):
        list_pairs(asking, "treats", top_k=0, filter_known=False)
    table = list_pairs(asking, "treats", top_k=3, filter_known=False)
    assert table["known"].to_pylist() == [None] * 3
