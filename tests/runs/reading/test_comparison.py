"""The arithmetic of comparisons, against values computed by hand."""

import dataclasses
import math

import pandas as pd
import pytest

from clew import names
from clew.runs.reading import comparison, metrics
from clew.runs.reading.runs import RunRecord

SEEDS = ("0", "1")


def run(
    run_id: str, variant: str = "fp32", *, seed: int = 0, status: str = "FINISHED", **params: object
) -> RunRecord:
    return RunRecord(
        run_id=run_id,
        name=run_id,
        experiment_id="1",
        status=status,
        started_ms=0,
        ended_ms=1,
        tags={"clew.variant": variant, "clew.dataset": "umls", "clew.task": "link_prediction"},
        params={
            "cfg.training.seed": str(seed),
            "cfg.optimizations.use_mixed_precision": str(variant != "fp32"),
            **{f"cfg.{key}": str(value) for key, value in params.items()},
        },
        metrics={},
    )


def test_mean_and_sample_deviation() -> None:
    found = comparison.statistic([1.0, 2.0, None, 4.0, math.nan])
    assert found is not None
    assert found.mean == pytest.approx(7 / 3)
    assert found.deviation == pytest.approx(
        math.sqrt(((4 / 3) ** 2 + (1 / 3) ** 2 + (5 / 3) ** 2) / 2)
    )
    assert found.count == 3
    assert comparison.statistic([3.0]) == comparison.Statistic(3.0, None, 1)
    assert comparison.statistic([None, math.inf]) == comparison.Statistic(math.inf, None, 1)
    assert comparison.statistic([None]) is None


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_shown_but_not_compared(odd: float) -> None:
    groups = comparison.group_runs([run("a"), run("b", "fp16")], by_seed=True)
    values = {"valid/mrr": {"a": 0.4, "b": odd}}
    cell = comparison.compare(groups, values, reference="fp32").cells["fp16", "valid/mrr"]
    assert comparison.statistic_text(cell.value) == str(odd)
    assert (cell.ratio, cell.delta, cell.better) == (None, None, None)


def test_seeds_are_one_group() -> None:
    runs = [run("a"), run("b", seed=1), run("c", "fp16"), run("d", width=100), run("e", seed=2)]
    groups = comparison.group_runs(runs, by_seed=True)
    assert [group.run_ids for group in groups] == [("a", "b", "e"), ("c",), ("d",)]
    labels = [group.label for group in groups]
    assert labels == ["fp32 · width –", "fp16", "fp32 · width 100"]
    alone = comparison.group_runs(runs, by_seed=False)
    assert len({group.label for group in alone}) == 5


def test_a_repeated_seed_is_no_second_seed() -> None:
    runs = [run("a"), run("again"), run("b", "fp16"), run("b2", "fp16", seed=1)]
    groups = comparison.group_runs(runs, by_seed=True)
    values = {"valid/mrr": {"a": 0.4, "again": 0.42, "b": 0.5, "b2": 0.52}}
    found = comparison.compare(groups, values, reference="fp32")
    assert found.cells["fp32", "valid/mrr"].value == comparison.Statistic(
        pytest.approx(0.41), None, 1
    )
    assert found.cells["fp16", "valid/mrr"].doubt == "one seed"


def test_runs_on_other_data_are_another_group() -> None:
    old, new = run("a"), run("b", seed=1)
    tags = {names.TAG_DATA_FINGERPRINT: "new"}
    new = dataclasses.replace(new, tags={**new.tags, **tags})
    groups = comparison.group_runs([old, new], by_seed=True)
    assert [group.run_ids for group in groups] == [("a",), ("b",)]
    assert len({group.label for group in groups}) == 2


def test_identical_runs_are_told_apart_by_their_id() -> None:
    labels = comparison.distinct_labels([run("aaaaaaaa"), run("bbbbbbbb")])
    assert labels == {"aaaaaaaa": "fp32 · seed 0 · aaaaaa", "bbbbbbbb": "fp32 · seed 0 · bbbbbb"}


def test_a_path_is_called_by_its_last_part() -> None:
    runs = [run("a", exclude=None), run("b", exclude="/data/left_out/wrong.tsv")]
    labels = comparison.distinct_labels(runs)
    assert labels == {"a": "fp32 · exclude None", "b": "fp32 · exclude wrong.tsv"}


def test_runs_of_two_models_are_called_by_their_models() -> None:
    first, second = run("a", batch_size=128), run("b", batch_size=256)
    both = {"cfg.loss.kind": "kvs_all", "cfg.model.kind": "conve", "cfg.model.activation": "relu"}
    other = {"cfg.loss.kind": "one_vs_all", "cfg.model.kind": "distmult", "cfg.loss.triples": "1"}
    first = dataclasses.replace(first, params={**first.params, **both})
    second = dataclasses.replace(second, params={**second.params, **other})
    labels = comparison.distinct_labels([first, second])
    assert labels["a"] == "fp32 · model conve · loss kvs_all"
    assert labels["b"] == "fp32 · model distmult · loss one_vs_all"


def test_a_setting_that_only_some_runs_have_is_named_last() -> None:
    first, second = run("a", zoom=1), run("b", zoom=2, aperture=3)
    labels = comparison.distinct_labels([first, second])
    assert labels["b"] == "fp32 · zoom 2 · aperture 3"


def test_changes_against_the_reference() -> None:
    runs = [run("a"), run("a2", seed=1), run("b", "fp16"), run("b2", "fp16", seed=1)]
    groups = comparison.group_runs(runs, by_seed=True)
    values = {
        "time/epoch_seconds": {"a": 41.0, "a2": 39.0, "b": 20.0, "b2": 20.0},
        "throughput/examples_per_second": {"a": 100.0, "a2": 100.0, "b": 90.0, "b2": 90.0},
        "valid/mrr": {"a": 0.3},
    }
    found = comparison.compare(groups, values, reference="fp16")
    assert [group.label for group in found.groups] == ["fp16", "fp32"]
    seconds = found.cells["fp32", "time/epoch_seconds"]
    assert (seconds.ratio, seconds.delta, seconds.better) == (
        pytest.approx(2, rel=1e-3),
        20.0,
        False,
    )
    speed = found.cells["fp32", "throughput/examples_per_second"]
    assert speed.ratio == pytest.approx(100 / 90)
    assert speed.better is True
    quality = found.cells["fp32", "valid/mrr"]
    assert (quality.ratio, quality.delta, quality.better) == (None, None, None)
    assert found.cells["fp16", "valid/mrr"].value is None


def test_a_change_within_the_scatter_is_neither_good_nor_bad() -> None:
    groups = [
        comparison.Group("fp32", ("a", "b"), SEEDS),
        comparison.Group("fp16", ("c", "d"), SEEDS),
    ]
    values = {"valid/mrr": {"a": 0.30, "b": 0.32, "c": 0.305, "d": 0.306}}
    cell = comparison.compare(groups, values, reference="fp32").cells["fp16", "valid/mrr"]
    assert cell.delta == pytest.approx(-0.0045)
    assert (cell.better, cell.doubt) == (None, "within the noise")


@pytest.mark.parametrize("alone", ["fp32", "fp16"])
def test_a_difference_from_one_run_is_not_judged(alone: str) -> None:
    members = {"fp32": ("a", "b"), "fp16": ("c", "d")}
    groups = [
        comparison.Group(label, *(v[:1] if label == alone else v for v in (ids, SEEDS)))
        for label, ids in members.items()
    ]
    values = {"valid/mrr": {"a": 0.30, "b": 0.32, "c": 0.505, "d": 0.506}}
    cell = comparison.compare(groups, values, reference="fp32").cells["fp16", "valid/mrr"]
    assert cell.ratio == pytest.approx(1.65, abs=0.05)
    assert (cell.better, cell.doubt) == (None, "one seed")


def test_only_common_seeds_are_compared() -> None:
    """What seeds that only one side has add is no difference between the sides."""
    runs = [run("a"), run("b", seed=1), run("c", "fp16", seed=1), run("d", "fp16", seed=2)]
    values = {"valid/mrr": {"a": 0.1, "b": 0.4, "c": 0.5, "d": 0.9}}
    groups = comparison.group_runs(runs, by_seed=True)
    cell = comparison.compare(groups, values, reference="fp32").cells["fp16", "valid/mrr"]
    assert (cell.ratio, cell.delta) == (pytest.approx(1.25), pytest.approx(0.1))
    assert cell.doubt == "one seed"
    apart = comparison.group_runs([runs[0], runs[3]], by_seed=True)
    cell = comparison.compare(apart, values, reference="fp32").cells["fp16", "valid/mrr"]
    assert (cell.ratio, cell.delta, cell.doubt) == (None, None, "no common seed")


def test_unequal_budgets_are_named() -> None:
    first, second = run("a", **{"training.num_epochs": 5}), run("b", **{"training.num_epochs": 5})
    assert comparison.unequal_budgets([first, second]) == []
    other = {names.TAG_HARDWARE: "H100", names.TAG_COMMIT: "abc", names.TAG_DATA_FINGERPRINT: "f"}
    second = dataclasses.replace(second, tags=second.tags | other)
    assert comparison.unequal_budgets([first, second]) == [], "what is not known is not said"
    third = dataclasses.replace(
        run("c", **{"training.num_epochs": 9}), tags=second.tags | dict.fromkeys(other, "other")
    )
    assert len(comparison.unequal_budgets([second, third])) == 4


def test_errors_are_better_when_smaller_and_a_bias_is_neither() -> None:
    groups = [
        comparison.Group("fp32", ("a", "a2"), SEEDS),
        comparison.Group("fp16", ("b", "b2"), SEEDS),
    ]
    keys = ("test/mean_rank_head", "test/ridge_mae", "test/abs_error_q90", "test/bias")
    values = {key: {"a": 2.0, "a2": 2.0, "b": 1.0, "b2": 1.0} for key in keys}
    cells = comparison.compare(groups, values, reference="fp32").cells
    assert [cells["fp16", key].better for key in keys] == [True, True, True, None]


def test_a_reference_of_zero_has_no_ratio() -> None:
    groups = comparison.group_runs([run("a"), run("b", "fp16")], by_seed=True)
    found = comparison.compare(groups, {"valid/mrr": {"a": 0.0, "b": 0.2}}, reference="fp32")
    cell = found.cells["fp16", "valid/mrr"]
    assert cell.ratio is None
    assert cell.delta == 0.2


def test_pareto_front() -> None:
    points = {"a": (1.0, 0.2), "b": (2.0, 0.4), "c": (3.0, 0.3), "d": (2.0, 0.4), "e": (4.0, 0.5)}
    front = comparison.pareto_front(points)
    assert front[0] == "a"
    assert front[-1] == "e"
    assert len(front) == 3, "equal points count once"
    for label, (cost, quality) in points.items():
        beaten = any(
            (c <= cost and q > quality) or (c < cost and q >= quality) for c, q in points.values()
        )
        assert not (beaten and label in front)


def test_only_what_differs() -> None:
    runs = [run("a", depth=1), run("b", seed=5, depth=2, width=3)]
    found = comparison.differing_parameters(runs)
    assert found == {"cfg.depth": {"a": "1", "b": "2"}, "cfg.width": {"a": "", "b": "3"}}


def test_the_preset_takes_the_newest_setting_with_two_variants() -> None:
    runs = [
        run("lonely", width=7),
        run("new16", "fp16", width=5),
        run("old32", width=1),
        run("new32", width=5, seed=1),
        run("failed", width=5, status="FAILED"),
        run("old16", "fp16", width=1),
    ]
    found = comparison.find_preset(runs, limit=24)
    assert found is not None
    assert [run.run_id for run in found.runs] == ["new32", "new16"]
    assert found.seeds == ()
    assert found.apart == ("width 5",)
    assert comparison.find_preset(runs[:1], limit=24) is None


def test_the_preset_takes_the_same_seeds_of_each_variant() -> None:
    many = [run(f"a{seed}", seed=seed) for seed in range(30)]
    few = [run(f"b{seed}", "bf16", seed=seed) for seed in (3, 7, 50)]
    found = comparison.find_preset([*many, *few, run("older", "bf16", seed=3)], limit=24)
    assert found is not None
    assert found.seeds == ("3", "7")
    assert [run.run_id for run in found.runs] == ["a3", "a7", "b3", "b7"]
    cut = comparison.find_preset([*many, *few], limit=2)
    assert cut is not None
    assert [run.run_id for run in cut.runs] == ["a3", "b3"]


def test_a_preset_without_a_common_seed_has_as_many_of_each() -> None:
    runs = [run(f"a{seed}", seed=seed) for seed in range(5)] + [run("b", "bf16", seed=9)]
    found = comparison.find_preset(runs, limit=24)
    assert found is not None
    assert [run.run_id for run in found.runs] == ["a0", "b"]
    assert found.seeds == ()


def test_picking_values() -> None:
    frame = pd.DataFrame(
        {
            "run_id": ["a"] * 4 + ["b"],
            "step": [1, 2, 3, 4, 9],
            "seconds": 0.0,
            "value": [0.1, 0.5, 0.4, math.nan, 0.2],
        }
    )
    assert metrics.pick_values(frame, "valid/mrr", "best") == {"a": 0.5, "b": 0.2}
    assert metrics.pick_values(frame, "valid/rmse", "best") == {"a": 0.1, "b": 0.2}
    assert metrics.pick_values(frame, "valid/abs_error_q95", "best") == {"a": 0.1, "b": 0.2}
    assert metrics.pick_values(frame, "valid/bias", "best") == pytest.approx(
        {"a": math.nan, "b": 0.2}, nan_ok=True
    )
    assert metrics.pick_values(frame, "test/mrr", "best") == pytest.approx(
        {"a": math.nan, "b": 0.2}, nan_ok=True
    )
    assert metrics.pick_values(frame, "valid/mrr", "last") == pytest.approx(
        {"a": math.nan, "b": 0.2}, nan_ok=True
    )


def test_smoothing_keeps_runs_apart() -> None:
    frame = pd.DataFrame(
        {"run_id": ["a", "b", "a", "b"], "step": [1, 1, 2, 2], "value": [0.0, 10.0, 1.0, 10.0]}
    )
    smoothed = metrics.smooth(frame, 0.5)
    assert list(smoothed["value"]) == pytest.approx([0.0, 10.0, 2 / 3, 10.0])
    assert metrics.smooth(frame, 0.0) is frame


def test_thinning_keeps_the_extremes() -> None:
    frame = pd.DataFrame({"step": range(5000), "value": 0.5})
    frame.loc[1234, "value"] = 9.0
    frame.loc[4321, "value"] = -9.0
    thinned = metrics.thin(frame, 100)
    assert len(thinned) <= 102
    assert {thinned["value"].max(), thinned["value"].min()} == {9.0, -9.0}
    assert thinned["step"].iloc[[0, -1]].tolist() == [0, 4999]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.3371, "0.3371"),
        (0.0012345, "0.001234"),
        (12.3456, "12.35"),
        (123456.7, "123457"),
        (1e7, "1.000e+07"),
        (-0.5, "-0.5000"),
        (1e-5, "1.000e-05"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert metrics.number_text(value) == text


LABELS = {"time/epoch_seconds": "Time per epoch [s]"}


@pytest.fixture
def small() -> comparison.Comparison:
    groups = [
        comparison.Group("fp32_a & b|c", ("a", "b"), SEEDS),
        comparison.Group("=cmd()", ("c",), SEEDS[:1]),
    ]
    values = {"time/epoch_seconds": {"a": 40.0, "b": 42.0, "c": 20.0}}
    return comparison.compare(groups, values, reference="fp32_a & b|c")


def test_csv_is_safe_for_spreadsheets(small: comparison.Comparison) -> None:
    header, first, second = comparison.to_csv(small, LABELS).splitlines()
    assert header.startswith("group,runs,run_ids,Time per epoch [s] mean,")
    assert first == "fp32_a & b|c,2,a b,41.0,1.4142135623730951,,"
    assert second.startswith("'=cmd(),1,c,20.0,,0.5,-20.0")


def test_markdown_escapes_cells(small: comparison.Comparison) -> None:
    text = comparison.to_markdown(small, LABELS)
    assert r"fp32\_a & b\|c" in text
    assert text.startswith(r"| variant | runs | Time per epoch \[s\] |")
    assert "20.00 (×0.500)" in text
    assert len({line.replace(r"\|", "").count("|") for line in text.splitlines()}) == 1


def test_latex_escapes_cells(small: comparison.Comparison) -> None:
    text = comparison.to_latex(small, LABELS)
    assert r"fp32\_a \& b|c" in text
    assert "41.00 ± 1.4" in text
    assert "(×0.500)" in text
    assert text.count(r"\\") == 3
