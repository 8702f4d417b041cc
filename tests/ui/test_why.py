"""*Why?* on the page Ask: first the facts near a triple, then all facts."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from clew import warm
from clew.runs.reading.facts import TRAIN_KEY
from clew.ui.components import answers, jobs
from clew.ui.components.explanations import facts_of, report_head, report_of_run
from clew.ui.work import Why
from tests.recorded import MODEL, Recorded
from tests.ui.commands_here import CommandsHere
from tests.ui.conftest import TIMEOUT_SECONDS, no_surprise, shown

WHY = Why("eicosanoid", "affects", "steroid", "tail", f"models:/{MODEL}@champion")
NUM_FACTS = 5216


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandsHere:
    return CommandsHere(tmp_path / "jobs", monkeypatch)


def below_why(job_id: str) -> None:
    from clew.ui.components import answers, jobs

    jobs.show(job_id, progress=answers.first_answer, result=answers.explanation)


def look(job_id: str) -> AppTest:
    app = AppTest.from_function(below_why, args=(job_id,), default_timeout=TIMEOUT_SECONDS)
    return no_surprise(app.run())


def test_the_facts_near_the_triple_answer_first_and_all_facts_last(
    recorded: Recorded, tmp_path: Path, use: Callable[[str], None], commands: CommandsHere
) -> None:
    store = recorded.copy(tmp_path / "store")
    use(store.uri)
    job = jobs.jobs().start(WHY, title="Explain", action="explain")
    assert "First answer" not in shown(look(job.job_id)), "there is none yet"

    commands.run_last(report=False)
    text = shown(look(job.job_id))
    near = count_near(store)
    assert (
        f"First answer**, from the {near:,} training facts with eicosanoid or steroid. The "
        f"other {NUM_FACTS - near:,} are still being compared"
    ) in text
    facts = text.count("clew-relation")
    assert facts == 5
    assert "Whole answer" not in text

    job.exit_code = 0
    text = shown(look(job.job_id))
    assert f"Whole answer**, from all {NUM_FACTS:,} training facts." in text
    assert "most helpful fact" in text
    assert "First answer" not in text
    assert text.count("clew-relation") == 5


def test_what_reasons_share_is_prepared_once_and_used(
    recorded: Recorded, tmp_path: Path, use: Callable[[str], None], commands: CommandsHere
) -> None:
    use(recorded.copy(tmp_path / "store").uri)
    model = f"models:/{MODEL}@champion"
    job = answers.prepare_reasons(model, "0" * 32)
    assert answers.prepare_reasons(model, "0" * 32) is job
    commands.run_last()
    assert job.state == "done"


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_second_opinion_is_scored_by_fine_tuning_and_compared(
    recorded: Recorded,
    tmp_path: Path,
    use: Callable[[str], None],
    commands: CommandsHere,
    monkeypatch: pytest.MonkeyPatch,
    by_itself: bool,
) -> None:
    use(recorded.copy(tmp_path / "store").uri)
    if not by_itself:
        monkeypatch.setattr(answers, "TUNED_MODELS", ("rotate",))
    asked = replace(WHY, model=recorded.runs["fp32 1"])
    first = jobs.jobs().start(asked, title="Explain", action="explain")
    commands.run_last()
    page = look(first.job_id)
    assert len(page.button) == 1, "it starts or cancels the second"
    if not by_itself:
        assert commands.last is first
        no_surprise(page.button[0].click().run())
    second = commands.last
    assert second.job_id == "".join(page.query_params["tuned"])
    assert second.asked == replace(asked, score="tuned")
    assert "By fine-tuning" not in shown(page)

    commands.run_last()
    no_surprise(page.run())
    text = shown(page)
    assert commands.last is second, "it is not started again"
    assert "By fine-tuning" in text
    assert (answers.BETTER in text) == by_itself
    assert not page.button
    assert text.count("clew-relation") == 10, "five facts of each"
    two = [report_of_run(job.run_id()) for job in (first, second)]
    assert [report_head(files).form.key for files in two] == ["kronecker", "tuned"]
    top = [set(map(tuple, facts_of(files, 0)[TRAIN_KEY][:10].to_numpy())) for files in two]
    assert f"{len(top[0] & top[1])} of the 10" in text


def test_a_run_whose_steps_cannot_be_repeated_keeps_its_first_explanation(
    recorded: Recorded, tmp_path: Path, use: Callable[[str], None], commands: CommandsHere
) -> None:
    """The champion was trained in mixed precision."""
    use(recorded.copy(tmp_path / "store").uri)
    first = jobs.jobs().start(WHY, title="Explain", action="explain")
    commands.run_last()
    page = look(first.job_id)
    assert commands.run_last().state == "failed"
    no_surprise(page.run())
    assert commands.last.message() in shown(page)
    assert shown(page).count("clew-relation") == 5


def test_an_explanation_that_cannot_be_read_is_one_message(
    broken: Recorded, use: Callable[[str], None], commands: CommandsHere
) -> None:
    use(broken.uri)
    job = jobs.jobs().start(WHY, title="Explain", action="explain")
    (job.folder / "stdout").write_text(json.dumps({"run_id": broken.runs["malformed"]}))
    job.exit_code = 0
    page = look(job.job_id)
    assert len(page.error) == 1
    assert not page.button


def test_a_second_opinion_that_was_cancelled_can_be_asked_for_again(
    recorded: Recorded, tmp_path: Path, use: Callable[[str], None], commands: CommandsHere
) -> None:
    use(recorded.copy(tmp_path / "store").uri)
    asked = replace(WHY, model=recorded.runs["fp32 1"])
    first = jobs.jobs().start(asked, title="Explain", action="explain")
    commands.run_last()
    page = look(first.job_id)
    assert [button.label for button in page.button] == ["Cancel"]
    second = commands.last
    second.cancelled, second.exit_code = True, 130
    (again,) = no_surprise(page.run()).button
    no_surprise(again.click().run())
    assert commands.last is not second
    assert commands.last.asked == second.asked


def test_the_first_opinion_has_the_form_that_the_model_is_configured_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Seen(Exception):
        pass

    def tracin(model: str, tests: object, overrides: dict[str, str], **more: object) -> None:
        raise Seen(overrides.get("influence.score"))

    monkeypatch.setattr(warm, "tracin", tracin)
    for asked, score in ((WHY, None), (replace(WHY, score="tuned"), "tuned")):
        with pytest.raises(Seen) as seen:
            warm.perform(asked, tmp_path, lambda text: None)
        assert seen.value.args == (score,)


def count_near(store: Recorded) -> int:
    from tests.recorded import UMLS

    lines = (UMLS / "train.txt").read_text(encoding="utf-8").splitlines()
    ends = [{line.split("\t")[0], line.split("\t")[2]} for line in lines]
    return sum(bool(each & {WHY.head, WHY.tail}) for each in ends)


def test_what_was_cancelled_says_that_the_others_were_not_compared(
    recorded: Recorded, tmp_path: Path, use: Callable[[str], None], commands: CommandsHere
) -> None:
    store = recorded.copy(tmp_path / "store")
    use(store.uri)
    job = jobs.jobs().start(WHY, title="Explain", action="explain")
    commands.run_last(report=False)
    job.cancelled = True
    job.exit_code = 130
    text = shown(look(job.job_id))
    assert "First answer" in text
    assert "were not compared" in text
