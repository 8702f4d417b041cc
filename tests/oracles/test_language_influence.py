"""Influence in a language model: factored gradients of whole windows against plain backward passes.

The head is the embedding: a token's row is looked up at one position and scored at all others.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clew.config.load import from_mapping
from clew.influence.kernel import FactoredGradients, example_gradients
from clew.influence.window_tracer import WindowCheckpoint
from clew.language_modeling.task import LanguageModeling
from clew.layers.products import MatrixProduct
from clew.workflows.subjects import build_task


def small_task(folder: Path, **options: Any) -> LanguageModeling:
    lines = [f"{i % 7} green bottles\n" for i in range(100)]
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps({"text": line}) + "\n" for line in lines)
    )
    model = {"d_model": 16, "n_layers": 2, "num_eigenstates": 8, "max_seq_len": 24}
    config = from_mapping(
        {
            "data": {
                "kind": "tokens",
                "dataset": str(folder / "corpus.jsonl"),
                "packed": str(folder / "packed"),
            },
            "model": {"kind": "eigenstate_lm"} | model | options,
        }
    )
    task = build_task(config)
    assert isinstance(task, LanguageModeling)
    return task


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_gates": 4},
        {"resonance": 0.0},
        {"convolution_width": 3},
        {"transition": "gated"},
        {"further_tokens": 2},
        {"reset_at_documents": True},
        {"reset_at_documents": True, "convolution_width": 3},
    ],
    ids=[
        "plain",
        "gates",
        "no resonance",
        "filters",
        "gated transitions",
        "further tokens",
        "documents",
        "documents and filters",
    ],
)
def test_every_parameter_is_factored_and_the_products_are_exact(
    tmp_path: Path, options: dict[str, Any]
):
    task = small_task(tmp_path, **options)
    torch.manual_seed(0)
    model = task.build_model().double()
    source = task.train_examples()
    train, tests = np.arange(5), np.array([7, 3])
    gradients = FactoredGradients(task, model, source)
    assert not gradients.explicit_parameters
    kernel = WindowCheckpoint(gradients, source, [source.batch(tests)], MatrixProduct())
    found = kernel.products(train, norms=True)
    left = example_gradients(task, model, source.batch(tests))
    right = example_gradients(task, model, source.batch(train))
    expected = sum(left[name].flatten(1) @ right[name].flatten(1).T for name in left)
    torch.testing.assert_close(found.by_part.sum(0), expected, rtol=1e-10, atol=1e-10)
    squares = sum(gradient.flatten(1).square().sum(1) for gradient in right.values())
    torch.testing.assert_close(found.squared_norm, squares, rtol=1e-10, atol=1e-10)


def test_a_step_on_a_window_moves_another_ones_loss_by_the_influence(tmp_path: Path):
    task = small_task(tmp_path)
    torch.manual_seed(0)
    model = task.build_model().double().eval()
    source = task.train_examples()
    trained, tested = source.batch(np.array([0])), source.batch(np.array([5]))
    factors = FactoredGradients(task, model, source)
    kernel = WindowCheckpoint(factors, source, [tested], MatrixProduct())
    influence = kernel.products(np.array([0]), norms=False).by_part.sum().item()
    before = task.loss(model, tested).total.item()
    gradients = torch.autograd.grad(task.loss(model, trained).total, list(model.parameters()))
    errors = []
    for rate in (1e-7, 5e-8):
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(rate * gradient)
            change = before - task.loss(model, tested).total.item()
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.add_(rate * gradient)
        errors.append(abs(change / rate - influence) / abs(influence))
    assert errors[0] < 0.01
    assert errors[1] < 0.6 * errors[0]
