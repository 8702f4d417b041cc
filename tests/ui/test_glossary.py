"""Every metric that Clew records has a name that users understand."""

import re

import pytest

from clew import names
from clew.ui.components import glossary
from clew.ui.views.run import group_of

RECORDED = re.compile(r"(train|time|throughput|memory|influence|value)/[a-z0-9_]+")
METRICS = [
    value for value in vars(names).values() if isinstance(value, str) and RECORDED.fullmatch(value)
]


QUALITY = [
    "test/mrr_head",
    "test/hits_at_10",
    "valid/loss_at_00032",
    "test/abs_error_q90",
    "test/ridge_mae",
    "test/bias",
    "valid/interval_coverage",
    "valid/interval_half_width",
    "test/given_hits_at_3",
    "test/classification_f1",
    "test/num_leaked",
    "test/mrr_not_leaked",
]


@pytest.mark.parametrize("key", METRICS + QUALITY)
def test_every_metric_has_words(key: str) -> None:
    assert glossary.words(key).label != key
    assert glossary.words(key).help


def test_a_form_of_the_score_stands_behind_the_name() -> None:
    plain = glossary.words(names.INFLUENCE_LDS_SAME_SEED)
    of_form = glossary.words(f"{names.INFLUENCE_LDS_SAME_SEED}/cosine")
    assert of_form.label == f"{plain.label}, cosine"
    assert of_form.help == plain.help


@pytest.mark.parametrize(
    ("key", "label"),
    [
        ("system/cpu_utilization_percentage", "CPU utilization [%]"),
        ("system/system_memory_usage_megabytes", "Main memory usage [MB]"),
        ("system/gpu_0_power_usage_watts", "GPU 0 power usage [W]"),
        ("system/own", "Own"),
    ],
)
def test_what_was_sampled_of_the_machine_has_a_name_and_a_unit(key: str, label: str) -> None:
    assert glossary.label(key) == label
    assert "every 10 s" in glossary.words(key).help


@pytest.mark.parametrize(
    ("key", "label", "group"),
    [
        ("bf16/test/hits_at_1", "bf16: Hits@1, test", "Quality"),
        ("fp16 ckpt/memory/process_peak_gib", "fp16 ckpt: Peak process memory [GiB]", "Memory"),
        ("champion/valid/mrr_head", "champion: MRR, validation, asked for heads", "Quality"),
        ("ratio/bf16/time/epoch_seconds", "bf16: ratio of Time per epoch", "Time"),
        ("bf16/own/metric", "bf16/own/metric", "Other"),
        ("influence/lds_siblings/cosine", None, "Explanations"),
    ],
)
def test_a_metric_of_a_variant_is_called_as_one_of_a_run(
    key: str, label: str | None, group: str
) -> None:
    assert label in {None, glossary.label(key)}
    assert ("reference" in glossary.words(key).help) == key.startswith("ratio/")
    assert group_of(key) == group


def test_what_nobody_described_keeps_its_name() -> None:
    assert glossary.words("own/metric").label == "own/metric"
