"""An explanation says whether its scores were tested, and with what result."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clew.runs.validation_record import label_of
from tests.recorded import Recorded
from tests.runs.reading.test_validations import add_validation, record, settings_of
from tests.ui.conftest import Open, shown


@pytest.mark.parametrize("later", [False, True])
def test_the_page_influence_says_whether_the_scores_were_tested(
    page: Open, recorded: Recorded, use: Callable[[str], None], tmp_path: Path, later: bool
) -> None:
    store = recorded.copy(tmp_path / "store")
    use(store.uri)
    head, settings = settings_of(store, tmp_path / "files")
    label = head.label
    if later:
        found = record(head.run_id, head.settings["score"], settings)
        add_validation(store, head.run_id, found.model_dump_json())
        label = replace(head, validation=found.summary(head.settings["score"], "r")).label
    assert label.verdict == ("better" if later else "not tested")
    assert label.sentence in shown(page("influence", store.uri, run=store.runs["trace"]))


@pytest.mark.parametrize("kind", ["trace text", "trace frames"])
def test_text_and_frames_are_not_tested(page: Open, recorded: Recorded, kind: str) -> None:
    content = shown(page("influence", recorded.uri, run=recorded.runs[kind]))
    assert label_of(None, "raw", None).sentence in content
