"""Compute SigLIP's sigmoid loss, which classifies each pair of rows independently."""

from __future__ import annotations

from numbers import Real
from typing import Any, Self, Unpack

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError
from vldebias.losses.catalog import NoSettings
from vldebias.losses.checks import described
from vldebias.losses.contrast import BatchOptions, Contrast, ContrastiveLoss, ModuleOptions
from vldebias.losses.sums import softplus


def sigmoid(
    image_features: Tensor,
    text_features: Tensor,
    *,
    temperature: float | Tensor,
    bias: float | Tensor = -10.0,
    **options: Unpack[BatchOptions],
) -> Tensor:
    """Return SigLIP's sigmoid loss.

        1/n sum_ij log(1 + e^{-z_ij (s_ij + bias)})

    Here z = 1 for pairs and -1 for negatives. Source: Zhai et al., Sigmoid Loss for Language Image
    Pre-Training (2023), eq. 1. Both directions have the same sum, so their mean is the paper's
    loss. The loss of a pair is the mean of the sums over its row and its column. Unlike in
    `info_nce`, rows do not compete with each other. The bias compensates for the n - 1 negatives
    per positive.

    Args:
        image_features: (n, d), rows of norm 1.
        text_features: (n, d), rows of norm 1.
        bias: number or tensor () that is added to every similarity. SigLIP learns the bias and the
            temperature, starting from -10 and 0.1.
        temperature: t > 0, a number or a tensor ().
        options: reduction, chunk_size, gather, within_view and precision, as for `info_nce`.

    Returns:
        The loss (), or one loss per pair (n,) with reduction "none".

    Raises:
        InvalidInputError: If the features, an argument or an option is invalid.

    >>> import torch
    >>> images = torch.eye(4)
    >>> sigmoid(images, images, bias=-10.0, temperature=0.1)
    tensor(0.6933)
    """
    _check_bias(bias)
    batch = Contrast(image_features, text_features, temperature=temperature, **options)
    rows = batch.joint[0]
    offset = torch.as_tensor(bias, dtype=rows.dtype, device=rows.device)
    # The mean only needs one sum over the entire matrix. Per-pair losses need the sum of each row.
    if batch.reduction == "mean":
        return batch.mean_total(offset)
    negatives = batch.each_row(lambda side, s, block: softplus(s + offset).sum(1))
    return batch.reduce(softplus(-batch.positive - offset) + negatives)


def _check_bias(bias: float | Tensor) -> None:
    """Raise an error unless the bias is a finite number or a tensor ().

    The value of a tensor is not checked, because reading it would synchronise with the GPU.
    """
    if isinstance(bias, Tensor):
        is_valid = bias.ndim == 0 and bias.is_floating_point()
    else:
        is_number = isinstance(bias, Real) and not isinstance(bias, bool)
        is_valid = is_number and abs(bias) <= torch.finfo(torch.float32).max
    if not is_valid:
        raise InvalidInputError(
            "bias: expected a finite number or a floating point tensor of shape (), got"
            f" {described(bias)}"
        )


class Sigmoid(ContrastiveLoss[NoSettings]):
    """Apply `sigmoid` with a learned bias and, by default, a learned temperature.

    >>> import torch
    >>> loss = Sigmoid(temperature=0.1)
    >>> images = torch.eye(4)
    >>> loss(images, images).detach()
    tensor(0.6933)
    >>> loss.bias.item()  # learned
    -10.0
    """

    function = staticmethod(sigmoid)
    bias: nn.Parameter

    def __init__(
        self, *, temperature: float, learnable_temperature: bool = True, **settings: Any
    ) -> None:
        super().__init__(
            temperature=temperature, learnable_temperature=learnable_temperature, **settings
        )
        _check_bias(self.__dict__["bias"])
        # Remove the attribute first, because a parameter cannot have the name of an attribute.
        self.bias = nn.Parameter(torch.tensor(float(self.__dict__.pop("bias"))))

    @classmethod
    def from_settings(cls, settings: NoSettings, **options: Unpack[ModuleOptions]) -> Self:
        """Build the loss for a training run, without negatives within a view."""
        options["within_view"] = False
        return super().from_settings(settings, **options)
