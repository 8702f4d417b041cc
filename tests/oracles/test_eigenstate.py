"""The eigenstate model in double precision: causality, memory and states."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from clew.config.eigenstate import EigenstateLMModel
from clew.language_modeling.model import EigenstateLM
from clew.layers.eigenstate import EigenstateMixer, squared_relu
from clew.training.setup import count_parameters

VOCABULARY = 11
END = 10
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"resonance": 0.0},
    "resonance": {"resonance": 0.5},
    "gates": {"num_gates": 4},
    "filters": {"convolution_width": 3},
    "gated": {"transition": "gated"},
    "all": {
        "resonance": 0.5,
        "num_gates": 4,
        "convolution_width": 4,
        "dropout": 0.2,
    },
}
OPTIONS["all, gated"] = OPTIONS["all"] | OPTIONS["gated"]


def build(seed: int = 0, dtype: torch.dtype = torch.float64, **options: Any) -> EigenstateLM:
    sizes = {"d_model": 16, "n_layers": 2, "num_eigenstates": 8, "num_heads": 2}
    config = EigenstateLMModel(**(sizes | {"max_seq_len": 64, "chunk_size": 7} | options))
    torch.manual_seed(seed)
    model = EigenstateLM(VOCABULARY, config, end_of_text=END).to(dtype).eval()
    for module in model.modules():
        if isinstance(module, EigenstateMixer) and module.widths[2]:
            torch.nn.init.normal_(module.project.weight[-module.widths[2] :])  # zero at the start
    return model


def tokens(time: int = 50, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(VOCABULARY, (batch, time), generator=generator)


def step_by_step(model: EigenstateLM, sequence: Tensor) -> Tensor:
    state, outputs = None, []
    for t in range(sequence.shape[1]):
        hidden, state = model.advance(sequence[:, t : t + 1], state)
        outputs.append(model.logits(hidden))
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
def test_outputs_before_a_changed_token_are_bit_equal(options: dict[str, Any], dtype: torch.dtype):
    model, sequence = build(dtype=dtype, **options), tokens()
    before = model(sequence)
    for changed in (0, 1, 3, 6, 7, 8, 29, 49):
        other = sequence.clone()
        other[:, changed] = (other[:, changed] + 1) % VOCABULARY
        after = model(other)
        assert torch.equal(before[:, :changed], after[:, :changed])
        assert not torch.equal(before[:, changed], after[:, changed])


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_gradient_of_the_last_loss_reaches_the_first_token(options: dict[str, Any]):
    model, sequence = build(**options), tokens(time=60)
    embedded = model.embedding(sequence).detach().requires_grad_()
    x = embedded
    for block in model.blocks:
        x, _ = block(x)
    logits = model.logits(model.norm(x))[:, -1]
    (gradient,) = torch.autograd.grad(logits.logsumexp(-1).sum(), embedded)
    size = gradient.norm(dim=-1).mean(0)
    assert size[0] > 1e-4 * size[-1]


@pytest.mark.parametrize("chunk_size", [1, 7, 16, 64, 50])
@pytest.mark.parametrize("options", [OPTIONS[name] for name in ("all", "all, gated", "resonance")])
def test_the_function_does_not_depend_on_the_chunk_size(chunk_size: int, options: dict[str, Any]):
    sequence = tokens()
    reference = build(**(options | {"chunk_size": 50}))(sequence)
    torch.testing.assert_close(
        build(**(options | {"chunk_size": chunk_size}))(sequence), reference, rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_step_by_step_logits_equal_parallel_logits(options: dict[str, Any]):
    model, sequence = build(**options), tokens()
    parallel = model.logits(model(sequence))
    torch.testing.assert_close(step_by_step(model, sequence), parallel, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("split", [1, 2, 5, 7, 8, 12, 49])
@pytest.mark.parametrize("options", [OPTIONS[name] for name in ("plain", "all", "all, gated")])
def test_the_state_may_be_split_at_any_point(split: int, options: dict[str, Any]):
    model, sequence = build(**options), tokens()
    left, state = model.advance(sequence[:, :split], None)
    right, end = model.advance(sequence[:, split:], state)
    whole, whole_end = model.advance(sequence, None)
    torch.testing.assert_close(torch.cat([left, right], dim=1), whole, rtol=1e-10, atol=1e-10)
    for a, b in zip(end.layers, whole_end.layers, strict=True):
        torch.testing.assert_close(a.eigenstates, b.eigenstates)
        torch.testing.assert_close(a.mixer_inputs, b.mixer_inputs)
        torch.testing.assert_close(a.mlp_inputs, b.mlp_inputs)


def test_a_mixer_is_its_definition():
    mixer = build(resonance=0.0).blocks[0].mixer
    x = torch.randn(1, 14, 16, dtype=torch.float64)
    pairs, size = mixer.eigenvalues(1)
    drives, gates = mixer.project(x).split([16, 16], dim=-1)
    drive = torch.view_as_complex(drives.reshape(1, 14, 8, 2)) * size[:, None]
    multiplier, state, states = torch.view_as_complex(pairs)[0], torch.zeros(8), []
    for t in range(14):
        state = multiplier * state + drive[0, t]
        states.append(state)
    expected = mixer.output(torch.view_as_real(torch.stack(states)).flatten(-2))
    expected = expected * torch.sigmoid(gates[0])
    torch.testing.assert_close(mixer(x)[0][0], expected)


def test_a_gated_mixer_is_its_definition():
    mixer = build(resonance=0.0, transition="gated").blocks[0].mixer
    x = torch.randn(1, 14, 16, dtype=torch.float64)
    drives, gates, sizes = mixer.project(x)[0].split([16, 16, 8], dim=-1)
    exponent = torch.complex(-torch.exp(mixer.rate), mixer.frequency)
    state, states = torch.zeros(8), []
    for t in range(14):
        multiplier = torch.exp(exponent * torch.log(1 + torch.exp(sizes[t])))
        scale = torch.sqrt(1 - multiplier.abs() ** 2)
        state = multiplier * state + scale * torch.view_as_complex(drives[t].reshape(8, 2))
        states.append(state)
    expected = mixer.output(torch.view_as_real(torch.stack(states)).flatten(-2))
    torch.testing.assert_close(mixer(x)[0][0], expected * torch.sigmoid(gates))


def test_gated_transitions_begin_as_fixed_ones():
    config = EigenstateLMModel(d_model=16, num_eigenstates=8, transition="gated")
    torch.manual_seed(0)
    gated, fixed = (
        EigenstateMixer(config),
        EigenstateMixer(EigenstateLMModel(d_model=16, num_eigenstates=8)),
    )
    weights = gated.state_dict()
    for name in ("project.weight", "project.bias"):
        weights[name] = weights[name][: len(fixed.state_dict()[name])]
    fixed.load_state_dict(weights)
    x = torch.randn(2, 40, 16)
    torch.testing.assert_close(gated(x), fixed(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [-1000.0, -100.0, 0.0, 1000.0])
def test_any_size_of_a_step_has_finite_gradients(size: float):
    mixer = build(dtype=torch.float32, transition="gated").blocks[0].mixer
    torch.nn.init.constant_(mixer.project.bias[-8:], size)
    mixer(torch.randn(1, 300, 16))[0].square().sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in mixer.parameters())


def test_the_longest_initial_time_constant_can_be_chosen():
    torch.manual_seed(0)
    config = EigenstateLMModel(num_eigenstates=512, max_seq_len=32768, longest_time_constant=16)
    constants = torch.exp(-EigenstateMixer(config).rate.detach())
    assert 1.0 <= constants.min() < 1.5
    assert 14.0 < constants.max() <= 16.0


def test_initial_time_constants_spread_over_the_window():
    config = EigenstateLMModel(num_eigenstates=512, max_seq_len=32768)
    torch.manual_seed(0)
    mixer = EigenstateMixer(config)
    constants = torch.exp(-mixer.rate.detach())
    assert 1.0 <= constants.min() < 1.5
    assert 20_000 < constants.max() <= 32768
    share = [float((constants > 8.0**i).float().mean()) for i in range(1, 5)]
    assert share == pytest.approx([0.8, 0.6, 0.4, 0.2], abs=0.07)
    modulus = torch.linalg.vector_norm(mixer.eigenvalues(1)[0], dim=-1)
    assert modulus.max() > 1 - 1 / 20_000
    assert modulus.max() < 1


@pytest.mark.parametrize("rate", [-30.0, 0.0, 10.0])
def test_any_rate_gives_eigenvalues_within_the_unit_circle(rate: float):
    mixer = build(dtype=torch.float32).blocks[0].mixer
    torch.nn.init.constant_(mixer.rate, rate)
    out, _ = mixer(torch.randn(1, 300, 16))
    out.square().sum().backward()
    assert torch.linalg.vector_norm(mixer.eigenvalues(1)[0], dim=-1).max() <= 1
    assert all(p.grad is not None and p.grad.isfinite().all() for p in mixer.parameters())


@pytest.mark.parametrize("resets", [False, True])
def test_recomputed_activations_change_no_number(resets: bool):
    plain = build(dropout=0.2, convolution_width=4, reset_at_documents=resets)
    plain.train()
    recomputing = copy.deepcopy(plain)
    recomputing.enable_gradient_checkpointing()
    sequence, gradients = packed_documents(), []
    for model in (plain, recomputing):
        torch.manual_seed(5)
        model.logits(model(sequence)).logsumexp(-1).sum().backward()
        gradients.append({n: p.grad for n, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        assert torch.equal(gradient, gradients[1][name]), name


@pytest.mark.parametrize(
    ("preset", "vocabulary", "parameters", "millions"),
    [
        ("nano", 257, 10_117_120, 10.1),
        ("small_32k", 50257, 123_115_776, 123.1),
        ("medium_32k", 50257, 232_130_944, 232.1),
        ("large_32k", 50257, 399_203_840, 399.2),
    ],
)
def test_parameter_counts(preset: str, vocabulary: int, parameters: int, millions: float):
    with torch.device("meta"):
        model = EigenstateLM(vocabulary, EigenstateLMModel(preset=preset))
    assert count_parameters(model) == parameters
    assert round(parameters / 1e6, 1) == millions


def test_filters_add_a_number_a_channel_for_each_token_they_see_and_do_not_decay():
    plain, filtered = build(), build(convolution_width=4)
    assert count_parameters(filtered) == count_parameters(plain) + 2 * 2 * 4 * 16
    kept = {id(p) for p in filtered.parameters_without_decay()}
    assert all(id(block.mlp_filter.kernel) in kept for block in filtered.blocks)
    assert all(id(block.expand.weight) not in kept for block in filtered.blocks)


def test_squared_relu():
    x = torch.tensor([-2.0, -0.5, 0.0, 0.5, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.equal(squared_relu(x), torch.relu(x) ** 2)
    assert torch.autograd.gradcheck(squared_relu, (x,))


def test_the_head_is_the_embedding():
    model = build()
    names = dict(model.named_parameters())
    assert not any("head" in name for name in names)
    hidden = model(tokens())
    assert torch.equal(model.logits(hidden), hidden @ model.embedding.weight.T)


def packed_documents() -> Tensor:
    """Return two rows of documents with their ends; one document is only an end of text."""
    lengths = [[1, 9, 2, 1, 1, 17, 6, 13], [23, 3, 4, 20]]
    rows = []
    for row in lengths:
        tokens_ = torch.randint(END, (sum(row),), generator=torch.Generator().manual_seed(sum(row)))
        tokens_[torch.tensor(row).cumsum(0) - 1] = END
        rows.append(tokens_)
    return torch.stack(rows)


def alone(model: EigenstateLM, sequence: Tensor) -> Tensor:
    """Return the hidden vectors of each row's documents, computed separately."""
    rows = []
    for row in sequence:
        ends = (row == END).nonzero()[:, 0] + 1
        documents = [part for part in torch.tensor_split(row, ends) if len(part)]
        rows.append(torch.cat([model(part.unsqueeze(0))[0] for part in documents]))
    return torch.stack(rows)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("chunk_size", [1, 7, 64])
def test_documents_are_read_as_if_each_were_alone(options: dict[str, Any], chunk_size: int):
    sequence = packed_documents()
    options = options | {"chunk_size": chunk_size}
    model = build(**options, reset_at_documents=True)
    expected = alone(build(**options), sequence)
    torch.testing.assert_close(model(sequence), expected, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(build(**options)(sequence), expected)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_gradients_of_documents_are_those_of_each_alone(options: dict[str, Any]):
    sequence, gradients = packed_documents(), []
    weights = torch.randn(*sequence.shape, 16, dtype=torch.float64)
    together, each = build(**options, reset_at_documents=True), build(**options)
    for model, hidden in ((together, together(sequence)), (each, alone(each, sequence))):
        loss = (hidden * weights).sum()
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("split", [1, 2, 9, 10, 13, 23, 24, 49])
def test_documents_may_be_split_at_any_point(options: dict[str, Any], split: int):
    model, sequence = build(**options, reset_at_documents=True), packed_documents()
    left, state = model.advance(sequence[:, :split], None)
    right, _ = model.advance(sequence[:, split:], state)
    found = torch.cat([left, right], dim=1)
    torch.testing.assert_close(found, model(sequence), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_documents_read_token_by_token_give_the_same(options: dict[str, Any]):
    model, sequence = build(**options, reset_at_documents=True), packed_documents()
    steps = step_by_step(model, sequence)
    torch.testing.assert_close(steps, model.logits(model(sequence)), rtol=1e-10, atol=1e-10)


def test_text_without_an_end_is_one_document():
    sequence = tokens() % END
    for options in OPTIONS.values():
        plain, resetting = build(**options), build(**options, reset_at_documents=True)
        torch.testing.assert_close(resetting(sequence), plain(sequence), rtol=1e-12, atol=1e-12)


def test_documents_need_an_end_of_text():
    config = EigenstateLMModel(reset_at_documents=True)
    with pytest.raises(ValueError, match="no end_of_text token is given"):
        EigenstateLM(VOCABULARY, config)
