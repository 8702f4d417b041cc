"""The page Models with a registry: champion, versions, origin, and messages of promotions."""

from pathlib import Path

import pytest

from clew import names
from clew.runs.reading.models import Version
from clew.ui.components import answers, glossary
from clew.ui.views.models import lineage_pairs, measured
from tests.recorded import FORCED, MODEL, Recorded
from tests.ui.conftest import Open, shown

TAGS = {
    names.TAG_VALIDATION: names.VALIDATION_PASSED,
    names.TAG_DATASET: "drugmechdb",
    names.TAG_CHECKPOINT_STEP: "5000",
    names.TAG_FORCED_BECAUSE: "<b>I know better</b>",
    f"{names.TAG_METRIC_PREFIX}test/mrr": "0.337",
    "clew.odd": "thing",
}


@pytest.fixture
def registered(recorded: Recorded, tmp_path: Path) -> Recorded:
    """Return a store with two promoted versions of a model whose name contains markup."""
    store = recorded.copy(tmp_path / "store")
    store.client.rename_registered_model(MODEL, "clew <i>x")
    return store


def test_the_champion_and_its_versions(page: Open, registered: Recorded) -> None:
    app = page("models", registered.uri)
    text = shown(app)
    assert "clew &lt;i&gt;x" in text
    assert "Version <b>2</b> answers questions" in text
    table = app.dataframe[0].value
    assert list(table["Version"]) == [2, 1]
    assert list(table["Aliases"]) == ["champion", "previous"]
    assert list(table["Variant"]) == ["bf16", "fp32"]
    version = registered.client.get_model_version("clew <i>x", "2")
    promoted = float(version.tags[f"{names.TAG_METRIC_PREFIX}valid/mrr"])
    assert table[glossary.label("valid/mrr")][0] == promoted
    assert app.button(key="rollback").label == "Roll back now"
    assert "Version 1 answers questions again" in text
    assert FORCED not in text


@pytest.mark.parametrize(("tag", "shown_tag"), [("1", True), ("[x](javascript:1)", False)])
def test_the_version_to_go_back_to_after_a_promotion_was_killed(
    page: Open, registered: Recorded, tag: str, shown_tag: bool
) -> None:
    registered.client.set_registered_model_alias("clew <i>x", names.ALIAS_PREVIOUS, "2")
    registered.client.set_model_version_tag("clew <i>x", "2", f"{names.TAG_FORMER}.champion", tag)
    app = page("models", registered.uri)
    assert ("rollback" in {button.key for button in app.button}) is shown_tag
    assert (f"Version {tag} answers questions again" in shown(app)) is shown_tag


def test_numbers_are_those_of_the_promotion_where_there_are_some() -> None:
    tags = TAGS | {f"{names.TAG_METRIC_PREFIX}valid/mae": "not a number"}
    assert measured(Version("m", 2, "a" * 32, 0, tags=tags)) == {"test/mrr": 0.337}


def test_the_name_is_of_the_data_and_what_was_promoted_is_shown(
    page: Open, registered: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Job:
        job_id, state, title, exit_code = "j1", "done", "Promote", 0
        action, person, cancelled_by = "promote", "", ""

        def events(self) -> list[dict[str, object]]:
            return [{"result": {"name": "clew-second", "outcome": "version 1 is champion"}}]

        def log(self) -> str:
            return ""

    registered.client.create_registered_model("clew-second")
    app = page("models", registered.uri)
    assert app.selectbox(key="model").value == "clew <i>x"
    (name,) = (box for box in app.text_input if box.label == "Model name")
    assert name.value == MODEL
    monkeypatch.setattr("clew.ui.components.jobs.Jobs.find", lambda jobs, job_id: Job())
    app = page("models", registered.uri, model="clew <i>x", job="j1")
    assert app.selectbox(key="model").value == "clew-second"
    app.selectbox(key="model").set_value("clew <i>x").run()
    assert app.selectbox(key="model").value == "clew <i>x", "another can be looked at"


def test_a_version_whose_run_is_gone(page: Open, registered: Recorded) -> None:
    registered.client.delete_run(registered.runs["bf16 1"])
    table = page("models", registered.uri).dataframe[0].value
    assert list(table["Run"]) == ["deleted", "umls conve fp32"]


def test_a_model_of_the_address_that_is_gone_is_named(page: Open, registered: Recorded) -> None:
    assert any(
        "gone" in each.value for each in page("models", registered.uri, model="gone").warning
    )
    assert not page("models", registered.uri, model="clew <i>x").warning


def test_a_candidate_of_the_address_that_is_gone_is_a_message(
    page: Open, registered: Recorded
) -> None:
    app = page("models", registered.uri, candidate="0" * 32)
    app.button(key="dry").click().run()
    assert any("may have been deleted" in error.value for error in app.error)


def test_an_old_job_of_the_address_is_said_to_be_gone(page: Open, registered: Recorded) -> None:
    assert "no longer knows that command" in shown(page("models", registered.uri, job="0" * 12))


def test_the_origin_of_a_promoted_version_is_said_in_words(registered: Recorded) -> None:
    model = registered.client.get_model_version("clew <i>x", "2")
    pairs = lineage_pairs(Version("m", 2, "a" * 32, 0, tags=model.tags))
    assert {"Task", "Commit of the promotion", "Version of Clew"} < set(pairs)
    assert not [label for label in pairs if label[0].islower()]


def test_the_origin_of_a_version_is_said_once() -> None:
    version = Version("m", 2, "a" * 32, 0, tags=TAGS)
    pairs = lineage_pairs(version)
    assert pairs == {
        "Run": "a" * 32,
        "Data": "drugmechdb",
        "Checkpoint, optimizer step": "5000",
        "Overruled because": "<b>I know better</b>",
        "odd": "thing",
    }


@pytest.mark.parametrize(("label", "columns"), [("x", ["Answer"]), ("Label", ["Answer", "Id"])])
def test_ids_that_are_names_are_not_repeated(label: str, columns: list[str]) -> None:
    frame = answers.frame([{"tail": "x", "label": label, "known": False}], "tail", {})
    assert [name for name in frame.columns if name in {"Answer", "Id"}] == columns
