"""Adagrad with one accumulator per row: its formula, and a resumed training."""

import torch
from torch import nn

from clew.config.training import Adagrad
from clew.training.optimizer import build_optimizer, optimizer_tensors, restore_optimizer


def test_steps_are_the_formula():
    table, bias = nn.Parameter(torch.randn(7, 3)), nn.Parameter(torch.randn(5))
    settings = Adagrad(learning_rate=0.3, row_wise=True, epsilon=1e-3, weight_decay=0.01)
    optimizer = build_optimizer(settings, nn.ParameterList([table, bias]))
    expected = [table.detach().clone(), bias.detach().clone()]
    sums = [torch.zeros(7), torch.zeros(5)]
    for _ in range(3):
        gradients = [torch.randn(7, 3), torch.randn(5)]
        table.grad, bias.grad = (g.clone() for g in gradients)
        optimizer.step()
        decayed = [g + 0.01 * p for g, p in zip(gradients, expected, strict=True)]
        sums[0] += decayed[0].square().mean(1)
        sums[1] += decayed[1].square()
        expected[0] -= 0.3 * decayed[0] / (sums[0].sqrt() + 1e-3)[:, None]
        expected[1] -= 0.3 * decayed[1] / (sums[1].sqrt() + 1e-3)
    torch.testing.assert_close(table.detach(), expected[0])
    torch.testing.assert_close(bias.detach(), expected[1])


def test_the_state_of_a_table_is_as_long_as_the_table_and_is_restored():
    def model() -> nn.Embedding:
        torch.manual_seed(0)
        return nn.Embedding(11, 4)

    def step(network: nn.Embedding, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        network(torch.tensor([1, 2, 2])).square().sum().backward()
        optimizer.step()

    settings = Adagrad(row_wise=True)
    first, second = model(), model()
    optimizer = build_optimizer(settings, first)
    step(first, optimizer)
    tensors = optimizer_tensors(optimizer, first)
    assert {name: tuple(t.shape) for name, t in tensors.items()} == {"weight/sum": (11,)}
    second.load_state_dict(first.state_dict())
    resumed = build_optimizer(settings, second)
    restore_optimizer(resumed, second, tensors)
    step(first, optimizer)
    step(second, resumed)
    assert torch.equal(first.weight, second.weight)


def test_sparse_gradients_move_their_rows_as_dense_ones_do():
    """Repeated rows are added first, and all other rows stay unchanged, bit for bit."""
    dense, sparse = (nn.Parameter(torch.arange(21.0).reshape(7, 3) / 10) for _ in range(2))
    biases = [nn.Parameter(torch.arange(7.0)) for _ in range(2)]
    settings = Adagrad(learning_rate=0.3, row_wise=True)
    optimizers = [
        build_optimizer(settings, nn.ParameterList([table, bias]))
        for table, bias in zip((dense, sparse), biases, strict=True)
    ]
    rows = torch.tensor([4, 1, 4])
    for _ in range(3):
        values = torch.randn(3, 3)
        dense.grad = torch.zeros(7, 3).index_add(0, rows, values)
        biases[0].grad = torch.zeros(7).index_add(0, rows, values[:, 0])
        sparse.grad = torch.sparse_coo_tensor(rows[None], values, (7, 3), check_invariants=True)
        biases[1].grad = torch.sparse_coo_tensor(
            rows[None], values[:, 0], (7,), check_invariants=True
        )
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(sparse, dense)
    torch.testing.assert_close(biases[1], biases[0])
    assert torch.equal(
        sparse[[0, 2, 3, 5, 6]], torch.arange(21.0).reshape(7, 3)[[0, 2, 3, 5, 6]] / 10
    )
