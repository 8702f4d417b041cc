"""The page Ask: its entity box, kinds of questions, examples, and the command's answers."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from streamlit.testing.v1 import AppTest

from clew.runs.reading.models import (
    End,
    Learned,
    ModelNames,
    list_models,
    read_learned,
    read_vocabulary,
)
from clew.ui import access
from clew.ui.components import answers, basics, jobs, runs
from clew.ui.views import ask
from clew.ui.work import NUM_ASKED, Question, Why
from clew.workflows.predict import asked, predict
from tests.recorded import MODEL, UMLS, Recorded
from tests.ui.conftest import TIMEOUT_SECONDS, Open, no_surprise, shown

CHAMPION = f"models:/{MODEL}@champion"
JOB_ID = "0" * 12


@dataclass
class Job:
    """A finished command with its output."""

    printed: str = ""
    job_id: str = JOB_ID
    state: str = "done"
    action: str = "ask"
    person: str = ""
    asked: object = None
    cancelled: int = 0

    def cancel(self) -> None:
        self.cancelled += 1

    def result(self) -> object:
        return json.loads(self.printed) if self.printed else None


class Started:
    """Replaces the child processes that the page starts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[object] = []
        self.prepared: set[str] = set()
        self.titles: list[str] = []
        self.job = Job()
        monkeypatch.setattr(jobs, "show", self.show)
        monkeypatch.setattr(jobs, "jobs", lambda: self)
        monkeypatch.setattr(answers, "prepare_reasons", lambda m, run: self.prepared.add(m))

    def start(self, asked: object, *, title: str, **more: object) -> Job:
        self.calls.append(asked)
        self.titles.append(title)
        return self.job

    def warm_up(self) -> None:
        """Do nothing."""

    def find(self, job_id: str) -> Job | None:
        return self.job if self.calls and job_id == JOB_ID else None

    def show(
        self,
        job_id: str,
        *,
        progress: Callable[[Job], None] | None = None,
        result: Callable[[Job], None],
    ) -> None:
        if self.job.printed and result is not answers.explanation:
            result(self.job)

    def answer(self, *, level: float | None = None, **ends: str) -> None:
        """Give the page the answer that a job gives it."""
        question = asked(**{"head": "", "tail": ""} | ends)
        told = predict(CHAMPION, [question], top_k=NUM_ASKED, level=level, apart=True)
        self.job = Job(json.dumps(told.as_dict()))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    return Started(monkeypatch)


def press(app: AppTest, label: str) -> AppTest:
    (button,) = (button for button in app.button if label in button.label)
    return no_surprise(button.click().run())


def test_a_triple_is_called_by_its_labels() -> None:
    labels = ModelNames(
        entities=(("MESH:D013409", "sulfacetamide"), ("MESH:D000152", "Acne vulgaris")),
        relations=(("biolink:treats", "treats"),),
    )
    triple = ("MESH:D013409", "biolink:treats", "MESH:D000152")
    called = ask.triple_text(triple, labels)
    assert called == "sulfacetamide · treats · Acne vulgaris"
    assert ask.triple_text(("", *triple[1:]), labels).startswith("what? · treats")


def test_a_link_whose_answer_is_gone_asks_again(
    page: Open, many: Recorded, started: Started
) -> None:
    question = {"h": "steroid", "r": "affects", "for": "tail,eicosanoid", "top": "7"}
    app = page("ask", many.uri, answer="gone", why="gone too", **question)
    assert started.calls == [Question(CHAMPION, "steroid", "affects", "", level=0.9)]
    assert app.query_params["answer"] == JOB_ID
    page("ask", many.uri, answer="gone", h="no such name", r="affects")
    page("ask", many.uri, answer="gone", r="affects")
    assert len(started.calls) == 1, "a name that the model does not know is not asked"


def test_a_link_with_a_question_asks_when_it_is_opened(
    page: Open, many: Recorded, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = {"h": "steroid", "r": "affects"}
    app = page("ask", many.uri, **question)
    assert started.calls == [Question(CHAMPION, "steroid", "affects", "", level=0.9)]
    assert app.query_params["answer"] == JOB_ID
    page("ask", many.uri, model="another", **question)
    page("ask", many.uri, h="no such name", r="affects")
    page("ask", many.uri, answer=JOB_ID, **question)
    monkeypatch.setattr(access, "may", lambda action: False)
    page("ask", many.uri, **question)
    assert len(started.calls) == 1, "another model, unknown names, an answer, or a reader"


def test_names_are_those_of_the_version_also_when_its_training_is_gone(
    page: Open, fresh_many: Recorded
) -> None:
    trained = fresh_many.client.get_model_version_by_alias(MODEL, "champion").run_id
    (folder,) = fresh_many.folder.glob(f"mlartifacts/*/{trained}/artifacts/vocabulary")
    shutil.rmtree(folder)
    app = page("ask", fresh_many.uri)
    assert len(next(box for box in app.selectbox if box.label == "Relation").options) > 40


def test_an_answer_that_another_person_waits_for_is_not_cancelled(
    page: Open, many: Recorded, started: Started
) -> None:
    app = page("ask", many.uri, h="steroid", r="affects")
    started.job.person = "grace@hopper.org"
    app.selectbox(key="ask-tail").set_value("steroid").run()
    assert len(started.calls) == 2
    assert not started.job.cancelled


def test_the_empty_end_is_asked_for(page: Open, many: Recorded, started: Started) -> None:
    app = page("ask", many.uri)
    app.selectbox(key="ask-relation").set_value("affects").run()
    assert not started.calls
    app.selectbox(key="ask-tail").set_value("steroid").run()
    assert started.prepared == {CHAMPION}, "reasons are prepared while answers are read"
    assert not started.job.cancelled
    app.selectbox(key="ask-head").set_value("eicosanoid").run()
    assert started.job.cancelled == 1, "nobody waits for the first answer any more"
    assert started.calls == [
        Question(CHAMPION, "", "affects", "steroid", level=0.9),
        Question(CHAMPION, "eicosanoid", "affects", "steroid", level=0.9),
    ]
    assert app.query_params["h"] == "eicosanoid"
    assert app.query_params["t"] == "steroid"


def test_a_model_without_inverse_relations_is_not_asked_for_heads(
    page: Open, fresh_many: Recorded, started: Started
) -> None:
    with fresh_many.database() as base:
        base.execute("UPDATE params SET value = 'false' WHERE key = ?", (ask.INVERSES,))
    app = page("ask", fresh_many.uri)
    offered = [button.label for button in app.button if button.key.startswith("example")]
    assert len(offered) == 2
    assert not any(label.startswith("what") for label in offered)
    app.selectbox(key="ask-tail").set_value("steroid").run()
    assert not started.calls
    app.selectbox(key="ask-head").set_value("eicosanoid").run()
    assert [type(call) for call in started.calls] == [Question]


def test_it_begins_with_three_questions_about_what_the_champion_learned(
    page: Open, many: Recorded, started: Started
) -> None:
    app = page("ask", many.uri)
    labels = [button.label for button in app.button if button.key.startswith("example")]
    assert len(labels) == 3
    assert labels[0].endswith("what\\?")
    assert labels[1].startswith("what\\?")
    press(app, "why")
    (question,) = started.calls
    assert isinstance(question, Question)
    lines = UMLS.joinpath("train.txt").read_text(encoding="utf-8").splitlines()
    assert f"{question.head}\t{question.relation}\t{question.tail}" in lines
    assert app.selectbox(key="ask-head").value == question.head


def test_answers_of_the_command_are_shown_and_explained_from_their_end(
    page: Open,
    many: Recorded,
    started: Started,
    use: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(many.uri)
    question = {"relation": "affects", "tail": "cell_function"}
    started.answer(**question)
    app = page("ask", many.uri, answer="gone", r="affects", t="cell_function")
    assert "<b>?</b>" in shown(app)
    told = [table.value for table in app.dataframe]
    facts = {
        tuple(line.split("\t")) for line in (UMLS / "train.txt").read_text("utf-8").splitlines()
    }
    for each, is_known in zip(told, (False, True), strict=True):
        asserted = [(head, "affects", "cell_function") in facts for head in each["Answer"]]
        assert set(asserted) == {is_known}, "new answers first"
        assert "Known" not in each, "it would say the same in every row"
    assert list(told[0]["Rank"]) == sorted(told[0]["Rank"])
    started.answer(head="eicosanoid", **question)
    app = page("ask", many.uri, answer="gone", h="eicosanoid", r="affects", t="cell_function")
    found = re.findall(
        r"is (?:first|at rank [\d.]+(?: \(tied\))?) of [\d,]+ candidates", shown(app)
    )
    assert len(found) == 2
    started.job.action = "explain"  # scores by fine-tuning of the explanation before
    app.query_params["tuned"] = JOB_ID
    for end in ("tail", "head"):
        assert started.job.cancelled == (end == "head")
        (button,) = [b for b in app.button if b.label == f"Why this rank as {end}?"]
        no_surprise(button.click().run())
    explained = [call for call in started.calls if isinstance(call, Why)]
    triple = ("eicosanoid", "affects", "cell_function")
    assert explained == [Why(*triple, "tail", CHAMPION), Why(*triple, "head", CHAMPION)]


def test_a_link_to_an_explanation_ticks_its_answer(
    page: Open, many: Recorded, started: Started, use: Callable
) -> None:
    use(many.uri)
    started.answer(relation="affects", tail="steroid")
    question = {"answer": "gone", "r": "affects", "t": "steroid"}
    answer = page("ask", many.uri, **question).dataframe[0].value["Answer"][3]
    for why, end, is_ticked in (("x", "head", True), ("x", "tail", False), ("", "head", False)):
        app = page("ask", many.uri, why=why, **question, **{"for": f"{end},{answer}"})
        asks = [button.label for button in app.button if button.label.startswith("Why ")]
        best = not why and not is_ticked
        assert bool(asks) == (is_ticked or best)
        if is_ticked:
            assert answer.replace("_", "\\_") in asks[0]


def test_the_answer_set_is_marked_and_its_coverage_shown(
    page: Open, many: Recorded, started: Started, use: Callable
) -> None:
    use(many.uri)
    started.answer(head="eicosanoid", relation="affects", tail="steroid", level=0.8)
    triple = {"h": "eicosanoid", "r": "affects", "t": "steroid"}
    app = page("ask", many.uri, answer="gone", set="80 %", **triple)
    (question,) = started.calls
    assert isinstance(question, Question)
    assert question.level == 0.8
    assert "In the set" in app.dataframe[0].value
    said = [text for text in app.markdown if "new candidates" in text.value]
    assert len(said) == 2
    for text in said:
        grounds = text.proto.help.replace("\\", "")
        assert re.search(r" 80 % .* sets contained [\d.]+ %", grounds), grounds
    assert re.search(r"(, |would be )(not )?in the answer set", shown(app))
    page("ask", many.uri, answer="gone", set="none", **triple)
    assert started.calls[-1] == Question(CHAMPION, *triple.values(), level=None)


def test_a_guess_comes_with_a_warning(
    page: Open, many: Recorded, started: Started, use: Callable
) -> None:
    use(many.uri)
    started.answer(head="steroid", relation="location_of")
    app = page("ask", many.uri, answer="gone", h="steroid", r="location_of")
    (warning,) = app.warning
    assert "is never the head of" in warning.value


KINDS = {"steroid": "biolink:SmallMolecule", "virus": "Virus"}


def test_kinds_choose_relations_and_answers(
    page: Open,
    many: Recorded,
    started: Started,
    use: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(many.uri)
    vocabulary = read_vocabulary(many.runs["fp32 1"])
    kinds = {name: KINDS.get(name, "Disease") for name, _ in vocabulary.entities}
    uses: dict[str, dict[End, dict[str, int]]] = {
        "isa": {"head": {"Disease": 90}, "tail": {"Disease": 90}},
        "affects": {
            "head": {"Virus": 50, "biolink:SmallMolecule": 1},
            "tail": {"Disease": 49, "Virus": 2},
        },
    }
    learned = Learned((), uses)
    monkeypatch.setattr(runs, "champion_vocabulary", lambda model: replace(vocabulary, kinds=kinds))
    monkeypatch.setattr(runs, "learned", lambda model: learned)
    app = page("ask", many.uri)
    assert app.selectbox(key="ask-relation").options == ["isa", "affects"]
    app.selectbox(key="ask-head").set_value("virus").run()
    assert app.selectbox(key="ask-relation").options == ["affects"]
    (question,) = started.calls
    assert isinstance(question, Question)
    assert (question.head, question.relation) == ("virus", "affects")
    started.answer(relation="affects", tail="carbohydrate")
    app = page("ask", many.uri, answer="gone", r="affects", t="carbohydrate", top="200")
    assert {kind for table in app.dataframe for kind in table.value["Kind"]} == {"virus"}
    (toggle,) = app.toggle
    app = no_surprise(toggle.set_value(True).run())
    shown_kinds = {kind for table in app.dataframe for kind in table.value["Kind"]}
    assert shown_kinds == {"virus", "disease", "small molecule"}


def test_what_training_uses_is_counted_by_kind(many: Recorded, use: Callable) -> None:
    use(many.uri)
    (model,) = (each for each in list_models() if each.name == MODEL)
    assert model.champion is not None
    learned = read_learned(model, model.champion)
    facts = [line.split("\t") for line in (UMLS / "train.txt").read_text("utf-8").splitlines()]
    number = sum(relation == "affects" for _, relation, _ in facts)
    assert learned.uses["affects"] == {"head": {"": number}, "tail": {"": number}}
    assert learned.number("affects") == number
    assert Learned((), {}).number("affects") == 0
    rare = {"a": {"head": {"Drug": 99, "Cell": 1}, "tail": {"Disease": 100}}}
    few = Learned((), rare)  # type: ignore[arg-type]
    assert few.usual("a", "head") == {"Drug"}
    assert few.number("a", head="Cell", tail="") == 1
    assert few.number("a", head="Cell", tail="Cell") == 0


def test_answers_of_one_name_are_one_with_all_identifiers() -> None:
    found = [
        {"head": "A:1", "label": "x", "known": False, "rank": 1, "probability": 0.9},
        {"head": "B:1", "label": "y", "rank": 2, "probability": 0.1},
        {"head": "C:1", "label": "x", "known": True, "rank": 7, "probability": None},
        {"head": "D:1", "label": "y", "known": False, "rank": 8, "probability": 0.0},
    ]
    merged = answers.one_of_each_name(found, "head")
    assert [answers.name_of(each, "head") for each in merged] == ["y (B:1)", "x (C:1)"]
    assert answers.name_of(answers.one_of_each_name(found[:1], "head")[0], "head") == "x"
    table = answers.frame(merged, "head", {})
    assert list(table["Answer"]) == ["y", "x"]
    assert list(table["Known"]) == ["–", "● known"]
    assert list(table["Id"]) == ["B:1, D:1", "A:1, C:1"]
    assert list(table["Rank"]) == [2, 7], "a known answer's among all answers"
    assert table["Probability"].isna().tolist() == [False, True]


def large_box() -> None:
    import streamlit as st

    from clew.runs.reading.models import ModelNames
    from clew.ui.views.ask import entity_box

    terms = [*((f"Q{i}", f"thing {i}") for i in range(12_000)), ("Q1a", "Thing 7")]
    terms += [(f"H{i}", f"[hostile](//x.org) :{i}:") for i in range(2)]
    synonyms = {"Q8": ("gadget", "Apparatus"), "Q9": ("old gadget",)}
    known = ModelNames(tuple(terms), (), {"Q8": "Tool", "Q9": "Antique"}, synonyms)
    chosen = entity_box("Head", "box", known, start="Q11500", placeholder="")
    st.code(chosen or "nothing")


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("Q11999", "Q11999"),
        ("q11999", "Q11999"),
        ("thing 11998", "Q11998"),
        ("no such", "nothing"),
        ("hing 299", "nothing"),
        ("Gadget", "Q8"),
        ("apparat", "Q8"),
    ],
)
def test_a_name_is_found_in_a_large_graph(typed: str, found: str) -> None:
    app = typing(typed)
    assert app.code[0].value == found
    assert ("No name, synonym or id contains" in shown(app)) == (typed == "no such")


def typing(text: str, **others: str) -> AppTest:
    """Type into the box; AppTest itself can only choose options of a select box."""
    app = AppTest.from_function(large_box, default_timeout=TIMEOUT_SECONDS)
    for key, value in ({"box": text} | others).items():
        app.session_state[key] = value
    return no_surprise(app.run())


def test_a_chosen_name_beyond_the_listed_ones_stays_chosen() -> None:
    app = no_surprise(AppTest.from_function(large_box, default_timeout=TIMEOUT_SECONDS).run())
    assert app.code[0].value == "Q11500"
    assert app.selectbox(key="box").options[-1] == "thing 11500  (Q11500)"
    assert no_surprise(app.run()).code[0].value == "Q11500"


def test_one_of_several_matches_is_chosen() -> None:
    (choice,) = typing("thing 7").button_group
    assert choice.options == [r"thing 7 \(Q7\)", r"Thing 7 \(Q1a\)"]
    assert typing("thing 7").code[0].value == "nothing"
    assert typing("thing 7", **{"box-which": "Q1a"}).code[0].value == "Q1a"


def test_matches_stand_by_kind_with_the_synonym_that_matched() -> None:
    (choice,) = typing("dget").button_group
    texts = ["Antique: old gadget = thing 9  (Q9)", "Tool: gadget = thing 8  (Q8)"]
    assert choice.options == list(map(basics.markdown, texts))


def test_matches_are_not_markdown() -> None:
    (choice,) = typing("hostile").button_group
    texts = [f"[hostile](//x.org) :{number}:  (H{number})" for number in range(2)]
    assert choice.options == list(map(basics.markdown, texts))
