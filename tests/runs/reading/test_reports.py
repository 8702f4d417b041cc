"""Reading influence reports: both files, parts of them, and invalid files."""

import json
import warnings
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from clew.errors import DataError
from clew.runs.influence_forms import SCORE_COLUMN
from clew.runs.influence_report import (
    ScoredTriple,
    read_explained_triple,
    read_influence_json,
    read_influence_outline,
)
from clew.runs.reading.explanation import SharedExplanation, trapi_json
from clew.runs.reading.facts import agreement
from clew.runs.reading.reports import ReportFiles, read_facts, read_head, read_paths
from tests.recorded import HOSTILE, Recorded
from tests.recorded import NUM_HOSTILE_FACTS as NUM_PAIRS
from tests.recorded import NUM_HOSTILE_TESTS as NUM_TESTS


@pytest.fixture
def files(recorded: Recorded) -> ReportFiles:
    """Return the files of `tracin` with every score, and with names that contain markup."""
    folder = recorded.files("trace hostile", "influence")
    return ReportFiles(**{kind: folder / f"influence.{kind}" for kind in ("json", "parquet")})


def test_the_head_agrees_with_the_whole_report(files: ReportFiles) -> None:
    assert files.json is not None
    report = read_influence_json(files.json)
    head = read_head(files)
    assert len(head.tests) == NUM_TESTS
    assert head.model.checkpoints == report.model.checkpoints
    assert head.settings == report.settings
    for place, test in enumerate(report.tests):
        row = head.tests.loc[place]
        assert (row["head_id"], row["head"]) == (test.test.head.id, test.test.head.label)
        assert (row["tail_id"], row["relation"]) == (test.test.tail.id, test.test.relation.label)
        assert (row["score"], row["rank"]) == (test.score, test.rank)
        assert row["candidates"] == NUM_PAIRS


@pytest.mark.parametrize("place", range(NUM_TESTS))
def test_each_file_tells_the_same_facts(files: ReportFiles, place: int) -> None:
    one = replace(files, parquet=None)
    columns = ["rank", "head_id", "relation_id", "tail_id", "influence"]
    facts = read_facts(files, place)[columns].astype({c: str for c in columns[1:4]})
    same = read_facts(one, place)[columns].astype({c: str for c in columns[1:4]})
    pd.testing.assert_frame_equal(facts, same)


def test_parts_and_checkpoints_add_up(files: ReportFiles) -> None:
    facts = read_facts(files, 1)
    for prefix in ("part_", "checkpoint_"):
        split = facts[[c for c in facts.columns if c.startswith(prefix)]]
        assert split.shape[1] > 3
        np.testing.assert_allclose(split.sum(axis=1), facts["influence"], atol=1e-8)


def test_entities_of_one_label_are_told_apart(files: ReportFiles, tmp_path: Path) -> None:
    assert files.json is not None
    same, path = {name: {"id": name, "label": "TNF"} for name in HOSTILE[:2]}, tmp_path / "one.json"
    told = json.loads(files.json.read_bytes(), object_hook=lambda o: same.get(o.get("id"), o))
    path.write_text(json.dumps(told), encoding="utf-8")
    one, wanted = ReportFiles(json=path), {f"TNF ({name})" for name in same}
    facts, paths, test = read_facts(one, 0), read_paths(one, 0), read_head(one).tests.loc[0]
    for rows in (facts, paths.facts):
        ends = {*rows["head"], *rows["tail"]}
        assert wanted <= ends
        assert "TNF" not in ends
        assert len(ends) == len({*rows["head_id"], *rows["tail_id"]})
    assert {test["head"], test["tail"]} == wanted
    assert all(name in step for name in same for step in [paths.found[0].sentence])
    found = SharedExplanation(test, facts, paths, read_head(one))
    nodes = json.loads(trapi_json(found))["message"]["knowledge_graph"]["nodes"]
    assert [node["name"] for node in nodes.values()].count("TNF") == len(same)


def test_facts_are_ordered(files: ReportFiles) -> None:
    facts = read_facts(files, 0)
    assert facts["place"].tolist() == list(range(1, NUM_PAIRS + 1))
    sides = [facts[facts["influence"] > 0], facts[facts["influence"] < 0]]
    assert [len(side) > 1 for side in sides] == [True, True]
    assert [side["place"].iloc[0] for side in sides] == [1, len(sides[0]) + 1]
    for side in sides:
        assert side["influence"].abs().is_monotonic_decreasing
        assert side["rank"].tolist() == list(range(1, len(side) + 1))


@pytest.mark.parametrize("indent", [None, 0, 3])
def test_parts_of_the_json_file_are_read_whatever_its_layout(
    files: ReportFiles, tmp_path: Path, indent: int | None
) -> None:
    assert files.json is not None
    content = json.loads(files.json.read_text())
    turned = dict(reversed(content.items()))
    turned["tests"] = [dict(reversed(test.items())) for test in content["tests"]]
    whole = read_influence_json(files.json)
    path = tmp_path / "influence.json"
    for layout in (content, turned):
        path.write_text(json.dumps(layout, indent=indent))
        assert read_influence_json(path) == whole
        outline = read_influence_outline(path)
        assert outline.model == whole.model
        assert outline.settings == whole.settings
        for place, test in enumerate(whole.tests):
            shared = [field.name for field in fields(ScoredTriple)]
            told = outline.tests[place]
            assert [getattr(told, f) for f in shared] == [getattr(test, f) for f in shared]
            frame, one = read_explained_triple(path, place)
            assert one == test
            assert frame.model == whole.model


def test_hundreds_of_checkpoints_are_read_without_a_warning(
    files: ReportFiles, tmp_path: Path
) -> None:
    assert files.parquet is not None
    table = pd.read_parquet(files.parquet)
    steps = {f"checkpoint_{step}": table[SCORE_COLUMN] * step for step in range(1000, 1300)}
    path = tmp_path / "influence.parquet"
    pd.concat([table, pd.DataFrame(steps)], axis=1).to_parquet(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        facts = read_facts(ReportFiles(parquet=path), 0)
    assert facts["checkpoint_1299"].to_numpy() == pytest.approx(facts["influence"] * 1299)


def change(content: Any, *path: str | int, to: object) -> Any:
    for key in path[:-1]:
        content = content[key]
    content[path[-1]] = to
    return content


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Invalid JSON"),
        ("[]", "as an influence report"),
        ('{"schema_version": 3, "tests": []}', "schema_version is 3"),
        ('{"schema_version": 1, "tests": []}', "model: missing"),
        ('{"schema_version": 1, "tests": [{"test": 1}]}', "missing|expected"),
        ("[" * 100_000, "Invalid JSON"),
    ],
)
def test_a_file_that_is_no_report(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "influence.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_head(ReportFiles(json=path))


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_bytes_that_are_no_file(files: ReportFiles, tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"influence.{kind}"
    path.write_bytes(b"\xff\xfe\x00 nonsense \x80" * 50)
    damaged = replace(files, **{kind: path})
    with pytest.raises(DataError):
        read_facts(damaged, 0) if kind == "parquet" else read_head(damaged)


def test_a_table_alone_is_no_report(files: ReportFiles) -> None:
    with pytest.raises(DataError, match=r"influence\.json"):
        read_head(replace(files, json=None))


def test_a_table_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "influence.parquet"
    pd.DataFrame({"a": [1]}).to_parquet(path)
    with pytest.raises(DataError, match="column test_head is missing"):
        read_facts(ReportFiles(parquet=path), 0)


def test_a_test_that_is_not_there(files: ReportFiles) -> None:
    with pytest.raises(DataError, match="no test triple 99"):
        read_facts(ReportFiles(json=files.json), 99)
    assert read_facts(files, 99).empty


def test_agreement_of_equal_and_reversed_lists(files: ReportFiles) -> None:
    facts = read_facts(files, 0)
    same = agreement(facts, facts)
    assert same.spearman == pytest.approx(1.0)
    assert set(same.overlap.values()) == {1.0}
    assert same.facts["moved"].abs().sum() == 0
    turned = facts.assign(influence=-facts["influence"])
    assert agreement(facts, turned).spearman == pytest.approx(-1.0)
    assert agreement(facts, turned).overlap[10] == 0.0
    assert agreement(facts, facts.assign(influence=1.0)).spearman is None
    assert agreement(facts.head(2), facts).spearman is None


@pytest.mark.parametrize("kept", [8, 20])
def test_agreement_of_a_list_and_its_ends(files: ReportFiles, kept: int) -> None:
    """The strongest facts of either side are as helpful in the list of them as among all facts."""
    facts = read_facts(files, 0)
    ends = facts[(facts["influence"] != 0) & (facts["rank"] <= kept)]
    assert len(ends) == 2 * kept
    found = agreement(facts, ends)
    assert found.overlap == {min(kept, 10): 1.0}
    assert found.facts["moved"].abs().sum() == 0


def test_agreement_without_common_facts(files: ReportFiles) -> None:
    facts = read_facts(files, 0)
    found = agreement(facts, facts.head(0))
    assert (len(found.facts), found.spearman, found.overlap) == (0, None, {})
