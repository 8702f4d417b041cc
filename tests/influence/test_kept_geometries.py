"""Moments on the disk: equal to the bit, made once for each model, and checked when read."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from clew.influence.link_prediction import moments, traced_run
from clew.influence.link_prediction.geometry import Geometry, Metric
from clew.influence.link_prediction.tracin import Tracer
from clew.link_prediction.task import LinkPrediction
from clew.training.manifest import list_checkpoints
from tests.oracles.test_influence_sum import CPU, fixture_of, matrix, write_checkpoints

Scores = Callable[..., np.ndarray]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def scores(tmp_path: Path) -> Scores:
    """Return the scores of a small run's explanations, with or without a cache of moments."""
    small = fixture_of(tmp_path / "run", LinkPrediction)
    config = small.tracer().config

    def explained(cache: Path | None, score: str = "kronecker", run: Path = small.folder):
        settings = config.influence.model_copy(update={"top_k": 0, "score": score})
        records = list_checkpoints(run)
        tracer = Tracer(
            small.task, config, settings=settings, checkpoints=records, device=CPU, cache=cache
        )
        return matrix(tracer.explain(small.tests))

    return explained


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if moments are estimated from now on."""
    for name in ("kronecker", "deflated"):
        monkeypatch.delattr(traced_run, name)


@pytest.mark.parametrize("score", ["kronecker", "deflated"])
def test_scores_are_equal_to_the_bit(
    scores: Scores, cache: Path, score: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without, first = scores(None, score), scores(cache, score)
    forbid(monkeypatch)
    again = scores(cache, score)
    np.testing.assert_array_equal(first, without)
    np.testing.assert_array_equal(again, without)
    assert len(list(cache.iterdir())) == 3, "one file for each checkpoint"


def test_other_scores_weights_and_code_have_their_own(
    scores: Scores, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.oracles.test_influence_sum import config_of, random_graph

    scores(cache)
    scores(cache, "deflated")
    assert len(list(cache.iterdir())) == 6
    config = config_of()
    write_checkpoints(LinkPrediction(random_graph(), config), config, tmp_path / "other", seed=7)
    scores(cache, run=tmp_path / "other")
    assert len(list(cache.iterdir())) == 9
    monkeypatch.setattr(moments, "code_digest", lambda: "changed")
    scores(cache)
    assert len(list(cache.iterdir())) == 12


@pytest.mark.parametrize("damage", ["the end", "all", "a name"])
def test_a_damaged_file_is_made_again(
    scores: Scores, cache: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    without = scores(cache)
    path = sorted(cache.iterdir())[1]
    content = bytearray(path.read_bytes())
    whole = bytes(content)
    if damage == "the end":
        del content[-40:]
    elif damage == "all":
        content.clear()
    else:
        content = bytearray(whole.replace(b"vectors", b"vector5"))
    path.write_bytes(content)
    np.testing.assert_array_equal(scores(cache), without)
    assert f"{path} cannot be used" in caplog.text
    assert path.read_bytes() == whole


def test_what_was_used_least_recently_goes_first(
    scores: Scores, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores(cache)
    first, *others = sorted(cache.iterdir())
    for path in others:
        os.utime(path, (1, 1))
    monkeypatch.setattr(moments, "LARGEST_FOLDER_BYTES", 2 * first.stat().st_size)
    scores(cache, "deflated")
    assert not any(path.exists() for path in others)


def test_a_folder_that_cannot_be_written_costs_time_alone(
    scores: Scores, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    np.testing.assert_array_equal(scores(tmp_path / "file" / "moments"), scores(None))
    assert "set XDG_CACHE_HOME to a folder that you can write" in caplog.text


def test_a_geometry_is_written_as_it_is(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)

    def metric() -> Metric:
        strided = torch.randn(3, 5, generator=draw).T
        return Metric(1 / 3, strided, torch.randn(3, generator=draw))

    geometry = Geometry(metric(), None, head=metric(), scored=torch.randn(7, generator=draw))
    moments.kept(tmp_path, {}, lambda: geometry, CPU)
    found = moments.kept(tmp_path, {}, lambda: pytest.fail("it is there"), CPU)
    assert (found.features, found.projected, found.relation, found.related) == (None,) * 4
    assert found.scored is not None
    torch.testing.assert_close(found.scored, geometry.scored, rtol=0, atol=0)
    for read, written in ((found.hidden, geometry.hidden), (found.head, geometry.head)):
        assert read is not None
        assert written is not None
        assert read.scale == written.scale
        torch.testing.assert_close(read.vectors, written.vectors, rtol=0, atol=0)
        torch.testing.assert_close(read.weights, written.weights, rtol=0, atol=0)
