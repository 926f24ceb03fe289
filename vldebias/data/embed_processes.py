"""Which process of a launch this is, so that the shards of a cache can be dealt out."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

__all__ = ["Processes", "processes"]


class Processes(NamedTuple):
    """This process is number `rank` of `world`.

    wait returns when all have called it; share gives to each what number 0 has called it with.
    """

    rank: int
    world: int
    wait: Callable[[], object]
    share: Callable[[Any], Any]


def processes() -> Processes:
    """Those of the process group, which accelerate sets up where the program was launched with several processes.

    A program on its own is left alone: accelerate keeps one state for all, and making it here would choose the
    device of an `Accelerator` that is made later.
    """
    if not dist.is_available():
        return _ALONE
    if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from accelerate import PartialState
        from accelerate.utils import parse_flag_from_env

        # Without cpu=True accelerate takes each process of a machine without an accelerator for a program on its own.
        PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available())
    if not dist.is_initialized():
        return _ALONE
    return Processes(dist.get_rank(), dist.get_world_size(), dist.barrier, _share)


def _share(value: Any) -> Any:
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


_ALONE = Processes(0, 1, lambda: None, lambda value: value)
