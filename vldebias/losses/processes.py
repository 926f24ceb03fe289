"""Gather the joint batch from all processes, with gradients.

As in `torch.distributed.nn`, each process receives the gradient of the summed losses of all
processes. Because every process computes the same mean loss, this is the gradient of the joint loss
times the number of processes. DistributedDataParallel's averaging removes the factor.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from vldebias.errors import InvalidInputError


def world_size() -> int:
    """Return the number of processes, or 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process, or 0 without a process group."""
    return dist.get_rank() if world_size() > 1 else 0


class _GatherRows(torch.autograd.Function):
    """Gather rows (n, ...) from all processes as (world size * n, ...).

    The backward pass sums the gradients of all processes for the rows of this process.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.n = len(rows)
        parts = [torch.empty_like(rows) for _ in range(world_size())]
        dist.all_gather(parts, rows)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        # all_reduce overwrites its argument, which other functions may still need.
        total = grads[0].contiguous().clone()
        dist.all_reduce(total)
        return total[rank() * ctx.n : (rank() + 1) * ctx.n]


class _MeanOverProcesses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return sum_over_processes(value) / world_size()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return sum_over_processes(grads[0]) / world_size()


def gather_rows(rows: Tensor) -> Tensor:
    """Return the rows from all processes, ordered by rank (differentiable).

    Raises:
        InvalidInputError: If the processes have different numbers of rows.

    >>> import torch
    >>> rows = torch.eye(2)
    >>> gather_rows(rows).shape  # with one process; (16, 2) with eight
    torch.Size([2, 2])
    """
    if world_size() == 1:
        return rows
    # all_gather hangs or fails in the backend if sizes differ, so compare the sizes first.
    counts = [torch.empty(1, dtype=torch.long, device=rows.device) for _ in range(world_size())]
    dist.all_gather(counts, torch.tensor([len(rows)], device=rows.device))
    if len({int(count) for count in counts}) > 1:
        raise InvalidInputError(
            "gather: expected the same number of rows on every process, got"
            f" {[int(count) for count in counts]}; drop the last incomplete batch"
        )
    return _GatherRows.apply(rows.contiguous())


def mean_over_processes(value: Tensor) -> Tensor:
    """Return the mean of `value` over all processes (differentiable)."""
    return value if world_size() == 1 else _MeanOverProcesses.apply(value)


def sum_over_processes(value: Tensor) -> Tensor:
    """Return the sum of `value` over all processes, without a gradient."""
    total = value.detach().clone()
    if world_size() > 1:
        dist.all_reduce(total)
    return total
