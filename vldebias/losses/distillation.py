"""Distillation: the similarities of a batch stay near those that a frozen model gives them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vldebias.losses.checks import check_temperature, matched
from vldebias.losses.processes import gather_rows, mean_over_processes


def distillation(
    image_features: Tensor,
    text_features: Tensor,
    frozen_image_features: Tensor,
    frozen_text_features: Tensor,
    *,
    temperature: float,
    gather: bool = False,
) -> Tensor:
    """() KL(p || p') of the softmax p over the batch of a frozen model from that of the model, mean of both directions.

        p_ij = softmax_j(<u_i, v_j> / t)    of image i over the texts, and of text i over the images

    As open_clip's `--distill-model`, whose cross-entropy differs by the entropy of p, a constant: this one is 0, with
    gradient 0, where both models agree. Frozen features get no gradient, and may have another dimension.

    Args:
        image_features, text_features: (n, d), rows of norm 1.
        frozen_image_features, frozen_text_features: (n, d'), rows of norm 1, of the same pairs.
        temperature: t > 0 of both.
        gather: over the joint batch of all processes.
    """
    check_temperature(temperature)
    model, frozen = (
        matched(*both)
        for both in ((image_features, text_features), (frozen_image_features.detach(), frozen_text_features.detach()))
    )
    with torch.autocast(image_features.device.type, enabled=False):
        total = torch.zeros((), dtype=model[0].dtype, device=model[0].device)
        for k in (0, 1):
            ours, theirs = (
                (views[k] @ (gather_rows(views[1 - k]) if gather else views[1 - k]).T / temperature).log_softmax(1)
                for views in (model, frozen)
            )
            total = total + F.kl_div(ours, theirs.to(ours), reduction="batchmean", log_target=True) / 2
    return mean_over_processes(total) if gather else total
