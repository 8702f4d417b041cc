"""How many bytes a process receives from others, by formula.

In a microbatch of training, with W processes, n queries of each, d numbers of b bytes in a row,
and p positives of each:

    queries, and their gradients      (W - 1) n d b      each
    positives                         (W - 1) p 16
    normalisers (softmax)             2 * 2 (W - 1) / W * W n b
    ids, rows, and their gradients    8, d b and d b     for each looked up row of another process

It does not depend on the number of entities. Gradients of what is not sharded are
added once a step, 2 (W - 1) / W times their bytes, as in any data parallelism.
"""

INTEGER_BYTES = 8


def loss_bytes(
    *, processes: int, queries: int, positives: int, dim: int, number_bytes: int, softmax: bool
) -> dict[str, int]:
    """Return what the loss over a sharded table brings to each process, by purpose."""
    others = processes - 1
    rows = others * queries * dim * number_bytes
    found = {
        "queries": rows,
        "gradients of queries": rows,
        "positives": others * positives * 2 * INTEGER_BYTES,
    }
    if softmax:
        once = round(2 * others / processes * processes * queries * number_bytes)
        found["normalisers"] = 2 * once
    return found


def lookup_bytes(*, wanted: float, given: float, dim: int, number_bytes: int) -> dict[str, float]:
    """Return what looking up rows brings.

    Args:
        wanted: Rows of other processes that this one looks up.
        given: Own rows that other processes look up.
        dim: Length of a row.
        number_bytes: Bytes of a number.
    """
    return {
        "ids": given * INTEGER_BYTES,
        "rows": wanted * dim * number_bytes,
        "gradients of rows": given * dim * number_bytes,
    }
