"""Perplexity over a whole text, loss by position, and texts that the model writes."""

import itertools
import math

import numpy as np
import pytest
import torch

from clew.config.eigenstate import EigenstateLMModel
from clew.language_modeling.loss import (
    Perplexity,
    loss_by_position,
    measure_perplexity,
    token_losses,
)
from clew.language_modeling.model import EigenstateLM, Sampling, generate

CPU = torch.device("cpu")
VOCABULARY = 9


@pytest.fixture
def model() -> EigenstateLM:
    torch.manual_seed(0)
    config = EigenstateLMModel(d_model=16, n_layers=2, num_eigenstates=8, max_seq_len=32)
    return EigenstateLM(VOCABULARY, config).double().eval()


def text(length: int = 100) -> np.ndarray:
    return np.random.default_rng(0).integers(VOCABULARY, size=length).astype(np.uint16)


@pytest.mark.parametrize("segment_tokens", [1, 7, 33, 99, 1000])
def test_a_text_is_one_sequence_however_it_is_cut(model: EigenstateLM, segment_tokens: int):
    tokens = torch.from_numpy(text().astype(np.int64)).unsqueeze(0)
    expected = token_losses(model(tokens[:, :-1]), model.embedding.weight, tokens[:, 1:]).sum()
    found = measure_perplexity(
        model,
        text(),
        num_bytes=50,
        device=CPU,
        chunk_bytes=2**20,
        segment_tokens=segment_tokens,
    )
    assert found.num_tokens == 99
    assert found.total_nats == pytest.approx(expected.item(), rel=1e-10)
    assert found.perplexity == pytest.approx(math.exp(found.total_nats / 99))
    assert found.bits_per_byte == pytest.approx(found.total_nats / math.log(2) / 50)


def test_a_uniform_model_needs_log_v_bits(model: EigenstateLM):
    torch.nn.init.zeros_(model.embedding.weight)
    found = measure_perplexity(model, text(), num_bytes=99, device=CPU, chunk_bytes=2**20)
    assert found.perplexity == pytest.approx(VOCABULARY)
    assert found.bits_per_byte == pytest.approx(math.log2(VOCABULARY))


def test_an_absurd_loss_is_a_number():
    assert math.isfinite(Perplexity(1e9, 10, 10).perplexity)


@pytest.mark.parametrize("time", [1, 2, 3, 8, 21])
def test_loss_by_position_is_the_mean_over_windows(model: EigenstateLM, time: int):
    windows = torch.randint(VOCABULARY, (3, time + 1), generator=torch.Generator().manual_seed(0))
    losses = token_losses(model(windows[:, :-1]), model.embedding.weight, windows[:, 1:]).mean(0)
    buckets = loss_by_position(model, windows, chunk_bytes=1)
    assert buckets[0].first == 0
    assert buckets[-1].last == time - 1
    for before, after in itertools.pairwise(buckets):
        assert after.first == before.last + 1
    for bucket in buckets:
        expected = losses[bucket.first : bucket.last + 1].mean().item()
        assert bucket.loss == pytest.approx(expected, rel=1e-6)


def test_generation_continues_with_the_likeliest_token_of_the_parallel_form(model: EigenstateLM):
    prompt = torch.tensor([[1, 2, 3], [4, 5, 6]])
    made = generate(model, prompt, 20, Sampling(temperature=0.0))
    whole = torch.cat([prompt, made], dim=1)
    parallel = model.logits(model(whole[:, :-1])).argmax(-1)
    assert torch.equal(made, parallel[:, 2:])


def test_generation_draws_from_the_distribution(model: EigenstateLM):
    prompt = torch.zeros(4000, 1, dtype=torch.long)
    source = torch.Generator().manual_seed(0)
    drawn = generate(model, prompt, 1, Sampling(temperature=0.5), source)
    share = torch.bincount(drawn.flatten(), minlength=VOCABULARY) / 4000
    expected = torch.softmax(model.logits(model(prompt[:1]))[0, -1] / 0.5, dim=-1)
    torch.testing.assert_close(share.double(), expected, atol=0.03, rtol=0)


@pytest.mark.parametrize("segment_tokens", [1, 7, 1000])
def test_documents_by_themselves_have_the_losses_of_each_alone(segment_tokens: int):
    """The token after an end of text is predicted from the document that ends there."""
    torch.manual_seed(0)
    config = EigenstateLMModel(d_model=16, n_layers=2, num_eigenstates=8, reset_at_documents=True)
    model = EigenstateLM(VOCABULARY, config, end_of_text=0).double().eval()
    tokens = text()
    found = measure_perplexity(
        model,
        tokens,
        num_bytes=50,
        device=CPU,
        chunk_bytes=2**20,
        segment_tokens=segment_tokens,
    )
    expected = 0.0
    cuts = [0, *(np.flatnonzero(tokens == 0) + 1).tolist(), len(tokens)]
    for start, end in itertools.pairwise(cuts):
        part = torch.from_numpy(tokens[start : end + 1].astype(np.int64)).unsqueeze(0)
        if part.shape[1] > 1:
            hidden = model(part[:, :-1])
            expected += token_losses(hidden, model.embedding.weight, part[:, 1:]).sum().item()
    assert found.total_nats == pytest.approx(expected, rel=1e-10)
