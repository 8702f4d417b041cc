"""Formulas for the number of bytes that a process receives from others.

In a training microbatch with W processes, n queries per process, p positives per process, and rows
of d numbers of b bytes:

    queries, and their gradients      (W - 1) n d b      each
    positives                         (W - 1) p 16
    normalisers (softmax)             2 * 2 (W - 1) / W * W n b
    ids, rows, and their gradients    8, d b and d b     for each looked up row of another process

The bytes do not depend on the number of entities. Gradients of parameters that are not sharded are
summed once per step, which takes 2 (W - 1) / W times their bytes, as in any data parallelism.
"""

INTEGER_BYTES = 8


def loss_bytes(
    *, processes: int, queries: int, positives: int, dim: int, number_bytes: int, softmax: bool
) -> dict[str, int]:
    """Return the bytes that each process receives for a loss over a sharded table, by purpose."""
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
    """Return the bytes that a process receives for looking up rows, by purpose.

    Args:
        wanted: Number of rows of other processes that this process looks up.
        given: Number of rows of this process that other processes look up.
        dim: Length of a row.
        number_bytes: Bytes per number.
    """
    return {
        "ids": given * INTEGER_BYTES,
        "rows": wanted * dim * number_bytes,
        "gradients of rows": given * dim * number_bytes,
    }
