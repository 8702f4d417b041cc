"""Filtered ranking equals PyKEEN's evaluator, including ties, for any size of chunks."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from pykeen.evaluation import RankBasedEvaluator
from pykeen.evaluation.evaluator import create_sparse_positive_filter_, filter_scores_

from clew.config.graph_models import ConvEModel
from clew.errors import NonFiniteLossError
from clew.link_prediction.models.conve import ConvE
from clew.link_prediction.query_scores import QueryScores
from clew.link_prediction.rank_metrics import SIDES, RankingResult
from clew.link_prediction.ranking import RankingSettings, rank_triples
from clew.link_prediction.triples import HEAD, TAIL, FilterIndex, KnowledgeGraph
from clew.link_prediction.vocabulary import Vocabulary

NUM_ENTITIES, NUM_RELATIONS, DIM = 60, 5, 12
PYKEEN_NAMES = {
    "mrr": "inverse_harmonic_mean_rank",
    "mean_rank": "arithmetic_mean_rank",
    "hits_at_1": "hits_at_1",
    "hits_at_3": "hits_at_3",
    "hits_at_10": "hits_at_10",
}


class WholeNumberScores(ConvE):
    """Gives scores that are small integers, so that many are equal and none is rounded."""

    def __init__(self, num_relations, seed=0):
        super().__init__(NUM_ENTITIES, num_relations, ConvEModel(embedding_dim=DIM))
        torch.manual_seed(seed)
        for table in (self.entity.weight, self.relation.weight, self.entity_bias):
            table.data = torch.randint(-2, 3, table.shape).float()

    def encode(self, head, relation):
        return (head + relation).clamp(-2, 2)


def vocabulary(kind, size):
    return Vocabulary.from_names(kind, [f"{kind} {i}" for i in range(size)])


@pytest.fixture(scope="module")
def graph():
    random = np.random.default_rng(0)
    # The test split has few heads, so many triples share a query.
    heads = random.integers(0, 12, 400)
    triples = np.stack(
        [heads, random.integers(0, NUM_RELATIONS, 400), random.integers(0, NUM_ENTITIES, 400)], 1
    )
    triples = np.unique(triples.astype(np.int32), axis=0)
    random.shuffle(triples)
    return KnowledgeGraph(
        "random",
        vocabulary("entity", NUM_ENTITIES),
        vocabulary("relation", NUM_RELATIONS),
        triples[:150],
        triples[150:200],
        triples[200:],
    )


def dense_scores(model, triples, side):
    """Return all scores of each triple's query by definition: one candidate after another."""
    every = torch.arange(NUM_ENTITIES)
    has_inverses = model.relation.num_embeddings > NUM_RELATIONS
    rows = []
    for head, relation, tail in triples.tolist():
        if side == "tail":
            heads, relations, tails = torch.full_like(every, head), relation, every
        elif has_inverses:
            heads, relations, tails = torch.full_like(every, tail), relation + NUM_RELATIONS, every
        else:
            heads, relations, tails = every, relation, torch.full_like(every, tail)
        queries = model.queries(heads, torch.full_like(every, relations))
        scores = (queries * model.entity(tails)).sum(1)
        rows.append(scores + (model.entity_bias[tails] if model.entity_bias is not None else 0))
    return torch.stack(rows).detach()


def by_pykeen(model, graph, triples):
    """Rank the same scores by PyKEEN's filter and evaluator."""
    evaluator = RankBasedEvaluator(add_defaults=True)
    batch = torch.from_numpy(triples).long()
    known = torch.from_numpy(np.concatenate([graph.train, graph.valid, graph.test])).long()
    for side, column in (("head", HEAD), ("tail", TAIL)):
        scores = dense_scores(model, triples, side)
        true_scores = scores.gather(1, batch[:, column : column + 1]).clone()
        positives, _ = create_sparse_positive_filter_(batch, known, filter_col=column)
        scores = filter_scores_(scores, positives)
        scores.scatter_(1, batch[:, column : column + 1], true_scores)
        evaluator.process_scores_(batch, side, scores, true_scores)
    return evaluator.finalize()


@pytest.mark.parametrize("inverses", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_equals_pykeen_on_scores_with_ties(graph, inverses, bias):
    model = WholeNumberScores((1 + inverses) * NUM_RELATIONS)
    if not bias:
        model.entity_bias = None
    result = rank_triples(model, graph.test, FilterIndex.from_graph(graph))
    expected = by_pykeen(model, graph, graph.test)
    assert (result.tail_ranks % 1 == 0.5).any(), "no rank between two ties: the test is too easy"
    for ours, theirs in PYKEEN_NAMES.items():
        for side in SIDES:
            value = expected.get_metric(f"{side}.realistic.{theirs}")
            assert result.metrics("test")[f"test/{ours}_{side}"] == pytest.approx(value, rel=1e-6)
        value = expected.get_metric(f"both.realistic.{theirs}")
        assert result.metrics("test")[f"test/{ours}"] == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("inverses", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        RankingSettings(batch_size=1),
        RankingSettings(batch_size=7, chunk_bytes=1),
        RankingSettings(batch_size=1000, chunk_bytes=2**30),
    ],
)
def test_pieces_change_no_rank(graph, inverses, settings, monkeypatch):
    monkeypatch.setattr("clew.link_prediction.ranking._MINIMUM_CHUNK", 13)
    model = WholeNumberScores((1 + inverses) * NUM_RELATIONS)
    known = FilterIndex.from_graph(graph)
    expected = rank_triples(model, graph.test, known)
    result = rank_triples(model, graph.test, known, settings=settings)
    np.testing.assert_array_equal(result.tail_ranks, expected.tail_ranks)
    np.testing.assert_array_equal(result.head_ranks, expected.head_ranks)


def test_pieces_change_no_rank_of_a_real_model(graph, monkeypatch):
    """With rounded scores, an answer must still equal itself in any chunk."""
    monkeypatch.setattr("clew.link_prediction.ranking._MINIMUM_CHUNK", 17)
    torch.manual_seed(0)
    model = ConvE(NUM_ENTITIES, 2 * NUM_RELATIONS, ConvEModel(embedding_dim=20))
    known = FilterIndex.from_graph(graph)
    whole = rank_triples(model, graph.test, known)
    parts = rank_triples(model, graph.test, known, settings=RankingSettings(9, chunk_bytes=1))
    assert (whole.tail_ranks % 1 == 0).all(), "no ties in random real scores"
    np.testing.assert_array_equal(whole.tail_ranks, parts.tail_ranks)
    np.testing.assert_array_equal(whole.head_ranks, parts.head_ranks)


def test_a_constant_score_earns_the_middle_rank(graph):
    model = WholeNumberScores(2 * NUM_RELATIONS)
    model.entity.weight.data.zero_()
    model.entity_bias.data.zero_()
    nothing_known = FilterIndex.from_triples(np.empty((0, 3), np.int32), 2 * NUM_RELATIONS)
    result = rank_triples(model, graph.test[:1], nothing_known)
    assert result.tail_ranks.tolist() == [(NUM_ENTITIES + 1) / 2]


def test_scores_that_are_not_finite_are_an_error(graph):
    for value in (torch.nan, torch.inf, -torch.inf):
        model = WholeNumberScores(2 * NUM_RELATIONS)
        model.entity_bias.data[3] = value
        with pytest.raises(NonFiniteLossError, match="NaN or infinity"):
            rank_triples(model, graph.test, FilterIndex.from_graph(graph))


@pytest.mark.parametrize("training", [True, False])
def test_ranking_leaves_the_model_as_it_was(graph, training):
    torch.manual_seed(0)
    model = ConvE(NUM_ENTITIES, 2 * NUM_RELATIONS, ConvEModel(embedding_dim=20)).train(training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    known = FilterIndex.from_graph(graph)
    first = rank_triples(model, graph.test, known).metrics("test")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert rank_triples(model, graph.test, known).metrics("test") == first, "always float32"
    assert model.training == training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_no_triples_have_no_metrics(graph):
    model = WholeNumberScores(2 * NUM_RELATIONS)
    result = rank_triples(model, graph.test[:0], FilterIndex.from_graph(graph))
    assert result.metrics("test") == {}


def test_relations_add_up_to_the_whole(graph, tmp_path):
    model = WholeNumberScores(2 * NUM_RELATIONS)
    result = rank_triples(model, graph.test, FilterIndex.from_graph(graph))
    result.write_by_relation(tmp_path / "relations.parquet", graph.relations)
    rows = pq.read_table(tmp_path / "relations.parquet").to_pylist()
    for side in SIDES:
        parts = [row for row in rows if row["side"] == side]
        mean = np.average(
            [row["mrr"] for row in parts], weights=[row["num_queries"] for row in parts]
        )
        assert mean == pytest.approx(result.quality(side)["mrr"])
        assert [row["relation"] for row in parts] == np.unique(result.relation).tolist()
    assert rows[0]["name"] == graph.relations.name(rows[0]["relation"])


def test_metrics_of_known_ranks():
    ranks = np.array([1.0, 2.0, 10.5, 4.0])
    result = RankingResult(np.zeros(4, np.int32), ranks, np.ones(4))
    values = result.metrics("valid")
    assert values["valid/mrr_head"] == pytest.approx((1 + 1 / 2 + 1 / 10.5 + 1 / 4) / 4)
    assert values["valid/hits_at_10_head"] == 0.75
    assert values["valid/hits_at_3"] == 6 / 8
    assert values["valid/mean_rank"] == (17.5 + 4) / 8


def test_type_constrained_ranks_equal_a_loop_over_candidates(graph):
    model = WholeNumberScores(2 * NUM_RELATIONS).eval()
    scores = QueryScores(model, NUM_RELATIONS, FilterIndex.from_graph(graph))
    found = scores.rank_seen(graph.test, graph.train)
    train, known = graph.train.tolist(), np.concatenate([graph.train, graph.valid, graph.test])
    known = set(map(tuple, known.tolist()))
    unseen = 0
    for side, column in (("head", HEAD), ("tail", TAIL)):
        every, ranks = dense_scores(model, graph.test, side), found.ranks(side)
        for number, triple in enumerate(graph.test.tolist()):
            seen = {t[column] for t in train if t[1] == triple[1]}
            unseen += triple[column] not in seen
            others = [
                e
                for e in seen - {triple[column]}
                if (*triple[:column], e, *triple[column + 1 :]) not in known
            ]
            own, values = every[number, triple[column]], every[number, others]
            above, equal = int((values > own).sum()), int((values == own).sum())
            assert ranks[number] == 1 + above + equal / 2
    assert unseen
