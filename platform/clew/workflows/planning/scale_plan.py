"""Estimates the memory, traffic and time to train and explain a large graph, from unit costs.

Two costs were measured on a CPU, by the programs named in `docs/scale.md`: the loss reaches .91 of
the speed of its bare matrix products, and a trace takes as long as 8.7 operations at that speed per
training row, entity and dimension. The speeds of GPUs and links are from data sheets. The times
therefore show what limits a run; they are not exact run times.
"""

from dataclasses import dataclass

from clew.config.graph_models import GraphModelSettings
from clew.config.loss import EntityLoss
from clew.config.schema import RunConfig
from clew.config.training import SGD, Adagrad
from clew.runs.hardware import GIB
from clew.training.sharding.traffic import lookup_bytes, loss_bytes

PRODUCT_SHARE = 0.91
TRACE_OPERATIONS = 8.7
FLOAT_BYTES = 4
COPIES_OF_QUERIES = 4  # queries of all processes and their gradients, each also in a send buffer


# Speeds of an H100, from its data sheet.
OPERATIONS_PER_SECOND = 67e12
MEMORY_BYTES_PER_SECOND = 3.35e12
LINK_BYTES_PER_SECOND = 450e9
"""To other devices of the machine."""
NETWORK_BYTES_PER_SECOND = 50e9
"""To other machines."""
DEVICES_PER_MACHINE = 8


@dataclass(frozen=True)
class GraphSize:
    """Number of entities and training triples of a graph."""

    num_entities: int
    num_triples: int


@dataclass(frozen=True)
class ScalePlan:
    """Memory, traffic and time of each process, with the entity table sharded over them."""

    processes: int
    table_and_state_gib: float
    gradient_gib: float
    queries_gib: float
    received_mib_per_step: float
    product_seconds_per_step: float
    table_seconds_per_step: float
    """Time to read and write the rows that a step updates."""
    traffic_seconds_per_step: float
    steps_per_epoch: int
    trace_hours: float
    """Time to explain one prediction at one checkpoint, over all training rows."""

    @property
    def memory_gib(self) -> float:
        """Minimum memory of a process, without libraries and copies of the gradient."""
        return self.table_and_state_gib + self.gradient_gib + self.queries_gib

    @property
    def epoch_hours(self) -> float:
        """Time of one epoch, if no parts of a step overlap."""
        parts = (
            self.product_seconds_per_step,
            self.table_seconds_per_step,
            self.traffic_seconds_per_step,
        )
        return self.steps_per_epoch * sum(parts) / 3600

    @property
    def limit(self) -> str:
        """The part of a step that takes the most time."""
        parts = {
            "matrix products": self.product_seconds_per_step,
            "reading and writing the table": self.table_seconds_per_step,
            "traffic": self.traffic_seconds_per_step,
        }
        return max(parts, key=lambda name: parts[name])

    def sentence(self) -> str:
        """Return the plan as one line of text."""
        return (
            f"entity table over {self.processes} processes: in each, table and state "
            f"{self.table_and_state_gib:.3g} GiB, its gradient {self.gradient_gib:.3g} GiB; "
            f"{self.received_mib_per_step:.3g} MiB received per step; H100 by data sheet: "
            f"{self.epoch_hours:.3g} h per epoch, most of it {self.limit}; a trace "
            f"{self.trace_hours:.3g} h per checkpoint"
        )


def plan_scale(config: RunConfig, graph: GraphSize, processes: int) -> ScalePlan:
    """Return the plan of a link prediction training in several processes, each on an H100.

    Args:
        config: The configuration; its batch size is the microbatch of each process.
        graph: The size of the graph.
        processes: Number of processes, each with its own rows of the entity table.
    """
    model, loss = config.model, config.loss
    assert isinstance(model, GraphModelSettings)
    assert isinstance(loss, EntityLoss)
    softmax = loss.function == "softmax_cross_entropy"
    own, dim = config.training.batch_size, model.embedding_dim
    queries, rows = own * processes, graph.num_entities / processes
    compared = min(loss.negatives or graph.num_entities, graph.num_entities)
    touched = min(2 * queries + compared, graph.num_entities) / processes
    updated = touched if config.updates_rows else rows
    state = _state_numbers(config)
    products = (4 if softmax and not loss.negatives else 3) * 2 * queries * compared * dim
    rate = PRODUCT_SHARE * OPERATIONS_PER_SECOND * processes
    received = _received_bytes(processes, config)
    in_one_machine = processes <= DEVICES_PER_MACHINE
    link = LINK_BYTES_PER_SECOND if in_one_machine else NETWORK_BYTES_PER_SECOND
    row_bytes = dim * FLOAT_BYTES
    num_queries = graph.num_triples * 2
    trace = TRACE_OPERATIONS * num_queries * graph.num_entities * dim
    return ScalePlan(
        processes=processes,
        table_and_state_gib=rows * (row_bytes + state * FLOAT_BYTES) / GIB,
        gradient_gib=updated * row_bytes / GIB,
        queries_gib=COPIES_OF_QUERIES * queries * row_bytes / GIB if processes > 1 else 0.0,
        received_mib_per_step=received / 2**20,
        product_seconds_per_step=products / rate,
        # Row, gradient and state are read; row and state are written.
        table_seconds_per_step=updated
        * (3 * row_bytes + 2 * state * FLOAT_BYTES)
        / MEMORY_BYTES_PER_SECOND,
        traffic_seconds_per_step=received / link,
        steps_per_epoch=-(-num_queries // queries),
        trace_hours=trace / rate * PRODUCT_SHARE / 3600,
    )


def _state_numbers(config: RunConfig) -> int:
    """Return the number of optimizer state values per row of the table."""
    assert isinstance(config.model, GraphModelSettings)
    dim = config.model.embedding_dim
    match config.optimizer:
        case Adagrad(row_wise=True):
            return 1
        case Adagrad():
            return dim
        case SGD(momentum=momentum):
            return dim if momentum else 0
        case _:
            return 2 * dim


def _received_bytes(processes: int, config: RunConfig) -> float:
    """Return the bytes that a process receives per step if its lookups are spread evenly."""
    if processes == 1:
        return 0.0
    assert isinstance(config.model, GraphModelSettings)
    assert isinstance(config.loss, EntityLoss)
    own = config.training.batch_size
    sizes = {"dim": config.model.embedding_dim, "number_bytes": FLOAT_BYTES}
    softmax = config.loss.function == "softmax_cross_entropy"
    loss = loss_bytes(processes=processes, queries=own, positives=own, softmax=softmax, **sizes)
    # Regularizer and relation prediction need the rows of tails too.
    looked_up = own * (2 if config.loss.needs_factorization else 1)
    remote = looked_up * (processes - 1) / processes
    return sum(loss.values()) + sum(lookup_bytes(wanted=remote, given=remote, **sizes).values())
