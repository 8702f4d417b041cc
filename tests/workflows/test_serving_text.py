"""A language model behind `mlflow models serve`: answers, and errors for invalid requests."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from clew.workflows.predict_windows import TextRequest, predict_text
from clew.workflows.promote import PromotionRequest, promote
from tests.workflows.servers import check_formless, post, refused, serving
from tests.workflows.trained import StoredRun

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(text_run: StoredRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", text_run.uri)
        promote(PromotionRequest(text_run.run_id, name="written"))
    log = tmp_path_factory.mktemp("serving") / "serve.log"
    with serving(text_run.uri, "written", log) as address:
        yield address


def test_a_served_model_writes_as_predict_does(text: StoredRun, served: str) -> None:
    request = {"dataframe_records": [{"prompt": "3 green"}], "params": {"max_tokens": 30}}
    status, answer = post(served, request)
    expected = "".join(predict_text("models:/written@champion", TextRequest("3 green", 30)))
    assert (status, answer) == (200, {"predictions": [{"text": expected}]})


def test_clients_that_ask_at_the_same_time_get_their_own_texts(served: str) -> None:
    def asked(seed: int) -> dict[str, object]:
        params = {"max_tokens": 5 + seed, "seed": seed}
        return {"dataframe_records": [{"prompt": f"{seed} green"}], "params": params}

    with ThreadPoolExecutor(12) as threads:
        together = list(threads.map(lambda seed: post(served, asked(seed)), range(12)))
    assert together == [post(served, asked(seed)) for seed in range(12)]


@pytest.mark.parametrize(
    ("row", "params", "message"),
    [
        ({"prompt": ""}, {}, "has no token"),
        ({"prompt": "\ud800"}, {}, "surrogates not allowed"),
        ({"prompt": 7}, {}, "expected rows with the text prompt"),
        ({"prompt": None}, {}, "expected rows with the text prompt"),
        ({"text": "a"}, {}, "a row has 'text'; valid: prompt; expected rows"),
        ({"prompt": "a"}, {"max_tokens": None}, "max_tokens: expected a whole number"),
        ({"prompt": "a"}, {"max_tokens": 10_001}, "at most 10000"),
        ({"prompt": "a"}, {"max_tokens": -1}, "at least 0"),
        ({"prompt": "a"}, {"temperature": -1.0}, "temperature"),
        ({"prompt": "a"}, {"temperature": float("nan")}, "temperature"),
        ({"prompt": "a"}, {"top_p": 0.0}, "top_p"),
        ({"prompt": "a"}, {"seed": 2**70}, "expected rows"),
        ({"prompt": "a"}, {"seed": "one"}, "seed"),
    ],
)
def test_a_bad_request_says_what_is_wrong(
    served: str, row: dict[str, object], params: dict[str, object], message: str
) -> None:
    status, line = refused(served, {"dataframe_records": [row], "params": params})
    assert status == 400
    assert message in line


def test_a_request_without_form_is_refused(served: str) -> None:
    check_formless(served)
    rows = [{"prompt": "3 green"}] * 3
    assert refused(served, {"dataframe_records": rows, "params": {"max_tokens": 10_000}})[0] == 400
    assert post(served, {"dataframe_records": rows[:1]})[0] == 200
