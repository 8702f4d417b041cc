"""Shares of a run's explanations: assignment, progress, the next one, and agreement."""

import pytest
from streamlit.testing.v1 import AppTest

from clew.ui.components.review_queue import Share
from clew.ui.data.influence import report_head, report_of_run
from clew.ui.data.reviews import Review, Verdict, add_review, fact_of
from tests.recorded import NUM_TESTS, Recorded
from tests.ui.conftest import Open, no_surprise, shown
from tests.ui.seed_many import Copy, copy_runs


@pytest.fixture
def store(recorded: Recorded, tmp_path) -> Recorded:
    return recorded.copy(tmp_path / "store")


def judge(store: Recorded, place: int, reviewer: str, verdict: Verdict) -> None:
    run_id = store.runs["trace"]
    test = fact_of(report_head(report_of_run(run_id)).tests.loc[place])
    add_review(Review(run_id, test, verdict, reviewer))


def progress(app: AppTest) -> str:
    (bar,) = app.get("progress")
    return str(bar.proto.text)


@pytest.mark.parametrize("of", [1, 2, 4, 7])
def test_shares_are_alike_and_hold_each_explanation_once(of: int, store: Recorded, use) -> None:
    use(store.uri)
    tests = report_head(report_of_run(store.runs["trace"])).tests
    shares = [Share(number, of).places(tests) for number in range(1, of + 1)]
    assert sorted(place for share in shares for place in share) == list(range(NUM_TESTS))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_a_reviewer_goes_through_a_share(page: Open, store: Recorded, use) -> None:
    use(store.uri)
    judge(store, 3, "Grace", "plausible")
    address = {"run": store.runs["trace"], "view": "Review", "queue": "2/2", "test": "1"}
    app = page("influence", store.uri, **address)
    assert progress(app) == "1 of 3 reviewed by anybody"
    for done, place in enumerate(("1", "3", "5"), start=1):
        assert app.query_params["test"] in (place, [place])
        app.text_input(key="reviewer").set_value("Ada")
        key = f"review-{store.runs['trace']}-{place}"
        no_surprise(app.button(key=f"{key}-unsure").click().run())
        assert progress(app) == f"{done} of 3 reviewed by you"
        if place != "5":
            no_surprise(app.button(key="queue-next").click().run())
    assert app.button(key="queue-next").disabled


@pytest.mark.parametrize("queue", ["", "3/2", "0/1", "1/99", "<b>", "1/2/3"])
def test_an_address_without_a_share_shows_none(page: Open, store: Recorded, queue: str) -> None:
    app = page("influence", store.uri, run=store.runs["trace"], view="Review", queue=queue)
    assert not app.get("progress")


def test_shares_are_handed_out_and_agreement_is_shown(page: Open, store: Recorded, use) -> None:
    use(store.uri)
    app = of_one_run(page("reviews", store.uri, shares="4"), store)
    labels = [link.proto.label for link in app.get("page_link")]
    assert labels[:4] == [
        f"Share {number} of 4: {count} explanations →".replace(":", "\\:\u2060")
        for number, count in enumerate((2, 2, 1, 1), start=1)
    ]
    for place, verdict in ((0, "plausible"), (1, "unsure")):
        for reviewer in ("Ada", "Grace"):
            judge(store, place, reviewer, verdict)
    app = of_one_run(page("reviews", store.uri), store)
    numbers = {metric.label: metric.value for metric in app.metric}
    assert numbers["Agreement α"] == "1.00"


def of_one_run(app: AppTest, store: Recorded) -> AppTest:
    return no_surprise(app.selectbox(key="run").set_value(store.runs["trace"]).run())


def test_the_page_reviews_honours_a_run_in_the_address(page: Open, many: Recorded) -> None:
    app = page("reviews", many.uri, run=many.runs["trace bf16"])
    assert app.selectbox[0].value == many.runs["trace bf16"]
    assert "Hand out" in app.expander[0].label
    everything = page("reviews", many.uri)
    assert everything.selectbox[0].value != many.runs["trace bf16"]


def test_reviews_stay_however_many_explanations_follow(page: Open, store: Recorded, use) -> None:
    use(store.uri)
    judge(store, 0, "Ada", "plausible")
    newer = [Copy(store.runs["trace bf16"], f"{n:032x}", age_ms=-60_000 - n) for n in range(260)]
    with store.database() as base:
        copy_runs(base.cursor(), newer)
    app = page("reviews", store.uri)
    assert "No reviews yet" not in shown(app)
    assert "Ada" in set(app.dataframe[0].value["Reviewer"])


def test_only_explanations_of_triples_are_offered(page: Open, many: Recorded) -> None:
    app = page("reviews", many.uri)
    offered = len(app.selectbox(key="run").options) - 1
    traces = [name for name in many.runs if name.startswith("trace")]
    of_triples = set(traces) - {"trace text", "trace frames"}
    assert offered == len(of_triples)
    app = page("reviews", many.uri, run=many.runs["trace text"])
    assert any("explains no triples" in warning.value for warning in app.warning)
    assert not app.error


def test_a_run_that_is_gone_is_said(page: Open, many: Recorded) -> None:
    app = page("reviews", many.uri, run="0" * 32)
    assert any("No run" in warning.value for warning in app.warning)
