"""`clew.value_facts`: the effect of each training fact on the total loss of many predictions."""

from collections.abc import Iterable, Sequence
from typing import Annotated

import numpy as np
import pandas as pd
from pydantic import Field, SkipValidation

from clew.api.arguments import Triple, checked, named_triples
from clew.api.explanations import progress_of
from clew.api.models import AnyModel, reference_of
from clew.config.services import Question, ValueRequest
from clew.errors import ConfigError, quoted
from clew.link_prediction.triples import HEAD, RELATION, TAIL
from clew.workflows.explaining.value_facts import FactValues
from clew.workflows.explaining.value_facts import value_facts as workflow


@checked
def value_facts(
    model: SkipValidation[AnyModel],
    triples: SkipValidation[pd.DataFrame | Iterable[Triple] | None] = None,
    *,
    weights: SkipValidation[Sequence[float] | None] = None,
    direction: Question = "both",
    confirm: Annotated[int, Field(ge=0)] = 0,
) -> pd.DataFrame:
    """Compute the value of every training fact for the losses of many triples, in one pass.

    The sum of the losses is differentiated through the whole training run. The result is recorded
    as a run of kind `value`.

    Args:
        model: A loaded model, a run, a run id, `newest`, `models:/name@alias` or a folder. It must
            be a graph model that one process trained; see `influence.score=unrolled`.
        triples: `(head, relation, tail)` by name, or a table with these columns; None: the
            validation triples.
        weights: The weight of each triple's loss; None: the mean of the losses.
        direction: Whose losses count: those of tails, of heads, or of both.
        confirm: Number of facts at each end of the list to train again without, one run each.

    Returns:
        A table with a row for each training fact, the most helpful first. The columns are
        `train_index`, the labels `head`, `relation` and `tail`, the names `head_id`, `relation_id`
        and `tail_id`, and `value`: how much the weight of the fact lowers the sum of the losses, in
        nats for each unit of weight, to first order. With `confirm`, `without_it` is the rise of
        the sum after training without the fact (NaN: not tried), and `confirmed` whether it has the
        value's sign and about its size. Values that are not confirmed can be artifacts.

    Raises:
        UsageError: If the model, the triples or their weights cannot be used, or the training
            cannot be repeated.
    """
    if weights is not None and triples is None:
        raise ConfigError("weights are given without triples; give the triples that they are for")
    tests = [] if triples is None else named_triples(triples)
    numbers = None if weights is None else _numbers(weights, len(tests))
    request = ValueRequest(
        model=reference_of(model),
        test=tuple(tests),
        weights=numbers,
        direction=direction,
        confirm=confirm,
    )
    with progress_of("steps") as progress:
        return _table(workflow(request, progress=progress))


def _numbers(weights: Sequence[float], count: int) -> tuple[float, ...]:
    try:
        numbers = np.array(weights, float)
    except (TypeError, ValueError):
        numbers = np.array(np.nan)
    if numbers.ndim != 1:
        raise ConfigError(f"weights is {quoted(weights)}; expected a number for each triple")
    if len(numbers) != count:
        raise ConfigError(
            f"weights: {len(numbers)} given for {count} triples; expected one for each"
        )
    if not np.isfinite(numbers).all():
        raise ConfigError(f"weights: {quoted(weights)} given; expected finite numbers")
    return tuple(numbers.tolist())


def _table(found: FactValues) -> pd.DataFrame:
    graph = found.graph
    columns: dict[str, object] = {"train_index": range(len(found.values))}
    for name, place in (("head", HEAD), ("relation", RELATION), ("tail", TAIL)):
        vocabulary = graph.relations if place == RELATION else graph.entities
        ids = graph.train[:, place].tolist()
        columns[name] = [vocabulary.label(id) for id in ids]
        columns[f"{name}_id"] = [vocabulary.name(id) for id in ids]
    columns["value"] = found.values
    if found.request.confirm:
        columns |= {"without_it": found.without, "confirmed": found.confirmed}
    table = pd.DataFrame(columns)
    return table.sort_values("value", ascending=False, kind="stable", ignore_index=True)
