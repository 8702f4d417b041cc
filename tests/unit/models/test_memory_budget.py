"""The predicted memory of a training step: what it must do when sizes change."""

import pytest

from clew.config.eigenstate import EigenstateLMModel
from clew.models.memory_budget import GIB, MemoryBudget, predict_memory


def predict(preset: str = "small_32k", tokens: int = 32_768, *, recompute: bool) -> MemoryBudget:
    return predict_memory(
        EigenstateLMModel(preset=preset),
        num_parameters=123_115_776,
        vocabulary_size=50_257,
        batch_tokens=tokens,
        recompute=recompute,
    )


def test_small_32k_fits_into_20_gib_with_recomputation():
    budget = predict(recompute=True)
    assert budget.state_gib == pytest.approx(123_115_776 * 16 / GIB)
    assert budget.kept_gib == pytest.approx(10 * 32_768 * 1024 * 4 / GIB)
    assert 4 < budget.total_gib < 10


def test_recomputation_lowers_the_peak_and_activations_grow_with_tokens():
    kept, recomputed = predict(recompute=False), predict(recompute=True)
    assert kept.total_gib > 2 * recomputed.total_gib
    assert predict(tokens=65_536, recompute=False).kept_gib == pytest.approx(2 * kept.kept_gib)
    assert predict(tokens=65_536, recompute=False).state_gib == kept.state_gib
