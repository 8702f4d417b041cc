"""A picture marks the drawn facts that a check took away, and says what happened without them."""

import re
from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree

import pandas as pd
import pytest

from clew.runs.influence_report import Term, TripleRecord, read_influence_json
from clew.runs.reading import picture
from clew.runs.reading.explanation import html_report, open_explanation, picture_of, triple_of
from clew.runs.reading.reports import ReportFiles, read_facts, read_paths
from clew.runs.validation_record import Measured, Recipe
from clew.runs.verification import (
    Answer,
    Effect,
    Kind,
    Removal,
    Verification,
    VerifiedTriple,
    marked_in,
)
from tests.recorded import Recorded

SVG = "{http://www.w3.org/2000/svg}"
GROUPS: dict[tuple[int, ...], Kind] = {
    (7,): "strongest",
    (3, 5, 7, 8, 9): "strongest",
    tuple(range(20)): "strongest",
    tuple(range(40, 60)): "touching",
}


def check_of(
    groups: dict[tuple[int, ...], Kind],
    triple: tuple[str, str, str] = ("h", "r", "t"),
    *,
    whole: bool = False,
) -> Verification:
    """Return a check in which the rank after a removal is the number of removed facts plus 100."""
    head, relation, tail = (Term(name, name) for name in triple)

    def effect(number: int) -> Effect:
        after = Answer(rank=100 + number, log_probability=-2)
        fall = Measured(mean=1.0, half_width=0.1)
        return Effect(before=Answer(rank=1, log_probability=-1), after=after, fall=fall)

    removals = tuple(
        Removal(
            kind=kind,
            facts=facts,
            tuned=effect(len(facts)),
            whole=effect(len(facts)) if whole else None,
        )
        for facts, kind in groups.items()
    )
    test = VerifiedTriple(
        test=TripleRecord(head, relation, tail),
        direction="tail",
        model=Answer(rank=1, log_probability=-1),
        removals=removals,
    )
    recipe = Recipe(epochs=1, learning_rate=0.1)
    return Verification(run_id="x", source_run="m", recipe=recipe, seeds=2, tests=(test,))


def marked_lines(svg: str) -> dict[int, str]:
    """Return the places of the marked facts of a picture, with what their lines say."""
    lines = ElementTree.fromstring(svg).iter(f"{SVG}g")
    marked = [line for line in lines if line.find(f"{SVG}path[@class='gap']") is not None]
    return {int(line.attrib["data-fact"]): line.findtext(f"{SVG}title") or "" for line in marked}


@pytest.mark.parametrize(
    ("drawn", "marked", "removed"),
    [
        ([7], {7}, 1),
        ([3, 5, 7, 8, 9, 70], {3, 5, 7, 8, 9}, 5),
        ([*range(25)], {*range(20)}, 20),
        ([3, 5, 8, 9, 11], {3, 5, 8, 9}, 5),  # most complete, though more of the twenty are drawn
        ([11, 12], {11, 12}, 20),
        ([40, 41, 70], set(), 20),  # those that touch an end are not the explanation
        ([], set(), 20),
    ],
)
def test_the_most_complete_group_of_strongest_facts_is_marked(
    drawn: list[int], marked: set[int], removed: int
) -> None:
    for whole in (False, True):
        found, said = marked_in(check_of(GROUPS, whole=whole), drawn)
        assert found == marked
        assert f"from rank 1 to {100 + removed} " in said
        assert (f"({len(marked) or 'none'} drawn" in said) == (len(marked) < removed)
        assert ("fine-tuning" in said) == (not whole)
    assert marked_in(None, drawn) == (set(), "")
    assert marked_in(check_of({}), drawn) == (set(), "")


def test_a_check_of_one_triple_among_several() -> None:
    first, second = check_of(GROUPS), check_of(GROUPS, ("a", "b", "c"), whole=True)
    both = first.beside(second)
    own = both.of(("a", "b", "c"))
    assert own == second
    assert own.said == tuple(second.lines(second.tests[0]))
    assert both.of(("h", "r", "t")) == first
    assert both.of(("h", "r", "c")) is None


@pytest.fixture
def explained(recorded: Recorded, use: Callable[[str], None]) -> str:
    use(recorded.uri)
    return recorded.runs["trace"]


def test_only_marked_facts_have_lines_beside_and_a_caption_is_below(explained: str) -> None:
    shown = open_explanation(explained, 0)
    facts = shown.facts.head(6)
    plain = picture.draw(shown.test, facts, {})
    assert marked_lines(plain) == {}
    wanted = facts["train_index"].iloc[[0, 3]].tolist()
    caption = "Without the 2 marked facts, " + "and so on " * 30
    drawn = picture.draw(shown.test, facts, {}, marked=wanted, caption=caption)
    marked = marked_lines(drawn)
    assert sorted(marked) == facts["place"].iloc[[0, 3]].tolist()
    for place, said in marked.items():  # the dashboard's keyboard reads the same text
        fact = facts.set_index("place").loc[place]
        assert str(fact["head"]) in said
        assert "taken away" in said
    tree, before = ElementTree.fromstring(drawn), ElementTree.fromstring(plain)
    height = float(before.attrib["viewBox"].split()[3])
    lines = [text for text in tree.iter(f"{SVG}text") if float(text.attrib["y"]) > height]
    assert " ".join(line.text or "" for line in lines) == caption.strip()
    assert len(lines) > 1
    assert float(tree.attrib["viewBox"].split()[3]) > max(float(t.attrib["y"]) for t in lines)
    assert caption.strip() in tree.attrib["aria-label"]


@pytest.mark.parametrize("table", [True, False])
def test_facts_and_paths_know_their_place_in_training(recorded: Recorded, table: bool) -> None:
    folder = recorded.files("trace", "influence")
    report = read_influence_json(folder / "influence.json")
    files = ReportFiles(folder / "influence.json", folder / "influence.parquet" if table else None)
    explained = report.tests[0]
    keys = ["head_id", "relation_id", "tail_id"]

    def by_index(rows: pd.DataFrame) -> dict[int, tuple[str, ...]]:
        return {int(row["train_index"]): tuple(map(str, row[keys])) for _, row in rows.iterrows()}

    entries = (*explained.proponents, *explained.opponents)
    expected = {
        entry.train_index: (entry.train.head.id, entry.train.relation.id, entry.train.tail.id)
        for entry in entries
    }
    assert by_index(read_facts(files, 0)) == expected
    assert explained.paths is not None
    steps = [s for path in explained.paths.paths for facts in path.steps for s in facts]
    assert by_index(read_paths(files, 0).facts) == {
        step.train_index: (step.train.head.id, step.train.relation.id, step.train.tail.id)
        for step in steps
    }


@pytest.mark.parametrize(
    ("direction", "said"),
    [("tail", "of the tail"), ("head", "of the head"), ("both", "of both ends")],
)
def test_a_report_names_the_ends_that_it_explains(
    explained: str, direction: str, said: str
) -> None:
    shown = open_explanation(explained, 0)
    settings = shown.head.settings | {"direction": direction}
    page = html_report(replace(shown, head=replace(shown.head, settings=settings)))
    (origin,) = re.findall("Form of the influence</th><td>(.*?)</td>", page)
    assert origin.endswith(f", {said}")


def test_the_report_to_mail_says_it_and_marks_only_what_it_draws(explained: str) -> None:
    shown = open_explanation(explained, 0)
    assert shown.verified is None
    facts = shown.paths.facts if shown.paths.found else shown.facts
    five = tuple(int(index) for index in facts["train_index"].head(5))
    checked = check_of({five: "strongest"}, triple_of(shown.test))
    after = replace(shown, verified=checked)
    told, page = picture_of(after), html_report(after)
    assert told in page
    assert 'class="gap"' not in html_report(shown)
    places = set(facts["place"][facts["train_index"].isin(five)])
    assert set(marked_lines(told)) <= places
    assert marked_lines(told)
    assert all(sentence.split(":")[0] in page for sentence in checked.said)
