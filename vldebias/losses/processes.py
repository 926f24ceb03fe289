"""Gather the joint batch of all processes, with gradients, so that a loss equals that on the joint
batch.

As in `torch.distributed.nn`, a process ends up with the gradient of the sum over the processes of
what each calls backward on. Every process holds the same mean loss, so a row's gradient is world
size times that of the joint loss, and DistributedDataParallel, which averages, arrives at the joint
gradient.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from vldebias.errors import InvalidInputError


def world_size() -> int:
    """Return the number of processes; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process; 0 without a process group."""
    return dist.get_rank() if world_size() > 1 else 0


class _GatherRows(torch.autograd.Function):
    """Gather (n, ...) of every process as (world size * n, ...); backward sums the gradients of all
    for own rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.n = len(rows)
        parts = [torch.empty_like(rows) for _ in range(world_size())]
        dist.all_gather(parts, rows)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        # all_reduce writes into its argument, which other functions may hold.
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
    """Return the rows of all processes, as many of each, in the order of their ranks,
    differentiable."""
    if world_size() == 1:
        return rows
    # all_gather of unequal sizes hangs or fails in the backend, so the sizes are compared first.
    counts = [torch.empty(1, dtype=torch.long, device=rows.device) for _ in range(world_size())]
    dist.all_gather(counts, torch.tensor([len(rows)], device=rows.device))
    if len({int(count) for count in counts}) > 1:
        raise InvalidInputError(
            "gather: expected as many rows on every process, got"
            f" {[int(count) for count in counts]}; drop the last incomplete batch"
        )
    return _GatherRows.apply(rows.contiguous())


def mean_over_processes(value: Tensor) -> Tensor:
    """Return the mean of `value` over the processes, differentiable."""
    return value if world_size() == 1 else _MeanOverProcesses.apply(value)


def sum_over_processes(value: Tensor) -> Tensor:
    """Return the sum of `value` over the processes, without gradient."""
    total = value.detach().clone()
    if world_size() > 1:
        dist.all_reduce(total)
    return total
