"""The Python API returns what the commands print, in types that a notebook displays well."""

import html
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import clew
from clew.config.load import load as load_config
from clew.config.load import to_yaml
from clew.errors import ConfigError, DataError, UsageError
from clew.runs.influence_report import InfluenceReport
from clew.runs.reading.runs import find_run
from clew.workflows.explaining.tracin import tracin
from clew.workflows.plan import plan as plan_workflow
from clew.workflows.predict import asked
from clew.workflows.predict import predict as predict_workflow
from tests.api.conftest import run_of

TRIPLE = ("virus", "causes", "pathologic_function")
HOSTILE = "<script>alert(1)</script>"


def test_a_run_holds_its_last_values_and_all_of_its_history(why: clew.Attribution) -> None:
    recorded = find_run(run_of(why)).metrics
    run = clew.Run(run_of(why), "fp32", dict(recorded))
    assert 0 < run.metrics["test/mrr"] <= 1
    assert list(run.history) == ["key", "value", "step", "epoch", "elapsed_seconds"]
    last = run.history.groupby("key")["value"].last()
    assert last["valid/mrr"] == recorded["valid/mrr"]
    assert (run.history["key"] == "train/loss").sum() > 1


def test_a_run_that_was_not_recorded_says_so() -> None:
    run = clew.Run(None, "fp32", {})
    for reads in (run.load, lambda: run.history, lambda: clew.attribute(run, [TRIPLE])):
        with pytest.raises(UsageError, match=r"this run has no id.*clew sync"):
            reads()


def test_answers_are_those_of_the_command(champion: str) -> None:
    model = clew.load(champion)
    assert (model.reference, model.task) == ("models:/clew-umls/1", "link_prediction")
    found = model.predict(head="virus", relation="causes", top_k=135)
    (expected,) = predict_workflow(champion, [asked("virus", "causes", "")], top_k=135).predictions
    assert found["name"].tolist() == [answer.name for answer in expected.answers]
    assert found["score"].tolist() == [answer.score for answer in expected.answers]
    assert found["known"].tolist() == [answer.known for answer in expected.answers]
    unknown = found[~found["known"].astype(bool)]
    assert unknown["probability"].sum() == pytest.approx(1)
    assert found["probability"].isna().sum() == len(found) - len(unknown)
    heads = model.predict(tail="virus", relation="causes", top_k=3, filter_known=True)
    assert (len(heads), heads["known"].any()) == (3, False)


def test_a_triple_is_placed_at_both_ends(champion: str) -> None:
    model = clew.load(champion)
    found = model.place(head="virus", relation="causes", tail="pathologic_function")
    assert found["end"].tolist() == ["tail", "head"]
    answers = model.predict(head="virus", relation="causes", top_k=135)
    others = answers[~answers["known"].astype(bool) & (answers["name"] != "pathologic_function")]
    (score,) = answers.loc[answers["name"] == "pathologic_function", "score"]
    assert found.loc[0, "rank"] == 1 + (others["score"] > score).sum()
    assert found.loc[0, "num_candidates"] == len(others) + 1
    assert found["probability"].between(0, 1).all()
    with pytest.raises(ConfigError, match="tail is ''"):
        model.place(head="virus", relation="causes", tail="")


def test_answer_sets_of_a_champion_and_of_its_run(why: clew.Attribution, champion: str) -> None:
    found = [
        clew.load(model).predict(head="virus", relation="causes", top_k=135, conformal=0.8)
        for model in (champion, run_of(why))
    ]
    for answers in found:
        told = answers.attrs["answer_set"]
        assert answers["in_set"].sum() == told["size"]
        assert told["level"] == 0.8
        assert 0 < told["coverage"] <= 1
        assert not (answers["in_set"] & answers["known"].astype(bool)).any()
    assert found[0]["in_set"].tolist() == found[1]["in_set"].tolist()
    assert "in_set" not in clew.load(champion).predict(head="virus", relation="causes")


def test_a_model_without_calibration_has_no_probabilities(
    why: clew.Attribution, store: Path
) -> None:
    for reference in (run_of(why), store / "model"):
        found = clew.load(reference).predict(head="virus", relation="causes", top_k=3)
        assert found["probability"].isna().all()
        assert len(found) == 3


def test_an_explanation_is_that_of_the_command(why: clew.Attribution) -> None:
    expected = tracin(run_of(why), ",".join(TRIPLE), {"influence.top_k": 5}).report.tests[0]
    for table, entries in (
        (why.proponents, expected.proponents),
        (why.opponents, expected.opponents),
    ):
        assert table["influence"].tolist() == pytest.approx([e.influence for e in entries])
        assert table["tail"].tolist() == [entry.train.tail.label for entry in entries]
        assert table["train_index"].tolist() == [entry.train_index for entry in entries]
    assert (why.proponents["influence"] > 0).all()
    assert (why.opponents["influence"] < 0).all()
    assert find_run(why.run_id or "").tags["clew.kind"] == "trace"


def test_shares_of_checkpoints_and_parts_add_up(why: clew.Attribution) -> None:
    frame = why.to_frame()
    assert len(frame) == 10
    for prefix in ("checkpoint_", "part_"):
        shares = frame[[name for name in frame if name.startswith(prefix)]]
        assert shares.shape[1] > 1
        assert shares.sum(axis=1).tolist() == pytest.approx(frame["influence"].tolist(), rel=1e-4)
    frame["influence"] = 0.0
    assert why.to_frame()["influence"].abs().sum() > 0
    assert why.form.key == why.report.settings["score"]
    assert why.form.heading in json.dumps(why.plot().to_dict())
    assert html.escape(why.form.meaning) in why._repr_html_()


def test_a_chart_has_a_bar_for_each_example_and_a_panel_for_each_prediction(
    why: clew.Attribution, champion: str
) -> None:
    drawn = json.loads(why.plot(num_examples=3).to_json())
    (rows,) = drawn["datasets"].values()
    assert [row["side"] for row in rows] == ["proponent"] * 3 + ["opponent"] * 3
    assert drawn["title"]["text"] == " · ".join(TRIPLE)
    two = clew.attribute(champion, [TRIPLE, ("virus", "isa", "organism")], top_k=2)
    assert [panel["title"]["text"] for panel in json.loads(two.plot().to_json())["vconcat"]] == [
        "virus · causes · pathologic_function",
        "virus · isa · organism",
    ]
    assert two.to_frame()["test"].tolist() == [0] * 4 + [1] * 4


def test_a_table_of_triples_is_explained_row_by_row(why: clew.Attribution, champion: str) -> None:
    table = pd.DataFrame([(0.5, *TRIPLE)], columns=["score", "head", "relation", "tail"])
    found = clew.attribute(champion, table, top_k=5).to_frame()
    again = clew.attribute(champion, [TRIPLE], top_k=5).to_frame()
    pd.testing.assert_frame_equal(found, again)
    with pytest.raises(ConfigError, match="a table without the column tail; expected head"):
        clew.attribute(champion, table.drop(columns="tail"))


def hostile(why: clew.Attribution) -> clew.Attribution:
    """Return an explanation with one fact and no opponent, whose names contain markup."""
    from clew.api.explanations import triple_table

    assert isinstance(why.report, InfluenceReport)
    (test,) = why.report.tests
    term = replace(test.test.head, id=HOSTILE, label=HOSTILE)
    triple = replace(test.test, head=term, relation=term, tail=term)
    fact = replace(test.proponents[0], train=triple)
    changed = replace(test, test=triple, proponents=(fact,), opponents=())
    report = replace(why.report, tests=(changed,))
    return clew.Attribution(report, None, triple_table(report))


def test_a_notebook_shows_names_as_text(why: clew.Attribution) -> None:
    explained = hostile(why)
    shown = explained._repr_html_()
    assert "<script" not in shown
    assert shown.count("&lt;script&gt;") == 6
    assert "<p>none</p>" in shown
    assert list(explained.opponents) == list(explained.proponents)


def test_facts_that_runs_dispute_are_grey(why: clew.Attribution) -> None:
    from clew.api.explanations import triple_table

    assert isinstance(why.report, InfluenceReport)
    (test,) = why.report.tests
    facts = [
        replace(fact, spread=0.5, runs_agreeing=2 - place % 2)
        for place, fact in enumerate(test.proponents)
    ]
    model = replace(why.report.model, runs=("a", "b"))
    report = replace(why.report, model=model, tests=(replace(test, proponents=tuple(facts)),))
    explained = clew.Attribution(report, None, triple_table(report))
    counts = explained.proponents["runs_agreeing"].tolist()
    assert counts == [fact.runs_agreeing for fact in facts]
    shown = explained._repr_html_()
    assert shown.count('<tr style="color') == counts.count(1) > 0
    (said,) = report.agreement
    assert said in shown
    assert said in repr(explained)
    assert "runs_agreeing" not in why.to_frame()


def test_the_number_of_seeds_is_a_setting(champion: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def stop(model: str, triples: object, settings: dict[str, object], **_: object) -> None:
        asked.append(settings["influence.seeds"])
        raise ConfigError("enough")

    monkeypatch.setattr("clew.api.explanations.tracin", stop)
    with pytest.raises(ConfigError, match="enough"):
        clew.attribute(champion, [TRIPLE], seeds=5)
    assert asked == [5]


def sizes(plan: clew.MemoryPlan) -> list[object]:
    """Return the parts of a plan that do not depend on the size of this process."""
    weights = [variant.memory.parts_gib["weights"] for variant in plan.variants]
    return [plan.batch_size, [variant.settings for variant in plan.variants], weights]


def test_a_configuration_may_be_a_name_a_file_a_dictionary_or_itself(tmp_path: Path) -> None:
    config = load_config("umls", {"training.batch_size": 64})
    (tmp_path / "own.yaml").write_text(to_yaml(config), encoding="utf-8")
    expected = plan_workflow(config, device="cpu", memory_gib=0.001)
    for given in (config, tmp_path / "own.yaml", config.model_dump(mode="json")):
        assert sizes(clew.plan(given, device="cpu", memory_gib=0.001)) == sizes(expected)
    changed = {"training.batch_size": 64}
    found = clew.plan("umls", device="cpu", memory_gib=0.001, overrides=changed)
    assert sizes(found) == sizes(expected)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"triples": [TRIPLE], "prompt": "a"}, ConfigError, "give one of them"),
        ({"continuation": "a"}, ConfigError, "without a prompt"),
        ({"triples": []}, ConfigError, "triples is empty"),
        (
            {"triples": [("virus", "causes")]},
            ConfigError,
            r"^triples\[0\] is \('virus', 'causes'\)",
        ),
        ({"triples": [("a", 5, "b")]}, ConfigError, r"^triples\[0\] is \('a', 5, 'b'\); expected"),
        ({"prompt": ["a"]}, ConfigError, r"^prompt is \['a'\]; expected text$"),
        ({"prompt": "a", "continuation": 5}, ConfigError, "^continuation is 5; expected text$"),
        ({"triples": "virus,causes,x"}, ConfigError, r"expected \(head, relation, tail\)"),
        ({"triples": [("virsu", "causes", "virus")]}, DataError, r"^triples\[0\]: .*'virus'"),
        ({"triples": 5}, ConfigError, r"triples is 5; expected \(head, relation, tail\)"),
        ({"triples": [TRIPLE, ("a", "b\tc", "d")]}, DataError, r"^triples\[1\]: "),
        ({"triples": [TRIPLE], "overrides": "a.b=3"}, ConfigError, "expected keys with values"),
        ({"prompt": "a"}, ConfigError, r"explains language models.*clew\.attribute"),
        ({}, ConfigError, r"explains image sequences.*clew\.attribute"),
    ],
)
def test_what_cannot_be_explained_is_one_line(
    why: clew.Attribution, given: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        clew.attribute(run_of(why), **given)  # type: ignore[arg-type]


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'clew' has no attribute 'trian'"):
        clew.trian  # type: ignore[attr-defined]  # noqa: B018
    assert {"train", "load", "evaluate", "attribute", "plan"} <= set(dir(clew))


def test_a_search_says_what_its_command_says(tmp_path: Path) -> None:
    space = tmp_path / "space.yaml"
    space.write_text("parameters: {optimizer.learning_rate: {low: 0.001, high: 0.01, log: true}}")
    small = {"model.embedding_dim": 24, "model.output_channels": 6, "training.num_epochs": 1}
    found = clew.tune(
        "umls", space=space, trials=2, overrides=small, output_dir=tmp_path / "search"
    )
    assert found.trials["state"].tolist() == ["complete", "complete"]
    best = found.trials.loc[found.trials["value"].idxmax()]
    assert (best["run_id"], best["value"]) == (found.best_run_id, found.value)
    assert find_run(found.best_run_id).metrics[found.metric] == found.value
    settings = load_config(found.config)
    assert settings.optimizer.learning_rate == found.settings["optimizer.learning_rate"]
    assert settings.evaluation.test_after_training, "of trials alone it is left out"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: clew.train(5), r"config is 5; expected str \| Path \| Mapping"),
        (lambda: clew.plan(None), "config is None; expected str"),
        (lambda: clew.train("umls", epochs="x"), "epochs is 'x'; expected a whole number"),
        (lambda: clew.train("umls", overrides=["a.b=3"]), "overrides is .*; expected keys with"),
        (lambda: clew.train("umls", overrides={1: 2}), "overrides: 1 given; expected text"),
        (lambda: clew.tune("umls", minutes=-1), "minutes is -1; expected more than 0"),
        (lambda: clew.tune("umls", trials=0), "trials is 0; expected at least 1"),
        (lambda: clew.load(None), "model is None; expected a loaded model, a run"),
        (lambda: clew.value_facts(3), "model is 3; expected a loaded model, a run"),
    ],
)
def test_arguments_of_wrong_types_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize("memory", [0, -1.0, float("nan")])
def test_a_plan_for_no_memory_is_refused(memory: float) -> None:
    with pytest.raises(ConfigError, match=r"memory_gib is .*; expected"):
        clew.plan("umls", memory_gib=memory)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (["a"], r"weights is \['a'\]; expected a number for each triple"),
        (1.0, "weights is 1.0; expected a number for each triple"),
        ("1", "weights is '1'; expected a number for each triple"),
        ([float("nan")], "weights: .*nan.* given; expected finite numbers"),
        ([1.0, 2.0], "weights: 2 given for 1 triples; expected one for each"),
        ([], "weights: 0 given for 1 triples"),
    ],
)
def test_weights_that_are_none_are_refused(weights: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        clew.value_facts("any", [TRIPLE], weights=weights)  # type: ignore[arg-type]


def test_values_of_a_table_of_triples_count_its_rows() -> None:
    table = pd.DataFrame([TRIPLE], columns=["head", "relation", "tail"])
    with pytest.raises(ConfigError, match="weights: 2 given for 1 triples"):
        clew.value_facts("any", table, weights=[1.0, 2.0])


def test_a_model_is_explained_only_with_something_to_explain(why: clew.Attribution) -> None:
    with pytest.raises(ConfigError, match="is a link_prediction model; give triples"):
        clew.attribute(clew.load(run_of(why)))


def test_parts_of_a_triple_are_names(champion: str) -> None:
    with pytest.raises(ConfigError, match="head is 3"):
        clew.load(champion).place(3, "causes", "virus")  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [0, -1, "x"])
def test_a_chart_has_at_least_one_example(why: clew.Attribution, number: int) -> None:
    with pytest.raises(ConfigError, match=f"num_examples is {number!r}"):
        why.plot(number)


def test_what_is_missing_is_for_python_to_say() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'config'"):
        clew.train()


def test_an_unknown_keyword_is_no_setting() -> None:
    with pytest.raises(ConfigError, match="'epochs'"):
        clew.train("umls", epoch=3)
    # The predicted memory contains that of this process, so two plans are not equal.
    short = clew.plan("umls", memory_gib=4, batch_size=64)
    long = clew.plan("umls", memory_gib=4, overrides={"training.batch_size": 64})
    assert short.batch_size == long.batch_size == 64


def test_a_whole_triple_is_for_place(champion: str) -> None:
    with pytest.raises(ConfigError, match=r"leave one out, .* model\.place"):
        clew.load(champion).predict(head="virus", relation="causes", tail="cell")


def test_an_explanation_that_is_not_recorded_is_not_checked(why: clew.Attribution) -> None:
    """The newest explanation of the store, somebody else's, is not checked in its place."""
    with pytest.raises(UsageError, match="no id"):
        replace(why, run_id=None).verify()
    with pytest.raises(ConfigError, match="seeds is 0"):
        why.verify(seeds=0)


def test_settings_of_an_explanation_have_short_names_too(
    champion: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def stop(model: str, triples: object, settings: dict[str, object], **_: object) -> None:
        asked.append(settings)
        raise ConfigError("enough")

    monkeypatch.setattr("clew.api.explanations.tracin", stop)
    with pytest.raises(ConfigError, match="enough"):
        clew.attribute(champion, [TRIPLE], overrides={"top_k": 3, "score": "cosine"})
    assert asked == [{"influence.top_k": 3, "influence.score": "cosine"}]


def test_triples_are_scored_from_a_table_a_list_and_a_generator(champion: str) -> None:
    model = clew.load(champion)
    assert isinstance(model, clew.TripleModel)
    triples = [TRIPLE, ("virus", "causes", "nonsense")]
    expected = model.score(triples)
    assert expected["error"].isna().tolist() == [True, False]
    table = pd.DataFrame(triples, columns=["head", "relation", "tail"])
    for given in (table, table.to_numpy(), map(list, triples)):
        pd.testing.assert_frame_equal(model.score(given), expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: clew.evaluate("newest", "tset"), ("split", "'tset'")),
        (lambda: clew.attribute("newest", [TRIPLE], top_k=-1), ("top_k", "-1")),
        (lambda: clew.attribute("newest", frame="x"), ("frame", "'x'")),
        (lambda: clew.attribute("newest", [TRIPLE], overrides={1: 2}), ("overrides", "1")),
        (lambda: clew.train("umls", overrides={"data.train": pd.DataFrame()}), ("data.train",)),
        (lambda: clew.value_facts("newest", direction="tails"), ("direction", "'tails'")),
        (lambda: clew.tune("umls", minutes=float("inf")), ("minutes",)),
    ],
)
def test_values_out_of_range_are_refused_in_one_line(
    call: Callable[[], object], names: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as error:
        call()
    assert all(name in str(error.value) for name in names)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("listed", [list, pd.Series, iter])
def test_candidates_may_come_from_a_column_of_a_table(
    champion: str, listed: Callable[[list[str]], Any]
) -> None:
    model = clew.load(champion)
    assert isinstance(model, clew.TripleModel)
    found = model.rank("causes", heads=listed(["virus", "bacterium"]), top_k=5)
    assert set(found["head"]) <= {"virus", "bacterium"}
    assert len(found) == 5


def test_wrong_values_of_several_lines_are_refused_in_one(champion: str) -> None:
    model = clew.load(champion)
    assert isinstance(model, clew.TripleModel)
    table = pd.DataFrame({"run_id": ["a", "b"]})
    for call in (lambda: model.rank(table), lambda: clew.load(table)):  # type: ignore[arg-type]
        with pytest.raises(ConfigError) as error:
            call()
        assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match=r"heads is 'virus'"):
        model.rank("causes", heads="virus")
    with pytest.raises(ConfigError, match=r"topk.*'top_k'"):
        model.predict(head="virus", relation="causes", topk=3)
