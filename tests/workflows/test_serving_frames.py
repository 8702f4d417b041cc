"""Image sequences behind `mlflow models serve`: answers, and errors for invalid requests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from clew.workflows.predict_windows import predict_frames
from clew.workflows.promote import PromotionRequest, promote
from tests.image_sequences.sequence_files import write_folder
from tests.workflows.servers import check_formless, post, refused, serving
from tests.workflows.test_predict_frames import new_frames
from tests.workflows.trained import StoredRun

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(sequence_run: StoredRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", sequence_run.uri)
        promote(PromotionRequest(sequence_run.run_id, name="seen"))
    log = tmp_path_factory.mktemp("serving") / "serve.log"
    with serving(sequence_run.uri, "seen", log) as address:
        yield address


def window() -> dict[str, Any]:
    """Return the first window of frames that the model was not trained on."""
    columns = new_frames()
    scalars = columns["scalars"][:3].tolist()
    return {"images": columns["images"][:3, None].tolist(), "scalars": scalars}


def test_a_served_model_answers_as_predict_does(
    sequences: StoredRun, served: str, tmp_path: Path
) -> None:
    status, answer = post(served, {"dataframe_records": [window()]})
    assert status == 200
    frames = write_folder(tmp_path / "new", new_frames())
    predict_frames("models:/seen@champion", frames, tmp_path / "out.parquet")
    expected = pq.read_table(tmp_path / "out.parquet").to_pylist()[0]
    (found,) = answer["predictions"]
    assert found.keys() == {"prediction", "lower", "upper"}
    assert found == pytest.approx({key: expected[key] for key in found}, rel=1e-5)


@pytest.mark.parametrize(
    ("row", "params", "message"),
    [
        ({"images": window()["images"][:2]}, {}, "images is not an array of 3 x 1 x 9 x 13"),
        ({"scalars": [[1.0] * 3] * 2}, {}, "scalars is not an array of 3 x 3 finite numbers"),
        ({"scalars": None}, {}, "scalars is not an array of 3 x 3 finite numbers"),
        ({"scalars": "many"}, {}, "expected rows with images"),
        ({"images": 7}, {}, "expected rows with images"),
        ({"images": None}, {}, "expected rows with images"),
        ({"images": [[[["a"]]]]}, {}, "expected rows with images"),
        ({"images": {"a": []}}, {}, "expected rows with images"),
        ({"present": "now"}, {}, "expected rows with images"),
        ({}, {"confidence": None}, "confidence: expected a number"),
        ({}, {"confidence": 1.5}, "confidence: expected less than 1"),
        ({}, {"confidence": 0.9999}, "confidence"),
        ({}, {"confidence": "much"}, "confidence"),
    ],
)
def test_a_bad_request_says_what_is_wrong(
    served: str, row: dict[str, object], params: dict[str, object], message: str
) -> None:
    content = {"dataframe_records": [window() | row], "params": params}
    status, line = refused(served, content)
    assert status == 400
    assert message in line


def test_a_request_without_form_is_refused(served: str) -> None:
    check_formless(served)
    assert post(served, {"dataframe_records": [window()]})[0] == 200
