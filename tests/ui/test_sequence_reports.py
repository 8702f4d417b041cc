"""The explanation of an image sequence: as a frame, and on a page with and without its picture."""

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from clew import names
from clew.runs.window_records import SEQUENCE_INFLUENCE_JSON, FrameWindow, SequenceInfluenceReport
from tests.ui.conftest import Open, shown
from tests.ui.seed import Seeder, empty_store
from ui.data.sequences import windows_of


def report() -> SequenceInfluenceReport:
    def entry(rank: int, window: int, influence: float) -> FrameWindow:
        return FrameWindow(
            rank=rank,
            window=window,
            last_frame=window + 4,
            group="<b>flight",
            target=1.5,
            influence=influence,
            cosine=influence / 9,
        )

    return SequenceInfluenceReport(
        run_id="0" * 32,
        dataset="clouds",
        unit="km",
        last_frame=1234,
        group="<i>day",
        target=1.25,
        prediction=1.5,
        loss=0.3,
        self_influence=4.0,
        num_windows=700,
        seconds=1.0,
        device="cpu",
        steps=(10, 20),
        weights=(0.1, 0.1),
        proponents=(entry(1, 7, 2.0), entry(2, 8, 1.0)),
        opponents=(entry(1, 90, -3.0), entry(2, 91, -0.5)),
    )


def test_windows_come_in_order_of_their_influence() -> None:
    windows = windows_of(report())
    assert windows["influence"].tolist() == [2.0, 1.0, -0.5, -3.0]
    assert windows["last_frame"].tolist() == [11, 12, 95, 94]


def content(picture: str) -> None:
    from pathlib import Path

    from tests.ui.test_sequence_reports import report
    from ui.components import sequence_report

    sequence_report.show(report(), Path(picture) if picture else None)


@pytest.mark.parametrize("with_picture", [True, False])
def test_the_page_shows_prediction_and_windows(with_picture: bool, tmp_path: Path) -> None:
    picture = ""
    if with_picture:
        from matplotlib.figure import Figure

        picture = str(tmp_path / "frames.png")
        Figure(figsize=(1, 1)).savefig(picture)
    app = AppTest.from_function(content, args=(picture,)).run()
    assert not app.exception
    text = " ".join(element.value for element in (*app.markdown, *app.get("html")))
    text += " ".join(str(element.proto) for element in app.get("html"))
    assert "1,234" in text
    assert "<i>day" not in text
    assert [metric.value for metric in app.metric][-1] == "2"
    assert list(app.dataframe[0].value["Influence"]) == [2.0, 1.0, -0.5, -3.0]
    assert any("picture" in c.value for c in app.caption) != with_picture


def test_a_trace_run_of_frames_is_shown_on_the_page_influence(page: Open, tmp_path: Path) -> None:
    seeder = Seeder(empty_store(tmp_path / "store"))
    tags = {names.TAG_KIND: names.KIND_TRACE, names.TAG_TASK: names.TASK_SEQUENCE_REGRESSION}
    run_id = seeder.run(name="trace-sequence clouds", tags=tags, params={}, metrics=[])
    report().write(tmp_path / "files" / SEQUENCE_INFLUENCE_JSON)
    seeder.client.log_artifacts(run_id, str(tmp_path / "files"), names.ARTIFACT_INFLUENCE)
    app = page("influence", seeder.uri, run=run_id)
    assert not app.error
    assert "1,234" in shown(app)
