"""Prints the table of docs/scale.md: planned memory, traffic and time on 1, 8 and 64 GPUs.

    python -m experiments.benchmarks.scale_table

The model is ComplEx with 400 dimensions, softmax cross entropy and row-wise Adagrad, with 1,024
queries per step in each process, over all entities or with a sample of 16,384. The figures are
computed from unit costs; nothing is measured.
"""

from clew.config.load import from_mapping
from clew.workflows.planning.scale_plan import GraphSize, plan_scale
from experiments.benchmarks.harness import print_table

GRAPHS = {
    "Wikidata5M": GraphSize(4_594_485, 20_614_279),
    "Freebase": GraphSize(86_054_151, 338_586_276),
}
SETTINGS = {
    "data.name": "planned",
    "model.kind": "complex",
    "model.embedding_dim": 400,
    "loss.function": "softmax_cross_entropy",
    "loss.label_smoothing": 0.0,
    "optimizer.kind": "adagrad",
    "optimizer.row_wise": True,
    "training.batch_size": 1024,
}
LOSSES = {"all": {}, "16,384": {"loss.negatives": 16_384}}


def main() -> None:
    """Print the table."""
    rows = []
    for graph, size in GRAPHS.items():
        for compared, loss in LOSSES.items():
            config = from_mapping({}, SETTINGS | loss)
            for processes in (1, 8, 64):
                plan = plan_scale(config, size, processes)
                rows.append(
                    {
                        "graph": graph,
                        "entities compared": compared,
                        "GPUs": processes,
                        "GiB": plan.memory_gib,
                        "table and state": plan.table_and_state_gib,
                        "MiB a step": plan.received_mib_per_step,
                        "hours an epoch": plan.epoch_hours,
                        "limit": plan.limit,
                        "trace, hours": plan.trace_hours,
                    }
                )
    print_table(rows)


if __name__ == "__main__":
    main()
