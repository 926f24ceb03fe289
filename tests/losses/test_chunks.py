"""Blocks of rows: the same value, the same gradients, and never a matrix of the size of the batch squared."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from slow_losses import unit_rows
from test_precision import LOSSES
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vldebias import losses


class LargestTensor(TorchDispatchMode):
    """Numbers in the largest tensor that any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor):
                self.size = max(self.size, tensor.numel())
        return out


def _run(name: str, n: int, chunk_size: int | None, **options: Any) -> list[Tensor]:
    x, y = (unit_rows(n, 4, seed=seed).requires_grad_() for seed in (1, 2))
    t = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    labels = torch.arange(n) % 3
    loss = losses.spread if name == "spread" else LOSSES[name]
    arguments = (x, y, labels) if name == "spread" else (x, y)
    values = loss(*arguments, temperature=t, chunk_size=chunk_size, reduction="none", **options)
    return [values.detach(), *torch.autograd.grad((values * torch.linspace(0, 1, n)).sum(), (x, y, t))]


@pytest.mark.parametrize("within_view", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_blocks_change_neither_value_nor_gradient(name: str, within_view: bool) -> None:
    whole = _run(name, 23, None, within_view=within_view)
    for chunk_size in (1, 7, 23, 100):
        for ours, expected in zip(_run(name, 23, chunk_size, within_view=within_view), whole, strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", LOSSES)
def test_no_tensor_grows_with_the_batch_squared(name: str) -> None:
    n, chunk_size = 96, 8
    with LargestTensor() as whole:
        _run(name, n, None, within_view=False)
    with LargestTensor() as blocks:
        _run(name, n, chunk_size, within_view=False)
    assert whole.size >= n * n
    assert blocks.size <= chunk_size * n


@pytest.mark.parametrize("name", LOSSES)
def test_blocks_are_not_kept_for_the_backward_pass(name: str) -> None:
    """What autograd holds after the forward pass is linear in n; the blocks together would be n^2 again."""
    assert _held(name, 96, 8) < 96 * 96 / 4
    assert _held(name, 96, None) >= 96 * 96


def _held(name: str, n: int, chunk_size: int | None) -> int:
    """Numbers in the tensors saved for the backward pass, each storage once."""
    held: dict[int, Tensor] = {}

    def hold(tensor: Tensor) -> Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    x, y = (unit_rows(n, 4, seed=seed).requires_grad_() for seed in (1, 2))
    arguments = (x, y, torch.arange(n) % 3) if name == "spread" else (x, y)
    loss = losses.spread if name == "spread" else LOSSES[name]
    with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
        loss(*arguments, temperature=0.1, chunk_size=chunk_size, within_view=False)
    return sum(tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in held.values())


def test_blocks_serve_without_gradients() -> None:
    x, y = unit_rows(10, 4, seed=1), unit_rows(10, 4, seed=2)
    with torch.no_grad():
        blocks = losses.info_nce(x, y, temperature=0.1, chunk_size=3)
    torch.testing.assert_close(blocks, losses.info_nce(x, y, temperature=0.1))


def test_the_global_loss_in_blocks_never_holds_the_square_either() -> None:
    n, chunk_size = 96, 8
    sizes = []
    for chunk in (None, chunk_size):
        x, y = (unit_rows(n, 4, seed=seed).requires_grad_() for seed in (1, 2))
        loss = losses.GlobalContrastiveLoss(n, temperature=0.1, popularity_lr=0.5, chunk_size=chunk)
        with LargestTensor() as largest:
            loss(x, y, torch.arange(n)).backward()
        sizes.append(largest.size)
    assert sizes[0] >= n * n
    assert sizes[1] <= chunk_size * n


def test_blocks_are_computed_again_without_autocast() -> None:
    """backward() inside an autocast block must not round what it computes again."""
    x, y = (unit_rows(10, 4, seed=seed).float().requires_grad_() for seed in (1, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = losses.info_nce(x, y, temperature=0.01, chunk_size=3)
        ours = torch.autograd.grad(value, (x, y))
    expected = torch.autograd.grad(losses.info_nce(x, y, temperature=0.01), (x, y))
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
