"""A model served by `mlflow models serve`, and a registry behind a real MLflow server."""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from clew.errors import PromotionRefused, TrackingError
from clew.link_prediction.prediction import Predictor, Query
from clew.link_prediction.subject import load_predictor
from clew.runs.registry import Registry
from clew.workflows.evaluate import evaluate
from clew.workflows.open_run import SERVED_FOLDER
from clew.workflows.predict import asked, predict
from clew.workflows.promote import PromotionRequest, promote, rollback
from clew.workflows.train import train
from tests.ports import free_port
from tests.workflows.servers import check_formless, post, process, refused, serving
from tests.workflows.trained import TrainedStore, small_config

pytestmark = pytest.mark.slow

ROWS = [
    {"head": "cell", "relation": "part_of"},
    {"tail": "cell", "relation": "part_of"},
    {"head": "acquired_abnormality", "relation": "location_of"},
]


@pytest.fixture(scope="module")
def served(trained_runs: TrainedStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a champion with the documented command, without the project on its path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", trained_runs.uri)
        promote(PromotionRequest(trained_runs.strong, name="served"))
    folder = tmp_path_factory.mktemp("serving")
    with serving(trained_runs.uri, "served", folder / "serve.log") as address:
        yield address


def test_a_served_model_answers_as_predict_does(trained: TrainedStore, served: str) -> None:
    status, answer = post(served, {"dataframe_records": ROWS})
    assert status == 200
    queries = [asked(row.get("head", ""), row["relation"], row.get("tail", "")) for row in ROWS]
    expected = predict("models:/served@champion", queries).as_dict()["predictions"]
    assert len(answer["predictions"]) == len(ROWS)
    for got, wanted in zip(answer["predictions"], expected, strict=True):
        assert {k: v for k, v in got.items() if k != "answers"} == {
            k: v for k, v in wanted.items() if k != "answers"
        }
        for a, b in zip(got["answers"], wanted["answers"], strict=True):
            assert a["score"] == pytest.approx(b["score"], abs=1e-5)
            assert a["probability"] == pytest.approx(b["probability"], abs=1e-6)
            rest = ("rank", "head", "tail", "label", "known")
            assert {k: a.get(k) for k in rest} == {k: b.get(k) for k in rest}


def test_a_request_may_set_parameters(served: str) -> None:
    content = {
        "dataframe_split": {"columns": ["head", "relation"], "data": [["cell", "part_of"]]},
        "params": {"top_k": 3, "filter_known": True},
    }
    status, answer = post(served, content)
    assert status == 200
    (prediction,) = answer["predictions"]
    assert len(prediction["answers"]) == 3
    assert not any(a["known"] for a in prediction["answers"])
    assert "tail" in prediction["answers"][0]


QUERY = {"head": "cell", "relation": "part_of"}
TRIPLE_NAMES = ("head", "relation", "tail")


@pytest.mark.parametrize(
    ("row", "params", "message"),
    [
        ({"head": "zell", "relation": "part_of"}, {}, "did you mean 'cell'"),
        ({"head": "cell", "relation": "part_off"}, {}, "did you mean 'part_of'"),
        ({"head": "cell", "tail": "zell", "relation": "part_of"}, {}, "did you mean 'cell'"),
        ({"relation": "part_of"}, {}, "either a head"),
        (QUERY | {"tial": "cell"}, {}, "a row has 'tial'; did you mean 'tail'? valid: "),
        ({"head": "cell"}, {}, "Model is missing inputs ['relation']; expected rows"),
        ({"head": 7, "relation": "part_of"}, {}, "expected rows with the texts relation"),
        ({"head": ["cell"], "relation": {"a": 1}}, {}, "expected rows with the texts relation"),
        (QUERY, {"top_k": None}, "top_k: expected a whole number; expected rows"),
        (QUERY, {"top_k": 0}, "top_k: expected at least 1"),
        (QUERY, {"top_k": 10**30}, "expected rows"),
        (QUERY, {"top_k": "ten"}, "top_k"),
        (QUERY, {"top_k": 2.5}, "top_k"),
        (QUERY, {"filter_known": "no"}, "filter_known"),
        (QUERY, {"filter_known": None}, "filter_known: expected true or false"),
        (QUERY, {"topk": 5}, "params has 'topk'; did you mean 'top_k'? valid: "),
    ],
)
def test_a_bad_request_says_what_is_wrong(
    served: str, row: dict[str, object], params: dict[str, object], message: str
) -> None:
    status, line = refused(served, {"dataframe_records": [row], "params": params})
    assert status == 400
    assert message in line


def test_a_bad_row_does_not_cost_the_good_ones(served: str) -> None:
    triple = QUERY | {"tail": "tissue"}
    rows = [QUERY, {"head": "zell", "relation": "part_of"}, triple, {"relation": "part_of"}]
    status, content = post(served, {"dataframe_records": rows, "params": {"seen": True}})
    assert status == 200
    good, unknown, scored, incomplete = content["predictions"]
    assert len(good["answers"]) == 10
    assert unknown.keys() == incomplete.keys() == {"error"}
    assert {scored[name] for name in TRIPLE_NAMES} == {"cell", "part_of", "tissue"}
    assert scored["head_rank"] >= 1
    assert 0 < scored["probability"] < 1


def test_a_request_without_form_is_refused(served: str) -> None:
    check_formless(served)
    status, line = refused(served, {"dataframe_records": []})
    assert status == 400
    assert line.startswith("dataframe_records is empty; expected rows with the texts relation")
    status, line = refused(served, {"dataframe_records": [QUERY], "top_k": 1})
    assert status == 400
    assert line.startswith("top_k is outside params; put it into params; expected")
    wrong = QUERY | {"kind": "x"}
    table = {"columns": list(wrong), "data": [list(wrong.values())]}
    for rows in (
        {"dataframe_split": table},
        {"inputs": {name: [value] for name, value in wrong.items()}},
        {"inputs": [QUERY, wrong]},
        {"instances": [wrong]},
    ):
        status, line = refused(served, rows)
        assert status == 400
        assert line.startswith("a row has 'kind'; valid: head, relation, tail; expected")
    many = {"dataframe_records": [QUERY] * 1000, "params": {"top_k": 10_000}}
    assert refused(served, many)[0] == 400
    status, line = refused(served, {"dataframe_records": [QUERY] * 1001})
    assert (status, line) == (400, "1001 rows; expected at most 1000 in one request")
    assert post(served, {"dataframe_records": ROWS})[0] == 200
    with urllib.request.urlopen(f"{served}/ready") as answer:
        assert len(json.load(answer)["predictions"]) == 1


def test_a_registered_model_runs_its_own_copy_of_the_package(
    trained: TrainedStore, tmp_path: Path
) -> None:
    """Without the project on the path, the server uses the model's own code."""
    promote(PromotionRequest(trained.strong, name="portable"))
    registry = Registry()
    folder = registry.download(registry.version("portable", "1"), tmp_path / "portable")
    program = f"""
import sys
sys.path[:] = [p for p in sys.path if not p.endswith(("/platform", "main"))]
sys.meta_path[:] = [f for f in sys.meta_path if "__editable__" not in repr(f)]
import mlflow.pyfunc, pandas
model = mlflow.pyfunc.load_model({str(folder)!r})
import clew, json
print(json.dumps({{"at": clew.__file__, "found": model.predict(pandas.DataFrame({ROWS[:1]!r}))}}))
"""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment | {"MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout.splitlines()[-1])
    assert Path(content["at"]).is_relative_to(folder)
    own = load_predictor(folder / SERVED_FOLDER)
    (expected,) = own.predict([Query("part_of", head="cell")])
    names = [answer["tail"] for answer in content["found"][0]["answers"]]
    assert names == [answer.name for answer in expected.answers]


@pytest.mark.filterwarnings("ignore")  # of MLflow's pyfunc and its use of pandas
def test_the_model_is_loaded_once(
    trained: TrainedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pandas as pd
    from mlflow import pyfunc

    promote(PromotionRequest(trained.strong, name="once"))
    registry = Registry()
    folder = registry.download(registry.version("once", "1"), tmp_path)
    loaded: list[Path] = []

    def counted(path: Path) -> Predictor:
        loaded.append(path)
        return load_predictor(path)

    monkeypatch.setattr("clew.link_prediction.subject.load_predictor", counted)
    monkeypatch.setattr(sys, "path", list(sys.path))
    model = pyfunc.load_model(str(folder))
    for _ in range(3):
        assert len(model.predict(pd.DataFrame(ROWS))) == len(ROWS)
    assert len(loaded) == 1


@pytest.fixture(scope="module")
def server(store_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a tracking server with its registry on loopback."""
    folder = tmp_path_factory.mktemp("registry")
    shutil.copyfile(store_template, folder / "mlflow.db")
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
    command += ["--artifacts-destination", str(folder / "mlartifacts")]
    address = f"http://127.0.0.1:{port}"
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with process(command, folder / "server.log", address, **environment):
        yield address


def test_promotion_over_a_real_server(
    server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    monkeypatch.setenv("CLEW_SPOOL", str(tmp_path / "spool"))
    weak, strong = (
        str(train(small_config(training__num_epochs=epochs, tracking__experiment="remote")).run_id)
        for epochs in (1, 4)
    )
    promote(PromotionRequest(weak, name="remote"))
    result = promote(PromotionRequest(experiment="remote", name="remote"))
    assert (result.run_id, result.number, result.former) == (strong, "2", "1")
    with pytest.raises(PromotionRefused):
        promote(PromotionRequest(weak, name="remote"))
    found_aliases = Registry().aliases("remote")
    assert found_aliases == {"champion": "2", "previous": "1", "challenger": "3"}
    (found,) = predict("models:/remote@champion", [asked("cell", "part_of", "")]).predictions
    (own,) = predict(strong, [asked("cell", "part_of", "")]).predictions
    assert [a.name for a in found.answers] == [a.name for a in own.answers]
    assert evaluate("models:/remote@champion").metrics["test/mrr"] > 0
    assert rollback("remote").number == "1"


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    for call in (
        lambda: promote(PromotionRequest("0" * 32)),
        lambda: rollback("x"),
        lambda: predict("models:/x@champion", [asked("a", "b", "")]),
        lambda: evaluate("0" * 32),
    ):
        with pytest.raises(TrackingError, match="does not answer"):
            call()
