"""The explanation of a text: read, filtered, marked, shown as a page, or said to be broken."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from clew import names
from clew.errors import DataError
from clew.runs.reading.report_files import report_files
from clew.runs.reading.texts import read_text_report, windows_of
from clew.runs.window_records import TEXT_INFLUENCE_JSON, TextInfluenceReport, TextWindow
from tests.ui.conftest import Open, shown
from tests.ui.seed import Seeder, empty_store
from ui.components import influence_charts, markup
from ui.data.influence import FactFilter, report_of_upload
from ui.data.texts import filter_windows, shared_passages

HOSTILE = "<script>alert(1)</script> what light through yonder window shines\n"


def entry(rank: int, window: int, influence: float, text: str) -> TextWindow:
    shares = (0.75 * influence, 0.25 * influence)
    return TextWindow(
        rank=rank,
        window=window,
        first_token=64 * window,
        text=text,
        influence=influence,
        cosine=influence / 10,
        by_checkpoint=shares,
        by_part={"embedding": shares[1], "layers": shares[0]},
    )


@pytest.fixture
def report() -> TextInfluenceReport:
    return TextInfluenceReport(
        run_id="0" * 32,
        dataset="plays",
        prompt="But soft, what light through ",
        continuation="yonder window breaks",
        loss=12.5,
        self_influence=31.0,
        num_windows=1200,
        seconds=3.5,
        device="cpu",
        steps=(100, 200),
        weights=(0.01, 0.01),
        proponents=(entry(1, 7, 4.0, HOSTILE), entry(2, 3, 2.0, "another window of text")),
        opponents=(entry(1, 900, -3.0, "nothing alike"),),
        settings={"window": 64},
    )


@pytest.fixture
def folder(report: TextInfluenceReport, tmp_path: Path) -> Path:
    report.write(tmp_path / TEXT_INFLUENCE_JSON)
    return tmp_path


def record(uri_folder: Path, content: str) -> tuple[str, str]:
    """Record a file as the explanation of a trace run; return the store and the run."""
    seeder = Seeder(empty_store(uri_folder))
    tags = {
        names.TAG_KIND: names.KIND_TRACE,
        names.TAG_TASK: names.TASK_LANGUAGE_MODELING,
        names.TAG_DATASET: "plays",
    }
    run_id = seeder.run(name="trace-text plays", tags=tags, params={}, metrics=[])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / TEXT_INFLUENCE_JSON
        path.write_text(content, encoding="utf-8")
        seeder.client.log_artifacts(run_id, folder, names.ARTIFACT_INFLUENCE)
    return seeder.uri, run_id


def test_windows_are_in_order_of_their_influence(report: TextInfluenceReport) -> None:
    windows = windows_of(report)
    assert list(windows["window"]) == [7, 3, 900]
    assert list(windows["rank"]) == [1, 2, 3]
    assert list(windows["first_token"]) == [448, 192, 57_600]
    assert list(windows["last_token"]) == [511, 255, 57_663]
    assert list(windows["checkpoint_100"]) == [3.0, 1.5, -2.25]
    assert list(windows["part_embedding"]) == [1.0, 0.5, -0.75]
    assert windows_of(replace(report, proponents=(), opponents=())).empty


def test_windows_are_filtered_by_text_and_side(report: TextInfluenceReport) -> None:
    windows = windows_of(report)
    assert list(filter_windows(windows, FactFilter(text="ANOTHER"))["window"]) == [3]
    assert list(filter_windows(windows, FactFilter(side="opponents"))["window"]) == [900]
    assert list(filter_windows(windows, FactFilter())["window"]) == [7, 3, 900]


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
    html = markup.marked("<b>a</b> <i>", [(0, 8)])
    assert html == "<mark>&lt;b&gt;a&lt;/b&gt;</mark> &lt;i&gt;"


def test_places_are_drawn_with_their_sign(report: TextInfluenceReport) -> None:
    spec = influence_charts.place_bars(windows_of(report), "influence", 1).to_dict()
    (drawn,) = spec["datasets"].values()
    assert [row["sign"] for row in drawn] == ["helps", "helps", "opposes"]
    assert [row["chosen"] for row in drawn] == [True, False, False]
    assert spec["encoding"]["x"]["field"] == "first_token"


def test_an_explained_text_is_a_page(page: Open, folder: Path, tmp_path: Path) -> None:
    uri, run_id = record(tmp_path / "store", (folder / TEXT_INFLUENCE_JSON).read_text())
    app = page("influence", uri, run=run_id)
    text = shown(app)
    assert not app.error
    assert "But soft, what light through <mark>yonder window breaks</mark>" in text
    assert "Of 1,200 training windows" in text
    assert "From plays, tokens 448 to 511" in text
    assert (
        "&lt;script&gt;alert(1)&lt;/script&gt;<mark> what light through yonder window </mark>"
        in text
    )
    assert "<script>" not in text
    numbers = {metric.label: metric.value for metric in app.metric}
    assert numbers["Loss [nats]"] == "12.5"
    assert numbers["Windows scored"] == "1,200"
    table = app.dataframe[0].value
    assert list(table["Window"]) == [7, 3, 900]
    assert list(table[""]) == ["▲", "▲", "▼"]
    other = shown(page("influence", uri, run=run_id, fact="3"))
    assert "made it less likely" in other
    assert "nothing alike" in other


def test_numbers_that_are_not_of_the_average_say_so(
    page: Open, folder: Path, report: TextInfluenceReport, tmp_path: Path
) -> None:
    for kept in ({}, {"ema_decay": 0.99}):
        replace(report, settings=kept).write(folder / TEXT_INFLUENCE_JSON)
        content = (folder / TEXT_INFLUENCE_JSON).read_text()
        uri, run_id = record(tmp_path / f"store {len(kept)}", content)
        said = names.NOT_OF_THE_AVERAGE in shown(page("influence", uri, run=run_id))
        assert said == bool(kept)


def test_a_search_that_finds_no_window_says_so(page: Open, folder: Path, tmp_path: Path) -> None:
    uri, run_id = record(tmp_path / "store", (folder / TEXT_INFLUENCE_JSON).read_text())
    assert "No training window passes" in shown(
        page("influence", uri, run=run_id, factfind="no such text")
    )


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
    page: Open, folder: Path, tmp_path: Path, which: str
) -> None:
    content = broken((folder / TEXT_INFLUENCE_JSON).read_text(), which)
    uri, run_id = record(tmp_path / "store", content)
    with pytest.raises(DataError, match=TEXT_INFLUENCE_JSON.replace(".", r"\.")):
        read_text_report(report_files(run_id, tmp_path, uri=uri))
    app = page("influence", uri, run=run_id)
    (error,) = app.error
    assert "cannot be shown" in error.value
    assert app.selectbox(key="run-box")


def test_a_text_from_the_disk_is_recognised(folder: Path, report: TextInfluenceReport) -> None:
    content = (folder / TEXT_INFLUENCE_JSON).read_bytes()
    files = report_of_upload({TEXT_INFLUENCE_JSON: content})
    assert files.text is not None
    assert TextInfluenceReport.read(files.text) == report
