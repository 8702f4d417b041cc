"""Formulas for the bytes that a process receives from others in explanations and answers.

W is the number of processes and b the number of bytes of a number, as in
`clew.training.sharding.traffic`. In an explanation all processes compute the same rows, each with
its own entities. With f = 2 (W - 1) / W, q distinct queries in a tile of n training rows, and u
distinct queries and t rows of the tests:

    W^T delta of queries              f q d b
    normalisers (softmax)             f 2 q b
    products of deltas                f q u b
    entries of deltas                 f 2 (q t + u n) b
    norms, both directions            f 7.5 n b
    ids and rows of q heads, n tails  8 and d b              for each of another process

for each checkpoint. The part of the entity table does not depend on the table's size. For n queries
that are answered together, with k answers each:

    the best of each process          (W - 1) k n (b + 8)
    numbers and marks of known ones   f n (8 + k)
    probabilities                     f n (2 + k) b
    ids and rows of n heads           8 and d b              for each of another process
"""

from clew.training.sharding.traffic import INTEGER_BYTES


def trace_bytes(
    *,
    processes: int,
    queries: int,
    rows: int,
    test_queries: int,
    test_rows: int,
    dim: int,
    number_bytes: int,
    softmax: bool,
    norms: bool,
) -> dict[str, float]:
    """Return the bytes received for a tile at one checkpoint, without those of looked-up rows.

    Args:
        processes: Number of processes.
        queries: Distinct queries of the tile.
        rows: Rows of its training triples.
        test_queries: Distinct queries of the tests.
        test_rows: Rows of the tests.
        dim: Length of a row of the table.
        number_bytes: Bytes of a number.
        softmax: Whether the loss has a normaliser.
        norms: Whether the norms of training triples are computed; each has two rows.
    """
    once = 2 * (processes - 1) / processes * number_bytes
    found = {
        "pulled": once * queries * dim,
        "products": once * queries * test_queries,
        "entries": once * 2 * (queries * test_rows + test_queries * rows),
    }
    if norms:  # each row with itself, and the two rows of a triple with each other
        found["products"] += once * 1.5 * rows
        found["entries"] += once * 6 * rows
    return found | ({"normalisers": once * 2 * queries} if softmax else {})


def answer_bytes(
    *, processes: int, queries: int, answers: int, number_bytes: int, probabilities: bool
) -> dict[str, float]:
    """Return the bytes received for the best answers, without those of looked-up rows.

    Args:
        processes: Number of processes.
        queries: Queries that are answered together.
        answers: Answers to each, no more than a process has entities.
        number_bytes: Bytes of a score.
        probabilities: Whether answers get probabilities.
    """
    others, once = processes - 1, 2 * (processes - 1) / processes
    best = others * answers * queries * (number_bytes + INTEGER_BYTES)
    found = {
        "answers": best + once * queries * INTEGER_BYTES,
        "entries": once * queries * answers,
    }
    if probabilities:
        found["entries"] += once * queries * answers * number_bytes
        found["normalisers"] = once * 2 * queries * number_bytes
    return found
