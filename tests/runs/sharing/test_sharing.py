"""Explanations for other people: a self-contained page, and valid TRAPI."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from reasoner_pydantic import Response

from clew import names
from clew.__main__ import run as clew
from clew.biolink import as_curie
from clew.errors import ConfigError, TrackingError
from clew.runs.influence_report import FoundPaths
from clew.runs.reading.explanation import (
    PREDICTION,
    PROPONENTS,
    SharedExplanation,
    html_report,
    open_explanation,
    trapi_json,
)
from clew.runs.reading.facts import paths_of
from clew.runs.reading.picture import COLOURS, SYMBOLS, looks
from clew.runs.reading.reviews import Fact, Review, append_review
from tests.recorded import HOSTILE, NUM_TESTS, Recorded

NOW = datetime(2026, 1, 2, tzinfo=UTC)
NUM_LOOKS = len(COLOURS) * len(SYMBOLS)


@pytest.fixture
def explained(recorded: Recorded, use: Callable[[str], None]) -> SharedExplanation:
    use(recorded.uri)
    return open_explanation(recorded.runs["trace"], 0)


@pytest.fixture
def hostile(recorded: Recorded, use: Callable[[str], None]) -> SharedExplanation:
    use(recorded.uri)
    return open_explanation(recorded.runs["trace hostile"], 0)


class Page(HTMLParser):
    """The content of a page: its elements with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_says_what_was_found(explained: SharedExplanation) -> None:
    page = Page(html_report(explained, now=NOW))
    first = explained.facts.iloc[0]
    for said in (
        explained.test["head"],
        first["head"],
        first["relation"],
        "How far to trust it",
        explained.head.label.sentence,
        explained.head.form.heading,
        explained.head.form.meaning,
        explained.model.run_id if explained.model else "?",
        "2026-01-02",
    ):
        assert said in page.text
    tags = [tag for tag, _ in page.elements]
    assert tags.count("h1") == tags.count("svg") == 1
    shapes = sum(tag in ("circle", "rect") for tag in tags)
    assert shapes >= 2, "both ends are drawn"


def test_a_page_names_all_runs_and_counts_what_it_leaves_out(explained: SharedExplanation) -> None:
    facts = pd.concat([explained.facts] * 3, ignore_index=True)
    runs = ("first run", "second run")
    ensemble = replace(explained.head, model=replace(explained.head.model, runs=runs))
    page = Page(html_report(replace(explained, facts=facts, head=ensemble)))
    assert "first run, second run" in page.text
    cells = [attributes.get("class") for tag, attributes in page.elements if tag == "td"]
    listed = cells.count("number for") + cells.count("number against")
    assert f"leaves out {len(facts) - listed:,} " in page.text
    assert "leaves out" not in Page(html_report(replace(explained, facts=facts[:1]))).text


def test_a_page_says_which_clew_explained_and_of_which_end(explained: SharedExplanation) -> None:
    run, model = explained.run, explained.model
    assert run is not None
    assert model is not None
    tags = model.tags | {names.TAG_VERSION: "0.1 of the training"}
    settings = {"score": "raw"}  # as in the first version of the schema, which explained both ends
    older = replace(explained.head, settings=settings)
    page = Page(html_report(replace(explained, model=replace(model, tags=tags), head=older)))
    assert run.tags[names.TAG_VERSION] in page.text
    assert "0.1 of the training" not in page.text
    assert "raw, of both ends" in page.text


def test_a_review_without_a_name_is_of_somebody(explained: SharedExplanation) -> None:
    row = explained.test
    test = Fact(str(row["head_id"]), str(row["relation_id"]), str(row["tail_id"]))
    review = Review("run", test, "plausible", "", created="2026-01-01T10:00:00")
    page = Page(html_report(replace(explained, reviews=(review,)), now=NOW))
    assert "plausible, somebody: 2026-01-01" in page.text


def test_what_a_person_said_last_is_shared(
    recorded: Recorded, use: Callable[[str], None], tmp_path: Path
) -> None:
    store = recorded.copy(tmp_path / "store")
    use(store.uri)
    run_id = store.runs["trace"]
    row = open_explanation(run_id, 0).test
    test = Fact(str(row["head_id"]), str(row["relation_id"]), str(row["tail_id"]))
    other = replace(test, tail=f"{test.tail} of another explanation")
    for about, verdict, person, final in (
        (test, "plausible", "Ada", False),
        (test, "implausible", "Ada", False),
        (test, "unsure", "Ben", False),
        (other, "plausible", "Ben", False),
        (test, "plausible", "Cas", True),
        (test, "implausible", "Cas", True),
    ):
        append_review(Review(run_id, about, verdict, person, final=final))  # type: ignore[arg-type]
    told = [(one.verdict, one.reviewer) for one in open_explanation(run_id, 0).reviews]
    assert told == [("implausible", "Ada"), ("unsure", "Ben"), ("implausible", "Cas")]


@pytest.mark.parametrize("kind", ["explained", "hostile"])
def test_a_page_holds_all_that_it_shows(kind: str, request: pytest.FixtureRequest) -> None:
    page = Page(html_report(request.getfixturevalue(kind), now=NOW))
    loads = {"script", "img", "link", "iframe", "object", "embed", "base", "form"}
    assert not loads & {tag for tag, _ in page.elements}
    for tag, attributes in page.elements:
        assert "src" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        href = attributes.get("href") or "https://"
        assert href.startswith("https://"), (tag, href)


def test_hostile_names_are_text(hostile: SharedExplanation) -> None:
    html = html_report(hostile, now=NOW)
    named = [name for name in HOSTILE if name in hostile.title]
    assert named
    for name in named:
        assert name in Page(html).text
    assert "<script" not in html


def test_paths_come_in_sentences(hostile: SharedExplanation) -> None:
    page = Page(html_report(hostile, now=NOW))
    assert len(hostile.paths.found) > 12
    assert str(len(hostile.paths.found)) in hostile.paths.searched
    for path in hostile.paths.found:
        assert path.sentence in page.text


def test_a_message_is_valid_trapi(explained: SharedExplanation) -> None:
    response = Response.model_validate(
        json.loads(trapi_json(explained)), context={"normalize": False}
    )
    message = response.message
    edges, nodes = message.knowledge_graph.edges, message.knowledge_graph.nodes
    for edge in edges.values():
        assert {edge.subject, edge.object} <= set(nodes.keys())
    (result,) = message.results
    (analysis,) = result.analyses
    assert {binding.id for binding in analysis.edge_bindings["e0"]} == {PREDICTION}
    assert set(analysis.support_graphs) == set(message.auxiliary_graphs.keys())
    for graph in message.auxiliary_graphs.values():
        assert set(graph.edges) <= set(edges.keys())


@pytest.mark.parametrize("kind", ["explained", "hostile"])
def test_the_support_graph_holds_the_proponents_with_scores(
    kind: str, request: pytest.FixtureRequest
) -> None:
    explanation = request.getfixturevalue(kind)
    content = json.loads(trapi_json(explanation))
    Response.model_validate(content)
    message = content["message"]
    helping = explanation.facts[explanation.facts["influence"] > 0].head(50)
    names = message["auxiliary_graphs"][PROPONENTS]["edges"]
    assert len(names) == len(helping)
    for name, (_, fact) in zip(names, helping.iterrows(), strict=True):
        attributes = message["knowledge_graph"]["edges"][name]["attributes"]
        values = {a.get("original_attribute_name"): a["value"] for a in attributes}
        assert values["influence"] == pytest.approx(fact["influence"])
        assert values["relation"] == fact["relation_id"]
        said = {a.get("original_attribute_name"): a.get("description") for a in attributes}
        assert explanation.head.form.sentence in said["influence"]
    rows = explanation.paths.facts.set_index("rank")
    for number, path in enumerate(explanation.paths.found[:10], 1):
        edges = message["auxiliary_graphs"][f"path-{number}"]["edges"]
        stated = [message["knowledge_graph"]["edges"][edge] for edge in edges]
        ends = [(edge["subject"], edge["object"]) for edge in stated]
        facts = rows.loc[list(path.ranks)]
        assert ends == [
            (as_curie(h), as_curie(t)) for h, t in facts[["head_id", "tail_id"]].to_numpy()
        ]


def test_a_denied_fact_is_never_stated(hostile: SharedExplanation) -> None:
    """TRAPI cannot say that an edge is denied, so such facts are left out, and counted."""
    facts = hostile.facts.astype({"relation_id": str})
    first = facts.index[0]
    denial = "biolink:treats;negated=true"
    facts.loc[first, "relation_id"] = denial
    paths = hostile.paths.facts.astype({"relation_id": str})
    paths.loc[paths["rank"] == 1, "relation_id"] = denial
    denied = replace(hostile, facts=facts, paths=replace(hostile.paths, facts=paths))
    content = json.loads(trapi_json(denied))
    Response.model_validate(content)
    message = content["message"]
    assert denial not in json.dumps(message)
    assert "2 denied facts" in content["description"], "a proponent, and a fact on paths"
    kept = [path for path in hostile.paths.found[:10] if 1 not in path.ranks]
    assert len(kept) < len(hostile.paths.found[:10])
    assert len(message["auxiliary_graphs"]) == 1 + len(kept)


def test_a_denied_opponent_is_not_left_out(explained: SharedExplanation) -> None:
    """A message holds no opponents."""
    facts = explained.facts.astype({"relation_id": str})
    facts.loc[facts["influence"] < 0, "relation_id"] = "biolink:treats;negated=true"
    denied = json.loads(trapi_json(replace(explained, facts=facts)))
    assert denied["description"] == json.loads(trapi_json(explained))["description"]


@pytest.mark.parametrize("direction", ["tail", "both"])
def test_a_message_says_of_what_ranks_its_score_is(
    explained: SharedExplanation, direction: str
) -> None:
    head = replace(explained.head, settings=explained.head.settings | {"direction": direction})
    content = json.loads(trapi_json(replace(explained, head=head)))
    ((analysis,),) = (result["analyses"] for result in content["message"]["results"])
    assert ("on average" in analysis["scoring_method"]) == (direction == "both")


def test_a_denied_prediction_is_no_message(explained: SharedExplanation) -> None:
    test = explained.test.copy()
    test["relation_id"] = "biolink:treats;negated=true"
    with pytest.raises(ConfigError):
        trapi_json(replace(explained, test=test))


@pytest.mark.parametrize("form", ["html", "trapi"])
def test_the_command_writes_a_file(
    recorded: Recorded,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    form: str,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", recorded.uri)
    target = tmp_path / "why"
    arguments = ["report", f"--explanation={recorded.runs['trace']}", f"--output={target}"]
    assert clew([*arguments, "--test=1", f"--format={form}"]) == 0
    assert str(target) in capsys.readouterr().out
    text = target.read_text()
    assert text.startswith("<!doctype html>" if form == "html" else "{")


def test_a_page_without_a_path_says_what_was_searched(explained: SharedExplanation) -> None:
    paths = paths_of(FoundPaths(4, 20, ()))
    page = Page(html_report(replace(explained, paths=paths), now=NOW))
    assert paths.searched in page.text


def test_opponents_come_strongest_first(explained: SharedExplanation) -> None:
    facts = explained.facts[explained.facts["influence"] < 0]
    assert len(facts) > 1
    cells = re.findall(r'<td class="number against">▼ (\S+)</td>', html_report(explained, now=NOW))
    shown = [abs(float(cell)) for cell in cells]
    assert shown == sorted(shown, reverse=True)
    assert shown[0] == pytest.approx(facts["influence"].abs().max(), rel=1e-3)


def test_files_alone_are_enough(recorded: Recorded) -> None:
    explanation = open_explanation(str(recorded.files("trace", "influence")), 2)
    assert explanation.run is None
    assert len(explanation.facts)
    assert "How far to trust it" in html_report(explanation)


def test_what_cannot_be_told(
    recorded: Recorded, use: Callable[[str], None], tmp_path: Path
) -> None:
    use(recorded.uri)
    with pytest.raises(ConfigError, match=f"from 0 to {NUM_TESTS - 1}"):
        open_explanation(recorded.runs["trace"], 99)
    with pytest.raises(ConfigError):
        open_explanation(recorded.runs["trace text"], 0)
    with pytest.raises(ConfigError, match=re.escape("no influence.json there")):
        open_explanation(str(tmp_path), 0)
    with pytest.raises(TrackingError):
        open_explanation("0" * 32, 0)


def test_kinds_are_categories_and_looks(explained: SharedExplanation) -> None:
    kinds = {str(explained.test["head_id"]): "Drug", str(explained.test["tail_id"]): "Disease"}
    told = SharedExplanation(**{**vars(explained), "kinds": kinds})
    nodes = json.loads(trapi_json(told))["message"]["knowledge_graph"]["nodes"]
    found = {category for node in nodes.values() for category in node["categories"]}
    assert found == {"biolink:Drug", "biolink:Disease", "biolink:NamedThing"}
    page = Page(html_report(told, now=NOW))
    assert "Drug" in page.text
    assert "Disease" in page.text


def test_kinds_look_different_and_stay_so() -> None:
    kinds = {f"e{number}": f"kind {number:02}" for number in range(NUM_LOOKS)}
    all_looks = looks(kinds, kinds)
    assert len(set(all_looks.values())) == NUM_LOOKS
    assert looks(kinds, ["e3"]) == {"kind 03": all_looks["kind 03"]}
    assert looks(kinds, ["unknown"]) == {}
    assert pd.Series(kinds).nunique() == NUM_LOOKS
