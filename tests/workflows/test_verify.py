"""`clew verify` end to end: what is kept where, resumption, small explanations, refusals."""

import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import clew
from clew import names
from clew.cli import cli
from clew.errors import ConfigError, DataError, Interrupted
from clew.influence.outcomes import Examiner
from clew.influence.retraining import Retrainer
from clew.runs.reading import explanation as explaining
from clew.runs.reading.explanation import html_report, open_explanation, picture_of, triple_of
from clew.runs.reading.runs import download_artifact
from clew.runs.verification import Agreement, Verification, names_of, read_kept
from clew.workflows.explaining import trace_source
from clew.workflows.explaining.trace_source import open_trace_source
from clew.workflows.explaining.validate_influence import identity
from clew.workflows.train import train
from clew.workflows.verify import VerifyRequest, verify
from tests.runs.reading.test_checked_pictures import marked_lines
from tests.workflows.trained import TrainedStore, small_config

pytestmark = pytest.mark.slow
TRIPLE = "acquired_abnormality,location_of,experimental_model_of_disease"
UNKNOWN = "virus,location_of,steroid"
"""A triple of known names that is in no split."""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def explained(trained: TrainedStore) -> str:
    """Return the run of an explanation of two triples that lists six facts of each side."""
    settings = {"influence.top_k": 6, "influence.score": "cosine"}
    return explanation(
        trained.strong, settings, tuple(TRIPLE.split(",")), tuple(UNKNOWN.split(","))
    )


def explanation(model: str, settings: dict[str, Any], *triples: Any) -> str:
    found = clew.attribute(model, list(triples), top_k=6, overrides=settings).run_id
    assert found is not None
    return found


def no_training(*_: Any, **__: Any) -> Any:
    raise AssertionError("a finished training was repeated")


def test_a_report_is_checked_kept_and_shown_everywhere(
    explained: str, trained: TrainedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explaining, "NUM_DRAWN_PATHS", 0)  # the strongest facts are drawn
    before = [picture_kept(explained, place, tmp_path / "before") for place in range(2)]
    assert [marked_lines(svg) for svg in before] == [{}, {}]
    found = verify(VerifyRequest(explained, top_tests=2, whole=True, seeds=2))
    assert read_kept(Verification, explained) == found
    assert (found.source_run, found.recipe.epochs) == (trained.strong, 1)
    assert {names_of(test.test) for test in found.tests} == {
        tuple(TRIPLE.split(",")),
        tuple(UNKNOWN.split(",")),
    }
    for test in found.tests:
        top = [len(r.facts) for r in test.removals if r.kind == "strongest"]
        assert top == [1, 5, 20]  # those that are not listed were scored again
        assert all(r.whole is not None and r.whole.fall != r.tuned.fall for r in test.removals)
    kept = read_kept(Agreement, trained.strong)
    assert kept is not None
    assert kept == found.agreement
    assert len(kept.pairs) == sum(len(test.removals) for test in found.tests)

    monkeypatch.setattr(Retrainer, "train", no_training)
    again = CliRunner().invoke(cli, ["verify", explained, "--top-tests=1", "--json"])
    assert again.exit_code == 0, again.output
    (content,) = (json.loads(line) for line in again.stdout.splitlines() if "run_id" in line)
    assert content["agreement"]["factor"] == found.agreement.factor
    # What is known of the other triple of the report stays, each with its own method.
    latest = read_kept(Verification, explained)
    assert latest is not None
    assert not latest.is_whole
    (quick,), (whole,) = latest.tests, [test for one in latest.earlier for test in one.tests]
    assert names_of(whole.test) != names_of(quick.test)
    for one, test in ((found, whole), (latest, quick)):
        own = latest.of(names_of(test.test))
        assert own is not None
        assert own.said == tuple(one.lines(test))
    assert latest.method != found.method
    page = html_report(open_explanation(explained, 0))
    assert "What happens without these facts" in page
    download_artifact(explained, "influence/verification.json", tmp_path)
    assert_pictures_mark_what_was_taken_away(explained, latest, trained.strong, tmp_path)


def picture_kept(run_id: str, place: int, folder: Path) -> str:
    path = download_artifact(run_id, f"influence/picture-{place}.svg", folder)
    return path.read_text(encoding="utf-8")


def assert_pictures_mark_what_was_taken_away(
    run_id: str, found: Verification, model: str, folder: Path
) -> None:
    with open_trace_source(model, {}) as source:
        graph = source.task.graph
        named = [
            (graph.entities.name(h), graph.relations.name(r), graph.entities.name(t))
            for h, r, t in graph.train.tolist()
        ]
    for place in range(2):
        shown = open_explanation(run_id, place)
        checked = found.of(triple_of(shown.test))
        assert checked is not None
        assert checked == shown.verified
        drawn = picture_of(shown)
        assert drawn in html_report(shown)
        assert drawn == picture_kept(run_id, place, folder), "MLflow's pages show the same"
        order = shown.facts["influence"].abs().sort_values(ascending=False).index
        facts = shown.facts.loc[order[:9]].set_index("place")
        strongest = {triple_of(fact) for _, fact in facts.iterrows()}
        removals = [r for r in checked.tests[0].removals if r.kind == "strongest"]
        groups = [{named[fact] for fact in removal.facts} & strongest for removal in removals]
        marked = {triple_of(facts.loc[fact]) for fact in marked_lines(drawn)}
        assert marked
        assert marked in groups


def test_a_stopped_check_goes_on_where_it_was(
    trained: TrainedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = explanation(trained.strong, {}, tuple(TRIPLE.split(",")))
    examine, calls = Examiner.examine, []

    def stops(self: Examiner, model: Any) -> Any:
        calls.append(model)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return examine(self, model)

    request = VerifyRequest(run_id, seeds=1)
    with monkeypatch.context() as patch:
        patch.setattr(Examiner, "examine", stops)
        with pytest.raises(Interrupted):
            verify(request)
    assert read_kept(Verification, run_id) is None
    told: list[tuple[int, int]] = []
    found = verify(request, progress=lambda done, total: told.append((done, total)))
    groups = 1 + len(found.tests[0].removals)
    assert told[0] == (0, groups - 3)
    assert told[-1] == (groups - 3, groups - 3)
    assert all(r.tuned.fall.half_width is None for r in found.tests[0].removals)


def test_several_explanations_share_fine_tunings_only_if_asked_and_never_whole_runs(
    explained: str, trained: TrainedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    train_each = Retrainer.train_each

    def counting(self: Retrainer, wanted: Any) -> Any:
        several = list(wanted)
        taken.extend(len(one.dropped) for one in several)
        return train_each(self, several)

    monkeypatch.setattr(Retrainer, "train_each", counting)
    alone = verify(VerifyRequest(explained, top_tests=2, seeds=1, at_once=1))
    separate, taken[:] = sorted(taken), []
    groups = sorted(len(r.facts) for test in alone.tests for r in test.removals)
    assert separate == [0, *groups]
    assert not any(removal.others for test in alone.tests for removal in test.removals)
    shared = verify(VerifyRequest(explained, top_tests=2, seeds=1))
    added = [removal.others for test in shared.tests for removal in test.removals]
    assert max(taken) == max(len(r.facts) + r.others for t in shared.tests for r in t.removals)
    # Groups without a partner are kept from before; of two that share a run, each adds its facts.
    assert len(taken) == len([one for one in added if one]) / 2
    assert sum(added) == sum(taken)


def test_python_and_a_triple_that_is_explained_first(
    trained: TrainedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = {names.SETTING_BEST: {"unit": "epoch", "last": [2], "best": [1]}}
    monkeypatch.setattr(trace_source, "best_setting", lambda models: best)
    why = clew.attribute(trained.weak, [tuple(TRIPLE.split(","))])
    found = why.verify(seeds=1)
    assert found.notes == tuple(names.model_notes(best))
    assert {*found.notes} <= {*str(found).splitlines()} & {*repr(why).splitlines()}
    for page in (found._repr_html_(), why._repr_html_()):
        assert found.notes[0] in unescape(page)
    assert found == read_kept(Verification, why.run_id or "")
    assert found.verdict(found.tests[0]) in found._repr_html_().replace("&#x27;", "'")
    made = verify(VerifyRequest(test=TRIPLE, model=trained.weak, seeds=1))
    assert made.run_id != why.run_id
    assert made.tests == found.tests


def test_without_inverse_relations_whole_trainings_are_others(trained: TrainedStore) -> None:
    one_way = train(small_config(training__num_epochs=1, data__inverse_relations=False)).run_id
    found = []
    for run in (trained.weak, one_way):
        with open_trace_source(run or "", {}) as source:
            found.append(identity(source, source.task.graph.test[:1], source.model.config))
    assert found[0] != found[1]


def test_what_cannot_be_checked_is_refused(trained: TrainedStore) -> None:
    with pytest.raises(DataError):
        verify(VerifyRequest(test="virus,location_of,nobody", model=trained.weak))
    with pytest.raises(ConfigError):
        verify(VerifyRequest("newest", test=TRIPLE))


def test_an_ensemble_goes_on_from_each_member(trained: TrainedStore) -> None:
    twin = train(small_config(training__seed=5)).run_id or ""
    why = clew.attribute(f"{trained.strong},{twin}", [tuple(TRIPLE.split(","))])
    found = why.verify(seeds=1)
    assert (found.source_run, found.runs) == (trained.strong, 2)
    (test,) = found.tests
    assert test.model.rank == why.report.tests[0].rank, "the mean over both"
    # Of one seed, but of two members, which differ.
    assert all(removal.tuned.fall.half_width for removal in test.removals)
