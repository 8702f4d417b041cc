import json
from dataclasses import replace

import pytest

from clew.errors import DataError
from clew.runs.influence_forms import CSV_COLUMNS, FORMS, TERM_COLUMNS, form_of
from clew.runs.influence_report import (
    CheckpointWeight,
    ExplainedTriple,
    InfluenceEntry,
    InfluenceReport,
    ReportModel,
    Term,
    TripleRecord,
    read_explained_triple,
    read_influence_json,
    read_influence_outline,
    write_influence_json,
)
from clew.workflows.explaining.tracin import TraceResult


def triple(*names: str) -> TripleRecord:
    head, relation, tail = (Term(name, name.upper()) for name in names)
    return TripleRecord(head, relation, tail)


def report(score: float = 1.5, settings: dict[str, object] | None = None) -> InfluenceReport:
    entry = InfluenceEntry(
        rank=1,
        train=triple("a\t,\"'", "r", "=é"),
        influence=0.25,
        by_checkpoint=(0.2, 0.05),
        by_part={"dense": 0.25},
        cosine=0.5,
        train_index=7,
    )
    test = ExplainedTriple(
        triple("a", "r", "b"), score, 1.5, 10, True, (entry,), (entry,), self_influence=2.0
    )
    model = ReportModel("run", "link_prediction", (CheckpointWeight(5, 100, 1e-3),))
    return InfluenceReport(
        model=model,
        settings=settings or {"top_k": 1},
        train_size=10,
        seconds=0.5,
        device="cpu",
        tests=(test,),
    )


def test_round_trip_and_schema(tmp_path):
    path = tmp_path / "influence.json"
    write_influence_json(report(), path)
    assert read_influence_json(path) == report()
    content = json.loads(path.read_text())
    assert list(content) == [
        "schema_version",
        "sign",
        "model",
        "settings",
        "train_size",
        "seconds",
        "device",
        "form",
        "label",
        "tests",
    ]
    assert content["form"] == form_of(report().settings).as_dict()
    test = content["tests"][0]
    assert test["test"]["head"] == {"id": "a", "label": "A"}
    assert set(test) == {
        "test",
        "score",
        "rank",
        "self_influence",
        "candidates",
        "truncated",
        "proponents",
        "opponents",
    }


def test_other_schema_version_is_named(tmp_path):
    path = tmp_path / "influence.json"
    write_influence_json(report(), path)
    content = json.loads(path.read_text())
    content["schema_version"] = 3
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"schema_version\b.*\b3\b.*\b1 and 2\b"):
        read_influence_json(path)


def test_files_of_the_first_version_still_open(tmp_path):
    path = tmp_path / "influence.json"
    write_influence_json(report(), path)
    content = json.loads(path.read_text())
    assert content["schema_version"] == 2
    path.write_text(json.dumps(content | {"schema_version": 1}))
    assert read_influence_json(path) == replace(report(), schema_version=1)
    assert read_influence_outline(path).schema_version == 1
    assert read_explained_triple(path, 0)[1] == report().tests[0]


def test_an_ensemble_says_how_far_its_runs_agree(tmp_path):
    path = tmp_path / "influence.json"
    one = report()
    entry = replace(one.tests[0].proponents[0], spread=0.125, runs_agreeing=2)
    test = replace(one.tests[0], proponents=(entry,), opponents=())
    several = replace(one, model=replace(one.model, runs=("run", "twin")), tests=(test,))
    write_influence_json(several, path)
    assert read_influence_json(path) == several
    assert read_influence_outline(path).model.runs == ("run", "twin")
    content = json.loads(path.read_text())["tests"][0]["proponents"][0]
    assert (content["spread"], content["runs_agreeing"]) == (0.125, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Invalid JSON"),
        ("[]", "as an influence report"),
        ('{"schema_version": 1}', "model: missing"),
        (
            '{"schema_version": 1, "model": 3}',
            "model: expected",
        ),
    ],
)
def test_malformed_files(tmp_path, text, message):
    path = tmp_path / "influence.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_influence_json(path)


def test_missing_file(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_influence_json(tmp_path / "none.json")


def test_not_a_number_is_refused_and_leaves_no_file(tmp_path):
    path = tmp_path / "influence.json"
    with pytest.raises(DataError, match="cannot"):
        write_influence_json(report(score=float("nan")), path)
    assert not list(tmp_path.iterdir())


def test_columns_correspond():
    assert ",".join(CSV_COLUMNS) == (
        "TestHead,TestHead_label,TestRel,TestRel_label,TestTail,TestTail_label,TrainHead,"
        "TrainHead_label,TrainRel,TrainRel_label,TrainTail,TrainTail_label,TracInScore"
    )
    snake = [
        name.replace("Test", "test_").replace("Train", "train_").lower() for name in CSV_COLUMNS
    ]
    assert tuple(snake[:-1]) == TERM_COLUMNS


def test_the_command_tells_the_models_score_and_influence_apart() -> None:
    said = TraceResult(report(1.5, {"score": "kronecker"}), "run", None).table()
    form = FORMS["kronecker"]
    assert form.heading in said
    assert form.sentence in said
    (first,) = [line for line in said.splitlines() if "1.5000" in line]
    assert "model's score" in first
    assert "filtered rank" in first
    facts = [line for line in said.splitlines() if line.startswith(("  + ", "  - "))]
    assert len(facts) == 2
    assert not any("score" in line for line in facts)


def test_a_report_file_names_its_form(tmp_path) -> None:
    path = tmp_path / "influence.json"
    write_influence_json(report(1.5, {"score": "cosine"}), path)
    assert json.loads(path.read_text())["form"] == FORMS["cosine"].as_dict()
    assert read_influence_json(path).settings == {"score": "cosine"}
