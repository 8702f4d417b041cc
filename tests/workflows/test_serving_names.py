"""A model whose names have special characters of addresses can still be served."""

from pathlib import Path

import pytest

from clew.runs import store
from clew.workflows.promote import PromotionRequest, promote
from tests.workflows.conftest import run_of
from tests.workflows.servers import post, serving
from tests.workflows.trained import dispose_of, small_config, use_store

pytestmark = pytest.mark.slow


def test_a_model_of_an_experiment_whose_name_needs_quoting_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "what?now #7, 100 % é"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    uri = store.tracking_uri()
    use_store(monkeypatch, uri)
    run_id = run_of(small_config(tracking__experiment="50% off? #7 / é", training__num_epochs=1))
    promote(PromotionRequest(run_id, name="quoted"))
    with serving(uri, "quoted", tmp_path / "serve.log") as address:
        rows = [{"head": "cell", "relation": "part_of"}]
        status, answer = post(address, {"dataframe_records": rows})
    assert (status, len(answer["predictions"])) == (200, 1)
    dispose_of(uri)
