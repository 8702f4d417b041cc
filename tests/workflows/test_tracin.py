"""`tracin` and `batch_tracin` end to end, on a real store with trained runs."""

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest
from markupsafe import escape
from mlflow import MlflowClient

from clew import names
from clew.__main__ import run as run_command
from clew.config.data import TripleData
from clew.config.services import InfluenceConfig
from clew.errors import CheckpointError, ConfigError, DataError, TrackingError
from clew.files import cache_folder
from clew.influence import summation
from clew.influence.link_prediction import traced_run
from clew.influence.link_prediction.paths import Neighbourhood
from clew.link_prediction.sources import BUNDLED, load_graph
from clew.runs.influence_forms import CSV_COLUMNS, SPLIT
from clew.runs.influence_report import CONVE_PARTS, TripleRecord, read_influence_json
from clew.runs.reading.explanation import html_report, open_explanation, trapi_json
from clew.runs.reading.runs import find_run
from clew.training.manifest import MANIFEST_FILE, read_manifest
from clew.workflows.explaining import batch_tracin as batch_work
from clew.workflows.explaining import tracin as tracing
from clew.workflows.explaining.batch_tracin import BatchRequest, BatchResult, batch_tracin
from clew.workflows.explaining.result_files import OutputFolder
from clew.workflows.explaining.trace_source import GivenFiles, open_trace_source
from clew.workflows.explaining.tracin import tracin
from clew.workflows.open_run import open_run
from tests.edited import edit_manifest
from tests.workflows.trained import TrainedStore

LINES = (BUNDLED / "umls" / "test.txt").read_text().splitlines()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def triples(tmp_path: Path) -> Path:
    path = tmp_path / "triples.txt"
    path.write_text("\n".join(LINES[:6]) + "\n")
    return path


def test_three_files_and_a_linked_run(trained: TrainedStore, triples: Path, tmp_path: Path):
    told: list[tuple[int, int]] = []
    result = tracin(
        trained.strong,
        str(triples),
        {"influence.top_k": "4"},
        output=tmp_path / "out",
        progress=lambda done, total: told.append((done, total)),
    )
    report = read_influence_json(tmp_path / "out" / "influence.json")
    assert report == result.report
    assert len(report.tests) == 6
    assert report.model.run_id == trained.strong
    assert len(report.model.checkpoints) >= 1
    assert report.train_size == 5216
    first = report.tests[0]
    assert [first.test.head.id, first.test.relation.id, first.test.tail.id] == LINES[0].split("\t")
    assert len(first.proponents) == len(first.opponents) == 4
    assert set(first.proponents[0].by_part) == set(CONVE_PARTS) - {"convolution"}
    assert first.truncated
    assert report.settings["top_k"] == 4
    assert report.settings["precision"] == "float32"
    assert report.settings["score"] == "kronecker"  # what `auto` means
    header = (tmp_path / "out" / "influence.csv").read_text().splitlines()[0]
    assert header == ",".join(CSV_COLUMNS)
    assert pq.read_metadata(tmp_path / "out" / "influence.parquet").num_rows == 48
    assert told[-1][0] == told[-1][1] == 5216

    client = MlflowClient(trained.uri)
    recorded = client.get_run(result.run_id or "")
    assert recorded.info.status == "FINISHED"
    assert recorded.info.run_name == "tracin umls, 6 triples"
    tags, metrics = recorded.data.tags, recorded.data.metrics
    assert tags[names.TAG_KIND] == names.KIND_TRACE
    assert tags[names.TAG_SOURCE_RUN] == trained.strong
    assert tags[names.TAG_VARIANT] == "fp32"
    assert metrics[names.INFLUENCE_SECONDS_PER_TEST] > 0
    assert metrics[names.INFLUENCE_PAIRS_PER_SECOND] > 0
    stored = {info.path for info in client.list_artifacts(result.run_id or "", "influence")}
    pictures = {f"influence/picture-{index}.svg" for index in range(6)}
    tables = {f"influence/influence.{kind}" for kind in ("json", "csv", "parquet")}
    assert stored == tables | pictures
    path = client.download_artifacts(result.run_id or "", "influence/picture-0.svg", str(tmp_path))
    assert first.test.head.label in "".join(ElementTree.parse(path).getroot().itertext())
    named = [line for line in result.table().splitlines() if trained.strong in line]
    assert all(line.startswith(("next: ", "Not tested: ")) for line in named)
    assert "positive scores lower" in result.table()
    assert "virus (" not in result.table()


def test_entities_of_one_label_are_told_apart_by_their_ids(trained: TrainedStore):
    result = tracin(trained.strong, LINES[0].replace("\t", ","), {"influence.top_k": "4"})
    (test,) = result.report.tests
    facts = (*test.proponents, *test.opponents)
    assert not any(f"({fact.train.head.id})" in result.table() for fact in facts)

    def called_alike(triple: TripleRecord) -> TripleRecord:
        head, tail = (replace(end, label="Disease") for end in (triple.head, triple.tail))
        return replace(triple, head=head, tail=tail)

    alike = replace(
        test,
        test=called_alike(test.test),
        proponents=tuple(replace(f, train=called_alike(f.train)) for f in test.proponents),
    )
    table = replace(result, report=replace(result.report, tests=(alike,))).table()
    for triple in (test.test, *(fact.train for fact in test.proponents[:3])):
        head, tail = f"Disease ({triple.head.id})", f"Disease ({triple.tail.id})"
        assert f"{head} · {triple.relation.label} · {tail}" in table
    head = test.test.head
    last = replace(test.proponents[3].train, tail=replace(head, id="not shown"))
    facts = (*test.proponents[:3], replace(test.proponents[3], train=last))
    report = replace(result.report, tests=(replace(test, proponents=facts),))
    assert f"\n{head.label} ({head.id}) · " in replace(result, report=report).table()


def test_a_triple_of_a_list_is_named_by_its_place(trained: TrainedStore) -> None:
    head, relation, tail = LINES[0].split("\t")
    with pytest.raises(DataError, match=r"^triples\[1\]"):
        tracin(trained.strong, [(head, relation, tail), (head, relation, "nothing")], {})


def test_a_first_answer_has_the_scores_of_the_whole(trained: TrainedStore, tmp_path: Path):
    path, told = tmp_path / "first.json", []
    whole = tracin(
        trained.strong,
        LINES[0].replace("\t", ","),
        {"influence.top_k": "0"},
        first_answer=path,
        progress=lambda done, total: told.append(path.is_file()),
    )
    assert told[0], "it is there before all triples are scored"
    graph = load_graph(TripleData(name="umls"))
    index = Neighbourhood(graph.train, graph.num_entities)
    (first,), (test,) = read_influence_json(path).tests, whole.report.tests
    ends = (graph.entities.id(test.test.head.id), graph.entities.id(test.test.tail.id))
    near = index.candidates(*ends, InfluenceConfig(n_hops=1))
    assert first.candidates == len(near) < test.candidates == len(graph.train)
    assert (first.score, first.rank) == (test.score, test.rank)
    every = {entry.train_index: entry.influence for entry in (*test.proponents, *test.opponents)}
    found = {entry.train_index: entry.influence for entry in (*first.proponents, *first.opponents)}
    assert found.keys() == set(near.tolist())
    assert found == pytest.approx({place: every[place] for place in found}, rel=1e-4, abs=1e-7)


def test_what_explanations_share_is_prepared(trained: TrainedStore, monkeypatch):
    client = MlflowClient(trained.uri)
    experiments = [found.experiment_id for found in client.search_experiments()]
    before = len(client.search_runs(experiments))
    with open_trace_source(trained.strong, {"influence.score": "kronecker"}) as source:
        source.tracer.prepare()
    assert len(client.search_runs(experiments)) == before, "nothing is recorded"
    assert any(cache_folder("moments").glob("*.safetensors"))
    monkeypatch.delattr(traced_run, "kronecker")
    tracin(trained.strong, LINES[0].replace("\t", ","), {"influence.score": "kronecker"})


def test_a_first_answer_that_would_take_as_long_is_left_out(
    trained: TrainedStore, triples: Path, tmp_path: Path, monkeypatch, caplog
):
    monkeypatch.setattr(tracing, "LARGEST_SHARE", 0.001)
    with caplog.at_level("INFO"):
        tracin(trained.strong, str(triples), {}, first_answer=tmp_path / "first.json")
    assert not (tmp_path / "first.json").exists()
    assert "no first answer: " in caplog.text


def test_every_score_in_half_precision_of_the_last_layers(trained: TrainedStore, tmp_path: Path):
    settings = {
        "influence.top_k": "0",
        "influence.use_mixed_precision": "true",
        "influence.use_last_layers_only": "true",
        "influence.num_last_layers": "2",
    }
    target = tmp_path / "deep" / "results.json"
    result = tracin(trained.strong, LINES[3].replace("\t", ","), settings, output=target)
    report = read_influence_json(target)
    (test,) = report.tests
    assert len(test.proponents) + len(test.opponents) == test.candidates == 5216
    assert not test.truncated
    assert set(test.proponents[0].by_part) == {"entity_output", "dense"}
    assert report.notes() == [names.of_the_last_layers(2)]
    assert report.notes()[0] in result.table()
    deviation = report.settings["half_precision_deviation"]
    assert deviation["spearman_top_100"] > 0.9
    recorded = MlflowClient(trained.uri).get_run(result.run_id or "").data
    assert recorded.tags[names.TAG_VARIANT] == "bf16+last2"
    assert names.INFLUENCE_HALF_PRECISION_ERROR in recorded.metrics
    assert [path.name for path in target.parent.iterdir()] == ["results.json"]


def test_model_by_folder_of_checkpoints(trained: TrainedStore, tmp_path: Path):
    folder = download(trained, tmp_path)
    by_run = tracin(trained.strong, LINES[0].replace("\t", ","), {})
    by_folder = tracin(str(folder), LINES[0].replace("\t", ","), {})
    assert by_folder.report.tests == by_run.report.tests
    (last,) = sorted(folder.iterdir())[-1:]
    single = tracin(str(last), LINES[0].replace("\t", ","), {})
    assert len(single.report.model.checkpoints) == 1


def test_an_explanation_says_that_another_checkpoint_predicts(
    trained: TrainedStore, tmp_path: Path
) -> None:
    checkpoints, test = download(trained, tmp_path), LINES[0].replace("\t", ",")
    (last,) = sorted(checkpoints.iterdir())
    best = tmp_path / names.ARTIFACT_BEST
    shutil.copytree(last, best)
    epoch = read_manifest(last).epoch
    assert not tracin(str(tmp_path), test, {}).report.notes(), "the best one is the last one"
    for changes, unit in (({"step": 7, "epoch": 2}, "epoch"), ({"step": 7}, "step")):
        shutil.rmtree(best)
        shutil.copytree(last, best)
        edit_manifest(best, lambda manifest, changes=changes: manifest.update(changes))
        result = tracin(str(checkpoints), test, {}, output=tmp_path / f"out-{unit}")
        found = result.report.settings[names.SETTING_BEST]
        assert found["unit"] == unit
        assert (found["last"], found["best"]) == (
            ([epoch], [2]) if unit == "epoch" else ([read_manifest(last).step], [7])
        )
        (note,) = result.report.notes()
        shown = open_explanation(str(tmp_path / f"out-{unit}"), 0)
        assert note in result.table()
        assert escape(note) in html_report(shown)
        assert note in json.loads(trapi_json(shown))["description"]
    lines = tmp_path / "lines.txt"
    lines.write_text(LINES[0] + "\n")
    request = BatchRequest(str(checkpoints), str(lines), tmp_path / "many")
    assert note in batch_tracin(request).table()
    assert not tracin(str(last), test, {}).report.notes(), "the folder predicts by itself"


def test_the_best_checkpoint_of_a_recorded_run_is_known(trained: TrainedStore) -> None:
    with open_run(trained.strong, "test") as run:
        best = run.best_manifest()
        assert best is not None
        assert str(best.step) == find_run(trained.strong).tags[names.TAG_BEST_STEP]
    with open_run(trained.unvalidated, "test") as run:
        assert run.best_manifest() is None


def download(trained: TrainedStore, tmp_path: Path) -> Path:
    client = MlflowClient(trained.uri)
    return Path(client.download_artifacts(trained.strong, "checkpoints", str(tmp_path)))


@pytest.mark.parametrize(
    ("model", "test", "settings", "error", "message"),
    [
        ("", "a,b,c", {}, ConfigError, "no model given"),
        ("0" * 32, "a,b,c", {}, TrackingError, "no run 000"),
        ("./nowhere", "a,b,c", {}, CheckpointError, "no such folder"),
        ("strong", "", {}, DataError, "no test triple given"),
        ("strong", "missing.txt", {}, DataError, "no such file, and not a triple"),
        ("strong", "virus,isa", {}, DataError, "is not head,relation,tail"),
        ("strong", "virus,isa,entitty", {}, DataError, "did you mean 'entity'"),
        ("strong", "virus,isa,entity", {"influence.top_k": "-1"}, ConfigError, "top_k: '-1'"),
        ("strong", "virus,isa,entity", {"influence.topk": "1"}, ConfigError, "topk"),
    ],
)
def test_bad_input_is_one_line_and_no_run(trained, model, test, settings, error, message):
    client = MlflowClient(trained.uri)
    everywhere = [e.experiment_id for e in client.search_experiments()]
    before = len(client.search_runs(everywhere))
    with pytest.raises(error, match=message) as caught:
        tracin(getattr(trained, model, model) if model else "", test, settings)
    assert "\n" not in str(caught.value)
    assert len(client.search_runs(everywhere)) == before


def test_several_unknown_names_are_listed(trained: TrainedStore, tmp_path: Path):
    path = tmp_path / "wrong.txt"
    path.write_text("viruss\tisa\tentity\nvirus\tisa\tentity\nonly two\tfields\n")
    with pytest.raises(
        DataError, match=r"line 1: unknown entity 'viruss'.*line 3: .*not head<TAB>"
    ):
        tracin(trained.strong, str(path), {})


def test_training_file_must_be_the_model_s(trained: TrainedStore, tmp_path: Path):
    own = (BUNDLED / "umls" / "train.txt").read_text().splitlines()
    path = tmp_path / "train.txt"
    path.write_text("\n".join(reversed(own)) + "\n")
    assert tracin(
        trained.strong, LINES[0].replace("\t", ","), {}, files=GivenFiles(str(path))
    ).run_id
    path.write_text("\n".join(own[:-1]) + "\n")
    with pytest.raises(CheckpointError, match=r"train\.txt.*\b5215\b"):
        tracin(trained.strong, LINES[0].replace("\t", ","), {}, files=GivenFiles(str(path)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("learning_rate_weight"), "learning_rate_weight: missing"),
        (lambda m: m.update(data_fingerprint="0"), "was trained on data 0"),
        (lambda m: m["config"]["data"].update(name="nothing"), "data.name is 'nothing'"),
    ],
)
def test_damaged_checkpoints(trained, tmp_path, change: Callable, message):
    folder = download(trained, tmp_path)
    for path in [*folder.glob(f"*/{MANIFEST_FILE}")]:
        edit_manifest(path.parent, change)
    with pytest.raises((CheckpointError, ConfigError), match=message):
        tracin(str(folder), LINES[0].replace("\t", ","), {})
    shutil.rmtree(folder)
    folder.mkdir()
    with pytest.raises(CheckpointError, match="no checkpoints"):
        tracin(str(folder), LINES[0].replace("\t", ","), {})


@pytest.mark.parametrize(
    "setting",
    [{"loss.label_smoothing": "0.9"}, {"optimizer.learning_rate": "0.5"}, {"training.seed": "9"}],
)
def test_a_run_is_not_explained_as_if_it_were_trained_otherwise(trained, setting):
    ((key, value),) = setting.items()
    with pytest.raises(ConfigError, match=f"{key} .*{value}"):
        tracin(trained.strong, LINES[0].replace("\t", ","), setting)
    as_it_was = {"training.device": "cpu", "influence.top_k": "3", "loss.chunk_mib": "8"}
    assert tracin(trained.strong, LINES[0].replace("\t", ","), as_it_was).run_id


def test_a_run_is_called_by_the_triple_that_it_explains(trained: TrainedStore) -> None:
    run_id = tracin(trained.strong, LINES[0].replace("\t", ","), {"influence.top_k": "3"}).run_id
    name = MlflowClient(trained.uri).get_run(run_id or "").info.run_name
    assert name == "tracin " + " · ".join(LINES[0].split("\t"))


def test_results_of_other_settings_are_kept(trained: TrainedStore, tmp_path: Path):
    out, test = tmp_path / "out", LINES[0].replace("\t", ",")
    tracin(trained.strong, test, {}, output=out)
    before = (out / "influence.json").read_bytes()
    with pytest.raises(ConfigError, match=r"\(top_k\b.*\b10\b.*\b3\b"):
        tracin(trained.strong, test, {"influence.top_k": "3"}, output=out)
    assert (out / "influence.json").read_bytes() == before
    with pytest.raises(ConfigError, match=r"influence\.json .*test triples"):
        tracin(trained.strong, LINES[1].replace("\t", ","), {}, output=out)
    assert (out / "influence.json").read_bytes() == before
    tracin(trained.strong, test, {"influence.memory_budget_mib": "64"}, output=out)
    with pytest.raises(ConfigError, match=r"\((config_hash|model)\b"):
        tracin(trained.weak, test, {}, output=out)


def test_results_of_a_run_with_the_same_configuration_are_kept(trained, tmp_path):
    target, test = tmp_path / "results.json", LINES[0].replace("\t", ",")
    tracin(trained.strong, test, {}, output=target)
    content = json.loads(target.read_text())
    content["model"]["run_id"] = "twin"
    target.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=f"\\(model\\b.*'twin'.*'{trained.strong}'"):
        tracin(trained.strong, test, {}, output=target)
    content["model"] |= {"run_id": trained.strong, "checkpoints": []}
    target.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"\(checkpoints\b"):
        tracin(trained.strong, test, {}, output=target)


@pytest.mark.parametrize("name", ["results.csv", "results.parquet", "out/influence.csv"])
def test_files_that_do_not_say_of_what_they_are_are_kept(trained, tmp_path, name):
    existing = tmp_path / name
    existing.parent.mkdir(exist_ok=True)
    existing.write_text("precious")
    output = existing if existing.parent == tmp_path else existing.parent
    with pytest.raises(ConfigError, match=name):
        tracin(trained.strong, LINES[0].replace("\t", ","), {}, output=output)
    assert existing.read_text() == "precious"


def batch(
    trained: TrainedStore,
    triples: Path,
    folder: Path,
    *,
    settings: dict | None = None,
    **more: object,
) -> BatchResult:
    request = BatchRequest(
        model=trained.strong,
        test_triples=str(triples),
        output_dir=folder,
        overrides={"influence.n_hops": 1, "influence.top_k": 3} | (settings or {}),
        **more,
    )
    return batch_tracin(request)


def test_batch_equals_one_by_one(trained: TrainedStore, triples: Path, tmp_path: Path):
    together = batch(trained, triples, tmp_path / "all")  # six test triples at once
    assert together.count("done") == 6
    joined = read_influence_json(tmp_path / "all" / "influence" / "influence.json")
    for index in (0, 4):
        folder = tmp_path / str(index)
        alone = batch(trained, triples, folder, start_index=index, max_triples=1)
        assert alone.outcomes[0].index == index
        report = read_influence_json(folder / "tests" / f"{index:06d}" / "influence.json")
        a, b = joined.tests[index], report.tests[0]
        assert a.test == b.test
        assert a.candidates == b.candidates < 5216
        for ours, theirs in zip(
            a.proponents + a.opponents, b.proponents + b.opponents, strict=True
        ):
            assert ours.train == theirs.train
            assert ours.influence == pytest.approx(theirs.influence, rel=1e-4)
    table = pq.read_table(tmp_path / "all" / "influence" / "influence.parquet")
    assert table["test_index"].to_pylist() == sorted(table["test_index"].to_pylist())
    assert set(table["test_index"].to_pylist()) == set(range(6))
    lines = (tmp_path / "all" / "influence" / "influence.csv").read_text().splitlines()
    assert len(lines) == len(table) + 1
    summary = json.loads((tmp_path / "all" / "summary.json").read_text())
    assert summary["done"] == 6
    assert summary["tests"][0]["candidates"] == joined.tests[0].candidates


def test_filtered_scores_are_the_unfiltered_ones(
    trained: TrainedStore, triples: Path, tmp_path: Path
):
    triples.write_text("\n".join(LINES[:2]) + "\n")
    every = tracin(trained.strong, str(triples), {"influence.top_k": 0}).report
    filtered = batch(trained, triples, tmp_path / "b", settings={"influence.top_k": 0})
    assert filtered.count("done") == 2
    joined = read_influence_json(tmp_path / "b" / "influence" / "influence.json")
    for whole, part in zip(every.tests, joined.tests, strict=True):
        scores = {e.train_index: e.influence for e in whole.proponents + whole.opponents}
        for entry in part.proponents + part.opponents:
            assert entry.influence == pytest.approx(scores[entry.train_index], rel=1e-3, abs=1e-9)
        assert part.score == pytest.approx(whole.score, rel=1e-5)
        assert part.rank == whole.rank


def test_one_failing_triple_does_not_stop_the_rest(trained, tmp_path, monkeypatch):
    path = tmp_path / "mixed.txt"
    path.write_text(f"{LINES[0]}\nvirus\tisa\tnobody\nbroken line\n{LINES[1]}\n{LINES[2]}\n")
    real = batch_work.explain

    def failing(source, tests, **options):
        if (tests == np.array([ids_of(source, LINES[1])])).all(1).any():
            raise RuntimeError("something broke\nat length")
        return real(source, tests, **options)

    monkeypatch.setattr(batch_work, "explain", failing)
    result = batch(trained, path, tmp_path / "b")
    assert [outcome.status for outcome in result.outcomes] == [
        "done",
        "failed",
        "failed",
        "failed",
        "done",
    ]
    assert "unknown entity 'nobody'" in result.outcomes[1].message
    assert result.outcomes[3].message == "something broke"
    assert "3 failed" in result.table()
    monkeypatch.undo()


def test_a_triple_that_cannot_be_written_does_not_stop_the_rest(
    trained, triples, tmp_path, monkeypatch
):
    real = OutputFolder.write

    def failing(self, outcome, *arguments):
        if outcome.text == LINES[1]:
            raise MemoryError
        real(self, outcome, *arguments)

    monkeypatch.setattr(OutputFolder, "write", failing)
    triples.write_text("\n".join(LINES[:3]) + "\n")
    result = batch(trained, triples, tmp_path / "b")
    assert [outcome.status for outcome in result.outcomes] == ["done", "failed", "done"]
    assert result.outcomes[1].message == "MemoryError"


def ids_of(source, line: str) -> list[int]:
    head, relation, tail = line.split("\t")
    graph = source.task.graph
    return [graph.entities.id(head), graph.relations.id(relation), graph.entities.id(tail)]


def test_killed_batch_goes_on_behind_the_last_group(trained, triples, tmp_path, monkeypatch):
    real = batch_work.explain
    computed: list[int] = []

    def counted(source, tests, **options):
        if len(computed) == 2:
            raise KeyboardInterrupt
        computed.append(len(tests))
        return real(source, tests, **options)

    monkeypatch.setattr(batch_work, "explain", counted)
    two = {"influence.tests_per_group": 2}
    with pytest.raises(KeyboardInterrupt):
        batch(trained, triples, tmp_path / "b", settings=two)
    assert len(list((tmp_path / "b" / "tests").iterdir())) == 4
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "b" / "tests").rglob("*.json")}
    computed.clear()
    computed.append(0)
    result = batch(trained, triples, tmp_path / "b", settings=two)
    assert computed == [0, 2]
    assert [result.count("kept"), result.count("done")] == [4, 2]
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    monkeypatch.setattr(batch_work, "explain", real)
    whole = batch(trained, triples, tmp_path / "whole")
    assert whole.count("done") == 6
    a, b = (
        list(csv.reader((tmp_path / name / "influence" / "influence.csv").read_text().splitlines()))
        for name in ("b", "whole")
    )
    assert [row[:-1] for row in a] == [row[:-1] for row in b]


def test_parts_of_a_file_add_up_in_one_folder(trained, triples, tmp_path):
    triples.write_text("\n".join([*LINES[:3], "virus\tisa\tnobody"]) + "\n")
    folder = tmp_path / "b"
    batch(trained, triples, folder, start_index=1)
    batch(trained, triples, folder, max_triples=1)
    batch(trained, triples, tmp_path / "whole")
    joined, whole = (
        read_influence_json(tmp_path / name / "influence" / "influence.json")
        for name in ("b", "whole")
    )
    assert [test.test for test in joined.tests] == [test.test for test in whole.tests]
    parts = [read_influence_json(p) for p in folder.glob("tests/*/influence.json")]
    assert joined.seconds == pytest.approx(sum(part.seconds for part in parts))
    table = pq.read_table(folder / "influence" / "influence.parquet")
    assert set(table["test_index"].to_pylist()) == {0, 1, 2}
    summary = json.loads((folder / "summary.json").read_text())
    assert [(test["index"], test["status"]) for test in summary["tests"]] == [
        (0, "done"),
        (1, "kept"),
        (2, "kept"),
        (3, "failed"),
    ]
    assert [summary[status] for status in ("done", "kept", "failed")] == [1, 2, 1]


def test_a_group_without_shares_is_joined_with_others(trained, triples, tmp_path, monkeypatch):
    """Shares that would not fit into memory are left out of a group; the scores are complete."""
    every = {"influence.top_k": 0}
    batch(trained, triples, tmp_path / "b", settings=every, max_triples=1)
    monkeypatch.setattr(summation, "DETAILS_LIMIT_MIB", 0.0)
    batch(trained, triples, tmp_path / "b", settings=every, max_triples=2)
    table = pq.read_table(tmp_path / "b" / "influence" / "influence.parquet")
    assert set(table["test_index"].to_pylist()) == {0, 1}
    assert not [name for name in table.column_names if name.startswith(SPLIT)]


def test_batch_without_a_folder_has_one_for_each_request(trained, triples, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {"influence.top_k": 3, "influence.with_cosine": False}
    request = BatchRequest(trained.strong, str(triples), overrides=settings, max_triples=1)
    one = batch_tracin(request)
    again = batch_tracin(replace(request, max_triples=2))
    of_another = batch_tracin(replace(request, model=trained.weak))
    assert again.output_dir == one.output_dir != of_another.output_dir
    assert (one.count("done"), again.count("kept"), of_another.count("done")) == (1, 1, 1)


def test_results_of_another_version_are_refused_before_anything_is_explained(
    trained, triples, tmp_path, monkeypatch
):
    batch(trained, triples, tmp_path / "b", max_triples=1)
    path = tmp_path / "b" / "settings.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in settings.items() if k != "version_of_files"}))
    monkeypatch.setattr(batch_work, "explain_group", lambda *_: pytest.fail("explained"))
    with pytest.raises(ConfigError):
        batch(trained, triples, tmp_path / "b")


def test_batch_refuses_folders_of_something_else(trained, triples, tmp_path):
    batch(trained, triples, tmp_path / "b", max_triples=2)
    with pytest.raises(ConfigError, match=r"\(n_hops\b.*\b1\b.*\b2\b"):
        batch(trained, triples, tmp_path / "b", settings={"influence.n_hops": 2})
    triples.write_text("\n".join(LINES[3:6]) + "\n")
    with pytest.raises(ConfigError, match=r"\bline 1\b"):
        batch(trained, triples, tmp_path / "b")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("precious")
    with pytest.raises(ConfigError, match="is not empty"):
        batch(trained, triples, tmp_path / "other")
    assert (tmp_path / "other" / "thesis.tex").read_text() == "precious"


def test_batch_bad_input(trained, triples, tmp_path):
    triples.write_text("\n".join(LINES[:6]) + "\n")
    with pytest.raises(ConfigError, match=r"start_index\b.*\b6\b.*triples\.txt"):
        batch(trained, triples, tmp_path / "b", start_index=6)


def test_labels_from_other_files(trained, triples, tmp_path):
    head, relation, _ = LINES[0].split("\t")
    (tmp_path / "nodes.tsv").write_text(f"{head}\tThe head\n")
    (tmp_path / "edges.json").write_text(json.dumps({relation: "does something to"}))
    labels = {
        "node_name_dict": str(tmp_path / "nodes.tsv"),
        "edge_map": str(tmp_path / "edges.json"),
    }
    batch(trained, triples, tmp_path / "b", max_triples=1, **labels)
    (test,) = read_influence_json(tmp_path / "b" / "influence" / "influence.json").tests
    assert test.test.head.label == "The head"
    assert test.test.relation.label == "does something to"
    assert test.test.head.id == head
    (tmp_path / "edges.json").write_text(json.dumps({relation: "has to do with"}))
    with pytest.raises(ConfigError, match=r"\(edge_map_sha256\b"):
        batch(trained, triples, tmp_path / "b", **labels)


def test_commands(trained: TrainedStore, triples: Path, tmp_path: Path, capsys):
    test = LINES[0].replace("\t", ",")
    assert run_command(["tracin", f"--model={trained.strong}", f"--test={test}", "--top-k=2"]) == 0
    assert "score" in capsys.readouterr().out
    arguments = [f"--model={trained.strong}", f"--test-triples={triples}", "--n-hops=1", "--json"]
    arguments += [f"--output-dir={tmp_path / 'b'}", "--max-triples=2", "--disable-memory-cleanup"]
    arguments += ["--use-mixed-precision", "--strict-path-filtering", "false"]
    assert run_command(["batch-tracin", *arguments]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["done"] == 2
    recorded = MlflowClient(trained.uri).get_run(last["run_id"])
    assert recorded.data.tags[names.TAG_VARIANT] == "bf16-cleanup"
    assert run_command(["tracin", f"--model={trained.strong}", "--test=a,b,c"]) == 2
    assert "unknown entity" in capsys.readouterr().err


def test_batch_without_candidates(trained, triples, tmp_path):
    triples.write_text("steroid\tinteracts_with\tsteroid\n")  # no path leads back to its start
    strict = {"influence.strict_path_filtering": True}
    with pytest.raises(DataError, match=r"n_hops=1 .*strict_path_filtering=true"):
        batch(trained, triples, tmp_path / "b", settings=strict)
