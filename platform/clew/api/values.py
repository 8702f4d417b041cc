"""`clew.value_facts`: the effect of each training fact on the total loss of many predictions."""

import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path

import pandas as pd

from clew.api.explanations import Triple, progress_of, written
from clew.api.models import Model, Recorded, reference_of
from clew.config.services import Question
from clew.errors import ConfigError, quoted
from clew.files import working_folder, write_whole
from clew.link_prediction.triples import HEAD, RELATION, TAIL
from clew.workflows.explaining.value_facts import FactValues, ValueRequest
from clew.workflows.explaining.value_facts import value_facts as workflow


def value_facts(
    model: Model | Recorded | str | Path,
    triples: pd.DataFrame | Iterable[Triple] | None = None,
    *,
    weights: Sequence[float] | None = None,
    direction: Question = "both",
    confirm: int = 0,
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
    if isinstance(triples, Iterable) and not isinstance(triples, str | pd.DataFrame):
        triples = list(triples)
    if weights is not None:
        weights = _numbers(weights, triples)
    with working_folder("values") as folder, progress_of("steps") as progress:
        file = None
        if weights is not None:
            file = folder / "weights"
            write_whole(file, "".join(f"{weight!r}\n" for weight in weights))
        with nullcontext("") if triples is None else written(triples) as path:
            asked = (reference_of(model), str(path), file, direction)
            found = workflow(ValueRequest(*asked, confirm=confirm), progress=progress)
    return _table(found)


def _numbers(weights: Sequence[float], triples: object) -> list[float]:
    """Return the weights as finite numbers, one per triple.

    Raises:
        ConfigError: If a weight is not a finite number, or the number of weights is wrong.
    """
    try:
        numbers = [float(weight) for weight in weights]
    except (TypeError, ValueError):
        numbers = None
    if numbers is None or isinstance(weights, str):  # else each digit of a text would be a weight
        raise ConfigError(f"weights is {quoted(weights)}; expected a number for each triple")
    wrong = next((number for number in numbers if not math.isfinite(number)), None)
    if wrong is not None:
        raise ConfigError(f"weights: {wrong} given; expected a finite number")
    if isinstance(triples, list | pd.DataFrame) and len(numbers) != len(triples):
        raise ConfigError(
            f"weights: {len(numbers)} given for {len(triples)} triples; expected one for each"
        )
    return numbers


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
