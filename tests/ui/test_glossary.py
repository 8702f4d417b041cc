"""Every metric that Clew records is called something that people understand."""

import re

import pytest

from clew import names
from clew.ui.components import glossary

RECORDED = re.compile(r"(train|time|throughput|memory|influence|value)/[a-z0-9_]+")
METRICS = [
    value for value in vars(names).values() if isinstance(value, str) and RECORDED.fullmatch(value)
]


@pytest.mark.parametrize("key", METRICS)
def test_every_metric_has_words(key: str) -> None:
    assert glossary.words(key).label != key
    assert glossary.words(key).help


def test_a_form_of_the_score_stands_behind_the_name() -> None:
    plain = glossary.words(names.INFLUENCE_LDS_SAME_SEED)
    of_form = glossary.words(f"{names.INFLUENCE_LDS_SAME_SEED}/cosine")
    assert of_form.label == f"{plain.label}, cosine"
    assert of_form.help == plain.help


def test_what_nobody_described_keeps_its_name() -> None:
    assert glossary.words("own/metric").label == "own/metric"
