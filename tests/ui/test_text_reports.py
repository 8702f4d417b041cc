"""The explanation of a text: read, filtered, marked, shown as a page, or reported as broken."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clew import names
from clew.errors import DataError
from clew.runs.window_report import TEXT_INFLUENCE_JSON, TextInfluenceReport
from clew.ui.components import basics, jobs
from clew.ui.components.explanations import (
    SIDES,
    FactFilter,
    filter_rows,
    report_of_upload,
)
from clew.ui.components.windows import shared_passages, summary, text_windows
from tests.recorded import CONTINUATION, HOSTILE, PROMPT, Recorded
from tests.ui.conftest import Open, shown

FILE = f"{names.ARTIFACT_INFLUENCE}/{TEXT_INFLUENCE_JSON}"


@pytest.fixture
def report(recorded: Recorded) -> TextInfluenceReport:
    """Return the explanation of a continuation by `trace-text`, with every training window."""
    return TextInfluenceReport.read(recorded.files("trace text", FILE))


@pytest.fixture
def own(recorded: Recorded, tmp_path: Path) -> Recorded:
    """Return a store whose explanation a test can damage."""
    return recorded.copy(tmp_path / "store")


def test_windows_are_in_order_of_their_influence(report: TextInfluenceReport) -> None:
    windows = text_windows(report)
    assert len(windows) == report.num_windows
    assert windows["influence"].is_monotonic_decreasing
    assert list(windows["rank"]) == list(range(1, len(windows) + 1))
    assert (windows["first_token"] == 64 * windows["window"]).all()
    assert (windows["last_token"] == windows["first_token"] + 63).all()
    for prefix in ("checkpoint_", "part_"):
        shares = windows[[column for column in windows if column.startswith(prefix)]]
        assert shares.shape[1] > 1
        assert shares.sum(axis=1).tolist() == pytest.approx(list(windows["influence"]), rel=1e-3)
    assert text_windows(replace(report, proponents=(), opponents=())).empty


def test_windows_are_filtered_by_text_and_side(report: TextInfluenceReport) -> None:
    windows = text_windows(report)
    found = filter_rows(windows, FactFilter(text="YONDER WINDOW"), ["text"])
    assert len(found) > 0
    assert found["text"].str.contains("yonder window").all()
    opposing = filter_rows(windows, FactFilter(side=SIDES[2]), ["text"])
    assert set(opposing["window"]) == {entry.window for entry in report.opponents}
    assert len(filter_rows(windows, FactFilter(), ["text"])) == report.num_windows


@pytest.mark.parametrize(
    ("text", "other", "found"),
    [
        ("xx what light yy", "what light", ["what light"]),
        ("WHAT LIGHT", "see what light", ["WHAT LIGHT"]),
        ("short li", "li", []),
        ("aaaaaaaabaaaaaaaa", "aaaaaaaa", ["aaaaaaaa", "aaaaaaaa"]),
        ("İ what light", "what light", ["what light"]),
        ("", "what light", []),
    ],
)
def test_passages_in_common(text: str, other: str, found: list[str]) -> None:
    assert [text[a:b] for a, b in shared_passages(text, other)] == found


def test_marked_text_is_escaped() -> None:
    html = basics.marked("<b>a</b> <i>", [(0, 8)])
    assert html == "<mark>&lt;b&gt;a&lt;/b&gt;</mark> &lt;i&gt;"


def test_an_explained_text_is_a_page(
    page: Open, many: Recorded, report: TextInfluenceReport
) -> None:
    app = page("influence", many.uri, run=many.runs["trace text"])
    text = shown(app)
    assert not app.error
    assert f"{PROMPT}<mark>{CONTINUATION}</mark>" in text
    assert f"Of {report.num_windows} training windows" in text
    numbers = {metric.label: metric.value for metric in app.metric}
    assert float(numbers["Loss [nats]"]) == pytest.approx(report.loss, rel=0.01)
    assert numbers["Windows scored"] == str(report.num_windows)
    windows, table = text_windows(report), app.dataframe[0].value
    assert list(table["Window"]) == list(windows["window"])
    assert list(table["±"]) == ["▲" if value > 0 else "▼" for value in windows["influence"]]


def test_what_a_window_shares_with_the_text_is_marked(
    page: Open, many: Recorded, report: TextInfluenceReport
) -> None:
    windows = text_windows(report)
    (place, *_) = windows.index[windows["text"].str.contains(HOSTILE[0], regex=False)]
    window = windows.loc[place]
    text = shown(page("influence", many.uri, run=many.runs["trace text"], fact=str(window["rank"])))
    assert f"From plays, tokens {window['first_token']} to {window['last_token']}" in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<script>" not in text
    helps, opposes = "made the continuation more likely", "made it less likely"
    assert (helps if window["influence"] > 0 else opposes) in text
    (passage, *_) = shared_passages(window["text"], PROMPT + CONTINUATION)
    assert f"<mark>{window['text'][slice(*passage)]}</mark>" in text


def test_numbers_that_are_not_of_the_average_say_so(
    page: Open, own: Recorded, report: TextInfluenceReport
) -> None:
    assert report.settings["ema_decay"] == 0.5
    run_id = own.runs["trace text"]
    assert names.NOT_OF_THE_AVERAGE in shown(page("influence", own.uri, run=run_id))
    replace(report, settings={}).write(own.files("trace text", FILE))
    assert names.NOT_OF_THE_AVERAGE not in shown(page("influence", own.uri, run=run_id))


def test_a_search_that_finds_no_window_says_so(page: Open, many: Recorded) -> None:
    app = page("influence", many.uri, run=many.runs["trace text"], factfind="no such text")
    assert "passes these filters" in shown(app)


def broken(content: str, which: str) -> str:
    """Return a report with something wrong in it."""
    values = json.loads(content)
    if which == "version":
        return json.dumps(values | {"schema_version": 9})
    if which == "entry":
        return json.dumps(values | {"proponents": [{"rank": "first"}]})
    if which == "number":
        return json.dumps(values | {"loss": "much"})
    return {"json": "{not json", "list": "[]", "kind": '{"schema_version": 1}'}[which]


@pytest.mark.parametrize("which", ["version", "entry", "number", "json", "list", "kind"])
def test_a_broken_explanation_is_a_message(
    page: Open, own: Recorded, use: Callable[[str], None], which: str
) -> None:
    use(own.uri)
    path, run_id = own.files("trace text", FILE), own.runs["trace text"]
    path.write_text(broken(path.read_text(), which))
    with pytest.raises(DataError, match=TEXT_INFLUENCE_JSON.replace(".", r"\.")):
        TextInfluenceReport.read(path)
    app = page("influence", own.uri, run=run_id)
    (error,) = app.error
    assert "cannot be shown" in error.value
    assert app.selectbox(key="run-box")


@pytest.mark.parametrize("name", [TEXT_INFLUENCE_JSON, "mine.json"])
def test_a_text_from_the_disk_is_recognised(
    recorded: Recorded, report: TextInfluenceReport, name: str
) -> None:
    content = recorded.files("trace text", FILE).read_bytes()
    files = report_of_upload({name: content})
    assert files.text is not None
    assert TextInfluenceReport.read(files.text) == report


@pytest.mark.parametrize("content", [b"5", b"null", b'"prompt"', b"[" * 100_000, b"{"])
def test_a_file_that_is_no_report_is_refused_in_words_and_not_kept(content: bytes) -> None:
    kept = set(jobs.jobs().folder.iterdir())
    for name in ("mine.json", "mine.parquet"):
        with pytest.raises(DataError):
            report_of_upload({name: content})
    assert set(jobs.jobs().folder.iterdir()) == kept


def test_copies_are_in_the_folder_that_is_removed_after_a_killed_server(
    recorded: Recorded,
) -> None:
    files = report_of_upload({"mine.json": recorded.files("trace text", FILE).read_bytes()})
    assert files.text is not None
    assert files.text.is_relative_to(jobs.jobs().folder)


def test_the_summary_names_no_side_that_has_no_window() -> None:
    both = summary(1949, 20, 3)
    assert both == (
        "Of 1,949 training windows, the 20 that made it most likely (▲) and the 3 that made it "
        "least likely (▼) are listed."
    )
    assert summary(28, 5, 0) == (
        "Of 28 training windows, the 5 that made it most likely (▲) are listed."
    )
    assert summary(28, 0, 0) == "Of 28 training windows, none is listed."
