"""The plan for a graph with a sharded table, against explicit counts."""

import pytest

from clew.config.load import from_mapping
from clew.config.schema import RunConfig
from clew.workflows.planning.scale_plan import GraphSize, ScalePlan, plan_scale

SIZE = GraphSize(num_entities=8_000, num_triples=30_000)
DIM, BATCH = 16, 100


def config(**settings: object) -> RunConfig:
    return from_mapping(
        {"data": {"name": "umls"}, "model": {"kind": "complex", "embedding_dim": DIM}},
        {"training.batch_size": BATCH, "loss.function": "softmax_cross_entropy"}
        | {key.replace("__", "."): value for key, value in settings.items()},
    )


def received_bytes(plan: ScalePlan) -> float:
    return plan.received_mib_per_step * 2**20


def test_one_process_receives_nothing_and_holds_all_rows() -> None:
    plan = plan_scale(config(), SIZE, 1)
    assert received_bytes(plan) == 0
    assert plan.gradient_gib == 8_000 * DIM * 4 / 2**30
    assert plan.steps_per_epoch == 600


def test_memory_of_rows_falls_with_the_number_of_processes() -> None:
    one, four = (plan_scale(config(), SIZE, n) for n in (1, 4))
    assert four.table_and_state_gib == one.table_and_state_gib / 4
    assert four.gradient_gib == one.gradient_gib / 4
    assert four.steps_per_epoch == 150


@pytest.mark.parametrize(
    "term", [{"loss__regularizer": "n3"}, {"loss__relation_prediction_weight": 0.1}]
)
def test_terms_of_triples_look_tails_up_too(term: dict[str, object]) -> None:
    """A quarter of 100 rows is local; for the others ids, rows and gradients are received."""
    without, with_term = (plan_scale(config(**given), SIZE, 4) for given in ({}, term))
    more = received_bytes(with_term) - received_bytes(without)
    assert more == pytest.approx(75 * (8 + 2 * DIM * 4))
