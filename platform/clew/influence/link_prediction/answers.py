"""The score and the rank of an answer: of a tail, of a head, or of both."""

from collections.abc import Sequence

import numpy as np
import torch

from clew.influence.link_prediction.deltas import DeltaRows
from clew.link_prediction.filters import FilterIndex
from clew.link_prediction.models.base import GraphModel

RANKED_ROWS = 16
"""Number of rows whose scores of all entities are held at once."""


@torch.no_grad()
def scores_and_ranks(
    models: Sequence[GraphModel], rows: DeltaRows, known: FilterIndex
) -> tuple[np.ndarray, np.ndarray]:
    """Return the score of each test triple's answer and its filtered rank, `(test,)`.

    Known answers of the query are left out; ties count half. Both are means: over the rows of a
    test triple (its tail and its head, if both are explained), and over the models.

    Args:
        models: The last checkpoint of each run.
        rows: The rows of the test triples.
        known: All known answers.
    """
    shape = (len(models), rows.num_directions, rows.num_triples)
    found = np.empty((2, len(models), len(rows)))
    for number, model in enumerate(models):
        for start in range(0, len(rows), RANKED_ROWS):
            part = slice(start, start + RANKED_ROWS)
            found[:, number, part] = _ranked(model, rows, part, known)
    scores, ranks = found.reshape(2, *shape).mean((1, 2))
    return scores, ranks


def _ranked(
    model: GraphModel, rows: DeltaRows, part: slice, known: FilterIndex
) -> tuple[np.ndarray, np.ndarray]:
    head, relation, tail = rows.head[part], rows.relation[part], rows.tail[part].cpu()
    every = model.scores(model.queries(head, relation)).double().cpu()
    entities, row = model.table_rows, torch.arange(len(every))
    own = entities.at(every, row, tail)
    known_row, answer = known.lookup(head.cpu().numpy(), relation.cpu().numpy())
    every[entities.own(torch.from_numpy(known_row), torch.from_numpy(answer))] = -torch.inf
    every[entities.own(row, tail)] = -torch.inf
    compared = every > own[:, None], every == own[:, None]
    better, equal = entities.sum(torch.stack([found.sum(1) for found in compared]), "ranks")
    return own.numpy(), (1.0 + better + 0.5 * equal).numpy()
