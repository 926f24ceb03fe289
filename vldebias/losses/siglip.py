"""SigLIP's sigmoid loss, for comparison: every pair of rows is a binary classification of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError
from vldebias.losses.blocks import Rows
from vldebias.losses.contrast import Reduction, contrast, softplus
from vldebias.losses.module import ContrastiveLoss

__all__ = ["SigmoidLoss", "sigmoid"]


def _row_loss(rows: Rows, bias: float | Tensor) -> Tensor:
    return softplus(-(rows.positive + bias)) + softplus(rows.negatives + bias).sum(1)


def sigmoid(
    image_features: Tensor,
    text_features: Tensor,
    *,
    temperature: float | Tensor,
    bias: float | Tensor = -10.0,
    reduction: Reduction = "mean",
    chunk_size: int | None = None,
    gather: bool = False,
    within_view: bool = False,
) -> Tensor:
    """1/n sum_ij log(1 + e^{-z_ij (s_ij + bias)}), z = 1 for a pair and -1 elsewhere.

    Zhai et al., Sigmoid Loss for Language Image Pre-Training (2023), eq. 1. Both directions are the same sum, so the
    mean is the paper's loss; per sample it is half the sum of the row and half that of the column. Unlike in
    `info_nce` no row competes with another, and the bias makes up for n - 1 negatives to one positive.

    Args:
        bias: added to every similarity, a number or a tensor (); SigLIP learns it from -10, and t from .1.

    The other arguments, Returns and Raises: see `info_nce`.

    Raises:
        InvalidInputError: a bias tensor that is not of shape ().
    """
    if isinstance(bias, Tensor) and bias.ndim:
        raise InvalidInputError(f"bias: expected a number or a tensor of shape (), got shape {tuple(bias.shape)}")

    return contrast(
        _row_loss,
        image_features,
        text_features,
        bias,
        temperature=temperature,
        reduction=reduction,
        chunk_size=chunk_size,
        gather=gather,
        within_view=within_view,
    )


class SigmoidLoss(ContrastiveLoss):
    """`sigmoid` with its settings; temperature and bias are learned unless told otherwise, as SigLIP does."""

    def __init__(
        self,
        *,
        temperature: float = 0.1,
        learnable_temperature: bool = True,
        bias: float = -10.0,
        learnable_bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(temperature=temperature, learnable_temperature=learnable_temperature, **options)
        value = torch.tensor(float(bias))
        self.bias: Tensor
        if learnable_bias:
            self.bias = nn.Parameter(value)
        else:
            self.register_buffer("bias", value)

    def forward(self, image_features: Tensor, text_features: Tensor) -> Tensor:
        """Loss of image_features (n, d) and text_features (n, d)."""
        return sigmoid(image_features, text_features, **self.options())

    def options(self) -> dict[str, Any]:
        """The keywords of `sigmoid`."""
        return super().options() | {"bias": self.bias}
