"""Every page in AppTest, with stores without runs, with one run, with many, and broken ones."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from clew import names
from clew.runs.reading import search
from clew.runs.reading.reports import report_files
from clew.ui.components import runs
from clew.ui.views import compare
from tests.recorded import NUM_HOSTILE_FACTS, TOP_K, Recorded
from tests.ui.conftest import TIMEOUT_SECONDS, Open, no_surprise, shown
from tests.ui.seed_many import MODELS, copy_run, large_store

PAGES = ("overview", "compare", "influence", "reviews", "models", "studies", "ask")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_without_a_store_says_what_to_do(page: Open, no_store: str, name: str) -> None:
    text = shown(page(name, no_store))
    assert "make demo" in text or "clew " in text
    assert not Path(no_store.removeprefix("sqlite:///")).exists(), "a page created the store"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_over_an_empty_store_says_what_to_do(page: Open, empty: str, name: str) -> None:
    text = shown(page(name, empty))
    assert "make demo" in text or "clew " in text


@pytest.mark.parametrize("name", PAGES)
def test_a_page_over_one_run(page: Open, single: Recorded, name: str) -> None:
    assert page(name, single.uri).title[0].value.lower() == name


@pytest.mark.parametrize("name", PAGES)
def test_a_page_over_many_runs(page: Open, many: Recorded, name: str) -> None:
    app = page(name, many.uri)
    assert not app.error


@pytest.mark.parametrize("name", PAGES)
def test_a_store_whose_file_goes_does_not_look_like_a_new_one(
    page: Open, empty: str, name: str
) -> None:
    assert not page(name, empty).error
    Path(empty.removeprefix("sqlite:///")).unlink()
    st.cache_data.clear()
    assert any("is gone" in error.value for error in page(name, empty).error)


def test_a_file_that_is_no_store_is_a_message(page: Open, tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    path.write_text("this is no database, only some text that is long enough" * 100)
    app = page("overview", f"sqlite:///{path}")
    assert any("cannot be shown" in error.value for error in app.error)


@pytest.mark.parametrize("name", PAGES)
def test_a_server_that_is_down_is_a_message(page: Open, name: str) -> None:
    app = page(name, "http://127.0.0.1:9")
    assert any("does not answer" in error.value.replace("\\", "") for error in app.error)


FULL_DISK = """
import errno
from clew.ui.components import basics

with basics.guarded("The upload", done="started"):
    raise OSError(errno.ENOSPC, "No space left on device", "/tmp/frames.h5")
"""


def test_a_full_disk_is_a_message_that_says_what_to_do() -> None:
    app = no_surprise(AppTest.from_string(FULL_DISK, default_timeout=TIMEOUT_SECONDS).run())
    (error,) = app.error
    assert "free some space" in error.value


def test_the_overview_counts_states(page: Open, many: Recorded) -> None:
    app = page("overview", many.uri)
    numbers = {metric.label: metric.value for metric in app.metric}
    states = Counter(run.info.status for run in many.client.search_runs(["1"]))
    assert numbers == {
        "Runs": str(states.total()),
        "▶ Running": "1",
        "⚠ Stuck": "1",
        "✓ Finished": str(states["FINISHED"]),
        "■ Stopped": str(states["KILLED"]),
        "✗ Failed": "1",
    }
    assert states["RUNNING"] == 2
    assert "Stuck: silent for 1 h" in shown(app)


@pytest.mark.parametrize(
    ("kind", "typed", "advice", "command"),
    [
        ("train", "clew train --config=c.yaml", "continues", "clew train --resume {run_id}"),
        ("evaluate", "clew evaluate --model=m", "start it again", "clew evaluate --model=m"),
        ("trial", "clew tune --config=c.yaml", "start it again", "clew tune --config=c.yaml"),
        ("trace", "", "probably died", None),
    ],
)
def test_a_stuck_run_is_continued_only_if_it_trains(
    page: Open, fresh_many: Recorded, kind: str, typed: str, advice: str, command: str | None
) -> None:
    stuck = fresh_many.runs["stuck"]
    if kind == "trial":
        fresh_many.client.set_tag(stuck, names.TAG_TRIAL, "3")
    fresh_many.client.set_tag(stuck, names.TAG_KIND, "train" if kind == "trial" else kind)
    fresh_many.client.set_tag(stuck, names.TAG_COMMAND, typed)
    app = page("overview", fresh_many.uri)
    (said,) = [warning.value for warning in app.warning if "Stuck" in warning.value]
    assert advice in said
    expected = [] if command is None else [command.format(run_id=stuck)]
    assert [code.value for code in app.code] == expected


def test_the_progress_of_a_run_moves_with_its_epochs(page: Open, many: Recorded) -> None:
    app = page("overview", many.uri)
    (bar,) = app.get("progress")
    assert (bar.proto.value, bar.proto.text) == (33, "33%")
    assert shown(app).count("epoch 1 of 3") == 2, "of the run that is alive, and of the stuck one"


def test_the_overview_filters_by_the_address(page: Open, many: Recorded) -> None:
    app = page("overview", many.uri, search="variant=bf16+ckpt", columns="cfg.training.seed")
    (table,) = app.dataframe
    assert set(table.value["Variant"]) == {"bf16+ckpt"}
    assert sorted(table.value["training.seed"]) == [0, 1]
    assert sorted(table.value["Differs in"]) == ["seed 0", "seed 1"]


def test_the_overview_says_what_waits(page: Open, fresh_many: Recorded) -> None:
    def waiting() -> list[int]:
        app = page("overview", fresh_many.uri)
        (said,) = [text.value for text in app.caption if "explained" in text.value]
        return [int(number) for number in re.findall(r"\d+", said)]

    opened, latest = waiting()
    assert 0 < opened <= latest
    for run in fresh_many.client.search_runs(["1"], "tags.`clew.kind` = 'trace'"):
        fresh_many.client.set_tag(run.info.run_id, names.TAG_REVIEWED, "true")
    st.cache_data.clear()
    assert waiting() == [0, latest]


def test_an_explanation_that_failed_waits_for_no_review(page: Open, fresh_many: Recorded) -> None:
    with fresh_many.database() as base:
        base.execute(
            "UPDATE runs SET status = 'FAILED' WHERE run_uuid IN "
            "(SELECT run_uuid FROM tags WHERE key = ? AND value = ?)",
            (names.TAG_KIND, names.KIND_TRACE),
        )
    assert "Nothing is explained yet" in shown(page("overview", fresh_many.uri))


def test_the_overview_groups_seeds(page: Open, many: Recorded) -> None:
    (table,) = page("overview", many.uri, search="use_mixed_precision=true", rows="true").dataframe
    seeds = dict(zip(table.value["Setting"], table.value["Seeds"], strict=True))
    assert seeds == {"bf16": 2, "bf16+ckpt": 2}
    assert table.value["MRR, validation"].str.contains(" ± ").all()
    by_one = page("overview", many.uri, search="kind:train", rows="true")
    assert sum(by_one.dataframe[0].value["Seeds"]) > 4


def test_a_search_that_is_wrong_says_so(page: Open, many: Recorded) -> None:
    app = page("overview", many.uri, search="dim=3")
    assert "embedding_dim" in shown(app)
    assert not app.dataframe


def test_a_search_that_finds_nothing_says_so(page: Open, many: Recorded) -> None:
    assert "Nothing matches" in shown(page("overview", many.uri, search="no such run"))


def test_the_overview_turns_pages(page: Open, recorded: Recorded, tmp_path: Path) -> None:
    app = page("overview", large_store(recorded, tmp_path / "large", 130).uri)
    assert "1 to 25 of 130 runs" in shown(app)
    app.button(key="overview-older").click().run()
    assert "26 to 50 of 130 runs" in shown(app)
    for _ in range(4):
        app.button(key="overview-older").click().run()
    assert "126 to 130 of 130 runs" in shown(app)
    assert app.button(key="overview-older").disabled
    app.text_input(key="search").set_value("variant=bf16").run()
    found = sum(MODELS[number % len(MODELS)].startswith("bf16 ") for number in range(130))
    assert f"1 to 25 of {found} runs" in shown(app)


def test_a_page_that_is_empty_by_now_goes_back_to_the_first(
    page: Open, recorded: Recorded, tmp_path: Path
) -> None:
    store = large_store(recorded, tmp_path / "large", 30)
    app = page("overview", store.uri)
    app.button(key="overview-older").click().run()
    assert "26 to 30 of 30 runs" in shown(app)
    with store.database() as base:
        gone = "SELECT run_uuid FROM runs ORDER BY start_time LIMIT 10"
        base.execute(f"UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid IN ({gone})")
    st.cache_data.clear()
    app.run()
    assert "1 to 20 of 20 runs" in shown(app)


def test_counting_again_asks_near_the_last_number(
    use: Callable[[str], None], many: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(many.uri)
    number = runs.number_of_runs(search.RunQuery())
    asked: list[int] = []
    reads = search.count_runs

    def counted(query: search.RunQuery, *, near: int) -> int:
        asked.append(near)
        return reads(query, near=near)

    monkeypatch.setattr(search, "count_runs", counted)
    st.cache_data.clear()
    assert runs.number_of_runs(search.RunQuery()) == number
    assert asked == [number]


def test_the_preset_compares_variants_over_seeds(page: Open, many: Recorded) -> None:
    """`mlflow run` started seed 0 of float32 and of mixed precision, but no other run."""
    app = page("compare", many.uri)
    app.button(key="preset").click().run()
    assert not app.exception
    text = shown(app)
    assert "reference · 2 runs" in text
    assert text.count(">2 runs<") == 3
    assert "Time per epoch" in text
    assert "Peak process memory" in text
    parameters = app.dataframe[-1].value
    assert set(parameters["parameter"]) == {
        "optimizations.use_gradient_checkpointing",
        "optimizations.use_mixed_precision",
    }


def test_runs_of_different_data_are_said_to_be(page: Open, many: Recorded) -> None:
    first, second, other = (many.runs[name] for name in ("fp32 0", "fp32 1", "hostile"))
    assert "different data" not in shown(page("compare", many.uri, runs=f"{first},{second}"))
    assert "These runs use different data (" in shown(
        page("compare", many.uri, runs=f"{first},{other}")
    )


def test_the_preset_shows_every_variant_of_many_runs(
    page: Open, recorded: Recorded, tmp_path: Path
) -> None:
    """With thirty float32 runs, the preset once showed only these."""
    store = recorded.copy(tmp_path / "store").keep_only(*MODELS)
    with store.database() as base:
        for number in range(30):
            copy_run(base, store.runs["fp32 0"], f"{number:032x}")
            base.execute(
                "UPDATE params SET value = ? WHERE run_uuid = ? AND key = 'cfg.training.seed'",
                (number + 2, f"{number:032x}"),
            )
    app = page("compare", store.uri)
    assert "seeds 0, 1 of each" in shown(app)
    app.button(key="preset").click().run()
    text = shown(app)
    assert "reference · 2 runs" in text
    assert text.count(">2 runs<") == 3
    assert "umls · conve · cpu: fp32, fp32+ckpt, bf16, bf16+ckpt" in text


def test_a_run_that_began_first_and_ended_last_renews_the_preset(
    page: Open, recorded: Recorded, tmp_path: Path
) -> None:
    """The last finished run is the key of the page's cache, which lasts minutes."""
    store = recorded.copy(tmp_path / "store").keep_only("fp32 0", "bf16 0")
    slow = store.runs["bf16 0"]
    with store.database() as base:
        began = "UPDATE runs SET start_time = 1, end_time = NULL, status = 'RUNNING'"
        base.execute(f"{began} WHERE run_uuid = ?", [slow])
        base.commit()
        assert page("compare", store.uri).button(key="preset").disabled
        ended = "UPDATE runs SET end_time = 9000000000000, status = 'FINISHED'"
        base.execute(f"{ended} WHERE run_uuid = ?", [slow])
    runs.runs_page.clear()  # kept for seconds
    assert not page("compare", store.uri).button(key="preset").disabled


def test_a_table_and_its_files_say_what_their_numbers_are(
    page: Open, many: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, str] = {}
    monkeypatch.setattr(
        "clew.ui.components.tables.download",
        lambda label, text, name: given.update({name: text}),
    )
    runs = ",".join((many.runs["fp32 0"], many.runs["bf16 0"]))
    app = page("compare", many.uri, runs=runs)
    assert "best value" in shown(app)
    assert "Time per epoch [s] mean" in given["comparison.csv"]
    assert "MRR, validation, best value mean" in given["comparison.csv"]
    assert r"Time per epoch \[s\]" in given["comparison.md"]
    assert "Peak process memory [GiB]" in given["comparison.tex"]
    assert "last value" in shown(page("compare", many.uri, runs=runs, pick="last"))
    more = page("compare", many.uri, runs=runs)
    more.multiselect(key="more").set_value(["test/hits_at_10", "valid/mrr"]).run()
    assert shown(more).count("Hits@10, test") == 1
    assert shown(more).count("best value") == 1, "valid/mrr is the quality, and has one column"
    assert "Hits@10, test, last value mean" in given["comparison.csv"]
    assert "Total time" in shown(more)
    assert "Quality, last" in page("overview", many.uri).dataframe[0].value


def test_an_explanation_is_listed_with_the_variant_of_its_model(
    page: Open, fresh_many: Recorded
) -> None:
    store = fresh_many
    with store.database() as base:
        base.execute(
            "UPDATE tags SET value = ? WHERE run_uuid = ? AND key = ?",
            (store.runs["bf16 1"], store.runs["trace"], names.TAG_SOURCE_RUN),
        )
    table = page("overview", store.uri, search="kind:trace").dataframe[0].value
    variants = dict(zip(table.index, table["Variant"], strict=True))
    assert sorted(set(variants.values())) == [
        "bf16, traced in fp32",
        "fp32",
        "fp32, traced in bf16",
    ]
    options = page("influence", store.uri).selectbox(key="run-box").options
    assert sum("bf16, traced in fp32" in option for option in options) == 1
    assert "bf16, traced in fp32" in shown(page("run", store.uri, id=store.runs["trace"]))


def test_two_runs_of_mlflow_run_are_enough_for_the_preset(
    page: Open, recorded: Recorded, tmp_path: Path
) -> None:
    store = recorded.copy(tmp_path / "store").keep_only("fp32 0", "bf16 0")
    app = page("compare", store.uri)
    assert not app.button(key="preset").disabled
    app.button(key="preset").click().run()
    assert list(app.dataframe[-1].value["parameter"]) == ["optimizations.use_mixed_precision"]


def test_what_mlflow_run_was_told_is_no_difference(page: Open, many: Recorded) -> None:
    same = (many.runs["fp32 0"], many.runs["fp32 1"])
    hashes = {many.client.get_run(run_id).data.tags["clew.config_hash"] for run_id in same}
    assert len(hashes) == 2, "the seed alone tells them apart"
    app = page("compare", many.uri, runs=",".join(same))
    assert "reference · 2 runs" in shown(app)
    assert "All of the chosen runs have the same parameters" in shown(app)


def test_runs_of_the_address_are_compared(page: Open, many: Recorded) -> None:
    chosen = [many.runs["fp32+ckpt 0"], many.runs["bf16+ckpt 0"]]
    app = page("compare", many.uri, runs=",".join(chosen), ref=chosen[1], change="both")
    (table,) = (text for html in app.get("html") if "<table" in (text := str(html.proto.body)))
    assert table.index("bf16+ckpt") < table.index("fp32+ckpt"), "the reference stands first"
    assert "×" in table


def test_a_deleted_run_of_the_address_is_left_out(page: Open, many: Recorded) -> None:
    app = page("compare", many.uri, runs=f"{many.runs['fp32 1']},{'0' * 32}")
    assert "1 of 2 runs" in shown(app)
    assert "reference" in shown(app)


def test_a_run_that_the_address_names_twice_is_not_missing(page: Open, many: Recorded) -> None:
    run_id = many.runs["fp32 1"]
    app = page("compare", many.uri, runs=f"{run_id},{run_id}")
    assert not app.warning
    assert "reference · 1 run" in shown(app)


def test_runs_beyond_the_most_that_are_compared_are_said_to_be_left_out(
    page: Open, many: Recorded
) -> None:
    named = [many.runs["fp32 1"], *(f"{number:032x}" for number in range(compare.MAX_RUNS))]
    said = shown(page("compare", many.uri, runs=",".join(named)))
    assert f"first {compare.MAX_RUNS} of {len(named)}" in said
    assert f"{compare.MAX_RUNS - 1} of {compare.MAX_RUNS} runs" in said


def test_an_explanation_in_words(page: Open, many: Recorded) -> None:
    app = page("influence", many.uri, run=many.runs["trace"], test="1")
    text = shown(app)
    assert "clinical attribute" in text
    assert "conceptual entity" in text
    assert "the model puts" in text
    assert "Of 5,216 training facts, the report contains only" in text


def test_an_explanation_whose_form_has_no_self_influence(page: Open, fresh_many: Recorded) -> None:
    """Unrolled and tuned scores define none."""
    path = fresh_many.files("trace", "influence/influence.json")
    content = json.loads(path.read_text())
    content["settings"]["score"] = "tuned"
    for test in content["tests"]:
        del test["self_influence"]
    path.write_text(json.dumps(content))
    text = shown(page("influence", fresh_many.uri, run=fresh_many.runs["trace"]))
    assert "self-influence (tuned) –" in text


def test_an_explanation_with_every_fact(page: Open, many: Recorded) -> None:
    text = shown(page("influence", many.uri, run=many.runs["trace hostile"]))
    assert f"Of {NUM_HOSTILE_FACTS} training facts, " in text
    assert "made the prediction more likely" in text


def numbers_of(settings: dict[str, object]) -> None:
    from clew.ui.components import facts

    facts.notes(settings)


BEST = {"best_checkpoint": {"unit": "epoch", "last": [20], "best": [5]}}


FILTERED = {"test_loss": "filtered"}


@pytest.mark.parametrize(
    "kept", [{}, {"ema_decay": 0.99}, BEST, {"ema_decay": 0.99, **BEST}, FILTERED]
)
def test_numbers_that_are_not_of_what_predicts_say_so(kept: dict[str, object]) -> None:
    app = AppTest.from_function(numbers_of, args=(kept,), default_timeout=TIMEOUT_SECONDS).run()
    assert not app.exception
    assert (names.NOT_OF_THE_AVERAGE in shown(app)) == ("ema_decay" in kept)
    of_the_best = names.NOT_OF_THE_BEST.format(last="epoch 20", best="epoch 5")
    assert (of_the_best in shown(app)) == ("best_checkpoint" in kept)
    assert ("filtered loss" in shown(app)) == (kept == FILTERED)


def test_a_report_of_the_strongest_facts_says_so() -> None:
    from clew.runs.reading.facts import summary

    facts = pd.DataFrame({"influence": [2.0, 1.0, -1.0]})
    assert summary(facts, 5216).startswith("Of 5,216 training facts, the report contains only")
    assert summary(facts, 3, 3) == (
        "Of 3 training facts, 2 made the prediction more likely (▲) and 1 made it less likely (▼)."
    )
    assert summary(facts, 3, 5216) == (
        "Of 3 training facts (selected by the filter from 5,216), 2 made the prediction more "
        "likely (▲) and 1 made it less likely (▼)."
    )


def test_siblings_share_the_relation_and_either_end(
    page: Open, many: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clew.ui.components.explanations import facts_of, report_head, report_of_run

    monkeypatch.setenv("MLFLOW_TRACKING_URI", many.uri)
    files = report_of_run(many.runs["trace hostile"])
    test, facts = report_head(files).tests.loc[0], facts_of(files, 0)
    same = facts["relation_id"] == test["relation_id"]
    at_tail = same & (facts["tail_id"] == test["tail_id"])
    at_head = same & (facts["head_id"] == test["head_id"])
    assert at_tail.sum()
    assert at_head.sum()
    assert list(facts["sibling"]) == list(at_tail | at_head)


def test_groups_say_that_they_sum_what_the_report_holds(page: Open, many: Recorded) -> None:
    text = shown(page("influence", many.uri, run=many.runs["trace"], view="Groups"))
    assert f"the other {5216 - 2 * TOP_K:,} scored facts are not in it" in text
    whole = shown(page("influence", many.uri, run=many.runs["trace hostile"], view="Groups"))
    assert "are not in it" not in whole


def test_an_entity_of_the_same_name_is_another_group() -> None:
    from clew.ui.components.explanations import grouped

    columns = ["head_id", "head", "relation", "tail_id", "tail", "influence"]
    rows = [["c1", "cold", "causes", "x", "x", 1.0], ["c2", "cold", "causes", "x", "x", 2.0]]
    facts = pd.DataFrame(rows, columns=columns)
    test = pd.Series({"head_id": "c1", "head": "cold", "tail_id": "t", "tail": "t"})
    groups = grouped(facts, "shared entity", test)
    assert dict(zip(groups["group"], groups["net"], strict=True)) == {
        "cold": 1.0,
        "neither entity": 2.0,
    }


def test_paths_come_first_where_there_are_some(
    page: Open, many: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clew.ui.components.explanations import paths_of, report_of_run

    monkeypatch.setenv("MLFLOW_TRACKING_URI", many.uri)
    app = page("influence", many.uri, run=many.runs["trace hostile"], path="1")
    assert app.button_group(key="view").value == "Paths"
    text = shown(app)
    assert "The most specific path from" in text
    table = app.dataframe[-1].value
    paths = paths_of(report_of_run(many.runs["trace hostile"]), 0).found
    assert list(table["Influence"]) == [path.influence for path in paths]
    assert all(step in text for step in table["Path"][1].split("; "))
    single = page("influence", many.uri, run=many.runs["trace hostile"], fact="1")
    assert single.button_group(key="view").value == "Training facts"


def test_a_fact_of_the_address_is_selected(page: Open, many: Recorded) -> None:
    app = page("influence", many.uri, run=many.runs["trace"], fact="1")
    assert "made the prediction more likely" in shown(app)
    assert "rank 1" in shown(app)


@pytest.mark.parametrize("bad", ["-1", "999", "x", "1e9"])
def test_a_place_of_the_address_that_is_none_is_said(page: Open, many: Recorded, bad: str) -> None:
    text = shown(page("influence", many.uri, run=many.runs["trace"], test=bad, fact=bad))
    assert "eicosanoid" in text
    assert f"no triple {bad}," in text


def test_the_groups_of_an_explanation(page: Open, many: Recorded) -> None:
    app = page("influence", many.uri, run=many.runs["trace"], view="Groups")
    assert not app.error
    assert len(app.get("vega_lite_chart")) == 1
    assert app.button_group(key="group")


def test_two_runs_are_compared(page: Open, many: Recorded) -> None:
    trace, other = many.runs["trace"], many.runs["trace bf16"]
    app = page("influence", many.uri, run=trace, view="Another run", other=other)
    assert not app.error
    numbers = {metric.label: metric.value for metric in app.metric}
    assert TOP_K <= int(numbers["Common facts"]) <= 2 * TOP_K
    assert 0.9 < float(numbers["Spearman"]) <= 1
    assert "Moved" in app.dataframe[-1].value
    assert "made differently" not in shown(app)


def test_another_question_is_named_where_two_runs_are_compared(
    page: Open, fresh_many: Recorded
) -> None:
    path = fresh_many.files("trace bf16", "influence/influence.json")
    content = json.loads(path.read_text())
    content["settings"] |= {"direction": "head", "test_loss": "filtered"}
    path.write_text(json.dumps(content))
    of = {"run": fresh_many.runs["trace"], "other": fresh_many.runs["trace bf16"]}
    text = shown(page("influence", fresh_many.uri, view="Another run", **of))
    assert "direction tail here, head there; test_loss trained here, filtered there" in text
    assert "made differently" in text


def test_the_review_can_tick_the_strongest_facts(page: Open, many: Recorded) -> None:
    app = page("influence", many.uri, run=many.runs["trace"], view="Review")
    ticks = app.dataframe[-1].value
    assert len(ticks) == 20
    assert not ticks["convincing"].any()
    assert ticks["Training fact"].str.contains(" → ").all()
    assert [button.label for button in app.button[-4:]] == [
        "✓ plausible",
        "✗ implausible",
        "? unsure",
        "Next",
    ]


def test_the_browsers_back_leads_to_the_explanation_before(page: Open, many: Recorded) -> None:
    first, second = many.runs["trace"], many.runs["trace hostile"]
    app = page("influence", many.uri, run=first, fact="1")
    app.selectbox(key="run-box").set_value(second).run()
    assert app.query_params["run"] in (second, [second])
    assert "fact" not in app.query_params
    app.query_params["run"] = first
    app.run()
    assert app.selectbox(key="run-box").value == first
    assert app.query_params["run"] in (first, [first])


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("malformed", "Invalid JSON"),
        ("other_schema", "schema_version is 9"),
        ("no_files", "has no influence files"),
        ("deleted", "is deleted"),
    ],
)
def test_a_broken_explanation_is_a_message(
    page: Open, broken: Recorded, which: str, message: str
) -> None:
    app = page("influence", broken.uri, run=broken.runs[which])
    (error,) = app.error
    assert message in error.value.replace("\\", "")
    assert app.selectbox(key="run-box"), "another explanation can be chosen"


def test_files_that_go_while_they_are_read_are_a_message(page: Open, fresh_many: Recorded) -> None:
    app = page("influence", fresh_many.uri, run=fresh_many.runs["trace"])
    assert not app.error
    for path in fresh_many.files("trace", names.ARTIFACT_INFLUENCE).iterdir():
        path.unlink()
    app.query_params["test"] = "1"
    app.run()
    (error,) = app.error
    assert "the file no longer exists" in error.value.replace("\\", "")
    assert app.selectbox(key="run-box"), "another explanation can be chosen"


def test_files_that_are_here_are_not_copied(
    use: Callable[[str], None], many: Recorded, tmp_path: Path
) -> None:
    use(many.uri)
    found = report_files(many.runs["trace"], tmp_path)
    assert found.json is not None
    assert many.runs["trace"] in found.json.parts
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_elsewhere_are_fetched_once(
    use: Callable[[str], None], many: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(many.uri)
    monkeypatch.setattr("clew.runs.store.local_path", lambda uri: None)
    first = report_files(many.runs["trace"], tmp_path)
    identity = first.identity
    assert len(identity) == 2
    assert all(tmp_path in Path(path).parents for path, _, _ in identity)
    assert report_files(many.runs["trace"], tmp_path).identity == identity


def test_a_run_that_goes_while_it_is_reviewed_is_a_message(
    page: Open, fresh_many: Recorded
) -> None:
    app = page("influence", fresh_many.uri, run=fresh_many.runs["trace"], view="Review")
    fresh_many.client.delete_run(fresh_many.runs["trace"])
    app.button(key=f"review-{fresh_many.runs['trace']}-0-unsure").click().run()
    assert not app.success
    assert any("is deleted" in error.value for error in app.error)


def test_a_review_is_saved_and_summarised(page: Open, fresh_many: Recorded) -> None:
    app = page("influence", fresh_many.uri, run=fresh_many.runs["trace"], view="Review")
    key = f"review-{fresh_many.runs['trace']}-0"
    app.text_area(key=f"{key}-comment").set_value("Known <b>mechanism</b>")
    app.text_input(key="reviewer").set_value("Ada")
    app.button(key=f"{key}-plausible").click().run()
    assert not app.exception
    assert app.success
    assert any("Known &lt;b&gt;mechanism" in block.proto.body for block in app.get("html"))
    overview = page("reviews", fresh_many.uri)
    numbers = {metric.label: metric.value for metric in overview.metric}
    assert numbers["✓ Plausible"] == "1 · 100%"
    assert "Known <b>mechanism</b>" in set(overview.dataframe[0].value["Comment"])
    by_run = page("reviews", fresh_many.uri, by="run")
    assert by_run.button_group(key="by").value == "run"
    assert len(by_run.get("vega_lite_chart")) == 1


def test_verdicts_of_a_run_are_named_after_it() -> None:
    from clew.ui.views.reviews import verdict_frame

    counts = {"a" * 32: Counter(plausible=2, unsure=1)}
    frame = verdict_frame(counts, {"a" * 32: "tracin fp32"})
    assert frame.to_dict("records") == [
        {"group": "tracin fp32", "verdict": "plausible", "reviews": 2},
        {"group": "tracin fp32", "verdict": "unsure", "reviews": 1},
    ]
