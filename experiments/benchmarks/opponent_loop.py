"""An independent training loop: ConvE and ComplEx in plain PyTorch, as their papers give them.

Nothing of Clew is imported. A row is a query (head, relation) with all its training tails as labels
("k-vs-all" in ConvE's paper, "LCWA" in PyKEEN), or with one of them ("1-vs-all"). Heads are the
tails of inverse relations. The loss is binary cross entropy over all entities, by torch. Ranks are
filtered: the other known answers of a query do not count. Equal scores share their middle rank.
"""

import time
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

    def __init__(self, entities: int, relations: int, dim: int = 200) -> None:
        super().__init__()
        self.entity, self.relation = (
            nn.Embedding(entities, 2 * dim),
            nn.Embedding(relations, 2 * dim),
        )
        nn.init.normal_(self.entity.weight, std=0.1)
        nn.init.normal_(self.relation.weight, std=0.1)

    def forward(self, head: Tensor, relation: Tensor) -> Tensor:
        """Return the scores of all entities, `(batch, entity)`."""
        real, imaginary = self.entity(head).chunk(2, dim=1)
        r_real, r_imaginary = self.relation(relation).chunk(2, dim=1)
        query = (real * r_real - imaginary * r_imaginary, real * r_imaginary + imaginary * r_real)
        return torch.cat(query, dim=1) @ self.entity.weight.T


MODELS: dict[str, type[ConvE] | type[ComplEx]] = {"conve": ConvE, "complex": ComplEx}


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
        labels = torch.zeros(len(pairs), self.entities)
        for row, (_, tails) in enumerate(pairs):
            labels[row, tails] = 1.0
        return torch.tensor([query for query, _ in pairs]), labels


def loss_of(scores: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Return binary cross entropy summed over entities, averaged over rows.

    Smoothed labels are (1 - e) y + e / (number of entities), as in ConvE's published code.
    """
    smooth = labels * (1.0 - smoothing) + smoothing / labels.shape[1]
    return F.binary_cross_entropy_with_logits(scores, smooth, reduction="sum") / len(scores)


def train(
    model: nn.Module, rows: tuple[Tensor, Tensor], *, epochs: int, batch: int, rate: float,
    smoothing: float,
) -> list[float]:  # fmt: skip
    """Train with Adam, and return the seconds of each epoch."""
    queries, labels = rows
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
    seconds = []
    for _ in range(epochs):
        start = time.perf_counter()
        model.train()
        for chosen in torch.randperm(len(queries)).split(batch):
            if len(chosen) > 1:  # batch normalisation needs two rows
                loss = loss_of(model(*queries[chosen].T), labels[chosen], smoothing)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
        seconds.append(time.perf_counter() - start)
    return seconds


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
