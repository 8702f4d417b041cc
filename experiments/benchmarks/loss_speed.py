"""Measures losses over all entities: fused, plain, and with several triples in a row.

    CLEW_DATA=... python -m experiments.benchmarks.loss_speed [rounds]

`losses` are the milliseconds of a loss with its gradients, with label smoothing 0.1 and a bias for
each entity, in float32 and as training with `use_mixed_precision` computes it. `products` are the
three matrix products that every loss over all entities needs, in the same precision. `auto` is the
implementation that training chooses. `epochs` are the seconds of an epoch of ComplEx for
different values of `loss.triples_per_row`. They are extrapolated from steps on 8,000 triples and
include everything between two batches, with N3, relation prediction and Adagrad as in the shipped
configurations. Batches have about 1,000 triples. All alternatives take turns.
"""

import itertools
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from clew.config.data import TripleData
from clew.config.load import load
from clew.layers.products import operand_type, product
from clew.link_prediction.losses.fused_one_vs_all import fused_one_vs_all_loss
from clew.link_prediction.losses.one_vs_all import LossFunction, OneVsAll, one_vs_all_loss
from clew.link_prediction.sources import load_graph
from clew.link_prediction.task import LinkPrediction
from clew.training.memory import keep_allocator_pages
from clew.training.optimizer import build_optimizer
from clew.training.precision import Precision
from experiments.benchmarks.harness import (
    ROOT,
    interleaved_seconds,
    median,
    print_table,
    write_results,
)

NAME = "loss_speed"
ROUNDS = 9
SIZES = (
    (400, 400, 2_034),
    (128, 200, 14_541),
    (512, 200, 14_541),
    (1_024, 200, 14_541),
    (400, 400, 14_541),
    (500, 400, 40_943),
)
"""Batch, dimensions, entities."""
FUNCTIONS: tuple[LossFunction, ...] = ("binary_cross_entropy", "softmax_cross_entropy")
DATA_SETS = {"codex-s": "codex_s_complex", "FB15k-237": "fb15k237_complex"}
PER_ROW = (1, 4, 16)
TRIPLES_A_BATCH, TRIPLES_A_TURN = 1_000, 8_000

Row = dict[str, object]


def losses(rounds: int) -> list[Row]:
    """Time every size, function and implementation."""
    rows: list[Row] = []
    cases = itertools.product((None, torch.bfloat16), SIZES, FUNCTIONS)
    for dtype, (batch, dim, entities), function in cases:
        precision = Precision(dtype, torch.device("cpu"))
        with precision.products, precision.autocast:
            turns = alternatives(batch, dim, entities, function)
            seconds = interleaved_seconds(turns, repeats=rounds, warm_ups=2)
        row: Row = {"precision": precision.name, "loss": function}
        row |= {"batch": batch, "dimensions": dim, "entities": entities}
        row |= {name: 1e3 * median(values) for name, values in seconds.items()}
        auto = OneVsAll(function, implementation="auto").chosen(batch, entities)
        rows.append(row | {"auto": auto})
    return rows


def alternatives(
    batch: int, dim: int, entities: int, function: LossFunction
) -> dict[str, Callable[[], object]]:
    """Return the functions to time, all on the same random queries and entities."""
    generator = torch.Generator().manual_seed(0)
    queries, table = (torch.randn(n, dim, generator=generator) for n in (batch, entities))
    leaves = [queries, 0.05 * table, torch.zeros(entities)]
    row, entity = torch.arange(batch), torch.randint(0, entities, (batch,), generator=generator)
    x, w = (leaf.to(operand_type(table)) for leaf in leaves[:2])

    def products() -> None:
        scores = product(x, w.T)
        product(scores, w)
        product(scores.T, x)

    def loss(compute: Callable[..., torch.Tensor]) -> None:
        inputs = [leaf.clone().requires_grad_() for leaf in leaves]
        compute(*inputs, row, entity, settings=OneVsAll(function, 0.1)).backward()

    return {
        "products": products,
        "plain": partial(loss, one_vs_all_loss),
        "fused": partial(loss, fused_one_vs_all_loss),
    }


def epochs(rounds: int) -> list[Row]:
    """Time training steps with one triple and with several in a row."""
    rows: list[Row] = []
    for data, preset in DATA_SETS.items():
        steps = {str(per_row): Steps(preset, per_row) for per_row in PER_ROW}
        seconds = interleaved_seconds({name: s.turn for name, s in steps.items()}, repeats=rounds)
        for name, each in steps.items():
            row: Row = {"data set": data, "triples in a row": int(name)}
            row |= {"rows": each.num_rows, "rows a batch": each.batch_size}
            share = each.num_triples / each.triples_a_turn
            rows.append(row | {"seconds an epoch": share * median(seconds[name])})
    return rows


class Steps:
    """Training steps of a shipped configuration, a few batches per turn."""

    def __init__(self, preset: str, per_row: int) -> None:
        path = ROOT / f"experiments/link_prediction/{preset}.yaml"
        config = load(path, {"loss.triples_per_row": per_row, "loss.negatives": None})
        assert isinstance(config.data, TripleData)
        self.task = LinkPrediction(load_graph(config.data), config)
        self.examples = self.task.train_examples()
        self.num_rows = len(self.examples)
        self.num_triples = 2 * len(np.unique(self.task.graph.train, axis=0))
        self.batch_size = max(1, round(TRIPLES_A_BATCH * self.num_rows / self.num_triples))
        self.model = self.task.build_model()
        self.optimizer = build_optimizer(config.optimizer, self.model)
        self.order = np.random.default_rng(0).permutation(self.num_rows)
        turns = range(TRIPLES_A_TURN // TRIPLES_A_BATCH)
        self.batches = [self.order[i * self.batch_size :][: self.batch_size] for i in turns]
        self.triples_a_turn = sum(len(self.examples.batch(b).row) for b in self.batches)

    def turn(self) -> None:
        """Run one training step for each batch."""
        for indices in self.batches:
            loss = self.task.loss(self.model, self.examples.batch(indices))
            (loss.total / loss.count).backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)


def main(rounds: int) -> None:
    """Measure losses and epochs, and print and write the results."""
    keep_allocator_pages()
    by_size = losses(rounds)
    print_table(by_size)
    by_rows = epochs(max(3, rounds // 3))
    print_table(by_rows)
    threads = torch.get_num_threads()
    write_results(NAME, {"threads": threads, "losses": by_size, "epochs": by_rows})


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else ROUNDS)
