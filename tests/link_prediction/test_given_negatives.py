"""Evaluation with given wrong triples: classification thresholds, and OGB's ranking rule."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.config.graph_models import DistMultModel, RESCALModel, TransEModel
from clew.errors import DataError
from clew.link_prediction.given_negatives import (
    best_threshold,
    classification_quality,
    fit_thresholds,
    rank_given,
    read_given_negatives,
    score_heads,
    score_tails,
    score_triples,
)
from clew.link_prediction.models.base import GraphModel, build_graph_model
from clew.link_prediction.vocabulary import Vocabulary

ENTITIES, RELATIONS = 9, 3
TRIPLES = np.array([[0, 1, 2], [3, 0, 3], [8, 2, 1], [2, 1, 0]], np.int32)


def model_of(*, inverses: bool, kind: type = TransEModel) -> GraphModel:
    torch.manual_seed(0)
    config = kind(embedding_dim=4, initial_deviation=1.0)
    model = build_graph_model(config, ENTITIES, RELATIONS * (1 + inverses)).double()
    if model.entity_bias is not None:
        torch.nn.init.normal_(model.entity_bias)
    return model


def one(model: GraphModel, head: int, relation: int, tail: int) -> float:
    query = model.eval().queries(torch.tensor([head]), torch.tensor([relation]))
    return float(model.scores(query)[0, tail].detach())


@pytest.mark.parametrize("inverses", [True, False])
@pytest.mark.parametrize("kind", [TransEModel, DistMultModel])
@pytest.mark.parametrize("at_once", [1, 5, 1000])
def test_scores_of_candidates_are_the_model_s(inverses, kind, at_once, monkeypatch):
    monkeypatch.setattr("clew.link_prediction.given_negatives.SCORES_AT_ONCE", at_once)
    model = model_of(inverses=inverses, kind=kind).train()
    candidates = np.arange(20).reshape(4, 5) % ENTITIES
    tails = score_tails(model, TRIPLES, candidates)
    heads = score_heads(model, TRIPLES, candidates, RELATIONS)
    both = score_triples(model, TRIPLES, RELATIONS)
    assert model.training
    for i, (h, r, t) in enumerate(TRIPLES.tolist()):
        for j, other in enumerate(candidates[i].tolist()):
            head = one(model, t, r + RELATIONS, other) if inverses else one(model, other, r, t)
            assert tails[i, j] == pytest.approx(one(model, h, r, other))
            assert heads[i, j] == pytest.approx(head)
        back = one(model, t, r + RELATIONS, h) if inverses else one(model, h, r, t)
        assert both[i] == pytest.approx((one(model, h, r, t) + back) / 2)


def test_a_query_s_activations_count_as_much_as_gathered_rows(monkeypatch):
    monkeypatch.setattr("clew.link_prediction.given_negatives.SCORES_AT_ONCE", 64)
    model, sizes = model_of(inverses=True, kind=RESCALModel), []
    queries = model.queries
    monkeypatch.setattr(model, "queries", lambda h, r: sizes.append(len(h)) or queries(h, r))
    score_tails(model, np.repeat(TRIPLES, 8, axis=0), np.zeros((32, 1), int))
    assert sizes == [4] * 8  # each query has a matrix of 4 x 4: 4 rows, counted four times


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=12))
def test_the_best_threshold_is_as_good_as_the_best_of_all(pairs):
    scores = np.array([float(score) for score, _ in pairs])
    is_true = np.array([true for _, true in pairs])
    cuts = [-np.inf, np.inf, *(scores + 0.5), *(scores - 0.5)]
    best = max(((scores >= cut) == is_true).sum() for cut in cuts)
    assert ((scores >= best_threshold(scores, is_true)) == is_true).sum() == best


def test_relations_have_thresholds_of_their_own_and_unseen_ones_the_common_one():
    scores = np.array([1.0, 2.0, 11.0, 12.0])
    is_true = np.array([False, True, False, True])
    relation = np.array([0, 0, 1, 1])
    thresholds = fit_thresholds(scores, is_true, relation, 3)
    np.testing.assert_allclose(thresholds[:2], [1.5, 11.5])
    assert thresholds[2] == best_threshold(scores, is_true)
    predicted = np.array([1.6, 1.4, 11.4, 11.6]) >= thresholds[relation]
    assert predicted.tolist() == [True, False, False, True]
    quality = classification_quality(predicted, np.array([True, True, False, True]))
    assert quality == {"accuracy": 0.75, "f1": pytest.approx(0.8)}


def write_arrays(path, **changed):
    rng = np.random.default_rng(0)
    arrays = {
        "head": TRIPLES[:, 0],
        "relation": TRIPLES[:, 1],
        "tail": TRIPLES[:, 2],
        "head_neg": rng.integers(0, ENTITIES, (4, 6)),
        "tail_neg": rng.integers(0, ENTITIES, (4, 6)),
    }
    arrays = {k: v for k, v in (arrays | changed).items() if v is not None}
    np.savez(path, **arrays)
    return arrays


def names(prefix: str = "") -> tuple[Vocabulary, Vocabulary]:
    return (
        Vocabulary.from_names("entity", [f"{prefix}{i}" for i in range(ENTITIES)]),
        Vocabulary.from_names("relation", [str(i) for i in range(RELATIONS)]),
    )


@pytest.mark.parametrize("at_once", [1, 13, 2**20])
def test_ranks_are_those_of_ogb_s_evaluator(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr("clew.link_prediction.given_negatives.NAMES_AT_ONCE", at_once)
    arrays = write_arrays(tmp_path / "test.npz")
    model = model_of(inverses=True)
    model.entity.weight.data.round_()  # so that there are ties
    found = read_given_negatives(tmp_path / "test.npz", *names())
    np.testing.assert_array_equal(found.triples, TRIPLES)
    result = rank_given(model, found, RELATIONS)
    for i, (h, r, t) in enumerate(TRIPLES.tolist()):
        sides = (
            (
                result.tail_ranks,
                one(model, h, r, t),
                [one(model, h, r, e) for e in arrays["tail_neg"][i]],
            ),
            (
                result.head_ranks,
                one(model, t, r + RELATIONS, h),
                [one(model, t, r + RELATIONS, e) for e in arrays["head_neg"][i]],
            ),
        )
        for ranks, own, wrong in sides:
            # ogb.linkproppred.Evaluator: 0.5 * (optimistic + pessimistic) + 1
            optimistic = sum(score > own for score in wrong)
            pessimistic = sum(score >= own for score in wrong)
            assert ranks[i] == 0.5 * (optimistic + pessimistic) + 1


def test_ids_of_another_byte_order_are_read(tmp_path):
    ours = write_arrays(tmp_path / "ours.npz")
    write_arrays(tmp_path / "other.npz", **{key: ids.astype(">i4") for key, ids in ours.items()})
    found = read_given_negatives(tmp_path / "other.npz", *names())
    np.testing.assert_array_equal(found.triples, TRIPLES)


def test_types_are_part_of_a_name(tmp_path):
    types = np.array(["drug", "drug", "drug", "drug"])
    write_arrays(tmp_path / "test.npz", head_type=types, tail_type=types)
    found = read_given_negatives(tmp_path / "test.npz", *names("drug:"))
    np.testing.assert_array_equal(found.triples, TRIPLES)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tail_neg": None}, "tail_neg"),
        ({"head_neg": np.zeros((3, 2), int)}, r"head_neg: .*\(3, 2\)"),
        ({"tail": np.array([0, 1, 2, 77])}, "array tail: .*'77'"),
        ({"head": np.array(["0", "1\0a", "2", "3"])}, "array head: .*1"),
        ({"tail_neg": np.zeros((4, 0), int)}, r"tail_neg: .*\(4, 0\)"),
        ({"head": np.zeros(0, int)}, "array head: "),
    ],
)
def test_files_that_do_not_fit_are_named(tmp_path, changed, message):
    write_arrays(tmp_path / "test.npz", **changed)
    with pytest.raises(DataError, match=message):
        read_given_negatives(tmp_path / "test.npz", *names())


def test_other_files_are_refused(tmp_path):
    file = tmp_path / "test.npz"
    with pytest.raises(DataError, match=r"test\.npz"):
        read_given_negatives(file, *names())
    file.write_text("head tail", encoding="utf-8")
    with pytest.raises(DataError):
        read_given_negatives(file, *names())
    write_arrays(file, head=np.array(["0", "1", "2", "3"], dtype=object))
    with pytest.raises(DataError, match=r"test\.npz.*plain"):
        read_given_negatives(file, *names())
