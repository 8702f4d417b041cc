"""The independent loop, which benchmarks compare with, computes what its papers say."""

import ast
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clew.config.graph_models import ComplExModel, ConvEModel
from clew.link_prediction.models.base import GraphModel, build_graph_model
from experiments.benchmarks import influence_opponents, opponent_loop
from experiments.benchmarks.influence_opponents import (
    CASES,
    EKFAC,
    ROUNDS,
    Question,
    copied,
    run_clew,
    umls_network,
)
from experiments.benchmarks.training_opponents import CLEW, LOOP, PYKEEN, UMLS, Measured, tables

TRIPLES = {
    "train": [("a", "likes", "b"), ("a", "likes", "c"), ("b", "knows", "c"), ("d", "likes", "b")],
    "valid": [("a", "likes", "d"), ("c", "knows", "a")],
    "test": [("d", "knows", "e")],
}


@pytest.fixture
def graph(tmp_path: Path) -> opponent_loop.Graph:
    for split, rows in TRIPLES.items():
        (tmp_path / f"{split}.txt").write_text("".join("\t".join(row) + "\n" for row in rows))
    return opponent_loop.Graph(tmp_path)


class Fixed(nn.Module):
    """Scores of each query that are drawn once; some are equal."""

    def __init__(self, graph: opponent_loop.Graph) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        size = (graph.entities, graph.relations, graph.entities)
        self.scores = torch.randint(0, 3, size, generator=generator).float()

    def forward(self, head: Tensor, relation: Tensor) -> Tensor:
        return self.scores[head, relation].clone()


def test_it_imports_nothing_of_clew() -> None:
    tree = ast.parse(Path(opponent_loop.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert imports
    assert "clew" not in " ".join(map(ast.unparse, imports))


def test_the_loss_is_torchs_for_each_entity() -> None:
    torch.manual_seed(0)
    scores, labels = torch.randn(3, 5), torch.tensor([[0, 1, 0, 0, 1.0]] * 3)
    slow = 0.0
    for row in range(3):
        for entity in range(5):
            label = 0.9 * labels[row, entity] + 0.1 / 5
            slow += float(F.binary_cross_entropy(scores[row, entity].sigmoid(), label))
    assert float(opponent_loop.loss_of(scores, labels, 0.1)) == pytest.approx(slow / 3)


@pytest.mark.parametrize("batch", [1, 3, 512])
def test_ranks_are_those_of_a_slow_count(graph: opponent_loop.Graph, batch: int) -> None:
    model = Fixed(graph)
    every = [row for split in TRIPLES for row in graph.both_ways(split)]
    slow = []
    for head, relation, tail in graph.both_ways("valid"):
        scores = model.scores[head, relation].tolist()
        answers = {t for h, r, t in every if (h, r) == (head, relation)}
        others = [s for entity, s in enumerate(scores) if entity not in answers]
        better, equal = (
            sum(test(s) for s in others) for test in (scores[tail].__lt__, scores[tail].__eq__)
        )
        slow.append(1 + better + equal / 2)
    assert opponent_loop.ranks(model, graph, "valid", batch).tolist() == slow


def test_rows_are_queries_with_all_tails_or_with_one(graph: opponent_loop.Graph) -> None:
    queries, labels = graph.rows("k_vs_all")
    assert labels.sum() == 2 * len(TRIPLES["train"])
    assert len(queries) == len(queries.unique(dim=0)) == 6
    queries, labels = graph.rows("one_vs_all")
    assert labels.sum(1).tolist() == [1.0] * 8


@pytest.mark.parametrize("batch", [1, 4, 6])
def test_labels_of_a_large_graph_are_made_for_a_batch(
    graph: opponent_loop.Graph, batch: int
) -> None:
    queries, every = graph.rows("k_vs_all")
    large, labels = graph.large_rows()
    assert large.tolist() == queries.tolist()
    for rows in torch.tensor([3, 0, 5, 1, 4, 2]).split(batch):
        assert labels[rows].tolist() == every[rows].tolist()


def test_the_softmax_loss_shares_a_query_among_its_answers() -> None:
    scores, labels = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[1.0, 0.0, 1.0]])
    logs = scores.log_softmax(1)[0]
    expected = -(logs[0] + logs[2]) / 2
    torch.testing.assert_close(opponent_loop.softmax_loss(scores, labels), expected)


def test_it_learns(graph: opponent_loop.Graph) -> None:
    torch.manual_seed(0)
    model = opponent_loop.ComplEx(graph.entities, graph.relations, 8)
    rows = graph.rows("k_vs_all")
    before = opponent_loop.loss_of(model(*rows[0].T), rows[1], 0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loss = partial(opponent_loop.loss_of, smoothing=0.1)
    epochs = opponent_loop.train(model, rows, optimizer=optimizer, loss=loss, batch=2)
    assert len(list(islice(epochs, 30))) == 30
    assert opponent_loop.loss_of(model(*rows[0].T), rows[1], 0.1) < 0.7 * before


def scores_of(model: GraphModel, head: Tensor, relation: Tensor) -> Tensor:
    return model.scores(model.queries(head, relation))


def test_its_models_are_clews() -> None:
    torch.manual_seed(0)
    head, relation = torch.tensor([0, 3, 6]), torch.tensor([1, 0, 3])
    conve = build_graph_model(ConvEModel(embedding_dim=20), 7, 4)
    conve.queries(head, relation)  # statistics of the normalisations
    conve.eval()
    expected = scores_of(conve, head, relation)
    torch.testing.assert_close(copied(conve)(head, relation), expected)  # type: ignore[arg-type]

    clews = build_graph_model(ComplExModel(embedding_dim=8), 7, 4).eval()
    loops = opponent_loop.ComplEx(7, 4, 4)
    loops.load_state_dict(clews.state_dict())
    torch.testing.assert_close(loops(head, relation), scores_of(clews, head, relation))


def test_it_reads_the_bundled_graph() -> None:
    graph = opponent_loop.Graph(UMLS)
    assert (graph.entities, graph.relations) == (135, 2 * 46)
    assert len(graph.triples["train"]) == 5216


class Answering:
    """A process that takes a second for Clew, and 1024 / batch size seconds for another."""

    def __init__(self, _: str, program: str) -> None:
        self.program = program

    def ask(self, question: Mapping[str, Any]) -> dict[str, object]:
        is_clew = self.program == "Clew"
        seconds = 1.0 if is_clew else 1024 / question["batch"]
        scores = [[1.0, 2.0], [3.0, 4.0 if is_clew else 4.0 + self.wrong]]
        return {"seconds": seconds, "scores": scores, "process_peak_gib": 0.0}

    def close(self) -> None:
        pass

    wrong = 0.0


def test_an_opponent_goes_on_with_its_fastest_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(influence_opponents, "Worker", Answering)
    (found,) = influence_opponents.measure(math.inf, CASES[:1])
    assert {size: len(seconds) for size, seconds in found.theirs.items()} == {512: 1, 2048: ROUNDS}
    assert found.row()["times Clew's s"] == 0.5
    assert list(found.figures().values()) == [[0.5] * ROUNDS, [0.5] * ROUNDS, [1.0] * ROUNDS]
    (late,) = influence_opponents.measure(-math.inf, CASES[:1])
    assert late.row()["times Clew's s"] is None
    assert not late.figures()


def test_other_scores_than_clews_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(influence_opponents, "Worker", Answering)
    monkeypatch.setattr(Answering, "wrong", 0.1)
    with pytest.raises(ValueError):
        influence_opponents.measure(math.inf, CASES[:1])


def test_clews_side_of_ek_fac_times_its_factors_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(influence_opponents, "UMLS_EPOCHS", 1)
    (case,) = (case for case in CASES if case.opponent == EKFAC)
    found = run_clew(Question(replace(case, rows=64, tests=4), 0))
    umls_network.cache_clear()
    assert found.scores.shape == (4, 32)
    assert 0 < found.factor_seconds < found.seconds


def measured(epoch: float, compiling: float | None = None) -> Measured:
    return Measured([9.0, epoch, epoch], compile_seconds=compiling, graph_breaks=0)


def test_the_compiled_variant_is_a_row_of_its_own() -> None:
    plain = {CLEW: measured(2.0), LOOP: measured(4.0), PYKEEN: measured(8.0)}
    fast = {CLEW: measured(1.0, 5), LOOP: measured(3.0, 6), PYKEEN: measured(9.0, 7)}
    rows, figures = tables({("conve", 512, False): [plain], ("conve", 512, True): [fast]})
    compiling = {row["program"]: row["s, compiling"] for row in rows if row["compiled"]}
    assert compiling == {CLEW: 5, LOOP: 6, PYKEEN: 7}
    assert figures["conve, batch 512, compiled, loop, times Clew's seconds"] == [3.0]
    assert figures["conve, batch 512, loop, times Clew's seconds"] == [2.0]
    assert figures[f"conve, own fastest variant, {PYKEEN}, times Clew's seconds"] == [8.0]


def test_a_program_that_cannot_be_compiled_has_no_compiled_row() -> None:
    both = {CLEW: measured(2.0, 1), LOOP: measured(4.0, 1)}
    found = {("complex", 512, False): [both | {PYKEEN: measured(8.0)}]}
    rows, figures = tables(found | {("complex", 512, True): [both]})
    assert [row["program"] for row in rows] == [CLEW, LOOP, PYKEEN, CLEW, LOOP]
    assert figures[f"complex, own fastest variant, {PYKEEN}, times Clew's seconds"] == [4.0]
