"""Training that starts from an earlier run: rows by name, counted new rows, refused models."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from clew.config.data import TripleData
from clew.config.load import load
from clew.config.schema import RunConfig
from clew.errors import ConfigError, UsageError
from clew.link_prediction.other_models import OtherModel
from clew.link_prediction.sources import load_graph
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import KnowledgeGraph
from clew.link_prediction.vocabulary import Vocabulary
from clew.runs.reading.runs import find_run
from clew.runs.reading.search import RunQuery, run_meant, search_runs
from clew.workflows.explaining.tracin import tracin
from clew.workflows.model_source import open_checkpoints, open_model
from clew.workflows.predict import open_predictor
from clew.workflows.subjects import build_task
from clew.workflows.train import train
from clew.workflows.tune import TuneRequest, tune
from clew.workflows.warm_start import check_start, start_warm
from tests.workflows.conftest import stored_run
from tests.workflows.trained import (
    ROOT,
    StoredRun,
    copy_store,
    dispose_of,
    use_store,
    write_other_split,
)

NEW_FACTS = "clay\tcauses\tvirus\nclay\tshapes\tpot\n"


def config_of(kind: str = "cp", **overrides: object) -> RunConfig:
    small = {
        "model.embedding_dim": 8,
        "training.device": "cpu",
        "training.num_epochs": 8,
        "optimizer.learning_rate": 0.05,
        "schedule.kind": "constant",
        "tracking.log_mfu": False,
    }
    return load(ROOT / f"experiments/link_prediction/umls_{kind}.yaml", small | overrides)


def grown(folder: Path) -> dict[str, object]:
    """UMLS with two new entities and a new relation, in another order of ids."""
    paths = write_other_split(folder)
    file = Path(paths["data__train"])
    file.write_text(NEW_FACTS + file.read_text(encoding="utf-8"), encoding="utf-8")
    found = {key.replace("__", "."): value for key, value in paths.items()}
    return found | {"data.name": None}


@pytest.fixture(scope="module")
def earlier_run(
    store_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StoredRun]:
    yield from stored_run(store_template, tmp_path_factory.mktemp("earlier"), config_of())


@pytest.fixture
def earlier(earlier_run: StoredRun, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the id of a finished run, and use its store."""
    use_store(monkeypatch, earlier_run.uri)
    return earlier_run.run_id


def test_rows_are_matched_by_name_and_new_ones_stay_as_built(earlier, tmp_path):
    config = config_of(**grown(tmp_path / "grown"))
    task = build_task(config)
    assert isinstance(task, LinkPrediction)
    torch.manual_seed(0)
    fresh, model = task.build_model(), task.build_model()
    model.load_state_dict(fresh.state_dict())
    found = start_warm(model, task, earlier)
    assert (found.entities_taken, found.entities_new) == (135, 2)
    assert (found.relations_taken, found.relations_new) == (46, 1)
    with open_model(earlier) as source:
        before, _ = open_predictor(source)
    tables = ("entity", "head_entity", "relation")
    sizes = {"relation": (len(before.relations), task.graph.num_relations)}
    for table in tables:
        now, built, old = (getattr(m, table).weight for m in (model, fresh, before.model))
        names = task.graph.relations if table == "relation" else task.graph.entities
        known = before.relations if table == "relation" else before.entities
        for number in range(len(names)):
            name = names.name(number)
            if name not in known:
                assert torch.equal(now[number], built[number]), name
                continue
            assert torch.equal(now[number], old[known.id(name)]), name
            if table in sizes:
                shift, shift_now = sizes[table]
                assert torch.equal(now[number + shift_now], old[known.id(name) + shift]), name
    assert "clay" in task.graph.entities
    assert "clay" not in before.entities


def test_training_goes_on_from_there_and_says_so(earlier, tmp_path):
    from mlflow import MlflowClient

    shared = grown(tmp_path / "grown") | {"training.num_epochs": 1}
    cold = train(config_of(**shared))
    warm = train(config_of(**shared, **{"model.warm_start": earlier}))
    assert warm.metrics["train/loss"] < 0.9 * cold.metrics["train/loss"]
    assert warm.run_id is not None
    tags = MlflowClient().get_run(warm.run_id).data.tags
    assert tags["clew.warm_start.entities_new"] == "2"
    assert tags["clew.warm_start.relations_taken"] == "46"
    assert earlier in tags["clew.warm_start.source"]


@pytest.fixture
def own_store(
    store_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    uri = copy_store(store_template, tmp_path)
    use_store(monkeypatch, uri)
    yield
    dispose_of(uri)


def other_model(graph: KnowledgeGraph) -> OtherModel:
    """A DistMult of another library, which numbers entities backwards."""
    torch.manual_seed(0)
    tables = {"entity": torch.randn(graph.num_entities, 4), "relation": torch.randn(92, 4)}
    entities = Vocabulary.from_names("entity", list(graph.entities)[::-1])
    settings = {"model.kind": "distmult", "model.embedding_dim": 4, "model.entity_bias": False}
    parameters = {f"{name}.weight": table for name, table in tables.items()}
    return OtherModel("PyKEEN's weights.pt", settings, parameters, entities, graph.relations)


def test_a_model_of_another_library_is_a_run_that_can_be_asked_and_explained(own_store):
    graph = load_graph(TripleData(name="umls"))
    other = other_model(graph)
    given = {"training.num_epochs": 1, "training.batch_size": 10, "optimizer.learning_rate": 0.5}
    run_id = str(train(config_of(**other.settings, **given), imported=other).run_id)
    tags = find_run(run_id).tags
    assert tags["clew.warm_start.source"] == other.source
    with open_checkpoints(run_id, {}) as (_, records):
        assert [record.learning_rate_weight for record in records] == [0.05]
    with open_model(run_id) as source:
        predictor, _ = open_predictor(source)
    assert torch.equal(predictor.model.entity.weight.flip(0), other.parameters["entity.weight"])
    assert torch.equal(predictor.model.relation.weight, other.parameters["relation.weight"])
    triple = ",".join((graph.entities.name(0), graph.relations.name(0), graph.entities.name(1)))
    report = tracin(run_id, triple, {"influence.top_k": "3"}).report
    assert len(report.tests[0].proponents) == 3


def test_a_model_of_another_library_needs_a_row_for_every_name(earlier):
    graph = load_graph(TripleData(name="umls"))
    other = other_model(graph)
    fewer = replace(other, entities=Vocabulary.from_names("entity", list(other.entities)[1:]))
    before = len(search_runs(RunQuery(), limit=100).runs)
    with pytest.raises(ConfigError):
        train(config_of(**other.settings), imported=fewer)
    assert len(search_runs(RunQuery(), limit=100).runs) == before


def test_newest_is_recorded_as_the_run_that_it_meant(earlier):
    newest = run_meant("newest", "train")
    warm = train(config_of(**{"training.num_epochs": 1, "model.warm_start": "newest"}))
    recorded = find_run(str(warm.run_id))
    assert recorded.params["cfg.model.warm_start"] == newest
    assert newest in recorded.tags["clew.warm_start.source"]


@pytest.mark.parametrize(
    ("kind", "reference", "message"),
    [
        ("cp", "0" * 32, f"model.warm_start: no run {'0' * 32}"),
        ("cp", "no/such", "model.warm_start: no run no/such and no such folder"),
        ("distmult", "newest", "a cp model, but model.kind is distmult"),
    ],
)
def test_a_start_that_cannot_be_used_is_refused_before_a_run_is_opened(
    earlier, kind, reference, message
):
    before = len(search_runs(RunQuery(), limit=100).runs)
    with pytest.raises(UsageError, match=message):
        train(config_of(kind, **{"model.warm_start": reference}))
    assert len(search_runs(RunQuery(), limit=100).runs) == before


def test_people_who_sign_in_start_from_no_folder_outside_the_data(earlier, tmp_path, monkeypatch):
    monkeypatch.setenv("CLEW_ONLY_DATA_IN", str(tmp_path / "data"))
    task = build_task(config_of())
    for folder, message in ((tmp_path, "is not in"), (tmp_path / "data", "no manifest.json")):
        folder.mkdir(exist_ok=True)
        with pytest.raises(UsageError, match=message):
            check_start(task, str(folder))


def test_trials_do_not_start_from_each_other(earlier, tmp_path):
    config = config_of(**{"model.warm_start": "newest"})
    with pytest.raises(ConfigError, match="each would start from the one before it"):
        tune(TuneRequest(config=config, output_dir=tmp_path / "search"))


@pytest.mark.parametrize(
    ("kind", "overrides", "message"),
    [
        ("distmult", {}, "a cp model, but model.kind is distmult"),
        ("cp", {"data.inverse_relations": False}, "trained with data.inverse_relations=true"),
        ("cp", {"model.embedding_dim": 6}, r"entity.weight has shape \(8,\), but here \(6,\)"),
        (
            "cp",
            {"model.entity_bias": True},
            r"entity_bias has shape \(no such parameter\), but here",
        ),
    ],
)
def test_models_that_do_not_fit_are_refused(earlier, kind, overrides, message):
    task = build_task(config_of(kind, **overrides))
    with pytest.raises(ConfigError, match=message):
        start_warm(task.build_model(), task, earlier)


def test_graphs_without_a_common_entity_are_refused(earlier, tmp_path):
    rows = {"train": "a\tr\tb\nb\tr\tc\n", "valid": "a\tr\tc\n", "test": "c\tr\ta\n"}
    paths: dict[str, object] = {"data.name": None}
    for split, text in rows.items():
        (tmp_path / split).write_text(text, encoding="utf-8")
        paths[f"data.{split}"] = str(tmp_path / split)
    task = build_task(config_of(**paths))
    with pytest.raises(ConfigError, match="its names are like 'acquired_abnormality', here they"):
        start_warm(task.build_model(), task, earlier)


def test_new_rows_are_counted_when_all_are_known(earlier):
    task = build_task(config_of())
    model = task.build_model()
    found = start_warm(model, task, earlier)
    assert (found.entities_new, found.relations_new) == (0, 0)
    assert np.isfinite(model.entity.weight.detach().numpy()).all()
