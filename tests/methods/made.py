"""Generate random rows for the method tests."""

import torch
from torch import Tensor
from torch.nn.functional import normalize


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit(*shape: int, seed: int = 0) -> Tensor:
    return normalize(normal(*shape, seed=seed), dim=-1)
