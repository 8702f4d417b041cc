"""The page Ask for language models and models of image sequences: real commands, real answers."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from clew.__main__ import run as run_command
from clew.errors import UsageError
from clew.language_modeling.model import Sampling
from clew.ui import access
from clew.ui.components import jobs, windows
from clew.ui.components.jobs import Job, Jobs
from clew.workflows.predict_windows import TextRequest, predict_frames, predict_text
from tests.image_sequences.sequence_files import METADATA, sequence_columns, write_folder
from tests.recorded import Recorded
from tests.ui.conftest import Open, no_surprise, shown

PLAYS, CLOUDS = "clew-plays", "clew-clouds"


@pytest.fixture(scope="session")
def champions(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Return a store with three champions, one of each kind."""
    store = recorded.copy(tmp_path_factory.mktemp("champions") / "store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", store.uri)
        for run, name in (("text", PLAYS), ("frames", CLOUDS)):
            assert run_command(["promote", f"--run-id={store.runs[run]}", f"--name={name}"]) == 0
    return store


@pytest.fixture
def started(
    champions: Recorded, use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Job]]:
    """Return the commands that the page has started."""
    use(champions.uri)
    own, found = Jobs(), []
    start = own.start

    def remember(*arguments: object, **settings: object) -> Job:
        found.append(start(*arguments, **settings))  # type: ignore[arg-type]
        return found[-1]

    own.start = remember  # type: ignore[method-assign]
    monkeypatch.setattr(jobs, "jobs", lambda: own)
    yield found
    own.close()


def answered(app: AppTest, started: list[Job]) -> AppTest:
    """Return the page once the last command has ended."""
    started[-1].wait()
    return no_surprise(app.run())


@pytest.mark.slow
def test_a_text_is_continued_as_by_the_command(
    page: Open, champions: Recorded, started: list[Job]
) -> None:
    settings = {"tokens": "30", "temperature": "0.7", "seed": "3"}
    app = page("ask", champions.uri, model=PLAYS, **settings)
    assert app.button(key="ask").disabled
    app.text_area(key="ask-prompt").set_value("<b>3</b> green").run()
    no_surprise(app.button(key="ask").click().run())
    app = answered(app, started)
    assert [job.state for job in started] == ["done"]
    request = TextRequest("<b>3</b> green", 30, Sampling(0.7), 3)
    expected = "".join(predict_text(f"models:/{PLAYS}@champion", request))
    assert started[0].output() == expected
    assert "&lt;b&gt;3&lt;/b&gt; green<mark>" in shown(app)
    assert app.get("download_button")
    assert app.query_params["prompt"] == "<b>3</b> green"
    link = {"prompt": "<b>3</b> green", "answer": "gone"} | settings
    page("ask", champions.uri, model=PLAYS, **link)
    started[1].wait()
    assert started[1].output() == expected


@pytest.mark.slow
def test_what_a_tokenizer_or_a_command_refuses_is_said_on_the_page(
    page: Open, champions: Recorded, started: list[Job], tmp_path: Path
) -> None:
    app = page("ask", champions.uri, model=CLOUDS, frames=str(tmp_path / "none"), answer="gone")
    app = answered(app, started)
    assert "no such file or folder" in shown(app)
    assert not app.dataframe


@pytest.mark.slow
def test_frames_on_the_server_are_predicted_with_intervals(
    page: Open, champions: Recorded, started: list[Job], tmp_path: Path
) -> None:
    columns = sequence_columns(groups=2, frames_in_group=7, seed=1)
    frames = write_folder(tmp_path / "new", columns)
    link = {"frames": str(frames), "answer": "gone", "share": "80 %"}
    app = answered(page("ask", champions.uri, model=CLOUDS, **link), started)
    model, output = f"models:/{CLOUDS}@champion", tmp_path / "out.parquet"
    result = predict_frames(model, frames, output, confidence=0.8)
    table = app.dataframe[0].value
    assert {"Prediction [km]", "Lower [km]", "Upper [km]"} <= set(table.columns)
    plain = {name: name.removesuffix(" [km]").lower().replace(" ", "_") for name in table}
    pd.testing.assert_frame_equal(table.rename(columns=plain), pd.read_parquet(output))
    assert result.intervals is not None
    width = f"{result.intervals.half_width:.4g} km"
    assert f"Intervals of 80%: ± {width}, from 8 validation windows" in shown(app)
    (drawn,) = app.get("vega_lite_chart")
    assert {"area", "line"} <= set(marks(json.loads(drawn.proto.spec)))
    labels = [button.proto.label for button in app.get("download_button")]
    assert labels == ["⤓ CSV", "⤓ Parquet"]
    app.selectbox(key="group").set_value("flight 1")
    app = no_surprise(app.run())
    assert set(app.dataframe[0].value["Group"]) == {"flight 1"}
    assert len(started) == 1


@pytest.mark.slow
def test_uploaded_frames_are_predicted(
    page: Open, champions: Recorded, started: list[Job], tmp_path: Path
) -> None:
    frames = write_folder(tmp_path / "new", sequence_columns(groups=1, seed=1), METADATA)
    app = page("ask", champions.uri, model=CLOUDS, share="50 %")
    app.file_uploader(key="uploads").set_value(
        [(path.name, path.read_bytes(), "") for path in sorted(frames.iterdir())]
    )
    app.run()
    no_surprise(app.button(key="ask").click().run())
    app = answered(app, started)
    assert "Intervals of 50%" in shown(app)
    assert len(app.dataframe[0].value) == 10


@pytest.mark.slow
def test_who_has_to_sign_in_names_no_place_on_the_server(
    page: Open, champions: Recorded, started: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "is_configured", lambda: True)
    app = page("ask", champions.uri, model=CLOUDS, frames="/etc", answer="gone")
    assert started == []
    assert not app.text_input
    assert app.file_uploader


@pytest.mark.slow
def test_another_model_does_not_show_the_answer_of_the_one_before(
    page: Open, champions: Recorded, started: list[Job]
) -> None:
    app = page("ask", champions.uri, model=PLAYS, prompt="3 green", answer="gone")
    answered(app, started)
    app.selectbox(key="ask-model").set_value(CLOUDS)
    app = no_surprise(app.run())
    assert "answer" not in app.query_params
    assert app.query_params["model"] == CLOUDS
    assert "green" not in shown(app)


@pytest.mark.slow
def test_an_address_names_the_model_and_asks_no_other_one(
    page: Open, champions: Recorded, started: list[Job], tmp_path: Path
) -> None:
    first = page("ask", champions.uri).selectbox(key="ask-model").value
    assert first == CLOUDS, "the one that is asked unless another is chosen"
    app = page("ask", champions.uri, frames=str(tmp_path / "none"), answer="gone")
    app = answered(app, started)
    assert app.query_params["model"] == CLOUDS
    app = page("ask", champions.uri, model="deleted", frames=str(tmp_path), answer="gone")
    assert "names the model deleted, which has no champion here" in shown(app)
    assert "answer" not in app.query_params
    assert len(started) == 1


@dataclass
class File:
    """A chosen file."""

    name: str

    def getvalue(self) -> bytes:
        return self.name.encode()


@pytest.mark.parametrize(
    ("names", "stored"),
    [
        (["My Frames.H5"], ["frames.h5"]),
        (["images.npy", "sequences.json"], ["frames/images.npy", "frames/sequences.json"]),
    ],
)
def test_an_upload_is_stored_under_the_names_of_the_command(
    names: list[str], stored: list[str]
) -> None:
    assert list(windows.uploaded([File(name) for name in names])) == stored


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a.h5", "b.h5"], "a.h5 was chosen; expected one HDF5 file alone, or files named"),
        (["images.npy", "../etc.npy"], "../etc.npy was chosen"),
        (["images.npy", "images.npy"], "the same file twice was chosen"),
    ],
)
def test_other_files_are_refused_in_one_line(names: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace(".", r"\.")):
        windows.uploaded([File(name) for name in names])


def marks(spec: dict[str, object]) -> list[str]:
    """Return the marks of a layered chart."""
    return [layer["mark"]["type"] for layer in spec["layer"]]  # type: ignore[index,attr-defined]
