"""Disagreements on the page Reviews: listed, shown side by side, decided, revised."""

from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from clew.errors import AccessError
from clew.runs.reading.disagreements import find_disagreements
from clew.runs.reading.reviews import Fact, Review, Verdict, append_review, read_reviews
from clew.ui import access
from clew.ui.access import ACTIONS, Action
from clew.ui.components.explanations import facts_of, report_head, report_of_run, shared
from clew.ui.components.reviews import add_decision, add_review, fact_of, reviews_of
from clew.ui.components.runs import runs_by_id
from tests.recorded import Recorded
from tests.ui.conftest import Open, no_surprise, shown


@pytest.fixture
def store(recorded: Recorded, tmp_path, use) -> Recorded:
    store = recorded.copy(tmp_path / "store")
    use(store.uri)
    return store


def review(store: Recorded, reviewer: str, verdict: Verdict, **facts: tuple[Fact, ...]) -> Review:
    run_id = store.runs["trace"]
    test = fact_of(report_head(report_of_run(run_id)).tests.loc[0])
    return Review(run_id, test, verdict, reviewer, f"says <b>{reviewer}</b>", **facts)


def judge(store: Recorded, reviewer: str, verdict: Verdict, **facts: tuple[Fact, ...]) -> None:
    add_review(review(store, reviewer, verdict, **facts))


def a_fact(store: Recorded) -> Fact:
    return fact_of(facts_of(report_of_run(store.runs["trace"]), 0).iloc[0])


def disagree(store: Recorded) -> None:
    judge(store, "Ada", "plausible", convincing=(a_fact(store),))
    judge(store, "Grace", "implausible", wrong=(a_fact(store),))


def final(store: Recorded) -> list[Review]:
    return [each for each in read_reviews(store.runs["trace"]).records if each.final]


def states_of(app: AppTest) -> list[str]:
    (table,) = (each.value for each in app.dataframe if "State" in each.value)
    return [str(state) for state in table["State"]]


def key_of(app: AppTest) -> str:
    (key,) = {
        str(button.key).split("-")[1]
        for button in app.button
        if str(button.key).startswith("decision-")
    }
    return key


def keys(page: Open, store: Recorded) -> list[str]:
    """Return the addresses of the disagreements, in the order of the table."""
    run_id = store.runs["trace"]
    found = find_disagreements(reviews_of(run_id).records, runs_by_id([run_id]))
    return [each.key for each in found]


def decide(app: AppTest, verdict: str, person: str = "Edsger") -> AppTest:
    key = f"decision-{key_of(app)}"
    app.text_area(key=f"{key}-comment").set_value("because")
    app.text_input(key="reviewer").set_value(person)
    return no_surprise(app.button(key=f"{key}-{verdict}").click().run())


def test_no_disagreement_no_list(page: Open, store: Recorded) -> None:
    judge(store, "Ada", "plausible")
    judge(store, "Grace", "plausible")
    assert "to decide" not in shown(page("reviews", store.uri))


def test_a_fact_is_decided_and_the_decision_revised(page: Open, store: Recorded) -> None:
    disagree(store)
    app = page("reviews", store.uri)
    assert "2 of 2 to decide" in shown(app)
    assert states_of(app) == ["? open", "? open"]
    fact = keys(page, store)[1]
    app = page("reviews", store.uri, decide=fact)
    text = shown(app)
    for said in ("says &lt;b&gt;Ada&lt;/b&gt;", "says &lt;b&gt;Grace&lt;/b&gt;", "convincing"):
        assert said in text
    assert "People" not in app.dataframe[-1].value.columns, "one person is not enough"
    app = decide(app, "right")
    assert sorted(states_of(app)) == ["? open", "✓ right"]
    app = decide(app, "wrong", "Barbara")
    assert sorted(states_of(app)) == ["? open", "✗ wrong"]
    assert list(app.dataframe[-1].value["Decided by"]) == ["Barbara"]
    assert [(each.reviewer, each.said) for each in final(store)] == [
        ("Edsger", "right"),
        ("Barbara", "wrong"),
    ]
    assert "before:" in shown(app)


def test_an_explanation_is_decided_and_shown_with_the_reviews(page: Open, store: Recorded) -> None:
    disagree(store)
    app = decide(page("reviews", store.uri, decide=keys(page, store)[0]), "unsure")
    numbers = {metric.label: metric.value for metric in app.metric}
    assert numbers["? Unsure"] == "1 · 100%"
    assert numbers["Reviewers"] == "2"
    address = {"run": store.runs["trace"], "view": "Review", "test": "0"}
    app = page("influence", store.uri, **address)
    assert "decided: unsure" not in shown(app), "before one's own verdict"
    app.text_input(key="reviewer").set_value("Ada").run()
    assert "decided: unsure" in shown(app)


def sent(app: AppTest) -> str:
    """Return all that the page sends to the browser."""
    tables = (str(table.value.to_dict()) for table in app.dataframe)
    return "".join((shown(app), *tables, *(str(each.proto) for each in app.get("html"))))


def test_what_others_said_is_sent_after_ones_own_verdict(page: Open, store: Recorded) -> None:
    disagree(store)
    address = {"run": store.runs["trace"], "view": "Review", "test": "0"}
    app = page("influence", store.uri, **address)
    assert "Ada" not in sent(app)
    files = report_of_run(store.runs["trace"])
    assert shared(store.runs["trace"], files, 0).reviews == ()
    app.text_input(key="reviewer").set_value("Barbara")
    key = f"review-{store.runs['trace']}-0"
    app = no_surprise(app.button(key=f"{key}-unsure").click().run())
    assert "says &lt;b&gt;Ada" in sent(app)
    no_surprise(app.button(key=f"{key}-next").click().run())
    assert app.query_params["test"] in ("1", ["1"])
    assert "Ada" not in sent(app)


def test_a_reviewer_who_signs_in_sees_no_verdict_before_their_own(
    page: Open, store: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    disagree(store)
    assert "says <b>Ada" in sent(page("reviews", store.uri)), "who judged nothing reads"
    monkeypatch.setattr(access, "may", lambda action: ACTIONS[action] != "promoter")
    assert "Ada" not in sent(page("reviews", store.uri))
    monkeypatch.setattr(access, "person", lambda: "Grace")
    assert "says <b>Ada" in sent(page("reviews", store.uri))


def test_a_promoter_who_reviews_can_still_see_all(page: Open, store: Recorded) -> None:
    disagree(store)
    run_id = store.runs["trace bf16"]
    test = fact_of(report_head(report_of_run(run_id)).tests.loc[0])
    add_review(Review(run_id, test, "unsure", "Barbara"))
    app = page("reviews", store.uri)
    app.session_state["reviewer"] = "Barbara"
    app = no_surprise(app.run())
    assert "says <b>Ada" not in sent(app)
    app = no_surprise(app.toggle(key="unblind").set_value(True).run())
    assert "says <b>Ada" in sent(app)


def test_a_fact_that_one_person_marked_needs_a_promoter(
    page: Open, store: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge(store, "Grace", "implausible", wrong=(a_fact(store),))
    (alone,) = keys(page, store)
    app = decide(page("reviews", store.uri, decide=alone), "wrong")
    assert list(app.dataframe[-1].value["Decided by"]) == ["Edsger"]
    allowed = access.authorize

    def reviewer(action: Action) -> str:
        if ACTIONS[action] == "promoter":
            raise AccessError(action)
        return allowed(action)

    monkeypatch.setattr(access, "authorize", reviewer)
    with pytest.raises(AccessError, match="confirm"):
        add_decision(alone, "right", "Ada", "", runs_by_id([store.runs["trace"]]))


@pytest.mark.parametrize("person", ["", "   "])
def test_nobody_decides_without_a_name(page: Open, store: Recorded, person: str) -> None:
    disagree(store)
    app = decide(page("reviews", store.uri, decide=keys(page, store)[0]), "unsure", person)
    assert any("names who decided" in error.value for error in app.error)
    assert final(store) == []


def test_what_nobody_disagrees_about_is_one_line(
    page: Open, store: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    disagree(store)
    app = page("reviews", store.uri, decide="<b>no such thing")
    assert any("Nobody disagrees about" in warning.value for warning in app.warning)
    app = page("reviews", store.uri, decide=keys(page, store)[0])

    def add_meanwhile(*given: Any) -> Review:
        """She changes her review on another machine, which this dashboard does not know yet."""
        append_review(review(store, "Grace", "plausible"))
        return add_decision(*given)

    monkeypatch.setattr("clew.ui.components.reviews.add_decision", add_meanwhile)
    app = decide(app, "unsure")
    assert any("there is nothing to decide" in error.value for error in app.error)
    assert final(store) == []


def test_one_run_lists_its_own_disagreements(page: Open, store: Recorded) -> None:
    disagree(store)
    run_id = store.runs["trace bf16"]
    test = fact_of(report_head(report_of_run(run_id)).tests.loc[0])
    add_review(Review(run_id, test, "unsure", "Ada"))
    assert "to decide" not in shown(page("reviews", store.uri, run=run_id))
    assert "2 of 2" in shown(page("reviews", store.uri, run=store.runs["trace"]))
