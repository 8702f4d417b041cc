"""ConvE: the published network, parameter for parameter, and its recomputed activations."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from clew.config.graph_models import ConvEModel
from clew.layers.training_mode import running_statistics_kept
from clew.link_prediction.models.conve import ConvE

NUM_ENTITIES, NUM_RELATIONS = 50, 8


def build(seed=0, **settings):
    torch.manual_seed(seed)
    return ConvE(NUM_ENTITIES, NUM_RELATIONS, ConvEModel(**{"embedding_dim": 20} | settings))


def batch(size=33):
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randint(NUM_ENTITIES, (size,), generator=generator),
        torch.randint(NUM_RELATIONS, (size,), generator=generator),
    )


def test_parameter_count_of_the_published_network():
    """FB15k-237 has two tables, entity biases, 32 3x3 kernels, 10,368 x 200 weights, 3 norms."""
    with torch.device("meta"):
        model = ConvE(14_541, 474, ConvEModel())
    tables = 14_541 * 200 + 474 * 200 + 14_541
    convolution = 32 * 3 * 3 + 32
    projection = 32 * (20 - 3 + 1) * (20 - 3 + 1) * 200 + 200
    norms = 2 * (1 + 32 + 200)
    assert sum(p.numel() for p in model.parameters()) == tables + convolution + projection + norms
    assert model.projection.in_features == 10_368


@pytest.mark.parametrize("switch", ["convolution_bias", "projection_bias", "entity_bias"])
def test_biases_can_be_left_out(switch):
    names = {"convolution_bias": "convolution.bias", "projection_bias": "projection.bias"}
    assert names.get(switch, switch) in dict(build().named_parameters())
    assert names.get(switch, switch) not in dict(build(**{switch: False}).named_parameters())


def test_forward_is_the_published_formula():
    model = build(
        embedding_dim=24, embedding_height=4, output_channels=5, kernel_height=2, kernel_width=4
    ).eval()
    for module in (model.input_norm, model.feature_norm, model.projection_norm):
        module.running_mean.uniform_(-1, 1)
        module.running_var.uniform_(0.5, 2)
        module.weight.data.uniform_(0.5, 2)
        module.bias.data.uniform_(-1, 1)
    head, relation = batch()

    def normalise(norm, x):
        shape = (1, -1, *[1] * (x.ndim - 2))
        mean, variance = norm.running_mean.view(shape), norm.running_var.view(shape)
        x = (x - mean) / (variance + norm.eps).sqrt()
        return x * norm.weight.view(shape) + norm.bias.view(shape)

    head_image = model.entity.weight[head].view(-1, 1, 4, 6)
    relation_image = model.relation.weight[relation].view(-1, 1, 4, 6)
    x = normalise(model.input_norm, torch.cat([head_image, relation_image], dim=2))
    x = F.conv2d(x, model.convolution.weight, model.convolution.bias)
    assert x.shape[1:] == (5, 7, 3)
    x = normalise(model.feature_norm, x).clamp(min=0).reshape(len(head), -1)
    x = x @ model.projection.weight.T + model.projection.bias
    expected = normalise(model.projection_norm, x).clamp(min=0)
    torch.testing.assert_close(model.queries(head, relation), expected, rtol=1e-5, atol=1e-5)


def test_dropouts_act_in_training_only():
    model, (head, relation) = build(), batch()
    assert not torch.equal(model.queries(head, relation), model.queries(head, relation))
    model.eval()
    assert torch.equal(model.queries(head, relation), model.queries(head, relation))


def test_one_row_can_be_trained():
    model = build()
    model.queries(*batch(1)).sum().backward()
    assert model.entity.weight.grad is not None


def train_once(model, *, autocast=False):
    """Return queries, gradients and buffers after one pass with a fixed seed."""
    torch.manual_seed(3)
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        queries = model.queries(*batch())
    queries.float().square().sum().backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return queries, gradients, dict(model.named_buffers())


def pair():
    """Return a network, and its copy that recomputes activations."""
    model = build()
    twin = copy.deepcopy(model)
    twin.enable_gradient_checkpointing()
    return model, twin


@pytest.mark.parametrize("autocast", [False, True])
def test_recomputation_changes_nothing(autocast):
    model, twin = pair()
    for _ in range(3):
        plain, recomputed = (
            train_once(model, autocast=autocast),
            train_once(twin, autocast=autocast),
        )
        for one, other in zip(plain[1:], recomputed[1:], strict=True):
            assert one.keys() == other.keys()
            for name, value in one.items():
                assert torch.equal(value, other[name]), name
        assert torch.equal(plain[0], recomputed[0])
    assert twin.input_norm.num_batches_tracked == 3


def test_recomputation_keeps_fewer_activations():
    def saved_bytes(model):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: sizes.append(t.nbytes) or t, lambda t: t
        ):
            model.queries(*batch())
        return sum(sizes)

    model, twin = pair()
    assert saved_bytes(twin) < saved_bytes(model) / 3


@pytest.mark.slow
def test_recomputation_changes_nothing_when_compiled():
    """This runs in a new process, because the compiler cannot trace shape checks of signatures."""
    script = "import test_conve; test_conve.compare_compiled_twins()"
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "platform")]
    subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
    )


def compare_compiled_twins():
    model, twin = pair()
    model.compile(backend="aot_eager")
    twin.compile(backend="aot_eager")
    plain, recomputed = train_once(model), train_once(twin)
    for one, other in zip(plain[1:], recomputed[1:], strict=True):
        for name, value in one.items():
            torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-5)
    assert twin.feature_norm.num_batches_tracked == 1


def test_an_error_while_recomputing_leaves_the_statistics_in_place():
    model = build()
    before = model.feature_norm.running_mean
    with pytest.raises(RuntimeError), running_statistics_kept([model.feature_norm]):
        raise RuntimeError
    assert model.feature_norm.running_mean is before
