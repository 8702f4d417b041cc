"""Checks that the device computes what float64 on the processor computes."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from clew.config.eigenstate import EigenstateLMModel
from clew.config.graph_models import ConvEModel
from clew.config.image_sequences import SequenceRegressionModel
from clew.image_sequences.model import SequenceRegressor, SequenceShape
from clew.language_modeling.loss import summed_loss
from clew.language_modeling.model import EigenstateLM
from clew.layers.scan import scan
from clew.link_prediction.losses.fused_one_vs_all import fused_one_vs_all_loss
from clew.link_prediction.losses.one_vs_all import LossFunction, OneVsAll, one_vs_all_loss
from clew.link_prediction.models.conve import ConvE
from experiments.benchmarks.influence_speed import run_clew, triples
from experiments.gpu.timing import Bench, Row, largest_error

Model = TypeVar("Model", bound=torch.nn.Module)
FUNCTIONS: tuple[LossFunction, ...] = ("binary_cross_entropy", "softmax_cross_entropy")
TOLERANCES = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""The largest error that passes, as a share of the largest exact value."""


def equality(bench: Bench) -> Iterator[Row]:
    """Yield one row for each check: the largest error of values and gradients."""
    for name, check in (
        ("fused loss", fused_losses),
        ("ConvE's loss", conve),
        ("scan", scans),
        ("language model's loss", language),
        ("image sequences", images),
        ("TracIn scores", influence),
    ):
        for case, found, allowed in check(bench):
            yield {
                "check": f"{name}, {case}",
                "largest error": found,
                "allowed": allowed,
                "passed": found <= allowed,
            }


def fused_losses(bench: Bench) -> Iterator[tuple[str, float, float]]:
    """Compare the fused loss and its gradients with the plain loss in float64."""
    generator = torch.Generator().manual_seed(0)
    entities = bench.size(70_001, 5_001)
    shapes = ((33, 40), (entities, 40), (entities,))
    drawn = [torch.randn(*shape, generator=generator) / 4 for shape in shapes]
    row, entity = torch.arange(33), torch.arange(33) * (entities // 33)
    half = [torch.float16, torch.bfloat16] if bench.device.type == "cuda" else [torch.bfloat16]
    for function in FUNCTIONS:
        settings = OneVsAll(function, 0.1)
        exact = _with_gradients(
            lambda x, w, b: one_vs_all_loss(x, w, b, row, entity, settings=settings),  # noqa: B023
            [x.double() for x in drawn],
        )
        for dtype in (torch.float32, *half):
            with torch.autocast(bench.device.type, dtype, enabled=dtype is not torch.float32):
                found = _with_gradients(
                    lambda x, w, b: fused_one_vs_all_loss(
                        x,
                        w,
                        b,
                        row.to(bench.device),
                        entity.to(bench.device),
                        settings=settings,  # noqa: B023
                    ),
                    [x.to(bench.device) for x in drawn],
                )
            error = max(largest_error(f, e) for f, e in zip(found, exact, strict=True))
            yield f"{function}, {_short(dtype)}", error, TOLERANCES[dtype]


def conve(bench: Bench) -> Iterator[tuple[str, float, float]]:
    """Compare ConvE's loss and the gradients of all parameters, without dropout."""
    settings = ConvEModel(input_dropout=0, feature_map_dropout=0, projection_dropout=0)
    torch.manual_seed(0)
    model = ConvE(bench.size(14_541, 500), 474, settings).train()
    head = torch.randint(model.entity.weight.shape[0], (128,))
    relation, row = torch.randint(474, (128,)), torch.arange(128)

    def loss(model: ConvE, device: torch.device) -> list[Tensor | None]:
        total = fused_one_vs_all_loss(
            model.queries(head.to(device), relation.to(device)),
            model.entity.weight,
            model.entity_bias,
            row.to(device),
            head.flip(0).to(device),
            settings=OneVsAll(label_smoothing=0.1),
        )
        return [total, *torch.autograd.grad(total, list(model.parameters()), allow_unused=True)]

    yield from _moved(model, loss, bench)


def scans(bench: Bench) -> Iterator[tuple[str, float, float]]:
    """Compare the scan with that of the processor in float64."""
    generator = torch.Generator().manual_seed(0)
    for time in (1, 1000, bench.size(32_768, 2_048)):
        inputs = torch.randn(2, time, 48, 2, generator=generator)
        modulus = 1 - torch.rand(1, 48, generator=generator) ** 4
        values = torch.polar(modulus, 3 * torch.rand(1, 48, generator=generator))
        leaves = [inputs, torch.view_as_real(values)]
        exact = _with_gradients(
            lambda a, b: scan(a, b).square().sum() / time,  # noqa: B023
            [x.double() for x in leaves],
        )
        found = _with_gradients(
            lambda a, b: scan(a, b).square().sum() / time,  # noqa: B023
            [x.to(bench.device) for x in leaves],
        )
        error = max(largest_error(f, e) for f, e in zip(found, exact, strict=True))
        yield f"{time} steps", error, 1e-3


def language(bench: Bench) -> Iterator[tuple[str, float, float]]:
    """Compare the loss of a small language model and its gradients."""
    torch.manual_seed(0)
    model = EigenstateLM(257, EigenstateLMModel(preset="nano", n_layers=2)).train()
    tokens = torch.randint(257, (2, bench.size(2_049, 129)))

    def loss(model: EigenstateLM, device: torch.device) -> list[Tensor | None]:
        given = tokens.to(device)
        total = summed_loss(
            model(given[:, :-1]),
            model.embedding.weight,
            given[:, 1:].contiguous(),
            chunk_bytes=2**24,
        )
        return [total, *torch.autograd.grad(total, list(model.parameters()), allow_unused=True)]

    yield from _moved(model, loss, bench, allowed=1e-3)


def images(bench: Bench) -> Iterator[tuple[str, float, float]]:
    """Compare the output of the image network and its gradients."""
    torch.manual_seed(0)
    model = SequenceRegressor(SequenceShape(5, 1, 3), SequenceRegressionModel()).eval()
    frames, scalars = torch.randn(2, 5, 1, 44, 64), torch.randn(2, 5, 3)

    def loss(model: SequenceRegressor, device: torch.device) -> list[Tensor | None]:
        total = model(frames.to(device), scalars.to(device)).square().sum()
        return [total, *torch.autograd.grad(total, list(model.parameters()), allow_unused=True)]

    yield from _moved(model, loss, bench, allowed=1e-3)


def influence(bench: Bench) -> Iterator[tuple[str, float, float]]:
    """Compare TracIn scores of some rows with the processor's."""
    train, test = triples(256, 1), triples(4, 2)
    exact = torch.from_numpy(run_clew(train, test)[1])
    found = torch.from_numpy(run_clew(train, test, device=bench.device)[1])
    yield "256 rows x 4 tests", largest_error(found, exact), 1e-4


def _moved(
    model: Model,
    loss: Callable[[Model, torch.device], list[Tensor | None]],
    bench: Bench,
    *,
    allowed: float = 1e-4,
) -> Iterator[tuple[str, float, float]]:
    cpu = torch.device("cpu")
    exact = [None if x is None else x.detach().clone() for x in loss(model.double(), cpu)]
    found = loss(model.float().to(bench.device), bench.device)
    both = zip(found, exact, strict=True)
    pairs = [(f, e) for f, e in both if f is not None and e is not None]
    scale = max(float(e.abs().max()) for _, e in pairs[1:])
    errors = [largest_error(*pairs[0])]
    errors += [float((f.detach().double().cpu() - e).abs().max()) / scale for f, e in pairs[1:]]
    yield "float32 against float64", max(errors), allowed


def _with_gradients(function: Callable[..., Tensor], given: list[Tensor]) -> list[Tensor]:
    leaves = [x.detach().clone().requires_grad_() for x in given]
    value = function(*leaves)
    return [value, *torch.autograd.grad(value, leaves)]


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
