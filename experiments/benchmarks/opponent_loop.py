"""An independent training loop: ConvE and ComplEx in plain PyTorch, as their papers give them.

Nothing of Clew is imported. A row is a query (head, relation) with all its training tails as labels
("k-vs-all" in ConvE's paper, "LCWA" in PyKEEN), or with one of them ("1-vs-all"). Heads are the
tails of inverse relations. The loss is binary or softmax cross entropy over all entities, by torch.
Ranks are filtered: the other known answers of a query do not count. Equal scores share their middle
rank.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ConvE(nn.Module):
    """Dettmers et al., 2018 (arXiv 1707.01476): a convolution over two stacked embeddings."""

    def __init__(self, entities: int, relations: int, dim: int = 200, rows: int = 10) -> None:
        super().__init__()
        self.shape = (1, rows, dim // rows)
        self.entity, self.relation = nn.Embedding(entities, dim), nn.Embedding(relations, dim)
        nn.init.xavier_normal_(self.entity.weight)
        nn.init.xavier_normal_(self.relation.weight)
        self.image = nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(0.2))
        self.maps = nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Dropout2d(0.2), nn.Flatten()
        )
        features = 32 * (2 * rows - 2) * (dim // rows - 2)
        self.dense = nn.Sequential(
            nn.Linear(features, dim), nn.Dropout(0.3), nn.BatchNorm1d(dim), nn.ReLU()
        )
        self.output = nn.Linear(dim, entities)
        self.output.weight = self.entity.weight
        nn.init.zeros_(self.output.bias)

    def forward(self, head: Tensor, relation: Tensor) -> Tensor:
        """Return the scores of all entities, `(batch, entity)`."""
        both = (
            self.entity(head).view(-1, *self.shape),
            self.relation(relation).view(-1, *self.shape),
        )
        scores: Tensor = self.output(self.dense(self.maps(self.image(torch.cat(both, dim=2)))))
        return scores


class ComplEx(nn.Module):
    """Trouillon et al., 2016 (arXiv 1606.06357): Re(<head, relation, conjugate of tail>)."""

    def __init__(
        self, entities: int, relations: int, dim: int = 200, deviation: float = 0.1
    ) -> None:
        super().__init__()
        self.entity, self.relation = (
            nn.Embedding(entities, 2 * dim),
            nn.Embedding(relations, 2 * dim),
        )
        nn.init.normal_(self.entity.weight, std=deviation)
        nn.init.normal_(self.relation.weight, std=deviation)

    def forward(self, head: Tensor, relation: Tensor) -> Tensor:
        """Return the scores of all entities, `(batch, entity)`."""
        real, imaginary = self.entity(head).chunk(2, dim=1)
        r_real, r_imaginary = self.relation(relation).chunk(2, dim=1)
        query = (real * r_real - imaginary * r_imaginary, real * r_imaginary + imaginary * r_real)
        return torch.cat(query, dim=1) @ self.entity.weight.T


MODELS: dict[str, type[ConvE] | type[ComplEx]] = {"conve": ConvE, "complex": ComplEx}


class Labels:
    """The labels of each row, made for a batch at a time: all of FB15k-237 would take 9 GB."""

    def __init__(self, tails: list[list[int]], entities: int) -> None:
        self.entities, self.tails = entities, torch.tensor([t for row in tails for t in row])
        self.counts = torch.tensor([len(row) for row in tails])
        self.starts = self.counts.cumsum(0) - self.counts

    def __getitem__(self, rows: Tensor) -> Tensor:
        counts = self.counts[rows]
        row = torch.arange(len(rows)).repeat_interleave(counts)
        first = self.starts[rows] - (counts.cumsum(0) - counts)
        labels = torch.zeros(len(rows), self.entities)
        labels[row, self.tails[torch.arange(len(row)) + first[row]]] = 1.0
        return labels


class Graph:
    """Triples of a folder with train.txt, valid.txt and test.txt, and the answers of each query."""

    def __init__(self, folder: Path) -> None:
        lines = {
            split: [line.split("\t") for line in (folder / f"{split}.txt").read_text().splitlines()]
            for split in ("train", "valid", "test")
        }
        every = [line for split in lines.values() for line in split]
        entity = {n: i for i, n in enumerate(sorted({n for h, _, t in every for n in (h, t)}))}
        relation = {n: i for i, n in enumerate(sorted({r for _, r, _ in every}))}
        self.entities, self.relations = len(entity), 2 * len(relation)
        self.triples = {
            split: [(entity[h], relation[r], entity[t]) for h, r, t in some]
            for split, some in lines.items()
        }
        self.known = self._answers(*self.triples)

    def both_ways(self, split: str) -> list[tuple[int, int, int]]:
        """Return the triples of a split, and those of the inverse relations."""
        half = self.relations // 2
        return self.triples[split] + [(t, r + half, h) for h, r, t in self.triples[split]]

    def _answers(self, *splits: str) -> dict[tuple[int, int], list[int]]:
        found: dict[tuple[int, int], list[int]] = {}
        for head, relation, tail in (row for split in splits for row in self.both_ways(split)):
            found.setdefault((head, relation), []).append(tail)
        return found

    def rows(self, kind: str) -> tuple[Tensor, Tensor]:
        """Return training queries `(row, 2)` and their labels `(row, entity)`."""
        if kind == "k_vs_all":
            pairs = list(self._answers("train").items())
        else:
            pairs = [((h, r), [t]) for h, r, t in self.both_ways("train")]
        queries, labels = _rows(pairs, self.entities)
        return queries, labels[torch.arange(len(pairs))]

    def large_rows(self) -> tuple[Tensor, Labels]:
        """Return the rows of "k-vs-all" of a graph whose labels do not fit in memory."""
        return _rows(list(self._answers("train").items()), self.entities)


def _rows(pairs: list[tuple[tuple[int, int], list[int]]], entities: int) -> tuple[Tensor, Labels]:
    tails = [tails for _, tails in pairs]
    return torch.tensor([query for query, _ in pairs]), Labels(tails, entities)


def loss_of(scores: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Return binary cross entropy summed over entities, averaged over rows.

    Smoothed labels are (1 - e) y + e / (number of entities), as in ConvE's published code.
    """
    smooth = labels * (1.0 - smoothing) + smoothing / labels.shape[1]
    return F.binary_cross_entropy_with_logits(scores, smooth, reduction="sum") / len(scores)


def softmax_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Return softmax cross entropy over all entities: a query's answers share the probability."""
    return F.cross_entropy(scores, labels / labels.sum(1, keepdim=True))


def train(
    model: nn.Module,
    rows: tuple[Tensor, Tensor | Labels],
    *,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[Tensor, Tensor], Tensor],
    batch: int,
    compiled: bool = False,
) -> Iterator[float]:
    """Train without end, and yield the seconds of each epoch; whoever asks decides when to stop.

    Only the batches are timed, not what happens between two epochs.
    """
    queries, labels = rows

    def loss_of_batch(query: Tensor, label: Tensor) -> Tensor:
        return loss(model(query[:, 0], query[:, 1]), label)

    step_loss = torch.compile(loss_of_batch) if compiled else loss_of_batch
    while True:
        start = time.perf_counter()
        model.train()
        for chosen in torch.randperm(len(queries)).split(batch):
            if len(chosen) > 1:  # batch normalisation needs two rows
                total = step_loss(queries[chosen], labels[chosen])
                optimizer.zero_grad(set_to_none=True)
                total.backward()
                optimizer.step()
        yield time.perf_counter() - start


@torch.no_grad()
def ranks(model: nn.Module, graph: Graph, split: str, batch: int = 512) -> Tensor:
    """Return the filtered rank of each triple's tail and head among all entities."""
    model.eval()
    found = []
    for part in torch.tensor(graph.both_ways(split)).split(batch):
        head, relation, tail = part.T
        scores = model(head, relation)
        own = scores.gather(1, tail[:, None])
        queries = zip(head.tolist(), relation.tolist(), strict=True)
        pairs = [(row, tail) for row, query in enumerate(queries) for tail in graph.known[query]]
        scores[tuple(torch.tensor(pairs).T)] = -torch.inf
        found.append(1 + (scores > own).sum(1) + (scores == own).sum(1) / 2)
    return torch.cat(found)
