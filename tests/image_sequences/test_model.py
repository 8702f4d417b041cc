"""The network for image sequences: heads, FiLM, scalers, and recomputed frames."""

from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from clew.config.image_sequences import ArchitectureName, SequenceRegressionModel
from clew.image_sequences.model import SequenceRegressor, SequenceShape, graph_edges

ARCHITECTURES = get_args(ArchitectureName)


def build(**settings: Any) -> SequenceRegressor:
    torch.manual_seed(0)
    mask = settings.pop("mask", False)
    sizes: dict[str, Any] = {"channels": (8, 16), "norm_groups": 4, "heads": 2}
    config = SequenceRegressionModel(**(sizes | {"patch_grid": (2, 3)} | settings))
    return SequenceRegressor(SequenceShape(4, 1, 3, mask), config)


def inputs(windows: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(windows, 4, 1, 11, 14, generator=generator)
    return images, torch.randn(windows, 4, 3, generator=generator)


def stirred(model: SequenceRegressor) -> SequenceRegressor:
    """Move every parameter off its initial value, so that FiLM does something."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_windows_do_not_see_each_other(architecture: ArchitectureName) -> None:
    model = stirred(build(architecture=architecture)).eval()
    images, scalars = inputs()
    together = model(images, scalars)
    alone = torch.cat([model(images[i : i + 1], scalars[i : i + 1]) for i in range(6)])
    torch.testing.assert_close(together, alone)
    assert together.std() > 1e-3


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("normalization", ["group", "batch"])
@pytest.mark.parametrize("frames", [None, 5])
def test_frames_computed_again_change_no_bit(
    architecture: ArchitectureName, normalization: str, frames: int | None
) -> None:
    results = []
    for recompute in (False, True):
        model = stirred(
            build(
                architecture=architecture,
                normalization=normalization,
                frames_per_checkpoint=frames,
                dropout=0.3,
            )
        ).train()
        if recompute:
            model.enable_gradient_checkpointing()
        torch.manual_seed(3)
        loss = model(*inputs()).square().sum()
        loss.backward()
        results.append((loss, model, torch.get_rng_state()))
    (plain, ours, state), (again, theirs, other_state) = results
    assert torch.equal(plain, again)
    assert torch.equal(state, other_state)
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert a.grad is not None, name
        assert b.grad is not None, name
        assert torch.equal(a.grad, b.grad), name
    for (name, a), b in zip(ours.named_buffers(), theirs.buffers(), strict=True):
        assert torch.equal(a, b), name


def test_recomputation_keeps_less() -> None:
    """Count the tensors that the graph of a forward pass keeps."""

    def kept_bytes(recompute: bool) -> int:
        model = build(architecture="cnn").train()
        if recompute:
            model.enable_gradient_checkpointing()
        own = {p.data_ptr() for p in model.parameters()}
        seen: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            if tensor.data_ptr() not in own:
                seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(*inputs()).sum()
        return sum(seen.values())

    assert kept_bytes(True) < kept_bytes(False) / 3


def test_scalars_do_nothing_at_first_and_something_later() -> None:
    images, scalars = inputs()
    model = build().eval()
    assert torch.equal(model(images, scalars), model(images, scalars + 1.0))
    model = stirred(model)
    assert not torch.allclose(model(images, scalars), model(images, scalars + 1.0))
    blind = stirred(build(film=False)).eval()
    assert torch.equal(blind(images, scalars), blind(images, scalars + 1.0))


def test_scalers_are_part_of_the_state() -> None:
    images, scalars = inputs()
    model = stirred(build()).eval()
    expected = model(images, scalars)
    model.image_mean.fill_(280.0)
    model.image_std.fill_(5.0)
    model.scalar_std.fill_(2.0)
    torch.testing.assert_close(model(images * 5 + 280, scalars * 2), expected, rtol=1e-3, atol=1e-4)
    assert {"image_mean", "scalar_std", "target_mean", "target_std"} <= model.state_dict().keys()
    assert "head.edges" not in build(architecture="gnn").state_dict()


def test_missing_pixels_are_the_mean_or_marked() -> None:
    images, scalars = inputs()
    broken = images.clone()
    broken[0, 1, 0, 2, 3] = torch.nan
    filled = torch.nan_to_num(broken)
    model = stirred(build()).eval()
    assert torch.equal(model(broken, scalars), model(filled, scalars))
    marked = stirred(build(mask=True)).eval()
    assert not torch.allclose(marked(broken, scalars)[0], marked(filled, scalars)[0])
    assert torch.equal(marked(broken, scalars)[1:], marked(filled, scalars)[1:])


def test_the_order_of_frames_matters_where_it_should() -> None:
    images, scalars = inputs()
    for architecture in ARCHITECTURES:
        model = stirred(build(architecture=architecture)).eval()
        same = torch.allclose(
            model(images, scalars), model(images.flip(1), scalars.flip(1)), atol=1e-5
        )
        assert same == (architecture == "cnn"), architecture


def test_edges_join_neighbours_in_space_and_time() -> None:
    edges = graph_edges(3, 2, 3)
    assert edges.shape == (18, 18)
    assert torch.equal(edges, edges.T)
    assert edges.diagonal().all()
    middle = 6 + 1  # time 1, row 0, column 1
    assert edges[middle].nonzero().flatten().tolist() == [1, 6, 7, 8, 9, 10, 11, 13]


def test_decay_is_for_matrices() -> None:
    model = build(architecture="gnn")
    spared = {id(p) for p in model.parameters_without_decay()}
    for name, parameter in model.named_parameters():
        plain = parameter.dim() > 1 and not name.startswith(("head.time", "head.place"))
        assert (id(parameter) in spared) != plain, name
