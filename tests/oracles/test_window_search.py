"""Scores of many texts in one pass, and a search with an index, against plain gradients."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clew.config.services import InfluenceConfig
from clew.influence.factors import (
    Explicit,
    Outer,
    SharedDirections,
    TableRows,
    explicit,
    in_full,
    is_cheaper_in_full,
)
from clew.influence.window_index import FOLDER, INDEX_FILE, WINDOWS_FILE
from clew.influence.window_tracer import WindowTracer
from clew.language_modeling.tokens import TokenBatch, continuation_batch
from clew.layers import products
from clew.layers.products import MatrixProduct
from clew.training.manifest import list_checkpoints
from tests.oracles.plain_tracin import tracin_reference
from tests.oracles.test_text_influence import CPU, trained

pytestmark = pytest.mark.slow

__all__ = ["trained"]
TEXTS = (("the password is", " zwieback"), ("3 green", " bottles on"), ("x", "y"))
EVERY = InfluenceConfig(candidates=100, projection_rank=8)
FEW = InfluenceConfig(candidates=6, projection_rank=16)


@pytest.fixture
def checkpoints(trained: Any, tmp_path: Path) -> Path:
    """Copy the checkpoints, so that each test has its own index next to them."""
    return Path(shutil.copytree(trained[1], tmp_path / "checkpoints"))


def tracer_of(trained: Any, checkpoints: Path, **options: Any) -> WindowTracer[TokenBatch]:
    task = trained[0]
    windows = task.train_examples().without_overlap()
    return WindowTracer(task, windows, list_checkpoints(checkpoints), device=CPU, **options)


def texts_of(trained: Any) -> list[TokenBatch]:
    return [continuation_batch(trained[0].splits.tokenizer, *text) for text in TEXTS]


@pytest.mark.parametrize("with_cosine", [True, False])
def test_texts_of_several_lengths_in_one_pass_are_plain_products_of_gradients(
    trained: Any, with_cosine: bool
):
    tracer = tracer_of(trained, trained[1], with_cosine=with_cosine)
    tests = texts_of(trained)
    found = tracer.explain(tests, top_k=len(tracer.windows))
    models = [
        (tracer.model(record), weight)
        for record, weight in zip(tracer.checkpoints, tracer.weights, strict=True)
    ]
    windows = tracer.windows.batch(np.arange(len(tracer.windows)))
    for test, explanation in zip(tests, found, strict=True):
        expected = tracin_reference(tracer.task, models, windows, test)[0].detach().numpy()
        scores = np.zeros(len(expected))
        for scored in (explanation.proponents, explanation.opponents):
            kept = scored.train[0] >= 0
            scores[scored.train[0][kept]] = scored.influence[0][kept]
            assert (scored.cosine is not None) == with_cosine
        np.testing.assert_allclose(scores, expected, atol=1e-4 * abs(expected).max())
        own = tracin_reference(tracer.task, models, test, test)
        assert explanation.self_influence == pytest.approx(float(own), rel=1e-4)


def test_cosines_divide_by_both_self_influences(trained: Any):
    tracer = tracer_of(trained, trained[1])
    models = [
        (tracer.model(record), weight)
        for record, weight in zip(tracer.checkpoints, tracer.weights, strict=True)
    ]
    (explanation,) = tracer.explain(texts_of(trained)[:1], top_k=1)
    first = explanation.proponents
    window = tracer.windows.batch(first.train[0])
    own = float(tracin_reference(tracer.task, models, window, window))
    assert first.cosine is not None
    expected = first.influence[0, 0] / np.sqrt(own * explanation.self_influence)
    assert first.cosine[0, 0] == pytest.approx(expected, rel=1e-4)


def test_half_precision_is_used_where_it_is_asked_for_and_its_error_measured(
    trained: Any, monkeypatch: pytest.MonkeyPatch
):
    # The model has memorized its text, so one bit of a score changes a loss near zero by a tenth.
    # The bounds are valid for one order of sums: that of torch's own products.
    monkeypatch.setattr(products, "has_bfloat16_products", lambda: True)
    tests = texts_of(trained)
    exact = tracer_of(trained, trained[1]).explain(tests, top_k=3)
    tracer = tracer_of(trained, trained[1], half=torch.bfloat16)
    half = tracer.explain(tests, top_k=3)
    for a, b in zip(half, exact, strict=True):
        assert a.proponents.influence[0, 0] == pytest.approx(b.proponents.influence[0, 0], rel=0.1)
        assert a.proponents.influence[0, 0] != b.proponents.influence[0, 0]
    measured = tracer.half_precision_deviation(tests)
    assert 0 < measured["relative_error"] < 0.3  # bfloat16 keeps 8 bits
    full = tracer_of(trained, trained[1]).half_precision_deviation(tests)
    assert full["relative_error"] == 0


def test_a_search_that_scores_every_window_finds_what_all_scores_do(
    trained: Any, checkpoints: Path
):
    tests = texts_of(trained)
    exact = tracer_of(trained, checkpoints).explain(tests, top_k=5)
    found = tracer_of(trained, checkpoints).explain(tests, top_k=5, settings=EVERY)
    for a, b in zip(found, exact, strict=True):
        np.testing.assert_array_equal(a.proponents.train, b.proponents.train)
        np.testing.assert_allclose(a.opponents.influence, b.opponents.influence, rtol=1e-5)
        assert a.proponents.cosine is not None
        assert b.proponents.cosine is not None
        np.testing.assert_allclose(a.proponents.cosine, b.proponents.cosine, rtol=1e-3)


def test_a_search_scores_few_windows_and_finds_the_strongest(trained: Any, checkpoints: Path):
    tracer = tracer_of(trained, checkpoints)
    (exact,) = tracer.explain(texts_of(trained)[:1], top_k=3)
    (found,) = tracer.explain(texts_of(trained)[:1], top_k=3, settings=FEW)
    assert found.searched is not None
    assert found.searched.num_scored == 12
    assert found.searched.cosine_error < 0.1
    assert found.searched.index_cosine_error is not None
    assert found.searched.index_cosine_error < 0.1
    np.testing.assert_array_equal(found.proponents.train, exact.proponents.train)
    np.testing.assert_allclose(found.proponents.influence, exact.proponents.influence, rtol=1e-5)


def test_a_search_for_proponents_alone_scores_half_as_many_windows(trained: Any, checkpoints: Path):
    test = texts_of(trained)[:1]
    (both,) = tracer_of(trained, checkpoints).explain(test, top_k=3, settings=FEW)
    (found,) = tracer_of(trained, checkpoints).explain(
        test, top_k=3, settings=FEW.model_copy(update={"search_opponents": False})
    )
    assert found.searched is not None
    assert (found.searched.num_scored, found.searched.opponents) == (6, False)
    np.testing.assert_array_equal(found.proponents.train, both.proponents.train)
    np.testing.assert_allclose(found.proponents.influence, both.proponents.influence, rtol=1e-5)
    assert both.opponents.train.shape == (1, 3)
    assert found.opponents.train.shape == (1, 0)


def test_an_index_of_all_directions_has_no_error(trained: Any, checkpoints: Path):
    settings = InfluenceConfig(candidates=6, projection_rank=128)
    (found,) = tracer_of(trained, checkpoints).explain(
        texts_of(trained)[:1], top_k=3, settings=settings
    )
    assert found.searched is not None
    assert found.searched.cosine_error < 1e-3  # float16 rounds what is kept
    assert found.searched.index_cosine_error == pytest.approx(0, abs=1e-5)


def test_the_last_layers_are_searched_in_the_same_index(trained: Any, checkpoints: Path):
    test = texts_of(trained)[:1]
    tracer_of(trained, checkpoints).explain(test, top_k=3, settings=FEW)
    tracer = tracer_of(trained, checkpoints, num_last_layers=2)
    (exact,) = tracer.explain(test, top_k=3)
    (found,) = tracer.explain(test, top_k=3, settings=FEW)
    assert found.searched is not None
    assert found.searched.indices_made == 0
    np.testing.assert_array_equal(found.proponents.train, exact.proponents.train)


def made(trained: Any, checkpoints: Path, settings: InfluenceConfig = FEW) -> int:
    """Return the number of indices that a search had to build."""
    tracer = tracer_of(trained, checkpoints)
    (found,) = tracer.explain(texts_of(trained)[:1], top_k=3, settings=settings)
    assert found.searched is not None
    return found.searched.indices_made


def test_an_index_is_made_once_and_again_where_it_is_stale_or_damaged(
    trained: Any, checkpoints: Path, caplog: pytest.LogCaptureFixture
):
    first = list_checkpoints(checkpoints)[0].path / FOLDER
    assert made(trained, checkpoints) == 2
    assert made(trained, checkpoints) == 0
    with (first / WINDOWS_FILE).open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    assert made(trained, checkpoints) == 1
    assert "windows.npy was changed or damaged" in caplog.text
    (first / INDEX_FILE).write_text("{}")
    assert made(trained, checkpoints) == 1
    assert made(trained, checkpoints, InfluenceConfig(candidates=6, projection_rank=4)) == 2
    assert f"stale: rank is {FEW.projection_rank}, expected 4" in caplog.text


def test_an_index_of_other_weights_is_stale(trained: Any, checkpoints: Path):
    first, second = (record.path for record in list_checkpoints(checkpoints))
    assert made(trained, checkpoints) == 2
    shutil.rmtree(first / FOLDER)
    shutil.copytree(second / FOLDER, first / FOLDER)
    assert made(trained, checkpoints) == 1


def test_an_index_is_whole_or_not_there(trained: Any, checkpoints: Path):
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    tracer = tracer_of(trained, checkpoints)
    with pytest.raises(KeyboardInterrupt):
        tracer.explain(texts_of(trained)[:1], top_k=3, settings=FEW, progress=stop)
    first = list_checkpoints(checkpoints)[0].path
    assert not [path.name for path in first.iterdir() if FOLDER in path.name]


def test_a_projection_is_the_same_from_every_form_of_a_gradient():
    torch.manual_seed(0)
    directions = SharedDirections({"weight": (40, 30)}, rank=12, seed=1)
    directions.add("weight", torch.randn(3, 1200))
    projection = directions.projections()["weight"]
    ids = torch.randint(40, (2, 5))
    for factor in (
        Outer(torch.randn(2, 5, 40), torch.randn(2, 5, 30)),
        TableRows(ids, torch.randn(2, 5, 30), 40),
    ):
        expected = projection([Explicit(explicit(factor))])
        torch.testing.assert_close(projection([factor]), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(projection([factor, factor]), 2 * expected, rtol=1e-4, atol=1e-4)


def test_products_of_projections_are_right_on_average_and_for_the_sample_exactly():
    torch.manual_seed(0)
    gradients = torch.randn(2, 40 * 30, dtype=torch.float64).float()
    estimates = []
    for seed in range(200):
        projection = SharedDirections({"w": (40, 30)}, rank=12, seed=seed).projections()["w"]
        a, b = projection([Explicit(gradients)])
        estimates.append(float(a @ b))
    exact, error = float(gradients[0] @ gradients[1]), np.std(estimates) / np.sqrt(200)
    assert abs(np.mean(estimates) - exact) < 4 * error
    low = torch.randn(4, 40, 3) @ torch.randn(3, 30)
    directions = SharedDirections({"w": (40, 30)}, rank=28, seed=0)
    directions.add("w", low.flatten(1))
    projected = directions.projections()["w"]([Explicit(low.flatten(1))])
    torch.testing.assert_close(
        projected @ projected.T, low.flatten(1) @ low.flatten(1).T, rtol=1e-4, atol=1e-3
    )


def test_gradients_are_multiplied_out_where_that_is_cheaper():
    train = [Outer(torch.randn(1, 64, 100), torch.randn(1, 64, 80))]
    short = [[Outer(torch.randn(1, 2, 100), torch.randn(1, 2, 80))]]
    assert not is_cheaper_in_full(train, short, norms=False)
    assert is_cheaper_in_full(train, short, norms=True)
    assert is_cheaper_in_full(train, short * 40, norms=False)
    torch.testing.assert_close(in_full(train, MatrixProduct()), explicit(train[0]))
