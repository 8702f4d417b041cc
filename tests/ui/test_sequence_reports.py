"""The explanation of an image sequence: as a frame, and on a page with and without its picture."""

from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from clew import names
from clew.runs.window_report import (
    SEQUENCE_INFLUENCE_JSON,
    SEQUENCE_INFLUENCE_PICTURE,
    SequenceInfluenceReport,
)
from clew.ui.components.explanations import report_of_upload
from clew.ui.components.windows import sequence_windows
from tests.recorded import Recorded
from tests.ui.conftest import TIMEOUT_SECONDS, Open, shown

FOLDER = "influence"


@pytest.fixture
def report(recorded: Recorded) -> SequenceInfluenceReport:
    path = recorded.files("trace frames", f"{FOLDER}/{SEQUENCE_INFLUENCE_JSON}")
    return SequenceInfluenceReport.read(path)


@pytest.mark.parametrize("name", [SEQUENCE_INFLUENCE_JSON, "mine.json"])
def test_a_sequence_from_the_disk_is_recognised(
    recorded: Recorded, report: SequenceInfluenceReport, name: str
) -> None:
    path = recorded.files("trace frames", f"{FOLDER}/{SEQUENCE_INFLUENCE_JSON}")
    files = report_of_upload({name: path.read_bytes()})
    assert files.sequence is not None
    assert SequenceInfluenceReport.read(files.sequence) == report


def test_windows_come_in_order_of_their_influence(report: SequenceInfluenceReport) -> None:
    windows = sequence_windows(report)
    entries = (*report.proponents, *report.opponents)
    assert len(windows) == len(entries) > 1
    for side in (windows[windows["influence"] > 0], windows[windows["influence"] < 0]):
        assert side["influence"].abs().is_monotonic_decreasing
        assert side["rank"].tolist() == list(range(1, len(side) + 1))
    assert set(windows["last_frame"]) == {entry.last_frame for entry in entries}


def content(report: str, picture: str) -> None:
    from pathlib import Path

    from clew.runs.window_report import SequenceInfluenceReport
    from clew.ui.components import windows

    found = SequenceInfluenceReport.read(Path(report))
    windows.show_sequence(found, Path(picture) if picture else None)


@pytest.mark.parametrize("with_picture", [True, False])
def test_the_page_shows_prediction_and_windows(
    with_picture: bool, report: SequenceInfluenceReport, recorded: Recorded, tmp_path: Path
) -> None:
    path = tmp_path / SEQUENCE_INFLUENCE_JSON
    replace(report, group="<i>day", last_frame=1234).write(path)
    picture = recorded.files("trace frames", f"{FOLDER}/{SEQUENCE_INFLUENCE_PICTURE}")
    arguments = (str(path), str(picture) if with_picture else "")
    app = AppTest.from_function(content, args=arguments, default_timeout=TIMEOUT_SECONDS).run()
    assert not app.exception
    text = " ".join(element.value for element in (*app.markdown, *app.get("html")))
    text += " ".join(str(element.proto) for element in app.get("html"))
    assert "1,234" in text
    assert "<i>day" not in text
    assert [metric.value for metric in app.metric][-1] == str(len(report.steps))
    shown = app.dataframe[0].value[report.form.heading]
    assert list(shown) == list(sequence_windows(report)["influence"])
    assert any("picture" in c.value for c in app.caption) != with_picture


@pytest.mark.parametrize(
    ("search", "both"),
    [({"num_scored": 12, "opponents": False}, False), ({"num_scored": 12}, True)],
)
def test_the_page_says_what_an_index_chose(
    search: dict[str, object], both: bool, report: SequenceInfluenceReport, tmp_path: Path
) -> None:
    settings = {**report.settings, names.SETTING_SEARCH: search}
    path = tmp_path / SEQUENCE_INFLUENCE_JSON
    replace(report, num_windows=26, settings=settings).write(path)
    app = AppTest.from_function(
        content, args=(str(path), ""), default_timeout=TIMEOUT_SECONDS
    ).run()
    (said,) = [caption.value for caption in app.caption if "An index" in caption.value]
    assert "12 of 26 training windows as likely proponents" in said
    assert ("and opponents" in said) == both
    assert not any("An index" in note for note in report.notes())


def test_a_trace_run_of_frames_is_shown_on_the_page_influence(
    page: Open, many: Recorded, report: SequenceInfluenceReport
) -> None:
    app = page("influence", many.uri, run=many.runs["trace frames"])
    assert not app.error
    assert report.group in shown(app)
    assert f"frame {report.last_frame}" in shown(app)
