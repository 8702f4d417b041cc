"""What `clew verify` says of ranks and probabilities, each called what it is."""

from typing import Any

import pytest

from clew.runs.verification import SCALE, Answer, Removal, Verification
from tests.runs.reading.test_checked_pictures import check_of


def check(before: float, after: float, **changes: Any) -> tuple[Verification, Removal]:
    """Return a check of one removal with these ranks; `direction` belongs to its test."""
    found = check_of({(7,): "strongest"})
    (test,), direction = found.tests, changes.pop("direction", "tail")
    (removal,) = test.removals
    answers = {
        name: Answer(rank=rank, log_probability=-2)
        for name, rank in (("before", before), ("after", after))
    }
    removal = removal.model_copy(update={"tuned": removal.tuned.model_copy(update=answers)})
    own = {"direction": direction, "removals": (removal,), "model": answers["before"]}
    tests = (test.model_copy(update=own),)
    return found.model_copy(update={"seeds": 1, "tests": tests, **changes}), removal


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (1140.0, 1143.0, "falls from rank 1,140 to 1,143 "),
        (3.25, 1.5, "rises from rank 3.2 to 1.5 "),
        (1141.01, 1141.02, "stays at rank 1,141.0 "),
        (2.0, 2.0, "stays at rank 2 "),
    ],
)
def test_ranks_are_numbers_that_can_be_compared(before: float, after: float, said: str) -> None:
    found, removal = check(before, after)
    assert said in found.sentence(removal)


@pytest.mark.parametrize(
    ("changes", "in_model", "without"),
    [
        ({}, False, False),
        ({"seeds": 2}, False, True),
        ({"runs": 3}, True, True),
        ({"direction": "both"}, True, True),
    ],
)
def test_a_mean_is_called_one(changes: dict[str, Any], in_model: bool, without: bool) -> None:
    found, removal = check(1.5, 3, **changes)
    heading = found.heading(found.tests[0])
    assert ("on average" in heading) == ("geometric mean" in heading) == in_model
    assert ("on average" in found.sentence(removal)) == without
    assert heading in str(found)
    assert "before fine-tuning" in heading
    assert "both ends have" not in heading


@pytest.mark.parametrize("direction", ["tail", "both"])
def test_what_a_probability_is_among_is_said_once(direction: str) -> None:
    found, _ = check(1, 2, direction=direction)
    assert str(found).count(SCALE) == "\n".join(found.said).count(SCALE) == 1
    assert "calibrated" in SCALE


def test_epochs_are_counted() -> None:
    found, _ = check(1, 2)
    assert found.recipe.epochs == 1
    assert "for 1 more epoch at" in found.method
    recipe = found.recipe.model_copy(update={"epochs": 20})
    assert "for 20 more epochs at" in found.model_copy(update={"recipe": recipe}).method
