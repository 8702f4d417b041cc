"""A fact on whose sign the runs of an ensemble disagree is grey in the report and its picture."""

import json
import re
from itertools import chain
from pathlib import Path
from xml.etree import ElementTree

from clew.runs.influence_forms import DISPUTED_COLUMN
from clew.runs.influence_report import read_influence_json
from clew.runs.reading.explanation import NUM_FACTS, explanation_in, html_report, picture_of
from clew.runs.reading.facts import agreement_of
from clew.runs.reading.picture import DOTS, PLAIN, draw
from clew.runs.reading.reports import ReportFiles
from tests.recorded import Recorded

SVG = "{http://www.w3.org/2000/svg}"
RUNS = 3


def make_ensemble(recorded: Recorded, folder: Path) -> ReportFiles:
    """Make a recorded explanation one of three runs, which dispute every second fact."""
    json_file = folder / "influence.json"
    content = json.loads((recorded.files("trace", "influence") / "influence.json").read_text())
    content["model"]["runs"] = [content["model"]["run_id"], "second", "third"]
    for test in content["tests"]:
        listed = [*test["proponents"], *test["opponents"]]
        steps = [step for path in test["paths"]["paths"] for step in chain(*path["steps"])]
        for fact in listed:
            fact["spread"] = 0.25
        for fact in (*listed, *steps):
            fact["runs_agreeing"] = RUNS - fact["train_index"] % 2
    json_file.write_text(json.dumps(content))
    return ReportFiles(json=json_file)


def grey_lines(svg: str) -> set[int]:
    """Return the places of the facts whose lines are grey and dotted."""
    found = set()
    for line in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        for path in line.iter(f"{SVG}path"):
            if path.get("stroke-dasharray") == DOTS:
                assert path.get("stroke") == PLAIN.colour
                found.add(int(line.attrib["data-fact"]))
    return found


def test_disputed_facts_are_grey_in_report_and_picture(recorded: Recorded, tmp_path: Path) -> None:
    files = make_ensemble(recorded, tmp_path)
    shown = explanation_in(files, 0)
    facts = shown.facts
    disputed = facts["train_index"] % 2 == 1
    assert 0 < disputed.sum() < len(facts)
    assert facts[DISPUTED_COLUMN].tolist() == disputed.tolist()
    assert set(facts["agreement"]) == {"3 of 3", "2 of 3"}
    page = html_report(shown)
    rows = re.findall(r'<tr( class="grey")?><td class="number">\d+</td>', page)
    helping, opposing = (facts[facts["influence"] * sign > 0] for sign in (1, -1))
    listed = [*helping[DISPUTED_COLUMN][:NUM_FACTS], *opposing[DISPUTED_COLUMN][: NUM_FACTS // 2]]
    assert [bool(row) for row in rows] == listed
    assert page.count("of 3</td>") == len(listed)

    for drawn in (shown.paths.facts, facts):
        grey = set(drawn.loc[drawn["train_index"] % 2 == 1, "place"])
        assert grey
        assert grey_lines(draw(shown.test, drawn, {})) == grey


def test_the_sentence_counts_what_is_listed(recorded: Recorded, tmp_path: Path) -> None:
    files = make_ensemble(recorded, tmp_path)
    assert files.json is not None
    report = read_influence_json(files.json)
    listed = [entry for test in report.tests for entry in (*test.proponents, *test.opponents)]
    agreed = sum(entry.runs_agreeing == RUNS for entry in listed)
    assert [report.is_disputed(entry) for entry in listed].count(False) == agreed
    (said,) = report.agreement
    assert f"{agreed:,} of the {len(listed):,}" in said

    alone = explanation_in(ReportFiles(json=recorded.files("trace", "influence/influence.json")), 0)
    assert agreement_of(alone.facts, len(alone.head.model.runs)) == []
    assert 'class="grey"' not in html_report(alone)
    assert grey_lines(picture_of(alone)) == set()
